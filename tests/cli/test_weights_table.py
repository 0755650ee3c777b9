"""lamina info FILE: what a file of weights holds, and whether its checksums hold."""

from pathlib import Path

import numpy as np
import pytest

import lamina as lm
from lamina.cli import main

pytestmark = pytest.mark.feature("B025")
STATE = {"a.weight": np.ones((3, 4), np.float32), "b": np.array(2, np.int64)}


def test_names_shapes_and_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lm.save_safetensors(STATE, tmp_path / "w.safetensors", {"note": "[bold]é"})
    assert main(["info", str(tmp_path / "w.safetensors")]) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if line.strip().startswith(("a.w", "b "))] == [
        ["a.weight", "float32", "3", "4", "48"],
        ["b", "int64", "-", "8"],
    ]
    assert "note: [bold]é" in out
    assert "w.safetensors: safetensors, 2 tensors, 56 B" in out
    assert "checksums hold for all tensors" in out


def test_shared_storages_and_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w = STATE["a.weight"]
    lm.save_torch({"model": {"x": w, "y": w, "z": w + 1}, "ema": {"x": w}}, tmp_path / "w.pt")
    assert main(["info", str(tmp_path / "w.pt")]) == 1
    assert "name one by key=: 'model', 'ema'" in capsys.readouterr().err
    assert main(["info", str(tmp_path / "w.pt"), "--key", "model"]) == 0
    assert capsys.readouterr().out.count("(shared)") == 2


def test_damage_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.safetensors"
    lm.save_safetensors(STATE, file)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert main(["info", str(file)]) == 1
    assert "the content of tensor 'b' was changed after it was written" in capsys.readouterr().err
