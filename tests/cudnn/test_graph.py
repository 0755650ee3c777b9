"""The graph API: every operation is planned for an H200 or refused with a known reason; builder, notes, knobs.

What needs plans runs in another process (graph_run.py, graph_parts.py), which sees a libcuda without devices.
"""

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from lamina import cudnn
from lamina.c import cudnn as c
from lamina.c.errors import CudnnError
from lamina.cudnn import Graph
from tests.helpers.cudnn.graph_cases import CASES, KINDS, Case, image
from tests.helpers.cudnn.graph_run import in_process
from tests.helpers.cudnn.installed import needs_cudnn_919
from tools import coverage, graph_coverage

pytestmark = needs_cudnn_919


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = in_process(
        "tests.helpers.cudnn.graph_run", tmp_path_factory.mktemp("libcuda")
    )
    return found


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = in_process("tests.helpers.cudnn.graph_parts", tmp_path_factory.mktemp("libcuda"))
    return found


# ------------------------------------------------------------------------------------------------- operations


def test_every_operation_has_a_case() -> None:
    assert {case.kind for case in CASES} == set(KINDS)
    assert len({case.title for case in CASES}) == len(CASES)


@pytest.mark.feature("B005", "B007", "B008")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_planned_for_an_h200_or_refused_for_a_reason(case: Case, outcomes: dict[str, list[Any]]) -> None:
    engine, words = outcomes[case.title]
    if case.refused:
        assert engine == "refused"
        assert re.search(case.refused, words, re.DOTALL), words
    else:
        assert re.fullmatch(r"eng\d+", engine), words
        assert words >= 0


NEWER = [case for case in CASES if case.refused.startswith("needs cuDNN")]


@pytest.mark.feature("B005", "B001")
@pytest.mark.parametrize("case", NEWER, ids=lambda case: case.title)
def test_newer_operations_name_their_version(case: Case) -> None:
    with pytest.raises(NotImplementedError, match=case.refused + r", this is 9\.19"):
        case.graph()


OLDER = [case for case in CASES if case not in NEWER and "cudnnBackendFinalize" not in case.refused]


@pytest.mark.feature("B005")
@pytest.mark.parametrize("case", OLDER, ids=lambda case: case.title)
def test_operations_are_finalized_and_tell_their_attributes(case: Case) -> None:
    if case.title == "resample_bwd: nearest":
        with pytest.raises(CudnnError, match="BAD_PARAM"):
            case.graph()
        return
    graph = case.graph()
    kinds = {operation.kind.name for operation in graph.operations}
    assert f"CUDNN_BACKEND_{case.kind}_DESCRIPTOR" in kinds
    for operation in graph.operations:
        assert operation.values
        for name, value in operation.values.items():
            assert name in repr(operation)
            if isinstance(value, float):
                assert operation.get(name) == pytest.approx(value)


@pytest.mark.feature("B005")
def test_values_come_back() -> None:
    """Attributes that the library keeps are read from the library."""
    rng = cudnn.Rng("uniform", minimum=-1.0, maximum=2.0)
    assert (rng.get("minimum"), rng.get("maximum")) == (-1.0, 2.0)
    how = cudnn.Resample("bilinear", window=(2, 2), stride=(Fraction(1, 2),) * 2, pre=(Fraction(1, 2),) * 2)
    assert how.get("stride") == (Fraction(1, 2),) * 2
    graph = Graph()
    x = graph.packed((2, 3, 4, 5), "float16", vector_count=1)
    assert x.strides == (60, 20, 5, 1)
    assert x.like(data_type="float32").get("data_type") == c.cudnnDataType_t.CUDNN_DATA_FLOAT
    assert graph.scalar().by_value
    assert not graph.scalar(by_value=False).by_value
    assert cudnn.packed_strides((2, 3, 4, 5), channels_last=True) == (60, 1, 15, 3)


# ------------------------------------------------------------------------------------------------------ notes


@pytest.mark.feature("B006")
def test_notes_by_name() -> None:
    assert cudnn.note("tensor_core") == c.cudnnBackendNumericalNote_t.CUDNN_NUMERICAL_NOTE_TENSOR_CORE
    native = c.cudnnBackendBehaviorNote_t.CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API
    assert cudnn.note("supports_cuda_graph_native_api") is native
    assert cudnn.note(native) is native
    with pytest.raises(ValueError, match="unknown note 'fastest'; known: tensor_core,"):
        cudnn.note("fastest")
    assert cudnn.knob_name(2) == "TILE_SIZE"


@pytest.mark.parametrize("kind", [cudnn.KnobInfo, cudnn.EngineConfig, cudnn.ExecutionPlan])
def test_what_is_closed_says_so(kind: Any) -> None:
    made = kind.empty()
    made.close()
    assert repr(made) == f"{kind.__name__}(closed)"


# ------------------------------------------------------------------------------------------------------ plans


@pytest.mark.feature("B006", "B007")
def test_notes_filter_plans(parts: dict[str, Any]) -> None:
    found = parts["notes"]
    assert found["compiled only"] == [True]
    assert found["not compiled"] == [False]
    assert "lacks CUDNN_NUMERICAL_NOTE_WINOGRAD" in found["refusal"]
    assert found["native"] == [True]


@pytest.mark.feature("B006", "F091")
def test_engines_by_number_with_knobs(parts: dict[str, Any]) -> None:
    found = parts["engines"]
    assert found["count"] > found["accepting"] > 5
    assert all(re.fullmatch(r"KnobInfo\(\w+: \d+ to \d+ by \d+\)", knob) for knob in found["first knobs"])
    assert found["set"] == found["got"]
    assert found["plan"] == found["set"]


@pytest.mark.feature("B006", "B007")
def test_heuristics_take_a_multiprocessor_count(parts: dict[str, Any]) -> None:
    found = parts["sm_count"]
    assert found["all"] > 0
    assert 0 < found["whole"] <= found["all"]
    # Fewer than the GPU has: without a GPU the library cannot tell that it has them, and says so.
    assert "target_sm_count" in found["half"]
    assert found["modes"] == {"a": True, "b": True, "fallback": True, "instant": True}


@pytest.mark.feature("B006", "F087")
def test_kernel_cache_of_a_dynamic_graph(parts: dict[str, Any]) -> None:
    found = parts["kernel_cache"]
    assert found["engine"].startswith("eng")
    assert found["text"] > 2
    assert found["again"] == found["text"]


@pytest.mark.feature("B006")
def test_workspace_cap(parts: dict[str, Any]) -> None:
    found = parts["workspace"]
    assert all(size <= found["limit"] for size in found["sizes"])
    assert found["over"] > 0


@pytest.mark.feature("B007")
def test_what_a_gpu_test_runs_has_plans(parts: dict[str, Any]) -> None:
    assert parts["scenarios"] == {}


# ---------------------------------------------------------------------------------------------------- explain


@pytest.mark.feature("B008")
def test_a_supported_graph_needs_no_rewrite(parts: dict[str, Any]) -> None:
    found = parts["explain supported"]
    assert found["supported"]
    assert found["rewrite"] == []
    assert "is supported: eng" in found["text"]


@pytest.mark.feature("B008")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("int8", ["bfloat16 tensors"]),
        ("int8 in rows", ["channels last (NHWC)"]),
        ("odd channels", ["channels padded from 35 to 40"]),
        ("double arithmetic", ["float32 arithmetic"]),
        ("two convolutions", ["split before ConvolutionForward"]),
    ],
)
def test_the_nearest_rewrite_is_found_by_trying(name: str, changes: list[str], parts: dict[str, Any]) -> None:
    found = parts[f"explain {name}"]
    assert not found["supported"]
    assert len(found["rewrite"]) == len(changes), found
    for wanted, got in zip(changes, found["rewrite"], strict=True):
        assert got.startswith(wanted)
    assert "accepted instead: " in found["text"]


@pytest.mark.feature("B008")
def test_reasons_of_every_engine(parts: dict[str, Any]) -> None:
    found = parts["explain int8"]
    assert found["engines"] > 20
    assert "NOT_SUPPORTED_ARCH_MISMATCH: made for other GPUs (" in found["text"]
    assert "NOT_SUPPORTED_DATA_TYPE: !is_input_compute_type_match" in found["text"]
    hopeless = parts["explain hopeless"]
    assert hopeless["rewrite"] == []
    assert re.search(r"none of \d+ rewrites is accepted either", hopeless["text"])


@pytest.mark.feature("B008")
def test_features_of_a_layer_norm_are_not_padded(parts: dict[str, Any]) -> None:
    found = parts["explain layer norm"]
    assert not found["supported"]
    assert not any("padded" in change for change in found["rewrite"])


@pytest.mark.feature("B008")
def test_a_refused_graph_is_one_verdict(parts: dict[str, Any]) -> None:
    assert "(the graph)" in parts["explain refused graph"]["text"]


# ---------------------------------------------------------------------------------------------------- the page


def test_the_page_is_up_to_date(outcomes: dict[str, list[Any]]) -> None:
    run = coverage.read(coverage.RECORDINGS["gpu"])
    text = graph_coverage.page({name: (words[0], words[1]) for name, words in outcomes.items()}, run)
    assert Path(graph_coverage.PAGE).read_text(encoding="utf-8") == text


def test_image_helper_is_channels_last() -> None:
    assert image(Graph()).strides[1] == 1
