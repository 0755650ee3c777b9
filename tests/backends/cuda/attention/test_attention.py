"""Attention on the backends: the own kernels emulated, and every way on a GPU."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.backends import Call, NoKernel
from lamina.backends.cuda.attention import attention
from lamina.backends.cuda.attention.attention import Term, backward_rows, slopes_launch, weights_launch
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.program import Place, source, target
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.formulations import Formulation, Problem
from lamina.backends.reference import run_reference
from lamina.graph import gradients
from lamina.ops.core import Array, Sample
from lamina.ops.primitives import Attention, AttentionGrad, DropoutMask, Matmul
from lamina.runtime import Device, from_host, to_host
from lamina.spec import DType, Layout, Policy, Spec, bfloat16, contiguous, dense, float16, float32, float64
from tests.helpers import emulator
from tests.helpers.eager import apart, mismatch
from tests.helpers.emulator import Memory, run_launch
from tests.helpers.planned import H200

SAMPLES = [s for s in Attention.samples() if isinstance(s.op, Attention) and s.op.stats]


def memory(array: Array) -> Memory:
    made = Memory(array.nbytes)
    made.bytes[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return made


def read(held: Memory, like: Array) -> Array:
    held.check("a buffer")
    found: Array = held.bytes.copy().view(like.dtype).reshape(like.shape)
    return found


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_rows_become_weights(sample: Sample, dtype: DType) -> None:
    op = sample.op
    assert isinstance(op, Attention)
    q, k, v, *more = (a.astype(np.float64) for a in sample.draw(np.random.default_rng(0), dtype))
    s = (q @ k.swapaxes(2, 3)).astype(dtype.numpy)
    o, stats = run_reference(op, [q, k, v, *more], float64)
    extra, mask = op.parted([x.astype(dtype.numpy) for x in more])
    held = [
        memory(x) for x in (s, extra[0] if extra else s, stats.astype(np.float32), mask[0] if mask else s)
    ]
    launch = weights_launch(
        op,
        Spec(s.shape, dtype).fixed,
        [Spec(b.shape, dtype).fixed for b in extra],
        (source(0), source(1), target(), source(2)),
    )
    run_launch(launch, Call(tuple(held[i].pointer for i in (0, 1, 3)), (held[2].pointer,)))
    weights = read(held[0], s).astype(np.float64)
    assert not mismatch(weights @ v, o, dtype)
    assert not mismatch(read(held[2], stats.astype(np.float32)), stats, dtype)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_rows_become_slopes(sample: Sample) -> None:
    op = sample.op
    assert isinstance(op, Attention)
    q, k, v, *more = sample.draw(np.random.default_rng(0), float32)
    bias, mask = op.parted(more)
    o, stats = run_reference(op, [q, k, v, *more])
    g = np.random.default_rng(1).standard_normal(o.shape).astype(np.float32)
    back = AttentionGrad(op.scale, op.causal, keep=op.keep)
    dq, dk, dv, *_ = run_reference(back, [q, k, v, o, stats, g, *more], float64)
    s, d = q @ k.swapaxes(2, 3), g @ v.swapaxes(2, 3)
    arrays = [s, bias[0] if bias else s, stats, d, d, mask[0] if mask else s]
    held = [memory(a) for a in arrays]
    specs = [Spec(b.shape, float32).fixed for b in bias]
    places = tuple(source(i) for i in range(6))
    launch = slopes_launch(back, Spec(s.shape, float32).fixed, specs, places)
    run_launch(launch, Call(tuple(m.pointer for m in held), ()))
    weights, slopes = read(held[0], s), read(held[3], d)
    for found, wanted in (
        (slopes @ k, dq), (slopes.swapaxes(2, 3) @ q, dk), (weights.swapaxes(2, 3) @ g, dv)
    ):  # fmt: skip
        assert not mismatch(found, wanted, float32)
    if bias:
        np.testing.assert_allclose(read(held[4], d) * op.scale, slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_slopes_of_large_scores_add_up_to_nothing(causal: bool) -> None:
    """Weights by a rounded logarithm of their sum do not add up to 1, which their mean must not be multiplied by."""
    back = AttentionGrad(8**-0.5, causal)
    rng = np.random.default_rng(0)
    q, k, v = (rng.uniform(-9, 9, (8, 4, n, 8)) for n in (3, 6, 6))
    _, stats = run_reference(Attention(back.scale, causal, stats=True), [q, k, v], float64)
    s, d = (a.astype(np.float32) for a in (q @ k.swapaxes(2, 3), v.sum(3)[:, :, None, :].repeat(3, 2)))
    held = [memory(a) for a in (s, s, stats.astype(np.float32), d, d, s)]
    launch = slopes_launch(back, Spec(s.shape, float32).fixed, [], tuple(source(i) for i in range(6)))
    run_launch(launch, Call(tuple(m.pointer for m in held), ()))
    slopes = read(held[3], d).astype(np.float64)
    assert np.abs(slopes.sum(3)).max() < 4 * np.finfo(np.float32).eps * back.scale * np.abs(d).max()


#: (B, H, S, T, D): sizes that cuDNN's engines are made for, and odd ones.
SIZES = [
    (2, 4, 128, 128, 64),
    (1, 2, 64, 192, 32),
    (2, 3, 17, 9, 16),
    (1, 2, 33, 70, 10),
    (4, 4, 196, 196, 36),
]
#: In a half type scores, weights, their gradients and the result are rounded. With that put into the reference the
#: error is 0.1 to 0.6 of what `apart` allows, over 10 seeds of each size.
ROUNDINGS = 4


def test_what_is_scaled_is_all_of_it() -> None:
    x = np.random.default_rng(0).standard_normal(8 * 300).astype(float16.numpy)
    held = [memory(x), memory(np.zeros_like(x))]
    launch = attention.scaled((Spec(x.shape, float16).fixed, source(0)), target(), 0.75)
    run_launch(launch, Call((held[0].pointer,), (held[1].pointer,)))
    np.testing.assert_array_equal(read(held[1], x), (x.astype(np.float32) * 0.75).astype(float16.numpy))


def test_products_of_the_backward_rows_fit_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many queries as keys a product of the wrong operand would fit, too."""
    b, h, queries, keys, d, e = 2, 3, 5, 7, 4, 6
    shapes = [(b, h, queries, d), (b, h, keys, d), (b, h, keys, e), (b, h, queries, e), (b, h, queries, 1)]
    terms = [(Spec(s, float16).fixed, source(i)) for i, s in enumerate([*shapes, shapes[3]])]
    targets = [(terms[i][0], target(i)) for i in range(3)]
    made: dict[Place, tuple[int, ...]] = {}

    def product(steps: attention._Steps, op: Matmul, a: Term, c: Term, out: Place) -> None:
        made[out] = op.infer(a[0], c[0])[0].shape

    monkeypatch.setattr(attention._Steps, "product", product)
    op = AttentionGrad(0.5, False)
    formulation = backward_rows(op, terms, targets, H200, Policy())
    assert [made.pop(place) for _, place in targets] == [spec.shape for spec, _ in targets]
    assert list(made.values()) == [(b, h, queries, keys)] * 2
    assert formulation.scratch >= 2 * 2 * b * h * queries * keys


#: How q [B, H, S, D] lies: row-major, heads within lines, and cut out of a projection of three.
LIES = {
    "row-major": lambda shape: contiguous(shape),
    "heads inside": lambda shape: dense(shape, (0, 2, 1, 3)),
    "cut out": lambda shape: Layout((3 * prod(shape[1:]), shape[3], 3 * shape[1] * shape[3], 1)),
}


def laid(array: Array, spec: Spec) -> Memory:
    """An array in memory as a spec says, what is between its elements in ones."""
    reach = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.physical.strides, strict=True))
    held = memory(np.ones(reach, array.dtype))
    strides = tuple(s * array.itemsize for s in spec.physical.strides)
    np.lib.stride_tricks.as_strided(held.bytes.view(array.dtype), spec.shape, strides)[:] = array
    return held


def seen(held: Memory, spec: Spec, offset: int = 0) -> Array:
    """An operand as it lies in memory."""
    strides = tuple(s * spec.dtype.itemsize for s in spec.physical.strides)
    whole = held.bytes[offset : offset + held.nbytes // spec.dtype.itemsize * spec.dtype.itemsize]
    return np.lib.stride_tricks.as_strided(whole.view(spec.dtype.numpy), spec.shape, strides)


@pytest.mark.feature("B022")
@pytest.mark.parametrize("features", [1, 4, 9, 36])
@pytest.mark.parametrize("lies", LIES)
def test_features_are_filled_up_to_whole_accesses(lies: str, features: int) -> None:
    """Into scratch memory with zeros behind them, and back without; what lies between is left as it is."""
    shape, wide = (2, 3, 5, features), -(-features // 8) * 8
    spec = full(Spec(shape, float16), LIES[lies](shape))
    other = full(Spec((*shape[:3], wide), float16), contiguous((*shape[:3], wide)))
    copies = attention._Copies()
    (read, at), (written, to) = copies.read((spec, source())), copies.written((spec, target()))
    assert copies.read((other, source(1))) == (other, source(1))
    graph = copies.around(Formulation("graph", scratch=copies.size + 64))
    assert (graph.name, graph.scratch) == ("padded-graph", copies.size + 64)
    assert read.shape == written.shape == other.shape
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    given, out, room = laid(array, spec), laid(np.zeros_like(array), spec), Memory(copies.size)
    call = Call((given.pointer, given.pointer), (out.pointer,), room.pointer)
    emulator.run_steps(graph.before, call)
    found = seen(room, read, at.offset)
    np.testing.assert_array_equal(found[..., :features], array)
    assert (found[..., features:] == 0).all()
    seen(room, written, to.offset)[:] = np.pad(2 * array, [(0, 0)] * 3 + [(0, wide - features)])
    emulator.run_steps(graph.after, call)
    for held in (given, out, room):
        held.check(lies)
    np.testing.assert_array_equal(seen(out, spec), 2 * array)
    assert out.bytes.view(np.float16).sum(dtype=np.float64) == laid(2 * array, spec).bytes.view(
        np.float16
    ).sum(dtype=np.float64)


def formulations_of(op: Attention | AttentionGrad, specs: list[Spec]) -> list[tuple[Formulation, set[Place]]]:
    """The formulations of a plan, and where the tensors of each graph lie."""
    found: list[tuple[Formulation, set[Place]]] = []

    def choose(problem: Problem, *rest: Any) -> Any:
        for one in problem.formulations:
            found.append((one, set(one.graph()[1].values()) if one.graph else set()))
        raise NoKernel("only looked at")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "choose", choose)
        with pytest.raises(NoKernel):
            attention.kernels.plan(op, specs, H200, Policy())
    return found


@pytest.mark.feature("B022")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "e"), [(36, 36), (60, 60), (10, 24), (64, 36)])
def test_odd_features_are_attended_to_by_graphs(d: int, e: int, causal: bool) -> None:
    """In a half type; and their scratch memory is apart from the copies."""
    q, k, v = Spec((2, 4, 49, d), bfloat16), Spec((2, 4, 30, d), bfloat16), Spec((2, 4, 30, e), bfloat16)
    o, stats = Spec((2, 4, 49, e), bfloat16), Spec((2, 4, 49, 1), float32)
    forward = ["padded-steps", "rows"] if causal else ["padded-sdpa", "padded-steps", "rows"]
    for op, specs, names in (
        (Attention(0.3, causal, True), [q, k, v], forward),
        (AttentionGrad(0.3, causal), [q, k, v, o, stats, o], ["padded-steps", "rows"]),
    ):
        found = formulations_of(op, [s.fixed for s in specs])
        assert [one.name for one, _ in found] == names
        for one, places in found[:-1]:
            copied = {at.offset for at in places if at.kind == "workspace"}
            assert len(copied) >= 2
            assert max(copied) < one.scratch


@pytest.mark.feature("B022")
@pytest.mark.parametrize("heads_inside", [False, True])
@pytest.mark.parametrize("bias", [(2, 1, 1, 30), (1, 4, 49, 30), (2, 4, 49, 30)], ids=str)
def test_gradients_with_a_bias_are_graphs(bias: tuple[int, ...], heads_inside: bool) -> None:
    """Where the bias has a gradient too, it is left to own kernels."""

    def lying(shape: tuple[int, ...]) -> Spec:
        layout = dense(shape, (0, 2, 1, 3)) if heads_inside else contiguous(shape)
        return full(Spec(shape, bfloat16), layout)

    q, k, o = lying((2, 4, 49, 64)), lying((2, 4, 30, 64)), lying((2, 4, 49, 64))
    specs = [q, k, k, o, Spec((2, 4, 49, 1), float32).fixed, o, Spec(bias, bfloat16).fixed]
    mask, summed = (formulations_of(AttentionGrad(0.3, False, grad), specs) for grad in (False, True))
    first = ["windows"] * heads_inside  # where they lie; then row-major copies
    assert [one.name for one, _ in summed] == [*first, "windows", "rows"]
    first = ["windows", "steps"] * heads_inside
    assert [one.name for one, _ in mask] == [*first, "windows", "steps", "rows"]
    whole = bias[2] > 1  # else it is copied for all rows
    assert {source(i) for i in range(6 + whole)} | {target(i) for i in range(3)} <= mask[1][1]


@pytest.mark.parametrize(("queries", "padded"), [(31, False), (32, True)])
def test_few_scores_over_odd_features_are_left_to_own_kernels(queries: int, padded: bool) -> None:
    q, k = Spec((2, 2, queries, 36), bfloat16).fixed, Spec((2, 2, 32, 36), bfloat16).fixed
    stats = Spec((2, 2, queries, 1), float32).fixed
    for op, specs in (
        (Attention(0.3, True, True), [q, k, k]),
        (AttentionGrad(0.3, True), [q, k, k, q, stats, q]),
    ):
        names = [one.name for one, _ in formulations_of(op, specs)]
        assert names == (["padded-steps", "rows"] if padded else ["rows"])


@pytest.mark.gpu
@pytest.mark.feature("B022")
@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("algorithm", ["heuristic", "fastest"])
def test_attention_and_its_gradient_on_cuda(sizes: Any, causal: bool, dtype: DType, algorithm: str) -> None:
    b, h, s, t, d = sizes
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal(shape).astype(dtype.numpy) for shape in ((b, h, s, d), (b, h, t, d), (b, h, t, d))
    )
    wide = [a.astype(np.float64) for a in (q, k, v)]
    op = Attention(d**-0.5, causal, stats=True)
    o, stats = run_reference(op, wide, float64)
    wanted = run_reference(AttentionGrad(d**-0.5, causal), [*wide, o, stats, np.cos(o)], float64)

    def loss(*qkv: Any) -> Any:
        return ops.sin(ops.attention(*qkv, causal=causal)).sum()

    with lm.policy(algorithm=algorithm):
        tensors = [lm.tensor(a, device="cuda:0") for a in (q, k, v)]
        found = ops.attention(*tensors, causal=causal)
        grads = lm.grad(loss, [0, 1, 2])(*tensors)
    half = dtype in (float16, bfloat16)
    for y, ref in zip((found, *grads), (o, *wanted), strict=True):
        problem = apart(y.numpy(), ref, dtype, ROUNDINGS) if half else mismatch(y.numpy(), ref, dtype)
        assert not problem, problem


@pytest.mark.gpu
@pytest.mark.feature("B022")
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("algorithm", "summed"), [("rows", False), ("rows", True), ("steps", False)])
@pytest.mark.parametrize("d", [64, 36])
@pytest.mark.parametrize("shape", [(2, 1, 1, 70), (1, 4, 64, 70), (2, 4, 64, 70)], ids=str)
def test_gradients_with_a_bias_on_cuda(
    shape: tuple[int, ...], d: int, algorithm: str, summed: bool, causal: bool, dtype: DType
) -> None:
    """Every way, with columns that no row sees; the gradient of the bias where it is asked for."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 4, n, d)).astype(dtype.numpy) for n in (64, 70, 70))
    bias = rng.standard_normal(shape).astype(dtype.numpy)
    bias[..., 50:] = -np.inf
    wide = [a.astype(np.float64) for a in (q, k, v)]
    o, stats = run_reference(
        Attention(d**-0.5, causal, stats=True), [*wide, bias.astype(np.float64)], float64
    )
    g = rng.standard_normal(o.shape).astype(dtype.numpy)
    op = AttentionGrad(d**-0.5, causal, bias_grad=summed)
    wanted = run_reference(op, [*wide, o, stats, g.astype(np.float64), bias.astype(np.float64)], float64)
    device = Device("cuda:0")
    arrays = [q, k, v, o.astype(dtype.numpy), stats.astype(np.float32), g, bias]
    specs = [Spec(a.shape, float32 if i == 4 else dtype).fixed for i, a in enumerate(arrays)]
    problems: list[Problem] = []

    def choose(problem: Problem, device: Device, policy: Policy) -> Any:
        named = [one for one in problem.formulations if one.name.endswith(algorithm)]
        problems.append(replace(problem, formulations=tuple(named)))
        return formulations.choose(problems[-1], device, replace(policy, algorithm="heuristic"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "choose", choose)
        plan = attention.kernels.plan(op, specs, device, Policy())
    given = [from_host(np.ascontiguousarray(a).view(np.uint8).reshape(-1), device) for a in arrays]
    made = [device.allocate(s.nbytes) for s in plan.outputs]
    room = device.allocate(plan.workspace)
    with device.stream() as stream:
        device.synchronize()
        pointers = tuple(b.pointer for b in given), tuple(b.pointer for b in made)
        plan.bind(Call(*pointers, room.pointer, stream.handle))()
        stream.synchronize()
    for held, ref in zip(made, wanted, strict=True):
        problem = apart(to_host(held).view(dtype.numpy).reshape(ref.shape), ref, dtype, ROUNDINGS)
        assert not problem, f"{plan.label}: {problem}"


@pytest.mark.gpu
@pytest.mark.feature("B022")
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("algorithm", ["heuristic", "fastest"])
@pytest.mark.parametrize("hides", ["", "rows", "whole"])
def test_dropout_of_the_weights_on_cuda(
    sizes: Any, causal: bool, dtype: DType, algorithm: str, hides: str
) -> None:
    """The mask is drawn as on every device, and the same in both directions; with a mask of what is seen, too."""
    b, h, s, t, d = sizes
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal(shape).astype(dtype.numpy) for shape in ((b, h, s, d), (b, h, t, d), (b, h, t, d))
    )
    wide = [a.astype(np.float64) for a in (q, k, v)]
    state = np.array([5, 0], np.int64)
    mask, _ = run_reference(DropoutMask((b, h, s, t), float64, 0.25), [state], float64)
    sees = rng.random((b, 1, s if hides == "whole" else 1, t)) < 0.7
    sees[..., 0] = True
    bias = [np.where(sees, 0.0, -np.inf)] if hides else []
    op = Attention(d**-0.5, causal, stats=True, keep=0.75)
    o, stats = run_reference(op, [*wide, *bias, mask], float64)
    grad = AttentionGrad(d**-0.5, causal, bias_grad=False, keep=0.75)
    wanted = run_reference(grad, [*wide, o, stats, np.cos(o), *bias, mask], float64)
    given = lm.tensor(sees, device="cuda:0") if hides else None

    def attended(*qkv: Any) -> Any:
        return ops.attention(*qkv, given, causal=causal, dropout_p=0.25)

    with lm.policy(algorithm=algorithm):
        tensors = [lm.tensor(a, device="cuda:0") for a in (q, k, v)]
        nn.manual_seed(5)
        found = lm.jit(attended)(*tensors)
        nn.manual_seed(5)
        grads = lm.jit(lm.grad(lambda *qkv: ops.sin(attended(*qkv)).sum(), [0, 1, 2]))(*tensors)
    half = dtype in (float16, bfloat16)
    for number, (y, ref) in enumerate(zip((found, *grads), (o, *wanted), strict=True)):
        problem = apart(y.numpy(), ref, dtype, ROUNDINGS) if half else mismatch(y.numpy(), ref, dtype)
        assert not problem, f"result {number}: {problem}"


@pytest.mark.gpu
@pytest.mark.feature("B022")
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(2, 4, 128, 64), (2, 3, 33, 16), (1, 2, 70, 10), (2, 4, 49, 36)], ids=str)
@pytest.mark.parametrize("algorithm", ["heuristic", "fastest"])
@pytest.mark.parametrize(("batch_first", "stacked"), [(False, False), (True, False), (True, True)])
def test_attention_on_a_projection_on_cuda(
    sizes: Any, causal: bool, dtype: DType, algorithm: str, batch_first: bool, stacked: bool
) -> None:
    """q, k and v are read where the projection has them, and their gradients are written so."""
    b, h, s, d = sizes
    lead, order = ((b, s), (0, 2, 1, 3)) if batch_first else ((s, b), (1, 2, 0, 3))
    back = (0, 2, 1, 3) if batch_first else (2, 0, 1, 3)
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal((*lead, n * h * d)).astype(dtype.numpy) for n in (3, 1))

    def f(x: Any, g: Any) -> Any:
        if stacked:
            q, k, v = ops.unbind(ops.permute(x.reshape((*lead, 3, h, d)), (2, 0, 3, 1, 4)), 0)
        else:
            q, k, v = (ops.permute(p.reshape((*lead, h, d)), order) for p in ops.chunk(x, 3, -1))
        y = ops.permute(ops.attention(q, k, v, causal=causal), back).reshape((*lead, h * d))
        return [y, *gradients(y, [x], [g])]

    graph = lm.trace(f, x, g)
    with lm.policy(algorithm=algorithm):
        run = lm.compile(graph, "cuda:0")
    assert {"joint_attention", "joint_attention_grad"} <= {step.label for step in run.program.steps}
    wide = lm.trace(f, *(a.astype(np.float64) for a in (x, g)))
    wanted = lm.compile(wide, "cpu", optimize=False)(*(lm.tensor(a.astype(np.float64)) for a in (x, g)))
    for _ in range(3):  # one by one, recorded, replayed
        found = run(*(lm.tensor(a, device="cuda:0") for a in (x, g)))
    half = dtype in (float16, bfloat16)
    for y, ref in zip(found, wanted, strict=True):
        y, ref = y.numpy(), ref.numpy()
        problem = apart(y, ref, dtype, ROUNDINGS) if half else mismatch(y, ref, dtype)
        assert not problem, problem
