"""L-BFGS: minimizes a function by its values and gradients, with several evaluations per step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from lamina import ops
from lamina.graph.transforms.arguments import Gradients
from lamina.ops.arguments import Checked, shown
from lamina.spec import ShapeError
from lamina.tensors import Tensor, as_tensor

#: A function without arguments that returns (loss, gradients) at the current parameters.
Closure = Callable[[], tuple[Any, Any]]


class NamesParameters(Protocol):
    """A module."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Its parameters by name."""
        ...


class LBFGS(Checked):
    """The limited-memory quasi-Newton method (Liu & Nocedal 1989), as torch.optim.LBFGS.

        loss = lm.jit(lm.value_and_grad(lambda net: ops.mse_loss(net(x), y)))
        minimizer = optim.LBFGS(net, line_search_fn="strong_wolfe")
        for _ in range(10):
            minimizer.step(lambda: loss(net))

    It needs the loss and its gradients at several points per step, so it drives a compiled function from the host and
    changes the parameters in place; `train_step`, which evaluates once, does not support it. Vectors stay on the
    device.

    params: a module, or its parameters. lr: the step length, the first one tried in a line search. max_iter:
    iterations per step. max_eval: evaluations per step, by default 5/4 of max_iter. tolerance_grad, tolerance_change:
    it stops below this largest gradient, and below this change of loss or parameters. history_size: the number of
    stored changes. line_search_fn: None or "strong_wolfe". Raises ValueError for an argument out of range or no
    parameters.
    """

    def __init__(
        self,
        params: NamesParameters | Iterable[Tensor],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        named = (
            dict(params.named_parameters())
            if hasattr(params, "named_parameters")
            else dict(enumerate(params))
        )
        self.params: dict[Any, Tensor] = named
        if not self.params:
            raise ValueError("LBFGS: no parameters to minimize by")
        if not lr >= 0:
            raise ValueError(f"LBFGS: lr must be at least 0, got {lr}")
        if max_iter < 1 or history_size < 1:
            raise ValueError(f"LBFGS: max_iter={max_iter} and history_size={history_size} must be at least 1")
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(f"LBFGS: line_search_fn must be None or 'strong_wolfe', got {line_search_fn!r}")
        self.lr, self.max_iter = lr, max_iter
        self.max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        self.tolerance_grad, self.tolerance_change = tolerance_grad, tolerance_change
        self.history_size, self.line_search_fn = history_size, line_search_fn
        self.iterations = self.evaluations = 0
        self._changes: deque[_Change] = deque(maxlen=history_size)
        self._scale = 1.0
        self._last: tuple[Any, float, Any] | None = None  # direction, length, previous gradient

    def step(self, closure: Closure) -> Any:
        """Up to max_iter iterations; returns the loss before them, as returned by closure.

        closure: returns (loss, gradients): those of a module, from value_and_grad, in any order; a dict by the
            parameters' names; or a sequence in the parameters' order. Frozen parameters need none and are unchanged.
        Raises TypeError and ShapeError for gradients that do not fit.
        """
        evaluations = self.evaluations
        before, loss, gradient = self._evaluate(closure)
        for iteration in range(1, self.max_iter + 1):
            if _largest(gradient) <= self.tolerance_grad:
                break
            direction = self._direction(gradient)
            slope = _dot(gradient, direction)
            length = min(1.0, 1.0 / _total(gradient)) * self.lr if self.iterations == 0 else self.lr
            self.iterations += 1
            self._last = (direction, length, gradient)
            if slope > -self.tolerance_change:
                break
            old = loss
            if self.line_search_fn is not None:
                start = _Point(0.0, loss, gradient, slope)
                left = self.max_eval - (self.evaluations - evaluations)
                length, loss, gradient = self._search(closure, start, direction, length, left)
                self._last = (direction, length, self._last[2])
            else:
                self._move(self._place(), direction, length)
                if iteration == self.max_iter:
                    break
                _, loss, gradient = self._evaluate(closure)
            if self.evaluations - evaluations >= self.max_eval:
                break
            if (
                length * _largest(direction) <= self.tolerance_change
                or abs(loss - old) < self.tolerance_change
            ):
                break
        return before

    # ---- directions
    def _direction(self, gradient: Any) -> Any:
        """Minus the gradient times the inverse Hessian approximated from the stored changes (two-loop recursion)."""
        if self._last is None:
            return -gradient
        direction, length, before = self._last
        change = _Change.of(direction * length, gradient - before)
        if change.product > 1e-10:
            self._changes.append(change)
            self._scale = change.product / _dot(change.slopes, change.slopes)
        q, parts = -gradient, []
        for each in reversed(self._changes):
            parts.append(_dot(each.steps, q) / each.product)
            q = q - parts[-1] * each.slopes
        q = q * self._scale
        for each, part in zip(self._changes, reversed(parts), strict=True):
            q = q + (part - _dot(each.slopes, q) / each.product) * each.steps
        return q

    def _search(
        self, closure: Closure, start: _Point, direction: Any, length: float, most: int
    ) -> tuple[float, float, Any]:
        """A length satisfying the strong Wolfe conditions, or the best of `most` more; the parameters stay there."""
        place = self._place()

        def at(t: float) -> _Point:
            self._move(place, direction, t)
            _, value, gradient = self._evaluate(closure)
            return _Point(t, value, gradient, _dot(gradient, direction))

        found = _strong_wolfe(at, start, length, most, self.tolerance_change / _largest(direction))
        self._move(place, direction, found.length)
        return found.length, found.value, found.gradient

    # ---- parameters
    def _evaluate(self, closure: Closure) -> tuple[Any, float, Any]:
        """The loss as it is and as a number, and the gradient as one vector."""
        result = closure()
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                f"LBFGS.step: closure must give (loss, gradients), as lm.value_and_grad does, got {shown(result)}"
            )
        self.evaluations += 1
        loss, gradients = result
        return loss, float(loss), _vector(self._ordered(gradients))

    def _ordered(self, gradients: Any) -> list[Tensor]:
        keys = list(self.params)
        named = self._named(gradients)
        if named is None or not all(k in named or not self.params[k].requires_grad for k in keys):
            raise TypeError(
                f"LBFGS.step: closure must give a gradient for each of {len(keys)} parameters, got {shown(gradients)}"
            )
        found = [as_tensor(named[k]) if k in named else ops.zeros_like(self.params[k]) for k in keys]
        for key, g in zip(keys, found, strict=True):
            if g.shape != self.params[key].shape:
                raise ShapeError(
                    f"LBFGS.step: the gradient of {key} must have shape {self.params[key].shape}, got {g.shape}"
                )
        return found

    def _place(self) -> Any:
        """All parameters as one vector with its own memory: they are changed in place."""
        return 1.0 * _vector(list(self.params.values()))

    def _named(self, gradients: Any) -> Mapping[Any, Any] | None:
        """Gradients by the keys of the parameters, without frozen ones; None if they belong to others."""
        of_modules = _by_identity(gradients)
        if of_modules is not None:
            return {key: of_modules[id(p)] for key, p in self.params.items() if id(p) in of_modules}
        if isinstance(gradients, Mapping):
            return gradients if set(gradients) <= set(self.params) else None
        if not isinstance(gradients, Sequence):
            return None
        trained = [k for k, p in self.params.items() if p.requires_grad]
        keys = next((k for k in (list(self.params), trained) if len(k) == len(gradients)), None)
        return None if keys is None else dict(zip(keys, gradients, strict=True))

    def _move(self, place: Any, direction: Any, length: float) -> None:
        """Set the parameters to a point along a direction from an origin."""
        moved, first = place + length * direction, 0
        for p in self.params.values():
            count = math.prod(p.shape)
            p.copy_(ops.reshape(moved[first : first + count], p.shape))
            first += count

    # ---- state
    def state_dict(self) -> dict[str, Any]:
        """The numbers of iterations and evaluations and the stored changes: tensors and plain values."""
        steps, slopes = [
            list(x) for x in zip(*((c.steps, c.slopes) for c in self._changes), strict=True)
        ] or ([], [])
        return {
            "iterations": self.iterations,
            "evaluations": self.evaluations,
            "scale": self._scale,
            "steps": steps,
            "slopes": slopes,
            "last": self._last,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`. Raises KeyError if something is missing."""
        pairs = zip(state["steps"], state["slopes"], strict=True)
        self._changes = deque((_Change.of(a, b) for a, b in pairs), maxlen=self.history_size)
        self.iterations, self.evaluations = state["iterations"], state["evaluations"]
        self._scale, self._last = state["scale"], state["last"]

    def __repr__(self) -> str:
        return f"LBFGS(lr={self.lr}, max_iter={self.max_iter}, line_search_fn={self.line_search_fn!r})"


class _Change(NamedTuple):
    """A parameter change, the gradient change, and the product of both."""

    steps: Any
    slopes: Any
    product: float

    @classmethod
    def of(cls, steps: Any, slopes: Any) -> _Change:
        return cls(steps, slopes, _dot(steps, slopes))


class _Point(NamedTuple):
    """A point along a line: its length, the value and gradient there, and the slope along the line."""

    length: float
    value: float
    gradient: Any
    slope: float


#: The constants of the strong Wolfe conditions.
_DECREASE, _CURVATURE = 1e-4, 0.9


def _strong_wolfe(
    at: Callable[[float], _Point], start: _Point, length: float, most: int, least: float
) -> _Point:
    """Nocedal & Wright (2006), algorithms 3.5 and 3.6, with cubic interpolation.

    start: the point of length 0. most: further lengths to try. least: a difference of lengths at which to stop.
    """
    before, now, count = start, at(length), 0
    while count < most:
        if _too_high(start, now) or (count > 1 and now.value >= before.value):
            break
        if abs(now.slope) <= -_CURVATURE * start.slope:
            return now
        if now.slope >= 0:
            break
        longer = _cubic(before, now, now.length + 0.01 * (now.length - before.length), 10 * now.length)
        before, now, count = now, at(longer), count + 1
    else:
        before = start
    return _zoom(at, start, before, now, most - count, least)


def _zoom(
    at: Callable[[float], _Point],
    start: _Point,
    a: _Point,
    b: _Point,
    most: int,
    least: float,
) -> _Point:
    """The best point found between two that bracket a suitable one."""
    low, high = (a, b) if a.value <= b.value else (b, a)
    ends = (a, b)  # in the order in which they were found
    near = False
    while most > 0 and abs(high.length - low.length) >= least:
        left, right = sorted((low.length, high.length))
        length, margin = _cubic(*ends, left, right), 0.1 * (right - left)
        if min(right - length, length - left) < margin:  # hardly inside: moved in the second time in a row
            if near or length >= right or length <= left:
                length = right - margin if abs(length - right) < abs(length - left) else left + margin
                near = False
            else:
                near = True
        else:
            near = False
        new, most = at(length), most - 1
        first = ends[0] is low
        if _too_high(start, new) or new.value >= low.value:
            high = new
        else:
            if abs(new.slope) <= -_CURVATURE * start.slope:
                return new
            if new.slope * (high.length - low.length) >= 0:
                high = low
            low = new
        ends = (low, high) if first else (high, low)
        if ends[0].value <= ends[1].value:
            low, high = ends
        else:
            high, low = ends
    return low


def _too_high(start: _Point, point: _Point) -> bool:
    """Whether the value has not decreased enough for the length."""
    return point.value > start.value + _DECREASE * point.length * start.slope


def _cubic(a: _Point, b: _Point, least: float, most: float) -> float:
    """The minimum of the cubic through two points' values and slopes, within bounds; their midpoint if there is none.

    A straight line, or a parabola open below, has its minimum at the bound that it descends to.
    """
    if a.length > b.length:
        a, b = b, a
    d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.length - b.length)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (least + most) / 2
    d2 = math.sqrt(square)
    over, under = b.slope + d2 - d1, b.slope - a.slope + 2 * d2
    if not under:
        return most if over < 0 else least if over > 0 else (least + most) / 2
    return min(max(b.length - (b.length - a.length) * (over / under), least), most)


def _by_identity(gradients: Any) -> dict[int, Any] | None:
    """Gradients of one or several modules by their parameters' ids, None if they do not identify their parameters."""
    if isinstance(gradients, Gradients):
        return {id(gradients.parameters[name]): g for name, g in gradients.items()}
    if not isinstance(gradients, tuple | list) or not gradients:
        return None
    parts = [_by_identity(g) for g in gradients]
    return None if any(p is None for p in parts) else {key: g for p in parts for key, g in (p or {}).items()}


def _vector(parts: Sequence[Any]) -> Any:
    return ops.cat([ops.reshape(x, (-1,)) for x in parts], 0)


def _dot(a: Any, b: Any) -> float:
    return float(ops.sum(a * b))


def _largest(x: Any) -> float:
    return float(ops.amax(ops.abs(x)))


def _total(x: Any) -> float:
    return float(ops.sum(ops.abs(x)))
