"""Branches by the values of a network's own buffers: a graph is of the values that these have when it is made.

    if self.initted:
        return
    self.fill_codebook(x)

A buffer has a value at trace time, the inputs have none. What Python asks of tensors that are computed from buffers
alone (`if`, `int`, `.item()`) is computed from their values, and the graph holds as long as these are the same. One
that `forward` itself writes decides nothing: a program would have to ask anew in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from lamina.convert.torch.node import TorchConversionError
from lamina.convert.torch.partition import example, memory_of, written

#: How many elements a buffer that decides may have: it is compared in each call.
MOST = 64
#: The value of a buffer by its dotted name; None where it has none now.
Values = Callable[[str], torch.Tensor | None]
#: Functions by which Python asks for a tensor's value.
_ASKING = (
    *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__),
    *(torch.Tensor.item, torch.Tensor.tolist, torch.equal, torch.Tensor.equal),
)


class _StateCall(NamedTuple):
    """How a tensor was made: its function and arguments. `result` keeps it alive, so that no id is reused."""

    result: torch.Tensor
    function: Any
    args: Any
    options: Mapping[str, Any]


class _UnknownError(Exception):
    """A value that buffers alone do not give."""


class StateDecisions(TorchFunctionMode):
    """Within the block what is asked of tensors that are computed from buffers alone is computed from their values.

    decided: the buffers that were asked for, by name, with their values.
    """

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values
        self._buffers: dict[int, tuple[torch.Tensor, str]] = {}
        self._calls: dict[int, _StateCall] = {}
        self.decided: dict[str, torch.Tensor] = {}

    def of(self, network: torch.nn.Module) -> StateDecisions:
        """Itself, for the buffers that a network has while it is traced."""
        self._buffers = {id(b): (b, name) for name, b in network.named_buffers() if b.numel() <= MOST}
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or what it gives for the values of buffers."""
        options = kwargs or {}
        given = [x for x in tree_leaves((args, options)) if isinstance(x, torch.Tensor)]
        known = bool(given) and all(map(self._is_known, given))
        of_state = known and any(map(self._is_of_state, given))
        if of_state and func in _ASKING:
            try:
                return self._computed(func, args, options)
            except _UnknownError:
                return func(*args, **options)
        found = func(*args, **options)
        if found is None or any(found is x for x in given):
            self._calls.clear()  # perhaps a write: what was known of tensors that share its memory may not hold
        elif of_state and isinstance(found, torch.Tensor):
            self._calls[id(found)] = _StateCall(found, func, args, options)
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

    def _is_known(self, x: torch.Tensor) -> bool:
        return self._is_of_state(x) or getattr(x, "constant", None) is not None

    def _is_of_state(self, x: torch.Tensor) -> bool:
        return id(x) in self._buffers or id(x) in self._calls

    def _computed(self, func: Any, args: Any, options: Any) -> Any:
        """What a function gives for the values of buffers. Raises _UnknownError where it draws random numbers."""
        asked: dict[str, torch.Tensor] = {}
        drawn = torch.default_generator.get_state()
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            found = self._run(func, args, options, asked)
            if not torch.equal(torch.default_generator.get_state(), drawn):
                torch.default_generator.set_state(drawn)
                raise _UnknownError
        self.decided |= asked
        return found

    def _run(self, func: Any, args: Any, options: Any, asked: dict[str, torch.Tensor]) -> Any:
        args, options = tree_map(lambda x: self._value(x, asked), (args, options))
        return func(*args, **options)

    def _value(self, x: Any, asked: dict[str, torch.Tensor]) -> Any:
        """The value of a tensor among a function's arguments; other arguments as they are."""
        if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise _UnknownError
        if not isinstance(x, torch.Tensor):
            return x
        if (call := self._calls.get(id(x))) is not None:
            return self._run(call.function, call.args, call.options, asked)
        if id(x) not in self._buffers:
            return x.constant  # of a fake tensor
        name = self._buffers[id(x)][1]
        if (value := self._values(name)) is None:
            raise _UnknownError
        asked[name] = value
        return value.clone()
