"""The same ops on traced values give values; where one is traced, the result is."""

from typing import assert_type

import lamina as lm
from lamina import Tensor, graph, ops
from lamina.graph import Graph, Value


def program(x: Value, y: Value) -> tuple[Value, Value]:
    assert_type(ops.relu(x), Value)
    assert_type(ops.add(x, 1), Value)
    assert_type(ops.add(lm.ones(3), x), Value)
    assert_type(ops.stack([x, y]), Value)
    assert_type(x + lm.ones(3), Value)
    assert_type(lm.ones(3) + x, Value)
    assert_type(x.reshape(-1).mean(), Value)
    assert_type(x[0], Value)
    assert_type(graph.gradients(x.sum(), [x]), list[Value])
    return x * y, x


assert_type(lm.trace(program, lm.ones(3), lm.ones(3)), Graph)


def either(x: Tensor | Value) -> None:
    assert_type(ops.relu(x), Tensor | Value)
