"""Small primitives run on the thread that calls them: no others are started, and none is waited for."""

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

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
    third = MemoryDesc((threads.SHARED // 4,), "f32")
    assert onednn.binary(
        "add", third, third, third
    ).recipe.is_small  # whose elements are not multiplied by each other
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


@pytest.mark.parametrize("before", [1, 3])
def test_only_what_is_small_is_made_for_one_thread(before: int) -> None:
    """Whatever number of threads there is without it, which comes back."""
    openmp = threads._openmp()
    assert openmp is not None
    tell, allow = openmp
    usual, seen = tell(), list[int]()
    allow(before)
    try:
        with threads.alone(False):
            seen.append(tell())
        with threads.alone(True):
            seen.append(tell())
            threads.run_alone(lambda: seen.append(tell()))()
            seen.append(tell())
        seen.append(tell())
        threads.run_alone(lambda: seen.append(tell()))()
        seen.append(tell())
    finally:
        allow(usual)
    assert seen == [before, 1, 1, 1, before, 1, before]


def nothing() -> None:
    """A kernel."""


@pytest.mark.parametrize("missing", ["omp_get_max_threads", "omp_set_num_threads"])
def test_without_openmp_nothing_is_set(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(omp_get_max_threads=len, omp_set_num_threads=len)
    delattr(there, missing)
    monkeypatch.setattr("lamina.onednn.threads.dnnl.library", SimpleNamespace(open=lambda: there))
    monkeypatch.setattr(
        threads, "ctypes", SimpleNamespace(cast=lambda f, kind: ctypes.c_void_p(1), c_void_p=None)
    )
    find = threads._openmp.__wrapped__
    assert find() is None
    monkeypatch.setattr(threads, "_openmp", lambda: None)
    assert threads.run_alone(nothing) is nothing
    with threads.alone(True), threads.alone(False):
        pass
