"""Reading models from files, bytes or memory, with validation."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from lamina.convert.onnx.body import domain
from lamina.convert.onnx.external import ExternalData
from lamina.convert.onnx.node import OnnxError
from lamina.convert.onnx.proto import External
from lamina.ops.arguments import shown

#: The newest supported versions of the format and of the operator sets.
IR_VERSION, OPSET = 14, 28

#: A path, a file's content, or a model that was already parsed.
Source = str | Path | bytes | bytearray | memoryview | onnx.ModelProto


def read_model(source: Source, folder: str | Path | None = None) -> tuple[onnx.ModelProto, External | None]:
    """(the model, the reader of its external tensors): from a path, a file's bytes, or a copy of a model.

    folder: the folder of external tensors; by default the model file's, none for bytes.
    Raises OnnxError for invalid or too new models, OSError for a file that cannot be read, TypeError for
    a source of another kind.
    """
    if isinstance(source, onnx.ModelProto):
        model, name = onnx.ModelProto(), "the model"
        model.CopyFrom(source)
    elif isinstance(source, (str, Path)):
        path = Path(source)
        model, name = _parsed(path.read_bytes(), str(path)), str(path)
        folder = path.parent if folder is None else folder
    elif isinstance(source, (bytes, bytearray, memoryview)):
        model, name = _parsed(bytes(source), "the model"), "the model"
    else:
        raise TypeError(f"source must be a path, a file's bytes or an onnx.ModelProto, got {shown(source)}")
    _check_versions(model, name)
    return model, None if folder is None else ExternalData(folder)


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise OnnxError(f"{name}: not an ONNX model: {error}") from error
    return model


def _check_versions(model: onnx.ModelProto, name: str) -> None:
    if not model.HasField("graph") or not model.graph.output:
        raise OnnxError(f"{name}: not an ONNX model: it has no graph with outputs")
    if not 0 <= model.ir_version <= IR_VERSION:
        raise OnnxError(f"{name}: the format is of version {model.ir_version}; up to {IR_VERSION} are read")
    for opset in model.opset_import:
        if not domain(opset.domain) and not 1 <= opset.version <= OPSET:
            raise OnnxError(f"{name}: the operators are of opset {opset.version}; 1 to {OPSET} are read")
