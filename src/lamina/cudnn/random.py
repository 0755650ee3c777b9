"""Random numbers made inside a graph (Philox): for dropout masks and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, named
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class Rng(Descriptor):
    """A distribution (CUDNN_BACKEND_RNG_DESCRIPTOR).

    Args:
        distribution: "bernoulli", "uniform", "normal".
        probability: of a one, for "bernoulli".
        minimum, maximum: for "uniform".
        mean, deviation: for "normal".
    """

    kind = _KIND.CUDNN_BACKEND_RNG_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "distribution": attribute("RNG_DISTRIBUTION", "RNG_DISTRIBUTION", enum=c.cudnnRngDistribution_t),
        "mean": attribute("RNG_NORMAL_DIST_MEAN", "DOUBLE"),
        "deviation": attribute("RNG_NORMAL_DIST_STANDARD_DEVIATION", "DOUBLE"),
        "maximum": attribute("RNG_UNIFORM_DIST_MAXIMUM", "DOUBLE"),
        "minimum": attribute("RNG_UNIFORM_DIST_MINIMUM", "DOUBLE"),
        "probability": attribute("RNG_BERNOULLI_DIST_PROBABILITY", "DOUBLE"),
    }

    def __init__(
        self,
        distribution: str | int,
        *,
        probability: float | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        mean: float | None = None,
        deviation: float | None = None,
    ) -> None:
        kind = named(c.cudnnRngDistribution_t, "CUDNN_RNG_DISTRIBUTION_", distribution, "distribution")
        super().__init__(
            distribution=kind,
            mean=mean,
            deviation=deviation,
            maximum=maximum,
            minimum=minimum,
            probability=probability,
        )


class RngOperation(Descriptor):
    """y = random numbers (CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR).

    Args:
        seed: a number, or an int32 or int64 tensor of one element.
        offset: a tensor of one element: where in the stream of numbers to begin.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "rng": attribute("OPERATION_RNG_DESC", "BACKEND_DESCRIPTOR", takes="RNG"),
        "y": attribute("OPERATION_RNG_YDESC", "BACKEND_DESCRIPTOR"),
        "seed": attribute("OPERATION_RNG_SEED"),
        "offset": attribute("OPERATION_RNG_OFFSET_DESC", "BACKEND_DESCRIPTOR"),
    }

    def __init__(self, rng: Rng, y: Tensor, seed: int | Tensor, *, offset: Tensor | None = None) -> None:
        super().__init__(rng=rng, y=y, seed=seed, offset=offset)

    def _set(self, name: str, value: Any, type: int | None = None) -> None:
        if name == "seed" and isinstance(value, Tensor):
            type = c.cudnnBackendAttributeType_t.CUDNN_TYPE_BACKEND_DESCRIPTOR
        super()._set(name, value, type)
