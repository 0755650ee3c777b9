"""Networks of ONNX models in safetensors files: the weights by name, and the model without them in the header.

Any reader of safetensors finds the weights under the names of `state_dict`; the file's header holds the model, its
constants included, and the mapping of its tensors. Digests are checked when it is read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from lamina.convert.onnx.module import OnnxModule
from lamina.convert.onnx.node import OnnxError
from lamina.convert.onnx.reading import read_model
from lamina.files import read_safetensors, save_safetensors
from lamina.tensors import as_tensor

FORMAT = "lamina-onnx-1"


def save_onnx(net: OnnxModule, path: str | Path) -> None:
    """Write a network of an ONNX model, with its current weights, to a safetensors file. Raises OSError."""
    save_safetensors(net, path, texts_of_onnx(net))


def load_onnx(path: str | Path) -> OnnxModule:
    """Read a file of `save_onnx`. Raises OnnxError or WeightsError for other files, OSError if it cannot be read."""
    tensors, texts = read_safetensors(path)
    return onnx_of_weights(tensors, texts, path)


def texts_of_onnx(net: OnnxModule) -> dict[str, str]:
    """The header entries beside the network's weights."""
    return {
        "format": FORMAT,
        "onnx": base64.b64encode(net.model.SerializeToString()).decode(),
        "names": json.dumps(net.names),
        "train_batch_norm": json.dumps(net.train_batch_norm),
    }


def onnx_of_weights(tensors: Mapping[str, Any], texts: Mapping[str, str], path: str | Path) -> OnnxModule:
    """The network of a file's tensors and texts; path: its name in errors. Raises OnnxError."""
    if texts.get("format") != FORMAT:
        raise OnnxError(f"{path}: holds no ONNX model: its format is {texts.get('format')!r}, not {FORMAT!r}")
    try:
        data, names = base64.b64decode(texts["onnx"], validate=True), json.loads(texts["names"])
        by_batch = bool(json.loads(texts["train_batch_norm"]))
        held = {str(name): tensors[key] for key, name in names.items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OnnxError(f"{path}: not a sound network: {type(error).__name__}: {error}") from error
    model, _ = read_model(data)
    for proto in model.graph.initializer:
        if proto.name in held:
            _fill(proto, held[proto.name], path)
    return OnnxModule(model, trainable=lambda name, x: name in held, train_batch_norm=by_batch)


def _fill(proto: onnx.TensorProto, value: Any, path: Any) -> None:
    """Set the values of one of the model's tensors."""
    found = as_tensor(value)
    if tuple(proto.dims) != found.shape:
        raise OnnxError(f"{path}: tensor {proto.name!r} is {found.spec}, the model has {list(proto.dims)}")
    proto.raw_data = found.numpy().tobytes()
