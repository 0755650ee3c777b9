"""Views of a tensor (`x[0]`, `x.T`, `x.view(-1)`): a write to either is visible in both.

A view need not share the base's memory, which may be in a blocked layout or move during training: it remembers the op
that created it. The op's gradient scatters the view back, and the op is applied again when the base has been written
since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ref

from lamina.ops.core import DeviceLike, Op
from lamina.ops.primitives.full_like import full_like
from lamina.ops.primitives.pointwise import where
from lamina.spec import Shape, Spec, contiguous


class Written(Protocol):
    """A tensor that counts its writes."""

    version: int
    _part: TensorPart | None

    @property
    def spec(self) -> Spec:
        """Shape, dtype and layout."""

    @property
    def device(self) -> DeviceLike:
        """Where the values are."""

    @classmethod
    def bind_op(cls, op: Op, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The op's outputs."""

    def copy_(self, values: Any) -> Any:
        """Overwrite the values."""


class TensorPart:
    """How a tensor is a view of its base, and the base possibly a view of another.

    Bases are held weakly: a write to an unreferenced tensor is unobservable.
    """

    __slots__ = ("_seen", "_strides", "above", "device", "first", "op", "spec", "whole")

    def __init__(self, op: Op, whole: Written, above: TensorPart | None) -> None:
        self.op, self.spec, self.device = op, whole.spec, whole.device
        self.whole: ref[Written] = ref(whole)
        self.above = above if above is None or above.first() is not None else None
        # The one that is not a view:
        self.first: ref[Written] = self.whole if self.above is None else self.above.first
        self._strides: Shape | None = None
        self._seen = self._written() if self.above is not None else (whole.version, whole.version)

    @classmethod
    def of(cls, op: Op, whole: Written) -> TensorPart | None:
        """The view that an op creates of a tensor; None where it computes new elements."""
        made = cls(op, whole, whole._part)
        return made if made.above is None or made.strides is not None else None

    @property
    def strides(self) -> Shape | None:
        """The strides within the first, row-major base, as in torch's views."""
        if self._strides is None:
            lie = contiguous(self.spec.shape).strides if self.above is None else self.above.strides
            self._strides = None if lie is None else self.op.strides_within(self.spec.shape, lie)
        return self._strides

    def lies_row_major(self, shape: Shape) -> bool:
        """Whether the elements, of this shape, are contiguous in the first base."""
        rows, own = contiguous(shape).strides, self.strides
        return own is not None and all(n == 1 or a == b for n, a, b in zip(shape, own, rows, strict=True))

    def note(self) -> None:
        """Mark the view as up to date with its bases."""
        self._seen = self._written()

    def wholly(self) -> Written | None:
        """The base if it still exists and was not converted to another dtype or moved to another device."""
        whole = self.whole()
        is_same = whole is not None and whole.device == self.device and whole.spec.open == self.spec.open
        return whole if is_same else None

    def is_there(self) -> bool:
        """Whether a base of this view still exists."""
        return self.wholly() is not None

    def _written(self) -> tuple[int, int]:
        """The write counts of the bases that exist: the first one and the nearest."""
        first, near = self.first(), self.whole()
        return (-1 if first is None else first.version), (-1 if near is None else near.version)

    def is_stale(self) -> bool:
        """Whether a base was written since; `take` then returns the current view."""
        now = self._written()
        return now != self._seen and any(a not in (-1, b) for a, b in zip(now, self._seen, strict=True))

    def nearest(self) -> tuple[Any, list[TensorPart]]:
        """The nearest base that exists (None if replaced by another tensor), and the views from it to this one."""
        parts = [self]
        while parts[-1].whole() is None and (above := parts[-1].above) is not None:
            parts.append(above)
        return parts[-1].wholly(), parts[::-1]

    def take(self) -> Any:
        """The view, taken again from the nearest base that exists."""
        whole, parts = self.nearest()
        for part in parts if whole is not None else ():
            whole = type(whole).bind_op(part.op, (whole,))[0]
        return whole

    def back(self, part: Any) -> Any:
        """The view's elements in their places in the base, zeros elsewhere."""
        return self.op.vjp((part,), (self.spec,), ())[0]

    def write(self, values: Any) -> None:
        """Write the view's values to the nearest base that exists, which does the same in turn."""
        above: TensorPart | None = self
        found, known = values, full_like(values, True, dtype="bool")
        while above is not None and values.spec.numel:
            found, known = above.back(found), above.back(known)
            if above.whole() is not None:
                whole = above.wholly()
                if whole is not None and not whole.spec.overlaps:
                    whole.copy_(where(known, found, whole))
                break
            above = above.above
        self.note()
