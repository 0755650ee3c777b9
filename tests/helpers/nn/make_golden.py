"""Writes golden.npz: results and reprs of PyTorch's layers. Run with PyTorch installed:

python -m tests.helpers.nn.make_golden
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.nn.cases import CASES, LOSSES

FILE = Path(__file__).with_name("golden.npz")


def main() -> None:
    import torch

    torch.manual_seed(1)
    found: dict[str, Any] = {}
    for i, case in enumerate(CASES):
        layer = getattr(torch.nn, case.layer)(*case.args, **case.kwargs)
        x = 2 * torch.randn(case.shape)
        found[f"{i}/x"], found[f"{i}/y"] = x.numpy(), layer(x).detach().numpy()
        found[f"{i}/repr"] = np.array(repr(layer))
        found |= {f"{i}/state/{k}": v.numpy() for k, v in layer.state_dict().items()}
    x, labels = torch.randn(3, 4), torch.tensor([1, 3, 0])
    targets = {"labels": labels, "like": torch.randn(3, 4), "shares": torch.rand(3, 4)}
    found |= {"x": x.numpy(), **{k: v.numpy() for k, v in targets.items()}}
    for i, (name, kwargs, kind) in enumerate(LOSSES):
        found[f"loss{i}"] = getattr(torch.nn, name)(**kwargs)(x, targets[kind]).numpy()
    np.savez_compressed(FILE, **found)


if __name__ == "__main__":
    main()
