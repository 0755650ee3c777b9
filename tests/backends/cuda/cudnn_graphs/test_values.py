"""Formulations that are one cuDNN graph compute the op: their graphs, run by NumPy, beside the reference."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cuda import backend as cuda_backend
from lamina.backends.cuda.cudnn_graphs import epilogue
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.formulations import Problem
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY, Arg, Op, Sample
from lamina.ops.primitives import AttentionGrad, Conv, ConvDataGrad, ConvFilterGrad, Fused, Matmul, Window
from lamina.spec import Policy, Spec, as_dtype, channels_last, float16, float32, float64, int8
from tests.helpers.cudnn.installed import needs_cudnn_919
from tests.helpers.cudnn.interpreter import NotInterpretedError, interpret
from tests.helpers.planned import H200

Array = np.ndarray[Any, Any]
#: Ops of which cuDNN computes all in one graph, and how many samples and formulations that is at least; graphs
#: between copies (attention over features that are no whole 16 bytes, with dropout backwards) are not among them.
GRAPHED = {
    "conv": 24, "conv_data_grad": 24, "conv_filter_grad": 24, "matmul": 40, "fused": 12, "quantized_conv": 4,
    "quantized_matmul": 4, "attention": 6, "attention_grad": 2, "joint_attention": 5, "matmul_bias_gelu": 18,
}  # fmt: skip


class _FoundError(Exception):
    """Instead of an engine: what the backend would choose among."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def problem_of(op: Op, arrays: list[Array], *, last: bool = False) -> Problem | None:
    """What the backend chooses among for an op, None where there is nothing. last: images lie channels last.

    For what an op is made of engines are chosen as they always are.
    """
    specs = tuple(Spec(a.shape, as_dtype(a.dtype)) for a in arrays)
    if last:
        specs = tuple(Spec(s.shape, s.dtype, channels_last(s.shape)) if s.ndim > 2 else s for s in specs)
    wanted = [[s.shape for s in side] for side in (specs, op.infer(*specs))]
    usual = formulations._first_choice

    def give_up(problem: Problem, *rest: Any) -> Any:
        if [[s.shape for s in side] for side in (problem.inputs, problem.outputs)] == wanted:
            raise _FoundError(problem)
        return usual(problem, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formulations, "_first_choice", give_up)
        try:
            cuda_backend(H200).plan(op, specs, Policy())
        except _FoundError as found:
            return found.problem
        except NoKernel:
            pass
    return None


def interpreted(problem: Problem, arrays: list[Array]) -> Iterator[tuple[str, list[Array]]]:
    """The results of each formulation that is a graph, by name."""
    for formulation in problem.formulations:
        try:
            yield formulation.name, interpret(formulation, problem, [a.astype(np.float64) for a in arrays])
        except (NotInterpretedError, NoKernel):
            continue


def check(op: Op, arrays: list[Array], *, last: bool = False) -> int:
    """Compare all formulations with the reference; how many there were."""
    problem, count = problem_of(op, arrays, last=last), 0
    if problem is None:
        return 0
    assert [s.shape for s in problem.inputs] == [a.shape for a in arrays]
    for name, found in interpreted(problem, arrays):
        count += 1
        for y, wanted, spec in zip(found, run_reference(op, arrays, float64), problem.outputs, strict=True):
            slack = 0.51 if spec.dtype == int8 else 1e-6  # the graph's result before it is rounded
            if isinstance(op, AttentionGrad):
                slack = 1e-3  # of results that were rounded when they were drawn
            np.testing.assert_allclose(
                y, wanted.astype(np.float64), slack / 10, slack, err_msg=f"{op} {arrays[0].dtype} {name}"
            )
    return count


@needs_cudnn_919
@pytest.mark.parametrize("name", GRAPHED)
def test_samples(name: str) -> None:
    count = 0
    for sample in REGISTRY[name].samples():
        for kind in sample.dtypes or sample.op.dtypes:
            if kind in (float16, float32, int8):
                count += check(sample.op, sample.draw(np.random.default_rng(3), kind))
    assert count >= GRAPHED[name], count


#: Windows of one to three axes: each number another, a filter that is flipped, groups.
WINDOWS = [
    (Window((2,), ((1, 3),), (2,)), (2, 4, 11), (6, 4, 3)),
    (Window((2, 3), ((1, 0), (2, 1)), (1, 2), groups=2), (2, 8, 9, 12), (6, 4, 3, 2)),
    (Window((1, 2), ((0, 1), (1, 2)), (2, 1), flip=True), (2, 4, 7, 9), (8, 4, 2, 3)),
    (Window((1, 2, 1), ((1, 1), (0, 2), (1, 0)), (1, 1, 2)), (2, 3, 4, 6, 5), (4, 3, 2, 3, 2)),
]


@needs_cudnn_919
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels_last"])
@pytest.mark.parametrize(("win", "x", "w"), WINDOWS, ids=lambda value: str(value).replace(" ", ""))
def test_convolutions(win: Window, x: tuple[int, ...], w: tuple[int, ...], last: bool) -> None:
    draw = np.random.default_rng(5).standard_normal
    y = Conv(win).infer(Spec(x, float16), Spec(w, float16))[0].shape
    cases = [(Conv(win), x, w), (ConvDataGrad(win, x[2:]), y, w), (ConvFilterGrad(win, w[2:]), x, y)]
    for op, *shapes in cases:
        assert check(op, [draw(s).astype(np.float16) for s in shapes], last=last) >= 1, op


def steps() -> Iterator[Op]:
    """Every step that may follow a convolution in a graph."""
    for kinds in (epilogue._BINARY, epilogue._UNARY, epilogue._WITH, epilogue._GRADS, epilogue._COMPOSED):
        for kind in kinds:
            yield from {sample.op: None for sample in kind.samples()}


@needs_cudnn_919
@pytest.mark.parametrize("step", [*steps()], ids=str)
def test_each_step_behind_a_product_and_a_convolution(step: Op) -> None:
    """Alone, and behind another, so that it reads a value and not memory."""
    draw = np.random.default_rng(7)
    win = Window((1, 2), ((1, 0), (1, 1)), (1, 1))
    for head, *shapes in ((Conv(win), (2, 4, 5, 6), (6, 4, 2, 3)), (Matmul(False, True), (5, 8), (7, 8))):
        arrays = [draw.standard_normal(s).astype(np.float32) for s in shapes]
        (y,) = head.infer(*(Spec(a.shape, float32) for a in arrays))
        other = draw.uniform(0.5, 2, y.shape).astype(np.float32)
        more = [other] * ((step.arity or 1) - 1)
        count = check(Fused((head, step)), [*arrays, *more])
        count += check(Fused((head, step, *([step] if not more else []))), [*arrays, *more])
        assert count >= 2, (head, step)


def test_samples_that_are_wrong_are_found() -> None:
    """A graph whose window is another one does not compute the op."""
    sample = Sample.of(Conv(Window((1, 1), ((1, 1), (1, 1)), (1, 1))), Arg((2, 4, 5, 5)), Arg((3, 4, 3, 3)))
    arrays = sample.draw(np.random.default_rng(1), float32)
    problem = problem_of(sample.op, arrays)
    assert problem is not None
    (_, (found,)), *_ = interpreted(problem, arrays)
    turned = [arrays[0], arrays[1][:, :, ::-1]]
    assert not np.allclose(found, run_reference(sample.op, turned, float64)[0])
