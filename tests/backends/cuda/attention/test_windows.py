"""Attention of few queries and keys: own kernels that keep scores on the chip, emulated, and on a GPU."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.cuda import backend
from lamina.backends.cuda.attention import attention, windows
from lamina.backends.cuda.attention.joint_attention_fusion import JointAttention, JointAttentionGrad
from lamina.backends.cuda.launch.program import Copy, Launch, Launches, source, target
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives import Attention, AttentionGrad
from lamina.spec import DType, Layout, Policy, Shape, Spec, bfloat16, dense, float16, float32, float64
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200, KINDS

#: B, H, queries, keys, features of q and k, of v.
SIZES = [
    (2, 3, 49, 49, 32, 32), (1, 2, 64, 64, 64, 64), (3, 1, 5, 17, 8, 16), (2, 2, 16, 33, 24, 40),
    (1, 1, 1, 1, 8, 8), (1, 2, 33, 64, 40, 8), (2, 1, 64, 3, 16, 56), (2, 3, 4, 16, 96, 96),
    (1, 2, 16, 64, 96, 72), (1, 1, 20, 30, 128, 128),
]  # fmt: skip
#: What a bias has of the axes B, H, S and T.
BIASES = ["", "HST", "BHST", "T", "BT", "ST", "BHS"]


def drawn(op: Attention, sizes: tuple[int, ...], bias: str, dtype: DType, seed: int = 0) -> list[Array]:
    """q, k, v, and what the op takes besides."""
    b, h, s, t, d, e = sizes
    rng = np.random.default_rng(seed)
    shapes: list[Shape] = [(b, h, s, d), (b, h, t, d), (b, h, t, e)]
    if bias:
        shapes.append(tuple(n if a in bias else 1 for a, n in zip("BHST", (b, h, s, t), strict=True)))
    found = [rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes]
    if op.keep < 1:
        found.append((rng.random((b, h, s, t)) < op.keep).astype(dtype.numpy))
    return found


def planned(op: Any, specs: list[Spec], way: str = "windows") -> Any:
    """The heuristic's plan, by this way."""
    plan = backend(H200).plan(op, specs, Policy(algorithm="heuristic"))
    assert way in plan.label, plan.label
    return plan


def agree(found: Array, wanted: Array, dtype: DType, room: float) -> None:
    """Weights are rounded to the type in front of products."""
    eps = float(np.finfo(np.float16).eps) if dtype == float16 else 2.0**-8
    limit = room * eps * max(1.0, float(np.abs(wanted).max()))
    assert np.abs(found.astype(np.float64) - wanted).max() <= limit


def check(
    op: Attention,
    sizes: tuple[int, ...],
    bias: str,
    dtype: DType,
    *,
    misaligned: bool = False,
    way: str = "windows",
    bias_grad: bool = True,
    room: float = 6,
) -> None:
    """Forward and backward beside the reference in float64. room: roundings that a gradient may be off."""
    arrays = drawn(op, sizes, bias, dtype)
    wide = [a.astype(np.float64) for a in arrays]
    o, stats = run_reference(op, wide, float64)
    plan = planned(op, [Spec(a.shape, dtype) for a in arrays], way)
    found = run_plan(plan, arrays, misaligned=misaligned)
    agree(found[0], o, dtype, 2)
    assert np.allclose(found[1], stats, rtol=1e-4, atol=1e-4, equal_nan=False)
    g = np.random.default_rng(1).standard_normal(o.shape).astype(dtype.numpy)
    grad = AttentionGrad(op.scale, op.causal, bias_grad, keep=op.keep)
    given = [*arrays[:3], o.astype(dtype.numpy), stats.astype(np.float32), g, *arrays[3:]]
    specs = [Spec(a.shape, float32 if i == 4 else dtype) for i, a in enumerate(given)]
    wanted = run_reference(grad, [*wide[:3], o, stats, g.astype(np.float64), *wide[3:]], float64)
    found = run_plan(planned(grad, specs, way), given, misaligned=misaligned)
    assert len(found) == len(wanted)
    for one, exact in zip(found, wanted, strict=True):
        agree(one, exact, dtype, room)


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, ...], dtype: DType) -> None:
    check(Attention(0.3, stats=True), sizes, "", dtype)


@pytest.mark.parametrize("bias", BIASES[1:])
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_and_its_gradient(bias: str, causal: bool) -> None:
    check(Attention(0.2, causal, stats=True), (3, 2, 20, 23, 16, 24), bias, bfloat16)


@pytest.mark.parametrize("bias", ["", "HST"])
def test_dropout(bias: str) -> None:
    check(Attention(0.2, keep=0.75, stats=True), (2, 2, 18, 35, 16, 16), bias, float16)


@pytest.mark.parametrize("bias", ["", "HST"])
def test_addresses_may_be_any(bias: str) -> None:
    check(Attention(0.2, stats=True), (2, 2, 17, 20, 16, 8), bias, bfloat16, misaligned=True)


@pytest.mark.parametrize("scale", [1, np.float64(0.5), 1e-6])
def test_a_scale_may_be_any_number(scale: float) -> None:
    check(Attention(scale, stats=True), (1, 2, 9, 9, 8, 8), "", float16)
    arrays = drawn(Attention(scale), (1, 2, 9, 9, 8, 8), "", float32)  # products and rows
    plan = backend(H200).plan(Attention(scale), [Spec(a.shape, float32) for a in arrays], Policy())
    assert all(program.cubin("sm_90") for program in plan.make.programs)


def test_a_nan_stays_in_its_matrix() -> None:
    """In its row of o; in its heads' gradients of keys and values."""
    op, dtype = Attention(0.5, stats=True), float16
    arrays = drawn(op, (2, 2, 9, 12, 8, 8), "", dtype)
    arrays[0][1, 0, 3, 2] = np.nan
    o, _ = run_plan(planned(op, [Spec(a.shape, dtype) for a in arrays]), arrays)
    (wanted, _) = run_reference(op, [a.astype(np.float64) for a in arrays], float64)
    np.testing.assert_array_equal(np.isnan(o), np.isnan(wanted))
    assert np.isnan(o).sum() == 8


def test_any_way_has_the_memory_that_other_addresses_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of another way runs windows' kernels where addresses are not aligned, sums of a bias' gradient too."""
    q, stats, bias = Spec((64, 2, 9, 8), bfloat16), Spec((64, 2, 9, 1), float32), Spec((1, 2, 9, 9), bfloat16)
    least = planned(AttentionGrad(1.0), [q, q, q, q, stats, q, bias]).workspace
    found: list[Any] = []
    monkeypatch.setattr(attention, "choose", lambda problem, *rest: found.append(problem) or problem)
    attention._gradient(AttentionGrad(1.0), [s.fixed for s in (q, q, q, q, stats, q, bias)], H200, Policy())
    assert [one.name for one in found[0].formulations] == ["windows", "rows"]
    assert all(one.scratch >= least > 0 for one in found[0].formulations)
    assert found[0].plain


def test_rows_that_see_nothing() -> None:
    """They give zeros, statistics of +inf, and gradients of zero."""
    op, dtype = Attention(1.0, stats=True), float16
    q, k, v, bias = drawn(op, (1, 1, 4, 5, 8, 8), "ST", dtype)
    bias[0, 0, 2] = -np.inf
    o, stats = run_plan(planned(op, [Spec(a.shape, dtype) for a in (q, k, v, bias)]), [q, k, v, bias])
    assert not o[0, 0, 2].any()
    assert stats[0, 0, 2, 0] == np.inf
    given = [q, k, v, o, stats, np.ones_like(o), bias]
    specs = [Spec(a.shape, float32 if i == 4 else dtype) for i, a in enumerate(given)]
    dq, dk, dv, db = run_plan(planned(AttentionGrad(1.0), specs), given)
    assert not dq[0, 0, 2].any()
    assert not db[0, 0, 2].any()
    assert np.isfinite(np.concatenate([a.astype(np.float64).ravel() for a in (dq, dk, dv, db)])).all()


def test_operands_are_read_where_they_lie() -> None:
    """[B, S, H, D] and [S, B, H, D] in memory, without copies."""
    op, dtype = Attention(0.25, stats=True), bfloat16
    for order in ((0, 2, 1, 3), (2, 0, 1, 3)):
        arrays = drawn(op, (2, 3, 10, 10, 16, 16), "", dtype)
        specs = [Spec(a.shape, dtype, dense(a.shape, order)) for a in arrays]
        plan = planned(op, specs)
        assert [s.layout for s in plan.inputs] == [s.layout for s in specs]
        assert plan.outputs[0].layout == specs[0].layout
        (o, _) = run_plan(plan, arrays)
        agree(o, run_reference(op, [a.astype(np.float64) for a in arrays], float64)[0], dtype, 2)


@pytest.mark.parametrize("bias", ["", "HST", "BHST"])
@pytest.mark.parametrize("order", [(1, 3, 0, 2, 4), (0, 1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("keep", [1.0, 0.75])
def test_one_projection_is_read_where_it_lies(bias: str, order: tuple[int, ...], keep: float) -> None:
    """[B, S, 3, H, D] in memory, or q, k and v one behind the other; with a bias and its gradient, and dropout."""
    op, dtype = JointAttention(0.25, stats=True, keep=keep), bfloat16
    parts = drawn(op.unfused, (3, 2, 10, 10, 16, 16), bias, dtype)
    arrays = [np.stack(parts[:3]), *parts[3:]]
    lies = Spec(arrays[0].shape, dtype, dense(arrays[0].shape, order))
    plan = planned(op, [lies, *(Spec(a.shape, dtype) for a in arrays[1:])])
    assert plan.inputs[0].physical == lies.physical
    wide = [a.astype(np.float64) for a in arrays]
    o, stats = run_reference(op, wide, float64)
    found = run_plan(plan, arrays)
    agree(found[0], o, dtype, 2)
    assert np.allclose(found[1], stats, rtol=1e-4, atol=1e-4)
    g = np.random.default_rng(1).standard_normal(o.shape).astype(dtype.numpy)
    grad = JointAttentionGrad(0.25, keep=keep)
    given = [arrays[0], o.astype(dtype.numpy), stats.astype(np.float32), g, *arrays[1:]]
    specs = [lies, *(Spec(a.shape, float32 if i == 1 else dtype) for i, a in enumerate(given[1:]))]
    plan = planned(grad, specs)
    assert plan.outputs[0].physical == lies.physical
    wanted = run_reference(grad, [wide[0], o, stats, g.astype(np.float64), *wide[1:]], float64)
    for one, exact in zip(run_plan(plan, given), wanted, strict=True):
        agree(one, exact, dtype, 6)


@pytest.mark.parametrize("op", [JointAttention(0.25, stats=True), JointAttentionGrad(0.25)], ids=str)
def test_parts_that_are_not_aligned_are_copied(op: Any) -> None:
    """k begins at 30 bytes: three copies, and as many of gradients back; the bias is read where it lies."""
    made = [(1, 1, 3, 5), (1, 1, 3, 1), (1, 1, 3, 5)] if isinstance(op, JointAttentionGrad) else []
    shapes = [(3, 1, 1, 3, 5), *made, (1, 1, 3, 3)]
    specs = [Spec(s, float32 if s[-1] == 1 else float16) for s in shapes]
    plan = backend(H200).plan(op, specs, Policy(algorithm="heuristic"))
    assert [s.open for s in plan.outputs] == list(op.infer(*specs))
    copies = [step for step in plan.make.steps if isinstance(step, Copy)]
    assert [step.nbytes for step in copies] == [30] * (6 if made else 3)


def test_a_bias_sums_over_entries_that_blocks_take_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five entries in parts of two: the last part has one."""
    monkeypatch.setattr(windows, "_turns", lambda batch, heads, device: 2)
    check(Attention(0.2, stats=True), (5, 2, 9, 12, 8, 8), "HST", bfloat16)


@pytest.mark.parametrize(
    ("batch", "heads", "turns"), [(64, 3, 1), (4096, 3, 11), (2048, 2, 3), (1, 1, 1), (10**6, 1, 946)]
)
def test_blocks_are_as_many_as_fill_the_machine(batch: int, heads: int, turns: int) -> None:
    """Eight for each of 132 multiprocessors."""
    assert windows._turns(batch, heads, H200) == turns


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"s": 65}, False),
        ({"t": 65}, False),
        ({"d": 72}, True),
        ({"d": 12}, False),
        ({"e": 136}, False),
        ({"d": 96, "e": 96}, True),
        ({"d": 128, "e": 128}, False),
        ({"d": 128, "e": 128, "s": 32, "t": 32}, True),
    ],
)
def test_what_fits(change: dict[str, int], fits: bool) -> None:
    n = {"s": 64, "t": 64, "d": 64, "e": 64} | change
    shapes = [(2, 3, n["s"], n["d"]), (2, 3, n["t"], n["d"]), (2, 3, n["t"], n["e"])]
    assert windows.fit([(Spec(s, bfloat16).fixed, source(i)) for i, s in enumerate(shapes)]) == fits
    assert not windows.fit([(Spec(s, float32).fixed, source(i)) for i, s in enumerate(shapes)])
    if fits:  # lines that begin between whole accesses
        odd = [
            (Spec(s, bfloat16, Layout((s[1] * s[2] * 65, s[2] * 65, 65, 1))), source(i))
            for i, s in enumerate(shapes)
        ]
        assert not windows.fit(odd)


@pytest.mark.parametrize("machine", sorted(KINDS))
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
def test_kernels_compile_for_every_machine(machine: str, dtype: DType) -> None:
    device = KINDS[machine]
    op = Attention(0.125, True, keep=0.5, stats=True)
    shapes: list[Shape] = [(2, 3, 64, 64)] * 3 + [(1, 3, 64, 64), (2, 3, 64, 64)]
    terms = [(Spec(s, dtype).fixed, source(i)) for i, s in enumerate(shapes)]
    stats = (Spec((2, 3, 64, 1), float32).fixed, source(5))
    made = windows.forward(op, terms, [(terms[0][0], target()), (stats[0], target(1))])
    given = [*terms[:3], terms[0], stats, terms[0], *terms[3:]]
    targets = [*((terms[0][0], target(i)) for i in range(3)), (terms[3][0], target(3))]
    steps, _ = windows.backward(AttentionGrad(0.125, True, keep=0.5), given, targets, device, Policy())
    for step in (made, steps[0]):
        assert isinstance(step, Launch)
        assert step.program.cubin(device.machine.target)


def test_the_gradient_needs_more_of_a_blocks_memory() -> None:
    """Forward q, k and v lie there: 40 KiB of 48; backwards dO, too, or matrices of scores in place of k and v."""

    def fit(queries: int, keys: int, features: int, gradient: bool) -> bool:
        shapes = [(2, 3, n, features) for n in (queries, keys, keys)]
        terms = [(Spec(s, bfloat16).fixed, source(i)) for i, s in enumerate(shapes)]
        return windows.fit(terms, gradient=gradient)

    assert fit(64, 64, 64, True)
    assert fit(64, 64, 96, False)
    assert not fit(64, 64, 96, True)
    assert fit(16, 64, 96, True)
    q = Spec((1, 2, 64, 96), bfloat16)
    stats = Spec((1, 2, 64, 1), float32)
    assert (
        "windows"
        in backend(H200).plan(Attention(0.1, stats=True), [q] * 3, Policy(algorithm="heuristic")).label
    )
    plan = backend(H200).plan(AttentionGrad(0.1), [q, q, q, q, stats, q], Policy(algorithm="heuristic"))
    assert "windows" not in plan.label


def test_other_sizes_take_other_ways() -> None:
    for shape, dtype in (((1, 1, 65, 64), bfloat16), ((1, 1, 8, 8), float32)):
        plan = backend(H200).plan(Attention(1.0), [Spec(shape, dtype)] * 3, Policy(algorithm="heuristic"))
        assert "windows" not in plan.label
    assert isinstance(planned(Attention(1.0), [Spec((1, 1, 8, 8), bfloat16)] * 3).make, Launches)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("bias", ["", "HST", "BT"])
def test_values_on_a_gpu(sizes: tuple[int, ...], bias: str, dtype: str) -> None:
    op, kind = Attention(0.3, stats=True), getattr(lm, dtype)
    arrays = drawn(op, sizes, bias, kind)
    given = [lm.tensor(a, device="cuda") for a in arrays]

    def attend(*x: Any) -> Any:
        mask = x[3] if bias else None
        return ops.scaled_dot_product_attention(*x[:3], attn_mask=mask, scale=0.3)

    wide = [a.astype(np.float64) for a in arrays]
    exact, stats = run_reference(op, wide, float64)
    g = np.random.default_rng(1).standard_normal(exact.shape).astype(kind.numpy)
    with lm.policy(algorithm="heuristic"):  # these kernels, whatever a store has learnt
        o, pull = lm.vjp(attend, *given)
        found = pull(lm.tensor(g, device="cuda"))
    agree(o.numpy(), exact, kind, 2)
    wanted = run_reference(
        AttentionGrad(0.3), [*wide[:3], exact, stats, g.astype(np.float64), *wide[3:]], float64
    )
    for one, right in zip(found, wanted, strict=True):
        agree(one.numpy(), right, kind, 6)
