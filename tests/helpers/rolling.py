"""A program of only copies, which the driver in software can run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina import nn
from lamina.ops.core import Sample, call
from lamina.ops.custom import CustomOp
from lamina.runtime import copy
from lamina.spec import Spec
from lamina.tensors import as_tensor

#: More kernels than in a short program.
TURNS = 6


@dataclass(frozen=True)
class RollRows(CustomOp):
    """The rows of x, the last one first."""

    differentiable = False

    def infer(self, x: Spec) -> tuple[Spec]:
        """As x."""
        return (x.open,)

    def reference(self, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any]]:
        """np.roll."""
        return (np.roll(x, 1, 0),)

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        """Two copies."""
        x, y = as_tensor(inputs[0]), as_tensor(outputs[0])
        row, whole = x.nbytes // x.shape[0], x.nbytes
        where = stream if x.device.kind == "cuda" else None
        copy(y.buffer.view(0, row), x.buffer.view(whole - row, row), stream=where)
        copy(y.buffer.view(row, whole - row), x.buffer.view(0, whole - row), stream=where)

    @classmethod
    def samples(cls) -> Any:
        """Some rows."""
        yield Sample.of(cls(), (3, 2))


def rolled(x: Any, turns: int = TURNS) -> Any:
    """x with its rows shifted down by this many positions."""
    for _ in range(turns):
        x = call(RollRows(), x)
    return x


class Rolling(nn.Module):
    """A network that does so."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = TURNS

    def forward(self, x: Any) -> Any:
        """As `rolled`."""
        return rolled(x, self.turns)
