"""Padding layers: `ops.pad` as modules. Names and arguments as in torch.nn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from lamina import ops
from lamina.nn.module import Module, T
from lamina.spec import ShapeError

Mode = Literal["constant", "reflect", "replicate", "circular"]


class _PadLayer(Module):
    """padding: one number for all sides, or two per spatial axis, before and after, last axis first."""

    rank: ClassVar[int]
    mode: ClassVar[Mode]
    value: float | None = None

    def __init__(self, padding: int | Sequence[int]) -> None:
        sides = (padding,) * (2 * self.rank) if isinstance(padding, int) else tuple(padding)
        if len(sides) != 2 * self.rank:
            raise ShapeError(f"{type(self).__name__}: padding takes {2 * self.rank} numbers, got {padding}")
        self.padding = sides

    def forward(self, x: T) -> T:
        """x (N, C, *S) -> (N, C, *S + padding). Raises ShapeError if the input is too small for the mode."""
        return ops.pad(x, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"{self.padding}"


class _ConstantPad(_PadLayer):
    mode = "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_PadLayer):
    mode = "constant"
    value = 0.0


class ConstantPad1d(_ConstantPad):
    """One value around (N, C, L)."""

    rank = 1


class ConstantPad2d(_ConstantPad):
    """One value around (N, C, H, W)."""

    rank = 2


class ConstantPad3d(_ConstantPad):
    """One value around (N, C, D, H, W)."""

    rank = 3


class ZeroPad1d(_ZeroPad):
    """Zeros around (N, C, L)."""

    rank = 1


class ZeroPad2d(_ZeroPad):
    """Zeros around (N, C, H, W)."""

    rank = 2


class ZeroPad3d(_ZeroPad):
    """Zeros around (N, C, D, H, W)."""

    rank = 3


class ReflectionPad1d(_PadLayer):
    """The input mirrored at its edge, without repeating it, around (N, C, L)."""

    rank, mode = 1, "reflect"


class ReflectionPad2d(_PadLayer):
    """The input mirrored at its edge, without repeating it, around (N, C, H, W)."""

    rank, mode = 2, "reflect"


class ReflectionPad3d(_PadLayer):
    """The input mirrored at its edge, without repeating it, around (N, C, D, H, W)."""

    rank, mode = 3, "reflect"


class ReplicationPad1d(_PadLayer):
    """The edge repeated around (N, C, L)."""

    rank, mode = 1, "replicate"


class ReplicationPad2d(_PadLayer):
    """The edge repeated around (N, C, H, W)."""

    rank, mode = 2, "replicate"


class ReplicationPad3d(_PadLayer):
    """The edge repeated around (N, C, D, H, W)."""

    rank, mode = 3, "replicate"


class CircularPad1d(_PadLayer):
    """The input wrapped around the ends of (N, C, L)."""

    rank, mode = 1, "circular"


class CircularPad2d(_PadLayer):
    """The input wrapped around the ends of (N, C, H, W)."""

    rank, mode = 2, "circular"


class CircularPad3d(_PadLayer):
    """The input wrapped around the ends of (N, C, D, H, W)."""

    rank, mode = 3, "circular"
