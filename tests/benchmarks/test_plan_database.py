"""What was measured becomes a database, and the nearest rule is judged by leaving problems out."""

from pathlib import Path

import pytest

from benchmarks import plan_database
from benchmarks.plan_database import (
    Measured,
    add,
    engines_of,
    first_of,
    is_outdated,
    judge,
    measured,
    problems_of,
)
from benchmarks.plan_problems import LIST, Request, read
from lamina.backends.cuda.select.known import ProblemPlace
from lamina.cudnn import Choice, database, read_database
from lamina.ops.primitives import BatchNorm
from lamina.spec import DType, Spec, bfloat16, channels_last, float16, float32
from tests.helpers.cudnn.installed import needs_cudnn_919

A, B, C = (Choice(name) for name in "abc")


def image(dtype: DType) -> Spec:
    return Spec((1, 2, 3, 3), dtype, channels_last((1, 2, 3, 3)))


def problem(size: int, best: Choice, **times: float) -> Measured:
    won = Choice(best.formulation, milliseconds=times[best.formulation], heuristic=times.get("a", 0.0))
    choices = {Choice(name): t for name, t in times.items()}
    return Measured(ProblemPlace("conv", (size,)), "conv", image(bfloat16), won, A, choices)


def test_a_problem_left_out_takes_its_nearest_neighbours_plan() -> None:
    found = [
        problem(8, B, a=2.0, b=1.0),
        problem(9, B, a=3.0, b=1.5),  # 8's nearest, and 8 its: both right
        problem(64, A, a=1.0, b=1.25),  # too far from all within 1, else wrong by a quarter
        problem(1000, B, a=1.05, b=1.0),
        problem(1001, B, a=1.0, b=1.0),  # its nearest won by too little: the heuristic's, as for that one
    ]
    near = judge(found, 1.0)
    assert (near["problems"], near["by_a_neighbour"]) == (5, 2)
    assert near["regret"] == pytest.approx(1.05 ** (1 / 5))
    found = found[:3]
    near = judge(found, 1.0)
    assert near["regret"] == pytest.approx(1.0)
    assert near["regret_heuristic"] == pytest.approx(4 ** (1 / 3))
    far = judge(found, 4.0)
    assert far["by_a_neighbour"] == 3
    assert far["regret"] == pytest.approx(1.25 ** (1 / 3))
    assert far["time"] == pytest.approx((1.0 + 1.5 + 1.25) / 3.5)
    assert far["time_heuristic"] == pytest.approx(6 / 3.5)
    assert far["ops"]["conv"]["problems"] == 3


def test_a_plan_that_is_no_candidate_is_passed_over() -> None:
    found = [problem(8, C, a=2.0, c=1.0), problem(9, B, a=3.0, b=1.5), problem(10, B, a=1.0, b=2.0)]
    # the nearest of 8 takes b, which it has not, that of 9 (10) won nothing; that of 10 takes b
    judged = judge(found, 1.0)
    assert judged["by_a_neighbour"] == 1
    assert judged["regret"] == pytest.approx((2.0 * 2.0 * 1.0) ** (1 / 3))


def test_what_the_heuristic_got_wrong_is_not_compared() -> None:
    assert judge([problem(8, B, b=1.0)], 1.0)["problems"] == 0


def test_how_engines_did() -> None:
    """Knobs count together, and so do half types; own kernels are none of them."""
    times = {Choice("plain", 1): 2.0, Choice("plain", 1, ((2, 3),)): 1.01, Choice("turned", 1): 1.03, A: 1.0}
    first = Measured(ProblemPlace("conv", (8,)), "conv", image(bfloat16), A, A, times)
    second = Measured(ProblemPlace("conv", (9,)), "conv", image(float16), A, A, {Choice("plain", 1): 1.0})
    third = Measured(
        ProblemPlace("conv", (9,)), "conv", image(float32), A, A, {Choice("plain", 1): 1.0, A: 0.1}
    )
    assert engines_of([first, second, third]) == {
        "conv half acdb plain 1": (2, 2),
        "conv half acdb turned 1": (1, 0),
        "conv float32 acdb plain 1": (1, 0),
    }


def norm(batch: int) -> Request:
    x, small = (batch, 64, 8, 8), Spec((64,), float32)
    return Request(BatchNorm(1e-5), (Spec(x, bfloat16, channels_last(x)), *[small] * 4))


def test_results_become_a_database(tmp_path: Path) -> None:
    places = problems_of([norm(8), norm(32)])
    assert len(places) == 2
    assert len({problem.place.nature for problem in places.values()}) == 1
    lines = [
        {
            "request": norm(batch).record,
            "contests": [
                {
                    "problem": key,
                    "key": f"{key} tf32=False, ways=resident,kernel,cudnn",
                    "first": ["kernel", -1, []],
                    "best": ["kernel", -1, [], 0.5 + batch],
                    "times": [["kernel", -1, [], 0.7]],
                }
            ],
        }
        for batch, key in zip((8, 32), places, strict=True)
    ]
    problem = places[next(iter(places))]
    assert not is_outdated(problem, "x tf32=False, ways=kernel,resident,cudnn,gone")
    assert is_outdated(problem, "x tf32=False, ways=kernel,resident")
    resident, passes = Choice("resident"), Choice("kernel")
    assert first_of(problem, passes, [resident, passes]) == resident  # by today's rule
    assert first_of(problem, passes, [passes]) == passes  # it was not measured
    lines.append({"request": norm(8).record, "error": "contest: took too long"})
    found = measured(lines)
    assert [one.best.milliseconds for one in found] == [8.5, 32.5]
    assert all(one.known and one.op == "batch_norm" for one in found)
    about = dict.fromkeys(("driver", "host", "versions"), "x")
    about |= {"device": "NVIDIA H200", "cudnn": "9.19.0", "date": "2026-01-01"}
    file = add(found[:1], about, tmp_path)
    assert add(found[1:], {**about, "date": "2026-01-02"}, tmp_path) == file
    made = read_database(file)
    assert file.name == "NVIDIA-H200-9.19.json.gz"
    assert list(made.measured) == ["2026-01-01", "2026-01-02"]
    (nature,) = made.plans
    assert {sizes[0] for sizes in made.placed(nature)} == {8, 32}


def test_the_command_judges_and_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_database, "measured", lambda lines: [problem(8, B, a=2.0, b=1.0)])
    about = tmp_path / "about.json"
    about.write_text(
        '{"device": "x", "cudnn": "9.19.0", "date": "d", "driver": "", "host": "", "versions": {}}'
    )
    results = tmp_path / "contests.jsonl"
    results.write_text("")
    figures = tmp_path / "figures.json"
    plan_database.main(
        [str(results), "--about", str(about), "--folder", str(tmp_path / "made"), "--judge", str(figures)]
    )
    assert '"bound": 3.0' in figures.read_text()
    assert [f.name for f in (tmp_path / "made").iterdir()] == ["x-9.19.json.gz"]


@needs_cudnn_919
@pytest.mark.feature("B010", "F081")
def test_every_shipped_plan_is_a_formulation_of_its_problem() -> None:
    """Of some problems of the list: the formulation is there, or cuBLASLt's, which a GPU alone can say."""
    shipped = read_database(database.FOLDER / "NVIDIA-H200-9.19.json.gz")
    found = 0
    for problem in problems_of(read(LIST)[::64]).values():
        known = shipped.placed(problem.place.nature).get(problem.place.sizes)
        if known is not None:
            names = {formulation.name for formulation in problem.formulations}
            assert known.formulation in names or known.formulation.startswith("blas"), problem.key
            assert 0 < known.milliseconds <= max(known.heuristic, known.milliseconds)
            found += 1
    assert found > 12
