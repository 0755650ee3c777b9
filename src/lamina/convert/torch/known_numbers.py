"""Numbers that a network's code decides by: their values are known while a graph is made, where tensors have none.

    axes = torch.arange(2, x.ndim).tolist()
    if torch.tensor(self.strides).prod() > 1:
    if self.initted:

Code may decide by them and read them as Python's numbers. They are what functions make without a tensor, tensors that
attributes hold, small buffers, and what is computed of these alone. What is drawn, and the values of inputs and
parameters, is not known. The graph holds as long as the buffers whose numbers were read have the same; one that
`forward` itself writes decides nothing, since a program would have to ask anew in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._C import DisableTorchFunction
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import is_fake
from torch.fx import Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from lamina.convert.torch.node import TorchConversionError
from lamina.convert.torch.partition import example, memory_of, written

#: How many elements a tensor may have whose numbers are kept. Larger ones are masks and tables that nobody reads.
MOST = 4096
#: How many elements a buffer may have: those that decide are compared in each call.
MOST_OF_BUFFER = 64
#: The value of a buffer by its dotted name; None where it has none now.
Values = Callable[[str], torch.Tensor | None]
#: Functions whose results are Python's numbers.
READS = (
    torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__,
    torch.Tensor.__index__, torch.Tensor.__complex__, torch.Tensor.numpy, torch.Tensor.__array__, torch.equal,
    torch.Tensor.equal, torch.allclose, torch.Tensor.allclose, torch.is_nonzero, torch.Tensor.is_nonzero,
)  # fmt: skip
#: Types of arguments that are the same in each call of a graph, as a symbolic size is not.
_PLAIN = (
    type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(...), np.ndarray, np.bool_, np.int32, np.int64, np.float32, np.float64,
)  # fmt: skip


class _Numbers(NamedTuple):
    """A tensor's numbers, the version of it that has them (a write makes another), and the buffers they are of."""

    numbers: torch.Tensor
    version: int | None
    buffers: frozenset[str] = frozenset()


class KnownNumbers(TorchFunctionMode):
    """Within the block Python may read the numbers of tensors that are computed of constants and small buffers alone.

    decided: the buffers whose numbers were read, by name, with their values. lacks: whether others were asked for.
    """

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values
        self._state: dict[str, torch.Tensor] = {}
        self._kept: Any = WeakIdKeyDictionary()
        self.decided: dict[str, torch.Tensor] = {}
        self.lacks = False

    def of(self, network: torch.nn.Module) -> KnownNumbers:
        """Itself, for the buffers that a network has while it is traced."""
        for name, buffer in network.named_buffers():
            with _computing():
                value = self.values(name) if buffer.numel() <= MOST_OF_BUFFER else None
                if value is not None:
                    self._state[name] = value.detach().clone()
                    self._keep([buffer], [value.detach().clone()], frozenset([name]))
        return self

    def is_constant(self, x: torch.Tensor) -> bool:
        """Whether a tensor has the same numbers in each call, whatever the buffers'."""
        known = self._known(x)
        return known is not None and not known.buffers

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or Python's numbers of a tensor."""
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        given = {id(x): x for x in leaves if isinstance(x, torch.Tensor)}
        known = {i: n for i, x in given.items() if (n := self._known(x)) is not None}
        if len(known) < len(given) or not all(_is_plain(x) for x in leaves if id(x) not in given):
            self.lacks |= func in READS
            return func(*args, **kwargs)
        if given and func is torch.Tensor.__iter__ and args[0].ndim:
            return iter(self.__torch_function__(torch.unbind, types, args))
        buffers = frozenset[str]().union(*(n.buffers for n in known.values()))
        numbers = {i: n.numbers for i, n in known.items()}
        known_args, known_kwargs = tree_map(lambda x: numbers.get(id(x), x), (tuple(args), dict(kwargs)))
        if given and func in READS:
            with _computing():
                found = func(*known_args, **known_kwargs)
            self.decided |= {name: self._state[name] for name in buffers}
            return found
        before = {i: _version(x) for i, x in given.items()}
        found = func(*args, **kwargs)
        made = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        changed = [x for i, x in given.items() if _version(x) != before[i]]
        if (made or changed) and all(map(_is_small, made)):
            try:
                with _computing():
                    result = func(*known_args, **known_kwargs)
            except Exception:  # whatever is not computed without the inputs is not known
                return found
            self._keep(made, [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)], buffers)
            self._keep(changed, [numbers[id(x)] for x in changed], buffers)
        return found

    def require_kept(self, nodes: Iterable[Node], sources: Iterable[tuple[str, Any]]) -> None:
        """Raise TorchConversionError where a graph writes a buffer that decides it. sources: of the placeholders."""
        nodes = list(nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        own = {
            memory_of(example(node)): key
            for node, (kind, key) in zip(placeholders, sources, strict=True)
            if kind == "state" and key in self.decided
        }
        for target in filter(None, map(written, nodes)):
            if (name := own.get(memory_of(example(target)))) is not None:
                raise TorchConversionError(
                    f"forward decides in Python by the buffer {name!r}, and writes it: a graph cannot ask for its "
                    "value anew in each call; run the call that sets it in PyTorch, and convert the module then"
                )

    def _known(self, x: torch.Tensor) -> _Numbers | None:
        """The numbers of a tensor, if they are known: those of a plain tensor that the code holds, too, which is a
        constant of the graph, until it is written."""
        if x not in self._kept and _is_held(x):
            with _computing():
                self._kept[x] = _Numbers(x.detach().clone(), _version(x))
        known: _Numbers | None = self._kept.get(x)
        is_current = known is not None and known.version is not None and known.version == _version(x)
        return known if is_current else None

    def _keep(
        self, tensors: list[torch.Tensor], numbers: list[torch.Tensor], buffers: frozenset[str]
    ) -> None:
        """Keep the numbers of tensors, which have them until the next write."""
        for x, n in zip(tensors, numbers, strict=True):
            if (n.shape, n.dtype) == (x.shape, x.dtype):
                self._kept[x] = _Numbers(n, _version(x), buffers)


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
