"""Recurrent networks: LSTMs (`lamina.backends.cpu.lstm`) and GRUs in inference (`lamina.backends.cpu.gru`) by
oneDNN's primitives; others, and those with a projection, by oneDNN's matrix products with cells in NumPy.

The products of a layer with its input, forward and backward, are one large product each; only the products with the
state run step by step, on weights that are packed once per call. The cells' derivatives are computed for all steps at
once, so that a step backward is a few multiplications. With 512 units and batch 8 one step's product takes 70 µs with
packed weights and 150 to 200 without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from lamina import onednn
from lamina._cached import cached_property
from lamina.backends import Call, NoKernel, Plan, Run
from lamina.backends.cpu.gru import gru_plan
from lamina.backends.cpu.library import Bind, Chain, Location, Refused, at_input, at_output, kernels
from lamina.backends.cpu.lstm import lstm_grad_plan, lstm_plan, takes
from lamina.onednn import ARG, Memory, MemoryDesc, Primitive, PrimitiveDesc
from lamina.ops.core import Array
from lamina.ops.primitives.rnn import Rnn, RnnGrad, Sizes, Weights, grouped
from lamina.runtime import Device, host_array
from lamina.spec import Policy, Shape, Spec, float32, uint8

_WIDTH = float32.itemsize
#: The number of steps from which weights are packed for the products with the state.
_PACK = 4


# -------------------------------------------------------------------------------------------------- the two plans


@kernels(Rnn, source="onednn")
def rnn(op: Rnn, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(y, hn, cn, reserve) from x, the first states and the weights; all row-major."""
    inputs = _plain(specs)
    sizes = Sizes(*inputs[0].shape)
    outputs = [s.fixed for s in op.infer(*inputs)]
    by_primitive = lstm_plan if takes(op) else gru_plan if op.mode == "gru" and not op.reserve else None
    if by_primitive is not None:
        try:
            return by_primitive(op, inputs, outputs)
        except Refused:
            pass  # the steps below run on any processor
    tape = Tape(op, sizes)
    chain = Chain(list(inputs), outputs)
    if op.reserve:
        chain.outputs[-1] = Spec((tape.nbytes,), uint8).fixed
        tape.base = at_output(len(outputs) - 1)
    else:
        tape.base = chain.temporary(tape.nbytes)
    first = [at_input(1 + i) for i in range(op.states)]
    weights = _weight_places(op, 1 + op.states, inputs)
    last = [at_output(1 + i) for i in range(op.states)]
    _forward(chain, tape, at_input(0), first, weights, at_output(), last)
    return chain.plan("onednn matmul, numpy cells")


@kernels(RnnGrad, source="onednn")
def rnn_grad(op: RnnGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(dx, dh0, dc0, *dweights); without a reserve the forward pass runs first."""
    head = 3 + 2 * op.states
    inputs = _plain(s for i, s in enumerate(specs) if not (op.reserve and i == head))
    sizes = Sizes(*inputs[0].shape)
    if takes(op):
        reserve = [Spec((1,), uint8).fixed] if op.reserve else []
        return lstm_grad_plan(
            op, inputs, [s.fixed for s in op.infer(*inputs[:head], *reserve, *inputs[head:])]
        )
    tape = Tape(op, sizes)
    kept = [Spec((tape.nbytes,), uint8).fixed] if op.reserve else []
    known = [*inputs[:head], *kept, *inputs[head:]]
    chain = Chain(known, [s.fixed for s in op.infer(*known)])
    weights = _weight_places(op, head + op.reserve, known)
    if op.reserve:
        tape.base = at_input(head)
    else:
        tape.base = chain.temporary(tape.nbytes)
        first = [at_input(1 + i) for i in range(op.states)]
        y = chain.temporary(prod(op.output_shape(sizes)) * _WIDTH)
        last = [chain.temporary(prod(shape) * _WIDTH) for shape in op.state_shapes(sizes.batch)]
        _forward(chain, tape, at_input(0), first, weights, y, last)
    dlast = [at_input(3 + op.states + i) for i in range(op.states)]
    dfirst = [at_output(1 + i) for i in range(op.states)]
    dweights = grouped(op, [at_output(1 + op.states + i) for i in range(len(known) - head - op.reserve)])
    _backward(chain, tape, weights, at_input(2 + op.states), dlast, at_output(), dfirst, dweights)
    return chain.plan("onednn matmul, numpy cells")


def _plain(specs: Iterable[Spec]) -> list[Spec]:
    found = [s.open.fixed for s in specs]
    for spec in found:
        if spec.dtype != float32 or spec.numel == 0:
            raise NoKernel(f"cpu: recurrent networks of {spec} are left to NumPy")
    return found


def _weight_places(op: Rnn | RnnGrad, first: int, inputs: Sequence[Spec]) -> list[Weights]:
    return grouped(op, [at_input(i) for i in range(first, len(inputs))])


# ----------------------------------------------------------------------------------------- memory between the passes


class Tape:
    """The values that the forward pass saves for the backward pass: float32 arrays from `base` on.

    For each layer and direction, in the order in which its steps run (d: its number):
        gates  [T, B, G H]   the gates after their functions (the LSTM's i, f, g, o; the GRU's r, z, n)
        hidden [T + 1, B, P] the state before each step, and the last one
        cells  [T + 1, B, H] (LSTM) the same of c;  tanh [T, B, H] tanh(c);  out [T, B, H] what is projected
        rest   [T, B, H]     (GRU) the new gate's product with the state
    and for each layer but the last its outputs [T, B, D P]; for a reversed direction its input, reversed.
    """

    def __init__(self, op: Rnn | RnnGrad, sizes: Sizes) -> None:
        self.op, self.sizes = op, sizes
        self.base = Location("workspace", 0)
        self.shapes: dict[str, Shape] = {}
        steps, batch, _ = sizes
        for d in range(op.layers * op.directions):
            self.shapes[f"gates{d}"] = (steps, batch, op.gates * op.hidden)
            self.shapes[f"hidden{d}"] = (steps + 1, batch, op.size)
            if op.mode == "lstm":
                self.shapes[f"cells{d}"] = (steps + 1, batch, op.hidden)
                self.shapes[f"tanh{d}"] = (steps, batch, op.hidden)
            if op.projection:
                self.shapes[f"out{d}"] = (steps, batch, op.hidden)
            if op.mode == "gru":
                self.shapes[f"rest{d}"] = (steps, batch, op.hidden)
            if d % op.directions:
                self.shapes[f"turned{d}"] = (steps, batch, self.width(d // op.directions))
        for layer in range(op.layers - 1):
            self.shapes[f"y{layer}"] = op.output_shape(sizes)
        self.offsets, self.nbytes = {}, 0
        for name, shape in self.shapes.items():
            self.offsets[name] = self.nbytes
            self.nbytes += -(-prod(shape) * _WIDTH // 64) * 64

    def width(self, layer: int) -> int:
        """Length of a layer's input vectors."""
        return self.op.size * self.op.directions if layer else self.sizes.inputs

    def __getitem__(self, name: str) -> Location:
        return self.base.at(self.offsets[name])

    def array(self, name: str, call: Call) -> Array:
        """The array of this name in a call."""
        return _array(self[name], self.shapes[name], call)


def _array(place: Location, shape: Shape, call: Call) -> Array:
    return host_array(place.address(call), shape, np.float32)


# --------------------------------------------------------------------------------------------------------- products


@dataclass
class GateProduct:
    """c [M, N] = a [M, K] b [K, N], a or b possibly transposed; adds: accumulates into c, biased: plus a vector [N].

    packed: b has the layout that oneDNN prefers, see `pack`.
    """

    chain: Chain
    sizes: tuple[int, int, int]
    a_transposed: bool = False
    b_transposed: bool = False
    adds: bool = False
    biased: bool = False
    packed: bool = False
    scratch: Location = field(init=False)

    def __post_init__(self) -> None:
        self.scratch = self.chain.temporary(self.desc.scratchpad.nbytes)

    @cached_property
    def desc(self) -> PrimitiveDesc:
        """The kernel."""
        m, k, n = self.sizes
        b = MemoryDesc((k, n), tag="any") if self.packed else _matrix(k, n, self.b_transposed)
        return onednn.matmul(
            _matrix(m, k, self.a_transposed),
            b,
            MemoryDesc((m, n)),
            bias=MemoryDesc((1, n)) if self.biased else None,
            attributes=onednn.Attributes((onednn.Sum(),)) if self.adds else None,
        )

    @cached_property
    def primitive(self) -> Primitive:
        """The kernel, ready to run."""
        return Primitive(self.desc)

    def at(self, call: Call, a: int, b: int, c: int, bias: int = 0) -> Run:
        """Fix the addresses."""
        given = {ARG.SRC: a, ARG.WEIGHTS: b, ARG.DST: c, ARG.BIAS: bias}
        given[ARG.SCRATCHPAD] = self.scratch.address(call)
        memories = {
            x: Memory(self.desc.argument(x), p) for x, p in given.items() if self.desc.argument(x).ndim
        }
        return self.primitive.bind(memories)

    def pack(self, weights: Location) -> Location:
        """Reorder b to the layout that the kernel prefers, now and in every run; returns its new place."""
        if not self.packed:
            return weights
        _, k, n = self.sizes
        lies = _matrix(k, n, self.b_transposed)
        place = self.chain.temporary(self.desc.weights.nbytes)
        operands = {ARG.SRC: (lies, weights), ARG.DST: (self.desc.weights, place)}
        self.chain.run(onednn.reorder(lies, self.desc.weights), operands)
        return place


def _matrix(rows: int, columns: int, transposed: bool) -> MemoryDesc:
    return MemoryDesc((rows, columns), strides=(1, rows) if transposed else (columns, 1))


# ---------------------------------------------------------------------------------------------------------- forward


def _forward(
    chain: Chain,
    tape: Tape,
    x: Location,
    first: Sequence[Location],
    weights: Sequence[Weights],
    y: Location,
    last: Sequence[Location],
) -> None:
    op = tape.op
    for layer in range(op.layers):
        out = tape[f"y{layer}"] if layer + 1 < op.layers else y
        for direction in range(op.directions):
            d = layer * op.directions + direction
            source = x
            if direction:
                source = tape[f"turned{d}"]
                chain.call(_turn(x, source, tape.shapes[f"turned{d}"]))
            _layer(chain, tape, d, source, first, weights[d])
            chain.call(_finish(tape, d, out, last))
        x = out


def _turn(x: Location, to: Location, shape: Shape) -> Bind:
    """Copy a sequence in reverse order."""

    def bind(call: Call) -> Run:
        source, target = _array(x, shape, call), _array(to, shape, call)
        return lambda: np.copyto(target, source[::-1])

    return bind


def _finish(tape: Tape, d: int, y: Location, last: Sequence[Location]) -> Bind:
    """Copy a direction's outputs to their half of y, and its last states."""
    op, sizes = tape.op, tape.sizes
    direction = d % op.directions

    def bind(call: Call) -> Run:
        hidden = tape.array(f"hidden{d}", call)
        whole = _array(y, op.output_shape(sizes), call)
        side = whole[..., direction * op.size : (direction + 1) * op.size]
        states = [_array(p, s, call)[d] for p, s in zip(last, op.state_shapes(sizes.batch), strict=True)]
        ends = [hidden[-1], *([tape.array(f"cells{d}", call)[-1]] if op.mode == "lstm" else [])]
        steps = hidden[:0:-1] if direction else hidden[1:]

        def run() -> None:
            np.copyto(side, steps)
            for to, value in zip(states, ends, strict=True):
                np.copyto(to, value)

        return run

    return bind


def _layer(chain: Chain, tape: Tape, d: int, x: Location, first: Sequence[Location], w: Weights) -> None:
    """One direction of one layer over all steps."""
    op, (steps, batch, _) = tape.op, tape.sizes
    rows = op.gates * op.hidden
    into = GateProduct(
        chain, (steps * batch, tape.width(d // op.directions), rows), b_transposed=True, biased=op.bias
    )
    state = GateProduct(
        chain,
        (batch, op.size, rows),
        b_transposed=True,
        adds=op.mode != "gru",
        packed=steps >= _PACK,
    )
    project = GateProduct(chain, (batch, op.hidden, op.size), b_transposed=True) if op.projection else None
    packed = state.pack(w.hh)
    sums = chain.temporary(rows * _WIDTH)
    product = chain.temporary(batch * rows * _WIDTH)  # the GRU's state product, gated separately

    def bind(call: Call) -> Run:
        hidden, gates = tape.array(f"hidden{d}", call), tape.array(f"gates{d}", call)
        begin = _begin(tape, d, first, w, sums, call)
        whole = into.at(call, x.address(call), w.ih.address(call), _address(gates), sums.address(call))
        to = [product.address(call)] * steps if op.mode == "gru" else [_address(g) for g in gates]
        recur = [state.at(call, _address(hidden[t]), packed.address(call), to[t]) for t in range(steps)]
        if op.mode == "gru":
            extra = _array(product, (batch, rows), call)
            cells = [_CELLS[op.mode](tape, d, call, t, extra, w) for t in range(steps)]
        else:
            cells = [_CELLS[op.mode](tape, d, call, t, None, w) for t in range(steps)]
        if project is not None:
            out, matrix = tape.array(f"out{d}", call), w.hr.address(call)
            ends = [project.at(call, _address(out[t]), matrix, _address(hidden[t + 1])) for t in range(steps)]
            runs = [r for three in zip(recur, cells, ends, strict=True) for r in three]
        else:
            runs = [r for two in zip(recur, cells, strict=True) for r in two]

        def run() -> None:
            begin()
            whole()
            for one in runs:
                one()

        return run

    chain.call(bind)


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _begin(tape: Tape, d: int, first: Sequence[Location], w: Weights, sums: Location, call: Call) -> Run:
    """Copy the first states, and sum the biases that enter the gates together."""
    op, batch = tape.op, tape.sizes.batch
    rows = op.gates * op.hidden
    states = [_array(p, s, call)[d] for p, s in zip(first, op.state_shapes(batch), strict=True)]
    places = [tape.array(name, call)[0] for name in (f"hidden{d}", f"cells{d}")[: op.states]]
    total = _array(sums, (rows,), call)
    biases = [_array(b, (rows,), call) for b in (w.b_ih, w.b_hh) if b is not None]
    joint = 2 * op.hidden if op.mode == "gru" else rows

    def run() -> None:
        for to, value in zip(places, states, strict=True):
            np.copyto(to, value)
        if biases:
            np.copyto(total, biases[0])
            total[:joint] += biases[1][:joint]

    return run


def _plain_cell(tape: Tape, d: int, call: Call, t: int, extra: Array | None, w: Weights) -> Run:
    gates, after = tape.array(f"gates{d}", call)[t], tape.array(f"hidden{d}", call)[t + 1]
    if tape.op.mode == "tanh":
        return lambda: _ignore(np.tanh(gates, out=after))
    return lambda: _ignore(np.maximum(gates, 0, out=after))


def _ignore(_: object) -> None:
    """A ufunc's result is in its `out` array."""


def _lstm_cell(tape: Tape, d: int, call: Call, t: int, extra: Array | None, w: Weights) -> Run:
    """sigmoid(x) = tanh(x / 2) / 2 + 1 / 2: one tanh for all four gates."""
    op = tape.op
    gates, cells, tanh = (tape.array(f"{name}{d}", call) for name in ("gates", "cells", "tanh"))
    out = tape.array(f"out{d}", call)[t] if op.projection else tape.array(f"hidden{d}", call)[t + 1]
    z, (before, after), tanh_c = gates[t], cells[t : t + 2], tanh[t]
    i, f, g, o = np.split(z, 4, 1)
    half, shift = _halves(op.hidden, (1, 1, 0, 1))

    def run() -> None:
        np.multiply(z, half, out=z)
        np.tanh(z, out=z)
        np.multiply(z, half, out=z)
        np.add(z, shift, out=z)
        np.multiply(i, g, out=tanh_c)
        np.multiply(f, before, out=after)
        np.add(after, tanh_c, out=after)
        np.tanh(after, out=tanh_c)
        np.multiply(o, tanh_c, out=out)

    return run


def _gru_cell(tape: Tape, d: int, call: Call, t: int, extra: Array | None, w: Weights) -> Run:
    assert extra is not None
    op = tape.op
    hidden, rest = tape.array(f"hidden{d}", call), tape.array(f"rest{d}", call)[t]
    z, before, after = tape.array(f"gates{d}", call)[t], hidden[t], hidden[t + 1]
    both, n = z[:, : 2 * op.hidden], z[:, 2 * op.hidden :]
    r, u = both[:, : op.hidden], both[:, op.hidden :]
    state, last = extra[:, : 2 * op.hidden], extra[:, 2 * op.hidden :]
    bias = None if w.b_hh is None else _array(w.b_hh, (3 * op.hidden,), call)[2 * op.hidden :]

    def run() -> None:
        np.add(both, state, out=both)
        np.multiply(both, 0.5, out=both)
        np.tanh(both, out=both)
        np.multiply(both, 0.5, out=both)
        np.add(both, 0.5, out=both)
        np.copyto(rest, last) if bias is None else np.add(last, bias, out=rest)
        np.multiply(r, rest, out=after)
        np.add(n, after, out=n)
        np.tanh(n, out=n)
        np.subtract(before, n, out=after)  # h = n + z (h - n)
        np.multiply(u, after, out=after)
        np.add(n, after, out=after)

    return run


def _halves(hidden: int, sigmoid: Sequence[int]) -> tuple[Array, Array]:
    """(factor, summand) of each gate around its tanh: one half where it is a sigmoid."""
    is_sigmoid = np.repeat(np.array(sigmoid, np.float32), hidden)
    return 1 - is_sigmoid / 2, is_sigmoid / 2


_CELLS = {"relu": _plain_cell, "tanh": _plain_cell, "lstm": _lstm_cell, "gru": _gru_cell}


# --------------------------------------------------------------------------------------------------------- backward


def _backward(
    chain: Chain,
    tape: Tape,
    weights: Sequence[Weights],
    dy: Location,
    dlast: Sequence[Location],
    dx: Location,
    dfirst: Sequence[Location],
    dweights: Sequence[Weights],
) -> None:
    op, (steps, batch, _) = tape.op, tape.sizes
    slopes = chain.temporary(steps * batch * op.gates * op.hidden * _WIDTH)
    for layer in reversed(range(op.layers)):
        shape = (steps, batch, tape.width(layer))
        below = chain.temporary(prod(shape) * _WIDTH) if layer else dx
        for direction in range(op.directions):
            d = layer * op.directions + direction
            x = tape[f"turned{d}"] if direction else tape[f"y{layer - 1}"] if layer else at_input(0)
            to = chain.temporary(prod(shape) * _WIDTH) if direction else below
            part = _Back(chain, tape, d, weights[d], dweights[d], slopes)
            part.steps(dy, dlast, dfirst)
            part.products(x, to)
            if direction:
                chain.call(_add_transposed(to, below, shape))
        dy = below


def _add_transposed(part: Location, total: Location, shape: Shape) -> Bind:
    """Add the gradient of a reversed input to that of the input."""

    def bind(call: Call) -> Run:
        source, target = _array(part, shape, call)[::-1], _array(total, shape, call)
        return lambda: _ignore(np.add(target, source, out=target))

    return bind


class _Back:
    """The gradients of one direction of one layer."""

    def __init__(self, chain: Chain, tape: Tape, d: int, w: Weights, dw: Weights, slopes: Location) -> None:
        self.chain, self.tape, self.d, self.w, self.dw = chain, tape, d, w, dw
        op, (steps, batch, _) = tape.op, tape.sizes
        self.rows = op.gates * op.hidden
        self.das = chain.temporary(steps * batch * self.rows * _WIDTH)  # of the gates' pre-activations
        self.dss = self.das  # of the state's contribution to them: different for the GRU's new gate
        if op.mode == "gru":
            self.dss = chain.temporary(steps * batch * self.rows * _WIDTH)
        self.dhs = chain.temporary(steps * batch * op.size * _WIDTH)  # of the outputs
        self.slopes = slopes
        self.carried = chain.temporary(batch * op.size * _WIDTH)

    def steps(self, dy: Location, dlast: Sequence[Location], dfirst: Sequence[Location]) -> None:
        """From the last step to the first: the gradients of the gates and of the first states."""
        chain, tape, d, w = self.chain, self.tape, self.d, self.w
        op, (steps, batch, _) = tape.op, tape.sizes
        state = GateProduct(chain, (batch, self.rows, op.size), packed=steps >= _PACK)
        unproject = GateProduct(chain, (batch, op.size, op.hidden)) if op.projection else None
        packed = state.pack(w.hh)
        spread = chain.temporary(batch * op.hidden * _WIDTH)
        side = slice(d % op.directions * op.size, (d % op.directions + 1) * op.size)

        def bind(call: Call) -> Run:
            das, dss = (_array(p, (steps, batch, self.rows), call) for p in (self.das, self.dss))
            dhs = _array(self.dhs, (steps, batch, op.size), call)
            carried = _array(self.carried, (batch, op.size), call)
            arriving = _array(dy, op.output_shape(tape.sizes), call)[..., side]
            arriving = arriving[::-1] if d % op.directions else arriving
            ends = [_array(p, s, call)[d] for p, s in zip(dlast, op.state_shapes(batch), strict=True)]
            begins = [_array(p, s, call)[d] for p, s in zip(dfirst, op.state_shapes(batch), strict=True)]
            wide = _array(spread, (batch, op.hidden), call)
            recur = [
                state.at(call, _address(dss[t]), packed.address(call), _address(carried))
                for t in range(steps)
            ]
            back = [
                None
                if unproject is None
                else unproject.at(call, _address(dhs[t]), w.hr.address(call), _address(wide))
                for t in range(steps)
            ]
            dh = [dhs[t] if unproject is None else wide for t in range(steps)]
            prepare, cells, cell_state = _BACK[op.mode](tape, d, call, self, dh, das, dss, carried)

            def run() -> None:
                prepare()
                np.copyto(carried, ends[0])
                if cell_state is not None:
                    np.copyto(cell_state, ends[1])
                for t in reversed(range(steps)):
                    np.add(arriving[t], carried, out=dhs[t])
                    spread_back = back[t]
                    if spread_back is not None:
                        spread_back()
                    cells[t][0]()
                    recur[t]()
                    cells[t][1]()
                np.copyto(begins[0], carried)
                if cell_state is not None:
                    np.copyto(begins[1], cell_state)

            return run

        chain.call(bind)

    def products(self, x: Location, dx: Location) -> None:
        """The gradients of the input and the weights, one product each."""
        chain, tape, w, dw = self.chain, self.tape, self.w, self.dw
        op, (steps, batch, _) = tape.op, tape.sizes
        rows, width, count = self.rows, tape.width(self.d // op.directions), steps * batch
        hidden = tape[f"hidden{self.d}"]
        calls = [
            (GateProduct(chain, (count, rows, width)), self.das, w.ih, dx),
            (GateProduct(chain, (rows, count, width), a_transposed=True), self.das, x, dw.ih),
            (GateProduct(chain, (rows, count, op.size), a_transposed=True), self.dss, hidden, dw.hh),
        ]
        if op.projection:
            down = GateProduct(chain, (op.size, count, op.hidden), a_transposed=True)
            calls.append((down, self.dhs, tape[f"out{self.d}"], dw.hr))
        for product, a, b, c in calls:
            chain.call(_bound(product, a, b, c))
        for place, total in ((self.das, dw.b_ih), (self.dss, dw.b_hh)):
            if total is not None:
                chain.call(_summed(place, (count, rows), total))


def _bound(product: GateProduct, a: Location, b: Location, c: Location) -> Bind:
    return lambda call: product.at(call, a.address(call), b.address(call), c.address(call))


def _summed(place: Location, shape: tuple[int, int], total: Location) -> Bind:
    """The sum over the rows."""

    def bind(call: Call) -> Run:
        values, out = _array(place, shape, call), _array(total, shape[1:], call)
        return lambda: _ignore(np.sum(values, 0, out=out))

    return bind


def _nothing() -> None:
    """No work after the product with the state, as for most cells."""


#: (work before the steps; for each step the work before and after the product with the state; the gradient of the
#: LSTM's c)
_Steps = tuple[Run, list[tuple[Run, Run]], Array | None]


def _plain_back(
    tape: Tape, d: int, call: Call, part: _Back, dh: list[Array], das: Array, dss: Array, carried: Array
) -> _Steps:
    h, slopes = tape.array(f"hidden{d}", call)[1:], _array(part.slopes, das.shape, call)

    def prepare() -> None:
        if tape.op.mode == "tanh":
            np.multiply(h, h, out=slopes)
            np.subtract(1, slopes, out=slopes)
        else:
            np.copyto(slopes, h > 0)

    def step(t: int) -> tuple[Run, Run]:
        return (lambda: _ignore(np.multiply(dh[t], slopes[t], out=das[t]))), _nothing

    return prepare, [step(t) for t in range(len(das))], None


def _lstm_back(
    tape: Tape, d: int, call: Call, part: _Back, dh: list[Array], das: Array, dss: Array, carried: Array
) -> _Steps:
    """With s the derivatives of the gates: dc += dh o (1 - tanh(c)²); di, df, dg = dc s; do = dh s; dc = dc f."""
    steps, batch, rows = das.shape
    shape = (steps, batch, 4, rows // 4)
    gates, s = tape.array(f"gates{d}", call).reshape(shape), _array(part.slopes, shape, call)
    cells, tanh = tape.array(f"cells{d}", call)[:-1], tape.array(f"tanh{d}", call)
    i, f, g, o = (gates[:, :, k] for k in range(4))
    out, das = np.empty(tanh.shape, np.float32), das.reshape(shape)
    dc, change = np.zeros((batch, rows // 4), np.float32), np.empty((batch, rows // 4), np.float32)

    def prepare() -> None:
        np.subtract(1, gates, out=s)
        np.multiply(s, gates, out=s)  # x (1 - x) of the sigmoids
        s[:, :, 0] *= g
        s[:, :, 1] *= cells
        np.multiply(g, g, out=s[:, :, 2])
        np.subtract(1, s[:, :, 2], out=s[:, :, 2])
        s[:, :, 2] *= i
        s[:, :, 3] *= tanh
        np.multiply(tanh, tanh, out=out)
        np.subtract(1, out, out=out)
        np.multiply(out, o, out=out)

    def step(t: int) -> tuple[Run, Run]:
        first, last, slope, output = das[t, :, :3], das[t, :, 3], s[t, :, :3], s[t, :, 3]
        through, forget, wide, d_h = out[t], f[t], dc[:, None], dh[t]

        def before() -> None:
            np.multiply(d_h, through, out=change)
            np.add(dc, change, out=dc)
            np.multiply(slope, wide, out=first)
            np.multiply(output, d_h, out=last)
            np.multiply(dc, forget, out=dc)

        return before, _nothing

    return prepare, [step(t) for t in range(steps)], dc


def _gru_back(
    tape: Tape, d: int, call: Call, part: _Back, dh: list[Array], das: Array, dss: Array, carried: Array
) -> _Steps:
    """dn = dh (1 - z) (1 - n²); dr = dn s r (1 - r); dz = dh (h - n) z (1 - z); dh = dh z + the contribution of the
    state."""
    steps, batch, rows = das.shape
    shape = (steps, batch, 3, rows // 3)
    gates, s = tape.array(f"gates{d}", call).reshape(shape), _array(part.slopes, shape, call)
    r, z, n = (gates[:, :, k] for k in range(3))
    rest, before = tape.array(f"rest{d}", call), tape.array(f"hidden{d}", call)[:-1]
    das, dss = das.reshape(shape), dss.reshape(shape)
    kept = np.empty((batch, rows // 3), np.float32)

    def prepare() -> None:
        np.multiply(1 - z, 1 - n * n, out=s[:, :, 2])
        np.multiply(s[:, :, 2], rest * r * (1 - r), out=s[:, :, 0])
        np.multiply(before - n, z * (1 - z), out=s[:, :, 1])

    def step(t: int) -> tuple[Run, Run]:
        d_h, wide, slope, reset, update = dh[t], dh[t][:, None], s[t], r[t], z[t]
        da, ds = das[t], dss[t]

        def first() -> None:
            np.multiply(wide, slope, out=da)
            np.copyto(ds[:, :2], da[:, :2])
            np.multiply(da[:, 2], reset, out=ds[:, 2])

        def behind() -> None:
            np.multiply(d_h, update, out=kept)
            np.add(carried, kept, out=carried)

        return first, behind

    return prepare, [step(t) for t in range(steps)], None


_BACK = {"relu": _plain_back, "tanh": _plain_back, "lstm": _lstm_back, "gru": _gru_back}
