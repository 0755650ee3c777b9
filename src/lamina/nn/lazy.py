"""Layers that infer the number of input features from their first input. Names as in torch.nn."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lamina.nn import conv, linear, norm
from lamina.nn.module import Module, T
from lamina.ops.core import recorder
from lamina.spec import ShapeError
from lamina.tensors import Tensor


class _Lazy(Module):
    """A layer without parameters until its first call on a tensor; then it becomes a layer of class `becomes`.

    Its arguments are those of that class without the first. Before compiling, training or saving, run the network
    once, `net(example)`, or load weights, `load_state_dict`. Raises RuntimeError if it is traced before that.
    """

    becomes: ClassVar[type[Module]]
    #: Ranks of inputs with a batch axis, whose features are axis 1; otherwise axis 0. None: they are the last axis.
    batched: ClassVar[tuple[int, ...] | None] = None
    #: The axis of its weight whose size is the number of features (of one group).
    of_weight: ClassVar[int] = 1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say when there are parameters. Raises AttributeError."""
            if name in ("weight", "bias", "running_mean", "running_var"):
                raise AttributeError(
                    f"{type(self).__name__} has no {name} yet: call the network once on a tensor first, net(example)",
                    name=name,
                    obj=self,
                )
            return super().__getattr__(name)

    def forward(self, input: T) -> T:
        """Become the other layer, with the number of input features found, and call it."""
        name = type(self).__name__
        if not isinstance(input, Tensor) or recorder() is not None:
            raise RuntimeError(
                f"{name} has no parameters yet: call the network once on a tensor before it is compiled or trained"
            )
        if not input.ndim:
            raise ShapeError(f"{name}: needs an input with features, got {input.spec}")
        axis = -1 if self.batched is None else int(input.ndim in self.batched)
        self._become(input.shape[axis])
        self.to(input.device)
        y: T = self.forward(input)
        return y

    def _become(self, features: int) -> None:
        """Become the other layer, with this number of input features."""
        arguments, options, becomes = self.arguments, self.options, self.becomes
        for own in ("arguments", "options"):
            del self.__dict__[own]
        object.__setattr__(self, "__class__", becomes)
        make: Any = becomes.__init__
        make(self, features, *arguments, **options)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Become the other layer if a state has its weight, with the number of input features of that."""
        weight = state_dict.get(prefix + "weight", state_dict.get(prefix + "running_mean"))
        if weight is not None and len(np.shape(weight)) > self.of_weight:
            given = signature(self.becomes).bind(1, *self.arguments, **self.options).arguments
            groups = int(given.get("groups", 1)) if self.of_weight else 1
            self._become(int(np.shape(weight)[self.of_weight]) * groups)
        Module._load_from_state_dict(self, state_dict, prefix, *rest)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Always fails: there is nothing to save yet. Raises RuntimeError."""
        where = f" ({prefix.removesuffix('.')})" if prefix else ""
        raise RuntimeError(
            f"{type(self).__name__}{where} has no parameters yet: call the network once on a tensor before "
            "it is saved"
        )

    def extra_repr(self) -> str:
        """The arguments that are known."""
        named = [f"{name}={value!r}" for name, value in self.options.items()]
        return ", ".join([*map(repr, self.arguments), *named])


class LazyConv1d(_Lazy):
    """A Conv1d whose in_channels come from its first input, batched or not."""

    becomes, batched = conv.Conv1d, (3,)


class LazyConv2d(_Lazy):
    """A Conv2d whose in_channels come from its first input, batched or not."""

    becomes, batched = conv.Conv2d, (4,)


class LazyConv3d(_Lazy):
    """A Conv3d whose in_channels come from its first input, batched or not."""

    becomes, batched = conv.Conv3d, (5,)


class LazyConvTranspose1d(_Lazy):
    """A ConvTranspose1d whose in_channels come from its first input, batched or not."""

    becomes, batched = conv.ConvTranspose1d, (3,)
    of_weight = 0


class LazyConvTranspose2d(_Lazy):
    """A ConvTranspose2d whose in_channels come from its first input, batched or not."""

    becomes, batched = conv.ConvTranspose2d, (4,)
    of_weight = 0


class LazyConvTranspose3d(_Lazy):
    """A ConvTranspose3d whose in_channels come from its first input, batched or not."""

    becomes, batched = conv.ConvTranspose3d, (5,)
    of_weight = 0


class LazyBatchNorm1d(_Lazy):
    """A BatchNorm1d whose num_features come from its first input."""

    becomes, batched = norm.BatchNorm1d, (2, 3)
    of_weight = 0


class LazyBatchNorm2d(_Lazy):
    """A BatchNorm2d whose num_features come from its first input."""

    becomes, batched = norm.BatchNorm2d, (4,)
    of_weight = 0


class LazyBatchNorm3d(_Lazy):
    """A BatchNorm3d whose num_features come from its first input."""

    becomes, batched = norm.BatchNorm3d, (5,)
    of_weight = 0


class LazyInstanceNorm1d(_Lazy):
    """An InstanceNorm1d whose num_features come from its first input, batched or not."""

    becomes, batched = norm.InstanceNorm1d, (3,)
    of_weight = 0


class LazyInstanceNorm2d(_Lazy):
    """An InstanceNorm2d whose num_features come from its first input, batched or not."""

    becomes, batched = norm.InstanceNorm2d, (4,)
    of_weight = 0


class LazyInstanceNorm3d(_Lazy):
    """An InstanceNorm3d whose num_features come from its first input, batched or not."""

    becomes, batched = norm.InstanceNorm3d, (5,)
    of_weight = 0


class LazyLinear(_Lazy):
    """A Linear whose in_features come from its first input."""

    becomes, batched = linear.Linear, None
