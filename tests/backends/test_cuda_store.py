"""The plan store: what is remembered, and what becomes of files that others wrote, tore or edited."""

import json
import multiprocessing
from pathlib import Path

import pytest

from lamina.backends.cuda.choice import unwanted
from lamina.backends.cuda.store import Choice, PlanStore
from lamina.cudnn import NumericalNote
from lamina.spec import Policy, bfloat16, float32


def store(folder: Path) -> PlanStore:
    return PlanStore("NVIDIA H200", "9.19.0", folder)


@pytest.mark.feature("B010", "F086", "F087")
def test_choices_survive(tmp_path: Path) -> None:
    first = store(tmp_path)
    choice = Choice("deep", 62, ((2, 0), (13, 1)), 0.5)
    first.put("conv a", choice)
    first.put("conv b", Choice("direct"))
    again = store(tmp_path)
    assert again.get("conv a") == choice
    assert again.get("conv a").key == (62, ((2, 0), (13, 1)))  # type: ignore[union-attr]
    assert again.get("conv b") == Choice("direct")
    assert again.get("conv c") is None
    assert again.path.name == "NVIDIA-H200-9.19.0.json"
    assert PlanStore("NVIDIA H200", "9.20.0", tmp_path).get("conv a") is None  # another version, another file


@pytest.mark.feature("B010")
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1, 2]",
        "null",
        '{"k": 1}',
        '{"k": {"way": "deep"}}',
        '{"k": {"way": "deep", "engine": "x", "knobs": [], "milliseconds": 1}}',
        '{"k": {"way": "deep", "engine": 1, "knobs": [[1]], "milliseconds": 1}}',
        "\x00\xff",
    ],
)
def test_what_is_torn_is_ignored(tmp_path: Path, content: str) -> None:
    place = store(tmp_path).path
    place.parent.mkdir(exist_ok=True)
    place.write_text(content)
    damaged = store(tmp_path)
    assert damaged.get("k") is None
    damaged.put("new", Choice("plain", 1))
    assert store(tmp_path).get("new") == Choice("plain", 1)


@pytest.mark.feature("B010")
def test_good_entries_of_an_edited_file_count(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.put("good", Choice("plain", 3, ((1, 2),), 0.25))
    content = json.loads(first.path.read_text())
    content["bad"] = {"way": None}
    first.path.write_text(json.dumps(content))
    assert store(tmp_path).get("good") == Choice("plain", 3, ((1, 2),), 0.25)
    assert store(tmp_path).get("bad") is None


def _write(folder: str, worker: int) -> None:
    mine = PlanStore("NVIDIA H200", "9.19.0", Path(folder))
    for number in range(20):
        mine.put(f"{worker} {number}", Choice("plain", number))


@pytest.mark.feature("B010")
def test_many_processes_never_tear_the_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(str(tmp_path), n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert isinstance(json.loads(store(tmp_path).path.read_text()), dict)
    assert list(tmp_path.glob(".new-*")) == []
    assert sum(store(tmp_path).get(f"{w} 19") is not None for w in range(3)) >= 1


@pytest.mark.feature("B010", "B040")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = PlanStore("NVIDIA H200", "9.19.0", tmp_path / "file" / "plans")
    blocked.put("k", Choice("plain", 1))
    assert blocked.get("k") == Choice("plain", 1)


class _Engine:
    def __init__(self, *notes: str) -> None:
        self.numerical_notes = frozenset(NumericalNote[f"CUDNN_NUMERICAL_NOTE_{n}"] for n in notes)


class _Config:
    def __init__(self, *notes: str) -> None:
        self.engine = _Engine(*notes)


@pytest.mark.feature("B011", "B017", "F091", "F093")
def test_policies_forbid_engines() -> None:
    tensor_core, random = _Config("TENSOR_CORE"), _Config("NONDETERMINISTIC")
    assert "TF32" in unwanted(tensor_core, float32, Policy())  # type: ignore[arg-type]
    assert unwanted(tensor_core, float32, Policy(tf32=True)) == ""  # type: ignore[arg-type]
    assert unwanted(tensor_core, bfloat16, Policy()) == ""  # type: ignore[arg-type]
    assert "TF32" in unwanted(_Config("DOWN_CONVERT_INPUTS"), float32, Policy())  # type: ignore[arg-type]
    assert unwanted(random, bfloat16, Policy()) == ""  # type: ignore[arg-type]
    assert unwanted(random, bfloat16, Policy(deterministic=True)) == "not deterministic"  # type: ignore[arg-type]
    assert "half" in unwanted(_Config("REDUCED_PRECISION_REDUCTION"), bfloat16, Policy())  # type: ignore[arg-type]
