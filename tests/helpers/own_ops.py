"""The ops of `examples/08_own_op.py`, and ops with a Python function for devices."""

import runpy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lamina.ops.core import REGISTRY, Sample
from lamina.ops.custom import CustomOp
from lamina.spec import Spec
from tests.helpers import ROOT


@contextmanager
def unregistered() -> Iterator[None]:
    """Op classes defined within are removed from the registry afterwards: tests of all ops do not include them."""
    before = dict(REGISTRY)
    try:
        yield
    finally:
        REGISTRY.clear()
        REGISTRY.update(before)


@cache
def example() -> dict[str, Any]:
    """The names of the example."""
    with unregistered():
        return runpy.run_path(str(ROOT / "examples" / "08_own_op.py"), run_name="own_op")


with unregistered():

    @dataclass(frozen=True)
    class RowMax(CustomOp):
        """The largest element of each row and its index, by a Python function; the gradient goes there."""

        def infer(self, x: Spec) -> tuple[Spec, ...]:
            self.check_float(x)
            return Spec(x.shape[:1], x.dtype), x.open

        def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
            return (outputs[1] * grads[0].unsqueeze(1),)

        def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
            return x.max(1), (x == x.max(1, keepdims=True)).astype(x.dtype)

        def run(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
            (x,), (most, where) = inputs, outputs
            CALLS.append(type(x))
            np.max(x, 1, out=most)
            where[...] = x == most[:, None]

        @classmethod
        def samples(cls) -> Iterator[Sample]:
            for shape in [(1, 1), (2, 3), (5, 4), (3, 1), (2, 9)]:
                yield Sample.of(cls(), shape)


#: The kinds of arrays passed to `RowMax.run`.
CALLS: list[type] = []
