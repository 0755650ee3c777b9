"""Writes golden_norm.npz: results, gradients and buffers of PyTorch's norm layers in training. Needs PyTorch:

python -m tests.helpers.nn.make_golden_norm
"""

from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("golden_norm.npz")
#: (layer, arguments, options, shape of the input)
NORMS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("BatchNorm1d", (5,), {}, (6, 5)),
    ("BatchNorm1d", (5,), {"momentum": None}, (3, 5, 4)),
    ("BatchNorm2d", (8,), {"eps": 1e-3, "momentum": 0.3}, (4, 8, 5, 3)),
    ("BatchNorm2d", (3,), {"affine": False}, (2, 3, 4, 4)),
    ("BatchNorm2d", (3,), {"track_running_stats": False}, (2, 3, 4, 4)),
    ("BatchNorm3d", (4,), {}, (2, 4, 3, 2, 3)),
    ("InstanceNorm1d", (4,), {}, (2, 4, 7)),
    ("InstanceNorm2d", (3,), {"affine": True, "track_running_stats": True}, (2, 3, 4, 5)),
    ("InstanceNorm3d", (2,), {"affine": True}, (2, 2, 3, 4, 2)),
    ("GroupNorm", (3, 6), {}, (2, 6, 4, 3)),
    ("GroupNorm", (1, 4), {"affine": False}, (3, 4)),
    ("LayerNorm", (7,), {}, (3, 4, 7)),
    ("LayerNorm", ((3, 5),), {"bias": False}, (2, 3, 5)),
    ("LayerNorm", (6,), {"elementwise_affine": False}, (4, 6)),
    ("RMSNorm", (9,), {}, (3, 9)),
    ("RMSNorm", ((2, 4),), {"eps": 1e-3}, (3, 2, 4)),
    ("LocalResponseNorm", (5,), {"alpha": 0.1, "k": 2.0}, (2, 7, 3, 2)),
    ("LocalResponseNorm", (4,), {"beta": 0.5}, (2, 6, 5)),
]


def main() -> None:
    import torch

    torch.manual_seed(2)
    found: dict[str, Any] = {}
    for i, (name, args, options, shape) in enumerate(NORMS):
        layer = getattr(torch.nn, name)(*args, **options)
        for p in layer.parameters():
            torch.nn.init.normal_(p, 1.0)
        found |= {f"{i}/before/{k}": v.numpy().copy() for k, v in layer.state_dict().items()}
        found[f"{i}/repr"] = np.array(repr(layer))
        for step in range(2):
            x = (2 * torch.randn(shape) + 1).requires_grad_()
            y = layer(x)
            g = torch.randn(shape)
            wrt = [x, *layer.parameters()]
            grads = torch.autograd.grad(y, wrt, g)
            found |= {
                f"{i}/{step}/x": x.detach().numpy(),
                f"{i}/{step}/y": y.detach().numpy(),
                f"{i}/{step}/g": g.numpy(),
            }
            names = ["x", *(n for n, _ in layer.named_parameters())]
            found |= {f"{i}/{step}/grad/{n}": v.numpy() for n, v in zip(names, grads, strict=True)}
        found |= {f"{i}/after/{k}": v.numpy().copy() for k, v in layer.state_dict().items()}
        found[f"{i}/inference"] = layer.eval()(x).detach().numpy()
    np.savez_compressed(FILE, **found)


if __name__ == "__main__":
    main()
