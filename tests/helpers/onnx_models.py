"""Small ONNX models for tests, and the samples of ONNX's own node tests by module of handlers."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from lamina import jit
from lamina.convert.onnx import HANDLERS, OnnxGraph, from_onnx
from tests.judges import onnx_nodes

#: How many of an operator's node tests the quick suite runs; the judge's table contains all of them.
EACH = 2


def node_tests(module: ModuleType) -> list[str]:
    """The first direct tests of each operator handled by the module, among those that agree by the table."""
    mine = {name for (_, name), handler in HANDLERS.items() if handler.__module__ == module.__name__}
    return [name for kind, names in onnx_nodes.agreeing().items() if kind in mine for name in names[:EACH]]


def agrees(name: str) -> None:
    """Check that one of ONNX's node tests agrees."""
    verdict, text = onnx_nodes.compare(onnx_nodes.cases()[name])
    assert (verdict, text) == ("agree", "")


def model(
    nodes: Sequence[Any], inputs: Any, outputs: Any, opset: int = 22, **weights: Any
) -> onnx.ModelProto:
    """A model of nodes; inputs and outputs by name with their shapes (or (dtype, shape)), weights as arrays."""
    graph = helper.make_graph(
        list(nodes),
        "net",
        [_info(n, s) for n, s in inputs.items()],
        [_info(n, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def single(operator: str, inputs: Any, count: int = 1, opset: int = 22, **attributes: Any) -> OnnxGraph:
    """The graph of one node over named inputs, with outputs y0, y1, …"""
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(operator, list(inputs), outputs, **attributes)
    return OnnxGraph(model([node], inputs, dict.fromkeys(outputs, ()), opset))


def _info(name: str, shape: Any) -> Any:
    kind = TensorProto.FLOAT
    if len(shape) == 2 and isinstance(shape[1], tuple):
        kind, shape = shape
    return helper.make_tensor_value_info(name, kind, list(shape))


def contributed(
    operator: str,
    inputs: Sequence[Any],
    outputs: Sequence[str] = ("y",),
    *,
    held: Sequence[int] = (),
    domain: str = "com.microsoft",
    model_opset: int = 20,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A model of one operator of ONNX Runtime's, and its inputs by name.

    inputs: arrays, None for an omitted one; those whose positions are in `held` are initializers. outputs: their
    names, "" for an omitted one.
    """
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(operator, names, list(outputs), domain=domain, **attributes)
    given = {n: x for i, (n, x) in enumerate(zip(names, inputs, strict=True)) if n and i not in held}
    weights = [
        numpy_helper.from_array(x, n) for n, x in zip(names, inputs, strict=True) if n and n not in given
    ]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in given.items()
    ]
    made = [onnx.ValueInfoProto(name=n) for n in outputs if n]
    imports = [helper.make_opsetid("", model_opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "net", infos, made, weights)
    return helper.make_model(graph, opset_imports=imports, ir_version=10), given


def beside_onnxruntime(
    operator: str, inputs: Sequence[Any], *args: Any, tol: float = 1e-5, **more: Any
) -> None:
    """Compare an operator of `contributed` with onnxruntime, op by op and compiled.

    Without VNNI onnxruntime adds pairs of 8-bit products in 16 bits, where they saturate. Here it is told not to,
    which its convolutions, and products whose zero points are inputs, do not heed.
    """
    proto, given = contributed(operator, inputs, *args, **more)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, given)
    net = from_onnx(proto).eval()
    for run in (net, jit(net)) if given else (net,):
        found = run(*given.values())
        for mine, theirs in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            assert mine.dtype.numpy == theirs.dtype
            scale = max(1.0, float(np.abs(theirs.astype(np.float64)).max(initial=0)))
            np.testing.assert_allclose(mine.numpy() / scale, theirs / scale, rtol=0, atol=tol)
