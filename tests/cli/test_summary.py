"""lamina summary: the table, and the memory that inference needs."""

import re

import pytest

from lamina.cli import main


def test_a_table_and_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "lenet", "--batch-size", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["module", "outputs", "parameters", "MFLOP"]
    assert lines[1].split()[:2] == ["LeNet", "f32[4,10]"]
    assert any(line.startswith("inputs: f32[4,1,28,28]") for line in lines)
    assert re.fullmatch(r"inference: \d+.* for temporaries", lines[-1])


def test_depth_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "resnet18", "--depth", "0", "--size", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[2] == "inputs: f32[1,3,64,64]"
