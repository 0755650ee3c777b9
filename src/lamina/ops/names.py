"""Other names of the functions: torch's aliases, and what other libraries call them."""

from __future__ import annotations

#: Aliases that torch documents for a function: each is that function, and also a method where the function is one.
ALIASES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "clip": "clamp", "concat": "cat", "concatenate": "cat", "divide": "div",
    "fix": "trunc", "ger": "outer", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "moveaxis": "movedim", "multiply": "mul", "negative": "neg", "not_equal": "ne", "row_stack": "vstack",
    "subtract": "sub", "swapdims": "swapaxes", "trapz": "trapezoid", "unsafe_chunk": "chunk", "unsafe_split": "split",
    "unsafe_split_with_sizes": "split_with_sizes", "upsample": "interpolate",
}  # fmt: skip

#: Names from other libraries or earlier versions of this one, and the names in torch and here.
RENAMED = {
    "power": "pow",
    "max_and_argmax": "max(input, dim), which gives values and indices",
    "reduce": "sum, mean, prod, amax, amin, norm1, norm2, abs_max or mul_no_zeros",
    "chain_matmul": "linalg.multi_dot(matrices)",
    **{
        name: f"lamina.{name}"
        for name in ("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "zeros")
    },
    "expand_dims": "unsqueeze",
    "histogram": "histc, which counts between min and max",
    "multi_head_attention_forward": "nn.MultiheadAttention, or scaled_dot_product_attention of what is projected",
    "tensor": "lamina.tensor",
    **dict.fromkeys(
        ("complex", "conj", "imag", "polar", "real", "view_as_complex", "view_as_real"),
        "a last axis of two: a complex number is one here, as lamina.fft has it",
    ),
}
