"""What a model consists of, told without running it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lamina.convert import contents_of_onnx
from lamina.convert.onnx import OnnxError


def written(tmp_path: Path) -> Path:
    """A model with a free size, an operator without a handler, a branch, a sequence and a tensor of 4 bits."""
    info, make = helper.make_tensor_value_info, helper.make_node
    branch = helper.make_graph([make("Neg", ["x"], ["b"])], "b", [], [info("b", TensorProto.FLOAT, None)])
    nodes = [
        make("Frobnicate", ["x"], ["h"]), make("If", ["c"], ["k"], then_branch=branch, else_branch=branch),
        make("Add", ["h", "k"], ["y"]), make("SequenceConstruct", ["y"], ["s"]),
    ]  # fmt: skip
    inputs = [
        info("x", TensorProto.FLOAT, ["batch", 3, None]), info("c", TensorProto.BOOL, []), info("w", 1, [2])
    ]  # fmt: skip
    outputs = [
        info("y", TensorProto.FLOAT, None),
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
    ]
    held = [
        numpy_helper.from_array(np.ones(2, np.float32), "w"),
        helper.make_tensor("q", TensorProto.INT4, [3], [1, 2, 3]),
    ]
    graph = helper.make_graph(nodes, "net", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_values_tensors_operators_and_versions(tmp_path: Path) -> None:
    found = contents_of_onnx(written(tmp_path))
    assert found.inputs == {"x": "float [batch, 3, ?]", "c": "bool []"}
    assert found.outputs == {"y": "float", "s": "sequence"}
    assert found.tensors == {"w": ("float", (2,)), "q": ("int4", (3,))}
    assert found.operators == {"Neg": 2, "Frobnicate": 1, "If": 1, "Add": 1, "SequenceConstruct": 1}
    assert found.unknown == {"Frobnicate"}
    assert found.opsets == {"ai.onnx": 21}


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"hello")
    with pytest.raises(OnnxError, match="not an ONNX model"):
        contents_of_onnx(tmp_path / "net.onnx")
