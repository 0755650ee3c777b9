"""Image backbones split into stages, whose features feed other networks: segmentation, detection."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.nn.activation import ReLU
from lamina.nn.models.resnet import ResNet
from lamina.nn.module import Module, T


class FeatureStages(Module):
    """Modules run in sequence, some of whose results are returned.

    modules: by key, in order. returned: names of modules, and the names of their results. Modules after the last of
    these are dropped.
    """

    def __init__(self, modules: Mapping[str, Module], returned: Mapping[str, str]) -> None:
        if missing := [name for name in returned if name not in modules]:
            raise ValueError(
                f"FeatureStages: there is no module {', '.join(missing)}; they are {', '.join(modules)}"
            )
        self.returned, waiting = dict(returned), set(returned)
        for name, module in modules.items():
            if waiting:
                self.add_module(name, module)
            waiting.discard(name)

    def forward(self, x: T) -> dict[str, T]:
        """Images (N, C, H, W) -> the results by name."""
        found: dict[str, T] = {}
        for name, module in self.named_children():
            x = module(x)
            if name in self.returned:
                found[self.returned[name]] = x
        return found


def resnet_modules(net: ResNet) -> dict[str, Module]:
    """The modules of a ResNet up to its last features, by key: conv1, bn1, relu, maxpool, layer1 … 4."""
    stem = {"conv1": net.conv1, "bn1": net.bn1, "relu": ReLU(), "maxpool": net.maxpool}
    return {**stem, **{f"layer{i}": getattr(net, f"layer{i}") for i in (1, 2, 3, 4)}}
