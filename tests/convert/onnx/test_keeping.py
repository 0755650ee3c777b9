"""Networks of ONNX models in safetensors files: kept, read again, refused when damaged."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import lamina as lm
from lamina.convert import from_onnx, load_onnx, onnx_of_weights, save_onnx, texts_of_onnx
from lamina.convert.onnx import OnnxError
from lamina.files import WeightsError
from tests.helpers.onnx_models import model

W = np.arange(4, dtype=np.float32)


def network() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "a.w"], ["m"]), helper.make_node("Mul", ["m", "a..w"], ["n"]),
        helper.make_node("Reshape", ["n", "to"], ["y"]),
    ]  # fmt: skip
    weights = {"a.w": W, "a..w": W + 1, "to": np.array([2, 2])}
    return model(nodes, {"x": (4,)}, {"y": (2, 2)}, **weights)


def test_what_is_kept_is_read_again_and_goes_back_bit_by_bit(tmp_path: Path) -> None:
    net = from_onnx(network(), trainable=lambda name, x: name == "a.w", train_batch_norm=True)
    net.load_state_dict({"a.w": W * 3})
    save_onnx(net, tmp_path / "n.safetensors")
    back = load_onnx(tmp_path / "n.safetensors")
    assert list(back.state_dict()) == ["a.w"]
    assert back.train_batch_norm
    assert back.to_onnx() == net.to_onnx()
    np.testing.assert_array_equal(back(lm.tensor(W)).numpy().reshape(-1), W * W * 3 * (W + 1))


def test_names_that_are_none_of_python_find_their_tensors(tmp_path: Path) -> None:
    net = from_onnx(network())
    assert net.names == {"a.w": "a.w", "a._.w": "a..w"}
    save_onnx(net, tmp_path / "n.safetensors")
    assert load_onnx(tmp_path / "n.safetensors").to_onnx() == net.to_onnx()


@pytest.mark.feature("B042")
def test_what_is_no_such_file_or_was_changed_is_refused(tmp_path: Path) -> None:
    net = from_onnx(network())
    held, texts = dict(net.state_dict()), texts_of_onnx(net)
    changed = [
        ({}, "holds no ONNX model"), ({**texts, "onnx": "?"}, "not a sound network"),
        ({**texts, "onnx": ""}, "not an ONNX model"), ({**texts, "names": "3"}, "not a sound network"),
        ({**texts, "names": json.dumps({"gone": "a.w"})}, "not a sound network: KeyError"),
        ({**texts, "names": "[" * 100000}, "not a sound network"),
    ]  # fmt: skip
    for said, text in changed:
        with pytest.raises(OnnxError, match=text):
            onnx_of_weights(held, said, "n.safetensors")
    with pytest.raises(OnnxError, match=r"tensor 'a.w' is f32\[2\], the model has \[4\]"):
        onnx_of_weights({**held, "a.w": W[:2]}, texts, "n.safetensors")
    path = tmp_path / "n.safetensors"
    save_onnx(net, path)
    path.write_bytes(path.read_bytes().replace(W.tobytes(), (W + 1).tobytes(), 1))
    with pytest.raises(WeightsError, match="was changed after it was written"):
        load_onnx(path)
