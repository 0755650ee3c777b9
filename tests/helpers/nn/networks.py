"""Networks with weights by a formula, so that two libraries can use the same ones without storing them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Network(NamedTuple):
    """A network of lamina.nn, the description of the same network in benchmarks.networks, and its inputs."""

    make: str
    arguments: tuple[Any, ...]
    description: str
    shape: tuple[int, ...]


#: Small images and few classes; otherwise as the full networks, except for the dropout rate.
NETWORKS = [
    Network("GoogLeNet", (5,), "googlenet", (2, 3, 64, 64)),
    Network("resnet18", (5,), "resnet18", (2, 3, 40, 40)),
    Network("resnet50", (5,), "resnet50", (1, 3, 48, 48)),
    Network("mobilenet_v2", (5,), "mobilenet_v2", (2, 3, 40, 40)),
]


def values(index: int, key: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The value of the index-th entry of a state_dict: small enough that deep networks stay in range."""
    rng = np.random.default_rng(index)
    if key.endswith("num_batches_tracked"):
        return np.array(3)
    if len(shape) > 1:
        return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
    if key.endswith(("running_var", "weight")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return (0.1 * rng.standard_normal(shape)).astype(np.float32)


def weights(state: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """A value for each entry of a state_dict, in order."""
    return {k: values(i, k, tuple(v.shape)) for i, (k, v) in enumerate(state.items())}


def images(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The networks' inputs."""
    return np.random.default_rng(99).standard_normal(shape).astype(np.float32)
