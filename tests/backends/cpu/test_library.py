"""Plans of oneDNN's primitives."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import lamina as lm
from lamina import nn, onednn, ops
from lamina.backends import Call, NoKernel, PlanTape
from lamina.backends.cpu import library
from lamina.backends.cpu.library import ALIGNMENT
from lamina.onednn.recipe import RecipeError
from lamina.spec import Layout, Spec, bfloat16, float32, int64


def test_a_primitive_meets_operands_at_many_addresses() -> None:
    layer = nn.Linear(8, 8)
    inputs = [lm.tensor(np.full((4, 8), i, np.float32)) for i in range(3 * library._MOST_MEMORIES)]
    for _ in range(2):
        for x in inputs:
            wanted = x.numpy().astype(np.float64) @ layer.weight.numpy().T + layer.bias.numpy()
            np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 4, 16), (3, 1, 5), (1, 1, 7), (2, 5, 1)])
@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1, 2)])
def test_axes_of_one_element_may_have_any_stride(shape: tuple[int, ...], axes: tuple[int, int]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x, wanted = lm.tensor(values).transpose(*axes), np.swapaxes(values, *axes)
    column = np.arange(wanted.shape[1], dtype=np.float32)[:, None]
    np.testing.assert_array_equal((x * 0.5).numpy(), wanted * np.float32(0.5))
    np.testing.assert_array_equal((x + column).numpy(), wanted + column)
    np.testing.assert_array_equal(lm.ops.relu(x - x * 2.0).numpy(), np.maximum(-wanted, 0))


def test_an_order_of_axes_that_has_no_name_is_told_by_strides() -> None:
    spec = Spec((2, 3, 4, 5), float32)
    assert library.open_desc(spec, "acdb").strides == (60, 1, 15, 3)
    assert library.open_desc(spec, "cabd").strides == (15, 5, 30, 1)
    with pytest.raises(ValueError, match="no format tag 'caab'"):
        library.open_desc(spec, "caab")


def test_stages_are_data_where_all_are_primitives_that_have_such_a_form() -> None:
    call, tape = Call((64,), (128,), workspace=1024), Mock(spec=PlanTape)
    first, second, formless = (Mock(spec=library.PrimitiveStage) for _ in range(3))
    first.recorded.return_value, second.recorded.return_value = ["a"], ["b"]
    formless.recorded.side_effect = RecipeError("none")
    assert library.Stages((first, second), 256).recorded(call, tape) == [["a"], ["b"]]
    first.recorded.assert_called_with(call, 1024 + 256, tape)
    for stages in ((first, lambda call: lambda: None), (lambda call: lambda: None,), (first, formless)):
        assert library.Stages(stages, 256).recorded(call, tape) is None
    assert library.Stages((), 0).recorded(call, tape) == []


def test_stages_run_in_their_order_and_quietly_where_they_are_numpys() -> None:
    """Primitives share their scratch memory behind the workspace; NumPy warns of no overflow."""
    call, ran = Call((64,), (128,), workspace=1024), list[Any]()
    primitive = Mock(spec=library.PrimitiveStage)
    primitive.bind.return_value = lambda: ran.append("primitive")

    def function(given: Call) -> Any:
        return lambda: ran.append((given, np.float32(3e38) * np.float32(10), np.float32(0) / np.float32(0)))

    library.Stages((primitive, function, primitive), 256, warns=True)(call)()
    primitive.bind.assert_called_with(call, 1024 + 256)
    assert [ran[0], ran[2]] == ["primitive"] * 2
    assert ran[1][:2] == (call, np.inf)
    assert np.isnan(ran[1][2])
    ran.clear()
    library.Stages((primitive,), 0)(call)()
    assert ran == ["primitive"]


def test_places_are_addresses_of_a_call() -> None:
    call = Call((1000, 2000), (3000, 4000), workspace=5000)
    chain = library.Chain([], [])
    places = [
        library.at_input(1),
        library.at_output(),
        library.at_output(1),
        library.at_input(0).at(24).at(8),
    ]
    assert [place.address(call) for place in places] == [2000, 3000, 4000, 1032]
    rooms = [chain.temporary(nbytes) for nbytes in (1, ALIGNMENT, ALIGNMENT + 1, 0, 8)]
    wanted = [0, ALIGNMENT, 2 * ALIGNMENT, 4 * ALIGNMENT, 4 * ALIGNMENT]
    assert [room.address(call) - 5000 for room in rooms] == wanted
    assert rooms[1].at(12).address(call) == 5000 + ALIGNMENT + 12
    assert chain.workspace == 5 * ALIGNMENT
    values = np.ones(3, np.float32)
    assert library.Held(values).address(call) == values.ctypes.data


def test_a_plan_has_room_for_its_temporaries_and_for_the_largest_scratch_memory() -> None:
    spec = Spec((2, 3), float32)
    chain = library.Chain([spec], [spec])
    chain.temporary(100)
    for nbytes, name in ((24, "jit"), (8, "brgemm"), (0, "jit")):
        desc = Mock(scratchpad=Mock(nbytes=nbytes), implementation=name)
        chain.run(desc, {})
    chain.call(lambda call: lambda: None)
    made = chain.plan(aliases={0: 0})
    assert (made.workspace, made.label, made.aliases) == (chain.workspace + 24, "onednn jit, brgemm", {0: 0})
    assert (made.inputs, made.outputs) == ((spec,), (spec,))
    assert chain.plan("mine").label == "mine"
    assert library.Chain([spec], [spec]).plan("nothing").workspace == 0


def test_what_onednn_computes_has_elements_and_is_float() -> None:
    library.computes(Spec((1,), float32), Spec((), float32), Spec((2, 3), float32))
    with pytest.raises(NoKernel, match=r"has no elements"):
        library.computes(Spec((2,), float32), Spec((2, 0), float32))
    with pytest.raises(NoKernel, match="oneDNN does not compute in int64"):
        library.computes(Spec((2,), int64))


@pytest.mark.parametrize(
    ("tag", "order", "elements"),
    [("abcd", (0, 1, 2, 3), 160), ("acdb", (0, 2, 3, 1), 160), ("aBcd8b", None, 256)],
)
def test_layouts_with_a_tag_lie_without_gaps(tag: str, order: tuple[int, ...] | None, elements: int) -> None:
    """Five channels in blocks of eight are padded."""
    desc = onednn.MemoryDesc((2, 5, 4, 4), "f32", tag=tag)
    spec = library.spec_of(desc, float32)
    flat = library.flat(spec)
    assert flat is not None
    assert flat.dims == (elements,)
    assert library.is_padded(spec) == (elements > 160)
    assert desc.nbytes == 4 * elements
    if order is not None:
        assert library.memory_order(spec) == order
    other = library.alike(spec, Spec((3, 5, 2, 6), float32))
    assert other.tag == spec.tag
    assert other.shape == (3, 5, 2, 6)
    gaps = Spec((2, 3), float32, Layout((7, 1)))
    assert library.flat(gaps) is None
    assert library.desc(gaps).strides == (7, 1)
    assert (library.desc(spec).strides, library.desc(spec).blocks) == (desc.strides, desc.blocks)
    assert not library.is_padded(gaps)


@pytest.mark.parametrize(
    ("shape", "strides", "told"),
    [
        ((2, 1, 3), (3, 99, 1), (3, 3, 1)),  # row-major but for an axis of 1
        ((2, 4, 1, 3), (12, 1, 77, 4), (12, 1, 12, 4)),  # channels last but for one
        ((1, 2, 3), (77, 1, 2), (6, 1, 2)),  # neither: the axis of 1 is as if it were outermost
        ((2, 1, 3), (1, 50, 2), (1, 6, 2)),
        ((2, 3), (5, 1), (5, 1)),
        ((2, 3), (1, 2), (1, 2)),
    ],
)
def test_strides_of_axes_of_one_are_told_as_in_a_usual_tensor(
    shape: tuple[int, ...], strides: tuple[int, ...], told: tuple[int, ...]
) -> None:
    found = library._told(shape, strides)
    assert [s for n, s in zip(shape, found, strict=True) if n > 1] == [
        s for n, s in zip(shape, strides, strict=True) if n > 1
    ]
    assert found == told


@pytest.mark.parametrize("tag", ["ab", "ba", "AB16b16a", "BA16a16b2a", "BA16a32b2a", "BA16a64b4a"])
@pytest.mark.parametrize("shape", [(32, 96), (64, 32), (30, 50)])
def test_a_layout_is_described_as_onednn_does(shape: tuple[int, int], tag: str) -> None:
    """In blocks too, where axes of one block have no order of their own that a name could tell."""
    found = onednn.MemoryDesc(shape, "bf16", tag=tag)
    library.desc.cache_clear()
    again = library.desc(library.spec_of(found, bfloat16))
    assert (again.dims, again.strides, again.blocks) == (shape, found.strides, found.blocks)
    assert again.nbytes == found.nbytes


def test_slow_and_missing_kernels_are_none() -> None:
    for name, wanted in (
        ("jit:avx2", True),
        ("ref:any", False),
        ("simple_nchw:any", False),
        ("gemm:ref", True),
    ):
        made = Mock(implementation=name)
        assert (library.attempt(lambda m=made: m) is made) == wanted
    shapes = (2, 3), (4, 5), (2, 5)
    assert library.attempt(onednn.matmul, *(onednn.MemoryDesc(shape, "f32") for shape in shapes)) is None
    assert library.attempt(Mock(side_effect=NoKernel("none"))) is None
    with pytest.raises(KeyError):
        library.attempt(Mock(side_effect=KeyError("a fault")))


@pytest.mark.parametrize("compiled", [False, True])
def test_more_axes_than_onednn_describes(compiled: bool) -> None:
    """Copies, products, sums with a row and fused steps of 14 axes are left to loops and NumPy."""
    x = np.random.default_rng(0).random((2,) * 14, np.float32)
    back, row = tuple(reversed(range(14))), x[(0,) * 13]
    cases: list[tuple[Callable[[Any], Any], Any]] = [
        (lambda v: v.permute(back) + v, x.transpose(back) + x),
        (lambda v: v @ v, x @ x),
        (lambda v: ops.relu(v - row) * 2, np.maximum(x - row, 0) * 2),
        (
            lambda v: v.sum(3, keepdim=True) * v[(slice(0, 1),) * 14],
            x.sum(3, keepdims=True) * x[(slice(0, 1),) * 14],
        ),
        (lambda v: ops.sort(v, 4)[0], np.sort(x, 4)),
    ]
    for function, wanted in cases:
        found = (lm.jit(function) if compiled else function)(lm.tensor(x))
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
