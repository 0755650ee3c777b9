"""Placement: blocks that live together never overlap, and memory is shared where lives do not meet."""

from hypothesis import given
from hypothesis import strategies as st

from lamina.graph.planning.memory import ALIGNMENT, Lifetime, aligned, place

blocks = st.lists(
    st.builds(
        lambda n, a, b: Lifetime(n, min(a, b), max(a, b)),
        st.integers(0, 10_000),
        st.integers(0, 20),
        st.integers(0, 20),
    ),
    max_size=30,
)


@given(blocks)
def test_blocks_that_live_together_do_not_overlap(lives: list[Lifetime]) -> None:
    placed = place(lives)
    spans = [(o, o + b.nbytes) for o, b in zip(placed.offsets, lives, strict=True)]
    for i, a in enumerate(lives):
        assert spans[i][0] % ALIGNMENT == 0
        assert spans[i][1] <= placed.nbytes
        for j in range(i):
            if a.overlaps(lives[j]) and a.nbytes and lives[j].nbytes:
                assert spans[i][1] <= spans[j][0] or spans[j][1] <= spans[i][0]


@given(blocks)
def test_sizes_lie_between_the_bound_and_separate_allocations(lives: list[Lifetime]) -> None:
    placed = place(lives)
    assert placed.bound <= placed.nbytes <= placed.unplanned
    assert placed.unplanned == sum(aligned(b.nbytes) for b in lives)


def test_a_chain_needs_two_blocks() -> None:
    chain = [Lifetime(1024, i, i + 1) for i in range(50)]
    assert place(chain).nbytes == 2 * 1024
    assert place(chain).unplanned == 50 * 1024


def test_nothing_takes_nothing() -> None:
    assert place([]).nbytes == 0
    assert place([Lifetime(0, 0, 3)]).nbytes == 0
