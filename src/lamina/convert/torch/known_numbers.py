"""Numbers that a network's code has: their values are known while a graph is made, where tensors have none.

    axes = torch.arange(2, x.ndim).tolist()
    if torch.tensor(self.strides).prod() > 1:

Code may decide by them and read them as Python's numbers. They are what functions make without a tensor, tensors that
attributes hold without being buffers, and what is computed of such tensors alone. What is drawn, and the values of
inputs, parameters and buffers, is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._C import DisableTorchFunction
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import is_fake
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

#: How many elements a tensor may have whose numbers are kept. Larger ones are masks and tables that nobody reads.
MOST = 4096
#: Functions whose results are Python's numbers.
_READS = (
    torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__,
    torch.Tensor.__index__, torch.Tensor.__complex__, torch.Tensor.numpy, torch.Tensor.__array__, torch.equal,
    torch.Tensor.equal, torch.allclose, torch.Tensor.allclose, torch.is_nonzero, torch.Tensor.is_nonzero,
)  # fmt: skip
#: Types of arguments that are the same in each call of a graph, as a symbolic size is not.
_PLAIN = (
    type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(...), np.ndarray, np.bool_, np.int32, np.int64, np.float32, np.float64,
)  # fmt: skip


class KnownNumbers(TorchFunctionMode):
    """Within the block Python may read the numbers of tensors that are computed of no other tensor's values."""

    def __init__(self) -> None:
        super().__init__()
        #: Of each such tensor its numbers, and the version of it that has them: a write makes another.
        self._kept: Any = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or Python's numbers of a tensor."""
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        given = {id(x): x for x in leaves if isinstance(x, torch.Tensor)}
        numbers = {i: n for i, x in given.items() if (n := self._numbers(x)) is not None}
        if len(numbers) < len(given) or not all(_is_plain(x) for x in leaves if id(x) not in given):
            return func(*args, **kwargs)
        if given and func is torch.Tensor.__iter__ and args[0].ndim:
            return iter(self.__torch_function__(torch.unbind, types, args))
        known_args, known_kwargs = tree_map(lambda x: numbers.get(id(x), x), (tuple(args), dict(kwargs)))
        if given and func in _READS:
            with _computing():
                return func(*known_args, **known_kwargs)
        before = {i: _version(x) for i, x in given.items()}
        found = func(*args, **kwargs)
        made = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        written = [x for i, x in given.items() if _version(x) != before[i]]
        if (made or written) and all(map(_is_small, made)):
            try:
                with _computing():
                    result = func(*known_args, **known_kwargs)
            except Exception:  # whatever is not computed without the inputs is not known
                return found
            self._keep(made, [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)])
            self._keep(written, [numbers[id(x)] for x in written])
        return found

    def _numbers(self, x: torch.Tensor) -> torch.Tensor | None:
        """The numbers of a tensor, if they are known: those of a plain tensor that the code holds, too, which is a
        constant of the graph, until it is written."""
        if x not in self._kept and _is_held(x):
            with _computing():
                self._kept[x] = x.detach().clone(), _version(x)
        numbers, version = self._kept.get(x, (None, None))
        return numbers if version is not None and version == _version(x) else None

    def _keep(self, tensors: list[torch.Tensor], numbers: list[torch.Tensor]) -> None:
        """Keep the numbers of tensors, which have them until the next write."""
        for x, n in zip(tensors, numbers, strict=True):
            if (n.shape, n.dtype) == (x.shape, x.dtype):
                self._kept[x] = n, _version(x)


def _is_plain(x: Any) -> bool:
    """Whether an argument is the same in each call of a graph."""
    parts = (x.start, x.stop, x.step) if isinstance(x, slice) else (x,)
    return all(type(part) in _PLAIN for part in parts)


def _version(x: torch.Tensor) -> int | None:
    """How often a tensor was written, with all that share its memory; None of one that does not count it."""
    return None if x.is_inference() else x._version


def _is_held(x: torch.Tensor) -> bool:
    """Whether a tensor has values while a graph is made, and few of them: it is no input, parameter or buffer."""
    plain = type(x) is torch.Tensor and not is_fake(x) and not is_functorch_wrapped_tensor(x)
    strided = plain and x.layout is torch.strided and x.device.type != "meta" and not x.is_quantized
    return strided and not x.requires_grad and x.numel() <= MOST


def _is_small(x: torch.Tensor) -> bool:
    """Whether a traced tensor has a known number of elements, and few."""
    return is_fake(x) and all(type(n) is int for n in x.shape) and x.numel() <= MOST


class _WithoutChance(TorchDispatchMode):
    """Within the block what draws random numbers is an error."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function. Raises ValueError."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ValueError(f"{func} draws random numbers")
        return func(*args, **(kwargs or {}))


@contextmanager
def _computing() -> Iterator[None]:
    """Within the block functions compute, and nothing is recorded."""
    with _disable_current_modes(), DisableTorchFunction(), torch.no_grad(), _WithoutChance():
        yield
