"""Inference as a compiled graph."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from lamina.graph import Executable, compile, trace
from lamina.nn import Module
from lamina.nn.module import evaluating
from lamina.nn.parameter import become, standing_in
from lamina.runtime import Device, device, human_bytes, renew_after_fork
from lamina.spec import Spec, policy
from lamina.spec.precision import Precision, as_precision
from lamina.tensors import Tensor, as_tensor

_where = device


class Predictor:
    """A network compiled for inference: predictor(images) -> outputs in float32 (float64 for fp64).

    The weights are the network's own tensors, resident on the device; `refresh` after they were changed. A
    batch that is smaller than one seen before is filled up to it, so that the last batch needs no program of
    its own.
    """

    def __init__(
        self,
        net: Module,
        *,
        device: Device | str = "auto",
        precision: str | Precision = "fp32",
        backend: str | None = None,
    ) -> None:
        self.net, self.device, self.backend = net, _where(device), backend
        self.precision = as_precision(precision)
        self._held: dict[str, Tensor] = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        self._programs: dict[tuple[Any, ...], list[tuple[int, Executable]]] = {}
        self._compiling = threading.RLock()
        renew_after_fork(self)
        if self.precision.master.name == "float64":
            for x in self._held.values():
                become(x, None, self.precision.master if x.dtype.is_float else None)

    def __call__(self, images: Any) -> Tensor:
        """Outputs (N, …) for images (N, …) of any library, in the order of the images."""
        given = images if isinstance(images, np.ndarray) else as_tensor(images)
        count = given.shape[0]
        batch, executable = self._program(as_tensor(given).spec)
        if count == batch:
            return executable(given)[0]
        held = given if isinstance(given, np.ndarray) else given.numpy()
        filled = np.concatenate([held, np.zeros((batch - count, *held.shape[1:]), held.dtype)])
        answers = executable(filled)[0]
        return as_tensor(answers.numpy()[:count])

    def renew(self) -> None:
        """In a forked child: another thread may have been compiling."""
        self._compiling = threading.RLock()

    def __repr__(self) -> str:
        nbytes = sum(x.nbytes for x in self._held.values())
        kind = type(self.net).__name__
        head = f"Predictor({kind}, {self.precision} on {self.device}; weights {human_bytes(nbytes)})"
        programs = [e for known in self._programs.values() for _, e in known]
        return "\n".join([head, *(f"  {e!r}" for e in programs)])

    def __reduce__(self) -> str:
        raise TypeError(
            f"a {type(self).__name__} holds compiled programs and cannot be pickled or copied; pickle its network"
        )

    def refresh(self) -> None:
        """Take over weights that were changed in place since the last call."""
        for programs in self._programs.values():
            for _, executable in programs:
                executable.load(dict(enumerate(self._held.values())))

    def program(self, images: Spec) -> Executable:
        """The compiled graph for one batch of this shape and dtype."""
        names = [*self._held, "images"]
        compute, master = self.precision.compute, self.precision.master
        wide = self.net.masters()

        def cast(x: Tensor, v: Any) -> Any:
            return v.cast(compute) if v.dtype.is_float and id(x) not in wide else v

        def forward(*values: Any) -> Any:
            pairs = zip(self._held.values(), values, strict=False)
            with standing_in({id(x): cast(x, v) for x, v in pairs}):
                return self.net(values[-1].cast(compute)).cast(master)

        specs = [x.spec.open for x in self._held.values()]
        with evaluating(self.net), policy(tf32=self.precision.tf32):
            graph = trace(forward, *specs, images.open, names=names)
        resident = range(len(self._held))
        return compile(graph, self.device, resident=resident, backend=self.backend)

    def _program(self, images: Spec) -> tuple[int, Executable]:
        """A program that takes at least as many samples, and its batch size."""
        known = self._programs.setdefault((images.shape[1:], images.dtype), [])
        with self._compiling:
            for batch, executable in known:
                if images.shape[0] <= batch:
                    return batch, executable
            executable = self.program(images)
            executable.load(dict(enumerate(self._held.values())))
            known.append((images.shape[0], executable))
            return known[-1]
