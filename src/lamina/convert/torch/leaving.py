"""Tensors that leave memory which the next call overwrites: copies of them in memory of PyTorch's own.

A call costs the host little for each tensor: what there is to know about the places is found once, one launch copies
all that lie alike, and small tensors that lie together are copied as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

#: Bytes up to which tensors are copied as one piece of memory: it stays until the last of them is gone.
SMALL = 1 << 18
#: How many pieces of memory wait to be used again: one that is filled while gradients are accumulated in another.
_KEPT = 2


class Leaving:
    """Tensors at fixed places.

    places: where they lie. strides: of the copies; None: row-major. block: the bytes of those that lie together, as
    their copies will, all of one dtype. offsets: where each of these begins, by its number.
    """

    def __init__(
        self,
        places: Sequence[torch.Tensor],
        strides: Sequence[tuple[int, ...] | None],
        block: torch.Tensor | None = None,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        together, others = dict(offsets or {}), [i for i in range(len(places)) if i not in (offsets or {})]
        self._others = Copies([places[i] for i in others], [strides[i] for i in others])
        self._together = None
        if block is not None and together:
            self._together = OnePiece(block, [plain(places[i], strides[i]) for i in together])
        #: Where each is among those that lie together and the others behind them.
        self._order = [
            place for _, place in sorted(zip([*together, *others], range(len(places)), strict=True))
        ]

    def copies(self) -> list[torch.Tensor]:
        """What lies there now, in order."""
        if self._together is None:
            return self._others()
        found = [*self._together(), *self._others()]
        return [found[at] for at in self._order]


class OnePiece:
    """Tensors in one piece of memory, which is copied whole.

    A copy is used again when nobody else has a tensor over its memory any more (gradients that were set to None).
    What is given are new tensors over it, which costs a fraction of what it costs to cut memory up.
    """

    def __init__(self, block: torch.Tensor, places: Sequence[torch.Tensor]) -> None:
        kind = places[0].dtype
        self._block = block.view(kind)
        self._lie = [
            (x.shape, x.stride(), (x.data_ptr() - block.data_ptr()) // kind.itemsize) for x in places
        ]
        self._kept: list[_Copy] = []

    def __call__(self) -> list[torch.Tensor]:
        """What lies there now."""
        copy = next((c for c in self._kept if c.is_free()), None)
        if copy is None:
            copy = _Copy(torch.empty_like(self._block), self._lie)
            self._kept = [*self._kept, copy][:_KEPT]
        copy.whole.copy_(self._block)
        return [x.detach() for x in copy.parts]


class _Copy:
    """Memory of PyTorch's own, and tensors over it."""

    def __init__(self, whole: torch.Tensor, lie: Sequence[tuple[torch.Size, tuple[int, ...], int]]) -> None:
        # As no views to autograd: each counts how often it is written, itself.
        self.whole, self.parts = whole, [whole.as_strided(*where).data for where in lie]
        self._storage = whole.untyped_storage()._cdata
        self._own = self._uses()

    def _uses(self) -> int:
        return int(torch._C._storage_Use_Count(self._storage))

    def is_free(self) -> bool:
        """Whether no other tensors lie there."""
        return self._uses() == self._own


class Copies:
    """Tensors at fixed places, each copied to memory of its own."""

    def __init__(self, places: Sequence[torch.Tensor], strides: Sequence[tuple[int, ...] | None]) -> None:
        self._places, self._likes = list[torch.Tensor](), list[torch.Tensor]()  # what lies as the copies will
        for x, wanted in zip(places, strides, strict=True):
            found = lying(x, wanted)
            self._places.append(x if found is None else found)
            self._likes.append(
                x.as_strided(x.shape, wanted or row_major(x.shape)) if found is None else found
            )
        self._groups = alike(self._places, self._likes)

    def __call__(self) -> list[torch.Tensor]:
        """What lies there now."""
        if len(self._places) == 1 and self._places[0] is self._likes[0]:
            return [self._places[0].clone()]
        copies = [torch.empty_like(x) for x in self._likes]
        for group in self._groups:
            torch._foreach_copy_([copies[i] for i in group], [self._places[i] for i in group])
        return copies


def alike(values: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> list[list[int]]:
    """Groups of pairs that one launch copies: of one dtype, each value as its place lies; and the rest.

    PyTorch copies a whole list one by one where a single pair of it is otherwise.
    """
    groups: dict[object, list[int]] = {}
    for i, (x, y) in enumerate(zip(values, places, strict=True)):
        groups.setdefault((x.dtype, y.dtype, x.stride() == y.stride()), []).append(i)
    return list(groups.values())


def copy_all(values: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> None:
    """Write each value into its place."""
    if len(places) == 1:
        places[0].copy_(values[0])
        return
    for group in alike(values, places):
        torch._foreach_copy_([places[i] for i in group], [values[i] for i in group])


def lying(x: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor | None:
    """The tensor with these strides (None: of a row-major one) where it lies so: those of axes of size 1 may be
    others, and PyTorch compares them all. None where it lies otherwise.
    """
    wanted = strides or row_major(x.shape)
    same = all(n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), wanted, strict=True))
    return x.as_strided(x.shape, wanted) if same or not x.numel() else None


def plain(x: torch.Tensor, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """The tensor with these strides where it lies so, else as it is."""
    found = lying(x, strides)
    return x if found is None else found


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor."""
    strides: tuple[int, ...] = torch.empty(tuple(shape), device="meta").stride()
    return strides


def dense_strides(x: torch.Tensor) -> tuple[int, ...] | None:
    """A tensor's strides where its elements fill their memory, each in a place of its own, as autograd keeps the
    gradient of such a tensor; None for another.
    """
    strides = x.stride()
    return strides if torch.empty_like(x, device="meta").stride() == strides else None
