"""Dropout, with the state of its generator in the caller's hands."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lamina.c import cudnn as c
from lamina.c._arguments import pointer
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.handles import Handle, kept, sized
from lamina.cudnn.legacy.tensor import TensorDescriptor
from lamina.runtime import Buffer, copy, from_host, to_host


class DropoutSettings(NamedTuple):
    """What `Dropout.get` returns."""

    rate: float
    seed: int
    states: int  # the address of the generator's states


class DropoutState(NamedTuple):
    """A generator at one moment, on the host: what `Dropout.save` gives and `Dropout.restore` takes."""

    rate: float
    seed: int
    states: bytes


class Dropout(Descriptor):
    """Dropout: elements become 0 with probability `rate`, the others grow by 1 / (1 - rate).

    The generator's states are device memory, which every `forward` moves on.

    Args:
        handle: on whose device; making the states costs milliseconds (cudnnSetDropoutDescriptor).
        rate: probability, 0 to 1.
        seed: of the generator.
        states: memory for them, `states_size` bytes; left out, it is allocated and belongs to the object.
    """

    kind = "DropoutDescriptor"
    _states: Memory = None
    _nbytes = 0
    _settings: DropoutSettings | None = None

    def __init__(
        self,
        handle: AnyHandle,
        *,
        rate: float = 0.5,
        seed: int = 0,
        states: Memory | tuple[Memory, int] = None,
    ) -> None:
        super().__init__()
        self._attach(handle, rate, seed, states, fresh=True)

    def _attach(
        self, handle: AnyHandle, rate: float, seed: int, states: Memory | tuple[Memory, int], fresh: bool
    ) -> None:
        memory = kept(handle, states, lambda: self.states_size(handle), "states")
        function = c.cudnnSetDropoutDescriptor if fresh else c.cudnnRestoreDropoutDescriptor
        call(function, self, handle, float(rate), *memory, seed)
        self._states, self._nbytes = memory
        self._settings = self.get(handle)

    # ---- sizes
    @staticmethod
    def states_size(handle: AnyHandle) -> int:
        """Bytes of the generator's states (cudnnDropoutGetStatesSize)."""
        return call(c.cudnnDropoutGetStatesSize, handle)

    @staticmethod
    def reserve_size(x_desc: TensorDescriptor) -> int:
        """Bytes that `forward` leaves for `backward`: the mask (cudnnDropoutGetReserveSpaceSize)."""
        return call(c.cudnnDropoutGetReserveSpaceSize, x_desc)

    # ---- settings
    def get(self, handle: AnyHandle = None) -> DropoutSettings:
        """Read from cuDNN (cudnnGetDropoutDescriptor), which wants a handle for it; else as they were set."""
        _ = self.native
        if handle is None and self._settings is not None:
            return self._settings
        found = call(c.cudnnGetDropoutDescriptor, self, handle)
        return DropoutSettings(found.dropout, found.seed, found.states)

    def _shown(self) -> dict[str, Any]:
        return {} if self._settings is None else dict(self._settings._asdict())

    @property
    def states(self) -> Memory:
        """The memory of the generator's states."""
        return self._states

    # ---- the generator's state
    def save(self, handle: Handle) -> DropoutState:
        """The generator as it is after the work queued so far, copied to the host."""
        settings = self.get(handle)
        handle.synchronize()
        return DropoutState(settings.rate, settings.seed, to_host(self._buffer(handle)).tobytes())

    def load(self, handle: Handle, state: DropoutState) -> None:
        """Set this object's generator, rate and seed to what was saved, in the memory that it has.

        Raises:
            ValueError: states of another size (another kind of GPU).
        """
        if len(state.states) != self._nbytes:
            raise ValueError(f"state has {len(state.states)} bytes, this generator has {self._nbytes}")
        handle.synchronize()
        copy(self._buffer(handle), np.frombuffer(state.states, np.uint8))
        self._attach(handle, state.rate, state.seed, (self._states, self._nbytes), fresh=False)

    @classmethod
    def restore(
        cls, handle: Handle, state: DropoutState, *, states: Memory | tuple[Memory, int] = None
    ) -> Dropout:
        """A new object with a saved generator (cudnnRestoreDropoutDescriptor).

        Args:
            handle: on whose device.
            state: what `save` gave.
            states: memory for it; left out, it is allocated.
        """
        made = cls.empty()
        if states is None:
            made._attach(handle, state.rate, state.seed, from_host(state.states, handle.device), fresh=False)
            return made
        made._states, made._nbytes = sized("states", states)
        made.load(handle, state)
        return made

    def _buffer(self, handle: Handle) -> Buffer:
        """The states as a buffer, whoever allocated them."""
        if isinstance(self._states, Buffer):
            return self._states.view(0, self._nbytes)
        address = pointer(self._states)
        return Buffer.borrow(getattr(address, "value", address), self._nbytes, handle.device, self._states)

    # ---- operations
    def forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        reserve: Memory | tuple[Memory, int] = None,
    ) -> Memory:
        """y = dropout(x) (cudnnDropoutForward).

        Returns:
            The reserve memory, which `backward` wants: the caller's, or fresh.
        """
        space = kept(handle, reserve, lambda: self.reserve_size(x_desc))
        call(c.cudnnDropoutForward, handle, self, x_desc, x, y_desc, y, *space)
        return space.memory

    def backward(
        self,
        handle: AnyHandle,
        *,
        dy_desc: TensorDescriptor,
        dy: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        reserve: Memory | tuple[Memory, int],
    ) -> None:
        """dx = dy where x was kept, times 1 / (1 - rate), else 0 (cudnnDropoutBackward)."""
        call(c.cudnnDropoutBackward, handle, self, dy_desc, dy, dx_desc, dx, *sized("reserve", reserve))
