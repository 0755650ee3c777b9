"""check_op: what is right passes, and each kind of fault is named."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lamina.graph import OpCheckError, check_op
from lamina.ops.core import Sample
from lamina.ops.custom import CustomOp
from lamina.ops.primitives import Conv, CrossEntropy, Div, Log, Softmax
from lamina.spec import Spec, float32, float64
from tests.helpers.own_ops import RowMax, example


@pytest.mark.parametrize(
    "op", [example()["Snake"], example()["Distances"], RowMax, Softmax, Conv, CrossEntropy, Div, Log]
)
def test_what_is_right_passes(op: type[Any]) -> None:
    assert check_op(op) > 5


@dataclass(frozen=True)
class _Square(CustomOp):
    """x^2, with a fault."""

    fault: str = ""
    elementwise = True
    dtypes = (float32, float64)

    def infer(self, x: Spec) -> tuple[Spec]:
        return (x.open,)

    def vjp(self, grads: Any, inputs: Any, outputs: Any) -> Any:
        return (grads[0] * inputs[0] * (3 if self.fault == "gradient" else 2),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x * x,)

    def run(self, inputs: Any, outputs: Any, stream: int) -> None:
        outputs[0][...] = inputs[0] ** (3 if self.fault == "values" else 2)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample.of(cls(), (3,))


def faulty(fault: str) -> type[_Square]:
    @dataclass(frozen=True)
    class _Faulty(_Square):
        @classmethod
        def samples(cls) -> Iterator[Sample]:
            if fault != "none":
                yield Sample.of(cls(fault), (2, 3))

    return _Faulty


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("values", r"\[2,3\] in float32 on cpu: output 0 is .* away from reference"),
        (
            "gradient",
            "the gradient in input 0 along a direction is .* by vjp, and .* by differences of reference",
        ),
    ],
)
def test_faults_are_named(fault: str, text: str) -> None:
    assert check_op(_Square) == 3
    with pytest.raises(OpCheckError, match=text):
        check_op(faulty(fault))


def test_a_class_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="check_op: _Faulty.samples gives nothing to check"):
        check_op(faulty("none"))
