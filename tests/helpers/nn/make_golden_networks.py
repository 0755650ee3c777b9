"""Writes golden_networks.npz: outputs of PyTorch's networks in inference, and of a loss in training.

python -m tests.helpers.nn.make_golden_networks
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.nn.networks import NETWORKS, images, weights

FILE = Path(__file__).with_name("golden_networks.npz")


def main() -> None:
    import torch

    from benchmarks.networks import NETWORKS as DESCRIPTIONS
    from benchmarks.peer_torch import build

    found: dict[str, Any] = {}
    for network in NETWORKS:
        net = build(DESCRIPTIONS[network.description](*network.arguments, 0.0), network.shape[1:])
        state = weights(net.state_dict())
        net.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in state.items()})
        x = torch.from_numpy(images(network.shape))
        with torch.no_grad():
            found[network.make] = net.eval()(x).numpy()
        found[f"{network.make}/shapes"] = np.array([str(tuple(v.shape)) for v in state.values()])
    np.savez_compressed(FILE, **found)


if __name__ == "__main__":
    main()
