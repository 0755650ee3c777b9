"""Precision as one argument: the compute type of a network, and what is kept in float32 beside it."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.spec.dtype import DType, bfloat16, float16, float32, float64


@dataclass(frozen=True)
class Precision:
    """master: the type of parameters and optimizer state. compute: the type of activations and gradients.

    tf32: float32 products may round their inputs to TF32. scaled: the loss is multiplied by a factor, so that
        small float16 gradients do not vanish.
    """

    name: str
    master: DType
    compute: DType
    tf32: bool = False
    scaled: bool = False

    def __str__(self) -> str:
        return self.name


PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp64", float64, float64),
        Precision("fp32", float32, float32),
        Precision("tf32", float32, float32, tf32=True),
        Precision("bf16", float32, bfloat16),
        Precision("fp16", float32, float16, scaled=True),
    )
}


def as_precision(value: str | Precision) -> Precision:
    """The precision of this name. Raises ValueError that lists the known ones."""
    if isinstance(value, Precision):
        return value
    if value not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {value!r}")
    return PRECISIONS[value]
