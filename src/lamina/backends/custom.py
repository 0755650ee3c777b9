"""Python functions of custom ops as plans: `CustomOp.run` gets arrays over the addresses that a plan is bound to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lamina.backends.protocol import Call, Plan, Run
from lamina.ops.custom import CustomOp
from lamina.runtime import Device, dlpack, host_array
from lamina.spec import Shape, Spec


class DeviceArray:
    """A row-major array on a GPU for other libraries to read and write: a view of an address, without memory of its
    own.

    It supports DLPack and the CUDA array interface. `pointer` is its address; `shape`, `dtype` (a name) and `nbytes`
    describe the array.
    """

    def __init__(self, pointer: int, spec: Spec, device: Device, stream: int) -> None:
        self.pointer, self.spec, self.device, self.stream = pointer, spec.fixed, device, stream

    @property
    def shape(self) -> Shape:
        """Sizes, one per axis."""
        return self.spec.shape

    @property
    def dtype(self) -> str:
        """The element type's name."""
        return self.spec.dtype.name

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the last."""
        return self.spec.nbytes

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.index

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None, **asked: Any
    ) -> Any:
        """A capsule. Writes to the array must be queued on the stream that `run` is given: nothing synchronizes
        here."""
        return dlpack.export(
            self.pointer,
            self.shape,
            self.spec.physical.strides,
            self.dtype,
            self.__dlpack_device__(),
            self,
            max_version=max_version,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype in ("bfloat16", "float8_e4m3fn"):
            raise AttributeError(f"__cuda_array_interface__ cannot describe {self.spec}; use DLPack")
        return {
            "shape": self.shape,
            "strides": None,
            "typestr": self.spec.dtype.numpy.str,
            "data": (self.pointer, False),
            "version": 3,
            "stream": None,  # writers use the stream of `run`
        }

    def __repr__(self) -> str:
        return f"DeviceArray({self.spec.open}, {self.device})"


def run_plan(op: CustomOp, specs: Sequence[Spec], device: Device) -> Plan:
    """The plan that calls `op.run`, on row-major operands. Raises what `infer` raises."""
    inputs = tuple(s.open.fixed for s in specs)
    outputs = tuple(s.open.fixed for s in op.infer(*inputs))
    return Plan(inputs, outputs, partial(_bind, op, inputs, outputs, device), label=f"python {op.name}")


def _bind(op: CustomOp, inputs: Sequence[Spec], outputs: Sequence[Spec], device: Device, call: Call) -> Run:
    read = [_array(p, s, device, call.stream) for p, s in zip(call.inputs, inputs, strict=True)]
    written = [_array(p, s, device, call.stream) for p, s in zip(call.outputs, outputs, strict=True)]
    return partial(op.run, read, written, call.stream)


def _array(pointer: int, spec: Spec, device: Device, stream: int) -> Any:
    if device.kind == "cpu":
        return host_array(pointer, spec.shape, spec.dtype.numpy)
    return DeviceArray(pointer, spec, device, stream)
