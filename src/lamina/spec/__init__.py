"""Floor 1, maths: dtypes, shapes, layouts, specs and policies. Knows nothing of devices."""

from lamina._lazy import listing
from lamina.spec.dtype import (
    DTYPES,
    FLOATS,
    DType,
    as_dtype,
    bfloat16,
    bool_,
    can_cast,
    finfo,
    float8_e4m3fn,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    uint8,
)
from lamina.spec.errors import DTypeError, OutsideError, ShapeError
from lamina.spec.group import Group
from lamina.spec.layout import Layout, channels_last, contiguous, dense, from_tag, pack, unpack
from lamina.spec.policies import (
    Policy,
    are_deterministic_algorithms_enabled,
    current_policy,
    policy,
    use_deterministic_algorithms,
)
from lamina.spec.precision import PRECISIONS, Precision, as_precision
from lamina.spec.shape import (
    Shape,
    as_shape,
    broadcast_shapes,
    element_count,
    normalize_axes,
    normalize_axis,
)
from lamina.spec.tensor import Spec

__all__ = [
    "DTYPES",
    "FLOATS",
    "PRECISIONS",
    "DType",
    "DTypeError",
    "Group",
    "Layout",
    "OutsideError",
    "Policy",
    "Precision",
    "Shape",
    "ShapeError",
    "Spec",
    "are_deterministic_algorithms_enabled",
    "as_dtype",
    "as_precision",
    "as_shape",
    "bfloat16",
    "bool_",
    "broadcast_shapes",
    "can_cast",
    "channels_last",
    "contiguous",
    "current_policy",
    "dense",
    "element_count",
    "finfo",
    "float8_e4m3fn",
    "float16",
    "float32",
    "float64",
    "from_tag",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "normalize_axes",
    "normalize_axis",
    "pack",
    "policy",
    "promote_types",
    "uint8",
    "unpack",
    "use_deterministic_algorithms",
]
__dir__ = listing(__all__)
