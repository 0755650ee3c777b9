"""lamina export: a model that onnxruntime runs, of the weights that were given."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from lamina import nn, ops
from lamina.cli import main
from lamina.files import save_safetensors, save_torch
from lamina.infer import load

pytestmark = pytest.mark.feature("B026")


def test_a_network_with_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, target = nn.LeNet(1, 10).eval(), tmp_path / "lenet.onnx"
    save_safetensors(net.state_dict(), tmp_path / "lenet.safetensors")
    assert main(["export", "lenet", str(target), "--weights", str(tmp_path / "lenet.safetensors")]) == 0
    assert "operators of opset 20" in capsys.readouterr().out
    x = np.random.default_rng(0).standard_normal((3, 1, 28, 28)).astype(np.float32)
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"images": x})[0], net(ops.operand(x)).numpy(), atol=1e-5)


def test_a_fixed_batch_and_size(tmp_path: Path) -> None:
    target = tmp_path / "net.onnx"
    words = [
        "export",
        "mobilenet-v2",
        str(target),
        "--fixed-batch",
        "--batch-size",
        "1",
        "--size",
        "64",
        "--no-check",
    ]
    assert main([*words, "--opset", "17"]) == 0
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [1, 3, 64, 64]


def test_what_cannot_be_written_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "lenet", str(tmp_path / "net.onnx"), "--opset", "30"]) == 1
    assert "opset must be 17 to 23, got 30" in capsys.readouterr().err
    assert main(["export", "lenet", str(tmp_path / "none" / "net.onnx")]) == 1


@pytest.mark.feature("F113")
def test_a_saved_plan_of_pytorchs_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, target = nn.LeNet(1, 10).eval(), tmp_path / "lenet.plan"
    save_torch(net, tmp_path / "lenet.pt")
    words = ["export", "lenet", str(target), "--weights", str(tmp_path / "lenet.pt"), "--device", "cpu"]
    assert main([*words, "--batch-size", "1"]) == 0
    assert capsys.readouterr().out.startswith("lenet: a plan for 1 images of 28x28 on cpu, ")
    x = np.random.default_rng(0).standard_normal((1, 1, 28, 28)).astype(np.float32)
    with load(target) as plan:
        np.testing.assert_allclose(plan(x), net(ops.operand(x)).numpy(), atol=1e-5)
    assert main(["export", "lenet", str(tmp_path / "lenet.net")]) == 1
    assert "OUT: 'lenet.net' ends in none of .onnx, .plan" in capsys.readouterr().err
