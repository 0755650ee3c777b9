"""A recurrent network in NumPy, float64, forward and backward, written from the formulas of the cells.

Parameters have PyTorch's names and shapes: weight_ih_l0 (gates * hidden, inputs), weight_hh_l0 (gates * hidden,
outputs), bias_ih_l0, bias_hh_l0 (gates * hidden,), weight_hr_l0 (projection, hidden), "_reverse" for the backward
direction. A missing bias is zero; a missing weight_ih is the identity (skip input).

Gates, in order: LSTM i, f, g, o; GRU r, z, n, the reset gate applied after the recurrent product.
x: (time, batch, inputs), padded; lengths: (batch,). Outputs beyond a sequence's end are zero. States are
(layers * directions, batch, size), the directions of a layer adjacent to each other.

A clipped LSTM is cuDNN's: c_t = f * clip(c_{t-1}) + i * g and h_t = o * tanh(clip(c_t)), so that the initial cell is
clipped like every other one; the last cell is returned before clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
GATES = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Rnn:
    """The network's configuration."""

    cell: str
    inputs: int
    hidden: int
    layers: int = 1
    projection: int | None = None
    bidirectional: bool = False
    clip: tuple[float, float] | None = None

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    @property
    def size(self) -> int:
        """Length of a state h."""
        return self.projection or self.hidden

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def suffixes(self) -> list[tuple[int, bool, str]]:
        """(layer, reverse, suffix of the parameters' names), in the order of the states."""
        both = [(False, ""), (True, "_reverse")][: self.directions]
        return [(layer, rev, f"_l{layer}{text}") for layer in range(self.layers) for rev, text in both]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter (two biases, no skip input)."""
        found: dict[str, tuple[int, ...]] = {}
        for layer, _, text in self.suffixes():
            width, rows = self.inputs if layer == 0 else self.size * self.directions, self.gates * self.hidden
            found |= {f"weight_ih{text}": (rows, width), f"weight_hh{text}": (rows, self.size)}
            found |= {f"bias_ih{text}": (rows,), f"bias_hh{text}": (rows,)}
            if self.projection:
                found[f"weight_hr{text}"] = (self.projection, self.hidden)
        return found


class Result(NamedTuple):
    y: Array
    hn: Array
    cn: Array | None
    tape: list[_Pass]


class Gradients(NamedTuple):
    dx: Array
    dh0: Array
    dc0: Array | None
    parameters: dict[str, Array]


@dataclass
class _Step:
    """The values of one time step needed for its gradient."""

    time: int
    active: Array  # (batch, 1), 1.0 while the sequence continues
    h: Array  # previous state
    c: Array | None
    gates: list[Array] = field(default_factory=list)  # after their activation
    inner: Array | None = None  # relu: its argument; GRU: R_n h + b; LSTM: the cell before clipping
    cell: Array | None = None  # LSTM: the cell after clipping


@dataclass
class _Pass:
    """One layer in one direction."""

    rnn: Rnn
    suffix: str
    x: Array
    w: Array
    r: Array
    projection: Array | None
    steps: list[_Step]
    identity: bool
    kept: Array | None = None  # clipped LSTM: where the initial cell was within the bounds


def sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def forward(
    rnn: Rnn,
    parameters: Mapping[str, Any],
    x: Any,
    h0: Any = None,
    c0: Any = None,
    lengths: Any = None,
) -> Result:
    """y (time, batch, size * directions), the last states, and the values needed by `backward`."""
    p = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    out = np.asarray(x, np.float64)
    time, batch = out.shape[:2]
    ends = np.full(batch, time) if lengths is None else np.asarray(lengths)
    states = rnn.layers * rnn.directions
    h = np.zeros((states, batch, rnn.size)) if h0 is None else np.asarray(h0, np.float64)
    cells = np.zeros((states, batch, rnn.hidden)) if c0 is None else np.asarray(c0, np.float64)
    tape, hn, cn = [], [], []
    for layer in range(rnn.layers):
        outputs = []
        for _, reverse, suffix in [s for s in rnn.suffixes() if s[0] == layer]:
            y, h_last, c_last, done = _direction(
                rnn, p, suffix, reverse, out, h[len(hn)], cells[len(hn)], ends
            )
            outputs.append(y)
            tape.append(done)
            hn.append(h_last)
            cn.append(c_last)
        out = np.concatenate(outputs, axis=2)
    return Result(out, np.stack(hn), np.stack(cn) if rnn.cell == "lstm" else None, tape)


def _direction(
    rnn: Rnn,
    p: Mapping[str, Array],
    suffix: str,
    reverse: bool,
    x: Array,
    h: Array,
    c: Array,
    lengths: Any,
) -> tuple[Array, Array, Array, _Pass]:
    rows = rnn.gates * rnn.hidden
    identity = f"weight_ih{suffix}" not in p
    w = np.tile(np.eye(rnn.hidden), (rnn.gates, 1)) if identity else p[f"weight_ih{suffix}"]
    r, projection = p[f"weight_hh{suffix}"], p.get(f"weight_hr{suffix}")
    bw, br = (p.get(f"bias_{kind}{suffix}", np.zeros(rows)) for kind in ("ih", "hh"))
    done = _Pass(rnn, suffix, x, w, r, projection, [], identity)
    if rnn.clip is not None:
        done.kept, c = (c >= rnn.clip[0]) & (c <= rnn.clip[1]), np.clip(c, *rnn.clip)
    last = c
    y = np.zeros((*x.shape[:2], rnn.size))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        active = (t < lengths).astype(np.float64)[:, None]
        step = _Step(t, active, h, c)
        new_h, new_c = _cell(rnn, step, x[t] @ w.T + bw, h @ r.T + br, c, projection)
        h, c = active * new_h + (1 - active) * h, active * new_c + (1 - active) * c
        last = c if rnn.clip is None else active * step.inner + (1 - active) * last
        y[t] = active * new_h
        done.steps.append(step)
    return y, h, last, done


def _cell(
    rnn: Rnn, step: _Step, a: Array, b: Array, c: Array, projection: Array | None
) -> tuple[Array, Array]:
    """The new h and c from the input's contribution a and the state's contribution b to the gates, (batch, gates *
    hidden)."""
    if rnn.cell in ("relu", "tanh"):
        h = np.maximum(a + b, 0.0) if rnn.cell == "relu" else np.tanh(a + b)
        step.gates, step.inner = [h], a + b
        return h, c
    if rnn.cell == "gru":
        (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
        reset, update = sigmoid(ar + br), sigmoid(az + bz)
        new = np.tanh(an + reset * bn)
        step.gates, step.inner = [reset, update, new], bn
        return (1 - update) * new + update * step.h, c
    ai, af, ag, ao = np.split(a + b, 4, axis=1)
    i, f, g, o = sigmoid(ai), sigmoid(af), np.tanh(ag), sigmoid(ao)
    step.inner = f * c + i * g
    cell = step.inner if rnn.clip is None else np.clip(step.inner, *rnn.clip)
    step.gates, step.cell = [i, f, g, o], cell
    h = o * np.tanh(cell)
    return (h if projection is None else h @ projection.T), cell


def backward(result: Result, dy: Any, dhn: Any = None, dcn: Any = None) -> Gradients:
    """Gradients of sum(dy * y) + sum(dhn * hn) + sum(dcn * cn)."""
    rnn, batch = result.tape[0].rnn, result.y.shape[1]
    states = rnn.layers * rnn.directions
    dh0 = np.zeros((states, batch, rnn.size)) if dhn is None else np.array(dhn, np.float64)
    dc0 = np.zeros((states, batch, rnn.hidden)) if dcn is None else np.array(dcn, np.float64)
    gradients: dict[str, Array] = {}
    dout = np.asarray(dy, np.float64)
    for layer in reversed(range(rnn.layers)):
        dx = np.zeros_like(result.tape[layer * rnn.directions].x)
        for d, part in enumerate(np.split(dout, rnn.directions, axis=2)):
            k = layer * rnn.directions + d
            dx += _backward_direction(result.tape[k], part, dh0[k], dc0[k], gradients)
        dout = dx
    return Gradients(dout, dh0, dc0 if rnn.cell == "lstm" else None, gradients)


def take_sides(result: Result, limit: float, distance: Callable[[], float]) -> int:
    """Choose relu's slope (0 or 1) at sums within `limit` of zero so as to reduce `distance`; returns how many
    changed.

    Rounding may move such a sum to the other side, and either slope is then a valid gradient of the computed result.
    The values of `result` are unchanged.
    """
    changed, nearest = 0, distance()
    for step in (step for done in result.tape for step in done.steps):
        assert step.inner is not None
        for place in map(tuple, np.argwhere((np.abs(step.inner) < limit) & (step.active > 0))):
            step.inner[place] *= -1
            found = distance()
            if found < nearest:
                changed, nearest = changed + 1, found
            else:
                step.inner[place] *= -1
    return changed


def _backward_direction(done: _Pass, dy: Array, dh: Array, dc: Array, gradients: dict[str, Array]) -> Array:
    """The gradient of the layer's input; dh and dc become those of the initial states, in place."""
    dx = np.zeros_like(done.x)
    dw, dr = np.zeros_like(done.w), np.zeros_like(done.r)
    dbw, dbr = np.zeros(len(dw)), np.zeros(len(dr))
    dp = np.zeros_like(done.projection) if done.projection is not None else None
    dlast = dc.copy()  # of the last cell, which is not clipped
    dc[...] = 0  # of the clipped cell passed to the next step
    for step in reversed(done.steps):
        on = step.active
        total = on * (dh + dy[step.time])
        da, db, dh_part, dc_new = _backward_cell(done, step, total, on * dc, on * dlast, dp)
        dlast *= 1 - on
        dx[step.time] += da @ done.w
        dw += da.T @ done.x[step.time]
        dr += db.T @ step.h
        dbw += da.sum(axis=0)
        dbr += db.sum(axis=0)
        dh[...] = (1 - on) * dh + dh_part + db @ done.r
        dc[...] = (1 - on) * dc + dc_new
    dc += dlast
    if done.kept is not None:
        dc *= done.kept
    names = {"weight_hh": dr, "bias_ih": dbw, "bias_hh": dbr}
    names |= {} if done.identity else {"weight_ih": dw}
    names |= {} if dp is None else {"weight_hr": dp}
    gradients.update({name + done.suffix: value for name, value in names.items()})
    return dx


def _backward_cell(
    done: _Pass, step: _Step, dh: Array, dc: Array, dlast: Array, dp: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Gradients of the input's and the state's contribution to the gates, of h past the gates, and of c.

    dc: of the cell after clipping. dlast: of the cell before it.
    """
    nothing = np.zeros_like(dh)
    if done.rnn.cell in ("relu", "tanh"):
        (h,) = step.gates
        da = dh * (step.inner > 0) if done.rnn.cell == "relu" else dh * (1 - h**2)
        return da, da, nothing, np.zeros_like(dc)
    if done.rnn.cell == "gru":
        reset, update, new = step.gates
        dnew = dh * (1 - update) * (1 - new**2)
        dupdate = dh * (step.h - new) * update * (1 - update)
        dreset = dnew * step.inner * reset * (1 - reset)
        da = np.concatenate([dreset, dupdate, dnew], axis=1)
        db = np.concatenate([dreset, dupdate, dnew * reset], axis=1)
        return da, db, dh * update, np.zeros_like(dc)
    i, f, g, o = step.gates
    squashed = np.tanh(step.cell)
    if dp is not None:
        dp += dh.T @ (o * squashed)
        dh = dh @ done.projection
    dcell = dc + dh * o * (1 - squashed**2)
    if done.rnn.clip is not None:
        low, high = done.rnn.clip
        dcell = dcell * ((step.inner >= low) & (step.inner <= high))
    dcell = dcell + dlast
    parts = [dcell * g * i * (1 - i), dcell * step.c * f * (1 - f), dcell * i * (1 - g**2)]
    da = np.concatenate([*parts, dh * squashed * o * (1 - o)], axis=1)
    return da, da, nothing, dcell * f
