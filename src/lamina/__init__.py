"""Lamina: cuDNN for Python, from the C call to the trained network.

This is the public list. Whoever wants one layer alone imports it: `lamina.c.cudnn` (the C API, name for name),
`lamina.cudnn` (its descriptors as objects), `lamina.runtime` (devices, streams, memory, kernels), `lamina.ops`,
`lamina.graph`, `lamina.nn`, `lamina.optim`, `lamina.data`, `lamina.train`, `lamina.infer`, `lamina.convert`.

Importing it costs little: what a name needs is imported when the name is first used.
"""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing
from lamina._version import __version__

if TYPE_CHECKING:
    from lamina import (
        array_api,
        convert,
        data,
        distributed,
        graph,
        infer,
        nn,
        ops,
        optim,
        runtime,
        simulate,
        spec,
        train,
    )
    from lamina.files import (
        load_safetensors,
        load_torch,
        load_weights,
        save_safetensors,
        save_torch,
        save_weights,
    )
    from lamina.graph import (
        checkpoint,
        compile,
        custom_vjp,
        grad,
        gradients,
        hvp,
        jvp,
        trace,
        value_and_grad,
        vjp,
        vmap,
    )
    from lamina.jitting import jit
    from lamina.nn import manual_seed
    from lamina.ops import stop_gradient
    from lamina.ops.finite import NonFiniteError
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
    from lamina.tensors import (
        Tensor,
        arange,
        empty,
        eye,
        from_dlpack,
        full,
        linspace,
        logspace,
        ones,
        tensor,
        tril_indices,
        triu_indices,
        zeros,
    )
    from lamina.train import evaluate, fit, predict, train_step

__all__ = [
    "DType",
    "DTypeError",
    "Device",
    "NonFiniteError",
    "Policy",
    "ShapeError",
    "Spec",
    "Tensor",
    "__version__",
    "arange",
    "are_deterministic_algorithms_enabled",
    "array_api",
    "bfloat16",
    "bool_",
    "checkpoint",
    "compile",
    "convert",
    "custom_vjp",
    "data",
    "device",
    "devices",
    "distributed",
    "empty",
    "evaluate",
    "eye",
    "fit",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "full",
    "grad",
    "gradients",
    "graph",
    "hvp",
    "infer",
    "int8",
    "int16",
    "int32",
    "int64",
    "jit",
    "jvp",
    "linspace",
    "load_safetensors",
    "load_torch",
    "load_weights",
    "logspace",
    "manual_seed",
    "nn",
    "ones",
    "ops",
    "optim",
    "policy",
    "predict",
    "runtime",
    "save_safetensors",
    "save_torch",
    "save_weights",
    "simulate",
    "spec",
    "stop_gradient",
    "tensor",
    "trace",
    "train",
    "train_step",
    "tril_indices",
    "triu_indices",
    "uint8",
    "use_deterministic_algorithms",
    "value_and_grad",
    "vjp",
    "vmap",
    "zeros",
]
__dir__ = listing(__all__)

#: Which names come from where.
_HOMES = {
    "lamina.files": (
        "load_safetensors",
        "load_torch",
        "load_weights",
        "save_safetensors",
        "save_torch",
        "save_weights",
    ),
    "lamina.graph": (
        "checkpoint",
        "compile",
        "custom_vjp",
        "grad",
        "gradients",
        "hvp",
        "jvp",
        "trace",
        "value_and_grad",
        "vjp",
        "vmap",
    ),
    "lamina.jitting": ("jit",),
    "lamina.nn": ("manual_seed",),
    "lamina.ops": ("stop_gradient",),
    "lamina.ops.finite": ("NonFiniteError",),
    "lamina.runtime": ("Device", "device", "devices"),
    "lamina.tensors": (
        "Tensor",
        "arange",
        "empty",
        "eye",
        "from_dlpack",
        "full",
        "linspace",
        "logspace",
        "ones",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
    ),
    "lamina.train": ("evaluate", "fit", "predict", "train_step"),
}
_PACKAGES = (
    "array_api",
    "convert",
    "data",
    "distributed",
    "graph",
    "infer",
    "nn",
    "ops",
    "optim",
    "runtime",
    "simulate",
    "spec",
    "train",
)
__getattr__ = lazy(
    __name__,
    dict.fromkeys(__all__, "lamina.spec")
    | {name: module for module, names in _HOMES.items() for name in names}
    | {name: f"lamina.{name}" for name in _PACKAGES},
)
