"""How a training step treats gradients."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.distributed.data_parallel import DataParallel
from lamina.distributed.shards import Shards
from lamina.train.averaging import AveragedModel


@dataclass(frozen=True)
class Options:
    """How a step treats gradients; see `train_step`."""

    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    averaged: AveragedModel | None = None
    keep_grads: bool = False
    parallel: DataParallel | None = None
    shard_optimizer: bool = False

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"train_step: {name} must be positive, got {value}")
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ValueError(f"train_step: accumulate must be an int of at least 1, got {self.accumulate!r}")

    @property
    def shards(self) -> Shards | None:
        """How the ranks share the optimizer's state; None where each holds all of it."""
        return self.parallel.shards if self.parallel is not None and self.shard_optimizer else None

    @property
    def keeps_errors(self) -> bool:
        """Whether gradients are communicated in a half type with error feedback (rounding errors are kept)."""
        return self.parallel is not None and self.parallel.keeps_errors
