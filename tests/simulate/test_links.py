"""All-reduces over links: the formulas, their properties, and links found again from what they do."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.simulate import LINKS, Cluster, Link, MeasuredAllReduces, all_reduce_seconds, fit_link

ALGORITHMS = ["ring", "tree", "switch"]
RANKS = st.integers(1, 4096)
BYTES = st.floats(0, 1e10)
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=60)
LINK = st.builds(Link, st.floats(0, 1e-3), st.floats(1e8, 1e12))


@pytest.mark.parametrize(
    ("algorithm", "messages", "times"),
    [("ring", 14, 14 / 8), ("tree", 6, 14 / 8), ("switch", 2, 9 / 8)],
)
def test_eight_ranks(algorithm: Any, messages: int, times: float) -> None:
    assert all_reduce_seconds(8e6, 8, Link(1.0, 1e300), algorithm) == pytest.approx(messages)
    assert all_reduce_seconds(8e6, 8, Link(0, 1e6), algorithm) == pytest.approx(8 * times)


@STEADY
@given(BYTES, RANKS, LINK)
def test_a_ring_moves_what_it_must(nbytes: float, ranks: int, link: Link) -> None:
    found = all_reduce_seconds(nbytes, ranks, link)
    expected = 2 * (ranks - 1) * link.latency + 2 * (ranks - 1) / ranks * nbytes / link.bandwidth
    assert found == pytest.approx(expected if nbytes else 0)
    assert all_reduce_seconds(nbytes, 1, link) == 0


@STEADY
@given(st.sampled_from(ALGORITHMS), BYTES, BYTES, RANKS, LINK, st.floats(1, 100))
def test_more_bytes_take_longer_and_better_links_do_not(
    algorithm: Any, one: float, other: float, ranks: int, link: Link, factor: float
) -> None:
    def took(nbytes: float, by: Link) -> float:
        return all_reduce_seconds(nbytes, ranks, by, algorithm)

    assert took(min(one, other), link) <= took(max(one, other), link)
    assert took(one, Link(link.latency, link.bandwidth * factor)) <= took(one, link)
    assert took(one, Link(link.latency / factor, link.bandwidth)) <= took(one, link)


@STEADY
@given(BYTES, st.sampled_from([8, 16, 64, 1024, 4096]), LINK, LINK)
def test_nodes_add_up_within_then_between(nbytes: float, gpus: int, inside: Link, between: Link) -> None:
    found = Cluster(inside, 8, between).all_reduce(nbytes, gpus)
    own = min(all_reduce_seconds(nbytes, 8, inside, a) for a in ("ring", "tree"))
    others = min(all_reduce_seconds(nbytes / 8, gpus // 8, between, a) for a in ("ring", "tree"))
    assert found == pytest.approx(own + others)
    assert Cluster(inside, 8, between, switch=True).all_reduce(nbytes, gpus) <= found
    assert Cluster(inside).all_reduce(nbytes, 1) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_link_is_found_again(algorithm: Any) -> None:
    link, rng = LINKS["nvlink4"], np.random.default_rng(0)
    points = [
        (n, s, all_reduce_seconds(s, n, link, algorithm) * rng.uniform(0.98, 1.02))
        for n in (2, 4)
        for s in np.geomspace(1e3, 1e8, 12)
    ]
    found, worst = fit_link(points, algorithm)
    assert found.latency == pytest.approx(link.latency, rel=0.03)
    assert found.bandwidth == pytest.approx(link.bandwidth, rel=0.03)
    assert worst < 0.04
    for nbytes in (1e9, 64.0):  # sizes that it was not fitted to
        expected = all_reduce_seconds(nbytes, 8, link, algorithm)
        assert all_reduce_seconds(nbytes, 8, found, algorithm) == pytest.approx(expected, rel=0.05)


def test_a_latency_is_never_negative() -> None:
    found, worst = fit_link([(2, 1e6, 0.9e-3), (2, 2e6, 2e-3)])
    assert found.latency == 0
    assert worst == pytest.approx(0.0552, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Link(-1e-6, 1e9), r"Link: latency must be >= 0, got -1e-06"),
        (lambda: Link(0, 0), "Link: bandwidth must be > 0, got 0"),
        (lambda: all_reduce_seconds(1, 0, Link(0, 1)), "ranks must be at least 1, got 0"),
        (lambda: all_reduce_seconds(-1, 2, Link(0, 1)), "nbytes must be >= 0, got -1"),
        (lambda: all_reduce_seconds(1, 2, Link(0, 1), "star"), "algorithm must be one of"),  # type: ignore[arg-type]
        (lambda: Cluster(Link(0, 1), 0), "gpus_per_node must be at least 1, got 0"),
        (lambda: Cluster(Link(0, 1)).all_reduce(1, 16), "16 GPUs are more than a node of 8; say between="),
        (lambda: Cluster(Link(0, 1), 8, Link(0, 1)).nodes(12), "12 GPUs do not fill nodes of 8"),
        (lambda: fit_link([(2, 1e6, 1e-3)]), "needs at least two points"),
        (lambda: fit_link([(1, 1e6, 1e-3), (1, 2e6, 1e-3)]), "needs at least two points"),
        (lambda: fit_link([(2, 1e6, 1e-3), (2, 2e6, 0.4e-3)]), "more bytes take no longer"),
    ],
)
def test_what_cannot_be_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_where_latency_would_be_negative_the_bandwidth_fits_best_without_it() -> None:
    """The sum of squared relative errors is the least that any bandwidth gives."""
    points = [(2, 1e6, 0.9e-3), (2, 2e6, 2e-3), (2, 4e6, 4.4e-3)]
    found, worst = fit_link(points)

    def errors(bandwidth: float) -> list[float]:
        return [all_reduce_seconds(s, n, Link(0.0, bandwidth)) / t - 1 for n, s, t in points]

    least = min(sum(e * e for e in errors(b)) for b in np.linspace(0.5e9, 2e9, 3001))
    assert found.latency == 0
    assert sum(e * e for e in errors(found.bandwidth)) == pytest.approx(least, rel=1e-4)
    assert worst == pytest.approx(max(map(abs, errors(found.bandwidth))))


MEASURED = MeasuredAllReduces(
    ((2, 1e6, 1e-5), (2, 3e6, 2e-5), (2, 4e6, 3e-5), (4, 1e6, 3e-5), (4, 2e6, 6e-5))
)


@pytest.mark.parametrize(
    ("nbytes", "ranks", "expected"),
    [
        (1e6, 2, 1e-5),
        (2e6, 2, 1.5e-5),
        (3.5e6, 2, 2.5e-5),
        (10, 2, 1e-5),  # below the smallest
        (6e6, 2, 5e-5),  # above the largest, as between the last two
        (1.5e6, 4, 4.5e-5),
        (1e6, 3, 1e-5 * (4 / 3) / 1),  # what a ring of three sends beside one of two
        (1e6, 8, 3e-5 * (14 / 8) / (6 / 4)),
        (0, 4, 0.0),
        (1e6, 1, 0.0),
    ],
)
def test_what_was_measured_is_found_between_and_beyond(nbytes: float, ranks: int, expected: float) -> None:
    assert MEASURED.seconds(nbytes, ranks) == pytest.approx(expected)
    if ranks <= 4:
        assert Cluster(MEASURED, 4).all_reduce(nbytes, ranks) == pytest.approx(expected)


def test_nodes_of_what_was_measured_are_linked_as_others_are() -> None:
    between = Link(1e-6, 1e9)
    found = Cluster(MEASURED, 4, between).all_reduce(1e6, 8)
    assert found == pytest.approx(3e-5 + all_reduce_seconds(2.5e5, 2, between))


def test_seconds_that_fall_with_the_size_do_not_fall_for_ever() -> None:
    falling = MeasuredAllReduces(((2, 1e6, 2e-5), (2, 2e6, 1e-5)))
    assert falling.seconds(1e9, 2) == 1e-5


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((2, 1e6, 1e-5),),
        ((1, 1e6, 1.0), (1, 2e6, 1.0)),
        ((2, 0.0, 1.0), (2, 1.0, 1.0)),
        ((2, 1.0, float("nan")), (2, 2.0, 1.0)),
        ((2, 1.0, 1.0), (2, float("inf"), 1.0)),
        ((2, 1.0, 1.0), (2, 2.0, 1.0), (2, 2.0, 3.0)),  # which of them?
    ],
)
def test_too_little_is_refused(points: Any) -> None:
    with pytest.raises(ValueError, match="needs two sizes of each number of ranks"):
        MeasuredAllReduces(points)


def test_no_ranks_and_negative_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks"):
        MEASURED.seconds(1e6, 0)
    with pytest.raises(ValueError, match="nbytes"):
        MEASURED.seconds(-1.0, 2)
