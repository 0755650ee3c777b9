"""lamina info FILE: what an ONNX model holds."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from lamina.cli import main
from tests.helpers.onnx_models import model

pytestmark = pytest.mark.feature("B026")


def test_values_tensors_and_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Frobnicate", ["h"], ["y"])]
    proto = model(nodes, {"x": ("rows", 4)}, {"y": ("rows", 3)}, opset=20, w=np.ones((4, 3), np.float32))
    onnx.save(proto, tmp_path / "net.onnx")
    assert main(["info", str(tmp_path / "net.onnx")]) == 0
    out = capsys.readouterr().out
    assert "input x: float [rows, 4]" in out
    assert "output y: float [rows, 3]" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["w", "float", "4", "3"] in rows
    assert ["MatMul", "1"] in rows
    assert ["Frobnicate", "1", "without", "a", "handler"] in rows
    assert "net.onnx: ONNX (ai.onnx 20), 2 nodes, 1 tensors" in out


def test_what_is_no_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(b"hello")
    assert main(["info", str(tmp_path / "net.onnx")]) == 1
    assert "net.onnx: not an ONNX model" in capsys.readouterr().err
