"""A convolution of stride 1 as three of half as many taps on half as many rows: a fast FIR algorithm.

Rows and the filter's taps along the first axis are split into even and odd ones (polyphase). With z the padded input,
h0 and h1 the even and the odd taps, and (h z)[m] = sum_j h[j] z[m + j], the rows of the result are

    y[2m]     = (h0 even)[m] + (h1 odd)[m]          P = h0 odd
    y[2m + 1] = (h0 odd)[m]  + (h1 even)[m + 1]     Q = h1 even

four products of halves. Three suffice (Mou and Duhamel, "Short-length FIR filters and their use in fast nonrecursive
filtering", 1991), since S = (h0 + h1) (even + odd) contains all four:

    y[2m] = S[m] - P[m] - Q[m]      y[2m + 1] = P[m] + Q[m + 1]

With 7 taps that is 11 / 14 of the arithmetic. P and Q are convolutions of the input itself, of stride and dilation 2.
Sums of rows and of taps, and the three parts, are rounded to the operands' type: the error is about twice that of
rounding the result. bfloat16 only: float16's range is too small for parts that cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.conv.transforms import can_swap, mirror, swapped
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, places_of
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Launch,
    Place,
    Program,
    SubPlan,
    c_type,
    constants,
    looping,
    round_up,
    scratch,
)
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.runtime import Machine
from lamina.spec import Shape, Spec, bfloat16, channels_last

#: Fewer taps save too little.
_FEWEST_TAPS = 5
#: Less arithmetic is finished before six kernels are launched.
_LEAST_FLOPS = 1e11
#: Pairs of rows that a thread combines.
_WALK = 4

#: The plan of a convolution forward.
Planner = Callable[[Operands], Plan]


def takes_fast_fir(direction: Direction, o: Operands, machine: Machine) -> bool:
    """Whether the form exists for a direction, and saves more arithmetic than its passes over memory cost."""
    if o.x.dtype != bfloat16 or o.window.groups > 1 or o.window.flip or direction is ConvFilterGrad:
        return False
    if direction is ConvDataGrad and not can_swap(o):
        return False
    forward = o if direction is Conv else swapped(o)
    win, taps = forward.window, forward.w.shape[2]
    if (win.stride[0], win.dilation[0]) != (1, 1) or win.padding[0][0] < 1 or taps < _FEWEST_TAPS:
        return False
    if any(c % (VECTOR // o.x.dtype.itemsize) for c in o.w.shape[:2]):
        return False
    saved = o.flops * (taps // 2) / (2 * taps)
    moved = 1.5 * forward.x.nbytes + 2.5 * forward.y.nbytes
    balance = round(machine.rate("bfloat16") / machine.bandwidth)  # FLOP in the time of a byte
    return o.flops >= _LEAST_FLOPS and saved > balance * moved


@dataclass(frozen=True)
class FastFir:
    """The three convolutions that replace one of stride 1 along its first axis, all channels last."""

    whole: Operands

    @property
    def taps(self) -> tuple[int, int]:
        """Even and odd taps."""
        number = self.whole.w.shape[2]
        return -(-number // 2), number // 2

    @property
    def rows(self) -> int:
        """Pairs of rows of the result."""
        return -(-self.whole.y.shape[2] // 2)

    @cached_property
    def parts(self) -> tuple[Operands, Operands, Operands]:
        """P, Q and S: even taps on odd rows, odd taps on even rows, sums of taps on sums of rows."""
        even, odd = self.taps
        pairs = self.rows + even - 1
        return (
            self._apart(even, 1, self.rows),
            self._apart(odd, 0, self.whole.y.shape[2] // 2 + 1),
            self._part(even, pairs, (0, 0), 1),
        )

    def _apart(self, taps: int, first: int, rows: int) -> Operands:
        """Every second tap on every second row from `first` on, with at least `rows` rows."""
        x, low = self.whole.x, self.whole.window.padding[0][0] - first
        high = 2 * (rows - 1) + 2 * (taps - 1) + 1 - x.shape[2] - low
        return self._part(taps, x.shape[2], (low, max(0, high)), 2)

    def _part(self, taps: int, height: int, padding: tuple[int, int], step: int) -> Operands:
        x, w, y, win = self.whole.x, self.whole.w, self.whole.y, self.whole.window
        window = replace(
            win,
            stride=(step, *win.stride[1:]),
            padding=(padding, *win.padding[1:]),
            dilation=(step, *win.dilation[1:]),
        )
        x_shape: Shape = (*x.shape[:2], height, *x.shape[3:])
        w_shape: Shape = (*w.shape[:2], taps, *w.shape[3:])
        y_shape: Shape = (*y.shape[:2], *window.output(x_shape[2:], w_shape[2:]))
        return Operands(window, *(_last(s, x) for s in (x_shape, w_shape, y_shape)))

    @property
    def text(self) -> str:
        """The constants of fast_fir.cu."""
        x, w, y = self.whole.x, self.whole.w, self.whole.y
        p, q, s = self.parts
        biggest = max(x.numel, y.numel, s.x.numel, p.y.numel, q.y.numel)
        numbers = constants(
            V=VECTOR // x.dtype.itemsize,
            N=x.shape[0],
            K=w.shape[0],
            LOW=self.whole.window.padding[0][0],
            X_ROWS=x.shape[2],
            X_ROW=_row(x),
            TAPS=w.shape[2],
            TAP=_row(w),
            PAIRS=s.x.shape[2],
            Y_ROWS=y.shape[2],
            Y_ROW=_row(y),
            P_ROWS=p.y.shape[2],
            Q_ROWS=q.y.shape[2],
            S_ROWS=s.y.shape[2],
            WALK=_WALK,
        )
        index = index_type(biggest)
        return f"typedef {index} Index;\ntypedef {c_type(x.dtype)} T;\n{numbers}"

    def launch(self, name: str, elements: int, *places: Place) -> Launch:
        """One of fast_fir.cu's kernels, whose threads process `V` of `elements` elements."""
        count = elements * self.whole.x.dtype.itemsize // VECTOR
        return looping(Program(name, "conv/fast_fir.cu", self.text), count, places, each=4)

    def steps(self, x: Place, w: Place, y: Place, plan: Planner, offset: int) -> tuple[list[Bindable], int]:
        """The steps that compute y from x and w, and the bytes of scratch memory, from `offset` on."""
        p, q, s = self.parts
        places = []
        for spec in (p.w, q.w, s.w, s.x, p.y, q.y, s.y):
            places.append(scratch(offset))
            offset += round_up(spec.nbytes, WORKSPACE_ALIGNMENT)
        *filters, pairs, p_y, q_y, s_y = places
        plans = [plan(part) for part in self.parts]
        walks = -(-self.rows // _WALK)
        steps: list[Bindable] = [
            self.launch("halve_taps", s.w.numel, w, *filters),
            self.launch("pair_rows", s.x.numel, x, pairs),
        ]
        for made, given, filter_, place in zip(plans, (x, x, pairs), filters, (p_y, q_y, s_y), strict=True):
            steps.append(SubPlan(made, (given, filter_), (place,), offset))
        joined = s.y.shape[0] * walks * _row(s.y)
        steps.append(self.launch("join_rows", joined, p_y, q_y, s_y, y))
        return steps, offset + max(made.workspace for made in plans)


def fast_fir_formulation(direction: Direction, o: Operands, plan: Planner) -> Formulation:
    """The three parts, each with the plan that `plan` chooses; a data gradient uses the mirrored, transposed
    filter."""
    x, w, y = places_of(direction)
    if direction is Conv:
        steps, size = FastFir(o).steps(x, w, y, plan, 0)
        return Formulation("halved", steps=tuple(steps), scratch=size)
    other, filter_ = swapped(o), scratch()
    room = round_up(other.w.nbytes, WORKSPACE_ALIGNMENT)
    steps, size = FastFir(other).steps(y, filter_, x, plan, room)
    return Formulation("halved", steps=(mirror(o.w, w, other.w, filter_), *steps), scratch=size)


def _last(shape: Shape, like: Spec) -> Spec:
    return full(Spec(shape, like.dtype), channels_last(shape))


def _row(spec: Spec) -> int:
    """Stride between positions along the first axis: the product of all further axes and the channels."""
    return spec.shape[1] * prod(spec.shape[3:])
