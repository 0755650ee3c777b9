"""lamina info: the tables of devices, libraries, packages and variables, row by row."""

import re
from importlib import metadata

import pytest

import lamina as lm
from lamina.cli import info, main
from lamina.runtime import Library, human_bytes


def table(text: str, title: str) -> list[list[str]]:
    """The rows under a title, up to an empty line: cells are apart by two blanks or more."""
    lines = [line.strip() for line in text.splitlines()]
    body = "\n".join(lines[lines.index(title) + 1 :]).strip().split("\n\n")[0]
    return [re.split(r"  +", line) for line in body.splitlines() if set(line) != {"─"}]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["info", *words]) == 0
    return capsys.readouterr().out


def test_each_library_has_its_version_its_place_and_how_it_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = []

    def libraries(open_them: bool) -> list[Library]:
        opened.append(open_them)
        return [
            Library("cudnn", "9.1.2", "/usr/lib/libcudnn.so.9", "system"),
            Library("onednn", "", "/opt/libdnnl.so.3", "package dnnl"),
            Library("nccl", "", "", ""),
        ]

    monkeypatch.setattr(info, "libraries", libraries)
    assert table(shown(capsys), "Libraries") == [
        ["library", "version", "found", "path"],
        ["cudnn", "9.1.2", "system", "/usr/lib/libcudnn.so.9"],
        ["onednn", "-", "package dnnl", "/opt/libdnnl.so.3"],
        ["nccl", "-", "not found", "-"],
    ]
    shown(capsys, "--open")
    assert opened == [False, True]


def test_each_device_has_its_name_and_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = lm.device("cpu")
    monkeypatch.setattr(info, "devices", lambda: [cpu])
    head, row = table(shown(capsys), "Devices")
    assert head == ["device", "name", "architecture", "memory free", "memory"]
    assert row[:3] == ["cpu", " ".join(cpu.name.split()), str(cpu.properties["arch"])]
    assert row[4] == human_bytes(cpu.memory_info().total)
    assert row[3].split()[1] in ("MiB", "GiB", "TiB")


def test_each_package_has_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(info, "PACKAGES", ("numpy", "no-such-package"))
    assert table(shown(capsys), "Packages") == [
        ["package", "version"],
        ["numpy", metadata.version("numpy")],
        ["no-such-package", "not installed"],
    ]


def test_each_variable_has_its_value_and_meaning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("ONEDNN_VERBOSE", raising=False)
    rows = {row[0]: row[1:] for row in table(shown(capsys), "Environment")}
    assert list(rows) == ["variable", *info.VARIABLES]
    assert rows["OMP_NUM_THREADS"] == ["3", "threads that oneDNN computes with"]
    assert rows["ONEDNN_VERBOSE"] == ["-", "1 makes oneDNN print every primitive"]
