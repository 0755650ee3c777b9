"""Recurrent networks through the house: the reserve between the passes, policies, what is refused."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends.cuda.launch.program import Copy, scratch, source
from lamina.backends.cuda.rnn import rnn as cuda_rnn
from lamina.backends.cuda.rnn.rnn import RnnDescription, pieces, transfer
from lamina.backends.reference import run_reference
from lamina.c import cudnn as c
from lamina.cudnn.legacy.rnn_weights import Entry, WeightLayout, parts
from lamina.graph.passes.manager import prune_outputs
from lamina.ops.primitives.rnn import GATES, Rnn, RnnGrad, Sizes
from lamina.runtime import Device, NoGpuError, host_array
from lamina.spec import DType, Policy, ShapeError, Spec, as_dtype, bfloat16, float16, float32, float64
from tests.helpers import emulator
from tests.helpers.eager import apart, execute, mismatch
from tests.helpers.planned import H200

CASES = [
    (Rnn("tanh", 7, 2), Sizes(6, 3, 5)),
    (Rnn("relu", 16, 1, True, bias=False), Sizes(5, 2, 4)),
    (Rnn("lstm", 8), Sizes(7, 4, 8)),
    (Rnn("lstm", 12, 3, True), Sizes(6, 2, 9)),
    (Rnn("lstm", 6, 2, True, bias=False), Sizes(4, 3, 1)),
    (Rnn("lstm", 10, 2, False, 6), Sizes(5, 3, 7)),
    (Rnn("gru", 9, 2, True), Sizes(6, 2, 5)),
    (Rnn("gru", 16, 3, bias=False), Sizes(9, 1, 16)),
]


def arrays(op: Rnn, sizes: Sizes, dtype: DType, seed: int = 0) -> list[Any]:
    """x, the first states and the weights, so small that nothing saturates."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(sizes), *op.state_shapes(sizes.batch), *op.weight_shapes(sizes.inputs)]
    return [rng.uniform(-0.5, 0.5, s).astype(dtype.numpy) for s in shapes]


def network(op: Rnn) -> Callable[..., Any]:
    """A scalar of all outputs, so that all of them have gradients."""

    def loss(x: Any, *rest: Any) -> Any:
        found = ops.rnn(
            op.mode, x, rest[: op.states], rest[op.states :], hidden=op.hidden, layers=op.layers,
            bidirectional=op.bidirectional, projection=op.projection, bias=op.bias,
        )  # fmt: skip
        return sum((y * (i + 1.0)).sum() for i, y in enumerate(found))

    return loss


def check(op: Rnn, sizes: Sizes, dtype: DType, device: str, **policy: Any) -> None:
    """The gradient through the kept reserve against the reference in float64.

    Half types: gates, cells, states and their gradients are rounded at every step of every layer. With these
    roundings put into the reference the error is 0.1 to 0.43 of what `apart` allows, over 20 seeds of each case.
    """
    values = arrays(op, sizes, dtype)
    wide = [v.astype(np.float64) for v in values]
    y, *last = run_reference(op, wide, float64)
    grads = [np.full(s.shape, i + 1.0) for i, s in enumerate((y, *last))]
    back = RnnGrad(op.mode, op.hidden, op.layers, op.bidirectional, op.projection, op.bias)
    first = 1 + op.states
    wanted = run_reference(back, [*wide[:first], y, *grads, *wide[first:]], float64)
    with lm.policy(**policy):
        graph = lm.trace(lm.grad(network(op), list(range(len(values)))), *values)
        run = lm.compile(graph, device)
    for _ in range(3):  # on a GPU: one by one, recorded, replayed
        found = run(*[lm.tensor(v, device=device) for v in values])
    for i, (g, ref) in enumerate(zip(found, wanted, strict=True)):
        half = dtype in (float16, bfloat16)
        y, times = g.numpy(), sizes.steps * op.layers
        problem = apart(y, ref, dtype, times) if half else mismatch(y, ref, dtype)
        assert not problem, f"{op} {dtype}, gradient {i}: {problem}"


@pytest.mark.feature("F068", "F024")
@pytest.mark.parametrize(("op", "sizes"), CASES, ids=[str(op) for op, _ in CASES])
def test_values_on_cpu(op: Rnn, sizes: Sizes) -> None:
    """All kinds of cells, layers and directions: the backend's outputs against the float64 reference."""
    values = arrays(op, sizes, float32)
    wanted = run_reference(op, [v.astype(np.float64) for v in values], float64)
    plan = backends.get(lm.device("cpu"), "cpu").plan(op, [Spec(v.shape, float32) for v in values], Policy())
    found = execute(lm.device("cpu"), plan, values)
    assert len(found) == len(wanted) == 1 + op.states
    for i, (y, ref) in enumerate(zip(found, wanted, strict=True)):
        assert not mismatch(y, ref, float32), f"{op} output {i}"


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_of_lstms_with_and_without_the_reserve_on_cpu(bidirectional: bool, reserve: bool) -> None:
    """Without the reserve the forward pass is run again, in memory of its own."""
    op, sizes = Rnn("lstm", 8, 2, bidirectional, reserve=reserve), Sizes(5, 3, 8)
    values = arrays(op, sizes, float32)
    cpu, rng = lm.device("cpu"), np.random.default_rng(1)
    backend = backends.get(cpu, "cpu")
    y, *last = execute(cpu, backend.plan(op, [Spec(v.shape, float32) for v in values], Policy()), values)
    kept = [last.pop()] if reserve else []
    grads = [rng.standard_normal(v.shape).astype(np.float32) for v in (y, *last)]
    given = [*values[:3], y, *grads, *kept, *values[3:]]
    back = RnnGrad("lstm", 8, 2, bidirectional, reserve=reserve)
    plan = backend.plan(back, [Spec(v.shape, as_dtype(v.dtype)) for v in given], Policy())
    assert plan.label == "onednn lstm"
    alone = RnnGrad("lstm", 8, 2, bidirectional)
    wide = [v.astype(np.float64) for v in given if v.dtype != np.uint8]
    found = execute(cpu, plan, given)[: len(values)]  # the reserve is handed on behind them
    for i, (g, ref) in enumerate(zip(found, run_reference(alone, wide, float64), strict=True)):
        assert not mismatch(g, ref, float32), f"gradient {i}"


@pytest.mark.feature("F068")
@pytest.mark.parametrize(("op", "sizes"), CASES, ids=[str(op) for op, _ in CASES])
def test_gradients_through_the_reserve_on_cpu(op: Rnn, sizes: Sizes) -> None:
    check(op, sizes, float32, "cpu")


@pytest.mark.parametrize("dtype", [float64, bfloat16], ids=str)
def test_other_types_run_on_numpy(dtype: DType) -> None:
    check(*CASES[3], dtype, "cpu")


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstms_are_one_primitive_per_layer_on_cpu(bidirectional: bool) -> None:
    """Forward it wants the matrices column by column and gives their gradients so; backward it reads their rows."""
    op, sizes = Rnn("lstm", 8, 2, bidirectional), Sizes(5, 3, 8)
    backend = backends.get(lm.device("cpu"), "cpu")
    shapes = [tuple(sizes), *op.state_shapes(sizes.batch), *op.weight_shapes(sizes.inputs)]
    plan = backend.plan(op, [Spec(s, float32) for s in shapes], Policy())
    assert plan.label == "onednn lstm"
    assert {s.tag for s in plan.inputs[3:] if s.ndim == 2} == {"ba"}
    back = RnnGrad("lstm", 8, 2, bidirectional)
    y, *ends = (op.output_shape(sizes), *op.state_shapes(sizes.batch))
    given = [*shapes[:3], y, y, *ends, *shapes[3:]]
    plan = backend.plan(back, [Spec(s, float32) for s in given], Policy())
    assert {s.tag for s in plan.inputs[7:] if s.ndim == 2} == {"ab"}
    assert {s.tag for s in plan.outputs[3:] if s.ndim == 2} == {"ba"}


@pytest.mark.gpu
@pytest.mark.feature("F068", "F024")
@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize(("op", "sizes"), CASES, ids=[str(op) for op, _ in CASES])
def test_gradients_through_the_reserve_on_cuda(op: Rnn, sizes: Sizes, dtype: DType) -> None:
    check(op, sizes, dtype, "cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_the_fastest_algorithm_computes_the_same(mode: str, deterministic: bool) -> None:
    op, sizes = Rnn(mode, 128, 2), Sizes(12, 8, 128)
    values = [0.2 * v for v in arrays(op, sizes, float16)]
    results = []
    for algorithm in ("heuristic", "fastest", "fastest"):
        with lm.policy(algorithm=algorithm, deterministic=deterministic):
            results.append(lm.grad(network(op))(*[lm.tensor(v, device="cuda:0") for v in values]).numpy())
    np.testing.assert_allclose(*(r.astype(np.float32) for r in results[:2]), rtol=5e-2, atol=5e-2)
    np.testing.assert_array_equal(results[1], results[2])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_a_reserve_serves_two_gradients(device: str) -> None:
    """cuDNN writes into the reserve: the second backward pass needs it as the forward pass left it."""
    op, sizes = Rnn("lstm", 8), Sizes(4, 2, 8)
    values = arrays(op, sizes, float32)

    def both(x: Any, *rest: Any) -> tuple[Any, Any]:
        y, hn, _ = ops.rnn("lstm", x, rest[:2], rest[2:], hidden=8)
        return lm.gradients(y.sum(), [x])[0], lm.gradients(hn.sum(), [x])[0]

    found = lm.compile(lm.trace(both, *values), device)(*[lm.tensor(v, device=device) for v in values])
    for i, g in enumerate(found):
        alone = lm.grad(lambda x, i=i: ops.rnn("lstm", x, values[1:3], values[3:], hidden=8)[i].sum())
        np.testing.assert_allclose(g.numpy(), alone(lm.tensor(values[0], device=device)).numpy(), atol=1e-5)


def test_inference_keeps_no_reserve() -> None:
    op, sizes = CASES[2]
    values = arrays(op, sizes, float32)
    graph = lm.trace(lambda x, *w: ops.rnn("lstm", x, w[:2], w[2:], hidden=8)[0], *values)
    slim = prune_outputs(graph)
    assert ["reserve=True" in str(g) for g in (graph, slim)] == [True, False]
    np.testing.assert_allclose(
        lm.compile(graph, "cpu")(*values)[0].numpy(), run_reference(op, values)[0], rtol=1e-4, atol=1e-5
    )


def layout(op: Rnn, sizes: Sizes, cell: Any) -> WeightLayout:
    """A weight space in an order that splits gates: all matrices, then all biases, each a little apart."""
    found, offset = [], 0
    for what in ("weight", "bias"):
        for _, _, part in parts(cell, op.layers, op.bidirectional, bool(op.projection)):
            width = sizes.inputs if part.layer == 0 else op.size * op.directions
            shape = {"ih": (op.hidden, width), "hh": (op.hidden, op.size), "hr": (op.projection, op.hidden)}[
                part.kind
            ]
            if what == "bias" and (part.kind == "hr" or not op.bias):
                continue
            shape = shape if what == "weight" else (op.hidden,)
            found.append(Entry(part.name(what), what, part, offset, shape))
            offset += int(np.prod(shape)) + (8 if part.gate == "f" else 0)
    return WeightLayout(cell, c.CUDNN_DATA_FLOAT, offset * 4, tuple(found))


CELLS = {"relu": c.CUDNN_RNN_RELU, "tanh": c.CUDNN_RNN_TANH, "lstm": c.CUDNN_LSTM, "gru": c.CUDNN_GRU}


@pytest.mark.parametrize(("op", "sizes"), CASES, ids=[str(op) for op, _ in CASES])
def test_every_weight_has_its_place_in_cudnns_space(op: Rnn, sizes: Sizes) -> None:
    space = layout(op, sizes, CELLS[op.mode])
    weights = [np.arange(np.prod(s)) + 1000.0 * i for i, s in enumerate(op.weight_shapes(sizes.inputs))]
    packed = np.full(space.nbytes // 4, -1.0)
    for weight, begin, offset, size in pieces(space, op):
        packed[offset : offset + size] = weights[weight][begin : begin + size]
    suffixes = [f"l{i}{r}" for i in range(op.layers) for r in ("", "_reverse")[: op.directions]]
    kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if op.bias else [])]
    kinds += ["weight_hr"] * bool(op.projection)
    names = [f"{kind}_{suffix}" for suffix in suffixes for kind in kinds]
    for entry in space.entries:
        base = entry.name.split(".")[0]
        gate = entry.name[len(base) + 1 :]
        rows = np.split(weights[names.index(base)], GATES[op.mode] if gate else 1)
        order = {"lstm": "ifgo", "gru": "rzn"}.get(op.mode, "")
        part = rows[order.index(gate)] if gate else rows[0]
        np.testing.assert_array_equal(
            packed[entry.offset : entry.offset + entry.size], part, err_msg=entry.name
        )


@pytest.mark.parametrize("gather", [True, False])
def test_the_weight_kernels_compile(gather: bool) -> None:
    pytest.importorskip("cuda.core")
    op, sizes = CASES[4]
    runs = pieces(layout(op, sizes, CELLS["lstm"]), op)
    places = [source(i) for i in range(len(op.weight_shapes(sizes.inputs)))]
    for launch in transfer(runs, places, scratch(), bfloat16, gather):
        assert launch.program.cubin("sm_90")
    assert len(runs) < 4 * op.layers * 4


#: Bytes that cuDNN takes for itself, of no round number.
WORKSPACE, RESERVE = 1000, 72


@dataclass
class InSoftware:
    """cuDNN's three calls for one network, by the op's reference, at the addresses that they are given.

    Scratch memory is overwritten as cuDNN may, so that what lies in it by mistake is lost; the reserve must come back
    as the call before has left it, and what the backward pass reads must be what the forward pass read and wrote.
    """

    op: Rnn
    sizes: Sizes
    layout: WeightLayout

    def forward(self, handle: Any, *, weights: Any, hx: int, cx: int | None, **given: Any) -> None:
        self._spoil(given["workspace"], WORKSPACE)
        if given["training"]:
            bytes_at(given["reserve"], RESERVE)[:] = 1
        else:
            assert given["reserve"] is None
        assert [given[k] for k in ("x_desc", "y_desc", "h_desc", "c_desc")] == ["x", "y", "h", "c"]
        self._read = self._operands(given["x"], hx, cx, weights)
        y, *last = run_reference(self.op, self._read, float64)
        self._y = y.astype(np.float32)
        self._states(given["hy"], given["cy"], last)
        self._floats(given["y"], self._y.shape)[...] = self._y

    def backward_data(self, handle: Any, *, weights: Any, hx: int, cx: int | None, **given: Any) -> None:
        self._spoil(given["workspace"], WORKSPACE)
        self._reserve(given["reserve"], 1)
        assert [given[k] for k in ("x_desc", "y_desc", "h_desc", "c_desc")] == ["x", "y", "h", "c"]
        read = self._operands(None, hx, cx, weights)
        for a, b in zip(read, self._read[1:], strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(self._floats(given["y"], self._y.shape), self._y)
        dy = self._floats(given["dy"], self._y.shape).copy()
        ends = [given["dhy"], given["dcy"]][: self.op.states]
        shapes = self.op.state_shapes(self.sizes.batch)
        dlast = [self._floats(a, s).copy() for a, s in zip(ends, shapes, strict=True)]
        first = 1 + self.op.states
        back = RnnGrad(*cuda_rnn.attributes(self.op))
        operands = [*self._read[:first], self._y, dy, *dlast, *self._read[first:]]
        dx, *rest = run_reference(back, operands, float64)
        self._dweights = rest[self.op.states :]
        self._states(given["dhx"], given["dcx"], rest[: self.op.states])
        self._floats(given["dx"], dx.shape)[...] = dx

    def backward_weights(self, handle: Any, *, dweights: Any, hx: int, **given: Any) -> None:
        self._spoil(given["workspace"], WORKSPACE)
        self._reserve(given["reserve"], 2)
        assert [given[k] for k in ("x_desc", "y_desc", "h_desc")] == ["x", "y", "h"]
        np.testing.assert_array_equal(self._floats(given["x"], tuple(self.sizes)), self._read[0])
        np.testing.assert_array_equal(self._floats(hx, self._read[1].shape), self._read[1])
        np.testing.assert_array_equal(self._floats(given["y"], self._y.shape), self._y)
        space = bytes_at(dweights, self.layout.nbytes).view(np.float32)
        space += self.layout.from_torch(dict(zip(self._names(space), self._dweights, strict=True)))

    def _operands(self, x: int | None, hx: int, cx: int | None, weights: Any) -> list[Any]:
        shapes = [tuple(self.sizes), *self.op.state_shapes(self.sizes.batch)]
        places = [x, hx, cx][: len(shapes)]
        found = [self._floats(a, s).copy() for a, s in zip(places, shapes, strict=True) if a is not None]
        space = bytes_at(weights, self.layout.nbytes)
        return [*found, *(w.copy() for w in self.layout.to_torch(space).values())]

    def _names(self, space: Any) -> list[str]:
        return list(self.layout.to_torch(space))

    def _states(self, h: int, c: int | None, values: Any) -> None:
        assert (c is None) == (self.op.states == 1)
        for address, value in zip((h, c), values, strict=False):
            assert address is not None
            self._floats(address, value.shape)[...] = value

    def _floats(self, address: int, shape: tuple[int, ...]) -> Any:
        return host_array(address, shape, np.float32)

    def _reserve(self, place: tuple[int, int], number: int) -> None:
        reserve = bytes_at(place, RESERVE)
        assert (reserve == number).all()
        reserve[:] = number + 1

    def _spoil(self, place: tuple[int, int], nbytes: int) -> None:
        bytes_at(place, nbytes)[:] = 0x77


def bytes_at(place: tuple[int, int], nbytes: int) -> Any:
    address, given = place
    assert given == nbytes
    return host_array(address, (nbytes,), np.uint8)


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize(("op", "sizes"), CASES, ids=[str(op) for op, _ in CASES])
def test_plans_for_cudnn_give_it_each_operand_where_it_lies(
    op: Rnn, sizes: Sizes, reserve: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both passes, with own kernels around calls of cuDNN that the reference answers."""
    space = layout(op, sizes, CELLS[op.mode])
    library = InSoftware(op, sizes, space)

    def network(known: Any, given: Sizes, dtype: DType, formulation: str, training: bool, *_: Any) -> Any:
        assert (known, given, dtype) == (cuda_rnn.attributes(op), sizes, float32)
        described: Any = (library, "x", "y", "h", "c")
        return RnnDescription(*described, space, WORKSPACE, RESERVE if training else 0, formulation, 77)

    monkeypatch.setattr(cuda_rnn, "_network", network)
    monkeypatch.setattr(cuda_rnn, "handle_of", lambda device: SimpleNamespace(use=lambda stream: None))
    monkeypatch.setattr(Copy, "bind", lambda self, device, call: partial(emulator.run_steps, [self], call))
    run = partial(emulator.run_plan, misaligned=not reserve)
    op = replace(op, reserve=reserve)
    values, first = arrays(op, sizes, float32), 1 + op.states
    plan = cuda_rnn.forward(op, [Spec(v.shape, float32) for v in values], "standard", H200, Policy())
    assert plan.label == "cudnn rnn standard"
    assert plan.launches == 1 + 77  # weights into cuDNN's space, and what that queues
    assert len(plan.make.steps[0].arguments) == len(values) - first + 1  # all weights, and cuDNN's space
    y, *last = run(plan, values)
    kept = [last.pop()] if reserve else []
    for found, ref in zip(
        (y, *last), run_reference(replace(op, reserve=False), values, float64), strict=True
    ):
        assert not mismatch(found, ref, float32)

    back = RnnGrad(*cuda_rnn.attributes(op), reserve)
    rng = np.random.default_rng(1)
    grads = [rng.standard_normal(v.shape).astype(np.float32) for v in (y, *last)]
    given = [*values[:first], y, *grads, *kept, *values[first:]]
    plan = cuda_rnn.gradient(
        back, [Spec(v.shape, as_dtype(v.dtype)) for v in given], "standard", H200, Policy()
    )
    assert plan.aliases == ({len(values): first + 1 + first} if reserve else {})
    found = run(plan, given)
    assert len(found) == len(values) + reserve
    wanted = run_reference(replace(back, reserve=False), [v for v in given if v.dtype != np.uint8], float64)
    for i, (g, ref) in enumerate(zip(found, wanted, strict=False)):
        assert not mismatch(g, ref, float32), f"gradient {i}"


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ({}, ("standard", 0.0)),
        ({"standard": 3.0, "persist_static": 2.0}, ("persist_static", 2.0)),
        ({"standard packed": 1.0, "standard": 3.0, "persist_static": 2.0}, ("standard packed", 1.0)),
    ],
)
def test_cudnns_fastest_algorithm_that_ran_is_taken(
    times: dict[str, float], wanted: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed or padded; where none ran, the one that always does, of unknown time."""

    def search(handle: Any, rnn: Any, *_: Any, **__: Any) -> list[Any]:
        found = [
            SimpleNamespace(algorithm=name.removesuffix(" packed"), reason="", time=ms)
            for name, ms in times.items()
            if name.endswith(" packed") != rnn.padded_io
        ]
        return [*found, SimpleNamespace(algorithm="persist_dynamic", reason="refused", time=0.0)]

    described = SimpleNamespace(replace=lambda padded_io: SimpleNamespace(padded_io=padded_io))
    monkeypatch.setattr(cuda_rnn, "_descriptor", lambda *_: described)
    monkeypatch.setattr(cuda_rnn, "_sequences", lambda *_: None)
    monkeypatch.setattr(cuda_rnn, "handle_for", lambda device: None)
    monkeypatch.setattr(cuda_rnn, "search_rnn", search)
    monkeypatch.setattr(cuda_rnn, "short", str)
    known = cuda_rnn.attributes(CASES[2][0])
    assert cuda_rnn._fastest_of_library(known, CASES[2][1], float32, True, H200, Policy()) == wanted


def test_without_a_gpu_cudnn_plans_nothing() -> None:
    op, sizes = CASES[2]
    specs = [Spec(a.shape, float32) for a in arrays(op, sizes, float32)]
    with pytest.raises((NoGpuError, backends.NoKernel)):
        backends.get(Device("cuda:7"), "cuda").plan(op, specs, Policy())


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        (Rnn("lstm", 4), [(3, 2)], r"x must be \[steps, batch, features\]"),
        (Rnn("gru", 4), [(3, 2, 5), (1, 2, 3)], "takes 6 operands"),
        (
            Rnn("tanh", 4, bias=False),
            [(3, 2, 5), (1, 2, 3), (4, 5), (4, 4)],
            r"h0 must be of shape \(1, 2, 4\)",
        ),
        (
            Rnn("tanh", 4, bias=False),
            [(3, 2, 5), (1, 2, 4), (4, 5), (4, 5)],
            r"weight 1 must be of shape \(4, 4\)",
        ),
        (Rnn("tanh", 4, bias=False), [(0, 2, 5), (1, 2, 4), (4, 5), (4, 4)], "no time steps"),
    ],
)
def test_operands_that_do_not_fit_are_named(op: Rnn, shapes: list[Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer(*(Spec(s, float32) for s in shapes))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Rnn("peephole", 4), "mode must be one of relu, tanh, lstm, gru"),
        (Rnn("gru", 4, projection=2), "projection needs mode 'lstm'"),
        (Rnn("lstm", 4, projection=4), "0 < projection < hidden"),
        (Rnn("lstm", 0), "must be at least 1"),
    ],
)
def test_attributes_that_contradict_are_named(op: Rnn, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.infer(Spec((3, 2, 5), float32))


def test_a_wrong_number_of_states_is_named() -> None:
    with pytest.raises(ValueError, match="mode 'lstm' has 2 states, got 1"):
        ops.rnn("lstm", np.zeros((3, 2, 5), np.float32), [np.zeros((1, 2, 4), np.float32)], [], hidden=4)
