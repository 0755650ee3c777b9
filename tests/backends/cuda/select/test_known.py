"""What is known of a problem: its own choice first, then those of near problems; what "auto" makes of it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lamina import backends
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.launch.program import Fill, target
from lamina.backends.cuda.norm.norm_activation_fusion import ActivationNormGrad
from lamina.backends.cuda.select import formulations, known
from lamina.backends.cuda.select.formulations import Formulation, Problem, choose, expects
from lamina.backends.cuda.select.known import BOUND, ProblemPlace, distance, known_choices, ranked
from lamina.cudnn import Choice, PlanDatabase, PlanStore, StoredChoice
from lamina.ops.primitives import BatchNorm, BatchNormGrad, Conv, FusedElementwise, SiluGrad, Window
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, bfloat16, channels_last, float16, float32
from tests.helpers.planned import H200

AUTO, HEURISTIC = Policy(), Policy(algorithm="heuristic")


def problem(count: int = 64, kind: str = "fill", dtype: DType = float32) -> Problem:
    """Zeros, in three ways that cost nothing to plan."""
    x = Spec((count,), dtype).fixed
    steps = (Fill(target(), 0, x.nbytes),)
    ways = [Formulation(name, steps=steps, scratch=size) for name, size in (("a", 0), ("b", 0), ("c", 99))]
    return Problem(f"fill {count}", "fill", (x,), (x,), tuple(ways), 0.0, kind=kind)


def learnt(*pairs: tuple[int, str]) -> PlanDatabase:
    """Which way is fastest for so many elements, clearly."""
    clear = Choice("", milliseconds=1.0, heuristic=2.0)
    return PlanDatabase.of(
        "here",
        "9.19",
        [
            StoredChoice("", replace(clear, formulation=way), problem(n).place.nature, problem(n).place.sizes)
            for n, way in pairs
        ],
        {},
    )


@pytest.fixture
def knows(monkeypatch: pytest.MonkeyPatch) -> list[PlanDatabase]:
    """A list whose last database is the package's."""
    held: list[PlanDatabase] = []
    monkeypatch.setattr(known, "database_of", lambda device: held[-1] if held else None)
    return held


def way(asked: Problem, policy: Policy = AUTO) -> str:
    return choose(asked, H200, policy).label.split()[-1]


@pytest.mark.feature("B010", "F081")
def test_without_anything_known_auto_is_the_heuristic(knows: list[PlanDatabase]) -> None:
    assert Policy().algorithm == "auto"
    assert way(problem()) == way(problem(), HEURISTIC) == "a"
    knows.append(learnt((64, "b")))
    assert way(problem(), HEURISTIC) == "a"


@pytest.mark.feature("B010", "F081")
def test_its_own_choice_then_the_nearest_then_the_heuristics(knows: list[PlanDatabase]) -> None:
    knows.append(learnt((64, "b"), (100, "c")))
    assert way(problem(64)) == "b"
    assert way(problem(66)) == "b"
    assert way(problem(90)) == "c"
    assert way(problem(64, "other")) == "a"  # another nature
    assert way(problem(1 << 20)) == "a"  # too far away


@pytest.mark.feature("B011", "F081")
def test_what_cannot_be_made_within_the_policy_is_passed_over(knows: list[PlanDatabase]) -> None:
    knows.append(learnt((64, "c"), (60, "b")))
    assert way(problem(64)) == "c"
    assert way(problem(64), replace(AUTO, workspace_limit=10)) == "b"
    knows.append(learnt((64, "gone")))
    assert way(problem(64)) == "a"


@pytest.mark.feature("F081")
def test_the_users_store_comes_first(
    knows: list[PlanDatabase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PlanStore("here", "1", tmp_path)
    monkeypatch.setattr(known, "plan_store", lambda device: store)
    monkeypatch.setattr(known.c.library, "available", lambda: True)
    here, place = Device("cpu"), problem().place
    knows.append(learnt((64, "b")))
    assert [x.formulation for x in known_choices(place, here)] == ["b"]
    store.put("key", Choice("c"), place.nature, place.sizes)
    assert [x.formulation for x in known_choices(place, here)] == ["c", "b"]
    # what was timed on another device says nothing of it
    assert [x.formulation for x in known_choices(place, H200)] == ["b"]
    assert list(known_choices(ProblemPlace("", (1,)), here)) == []


@pytest.mark.feature("F081")
def test_what_won_clearly_on_a_model_of_the_same_kind_is_tried(
    knows: list[PlanDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, sizes = problem(64).place, problem(128).place.sizes
    clear, narrow = (
        Choice("b", milliseconds=1.0, heuristic=2.0),
        Choice("c", milliseconds=1.0, heuristic=1.01),
    )
    entries = [StoredChoice("", one, place.nature, at) for one, at in ((clear, sizes), (narrow, place.sizes))]
    kin = PlanDatabase.of("there", "9.19", entries, {})
    monkeypatch.setattr(known, "database_of_kin", lambda device: kin)
    assert list(known_choices(problem(128).place, H200)) == [clear]
    assert list(known_choices(problem(64).place, H200)) == [clear]  # the nearest that won clearly
    knows.append(learnt((64, "a")))
    assert [one.formulation for one in known_choices(place, H200)] == ["a"]


@pytest.mark.feature("B010", "B053")
def test_half_types_stand_in_for_each_other(knows: list[PlanDatabase]) -> None:
    """What was measured for the type itself comes first; where only the other type was, the problem stays open."""
    natures = {d: problem(64, dtype=d).place.nature for d in (float16, bfloat16, float32)}
    assert known.twin(natures[float16]) == natures[bfloat16]
    assert known.twin(natures[bfloat16]) == natures[float16]
    assert known.twin(natures[float32]) == natures[float32]
    sizes = problem(64).place.sizes
    entries = [StoredChoice("", Choice("b"), natures[bfloat16], sizes)]
    knows.append(PlanDatabase.of("here", "9.19", entries, {}))
    asked = {d: problem(64, dtype=d) for d in natures}
    assert {d: way(one) for d, one in asked.items()} == {float16: "b", bfloat16: "b", float32: "a"}
    assert [known.is_measured(one.place, H200) for one in asked.values()] == [False, True, False]
    entries.append(StoredChoice("", Choice("c"), natures[float16], sizes))
    knows.append(PlanDatabase.of("here", "9.19", entries, {}))
    assert {d: way(one) for d, one in asked.items()} == {float16: "c", bfloat16: "b", float32: "a"}


def test_distances_are_those_of_logarithms() -> None:
    assert distance((4, 8), (4, 8)) == 0
    assert distance((4, 8), (8, 16)) == pytest.approx(math.sqrt(2))
    assert distance((4, 8), (2, 8)) == distance((2, 8), (4, 8)) == 1
    assert distance((4,), (4, 1)) == distance((0, 4), (1, 4)) == math.inf
    assert distance((0, 4), (0, 4)) == 0


def test_its_own_choices_and_the_nearest_that_won_clearly() -> None:
    clear = {"milliseconds": 1.0, "heuristic": 1.5}
    source = {(n,): Choice(str(n), **clear) for n in (1, 2, 4, 8, 15, 1 << 12)}
    assert [x.formulation for x in ranked((8,), [source])] == ["8", "15"]
    assert [x.formulation for x in ranked((9,), [source])] == ["8"]
    assert list(ranked((int(8 * 2**BOUND) * 4,), [{(8,): Choice("x", **clear)}])) == []
    assert next(ranked((8,), [{(8,): Choice("own")}, {(8,): Choice("shipped")}])) == Choice("own")
    narrow = Choice("narrow", milliseconds=1.0, heuristic=1.2)
    assert (
        list(ranked((9,), [{**source, (9 + 1,): narrow, (8,): narrow}])) == []
    )  # near, the heuristic was about as good
    assert list(ranked((8,), [{(8,): narrow}])) == [narrow]
    assert list(ranked((9,), [{(8,): Choice("untold", milliseconds=1.0)}])) == []
    assert list(ranked((9,), [])) == []


def test_numbers_do_not_part_problems() -> None:
    x = Spec((32, 64, 8, 8), bfloat16, channels_last((32, 64, 8, 8)))
    natures = {ProblemPlace.of(str(BatchNorm(e)), [x], [x]).nature for e in (1e-5, 1e-3, 0.001, 0.5)}
    assert len(natures) == 1
    assert ProblemPlace.of(str(BatchNorm(1e-5, relu=True)), [x], [x]).nature not in natures
    assert ProblemPlace.of("conv(stride=2)", [x], [x]) != ProblemPlace.of("conv(stride=1)", [x], [x])


@pytest.mark.feature("F081")
def test_the_place_of_a_convolution_says_all_but_its_sizes() -> None:
    def place(
        batch: int, channels: int, groups: int = 1, dtype: object = bfloat16, stride: int = 1
    ) -> ProblemPlace:
        win = Window((stride, stride), ((1, 1), (1, 1)), (1, 1), groups)
        shapes = ((batch, channels, 16, 16), (64, channels // groups, 3, 3))
        shapes = (*shapes, (batch, 64, *win.output((16, 16), (3, 3))))
        o = Operands(win, *(Spec(s, dtype, channels_last(s)) for s in shapes))  # type: ignore[arg-type]
        return conv_problem(Conv, o, H200).place

    first = place(8, 64)
    assert place(16, 128).nature == first.nature
    assert place(16, 128).sizes == (16, 128, 16, 16, 64, 128, 3, 3, 16, 64, 16, 16)
    others = [place(8, 64, dtype=float32), place(8, 64, stride=2), place(8, 64, 2), place(8, 64, 64)]
    assert len({first.nature, *(other.nature for other in others)}) == 5
    assert place(8, 64, 2).nature == place(8, 64, 4).nature


@pytest.mark.feature("F081")
def test_formulations_that_cost_time_are_made_where_they_are_known(knows: list[PlanDatabase]) -> None:
    assert expects(problem(), "b", H200, Policy(algorithm="fastest"))
    assert not expects(problem(), "b", H200, AUTO)
    knows.append(learnt((64, "b")))
    assert expects(problem(), "b", H200, AUTO)
    assert not expects(problem(), "c", H200, AUTO)
    assert not expects(problem(), "b", H200, HEURISTIC)


@pytest.mark.feature("F081")
def test_a_norm_takes_the_formulation_that_is_known(knows: list[PlanDatabase]) -> None:
    x, small = Spec((32, 64, 8, 8), bfloat16, channels_last((32, 64, 8, 8))), Spec((64,), float32)
    op, specs = BatchNorm(1e-5), (x, *[small] * 4)
    plain = backends.get(H200).plan(op, specs, HEURISTIC)
    assert backends.get(H200).plan(op, specs, AUTO).label == plain.label
    place = ProblemPlace.of(str(op), plain.inputs, plain.outputs)
    names = [w.name for w in _formulations_of(op, specs)]
    assert names == ["resident", "kernel", "cudnn"]
    assert plain.label.endswith("resident")
    for name in names:
        knows.append(
            PlanDatabase.of("here", "1", [StoredChoice("", Choice(name), place.nature, place.sizes)], {})
        )
        label = backends.get(H200).plan(op, specs, AUTO).label
        assert label.endswith("resident" if name == "cudnn" else name)  # no cuDNN engine of that number


@pytest.mark.feature("B010")
def test_one_launch_for_what_stays_in_the_cache() -> None:
    """A norm in one launch up to about twice the cache, in passes beyond that; one whose passes compute an
    activation in one launch at any size.
    """
    small = [Spec((64,), float32)] * 4
    for batch, label in ((8, "resident"), (64, "resident"), (128, "kernel")):
        x = Spec((batch, 64, 112, 112), bfloat16, channels_last((batch, 64, 112, 112)))
        assert (10 * x.nbytes <= 22 * H200.machine.l2_bytes) == (label == "resident")
        found = backends.get(H200).plan(BatchNorm(1e-5), (x, *small), HEURISTIC)
        assert found.label == f"kernel batch_norm {label}"
        behind = ActivationNormGrad(FusedElementwise((SiluGrad(),), ((0, 1),)), BatchNormGrad())
        found = backends.get(H200).plan(behind, (x, x, *small[:3], small[0]), HEURISTIC)
        assert found.label.endswith("resident")


def _formulations_of(op: BatchNorm, specs: tuple[Spec, ...]) -> tuple[Formulation, ...]:
    """The formulations that compete for a norm."""
    found: list[Problem] = []
    whole = formulations._choose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            formulations, "_choose", lambda asked, *rest: (found.append(asked), whole(asked, *rest))[1]
        )
        backends.get(H200).plan(op, specs, Policy(algorithm="fastest"))
    return found[0].formulations
