"""Algorithm search without a GPU: directions, filters, choices kept in files."""

import json
from pathlib import Path
from typing import Any

import pytest

from lamina.c import cudnn as c
from lamina.c.errors import CudnnBadParam, CudnnNotSupported
from lamina.cudnn import legacy
from lamina.cudnn.legacy import Choices, Found, Search, fitting
from tests.helpers.cudnn.installed import CUDNN, needs_cudnn

pytestmark = needs_cudnn
if CUDNN:
    X, W = legacy.TensorDescriptor((2, 4, 9, 9)), legacy.FilterDescriptor((6, 4, 3, 3))
PERF = {
    "forward": c.cudnnConvolutionFwdAlgoPerf_t,
    "backward_data": c.cudnnConvolutionBwdDataAlgoPerf_t,
    "backward_filter": c.cudnnConvolutionBwdFilterAlgoPerf_t,
}


def search(direction: str = "forward") -> Search:
    convolution = legacy.Convolution(pad=1)
    return Search(direction, convolution, X, W, convolution.output(X, W))


def transposed(direction: str) -> Search:
    deconvolution = legacy.Deconvolution(pad=1)
    x = legacy.TensorDescriptor((2, 6, 9, 9))
    return Search(direction, deconvolution, x, W, deconvolution.output(x, W))


def found(algo: int = 1, status: int = 0, time: float | None = 1.0, memory: int = 0, exact: int = 1) -> Found:
    return Found(
        legacy.ForwardAlgo(algo),
        legacy.Status(status),
        time,
        memory,
        legacy.Determinism(exact),
        legacy.MathType(0),
    )


class Recorder:
    """Takes the place of the library's search functions, and answers with perfs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.perfs: list[tuple[int, int, float, int, int]] = []
        for name in vars(c):
            if name.startswith(("cudnnFindConvolution", "cudnnGetConvolution")) and "Algorithm" in name:
                monkeypatch.setattr(c, name, self.answer(name))

    def answer(self, name: str) -> Any:
        def function(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            if name.endswith("MaxCount"):
                return 9
            perf = PERF[
                "backward_data"
                if "BackwardData" in name
                else "backward_filter"
                if "BackwardFilter" in name
                else "forward"
            ]
            return [perf(*values, 0) for values in self.perfs]

        return function


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder(monkeypatch)
    # algo, status, time, memory, determinism
    made.perfs = [(1, 0, 0.5, 4096, 1), (0, 0, 0.7, 0, 0), (2, 3000, -1.0, 0, 0), (5, 0, 0.9, 1 << 20, 1)]
    return made


@pytest.mark.feature("F081", "F079")
@pytest.mark.parametrize(
    ("direction", "stem", "operands"),
    [
        ("forward", "ConvolutionForward", "x w conv y"),
        ("backward_data", "ConvolutionBackwardData", "w y conv x"),
        ("backward_filter", "ConvolutionBackwardFilter", "x y conv w"),
    ],
)
@pytest.mark.parametrize("flip", [False, True])
def test_each_direction_calls_its_functions(
    recorder: Recorder, direction: str, stem: str, operands: str, flip: bool
) -> None:
    """A deconvolution's forward is looked for among the data gradients of its convolution, and so on."""
    made = search(direction)
    if flip:
        made = transposed({"forward": "backward_data", "backward_data": "forward"}.get(direction, direction))
        operands = operands.translate(str.maketrans("xy", "yx"))
    names = {"x": made.x_desc, "w": made.w_desc, "y": made.y_desc, "conv": made.convolution}
    wanted = tuple(names[name].address for name in operands.split())
    listed = made.ranked(None)
    assert recorder.calls[-1] == (f"cudnnGet{stem}Algorithm_v7", (None, *wanted, 9))
    assert all(one.time is None for one in listed)
    timed = made.find(None)
    assert recorder.calls[-1] == (f"cudnnFind{stem}Algorithm", (None, *wanted, 9))
    assert [one.time for one in timed] == [0.5, pytest.approx(0.7), pytest.approx(0.9), None]
    memory = {"x": 1, "w": 2, "y": 3}
    made.find_ex(None, x=1, w=2, y=3, workspace=(7, 512))
    name, arguments = recorder.calls[-1]
    assert name == f"cudnnFind{stem}AlgorithmEx"
    first, second, _, result = operands.split()
    assert arguments == (
        None, names[first].address, memory[first], names[second].address, memory[second],
        made.convolution.address, names[result].address, memory[result], 9, 7, 512,
    )  # fmt: skip
    kind = type(legacy.algorithm(made.c_direction))
    assert all(type(one.algorithm) is kind for one in timed)
    assert made.named("none") is legacy.NAMED[made.c_direction]["none"]
    assert made.names() == legacy.NAMED[made.c_direction]


@pytest.mark.feature("F079", "F091", "B011")
def test_the_heuristic_meets_a_preference(recorder: Recorder) -> None:
    made = search()
    assert made.heuristic(None).memory == 4096
    assert made.heuristic(None, preference="no_workspace").memory == 0
    assert made.heuristic(None, limit=4095).memory == 0
    assert made.heuristic(None, preference="specify_workspace_limit", limit=4096).memory == 4096
    assert made.heuristic(None, deterministic=True).determinism == c.CUDNN_DETERMINISTIC
    with pytest.raises(
        CudnnNotSupported, match=r"least workspace is 4096 bytes \(limit 0, deterministic True"
    ):
        made.heuristic(None, preference="no_workspace", deterministic=True)
    with pytest.raises(ValueError, match="needs limit, in bytes"):
        made.heuristic(None, preference="specify_workspace_limit")
    recorder.perfs = [(1, 3000, -1.0, 0, 0)]
    with pytest.raises(CudnnNotSupported, match="no algorithm works"):
        made.heuristic(None)


@pytest.mark.feature("F091", "B011", "F080")
def test_searches_are_filtered(recorder: Recorder) -> None:
    made = search()
    assert [int(one.algorithm) for one in made.find(None)] == [1, 0, 5, 2]  # what does not work comes last
    assert [int(one.algorithm) for one in made.find(None, limit=4096)] == [1, 0]
    assert [int(one.algorithm) for one in made.find(None, deterministic=True)] == [1, 5]
    assert [int(one.algorithm) for one in made.ranked(None, limit=0)] == [0]
    made.find_ex(None, x=1, w=2, y=3, workspace=(7, 1 << 20), limit=4096)
    assert recorder.calls[-1][1][-2:] == (7, 4096)  # the library is told of no more than the limit
    with pytest.raises(TypeError, match=r"workspace: 1048576 bytes are needed; pass them"):
        made.find_ex(None, x=1, w=2, y=3)
    recorder.perfs = [(0, 0, 0.7, 0, 0)]
    made.find_ex(None, x=1, w=2, y=3)
    assert recorder.calls[-1][1][-2:] == (None, 0)


def test_without_a_gpu_a_search_says_so() -> None:
    with pytest.raises(CudnnBadParam, match="cudnnGetConvolutionForwardAlgorithmMaxCount"):
        search().ranked(None)
    with pytest.raises(ValueError, match="direction='sideways'"):
        search("sideways")
    with pytest.raises(TypeError, match="convolution: "):
        Search("forward", legacy.Pooling(window=2), X, W, X)  # type: ignore[arg-type]


@pytest.mark.feature("F081")
def test_results_are_filtered_and_readable() -> None:
    results = [found(1, memory=10), found(0, exact=0), found(4, status=3000)]
    assert fitting(results) == results[:2]
    assert fitting(results, limit=9) == results[1:2]
    assert fitting(results, deterministic=True) == results[:1]
    assert (
        repr(results[0])
        == "Found(implicit_precomp_gemm, success, 1 ms, 10 bytes, deterministic, math default)"
    )
    assert repr(found(time=None)).startswith("Found(implicit_precomp_gemm, success, not timed")
    assert not results[2].works


# --------------------------------------------------------------------------------------------------- choices
@pytest.mark.feature("F087")
def test_choices_are_saved_and_restored(tmp_path: Path) -> None:
    choices = Choices()
    first, second = search(), search("backward_filter")
    best = found(6, memory=123456, time=0.25)
    gradient = Found(
        legacy.BackwardFilterAlgo(3), legacy.Status(0), None, 0, legacy.Determinism(0), legacy.MathType(1)
    )
    choices.put(first, None, best)
    choices.put(second, None, gradient)
    assert choices.get(search(), None) == best
    file = tmp_path / "choices.json"
    choices.save(file)
    again = Choices.load(file)
    assert len(again) == 2
    assert again.get(first, None) == best
    assert again.get(second, None) == gradient
    assert type(again.get(second, None)[0]) is legacy.BackwardFilterAlgo
    assert [path.name for path in tmp_path.iterdir()] == ["choices.json"]
    again.clear()
    assert again.get(first, None) is None
    again.save(file)
    assert len(Choices.load(file)) == 0


@pytest.mark.feature("F086", "F087")
def test_a_choice_holds_for_its_case_only() -> None:
    choices = Choices()
    choices.put(search(), None, found())
    y = legacy.Convolution(pad=1).output(X, W)
    others = [
        Search("forward", legacy.Convolution(pad=1, stride=1, dilation=1, math_type="fma"), X, W, y),
        Search("forward", legacy.Convolution(pad=1, mode="convolution"), X, W, y),
        Search("forward", legacy.Convolution(pad=1, compute_type="float64"), X, W, y),
        Search(
            "forward", legacy.Convolution(pad=1), X, W, legacy.TensorDescriptor((2, 9, 9, 6), format="nhwc")
        ),
        Search("backward_data", legacy.Convolution(pad=1), X, W, y),
        Search("forward", legacy.Convolution(pad=1), X, W, y, alignment=4),
        Search("forward", legacy.Convolution(pad=1), legacy.TensorDescriptor((3, 4, 9, 9)), W, y),
    ]
    assert all(choices.get(other, None) is None for other in others)
    assert choices.get(search(), None) == found()
    with pytest.raises(TypeError, match="is no algorithm for backward_data"):
        choices.put(search("backward_data"), None, found())


@pytest.mark.feature("F087")
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"format": 1', '"format": 99'),
        lambda text: text.replace("winograd", "telepathy"),
        lambda text: text.replace("123456", '"much"'),
        lambda text: text.replace("123456", "-1"),
        lambda text: text.replace("forward |", "upward |"),
        lambda text: text.replace('"memory"', '"memories"'),
        lambda text: json.dumps({"format": 1, "choices": [1, 2]}),
        lambda text: json.dumps({"format": 1, "choices": {"forward | x": 7}}),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: Any) -> None:
    choices, file = Choices(), tmp_path / "choices.json"
    choices.put(search(), None, found(6, memory=123456))
    choices.save(file)
    file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=r"choices\.json holds no choices: "):
        Choices.load(file)


def test_a_file_that_is_absent_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Choices.load(tmp_path / "none.json")
