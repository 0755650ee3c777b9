"""Objects that belong to one process and one owner: a copy would hold the same address and free it again."""

from __future__ import annotations


class Uncopied:
    """Base of classes that hold memory or a library handle: `copy` and `pickle` raise a TypeError."""

    __slots__ = ()

    def __reduce__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        raise TypeError(
            f"{name} holds memory or a handle of this process and cannot be copied or pickled: make another one from "
            "the same arguments; of tensors, copy or pickle the tensor"
        )
