"""The replay of tuning: what is open is kept and read, times are made up for, contests follow what is recorded."""

import json
import random
from pathlib import Path

import pytest

from benchmarks import tuning_replay
from benchmarks.tuning_replay import (
    FILE,
    Clock,
    Network,
    Recorded,
    RecordedContest,
    Trial,
    completed,
    distinct,
    fit,
    keep,
    play,
    read,
)
from lamina.backends.cuda.select.expected import FACTORS


def choice(problem: int, held: float, best: float, kind: str = "conv", count: int = 2) -> Recorded:
    return Recorded(problem, kind, count, 1e-4, held, best, 6)


#: One plan to win much by, one at the limit, and one that nobody measured.
NETWORK = Network(
    "one",
    10,
    2e-3,
    (choice(0, 1e-3, 4e-4), choice(1, 1e-4, 1e-4), choice(2, 0.0, 0.0), choice(3, 5e-4, 4e-4)),
)


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    keep([NETWORK], tmp_path / "kept")
    assert read(tmp_path / "kept") == [NETWORK]


def test_times_that_nobody_measured_are_a_like_problems() -> None:
    others = distinct([NETWORK])
    assert set(others) == {0, 1, 3}
    found = completed(NETWORK, others)
    assert found.choices[:2] == NETWORK.choices[:2]
    assert (found.choices[2].held, found.choices[2].best) in {(o.held, o.best) for o in others.values()}
    assert completed(NETWORK, others) == found


def test_the_fit_finds_the_factors_that_made_the_times() -> None:
    def won(kind: str, factor: float, number: int) -> Recorded:
        held = 1e-4 * (2 + number % 7)
        return choice(number, held, held - factor * (1 - 1e-4 / held) ** 2 * held, kind)

    many = [won("conv", 0.3, i) for i in range(1000)] + [won("matmul", 0.6, 1000 + i) for i in range(1000)]
    found = fit(many)
    assert found == {
        "": pytest.approx(0.45, abs=0.01),
        "conv": pytest.approx(0.3, abs=0.01),
        "matmul": pytest.approx(0.6, abs=0.01),
    }


def test_a_contest_finds_the_recorded_winner_in_the_clocks_time() -> None:
    clock = Clock()
    trials = [Trial("held", 1e-3), Trial("slow", 3e-3), Trial("best", 5e-4)]
    parts = RecordedContest(clock, random.Random(0)).slices(trials, refusals=[])
    kinds = []
    while True:
        before = clock.now
        try:
            kinds.append(next(parts))
        except StopIteration as end:
            found = end.value
            break
        assert clock.now - before < 0.02
    assert found[0].label == "best"
    assert found[1] == pytest.approx(0.5, rel=0.02)
    assert set(kinds) == {"place", "run", "time"}


@pytest.mark.feature("B051")
def test_a_replay_comes_to_the_best_plans() -> None:
    found = play(completed(NETWORK, distinct([NETWORK])), FACTORS, seconds=20.0)
    rest = 2e-3 / tuning_replay.REACHED + 10 * 3e-6
    figures = found.figures
    assert found.tuned == pytest.approx(
        rest + 2 * sum(min(c.best, c.held) for c in completed(NETWORK, distinct([NETWORK])).choices)
    )
    assert figures["regret"][0] > 1.1
    assert figures["regret"][20] == pytest.approx(1.0, abs=0.01)
    assert 0.8 < figures["throughput"] < 1
    assert figures["lost_while_tuning"] < 0.2
    again = play(completed(NETWORK, distinct([NETWORK])), FACTORS, seconds=20.0)
    assert again.steps == found.steps


@pytest.mark.feature("B032", "B051")
def test_ranks_that_are_replayed_come_to_the_best_plans_together() -> None:
    network = completed(NETWORK, distinct([NETWORK]))
    found = play(network, FACTORS, seconds=20.0, ranks=2)
    assert found.figures["regret"][20] == pytest.approx(1.0, abs=0.01)
    assert 0.8 < found.figures["throughput"] < 1
    assert play(network, FACTORS, seconds=20.0, ranks=2).steps == found.steps


def test_the_committed_choices_are_sound() -> None:
    networks = read(FILE)
    assert len(networks) > 20
    problems = distinct(networks)
    assert len(problems) > 400
    assert all(p.best <= 1.001 * p.held and p.least > 0 for p in problems.values())


@pytest.mark.slow
def test_the_command_plays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["play", "--networks", "alexnet", "--seconds", "4", "--out", str(tmp_path)]
    assert tuning_replay.main(arguments) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record["networks"]) == ["alexnet"]
    assert [file.name.split("-")[0] for file in tmp_path.iterdir()] == ["tuning_replay"]
