"""Recurrent networks: relu, tanh, LSTM and GRU cells over sequences, in several layers and both directions.

Formulas, gate order and weight order are PyTorch's, which are also cuDNN's. Per time step, with
a = W_ih x + b_ih from the layer's input and s = W_hh h + b_hh from its state:

    relu, tanh   h = f(a + s)
    lstm         i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of a + s;  c = f c + i g;  h = o tanh(c), then W_hr h
    gru          r, z = sigmoid(a + s);  n = tanh(a + r s);  h = (1 - z) n + z h     (reset after the product)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lamina.ops.arguments import MOST_LAYERS
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, bind, listing, operand, spec_of
from lamina.ops.primitives.pointwise import relu, tanh, where
from lamina.ops.primitives.sequence import checked_lengths, inside, last_steps, reversed_within
from lamina.ops.primitives.shape import cat, chunk, flip, stack
from lamina.spec import DType, Shape, ShapeError, Spec, uint8

#: Gates of each cell.
GATES = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}


class Sizes(NamedTuple):
    """The sizes of one call: steps T, batch B, length I of an input vector."""

    steps: int
    batch: int
    inputs: int


@dataclass(frozen=True)
class _Recurrent(Op):
    """Common base of the forward and the backward op.

    mode: "relu", "tanh", "lstm" or "gru". hidden: H. layers: L, stacked. bias: whether there are biases.
    bidirectional: D = 2, each layer has a second pass from the end, and outputs are concatenated.
    projection: P, the size to which the LSTM's output is projected before it is fed back; 0: none, and P below is H.
    """

    mode: str
    hidden: int
    layers: int = 1
    bidirectional: bool = False
    projection: int = 0
    bias: bool = True
    arity = None

    @property
    def directions(self) -> int:
        """1, or 2 where bidirectional."""
        return 2 if self.bidirectional else 1

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return GATES[self.mode]

    @property
    def states(self) -> int:
        """State tensors: h, and c of the LSTM."""
        return 2 if self.mode == "lstm" else 1

    @property
    def size(self) -> int:
        """Length of a hidden state: P, or H."""
        return self.projection or self.hidden

    def weight_shapes(self, inputs: int) -> list[Shape]:
        """Shapes of the weights in order: for each layer and direction W_ih, W_hh, b_ih, b_hh, W_hr."""
        rows, found = self.gates * self.hidden, list[Shape]()
        for layer in range(self.layers):
            columns = self.size * self.directions if layer else inputs
            for _ in range(self.directions):
                found += [(rows, columns), (rows, self.size)]
                found += [(rows,), (rows,)] if self.bias else []
                found += [(self.projection, self.hidden)] if self.projection else []
        return found

    def state_shapes(self, batch: int) -> list[Shape]:
        """Shapes of h, and of c for the LSTM: [L D, B, P] and [L D, B, H]."""
        count = self.layers * self.directions
        shapes: list[Shape] = [(count, batch, self.size), (count, batch, self.hidden)]
        return shapes[: self.states]

    def output_shape(self, sizes: Sizes) -> Shape:
        """[T, B, D P]."""
        return sizes.steps, sizes.batch, self.directions * self.size

    def check(self) -> None:
        """Raise ValueError for inconsistent attributes."""
        if self.mode not in GATES:
            raise ValueError(f"{self.name}: mode must be one of {', '.join(GATES)}, got {self.mode!r}")
        if self.hidden < 1 or self.layers < 1:
            raise ValueError(f"{self.name}: hidden and layers must be at least 1, got {self}")
        if self.layers > MOST_LAYERS:
            raise ValueError(f"{self.name}: layers must be at most {MOST_LAYERS}, got {self.layers}")
        if self.projection and (self.mode != "lstm" or not 0 < self.projection < self.hidden):
            raise ValueError(
                f"{self.name}: projection needs mode 'lstm' and 0 < projection < hidden = {self.hidden}, "
                f"got {self.mode!r} and {self.projection}"
            )

    def measure(self, inputs: Sequence[Spec], names: Sequence[str], shapes: Any) -> Sizes:
        """Check operands named `names` (x first), whose shapes `shapes(sizes)` gives, and the weights after them."""
        self.check()
        if not inputs or inputs[0].ndim != 3:
            raise ShapeError(f"{self.name}: x must be [steps, batch, features], got {listing(inputs[:1])}")
        floats = [s for s in inputs if s.dtype != uint8]
        self.check_float(*floats)
        sizes = Sizes(*inputs[0].shape)
        if not sizes.steps:
            raise ShapeError(f"{self.name}: x {inputs[0]} has no time steps; give one or more")
        weights = self.weight_shapes(sizes.inputs)
        wanted = [*zip(names, shapes(sizes), strict=True)]
        wanted += [(f"weight {i}", shape) for i, shape in enumerate(weights)]
        if len(inputs) != len(wanted):
            raise ShapeError(f"{self.name}: takes {len(wanted)} operands for {self}, got {listing(inputs)}")
        for (what, shape), spec in zip(wanted, inputs, strict=True):
            if shape is not None and spec.shape != shape:
                raise ShapeError(f"{self.name}: {what} must be of shape {shape} for {self}, got {spec}")
        return sizes


@dataclass(frozen=True)
class Rnn(_Recurrent):
    """(x [T, B, I], h0 [L D, B, P], c0 [L D, B, H] for the LSTM, *weights) -> (y [T, B, D P], hn, cn, reserve).

    weights: in PyTorch's order, see `weight_shapes`. cn is an output only of the LSTM. reserve: with reserve=True a
    last output, uint8, the reserve space that the backend saves for `RnnGrad`: its size and contents are
    backend-specific, and `infer` reports it as empty.
    """

    reserve: bool = False

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        names = ("x", "h0", "c0")[: 1 + self.states]
        sizes = self.measure(inputs, names, lambda s: [tuple(s), *self.state_shapes(s.batch)])
        dtype = inputs[0].dtype
        outputs = [self.output_shape(sizes), *self.state_shapes(sizes.batch)]
        kept = (Spec((0,), uint8),) if self.reserve else ()
        return (*(self.result(shape, dtype) for shape in outputs), *kept)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b, states = axes[0], axes[1 : 1 + self.states]
        weights = axes[1 + self.states :]
        if b is None or b.axis != 1 or any(s != b for s in states) or any(weights):
            return None
        return (*(b,) * (1 + self.states), *(None,) * self.reserve)  # only `RnnGrad` reads the reserve

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, reserve=False) if self.reserve and not any(used[1 + self.states :]) else self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        floats = outputs[: 1 + self.states]
        arriving = [_zeros(y) if g is None else g for g, y in zip(grads, floats, strict=False)]
        kept = outputs[1 + self.states :]
        op = RnnGrad(*attributes(self), *([True] if kept else []))
        first = 1 + self.states
        found = bind(op, *inputs[:first], outputs[0], *arriving, *kept, *inputs[first:])
        return found[: len(inputs)]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        x, *rest = inputs
        y, last, _ = _forward(self, x, rest[: self.states], rest[self.states :])
        return (y, *last, *([np.zeros(0, np.uint8)] if self.reserve else []))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op, sizes in _cases(cls):
            shapes = [tuple(sizes), *op.state_shapes(sizes.batch)]
            yield Sample.of(op, *shapes, *_drawn(op, sizes))


@dataclass(frozen=True)
class RnnGrad(_Recurrent):
    """(x, h0, c0, y, dy, dhn, dcn, reserve, *weights) -> (dx, dh0, dc0, *dweights, spent): the gradients of `Rnn`.

    reserve: whether the forward pass's reserve is an operand; without it the forward pass is recomputed. With it the
    last output, uint8, is the consumed reserve, without meaning: backends that write to it let the output reuse its
    memory. The c's are only there for the LSTM. Its own derivatives have no kernel: they are those of its formulas,
    step by step.
    """

    reserve: bool = False
    differentiable = False

    def operand_shapes(self, sizes: Sizes) -> list[Shape | None]:
        """Shapes of all operands before the weights; None for the reserve, whose size is backend-specific."""
        states, y = self.state_shapes(sizes.batch), self.output_shape(sizes)
        return [tuple(sizes), *states, y, y, *states, *([None] if self.reserve else [])]

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        names = ("x", *("h0", "c0")[: self.states], "y", "dy", *("dhn", "dcn")[: self.states])
        sizes = self.measure(inputs, (*names, *["reserve"] * self.reserve), self.operand_shapes)
        shapes = [tuple(sizes), *self.state_shapes(sizes.batch), *self.weight_shapes(sizes.inputs)]
        spent = (Spec((0,), uint8),) if self.reserve else ()
        return (*(self.result(shape, inputs[0].dtype) for shape in shapes), *spent)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return (*self.composed(*inputs), *([np.zeros(0, np.uint8)] if self.reserve else []))

    def composed(self, *inputs: Any) -> tuple[Any, ...]:
        first = 3 + 2 * self.states
        x, *rest = inputs[:first]
        h0, dy, dlast = rest[: self.states], rest[self.states + 1], rest[self.states + 2 :]
        weights = inputs[first + self.reserve :]
        _, _, tape = _forward(self, x, h0, weights)
        dx, dfirst, dweights = _backward(self, dy, dlast, tape, weights)
        return (dx, *dfirst, *dweights)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """The operands are drawn independently: y, which would have to match a reserve, is not read."""
        for op, sizes in _cases(cls):
            shapes = [s for s in op.operand_shapes(sizes) if s is not None]
            yield Sample.of(op, *shapes, *_drawn(op, sizes))


def attributes(op: _Recurrent) -> tuple[Any, ...]:
    """The attributes that both directions share."""
    return op.mode, op.hidden, op.layers, op.bidirectional, op.projection, op.bias


def _zeros(like: Any) -> Array:
    return np.zeros(like.shape, like.dtype.numpy)


def _cases(cls: Any) -> Iterator[tuple[Any, Sizes]]:
    yield cls("tanh", 3), Sizes(2, 2, 3)
    yield cls("relu", 5, bias=False), Sizes(3, 1, 2)
    yield cls("lstm", 4), Sizes(3, 2, 5)
    yield cls("gru", 4), Sizes(3, 2, 5)
    yield cls("lstm", 3, 2, True), Sizes(4, 3, 2)
    yield cls("gru", 8, 2, True, bias=False), Sizes(1, 1, 8)
    yield cls("lstm", 6, 2, projection=4), Sizes(2, 3, 7)
    yield cls("tanh", 9, 3), Sizes(5, 2, 4)


def _drawn(op: _Recurrent, sizes: Sizes) -> list[Arg]:
    """Weights for which errors do not grow from step to step."""
    return [Arg(shape, low=-0.5, high=0.5) for shape in op.weight_shapes(sizes.inputs)]


# ------------------------------------------------------- the semantics, in NumPy or, for derivatives, in other ops


def _tanh(x: Any) -> Any:
    return np.tanh(x) if isinstance(x, np.ndarray) else tanh(x)


def _relu(x: Any) -> Any:
    return np.maximum(x, 0) if isinstance(x, np.ndarray) else relu(x)


def _where_positive(x: Any, values: Any) -> Any:
    return np.where(x > 0, values, 0) if isinstance(x, np.ndarray) else where(x > 0, values, 0.0)


def _split(x: Any, parts: int, axis: int) -> Sequence[Any]:
    return np.split(x, parts, axis) if isinstance(x, np.ndarray) else chunk(x, parts, axis)


def _joined(parts: Sequence[Any], axis: int) -> Any:
    return np.concatenate(parts, axis) if isinstance(parts[0], np.ndarray) else cat(parts, axis)


def _stacked(parts: Sequence[Any]) -> Any:
    return np.stack(parts) if isinstance(parts[0], np.ndarray) else stack(parts)


def _turned(x: Any) -> Any:
    """The steps in reverse order."""
    return x[::-1] if isinstance(x, np.ndarray) else flip(x, 0)


def _over_steps(a: Any, b: Any) -> Any:
    """[T, B, M], [T, B, N] -> [M, N]: the sum over steps and samples of a b^T."""
    left, right = (z.reshape((z.shape[0] * z.shape[1], z.shape[2])) for z in (a, b))
    return left.T @ right


class Weights(NamedTuple):
    """The weights of one layer in one direction."""

    ih: Any
    hh: Any
    b_ih: Any = None
    b_hh: Any = None
    hr: Any = None


def grouped(op: _Recurrent, weights: Sequence[Any]) -> list[Weights]:
    """The weights by layer and direction, a layer's directions adjacent."""
    count = 2 + 2 * op.bias + bool(op.projection)
    found = []
    for i in range(0, len(weights), count):
        ih, hh, *rest = weights[i : i + count]
        b_ih, b_hh = rest[:2] if op.bias else (None, None)
        found.append(Weights(ih, hh, b_ih, b_hh, rest[-1] if op.projection else None))
    return found


def _flattened(op: _Recurrent, groups: Sequence[Weights]) -> list[Array]:
    return [w for group in groups for w in group if w is not None]


class _Pass(NamedTuple):
    """The tape of one layer in one direction: its input, and a record of each step."""

    x: Array
    steps: list[Any]


def _forward(
    op: _Recurrent, x: Array, first: Sequence[Array], weights: Sequence[Array]
) -> tuple[Array, list[Array], list[_Pass]]:
    """(y, last states, tape). first: h0, and c0 of the LSTM."""
    passes: list[_Pass] = []
    last: list[list[Array]] = [[] for _ in first]
    groups = grouped(op, weights)
    for _ in range(op.layers):
        sides = []
        for direction in range(op.directions):
            place = len(passes)
            state = [s[place] for s in first]
            turned = _turned(x) if direction else x
            y, state, steps = _run(op, turned, state, groups[place])
            passes.append(_Pass(turned, steps))
            sides.append(_turned(y) if direction else y)
            for kept, s in zip(last, state, strict=True):
                kept.append(s)
        x = _joined(sides, 2)
    return x, [_stacked(kept) for kept in last], passes


def _run(op: _Recurrent, x: Array, state: list[Array], w: Weights) -> tuple[Array, list[Array], list[Any]]:
    """One layer in one direction: (outputs [T, B, P], last state, records)."""
    bias = 0 if w.b_ih is None else w.b_ih
    outputs, steps = [], []
    given = x @ w.ih.T + bias
    for t in range(given.shape[0]):
        a = given[t]
        s = state[0] @ w.hh.T + (0 if w.b_hh is None else w.b_hh)
        state, record = _STEPS[op.mode](op.mode, a, s, state)
        steps.append(record)
        if w.hr is not None:
            state = [state[0] @ w.hr.T, state[1]]
        outputs.append(state[0])
    return _stacked(outputs), state, steps


def _sigmoid(x: Array) -> Array:
    found: Array = 0.5 * _tanh(0.5 * x) + 0.5
    return found


def _plain_step(mode: str, a: Array, s: Array, state: list[Array]) -> tuple[list[Array], Any]:
    h = _tanh(a + s) if mode == "tanh" else _relu(a + s)
    return [h], (state[0], h)


def _lstm_step(mode: str, a: Array, s: Array, state: list[Array]) -> tuple[list[Array], Any]:
    before, c = state
    i, f, g, o = _split(a + s, 4, 1)
    i, f, g, o = _sigmoid(i), _sigmoid(f), _tanh(g), _sigmoid(o)
    after = f * c + i * g
    t = _tanh(after)
    m = o * t
    return [m, after], (before, c, i, f, g, o, t, m)


def _gru_step(mode: str, a: Array, s: Array, state: list[Array]) -> tuple[list[Array], Any]:
    (h,) = state
    (ar, az, an), (sr, sz, sn) = _split(a, 3, 1), _split(s, 3, 1)
    r, z = _sigmoid(ar + sr), _sigmoid(az + sz)
    n = _tanh(an + r * sn)
    return [(1 - z) * n + z * h], (h, r, z, n, sn)


_STEPS: dict[str, Any] = {"relu": _plain_step, "tanh": _plain_step, "lstm": _lstm_step, "gru": _gru_step}


def _backward(
    op: _Recurrent, dy: Array, dlast: Sequence[Array], tape: list[_Pass], weights: Sequence[Array]
) -> tuple[Array, list[Array], list[Array]]:
    """(dx, gradients of the first states, gradients of the weights)."""
    groups = grouped(op, weights)
    found: list[Weights] = [Weights(None, None)] * len(groups)
    dfirst: list[list[Any]] = [[None] * len(groups) for _ in dlast]
    for layer in reversed(range(op.layers)):
        sides = _split(dy, op.directions, 2)
        for direction in range(op.directions):
            place = layer * op.directions + direction
            g = _turned(sides[direction]) if direction else sides[direction]
            dx, dstate, dw = _run_back(op, g, [s[place] for s in dlast], tape[place], groups[place])
            dy = dy + _turned(dx) if direction else dx
            found[place] = dw
            for kept, s in zip(dfirst, dstate, strict=True):
                kept[place] = s
    return dy, [_stacked(kept) for kept in dfirst], _flattened(op, found)


def _run_back(
    op: _Recurrent, dy: Array, dstate: list[Array], tape: _Pass, w: Weights
) -> tuple[Array, list[Array], Weights]:
    """The gradients of one layer in one direction: of its inputs, first state and weights."""
    das, dss = [], []
    dhr: Any = None
    for t, record in reversed(list(enumerate(tape.steps))):
        dh = dstate[0] + dy[t]
        if w.hr is not None:
            dhr = dh.T @ record[-1] if dhr is None else dhr + dh.T @ record[-1]
            dh = dh @ w.hr
        da, ds, dstate = _BACK[op.mode](op.mode, dh, dstate, record)
        dstate = [dstate[0] + ds @ w.hh, *dstate[1:]]
        das.append(da)
        dss.append(ds)
    da, ds = _stacked(das[::-1]), _stacked(dss[::-1])
    before = _stacked([record[0] for record in tape.steps])
    d_ih, d_hh = _over_steps(da, tape.x), _over_steps(ds, before)
    b_ih, b_hh = (da.sum((0, 1)), ds.sum((0, 1))) if op.bias else (None, None)
    return da @ w.ih, dstate, Weights(d_ih, d_hh, b_ih, b_hh, dhr)


def _plain_back(mode: str, dh: Array, dstate: list[Array], record: Any) -> tuple[Array, Array, list[Any]]:
    _, h = record
    da = dh * (1 - h * h) if mode == "tanh" else _where_positive(h, dh)
    return da, da, [0.0]


def _lstm_back(mode: str, dh: Array, dstate: list[Array], record: Any) -> tuple[Array, Array, list[Any]]:
    _, c, i, f, g, o, t, _ = record
    dc = dstate[1] + dh * o * (1 - t * t)
    parts = (dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o))
    da = _joined(parts, 1)
    return da, da, [0.0, dc * f]


def _gru_back(mode: str, dh: Array, dstate: list[Array], record: Any) -> tuple[Array, Array, list[Array]]:
    h, r, z, n, sn = record
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * sn * r * (1 - r), dh * (h - n) * z * (1 - z)
    return _joined((dr, dz, dn), 1), _joined((dr, dz, dn * r), 1), [dh * z]


_BACK: dict[str, Any] = {"relu": _plain_back, "tanh": _plain_back, "lstm": _lstm_back, "gru": _gru_back}


# -------------------------------------------------------------------------------------------------- the function


def rnn(
    mode: str,
    x: Any,
    states: Sequence[Any] | None,
    weights: Sequence[Any],
    *,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
    projection: int = 0,
    bias: bool = True,
    lengths: Any = None,
) -> tuple[Any, ...]:
    """(y [T, B, D P], hn [L D, B, P]), and cn [L D, B, H] for the LSTM: a recurrent network over x [T, B, I].

    mode: "relu", "tanh", "lstm" or "gru". states: (h0,), or (h0, c0) for the LSTM; None: zeros.
    weights: in PyTorch's order: for each layer, and in it each direction, W_ih [G H, ·], W_hh [G H, P],
    b_ih [G H] and b_hh [G H] (with bias), W_hr [P, H] (with projection); G = 1, 4 (lstm) or 3 (gru) gates.
    lengths: integers [B]: sequence b has lengths[b] steps, and x is not read beyond them. There y is 0; the last
    states are each sequence's own, and the second direction begins at its own end, as with PyTorch's packed
    sequences. An empty sequence returns its initial states. A length outside 0 … T is an IndexError on a CPU.

    Raises ValueError, ShapeError, DTypeError naming the invalid operand. Source: cuDNN's cudnnRNNForward;
    torch.nn.RNN, LSTM, GRU.
    """
    x = operand(x)
    op = Rnn(mode, hidden, layers, bidirectional, projection, bias, reserve=True)
    op.check()
    if states is None:
        batch, dtype = x.shape[1] if x.ndim == 3 else 0, x.dtype
        states = [_filled(shape, dtype) for shape in op.state_shapes(batch)]
    if len(states) != op.states:
        raise ValueError(f"rnn: mode {mode!r} has {op.states} states, got {len(states)}")
    if lengths is None:
        return tuple(bind(op, x, *states, *weights)[: 1 + op.states])
    op.measure([spec_of(a) for a in (x, *states, *weights)], ("x", "h0", "c0")[: 1 + op.states],
               lambda s: [tuple(s), *op.state_shapes(s.batch)])  # fmt: skip
    return _over_lengths(op, x, [operand(s) for s in states], weights, checked_lengths("rnn", lengths, x))


#: The bias, in units of `_FAR`, that a step after a sequence's end adds to each gate: the LSTM's cell state is
#: preserved, and a state that could grow is zero. Other states stay within -1 and 1.
_HOLD = {"lstm": (-1.0, 1.0, 0.0, 0.0), "relu": (-1.0,)}
#: Large enough to saturate a gate to 0 or 1 in the last bit; exact in every float dtype.
_FAR = 2.0**14
#: Input vectors are padded to a multiple of this, for matrix units.
_MULTIPLE = 8


def _over_lengths(
    op: Rnn, x: Any, first: Sequence[Any], weights: Sequence[Any], lengths: Any
) -> tuple[Any, ...]:
    """`rnn` over sequences of lengths [B], by single-layer, single-direction networks over all steps.

    States before a sequence's end do not depend on later steps; the second direction reads each sequence reversed
    within its length. The last h is gathered from the outputs; the last c is preserved to the end by the gates.
    """
    groups, one = grouped(op, list(weights)), replace(op, layers=1, bidirectional=False)
    within = inside(lengths, x.shape[0])
    last: list[list[Any]] = [[] for _ in first]
    x = where(within.unsqueeze(2), x, 0)
    for layer in range(op.layers):
        sides = []
        for direction in range(op.directions):
            place = layer * op.directions + direction
            w, start = groups[place], [s[place : place + 1] for s in first]
            turned, w = _held(op.mode, reversed_within(x, lengths) if direction else x, w, within)
            y, *after = bind(one, turned, *start, *(a for a in w if a is not None))[: 1 + op.states]
            after[0] = where((lengths > 0).unsqueeze(1), last_steps(y, lengths), start[0][0]).unsqueeze(0)
            for kept, s in zip(last, after, strict=True):
                kept.append(s)
            sides.append(reversed_within(y, lengths) if direction else where(within.unsqueeze(2), y, 0))
        x = cat(sides, 2) if op.bidirectional else sides[0]
    return x, *(cat(kept, 0) for kept in last)


def _held(mode: str, x: Any, w: Weights, within: Any) -> tuple[Any, Weights]:
    """x with indicator columns that are 1 after the sequences' ends, and weights for them."""
    if mode not in _HOLD:
        return x, w
    more, dtype = _MULTIPLE - x.shape[2] % _MULTIPLE, x.dtype
    behind = cat([(~within).unsqueeze(2).cast(dtype), np.zeros((*x.shape[:2], more - 1), dtype.numpy)], 2)
    columns = np.zeros((w.ih.shape[0], more), dtype.numpy)
    columns[:, 0] = np.repeat(np.array(_HOLD[mode]) * _FAR, w.ih.shape[0] // len(_HOLD[mode]))
    return cat([x, behind], 2), w._replace(ih=cat([operand(w.ih), columns], 1))


def _filled(shape: Shape, dtype: DType) -> Array:
    return np.zeros(shape, dtype.numpy)
