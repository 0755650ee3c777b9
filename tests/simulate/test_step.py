"""Steps on many GPUs: never faster than computing alone, nothing to add for one GPU, parts that add up."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.simulate import Cluster, Gradient, Link, Workload, expected_maximum, simulate

GPUS = st.sampled_from([1, 2, 4, 8, 16, 64, 1024, 4096])
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=60)
LINK = st.builds(Link, st.floats(0, 1e-4), st.floats(1e8, 1e12))


@st.composite
def steps(draw: Any) -> Workload:
    update = draw(st.floats(0, 0.01))
    ready = draw(st.lists(st.floats(0.001, 0.05), max_size=12))
    sizes = [draw(st.integers(0, 10**8)) for _ in ready]
    return Workload(0.05 + update, 64, tuple(map(Gradient, ready, sizes)), update)


@pytest.mark.feature("B057")
@STEADY
@given(steps(), LINK, LINK, GPUS, st.floats(1, 10), st.floats(0, 0.2), st.floats(0, 0.05))
def test_what_holds_for_every_step(
    work: Workload, inside: Link, between: Link, gpus: int, factor: float, contention: float, spread: float
) -> None:
    options: dict[str, Any] = {"contention": contention, "spread": spread}
    found = simulate(work, Cluster(inside, 8, between), gpus, **options)
    assert found.seconds >= work.seconds
    assert min(found.contention, found.exposed, found.stragglers, found.input) >= 0
    assert found.exposed <= found.communication + 1e-12
    assert found.speedup <= gpus * (1 + 1e-12)
    assert found.samples_per_second == pytest.approx(64 * gpus / found.seconds)
    faster = Cluster(
        Link(inside.latency, inside.bandwidth * factor), 8, Link(between.latency, between.bandwidth * factor)
    )
    assert simulate(work, faster, gpus, **options).seconds <= found.seconds * (1 + 1e-12)
    one = simulate(work, Cluster(inside), 1, **options)
    assert (one.seconds, one.speedup) == pytest.approx((work.seconds, 1))


@pytest.mark.feature("B057")
def test_the_parts_of_a_step() -> None:
    """Two buckets of 100 MB over 2 ranks at 1 GB/s: 0.1 s each; the second is there 0.02 s before the end."""
    work = Workload(0.5, 32, (Gradient(0.3, 10**8), Gradient(0.48, 10**8)))
    cluster = Cluster(Link(0, 1e9))
    found = simulate(work, cluster, 2, bucket_bytes=1e8)
    assert found.communication == pytest.approx(0.2)
    assert found.exposed == pytest.approx(0.08)
    assert simulate(work, cluster, 2, bucket_bytes=1e9).exposed == pytest.approx(
        0.18
    )  # one bucket, at the end
    half = simulate(work, cluster, 2, bucket_bytes=1e8, scale_bytes=0.5)
    assert half.communication == pytest.approx(0.1)
    assert half.exposed == pytest.approx(0.08)  # both fit into one bucket now
    assert simulate(work, cluster, 2, bucket_bytes=1e8, contention=0.5).contention == pytest.approx(0.06)
    late = simulate(work, cluster, 2, spread=0.1)
    assert late.stragglers == pytest.approx(0.05 / math.sqrt(math.pi))
    hungry = simulate(work, cluster, 2, bucket_bytes=1e8, node_samples_per_second=64)
    assert hungry.seconds == pytest.approx(1)
    assert hungry.input == pytest.approx(0.42)
    assert sum(hungry.record[f"{n}_ms"] for n in ("compute", "exposed", "input")) == pytest.approx(1000)


def test_updates_wait_for_their_sums() -> None:
    """The first bucket's update (0.02 s) runs in the backward pass, the second's waits for the sum (0.05 s)."""
    work = Workload(0.24, 1, (Gradient(0.1, 5 * 10**7), Gradient(0.2, 5 * 10**7)), 0.04)
    found = simulate(work, Cluster(Link(0, 1e9)), 2, bucket_bytes=5e7)
    assert found.exposed == pytest.approx(0.05)
    assert simulate(Workload(0.1, 1, (), 0.02), Cluster(Link(0, 1e9)), 4).seconds == 0.1


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, 0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (1000, 3.24144)],
)
def test_the_slowest_of_many(count: int, expected: float) -> None:
    assert expected_maximum(count) == pytest.approx(expected, abs=1e-5)


def test_the_slowest_of_eight_by_drawing() -> None:
    drawn = np.random.default_rng(0).standard_normal((40_000, 8)).max(1).mean()
    assert expected_maximum(8) == pytest.approx(drawn, abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contention": 1.5}, r"contention must be in \[0, 1\], got 1.5"),
        ({"spread": -0.1}, "spread must be >= 0, got -0.1"),
        ({"bucket_bytes": 0}, "bucket_bytes must be > 0, got 0"),
        ({"node_samples_per_second": math.nan}, "node_samples_per_second must be > 0, got nan"),
        ({"gpus": 0}, "gpus must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_named(options: dict[str, Any], message: str) -> None:
    work, cluster = Workload(0.5, 32, ()), Cluster(Link(0, 1e9))
    with pytest.raises(ValueError, match=message):
        simulate(work, cluster, options.pop("gpus", 2), **options)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        expected_maximum(0)
