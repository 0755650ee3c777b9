"""Floor 6: predicts a training step on many GPUs from its time on one and the links between them."""

from lamina._lazy import listing
from lamina.simulate.links import LINKS, Cluster, Link, MeasuredAllReduces, all_reduce_seconds, fit_link
from lamina.simulate.step import Prediction, expected_maximum, simulate
from lamina.simulate.workload import Gradient, Workload, workload_of

__all__ = [
    "LINKS",
    "Cluster",
    "Gradient",
    "Link",
    "MeasuredAllReduces",
    "Prediction",
    "Workload",
    "all_reduce_seconds",
    "expected_maximum",
    "fit_link",
    "simulate",
    "workload_of",
]
__dir__ = listing(__all__)
