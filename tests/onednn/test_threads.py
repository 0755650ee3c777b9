"""Small primitives run on the thread that calls them: no others are started, and none is waited for."""

import os
import subprocess
import sys

import pytest

from lamina import onednn
from lamina.onednn import MemoryDesc, threads

pytestmark = [
    pytest.mark.feature("B004"),
    pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64"),
]

_COUNT = """
import os
import numpy as np
import lamina as lm
from lamina import onednn
from lamina.onednn import ARG, Memory, MemoryDesc, Primitive, threads

def threads_after(*shape):
    x = np.ones(shape, np.float32)
    y = np.empty_like(x)
    desc = MemoryDesc(shape, "f32")
    add = Primitive(onednn.binary("add", desc, desc, desc))
    held = [Memory(desc, a.ctypes.data, keep=a) for a in (x, x, y)]
    add.execute({ARG.SRC_0: held[0], ARG.SRC_1: held[1], ARG.DST: held[2]})
    assert (y == 2).all()
    return len(os.listdir("/proc/self/task"))

np.ones((64, 64)) @ np.ones((64, 64))
before = len(os.listdir("/proc/self/task"))
print(threads_after(10, 10) - before, threads_after(1000, 1000) - before, threads._openmp()[0]())
"""


def test_a_small_primitive_starts_no_thread_and_a_large_one_does() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _COUNT],
        env={**os.environ, "OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["0", "2", "3"]  # what OpenMP may start is as before


def matmul(m: int, k: int, n: int) -> onednn.PrimitiveDesc:
    shapes = ((m, k), (k, n), (m, n))
    src, weights, dst = (MemoryDesc(shape, "f32") for shape in shapes)
    return onednn.matmul(src, weights, dst)


def test_work_is_counted_in_elements_and_in_multiplications() -> None:
    assert matmul(64, 64, 64).recipe.is_small
    assert not matmul(65, 64, 64).recipe.is_small
    assert not matmul(1, 200, 200).recipe.is_small  # its matrix alone has more elements
    line = MemoryDesc((threads.SHARED // 2 - 1,), "f32")
    assert onednn.eltwise_forward("relu", line, line).recipe.is_small
    more = MemoryDesc((threads.SHARED // 2,), "f32")
    assert not onednn.eltwise_forward("relu", more, more).recipe.is_small
    assert not onednn.concat(0, [line, line], MemoryDesc((2 * line.dims[0],), "f32")).recipe.is_small


def test_the_number_of_threads_is_as_before_where_a_kernel_fails() -> None:
    openmp = threads._openmp()
    assert openmp is not None
    before = openmp[0]()
    seen = []

    def fails() -> None:
        seen.append(openmp[0]())
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        threads.run_alone(fails)()
    with pytest.raises(ValueError, match="no"), threads.alone(True):
        fails()
    assert seen == [1, 1]
    assert openmp[0]() == before
