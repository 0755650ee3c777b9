"""Every `lamina.…` name that the documents put in backticks is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.cli.status import ExitStatus
from tests.helpers import ROOT
from tests.helpers.own_ops import unregistered
from tests.helpers.ranks import run_ranks

PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
#: A name in backticks, alone or with what follows it (a call, an assignment).
NAME = re.compile(r"(?<!`)`(lamina(?:\.\w+)+)[^`\n]*`(?!`)")
PROGRAM = re.compile(r"```python\n(.*?)```", re.S)
#: Whose networks are converted: without them the names that need them are only listed.
PACKAGES = ("torch",)
FENCED = re.compile(r"```.*?```", re.S)


def names(text: str) -> set[str]:
    return set(NAME.findall(FENCED.sub("", text)))


def resolve(name: str) -> Any:
    """What a dotted name means: modules are imported as far as they go, the rest are attributes.

    Fields of a class that have no value there (named tuples, dataclasses) count as attributes.
    """
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 1):
        if hasattr(found, part):
            found = getattr(found, part)
        elif part in getattr(found, "__annotations__", {}):
            found = found.__annotations__[part]
        else:
            found = importlib.import_module(".".join(parts[: index + 1]))
    return found


@pytest.mark.feature("B043")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_resolve(page: Path) -> None:
    missing = {}
    for name in sorted(names(page.read_text(encoding="utf-8"))):
        try:
            resolve(name)
        except ModuleNotFoundError as error:
            if error.name not in PACKAGES or name.rpartition(".")[2] not in lamina.convert.__all__:
                missing[name] = str(error)
        except (ImportError, AttributeError) as error:
            missing[name] = str(error)
    assert missing == {}


@pytest.mark.feature("B043")
def test_each_of_the_five_systems_has_its_page() -> None:
    pages = {
        "gocudnn": 100,
        "cudnn-python-wrappers": 25,
        "cuda-practice": 40,
        "cudnn-torch": 50,
        "theano-dnn": 50,
    }
    for page, least in pages.items():
        text = (ROOT / "docs" / "coming-from" / f"{page}.md").read_text(encoding="utf-8")
        assert len(names(text)) >= least, page


@pytest.mark.feature("B043")
@pytest.mark.parametrize(
    "page", ["cudnn-python-wrappers", "cuda-practice", "cudnn-torch", "onnxruntime", "theano-dnn"]
)
def test_programs_of_the_pages_run(page: str) -> None:
    text = (ROOT / "docs" / "coming-from" / f"{page}.md").read_text(encoding="utf-8")
    (program,) = PROGRAM.findall(text)
    exec(compile(program, page, "exec"), {"__name__": page})


def test_the_program_of_the_page_on_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are one program; an exit status is in the table and in the code."""
    text = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(PROGRAM.findall(text)), "train.md", "exec"), {"__name__": "train"})
    table = {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.M)}
    assert table == set(ExitStatus)


@pytest.mark.feature("B030")
def test_the_program_of_the_page_on_data_at_scale_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "data-at-scale.md").read_text(encoding="utf-8")
    exec(compile("\n".join(PROGRAM.findall(text)), "data-at-scale.md", "exec"), {"__name__": "data_at_scale"})


def test_the_program_of_the_page_on_scaling_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    (program,) = PROGRAM.findall(text)
    exec(compile(program, "scaling.md", "exec"), {"__name__": "scaling"})
    assert capsys.readouterr().out == "110 samples/s, 1.72 of 2\n"


def test_the_program_of_the_page_on_serving_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    exec(compile("\n".join(PROGRAM.findall(text)), "serving.md", "exec"), {"__name__": "serving"})


def test_the_program_of_the_page_on_generation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "generation.md").read_text(encoding="utf-8")
    program: dict[str, Any] = {"__name__": "generation"}
    (code,) = PROGRAM.findall(text)
    exec(compile(code, "generation.md", "exec"), program)
    assert program["texts"].shape == program["drawn"].shape == (2, 20)
    assert len(capsys.readouterr().out.splitlines()) == 8


@pytest.mark.feature("B025")
def test_the_program_of_the_page_on_weights_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")
    exec(compile("\n".join(PROGRAM.findall(text)), "weights.md", "exec"), {"__name__": "weights"})


def test_the_program_of_the_page_on_functions_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "functions.md").read_text(encoding="utf-8")
    (program,) = PROGRAM.findall(text)
    exec(compile(program, "functions.md", "exec"), {"__name__": "functions"})
    shapes, jacobian, hessians, slope, _ = capsys.readouterr().out.splitlines()
    assert shapes.startswith("{'0.weight': (5, 8, 3), '0.bias': (5, 8)")
    assert (jacobian, hessians) == ("(2, 3)", "(5, 3, 3)")
    assert slope == "[0.10000000149011612, 0.10000000149011612]"


def test_the_program_of_the_page_on_own_ops_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "own-op.md").read_text(encoding="utf-8")
    (program,) = PROGRAM.findall(text)
    with unregistered():
        exec(compile(program, "own-op.md", "exec"), {"__name__": __name__})
    assert capsys.readouterr().out.startswith("[1.0, 1.909")


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {lamina.__version__}\n" in text
    assert "\nlicense: Apache-2.0\n" in text


def test_what_is_not_there_is_noticed() -> None:
    assert names("`lamina.ops.relu(x)` and ``lamina.x`` and `lamina.nn.Module`") == {
        "lamina.ops.relu",
        "lamina.nn.Module",
    }
    assert names("```\n`lamina.nowhere`\n```") == set()
    assert resolve("lamina.cudnn.legacy.Found.memory") is not None
    for name in ("lamina.ops.nothing", "lamina.nowhere", "lamina.Tensor.nothing"):
        with pytest.raises((ImportError, AttributeError)):
            resolve(name)


def run_page_on_many_devices() -> int:
    text = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    program: dict[str, Any] = {"__name__": "distributed"}
    exec(compile("\n".join(PROGRAM.findall(text)), "distributed.md", "exec"), program)
    return len(program["history"].losses)


@pytest.mark.feature("F116")
def test_the_program_of_the_page_on_many_devices_runs_on_two_ranks() -> None:
    assert run_ranks(run_page_on_many_devices, 2, init=False) == [5, 5]
