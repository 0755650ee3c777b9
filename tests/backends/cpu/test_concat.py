"""Concatenation on the cpu backend: parts are joined in the layout that they lie in."""

import numpy as np
import pytest

from lamina import backends, onednn
from lamina.backends.cpu.library import attempt, desc
from lamina.backends.cpu.loops import compiler
from lamina.backends.reference import run_reference
from lamina.graph import compile, trace
from lamina.ops import cat, conv2d
from lamina.ops.primitives import Concat
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Spec, bfloat16, float32, float64, int8
from tests.helpers.eager import execute

pytestmark = pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
CPU = Device("cpu")


def spec(channels: int, tag: str | None, dtype: DType = float32) -> Spec:
    """[2, channels, 3, 4] in a layout; None: left open."""
    found = Spec((2, channels, 3, 4), dtype)
    return found.with_tag(tag) if tag else found


def is_joined(dtype: DType) -> bool:
    """Whether oneDNN joins tensors of this type on this processor: not float64, bfloat16 where it has AVX-512."""
    if dtype == float64:
        return False
    plain = desc(Spec((2, 4), dtype).fixed)
    return attempt(onednn.concat, 0, [plain, plain], desc(Spec((4, 4), dtype).fixed)) is not None


def test_what_every_processor_joins() -> None:
    assert is_joined(float32)
    assert is_joined(int8)


@pytest.mark.parametrize("dtype", [float32, bfloat16, int8, float64], ids=str)
@pytest.mark.parametrize(
    ("parts", "axis", "tag"),
    [
        ([(5, "acdb"), (3, "acdb")], 1, "acdb"),
        ([(5, "acdb"), (3, "acdb")], -1, None),
        ([(16, "aBcd16b"), (32, "aBcd16b")], 1, "aBcd16b"),
        ([(16, "aBcd16b"), (3, "aBcd16b")], 1, "abcd"),  # three channels fill no block
        ([(3, "aBcd16b"), (3, "aBcd16b")], 2, "abcd"),
        ([(2, "abcd"), (9, "acdb"), (0, "abcd")], 1, "acdb"),  # where most lies
        ([(2, None), (9, None)], 1, "abcd"),
        ([(2, None), (1, "acdb")], 1, "abcd"),  # one channel lies like none
        ([(4, "abcd")], 1, "abcd"),
    ],
)
def test_the_layout_is_that_of_most_of_the_parts(
    parts: list[tuple[int, str | None]], axis: int, tag: str | None, dtype: DType
) -> None:
    if axis != 1:
        parts = [(5, t) for _, t in parts] if axis == -1 else parts
    specs = [spec(c, t, dtype) for c, t in parts]
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 10, s.shape).astype(dtype.numpy) for s in specs]
    plan = backends.get(CPU, "cpu").plan(Concat(axis), specs, Policy())
    if not is_joined(dtype):
        assert plan.label == "numpy concat"
    else:
        assert plan.label.startswith("onednn")
        assert {s.tag for s in (*plan.inputs, *plan.outputs)} <= {tag or "acdb"}
    (found,) = execute(CPU, plan, arrays)
    assert found.tobytes() == run_reference(Concat(axis), arrays)[0].tobytes()


def test_nothing_is_reordered_between_convolutions_and_what_joins_them() -> None:
    """Two branches, joined, and a convolution of both: one reorder, of the images."""
    image, one, two, three = (
        Spec(s, float32) for s in ((1, 8, 9, 9), (16, 8, 3, 3), (16, 8, 1, 1), (8, 32, 1, 1))
    )

    def net(x, a, b, c):  # type: ignore[no-untyped-def]
        return conv2d(cat([conv2d(x, a, padding=1), conv2d(x, b)], 1), c)

    program = compile(trace(net, image, one, two, three), "cpu", resident=[1, 2, 3]).program
    assert [s.label for s in program.steps].count("reorder") <= 1


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(404, 201, 1), (3, 4096, 2), (2000, 7)])
def test_short_runs_are_joined_by_loops(shape: tuple[int, ...], dtype: DType) -> None:
    """Pairs of real and imaginary parts: oneDNN would take them element by element."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2)]
    run = compile(trace(lambda *a: cat(a, -1), *parts), "cpu")
    if compiler.available():
        assert [s.plan.label for s in run.program.steps] == ["loops concat"]
    np.testing.assert_array_equal(run(*parts)[0].numpy(), np.concatenate(parts, -1))


@pytest.mark.skipif(not compiler.available(), reason="needs a C compiler")
@pytest.mark.parametrize(
    ("shapes", "axis", "tag", "dtype", "loops"),
    [
        ([(4096, 7), (4096, 16)], -1, None, float32, True),  # 28 bytes
        ([(4096, 8), (4096, 16)], -1, None, float32, False),  # 32 bytes
        ([(4096, 16), (4096, 7)], 1, None, float32, True),
        ([(4096, 31), (4096, 40)], -1, None, int8, True),
        ([(4096, 32), (4096, 40)], -1, None, int8, False),
        ([(4096, 2, 3), (4096, 4, 3)], 1, None, float32, True),  # 2 rows of 3
        ([(4096, 3, 3), (4096, 4, 3)], 1, None, float32, False),
        ([(8, 7, 16, 16), (8, 9, 16, 16)], 1, "acdb", float32, True),
        ([(8, 8, 16, 16), (8, 9, 16, 16)], 1, "acdb", float32, False),
        ([(8, 16, 8, 8), (8, 32, 8, 8)], 1, "aBcd16b", int8, False),  # whole blocks
        ([(1024, 7), (1024, 9)], -1, None, float32, True),
        ([(1023, 7), (1023, 9)], -1, None, float32, False),  # too few for a kernel of our own
    ],
)
def test_runs_are_short_below_half_a_cache_line(
    shapes: list[tuple[int, ...]], axis: int, tag: str | None, dtype: DType, loops: bool
) -> None:
    """A run: the bytes of one operand that lie beside each other in y."""
    rng = np.random.default_rng(0)
    specs = [Spec(s, dtype).with_tag(tag) if tag else Spec(s, dtype) for s in shapes]
    arrays = [rng.integers(-9, 10, s).astype(dtype.numpy) for s in shapes]
    plan = backends.get(CPU, "cpu").plan(Concat(axis), specs, Policy())
    assert plan.label.startswith("loops" if loops else "onednn")
    if tag and not loops:
        assert {s.tag for s in plan.inputs} == {tag}
    np.testing.assert_array_equal(execute(CPU, plan, arrays)[0], np.concatenate(arrays, axis))


@pytest.mark.parametrize(
    ("strides", "kept"),
    [
        ((3072, 384, 64, 1), True),
        ((4096, 384, 64, 1), True),  # gaps behind what is joined
        ((4096, 512, 64, 1), False),  # and within
        ((384, 1536, 64, 1), False),
        ((3072, 1, 512, 8), False),
    ],
)
def test_the_result_may_lie_with_gaps_between_runs(strides: tuple[int, ...], kept: bool) -> None:
    """Elsewhere, as in another order of axes, oneDNN has no kernel that copies whole runs."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, c, 6, 64)).astype(np.float32) for c in (5, 0, 3)]
    plan = backends.get(CPU, "cpu").plan(Concat(1), [Spec(a.shape, float32).fixed for a in arrays], Policy())
    assert plan.relaid is not None
    other = plan.relaid(Layout(strides))
    assert (other is not None) == kept
    if other is not None:
        assert other.outputs[0].layout == Layout(strides)
        assert [s.layout for s in other.inputs] == [s.layout for s in plan.inputs]
        np.testing.assert_array_equal(execute(CPU, other, arrays)[0], np.concatenate(arrays, 1))
