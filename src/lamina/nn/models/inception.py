"""Inception v3 (Szegedy, Vanhoucke, Ioffe, Shlens & Wojna 2016), as torchvision has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lamina import ops
from lamina.nn import init
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models._googlenet import InceptionConv, to_unit_range, truncated_weights
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d

_PAPER = "Szegedy et al. 2016, arXiv:1512.00567"

#: A convolution: filters, kernel.
Step = tuple[int, int | tuple[int, int]]
#: Branches by name: convolutions in sequence; those of a list are parallel.
Branches = Mapping[str, Sequence[Step | list[Step]]]


class MixedBlock(Module):
    """Branches of convolutions on the same input and a pooling, concatenated along the channels.

    pool_filters: of the 1×1 convolution after a 3×3 average pool. Without it the block halves the size: the last
    convolution of each branch has stride 2, and the pooling is a 3×3 maximum.
    """

    def __init__(self, channels: int, branches: Branches, pool_filters: int | None = None) -> None:
        self.out_channels, self.halves = pool_filters or channels, pool_filters is None
        self.paths: list[list[list[str]]] = []
        for branch, steps in branches.items():
            width, path = channels, []
            for i, step in enumerate(steps):
                name = branch if len(steps) == 1 else f"{branch}_{i + 1}"
                beside = _named(name, step)
                strided = self.halves and i + 1 == len(steps)
                for own, (filters, kernel) in beside.items():
                    conv = InceptionConv(width, filters, kernel, 2 if strided else 1, padded=not strided)
                    self.add_module(own, conv)
                width = sum(filters for filters, _ in beside.values())
                path.append(list(beside))
            self.paths.append(path)
            self.out_channels += width
        if pool_filters is not None:
            self.branch_pool = InceptionConv(channels, pool_filters, 1)

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, out_channels, H, W), or (N, out_channels, (H - 1) // 2, (W - 1) // 2)."""
        made = [self._along(path, x) for path in self.paths]
        made.append(ops.max_pool2d(x, 3, 2) if self.halves else self.branch_pool(ops.avg_pool2d(x, 3, 1, 1)))
        joined: T = ops.cat(made, 1)
        return joined

    def _along(self, path: list[list[str]], x: Any) -> Any:
        """The output of a branch for x."""
        for names in path:
            x = ops.cat([self.get_submodule(name)(x) for name in names], 1)
        return x


class InceptionV3Aux(Module):
    """A classifier on features of 17 pixels or more, whose loss improves the gradients of early layers."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        self.conv0 = InceptionConv(in_channels, 128, 1)
        self.conv1 = InceptionConv(128, 768, 5, padded=False)
        with init.scheme(truncated_weights(0.001)):
            self.fc = Linear(768, num_classes)

    def forward(self, x: T) -> T:
        """Features (N, in_channels, H, W) -> logits (N, num_classes)."""
        y = self.conv1(self.conv0(ops.avg_pool2d(x, 5, 3)))
        return self.fc(ops.flatten(ops.adaptive_avg_pool2d(y, 1), 1))


class InceptionOutputs(NamedTuple):
    """The result of an Inception v3 with auxiliary classifier in training: logits (N, num_classes) each."""

    logits: Any
    aux_logits: Any


class Inception3(Module):
    """Images (N, 3, 299, 299) -> logits (N, num_classes).

    Keys (Conv2d_1a_3x3.conv.weight, … fc.bias) and initialization are torchvision's. Images of 75 pixels or more.

    Args:
        aux_logits: an additional classifier, `AuxLogits`; in training the result is `InceptionOutputs`.
        transform_input: images that were normalized by ImageNet's means and deviations are normalized to [-1, 1].
    """

    def __init__(
        self,
        num_classes: int = 1000,
        aux_logits: bool = True,
        transform_input: bool = False,
        dropout: float = 0.5,
    ) -> None:
        self.aux_logits, self.transform_input = aux_logits, transform_input
        with init.scheme(truncated_weights(0.1)):
            self.Conv2d_1a_3x3 = InceptionConv(3, 32, 3, 2, padded=False)
            self.Conv2d_2a_3x3 = InceptionConv(32, 32, 3, padded=False)
            self.Conv2d_2b_3x3 = InceptionConv(32, 64, 3)
            self.maxpool1 = MaxPool2d(3, 2)
            self.Conv2d_3b_1x1 = InceptionConv(64, 80, 1)
            self.Conv2d_4a_3x3 = InceptionConv(80, 192, 3, padded=False)
            self.maxpool2 = MaxPool2d(3, 2)
            channels = 192
            for name, (branches, pool_filters) in _MIXED.items():
                if name == "Mixed_7a" and aux_logits:
                    self.AuxLogits = InceptionV3Aux(channels, num_classes)
                block = MixedBlock(channels, branches, pool_filters)
                self.add_module(name, block)
                channels = block.out_channels
            self.avgpool = AdaptiveAvgPool2d((1, 1))
            self.dropout = Dropout(dropout)
            self.fc = Linear(channels, num_classes)

    def forward(self, x: T) -> Any:
        """Images (N, 3, H, W) -> logits (N, num_classes), or `InceptionOutputs`."""
        y: Any = to_unit_range(x) if self.transform_input else x
        side = None
        for name, module in self.named_children():
            if name == "AuxLogits":
                side = module(y) if self.training else None
            elif module is self.fc:
                y = module(ops.flatten(y, 1))
            else:
                y = module(y)
        return y if side is None else InceptionOutputs(y, side)


def _named(name: str, step: Step | list[Step]) -> dict[str, Step]:
    """The convolutions of a step by name: if there are several, each has a letter."""
    if isinstance(step, list):
        return {name + letter: one for letter, one in zip("ab", step, strict=True)}
    return {name: step}


def _fine() -> Branches:
    """5×5, and two 3×3, on 35 pixels."""
    return {
        "branch1x1": [(64, 1)],
        "branch5x5": [(48, 1), (64, 5)],
        "branch3x3dbl": [(64, 1), (96, 3), (96, 3)],
    }


def _factored(c: int) -> Branches:
    """7×7 as 1×7 and 7×1, of c filters, on 17 pixels."""
    row, column = (1, 7), (7, 1)
    return {
        "branch1x1": [(192, 1)],
        "branch7x7": [(c, 1), (c, row), (192, column)],
        "branch7x7dbl": [(c, 1), (c, column), (c, row), (c, column), (192, row)],
    }


def _wide() -> Branches:
    """1×3 and 3×1 in parallel, on 8 pixels."""
    fork: list[Step] = [(384, (1, 3)), (384, (3, 1))]
    return {
        "branch1x1": [(320, 1)],
        "branch3x3": [(384, 1), fork],
        "branch3x3dbl": [(448, 1), (384, 3), fork],
    }


#: The blocks: branches, filters after the pooling or None.
_MIXED: dict[str, tuple[Branches, int | None]] = {
    "Mixed_5b": (_fine(), 32),
    "Mixed_5c": (_fine(), 64),
    "Mixed_5d": (_fine(), 64),
    "Mixed_6a": ({"branch3x3": [(384, 3)], "branch3x3dbl": [(64, 1), (96, 3), (96, 3)]}, None),
    "Mixed_6b": (_factored(128), 192),
    "Mixed_6c": (_factored(160), 192),
    "Mixed_6d": (_factored(160), 192),
    "Mixed_6e": (_factored(192), 192),
    "Mixed_7a": (
        {
            "branch3x3": [(192, 1), (320, 3)],
            "branch7x7x3": [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)],
        },
        None,
    ),
    "Mixed_7b": (_wide(), 192),
    "Mixed_7c": (_wide(), 192),
}


@network(_PAPER, size=299, plain={"aux_logits": False}, rates={"sgd": 0.01, "adam": 1e-4})
def inception_v3(
    num_classes: int = 1000,
    aux_logits: bool = True,
    transform_input: bool = False,
    dropout: float = 0.5,
) -> Inception3:
    """Inception v3 with its auxiliary classifier unless `aux_logits` is False."""
    return Inception3(num_classes, aux_logits, transform_input, dropout)
