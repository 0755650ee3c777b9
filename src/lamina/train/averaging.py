"""Averages of weights over the updates of training, exponential (EMA) and equal (SWA), as in torch's swa_utils."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from lamina import ops
from lamina._tree import arguments
from lamina.nn import Module
from lamina.nn.parameter import read, write
from lamina.ops.arguments import checked
from lamina.runtime import Device
from lamina.tensors import Tensor, tensor

#: (average, current value, number of values averaged so far) -> the new average.
AverageFn = Callable[[Any, Any, Any], Any]


@checked
def get_ema_avg_fn(decay: float = 0.999) -> AverageFn:
    """decay · average + (1 - decay) · current. Raises ValueError for a decay outside of [0, 1]."""
    if not 0 <= decay <= 1:
        raise ValueError(f"get_ema_avg_fn: decay must be in [0, 1], got {decay}")
    return partial(_moved, decay)


def get_swa_avg_fn() -> AverageFn:
    """The mean of all values (Izmailov et al. 2018)."""
    return _equal


def _moved(decay: float, averaged: Any, current: Any, count: Any) -> Any:
    return averaged * decay + current * (1 - decay)


def _equal(averaged: Any, current: Any, count: Any) -> Any:
    return averaged + (current - averaged) / ops.cast(count + 1, averaged.dtype)


class AveragedModel(Module):
    """A copy of a network whose parameters are averages of the network's: torch.optim.swa_utils.AveragedModel.

    `update_parameters(net)` folds the current parameters into the average: immediately, as part of the program in a
    function under `lamina.jit`, or in each update with `train_step(..., averaged=)`.

    n_averaged: how many values have been averaged, int64.
    device: of the copy, by default the network's. avg_fn: the averaging function, equal weights by default.
    use_buffers: floating point buffers are averaged as well; otherwise they are copied.
    """

    n_averaged: Any

    def __init__(
        self,
        model: Module,
        device: Device | str | None = None,
        avg_fn: AverageFn | None = None,
        use_buffers: bool = False,
    ) -> None:
        self.module = copy.deepcopy(model)
        self.module.requires_grad_(False)
        if device is not None:
            self.module.to(device)
        where = next((p.device for p in self.module.parameters()), None)
        self.register_buffer("n_averaged", tensor(np.zeros((), np.int64), device=where))
        self.avg_fn, self.use_buffers = avg_fn or get_swa_avg_fn(), use_buffers

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The network with averaged parameters."""
        return self.module(*inputs, **options)

    @checked
    def update_parameters(self, model: Module) -> None:
        """Update the averages with the values of another network of the same kind; the first update copies them.

        Raises ValueError for a network with other parameters.
        """
        count = self.n_averaged
        first = ops.eq(count, 0)
        for name, held, source in self._pairs(model):
            current, before = ops.cast(read(source), held.dtype), read(held)
            averages = held.dtype.is_float and (self.use_buffers or name not in self._buffer_names())
            after = ops.where(first, current, self.avg_fn(before, current, count)) if averages else current
            write(held, after)
        self.n_averaged = ops.add(count, 1)

    def _buffer_names(self) -> set[str]:
        return {name for name, _ in self.module.named_buffers()}

    def _pairs(self, model: Module) -> list[tuple[str, Tensor, Tensor]]:
        own, other = _held(self.module), _held(model)
        if {n: x.shape for n, x in own.items()} != {n: x.shape for n, x in other.items()}:
            wrong = sorted(own.keys() ^ other.keys()) or [n for n in own if own[n].shape != other[n].shape]
            raise ValueError(
                f"AveragedModel.update_parameters: {type(model).__name__} is another network: {', '.join(wrong[:8])}"
            )
        return [(name, x, other[name]) for name, x in own.items()]


def _held(net: Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


@checked
def update_bn(loader: Iterable[Any], model: Module) -> None:
    """Recompute the running statistics of batch norms as the mean over the batches of loader.

    Needed for averaged weights, whose statistics were never collected. loader: inputs, or pairs whose first part is
    inputs, as `train_step` takes them. All batches have equal weight. Modules keep their modes.
    """
    norms = [
        m
        for m in model.modules()
        if {"running_mean", "running_var"} <= dict(m.named_buffers("", False)).keys()
    ]
    if not norms:
        return
    modes = {id(m): m.training for m in model.modules()}
    momenta = [m.momentum for m in norms]
    for m in norms:
        for name, start in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
            m.get_buffer(name).fill_(start)
        m.momentum = None
    model.train()
    try:
        for batch in loader:
            positional, named = arguments(batch[0] if isinstance(batch, tuple | list) else batch)
            model(*positional, **named)
    finally:
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
        for module in model.modules():
            module.training = modes[id(module)]
