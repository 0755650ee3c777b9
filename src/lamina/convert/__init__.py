"""Floor 6: networks of other libraries are imported as networks and graphs of Lamina's ops, and Lamina's exported."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing

if TYPE_CHECKING:
    from lamina.convert.names import hugging_face_names, timm_names
    from lamina.convert.onnx import OnnxModule, from_onnx
    from lamina.convert.onnx.contents import OnnxContents, contents_of_onnx
    from lamina.convert.onnx.export import CheckError, ExportError, to_onnx
    from lamina.convert.onnx.keeping import load_onnx, onnx_of_weights, save_onnx, texts_of_onnx
    from lamina.convert.torch import (
        ConversionReport,
        ConvertedModule,
        Parity,
        TorchConversionError,
        check,
        explain,
        from_torch,
        to_torch,
    )

#: From `lamina.convert.torch`, which needs PyTorch.
_TORCH = (
    "ConvertedModule",
    "Parity",
    "ConversionReport",
    "TorchConversionError",
    "check",
    "explain",
    "from_torch",
    "to_torch",
)

__all__ = [
    "CheckError",
    "ConversionReport",
    "ConvertedModule",
    "ExportError",
    "OnnxContents",
    "OnnxModule",
    "Parity",
    "TorchConversionError",
    "check",
    "contents_of_onnx",
    "explain",
    "from_onnx",
    "from_torch",
    "hugging_face_names",
    "load_onnx",
    "onnx_of_weights",
    "save_onnx",
    "texts_of_onnx",
    "timm_names",
    "to_onnx",
    "to_torch",
]  # fmt: skip
__getattr__ = lazy(
    __name__,
    {
        "CheckError": "lamina.convert.onnx.export.check",
        "ExportError": "lamina.convert.onnx.export.writer",
        "OnnxContents": "lamina.convert.onnx.contents",
        "OnnxModule": "lamina.convert.onnx.module",
        "contents_of_onnx": "lamina.convert.onnx.contents",
        "from_onnx": "lamina.convert.onnx.module",
        "hugging_face_names": "lamina.convert.names",
        "load_onnx": "lamina.convert.onnx.keeping",
        "onnx_of_weights": "lamina.convert.onnx.keeping",
        "save_onnx": "lamina.convert.onnx.keeping",
        "texts_of_onnx": "lamina.convert.onnx.keeping",
        "timm_names": "lamina.convert.names",
        "to_onnx": "lamina.convert.onnx.export",
    }
    | dict.fromkeys(_TORCH, "lamina.convert.torch"),
)
__dir__ = listing(__all__)
