"""Attention over tiles of scores: own kernels for any number of queries and keys, emulated, and on a GPU."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.backends.cuda.attention import attention, tiles
from lamina.backends.cuda.attention.joint_attention_fusion import JointAttention, JointAttentionGrad
from lamina.backends.cuda.launch.program import WORKSPACE_ALIGNMENT, Launch, round_up, source, target
from lamina.backends.reference import run_reference
from lamina.ops.core import bind
from lamina.ops.primitives import Attention, AttentionGrad
from lamina.spec import DType, Layout, Policy, Shape, Spec, bfloat16, dense, float16, float32, float64
from tests.backends.cuda.attention import test_windows as in_windows
from tests.backends.cuda.attention.test_windows import agree, drawn
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200, KINDS

PASSES = ("queries", "keys", "bias")
#: B, H, queries, keys, features of q and k, of v: tiles of 64 rows and 32 columns are whole, or are not.
SIZES = [
    (1, 2, 128, 96, 64, 64), (2, 1, 65, 33, 16, 24), (1, 2, 5, 70, 8, 40), (1, 1, 130, 1, 24, 8),
    (1, 1, 70, 71, 128, 72), (2, 1, 1, 65, 8, 128),
]  # fmt: skip


@pytest.fixture
def only_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all formulations that are offered, this one."""
    chosen = attention.choose

    def choose(problem: Any, *rest: Any) -> Any:
        own = tuple(one for one in problem.formulations if one.name == "tiles")
        return chosen(replace(problem, formulations=own), *rest)

    monkeypatch.setattr(attention, "choose", choose)


planned = partial(in_windows.planned, way="tiles")
#: Forward and backward; r is taken of a result that was rounded.
check_all = partial(in_windows.check, way="tiles", room=8)
check = partial(check_all, bias_grad=False)


@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, ...], dtype: DType) -> None:
    check(Attention(0.3, stats=True), sizes, "", dtype)


@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize(
    "sizes", [(1, 2, 100, 100, 16, 16), (1, 1, 40, 170, 8, 8), (1, 1, 170, 40, 8, 8)], ids=str
)
@pytest.mark.parametrize("keep", [1.0, 0.75])
def test_causal(sizes: tuple[int, ...], keep: float) -> None:
    """Tiles that nothing is seen of are left out."""
    check(Attention(0.2, True, stats=True, keep=keep), sizes, "", bfloat16)


@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize("bias", ["HST", "BHST", "T", "BT", "ST", "BHS"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias(bias: str, causal: bool) -> None:
    check(Attention(0.2, causal, stats=True), (2, 2, 66, 40, 16, 24), bias, bfloat16)


@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize("bias", ["HST", "BHST", "ST", "BST"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_of_a_bias(bias: str, causal: bool) -> None:
    """Summed over batch entries, heads, both or neither."""
    check_all(Attention(0.2, causal, stats=True), (3, 2, 130, 75, 16, 24), bias, bfloat16)


@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize(
    "sizes", [(2, 2, 70, 72, 16, 16), (4, 1, 65, 67, 128, 72), (1, 3, 5, 100, 8, 40)], ids=str
)
@pytest.mark.parametrize(("keep", "misaligned"), [(1.0, False), (0.75, False), (1.0, True), (0.75, True)])
def test_the_gradient_of_a_bias_with_dropout_and_at_any_address(
    sizes: tuple[int, ...], keep: float, misaligned: bool
) -> None:
    check_all(Attention(0.2, stats=True, keep=keep), sizes, "HST", float16, misaligned=misaligned)


def test_a_bias_for_all_rows_or_columns_has_its_gradient_by_rows() -> None:
    dtype = bfloat16
    q, stats = Spec((2, 2, 130, 16), dtype), Spec((2, 2, 130, 1), float32)
    for shape, way in (((1, 2, 130, 130), "tiles"), ((1, 2, 1, 130), "rows"), ((2, 1, 130, 1), "rows")):
        specs = [q, q, q, q, stats, q, Spec(shape, dtype)]
        plan = in_windows.backend(H200).plan(AttentionGrad(0.25), specs, Policy())
        assert plan.label.endswith(way)


@pytest.mark.parametrize(
    "sizes", [(2, 2, 70, 72, 16, 16), (1, 2, 66, 35, 16, 8), (1, 1, 10, 130, 40, 16)], ids=str
)
@pytest.mark.parametrize("bias", ["", "BT"])
def test_dropout_comes_this_way(sizes: tuple[int, ...], bias: str) -> None:
    """A mask whose rows are whole accesses, or are not."""
    check(Attention(0.2, keep=0.75, stats=True), sizes, bias, float16)


@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize("keep", [1.0, 0.75])
def test_addresses_may_be_any(keep: float) -> None:
    check(Attention(0.2, stats=True, keep=keep), (1, 2, 70, 40, 16, 8), "", bfloat16, misaligned=True)


@pytest.mark.usefixtures("only_tiles")
def test_a_nan_stays_in_its_row() -> None:
    op, dtype = Attention(0.5, stats=True), float16
    arrays = drawn(op, (1, 2, 70, 40, 8, 8), "", dtype)
    arrays[0][0, 1, 66, 2] = np.nan
    o, _ = run_plan(planned(op, [Spec(a.shape, dtype) for a in arrays]), arrays)
    assert np.isnan(o[0, 1, 66]).all()
    assert np.isnan(o).sum() == 8


@pytest.mark.usefixtures("only_tiles")
def test_rows_that_see_nothing() -> None:
    """They give zeros, statistics of +inf, and gradients of zero."""
    op, dtype = Attention(1.0, stats=True), float16
    q, k, v, bias = drawn(op, (1, 1, 70, 40, 8, 8), "ST", dtype)
    bias[0, 0, 66] = -np.inf
    o, stats = run_plan(planned(op, [Spec(a.shape, dtype) for a in (q, k, v, bias)]), [q, k, v, bias])
    assert not o[0, 0, 66].any()
    assert stats[0, 0, 66, 0] == np.inf
    given = [q, k, v, o, stats, np.ones_like(o), bias]
    specs = [Spec(a.shape, float32 if i == 4 else dtype) for i, a in enumerate(given)]
    for unseen in (np.inf, -np.inf, np.nan):  # the statistics of such a row, as libraries have them
        stats[0, 0, 66] = unseen
        found = run_plan(planned(AttentionGrad(1.0), specs), given)
        dq, _, _, dbias = found
        assert not dq[0, 0, 66].any()
        assert not dbias[0, 0, 66].any()
        assert np.isfinite(np.concatenate([a.astype(np.float64).ravel() for a in found])).all()


@pytest.mark.usefixtures("only_tiles")
def test_operands_are_read_where_they_lie() -> None:
    """[B, S, H, D] and [S, B, H, D] in memory, without copies."""
    op, dtype = Attention(0.25, stats=True), bfloat16
    for order in ((0, 2, 1, 3), (2, 0, 1, 3)):
        arrays = drawn(op, (2, 2, 70, 70, 16, 16), "", dtype)
        specs = [Spec(a.shape, dtype, dense(a.shape, order)) for a in arrays]
        plan = planned(op, specs)
        assert [s.layout for s in plan.inputs] == [s.layout for s in specs]
        assert plan.outputs[0].layout == specs[0].layout
        (o, _) = run_plan(plan, arrays)
        agree(o, run_reference(op, [a.astype(np.float64) for a in arrays], float64)[0], dtype, 2)


@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize("order", [(1, 3, 0, 2, 4), (0, 1, 2, 3, 4)], ids=str)
def test_one_projection_is_read_where_it_lies(order: tuple[int, ...]) -> None:
    """[B, S, 3, H, D] in memory, or q, k and v one behind the other; with dropout."""
    op, dtype = JointAttention(0.25, stats=True, keep=0.75), bfloat16
    parts = drawn(op.unfused, (2, 2, 66, 66, 16, 16), "", dtype)
    arrays = [np.stack(parts[:3]), *parts[3:]]
    lies = Spec(arrays[0].shape, dtype, dense(arrays[0].shape, order))
    plan = planned(op, [lies, *(Spec(a.shape, dtype) for a in arrays[1:])])
    assert plan.inputs[0].physical == lies.physical
    wide = [a.astype(np.float64) for a in arrays]
    o, stats = run_reference(op, wide, float64)
    agree(run_plan(plan, arrays)[0], o, dtype, 2)
    g = np.random.default_rng(1).standard_normal(o.shape).astype(dtype.numpy)
    grad = JointAttentionGrad(0.25, keep=0.75)
    given = [arrays[0], o.astype(dtype.numpy), stats.astype(np.float32), g, *arrays[1:]]
    specs = [lies, *(Spec(a.shape, float32 if i == 1 else dtype) for i, a in enumerate(given[1:]))]
    plan = planned(grad, specs)
    assert plan.outputs[0].physical == lies.physical
    (wanted,) = run_reference(grad, [wide[0], o, stats, g.astype(np.float64), *wide[1:]], float64)
    agree(run_plan(plan, given)[0], wanted, dtype, 8)


def test_what_comes_this_way_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few keys with a bias, gradients with a mask of dropout and of a bias for all rows and columns; cuDNN is asked
    first for others.
    """
    q, mask, bias = (Spec(s, bfloat16) for s in ((1, 2, 96, 64), (1, 2, 96, 96), (1, 2, 96, 96)))
    stats, k, odd = (
        Spec((1, 2, 96, 1), float32),
        Spec((1, 2, 97, 64), bfloat16),
        Spec((1, 2, 96, 97), bfloat16),
    )

    problems: list[Any] = []
    monkeypatch.setattr(attention, "choose", lambda problem, *rest: problems.append(problem))

    def names(op: Any, specs: list[Spec]) -> list[str]:
        plan = attention._attention if isinstance(op, Attention) else attention._gradient
        plan(op, [s.fixed for s in specs], H200, Policy())
        return [one.name for one in problems[-1].formulations]

    assert names(Attention(1.0), [q] * 3) == ["sdpa", "steps", "tiles", "rows"]
    assert names(Attention(1.0, keep=0.5), [q, q, q, mask]) == ["steps", "tiles", "rows"]
    assert names(Attention(1.0), [q, q, q, bias]) == ["tiles", "steps", "rows"]
    long = Spec((1, 2, 512, 64), bfloat16)
    assert names(Attention(1.0), [q, long, long, Spec((1, 1, 96, 512), bfloat16)]) == [
        "steps",
        "tiles",
        "rows",
    ]
    given = [q, q, q, q, stats, q]
    assert names(AttentionGrad(1.0), given) == ["steps", "tiles", "rows"]
    assert names(AttentionGrad(1.0, keep=0.5), [*given, mask]) == ["tiles", "steps", "rows"]
    assert names(AttentionGrad(1.0, keep=0.5), [q, k, k, q, stats, q, odd]) == ["steps", "tiles", "rows"]
    assert names(AttentionGrad(1.0), [*given, bias]) == ["tiles", "rows"]
    assert names(AttentionGrad(1.0), [*given, Spec((1, 2, 1, 96), bfloat16)]) == ["rows"]
    assert names(AttentionGrad(1.0, bias_grad=False), [*given, bias]) == ["steps", "tiles", "rows"]


@pytest.mark.parametrize(("features", "fits"), [(128, True), (136, False), (12, False)])
def test_what_fits(features: int, fits: bool) -> None:
    shapes: list[Shape] = [(2, 3, 300, features), (2, 3, 500, features), (2, 3, 500, features)]
    assert tiles.fit([(Spec(s, bfloat16).fixed, source(i)) for i, s in enumerate(shapes)]) == fits
    assert not tiles.fit([(Spec(s, float32).fixed, source(i)) for i, s in enumerate(shapes)])
    odd = [
        (Spec(s, bfloat16, Layout((s[1] * s[2] * 137, s[2] * 137, 137, 1))), source(i))
        for i, s in enumerate(shapes)
    ]
    assert not tiles.fit(odd)


@pytest.mark.parametrize("machine", sorted(KINDS))
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("features", [64, 128])
def test_kernels_compile_for_every_machine(machine: str, dtype: DType, features: int) -> None:
    shapes: list[Shape] = [(2, 3, 70, features)] * 3 + [(1, 3, 70, 70), (2, 3, 70, 70)]
    terms = [(Spec(s, dtype).fixed, source(i)) for i, s in enumerate(shapes)]
    stats = (Spec((2, 3, 70, 1), float32).fixed, source(5))
    op = Attention(0.125, True, keep=0.5, stats=True)
    made = tiles.forward(op, terms, [(terms[0][0], target()), (stats[0], target(1))])
    given = [*terms[:3], terms[0], stats, terms[0], *terms[3:]]
    targets = [*((terms[0][0], target(i)) for i in range(3)), (terms[3][0], target(3))]
    device = KINDS[machine]
    steps, _ = tiles.backward(AttentionGrad(0.125, True, keep=0.5), given, targets, device, Policy())
    programs = [step.program for step in (made, *steps) if isinstance(step, Launch)]
    assert [program.name for program in programs] == [
        "attention_tiles",
        *(f"attention_tiles_{n}" for n in PASSES),
    ]
    for program in programs:
        assert program.cubin(device.machine.target)


def test_the_sum_of_a_bias_is_divided_where_there_are_few_tiles() -> None:
    """In four blocks of each multiprocessor at least, if there are matrices enough."""
    dtype, blocks = bfloat16, []
    for batch, heads in ((64, 1), (64, 64), (2, 1)):
        shapes: list[Shape] = [(batch, heads, 64, 16)] * 3 + [(1, heads, 64, 64)]
        terms = [(Spec(s, dtype).fixed, source(i)) for i, s in enumerate(shapes)]
        stats = (Spec((batch, heads, 64, 1), float32).fixed, source(5))
        given = [*terms[:3], terms[0], stats, terms[0], terms[3]]
        targets = [*((terms[0][0], target(i)) for i in range(3)), (terms[3][0], target(3))]
        steps, size = tiles.backward(AttentionGrad(0.25), given, targets, H200, Policy())
        (launch,) = (s for s in steps if isinstance(s, Launch) and s.program.name == "attention_tiles_bias")
        blocks.append(launch.grid[0])
        assert (size > round_up(batch * heads * 64 * 4, WORKSPACE_ALIGNMENT)) == (blocks[-1] > 2 * heads)
    assert blocks == [2 * 64, 2 * 64 * 4, 2 * 2]


@pytest.mark.gpu
@pytest.mark.feature("B022")
@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize(
    "sizes", [*SIZES, (4, 8, 256, 256, 64, 64), (2, 3, 197, 197, 64, 64), (1, 2, 512, 300, 128, 96)], ids=str
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keep", [1.0, 0.75])
@pytest.mark.parametrize("bias", ["", "BT", "HST"])
def test_values_on_a_gpu(sizes: tuple[int, ...], dtype: DType, causal: bool, keep: float, bias: str) -> None:
    """Forward and backward, with the gradient of a bias of heads, beside float64; twice the same bits."""
    op = Attention(0.2, causal, stats=True, keep=keep)
    arrays = drawn(op, sizes, bias, dtype)
    wide = [a.astype(np.float64) for a in arrays]
    o, stats = run_reference(op, wide, float64)
    given = [lm.tensor(a, device="cuda") for a in arrays]
    with lm.policy(algorithm="heuristic"):
        found = bind(op, *given)
        agree(found[0].numpy(), o, dtype, 2)
        assert np.allclose(found[1].numpy(), stats, rtol=1e-3, atol=1e-3)
        g = np.random.default_rng(1).standard_normal(o.shape).astype(dtype.numpy)
        grad = AttentionGrad(op.scale, op.causal, keep=op.keep, bias_grad=bias == "HST")
        more = [lm.tensor(a, device="cuda") for a in (o.astype(dtype.numpy), stats.astype(np.float32), g)]
        first, second = (bind(grad, *given[:3], *more, *given[3:]) for _ in range(2))
    wanted = run_reference(grad, [*wide[:3], o, stats, g.astype(np.float64), *wide[3:]], float64)
    for one, again, exact in zip(first, second, wanted, strict=True):
        agree(one.numpy(), exact, dtype, 16)
        np.testing.assert_array_equal(one.numpy(), again.numpy())


@pytest.mark.usefixtures("only_tiles")
@pytest.mark.parametrize("low", [-1e20, -3.0e38, -3.3895e38])
def test_rows_that_a_finite_bias_masks_weigh_all_alike(low: float) -> None:
    """As a mask of the type's lowest number does: the mean of values, a statistic and gradients that are finite."""
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((1, 1, n, 8)).astype(bfloat16.numpy) for n in (70, 72, 72, 70))
    bias = np.zeros((1, 1, 70, 72), bfloat16.numpy)
    bias[:, :, :5] = low

    def run(op: Any, *arrays: Any) -> list[Any]:
        specs = [Spec(a.shape, float32 if a.dtype == np.float32 else bfloat16) for a in arrays]
        return list(run_plan(planned(op, specs), list(arrays)))

    o, stats = run(Attention(0.3, stats=True), q, k, v, bias)
    even = np.broadcast_to(v.astype(np.float64).mean((0, 1, 2)), (5, 8))
    np.testing.assert_allclose(o[0, 0, :5].astype(np.float64), even, atol=0.02)
    assert np.isfinite(stats).all()
    for made in run(AttentionGrad(0.3), q, k, v, o, stats, g, bias):
        assert np.isfinite(made.astype(np.float64)).all()
