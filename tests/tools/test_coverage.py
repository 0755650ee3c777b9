"""The page about every function of cuDNN, and what records the calls it is made of."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.c import cudnn
from tests.helpers.recorder import Operations, Recorder
from tools import coverage
from tools.coverage import RECORDINGS, Recording, page, read, record, state

LINES = """\
cudnnGetVersion\treturned\tc/test_a.py
cudnnCreate\tCUDNN_STATUS_SUCCESS\tc/test_b.py
cudnnCreate\tCUDNN_STATUS_SUCCESS\tc/test_a.py
cudnnCreate\tCUDNN_STATUS_NOT_INITIALIZED\tc/test_b.py
cudnnIm2Col\tCUDNN_STATUS_NOT_SUPPORTED\tc/test_b.py
OPERATION_MATMUL\texecuted\tcudnn/test_c.py::test_values[plain]
OPERATION_MATMUL\texecuted\tcudnn/test_gpu_graph_cases.py::test_what_has_a_plan_runs[matmul: float16]
"""


def recording(lines: str) -> Recording:
    return record(lines.splitlines(True), device="a GPU", version=(9, 19, 0), date="2026-01-02")


def test_lines_become_a_recording(tmp_path: Path) -> None:
    made = recording(LINES)
    assert made.version == (9, 19, 0)
    assert made.files("cudnnCreate") == ["c/test_a.py", "c/test_b.py"]
    assert made.refusals("cudnnCreate") == {"CUDNN_STATUS_NOT_INITIALIZED": ["c/test_b.py"]}
    assert made.operations == {"OPERATION_MATMUL": ["cudnn/test_c.py", "cudnn/test_gpu_graph_cases.py"]}
    assert made.patterns == ["matmul: float16"]
    coverage.write(made, tmp_path / "made.json")
    assert read(tmp_path / "made.json") == made


def test_states_of_functions() -> None:
    ci, gpu = recording("cudnnGetProperty\tCUDNN_STATUS_SUCCESS\tc/test_a.py\n"), recording(LINES)
    assert state("cudnnCreate", ci, gpu) == coverage.GPU  # it succeeded once
    assert state("cudnnGetVersion", ci, gpu) == coverage.GPU
    assert state("cudnnGetProperty", ci, gpu) == coverage.CI
    assert state("cudnnIm2Col", ci, gpu) == coverage.REFUSED
    assert state("cudnnGnnAggSimpleForward", ci, gpu) == coverage.NEWER
    assert state("cudnnAddTensor", ci, gpu) == coverage.MISSING
    text = page(ci, gpu)
    assert (
        "| `cudnnIm2Col` |  | not runnable on a GPU: `CUDNN_STATUS_NOT_SUPPORTED` | `c/test_b.py` |  |"
        in text
    )
    assert "| `cudnnGnnAggSimpleForward` | 9.26 | refused: needs cuDNN 9.26.1 |  |  |" in text
    assert "- 2 executed on a GPU, 0 of them in CI as well\n- 1 executed in CI only\n" in text


def test_the_page_shows_the_recordings() -> None:
    assert coverage.PAGE.read_text(encoding="utf-8") == page(read(RECORDINGS["ci"]), read(RECORDINGS["gpu"]))


@pytest.mark.parametrize("kind", RECORDINGS)
def test_recordings_name_functions_and_tests_that_exist(kind: str) -> None:
    made = read(RECORDINGS[kind])
    assert set(made.calls) <= set(cudnn.SIGNATURES)
    files = {file for statuses in made.calls.values() for files in statuses.values() for file in files}
    files |= {file for files in made.operations.values() for file in files}
    assert [file for file in sorted(files) if not (coverage.ROOT / "tests" / file).exists()] == []


# ------------------------------------------------------------------------------------------------ the recorder


def library(results: dict[str, int]) -> Any:
    """A library of functions that return numbers, as far as the recorder looks at it."""

    def bind(name: str) -> Any:
        return ctypes.CFUNCTYPE(ctypes.c_int)(lambda: results[name])

    signatures = {"cudnnCreate": "i: handle=out", "cudnnGetVersion": "N: "}
    return SimpleNamespace(signatures=signatures, bind=bind, symbols=SimpleNamespace())


def test_calls_are_noted_once_for_each_status_and_file(tmp_path: Path) -> None:
    path, results = tmp_path / "calls.txt", {"cudnnCreate": 0, "cudnnGetVersion": 91900}
    made = library(results)
    recorder = Recorder(path, made)
    create, version = made.bind("cudnnCreate"), made.bind("cudnnGetVersion")
    assert create() == 0  # outside of tests nothing is noted
    recorder.test = "c/test_a.py::test_one"
    assert [create(), version()] == [0, 91900]
    recorder.test = "c/test_a.py::test_two"
    create()
    results["cudnnCreate"] = 3000
    assert create() == 3000
    assert path.read_text().splitlines() == [
        "cudnnCreate\tCUDNN_STATUS_SUCCESS\tc/test_a.py",
        "cudnnGetVersion\treturned\tc/test_a.py",
        "cudnnCreate\tCUDNN_STATUS_NOT_SUPPORTED\tc/test_a.py",
    ]


def test_functions_that_are_bound_already_would_be_lost(tmp_path: Path) -> None:
    late = library({})
    late.symbols.cudnnCreate = None
    with pytest.raises(RuntimeError, match="cudnnCreate are bound already"):
        Recorder(tmp_path / "calls.txt", late)


def test_a_plan_has_the_operations_of_its_graph() -> None:
    """Operation -> graph -> heuristic -> configuration that it fills in -> plan; addresses are used again."""
    operations, descriptors = Operations(), cudnn.CUDNN_TYPE_BACKEND_DESCRIPTOR
    product, graph, heuristic, config, plan = 16, 32, 48, 64, 80

    def create(kind: int, address: int) -> None:
        operations.follow("cudnnBackendCreateDescriptor", (kind, ctypes.byref(ctypes.c_size_t(address))))

    def link(how: str, parent: int, child: int) -> None:
        array = (ctypes.c_void_p * 1)(child)
        operations.follow(f"cudnnBackend{how}Attribute", (parent, 0, descriptors, 1, array))

    create(cudnn.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, product)
    create(cudnn.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, graph)
    link("Set", graph, product)
    create(cudnn.CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, heuristic)
    link("Set", heuristic, graph)
    create(cudnn.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, config)
    link("Get", heuristic, config)
    create(cudnn.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan)
    link("Set", plan, config)
    assert operations.follow("cudnnBackendExecute", (1, plan, 2)) == {"OPERATION_MATMUL"}
    create(cudnn.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan)
    assert operations.follow("cudnnBackendExecute", (1, plan, 2)) == set()


def test_every_function_of_the_recorded_version_is_accounted_for() -> None:
    assert coverage.missing(read(RECORDINGS["ci"]), read(RECORDINGS["gpu"])) == []
