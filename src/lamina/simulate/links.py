"""The time of an all-reduce over links with a latency and a bandwidth.

A message of n bytes takes latency + n / bandwidth (Hockney 1994). An all-reduce of S bytes over n ranks consists of
sequential messages, and of bytes through each rank's link (Thakur, Rabenseifner, Gropp 2005):

| algorithm | messages | bytes through a link |
|---|---|---|
| ring | 2 (n - 1) | 2 (n - 1) / n S |
| tree (two binary trees, each for half; Sanders, Speck, Träff 2009) | 2 ceil(log2 n) | 2 (n - 1) / n S |
| switch (adds and copies within the switch: NVLink SHARP) | 2 | (n + 1) / n S |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lamina.ops.arguments import checked, whole, within

Algorithm = Literal["ring", "tree", "switch"]
#: Sequential messages, and how many times the bytes go through each link.
_COSTS: Mapping[str, tuple[Callable[[int], float], Callable[[int], float]]] = {
    "ring": (lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
    "tree": (lambda n: 2 * math.ceil(math.log2(n)), lambda n: 2 * (n - 1) / n),
    "switch": (lambda n: 2, lambda n: (n + 1) / n),
}


@dataclass(frozen=True)
class Link:
    """A GPU's link: seconds until a message arrives, and bytes per second in each direction."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        within("Link", "latency", self.latency, 0)
        within("Link", "bandwidth", self.bandwidth, 0, open=True)


#: Estimates: 0.8 of a GPU's bandwidth in the data sheets, and typical latencies of small collectives. Measurements
#: (`fit_link`) are better.
LINKS = {
    "nvlink3": Link(4e-6, 0.8 * 300e9),
    "nvlink4": Link(3e-6, 0.8 * 450e9),
    "nvlink5": Link(3e-6, 0.8 * 900e9),
    "pcie5": Link(8e-6, 0.8 * 63e9),
    "infiniband-hdr": Link(6e-6, 0.8 * 25e9),
    "infiniband-ndr": Link(6e-6, 0.8 * 50e9),
    "ethernet-100": Link(30e-6, 0.8 * 12.5e9),
}


@checked
def all_reduce_seconds(nbytes: float, ranks: int, link: Link, algorithm: Algorithm = "ring") -> float:
    """Seconds of an all-reduce of `nbytes` bytes over `ranks` ranks, by the module's table; 0 for one rank.

    Raises ValueError for an unknown algorithm, fewer than one rank, or negative bytes.
    """
    whole("all_reduce_seconds", "ranks", ranks)
    within("all_reduce_seconds", "nbytes", nbytes, 0)
    if ranks == 1 or not nbytes:
        return 0.0
    messages, times = _COSTS[algorithm]
    return messages(ranks) * link.latency + times(ranks) * nbytes / link.bandwidth


@dataclass(frozen=True)
class MeasuredAllReduces:
    """Measured all-reduces within a node: (ranks, bytes, seconds) each.

    Libraries change protocols with the size, which no single latency and bandwidth describe. Raises ValueError where
    a number of ranks has fewer than two sizes or one of them twice, for one rank, and for numbers that are not above
    0 and finite.
    """

    points: tuple[tuple[int, float, float], ...]

    def __post_init__(self) -> None:
        sizes = Counter(n for n, _, _ in self.points)
        once = len({(n, size) for n, size, _ in self.points}) == len(self.points)
        sound = all(n >= 2 and 0 < s < math.inf and 0 < t < math.inf for n, s, t in self.points)
        if not (sizes and min(sizes.values()) >= 2 and once and sound):
            raise ValueError(
                "MeasuredAllReduces: needs two sizes of each number of ranks at least, each once (ranks >= 2, "
                f"bytes > 0, seconds > 0), got {self.points[:4]}"
            )

    def seconds(self, nbytes: float, ranks: int) -> float:
        """Seconds of an all-reduce: linearly interpolated between two sizes, that of the smallest below it, and
        extrapolated from the largest two above them. For a number of ranks that was not measured: from the next
        smaller one, or the smallest, scaled by the bytes that a ring sends through a link. 0 for one rank.

        Raises ValueError for fewer than one rank, or negative bytes.
        """
        whole("MeasuredAllReduces.seconds", "ranks", ranks)
        within("MeasuredAllReduces.seconds", "nbytes", nbytes, 0)
        if ranks == 1 or not nbytes:
            return 0.0
        known = sorted({n for n, _, _ in self.points})
        near = max((n for n in known if n <= ranks), default=known[0])
        sizes, times = np.array(sorted((s, t) for n, s, t in self.points if n == near)).T
        found = float(np.interp(nbytes, sizes, times))
        if nbytes > sizes[-1]:
            found += float(max(0.0, (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])) * (nbytes - sizes[-1]))
        through = _COSTS["ring"][1]
        return found * through(ranks) / through(near)


@dataclass(frozen=True)
class Cluster:
    """GPUs in nodes.

    inside: a GPU's link to the others of its node, or measurements there. gpus_per_node: GPUs of a node.
    between: a GPU's share of its node's network; None: there is one node.
    switch: whether the switches of a node reduce (NVLink SHARP, from Hopper on).

    Beyond one node the all-reduce is hierarchical: a reduction within nodes, one between nodes of each GPU's part,
    and an all-gather within nodes, one after the other: libraries overlap these, so that they may be faster.
    """

    inside: Link | MeasuredAllReduces
    gpus_per_node: int = 8
    between: Link | None = None
    switch: bool = False

    def __post_init__(self) -> None:
        whole("Cluster", "gpus_per_node", self.gpus_per_node)

    def nodes(self, gpus: int) -> int:
        """The number of nodes for a number of GPUs. Raises ValueError if these do not fill nodes, or there is no
        network."""
        whole("Cluster", "gpus", gpus)
        if gpus <= self.gpus_per_node:
            return 1
        if gpus % self.gpus_per_node:
            raise ValueError(f"Cluster: {gpus} GPUs do not fill nodes of {self.gpus_per_node}")
        if self.between is None:
            raise ValueError(
                f"Cluster: {gpus} GPUs are more than a node of {self.gpus_per_node}; say between=Link(…)"
            )
        return gpus // self.gpus_per_node

    def all_reduce(self, nbytes: float, gpus: int) -> float:
        """Seconds of an all-reduce, by the fastest algorithms."""
        nodes = self.nodes(gpus)
        each = min(gpus, self.gpus_per_node)
        found = self._within(nbytes, each)
        if nodes > 1 and self.between is not None:
            ways: tuple[Algorithm, ...] = ("ring", "tree")
            found += min(all_reduce_seconds(nbytes / each, nodes, self.between, a) for a in ways)
        return found

    def _within(self, nbytes: float, gpus: int) -> float:
        if isinstance(self.inside, MeasuredAllReduces):
            return self.inside.seconds(nbytes, gpus)
        own: tuple[Algorithm, ...] = ("ring", "tree", "switch") if self.switch else ("ring", "tree")
        return min(all_reduce_seconds(nbytes, gpus, self.inside, a) for a in own)


@checked
def fit_link(
    measured: Iterable[tuple[int, float, float]], algorithm: Algorithm = "ring"
) -> tuple[Link, float]:
    """The link that fits measured all-reduces best, and its largest relative error.

    measured: (ranks, bytes, seconds), at least two. The sum of squared relative errors is minimized, with latency and
        bandwidth of at least 0.
    Raises ValueError for too few points, points of one rank, and where no bandwidth fits them.
    """
    points = [(n, s, t) for n, s, t in measured]
    if len({(n, s) for n, s, _ in points}) < 2 or any(n < 2 or s <= 0 or t <= 0 for n, s, t in points):
        raise ValueError(
            f"fit_link: needs at least two points (ranks >= 2, bytes > 0, seconds > 0), got {points[:4]}"
        )
    messages, times = _COSTS[algorithm]
    rows = np.array([[messages(n) / t, times(n) * s / t] for n, s, t in points])
    latency, inverse = np.linalg.lstsq(rows, np.ones(len(points)), rcond=None)[0]
    if latency < 0:
        latency, inverse = 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    if inverse <= 0:
        raise ValueError(
            "fit_link: more bytes take no longer: no bandwidth explains that; measure larger sizes"
        )
    link = Link(float(latency), float(1 / inverse))
    return link, max(abs(all_reduce_seconds(s, n, link, algorithm) / t - 1) for n, s, t in points)
