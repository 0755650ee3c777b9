"""What belongs to one process, and to one owner in it: a copy would hold the same address and free it again."""

from __future__ import annotations


class Uncopied:
    """Base of what holds memory, or a handle of a library: `copy` and `pickle` are refused with a TypeError."""

    __slots__ = ()

    def __reduce__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        raise TypeError(
            f"{name} holds memory or a handle of this process and cannot be copied or pickled: make another one from "
            "the same arguments; of tensors, copy or pickle the tensor"
        )
