"""Lamina: cuDNN for Python, from the C call to the trained network.

This is the public list. Whoever wants one layer alone imports it: `lamina.c.cudnn` (the C API, name for name),
`lamina.cudnn` (its descriptors as objects), `lamina.runtime` (devices, streams, memory, kernels), `lamina.ops`,
`lamina.graph`, `lamina.nn`, `lamina.optim`, `lamina.data`, `lamina.train`, `lamina.infer`.
"""

from typing import TYPE_CHECKING

from lamina import array_api, data, graph, infer, nn, ops, optim, runtime, spec, train
from lamina._lazy import lazy, listing
from lamina.files import load_safetensors, save_safetensors
from lamina.graph import compile, grad, gradients, trace, value_and_grad
from lamina.jitting import jit
from lamina.nn import manual_seed
from lamina.runtime import Device, device, devices
from lamina.spec import (
    DType,
    DTypeError,
    Policy,
    ShapeError,
    Spec,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    policy,
    uint8,
)
from lamina.tensors import Tensor, empty, from_dlpack, full, ones, tensor, zeros
from lamina.train import evaluate, train_step

if TYPE_CHECKING:
    from lamina.train import fit

__version__ = "0.1.0"

__all__ = [
    "DType",
    "DTypeError",
    "Device",
    "Policy",
    "ShapeError",
    "Spec",
    "Tensor",
    "__version__",
    "array_api",
    "bfloat16",
    "bool_",
    "compile",
    "data",
    "device",
    "devices",
    "empty",
    "evaluate",
    "fit",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "full",
    "grad",
    "gradients",
    "graph",
    "infer",
    "int8",
    "int16",
    "int32",
    "int64",
    "jit",
    "load_safetensors",
    "manual_seed",
    "nn",
    "ones",
    "ops",
    "optim",
    "policy",
    "runtime",
    "save_safetensors",
    "spec",
    "tensor",
    "trace",
    "train",
    "train_step",
    "uint8",
    "value_and_grad",
    "zeros",
]
__dir__ = listing(__all__)

__getattr__ = lazy(__name__, {"fit": "lamina.train"})
