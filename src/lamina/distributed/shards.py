"""Sharded tensors: each rank of a group keeps one shard, so that elementwise updates need no more memory.

A tensor of n elements is cut into `size` shards of ceil(n / size) elements in row-major order; the last
ones are padded with zeros. (Rajbhandari et al. 2020, "ZeRO", stage 1: optimizer states.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lamina import ops
from lamina.distributed.collectives import BUCKET_BYTES, all_gather, all_reduce
from lamina.ops.core import bind
from lamina.ops.primitives.collective import AllGatherEach, ReduceScatterEach
from lamina.spec import Group, Shape


@dataclass(frozen=True)
class Shards:
    """How the ranks of a group share tensors. place: of this rank in the group. Tensors or traced values."""

    group: Group
    place: int
    bucket_bytes: int = BUCKET_BYTES

    def length(self, shape: Shape) -> int:
        """Elements of a shard of a tensor of this shape."""
        return -(-math.prod(shape) // self.group.size)

    def own(self, x: Any) -> Any:
        """This rank's shard [length] of a tensor that all ranks have."""
        return self.of(x, self.place)

    def of(self, x: Any, place: int) -> Any:
        """The shard [length] of the rank at a place, in memory of its own."""
        count, length = math.prod(x.shape), self.length(x.shape)
        begin = min(place * length, count)
        end = min(begin + length, count)
        piece = ops.reshape(x, (count,))[begin:end]
        return piece.clone() if end - begin == length else _filled_up(piece, length)

    def cut(self, x: Any) -> Any:
        """All shards, [ranks, length]."""
        count, length = math.prod(x.shape), self.length(x.shape)
        flat = ops.reshape(x, (count,))
        return ops.reshape(_filled_up(flat, self.group.size * length), (self.group.size, length))

    def joined(self, pieces: Any, shape: Shape) -> Any:
        """The tensor from its shards [ranks, length]."""
        return ops.reshape(ops.reshape(pieces, (-1,))[: math.prod(shape)], shape)

    def whole(self, piece: Any, shape: Shape) -> Any:
        """The tensor from the shards of all ranks. Every rank calls it."""
        return self.joined(all_gather(piece, group=self.group), shape)

    def whole_of_each(self, pieces: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        """The tensors from the shards of all ranks; in a program they are sent in buckets."""
        found = bind(AllGatherEach(self.group, self.bucket_bytes), *pieces)
        return [self.joined(x, shape) for x, shape in zip(found, shapes, strict=True)]

    def means(self, tensors: Sequence[Any]) -> list[Any]:
        """This rank's shards of the means over all ranks; in a program they are sent in buckets."""
        op = ReduceScatterEach(self.group, "mean", self.bucket_bytes)
        return list(bind(op, *(self.cut(x) for x in tensors)))

    def total(self, x: Any) -> Any:
        """The sum over all ranks."""
        return all_reduce(x, group=self.group)


def _filled_up(flat: Any, length: int) -> Any:
    """The elements, padded with zeros to this length."""
    missing = length - flat.shape[0]
    return flat if not missing else ops.pad(flat, (0, missing))
