"""Algorithm search on the GPU: lists that make sense, choices that hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.c.errors import CudnnNotSupported
from lamina.cudnn import legacy
from lamina.cudnn.legacy import Choices, Search, fitting
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import Gpu, Operand

pytestmark = pytest.mark.gpu
X, W, Y = (4, 16, 20, 18), (32, 16, 3, 3), (4, 32, 20, 18)
DIRECTIONS = pytest.mark.parametrize("direction", legacy.NAMED)


class Problem:
    """A float32 convolution with memory for all three operands."""

    def __init__(self, gpu: Gpu, direction: str) -> None:
        self.gpu, self.direction = gpu, direction
        self.x, self.w, self.y = (
            gpu.tensor(gpu.normal(X)),
            gpu.filter(gpu.normal(W)),
            gpu.tensor(gpu.normal(Y)),
        )
        self.convolution = legacy.Convolution(pad=1, math_type="fma")
        self.search = Search(direction, self.convolution, self.x.desc, self.w.desc, self.y.desc)
        self.memory = {"x": self.x.memory, "w": self.w.memory, "y": self.y.memory}

    def run(self, found: legacy.Found) -> tuple[Operand, Any]:
        """The direction with an algorithm that was found: its result and what that should be."""
        convolution, algorithm = self.convolution.replace(math_type=found.math_type), found.algorithm
        x, w, y, window = self.x, self.w, self.y, ((1, 1), (1, 1), (1, 1))
        handle = self.gpu.handle
        if self.direction == "forward":
            out = self.gpu.output(Y)
            operands = {**x.named("x"), **w.named("w"), **out.named("y")}
            convolution.forward(handle, **operands, algorithm=algorithm)
            return out, ref.conv(x.values, w.values, *window)
        if self.direction == "backward_data":
            out = self.gpu.output(X)
            operands = {**w.named("w"), **y.named("dy"), **out.named("dx")}
            convolution.backward_data(handle, **operands, algorithm=algorithm)
            return out, ref.conv_data(y.values, w.values, X, *window)
        out = self.gpu.output(W, make="filter")
        operands = {**x.named("x"), **y.named("dy"), **out.named("dw")}
        convolution.backward_filter(handle, **operands, algorithm=algorithm)
        return out, ref.conv_filter(x.values, y.values, W, *window)


@pytest.mark.feature("F081", "F079")
@DIRECTIONS
def test_the_ranked_list(gpu: Gpu, direction: str) -> None:
    problem = Problem(gpu, direction)
    found = problem.search.ranked(gpu.handle)
    assert 0 < len(found) <= problem.search.max_count(gpu.handle)
    kind = type(legacy.algorithm(direction))
    assert all(type(one.algorithm) is kind and one.time is None for one in found)
    working = [one for one in found if one.works]
    assert working
    assert found[: len(working)] == working
    for one in working:
        if one.math_type == problem.convolution.get().math_type:
            assert problem.search.workspace(gpu.handle, one.algorithm) <= one.memory
    out, wanted = problem.run(working[0])
    out.check(wanted, tolerance=2e-3)


@pytest.mark.feature("F079", "F091", "B011")
@DIRECTIONS
def test_the_heuristic(gpu: Gpu, direction: str) -> None:
    search = Problem(gpu, direction).search
    listed = search.ranked(gpu.handle)
    assert search.heuristic(gpu.handle) == listed[0]
    exact = search.heuristic(gpu.handle, deterministic=True)
    assert exact == fitting(listed, deterministic=True)[0]
    for asked, limit in (({"preference": "no_workspace"}, 0), ({"limit": 1 << 20}, 1 << 20)):
        allowed = fitting(listed, limit=limit)
        if allowed:
            assert search.heuristic(gpu.handle, **asked) == allowed[0]
        else:
            with pytest.raises(CudnnNotSupported, match="the least workspace is"):
                search.heuristic(gpu.handle, **asked)
    with pytest.raises(CudnnNotSupported, match="limit -1"):
        search.heuristic(gpu.handle, limit=-1)


@pytest.mark.feature("F080", "F081")
@DIRECTIONS
def test_timed_find(gpu: Gpu, direction: str) -> None:
    problem = Problem(gpu, direction)
    found = problem.search.find(gpu.handle)
    working = [one for one in found if one.works]
    assert working
    times = [one.time for one in working]
    assert all(time is not None and time > 0 for time in times)
    assert times == sorted(times)  # type: ignore[type-var]
    out, wanted = problem.run(working[0])
    out.check(wanted, tolerance=2e-3)


@pytest.mark.feature("F080", "F091", "B011")
@DIRECTIONS
def test_find_ex_stays_within_its_memory(gpu: Gpu, direction: str) -> None:
    problem = Problem(gpu, direction)
    found = problem.search.find_ex(gpu.handle, **problem.memory, limit=1 << 20)
    assert found
    assert all(one.works and one.memory <= 1 << 20 for one in found)
    own = gpu.zeros(1 << 16)
    small = problem.search.find_ex(gpu.handle, **problem.memory, workspace=own)
    assert all(one.memory <= 1 << 16 for one in small if one.works)
    exact = problem.search.find_ex(gpu.handle, **problem.memory, deterministic=True)
    assert exact
    assert all(legacy.short(one.determinism) == "deterministic" for one in exact)


@pytest.mark.feature("F091")
@DIRECTIONS
def test_deterministic_algorithms_repeat_bit_by_bit(gpu: Gpu, direction: str) -> None:
    problem = Problem(gpu, direction)
    best = problem.search.heuristic(gpu.handle, deterministic=True)
    first, again = (problem.run(best)[0].read() for _ in range(2))
    assert (first == again).all()


@pytest.mark.feature("F087", "F086")
@DIRECTIONS
def test_a_choice_is_found_again(gpu: Gpu, direction: str, tmp_path: Path) -> None:
    problem, choices = Problem(gpu, direction), Choices()
    assert choices.get(problem.search, gpu.handle) is None
    best = problem.search.find_ex(gpu.handle, **problem.memory, limit=8 << 20)[0]
    choices.put(problem.search, gpu.handle, best)
    choices.save(tmp_path / "choices.json")
    again = Choices.load(tmp_path / "choices.json")
    kept = again.get(Problem(gpu, direction).search, gpu.handle)
    assert kept == best
    assert gpu.device.name in problem.search.key(gpu.handle)
    out, wanted = problem.run(kept)
    out.check(wanted, tolerance=2e-3)


@pytest.mark.feature("F021", "F080")
def test_search_for_a_deconvolution(gpu: Gpu) -> None:
    deconvolution = legacy.Deconvolution(pad=1, math_type="fma")
    x, w, y = gpu.tensor(gpu.normal(Y)), gpu.filter(gpu.normal(W)), gpu.output(X)
    search = Search("forward", deconvolution, x.desc, w.desc, y.desc)
    best = search.find_ex(gpu.handle, x=x.memory, w=w.memory, y=y.memory)[0]
    assert type(best.algorithm) is legacy.BackwardDataAlgo
    deconvolution.replace(math_type=best.math_type).forward(
        gpu.handle, **x.named("x"), **w.named("w"), **y.named("y"), algorithm=best.algorithm
    )
    y.check(ref.conv_data(x.values, w.values, X, (1, 1), (1, 1), (1, 1)), tolerance=2e-3)
