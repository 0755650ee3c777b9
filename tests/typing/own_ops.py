"""An op of one's own gives its operands their number and names; what its methods give is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

import numpy as np

from lamina.ops.core import Array, Op
from lamina.ops.custom import CustomOp
from lamina.spec import Spec, float32


@dataclass(frozen=True)
class Scaled(CustomOp):
    factor: float
    arity = 2

    def infer(self, x: Spec, y: Spec) -> tuple[Spec]:
        self.check_float(x, y)
        return (self.result(x.shape, x.dtype),)

    def reference(self, x: Array, y: Array) -> tuple[Array]:
        return (self.factor * x * y,)

    def composed(self, x: Any, y: Any) -> Sequence[Any]:
        return (self.factor * x * y,)

    def flops(self, x: Spec, y: Spec) -> int:
        return 0


@dataclass(frozen=True)
class Wrong(CustomOp):
    def infer(self, x: Spec) -> Spec:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return x


def asked(op: Op, x: Spec) -> None:
    assert_type(op.infer(x, x), tuple[Spec, ...])
    assert_type(op.reference(np.ones(2), np.ones(2)), tuple[Array, ...])


asked(Scaled(2.0), Spec((2,), float32))
