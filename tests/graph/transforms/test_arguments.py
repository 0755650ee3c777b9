"""What functions are differentiated in."""

import numpy as np

import lamina as lm
from lamina import nn, ops
from lamina.graph.ir.graph import EagerTape
from lamina.graph.transforms.arguments import Variables, is_nested, tensors
from lamina.ops.core import recording


def test_each_array_and_each_parameter_has_a_value_of_its_own() -> None:
    net = nn.Linear(2, 3)
    x = lm.ones(2)
    with recording(EagerTape()):
        own = Variables({"net": net, "x": [x, x, None], "numbers": [1.0, 2.0]}, "grad", "args[0]")
    assert len(own.values) == len({*own.values}) == 5
    assert own.tree["net"] is net
    found = own.unflatten("abcde")
    assert found == {"net": {"weight": "a", "bias": "b"}, "x": ["c", "d", None], "numbers": "e"}


def test_within_a_trace_it_is_nested_and_stays_a_value() -> None:
    seen = []

    def f(x: lm.graph.Value) -> lm.graph.Value:
        seen.append((is_nested({"x": [x]}), is_nested(np.ones(2)), tensors(x) is x))
        return ops.neg(x)

    lm.trace(f, np.ones(2))
    lm.jit(f)(np.ones(2))
    assert seen == [(True, False, True), (True, True, True)]
