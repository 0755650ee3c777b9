"""Outputs in memory that the next call overwrites: they are copied to PyTorch's own memory.

The host cost per tensor is small: properties of the sources are computed once, one launch copies
all tensors of equal layout, and small adjacent tensors are copied as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

#: The maximum bytes of tensors that are copied as one piece of memory: it stays allocated until the last is freed.
SMALL = 1 << 18
#: The number of pieces of memory kept for reuse: one is filled while gradients are accumulated in another.
_KEPT = 2


class Leaving:
    """Tensors at fixed addresses.

    places: the source tensors. strides: of the copies; None: row-major. block: the bytes of the adjacent ones, laid
    out as their copies, all of one dtype. offsets: where each of these begins, by its number.
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
        #: The position of each tensor in the list of adjacent ones followed by the others.
        self._order = [
            place for _, place in sorted(zip([*together, *others], range(len(places)), strict=True))
        ]

    def copies(self) -> list[torch.Tensor]:
        """Copies of their current values, in order."""
        if self._together is None:
            return self._others()
        found = [*self._together(), *self._others()]
        return [found[at] for at in self._order]


class OnePiece:
    """Tensors in one piece of memory, which is copied as a whole.

    A copy is reused when no other tensor refers to its memory any more (gradients that were set to None).
    The results are new tensors over it, which is much cheaper than splitting memory.
    """

    def __init__(self, block: torch.Tensor, places: Sequence[torch.Tensor]) -> None:
        kind = places[0].dtype
        self._block = block.view(kind)
        self._lie = [
            (x.shape, x.stride(), (x.data_ptr() - block.data_ptr()) // kind.itemsize) for x in places
        ]
        self._kept: list[_Copy] = []

    def __call__(self) -> list[torch.Tensor]:
        """Copies of their current values."""
        copy = next((c for c in self._kept if c.is_free()), None)
        if copy is None:
            copy = _Copy(torch.empty_like(self._block), self._lie)
            self._kept = [*self._kept, copy][:_KEPT]
        copy.whole.copy_(self._block)
        return [x.detach() for x in copy.parts]


class _Copy:
    """Memory owned by PyTorch, and tensors over it."""

    def __init__(self, whole: torch.Tensor, lie: Sequence[tuple[torch.Size, tuple[int, ...], int]]) -> None:
        # Not views to autograd: each has its own version counter.
        self.whole, self.parts = whole, [whole.as_strided(*where).data for where in lie]
        self._storage = whole.untyped_storage()._cdata
        self._own = self._uses()

    def _uses(self) -> int:
        return int(torch._C._storage_Use_Count(self._storage))

    def is_free(self) -> bool:
        """Whether no other tensors refer to the memory."""
        return self._uses() == self._own


class Copies:
    """Tensors at fixed addresses, each copied to its own memory."""

    def __init__(self, places: Sequence[torch.Tensor], strides: Sequence[tuple[int, ...] | None]) -> None:
        self._places, self._likes = list[torch.Tensor](), list[torch.Tensor]()  # in the layout of the copies
        for x, wanted in zip(places, strides, strict=True):
            found = lying(x, wanted)
            self._places.append(x if found is None else found)
            self._likes.append(
                x.as_strided(x.shape, wanted or row_major(x.shape)) if found is None else found
            )
        self._groups = alike(self._places, self._likes)

    def __call__(self) -> list[torch.Tensor]:
        """Copies of their current values."""
        if len(self._places) == 1 and self._places[0] is self._likes[0]:
            return [self._places[0].clone()]
        copies = [torch.empty_like(x) for x in self._likes]
        for group in self._groups:
            torch._foreach_copy_([copies[i] for i in group], [self._places[i] for i in group])
        return copies


def alike(values: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> list[list[int]]:
    """Groups of pairs that one launch copies: of one dtype, with equal strides of value and destination; and the
    rest.

    PyTorch copies a whole list one by one if a single pair of it differs.
    """
    groups: dict[object, list[int]] = {}
    for i, (x, y) in enumerate(zip(values, places, strict=True)):
        groups.setdefault((x.dtype, y.dtype, x.stride() == y.stride()), []).append(i)
    return list(groups.values())


def copy_all(values: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> None:
    """Copy each value to its destination."""
    if len(places) == 1:
        places[0].copy_(values[0])
        return
    for group in alike(values, places):
        torch._foreach_copy_([places[i] for i in group], [values[i] for i in group])


def lying(x: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor | None:
    """The tensor with these strides (None: row-major) if its layout matches: strides of axes of size 1 may
    differ, and PyTorch compares them all. None if it does not match.
    """
    wanted = strides or row_major(x.shape)
    same = all(n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), wanted, strict=True))
    return x.as_strided(x.shape, wanted) if same or not x.numel() else None


def plain(x: torch.Tensor, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """The tensor with these strides if its layout matches, else unchanged."""
    found = lying(x, strides)
    return x if found is None else found


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor."""
    strides: tuple[int, ...] = torch.empty(tuple(shape), device="meta").stride()
    return strides


def dense_strides(x: torch.Tensor) -> tuple[int, ...] | None:
    """A tensor's strides if it is dense and without overlap, as autograd keeps the
    gradient of such a tensor; None for others.
    """
    strides = x.stride()
    return strides if torch.empty_like(x, device="meta").stride() == strides else None
