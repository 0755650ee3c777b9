"""Data parallel training: each rank has a replica of the network and a part of each batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from lamina import ops
from lamina.distributed.alike import check_alike
from lamina.distributed.collectives import BUCKET_BYTES, all_reduce, all_reduce_each, broadcast
from lamina.distributed.ranks import all_gather_object, group_rank, rank, world_group, world_size
from lamina.distributed.shards import Shards
from lamina.ops.primitives.random import part_of_batch
from lamina.runtime.ranks import common_world
from lamina.runtime.ranks.progress import group_name
from lamina.spec import Group, bfloat16
from lamina.tensors import Tensor


@dataclass(frozen=True)
class DataParallel:
    """How ranks train one network together; "data" as an argument is DataParallel().

    group: the ranks, by default all. bucket_bytes: gradients are sent in buckets of this size.
    compression: "bf16" sends gradients in bfloat16, and sums them in it. error_feedback: the rounding error of a
    rank's
        own gradient is kept in float32 and added to the next step's gradient (Seide et al. 2014). Without
        it nothing is kept, and in a step of precision "bf16", whose gradients are bfloat16 already, nothing is
        copied.
    equal_parts: whether all ranks' parts of a batch must have one size, that of the first axis if all inputs and
        targets share it: gradients of ranks have equal weight, regardless of their numbers of samples. False: parts
        may differ, for example if the first axis is no batch axis (points, words).
    """

    group: Group | None = None
    bucket_bytes: int = BUCKET_BYTES
    compression: Literal["bf16"] | None = None
    error_feedback: bool = True
    equal_parts: bool = True

    def __post_init__(self) -> None:
        if self.bucket_bytes < 1:
            raise ValueError(f"DataParallel: bucket_bytes must be at least 1, got {self.bucket_bytes}")
        if self.compression not in (None, "bf16"):
            raise ValueError(f"DataParallel: compression must be None or 'bf16', got {self.compression!r}")

    @property
    def keeps_errors(self) -> bool:
        """Whether rounding errors are part of the state."""
        return self.compression is not None and self.error_feedback

    @property
    def ranks(self) -> Group:
        """The group."""
        return world_group() if self.group is None else self.group

    @property
    def name(self) -> str:
        """The name of the group, the same on all of its ranks."""
        return group_name(self.ranks.ranks, world_size())

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.ranks.size

    @property
    def place(self) -> int:
        """This rank's index among them. Raises ValueError if it is not one of them."""
        found = group_rank(self.ranks)
        if found is None:
            raise ValueError(f"DataParallel: rank {rank()} is not among {self.ranks}")
        return found

    @property
    def shards(self) -> Shards:
        """How its ranks share tensors of which each keeps a shard."""
        return Shards(self.ranks, self.place, self.bucket_bytes)

    @contextmanager
    def own_part(self) -> Iterator[None]:
        """Within the block random ops draw for this rank's part of the batch."""
        with part_of_batch(self.place, self.size):
            yield

    def averages(
        self,
        grads: Sequence[Any],
        figures: Sequence[Any],
        errors: Sequence[Any] | None,
        *,
        in_shards: bool = False,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Means over the ranks of gradients and of other numbers, and the new errors of compression.

        errors: the rounding errors so far, if they are kept. in_shards: return this rank's shards of the
        gradients.
        """
        whole = [g + e for g, e in zip(grads, errors, strict=True)] if errors is not None else grads
        sent = [ops.cast(x, bfloat16) for x in whole] if self.compression is not None else whole
        if in_shards:
            arrived, others = self.shards.means(sent), self._means(figures)
        else:
            found = self._means([*sent, *figures])
            arrived, others = found[: len(sent)], found[len(sent) :]
        means = [ops.cast(m, x.dtype) for m, x in zip(arrived, whole, strict=True)]
        left = (
            [x - ops.cast(s, x.dtype) for x, s in zip(whole, sent, strict=True)] if errors is not None else []
        )
        return means, others, left

    def _means(self, values: Sequence[Any]) -> list[Any]:
        return all_reduce_each(values, "mean", group=self.ranks, bucket_bytes=self.bucket_bytes)

    def gather_objects(self, value: object) -> list[Any]:
        """Each rank's value."""
        return all_gather_object(value, self.ranks)

    def check_alike(self, what: str, lines: Sequence[tuple[str, str]]) -> None:
        """Raise ValueError on all ranks if lines, which describe a program or a network, differ between them."""
        check_alike(what, lines, self.ranks)

    def check_parts(self, samples: int | None) -> None:
        """Raise ValueError on all ranks if their parts of a batch differ in size but must not.

        samples: of this rank's part, None if unknown.
        """
        given = self.gather_objects(samples)
        known = {n: place for place, n in reversed(list(enumerate(given))) if n is not None}
        if self.equal_parts and len(known) > 1:
            parts = " and ".join(
                f"{n} samples on rank {self.ranks.ranks[place]}" for n, place in known.items()
            )
            raise ValueError(
                f"train_step: ranks' parts of a batch are of different sizes, {parts}, and gradients of all ranks "
                "count alike: drop_last=True leaves a shorter batch out, pad_last=True fills it up; "
                "DataParallel(equal_parts=False) is for what is meant so"
            )

    def all_agree(self, good: Any) -> Any:
        """Whether a traced condition holds on all ranks."""
        return ops.gt(all_reduce(ops.cast(good, "float32"), "min", group=self.ranks), 0.5)

    def same_as_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of the group's first rank."""
        if self.size > 1:
            for x in tensors:
                x.copy_(broadcast(x, self.ranks.ranks[0], group=self.ranks))


def as_data_parallel(given: DataParallel | Literal["data"] | None) -> DataParallel | None:
    """The value of the argument `parallel`. None for a world of one rank, which needs no communication.

    Raises RuntimeError if ranks were started that have not met.
    """
    found = DataParallel() if given == "data" else given
    assert not isinstance(found, str)
    if found is not None:
        common_world()
    return None if found is None or found.size == 1 else found
