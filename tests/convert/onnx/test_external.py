"""Tensors in other files: read where they may be, refused elsewhere."""

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lamina as lm
from lamina.convert import from_onnx
from lamina.convert.onnx import OnnxError
from lamina.convert.onnx.external import ExternalData

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def outside(folder: Path, **told: str) -> Path:
    """A model y = x + w in folder, whose w of 24 bytes is where it is told."""
    proto = TensorProto(name="w", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    for key, value in told.items():
        proto.external_data.add(key=key, value=value)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", 1, [2, 3])],
        [info("y", 1, [2, 3])],
        [proto],
    )
    path = folder / "net.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()
    )
    return path


def test_bytes_of_a_file_beside_the_model(tmp_path: Path) -> None:
    data = b"head" + W.tobytes() + b"tail"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(data)
    told = {
        "location": "sub/w.bin",
        "offset": "4",
        "length": "24",
        "checksum": hashlib.sha1(data).hexdigest(),
    }
    path = outside(tmp_path, **told)
    net = from_onnx(path)
    np.testing.assert_array_equal(net(lm.zeros((2, 3))).numpy(), W)
    np.testing.assert_array_equal(from_onnx(path.read_bytes(), folder=tmp_path).state_dict()["w"].numpy(), W)
    back = net.to_onnx()  # holds what lay elsewhere
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(back.graph.initializer[0]), W)
    with pytest.raises(OnnxError, match="tensor 'w' is kept in another file"):
        from_onnx(path.read_bytes())


def test_the_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(W.tobytes())
    os.symlink(tmp_path / "secret", folder / "link")
    os.symlink(folder / "loop", folder / "loop")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    refused = {
        "../secret": "within the model's folder", "a/../../secret": "within the model's folder",
        str(tmp_path / "secret"): "within the model's folder", "C:\\secret": "within the model's folder",
        "..\\secret": "within the model's folder", "": "within the model's folder",
        "a\0b": "within the model's folder",
        "link": "leads out of", "loop": "cannot be read", "gone": "cannot be read", "fifo": "no regular file",
        "folder": "no regular file",
    }  # fmt: skip
    for location, text in refused.items():
        with pytest.raises(OnnxError, match=rf"external data of tensor 'w': .*{text}"):
            from_onnx(outside(folder, location=location))


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"offset": "8"}, "bytes 8 to 32 of .*, which has 24"),
        ({"offset": "-1"}, "offset must be a number of bytes"),
        ({"offset": "9" * 30}, "offset must be a number of bytes"),
        ({"length": "23"}, r"\[2, 3\] needs 24 bytes, it names 23"),
        ({"length": "99999999999"}, "needs 24 bytes, it names 99999999999"),
        ({"checksum": "00"}, "was changed: its SHA-1 is not '00'"),
        ({"key": "value"}, r"unknown entries \['key'\]"),
    ],
)
def test_places_outside_of_the_file_are_refused(tmp_path: Path, told: dict[str, str], text: str) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(OnnxError, match=text):
        from_onnx(outside(tmp_path, location="w.bin", **told))


def test_an_empty_file_holds_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "w.bin").touch()
    proto = TensorProto(name="w")
    proto.external_data.add(key="location", value="w.bin")
    assert bytes(ExternalData(tmp_path)(proto, 0)) == b""
