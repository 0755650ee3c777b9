"""`lamina plans`: stores and databases listed, exported, imported and merged."""

from pathlib import Path

import pytest

from lamina.cli import main
from lamina.cli import plans as command
from lamina.cudnn import Choice, PlanDatabase, PlanStore, StoredChoice, database, read_database

OWN = StoredChoice("k", Choice("plain", 3, ((1, 2),), 0.25), "conv", (8, 64))
OTHER = StoredChoice("", Choice("direct"), "conv", (8, 64))
NEW = StoredChoice("", Choice("split"), "conv", (16, 64))


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(database, "FOLDER", tmp_path / "databases")
    monkeypatch.setattr(database, "loaded_version", lambda: "9.19.0")


def own() -> PlanStore:
    return PlanStore("NVIDIA H200", "9.19.0")


def file(path: Path, *entries: StoredChoice, device: str = "NVIDIA H200", cudnn: str = "9.19") -> str:
    PlanDatabase.of(device, cudnn, entries, {"made": "here"}).save(path)
    return str(path)


@pytest.mark.feature("B010")
def test_what_is_known_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plans", "list"]) == 0
    assert "no plans are known" in capsys.readouterr().out
    own().add([OWN])
    own().put("graph", Choice("graph", 5))
    database.FOLDER.mkdir()
    file(database.FOLDER / "NVIDIA-H200-9.19.json.gz", OTHER, NEW)
    assert main(["plans", "list", "--problems"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("own      NVIDIA-H200-9.19.0: 1 plans, 2 choices (")
    assert lines[1:] == [
        "  conv 8x64: plain eng3 0.2500 ms",
        "package  NVIDIA-H200-9.19: 2 plans",
        "  conv 8x64: direct",
        "  conv 16x64: split",
    ]


@pytest.mark.feature("B010")
def test_own_timings_travel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exported, and imported by another user; own timings of the same problem stay unless they are to go."""
    own().add([OWN])
    assert main(["plans", "export", str(tmp_path / "mine.json.gz")]) == 0
    made = read_database(tmp_path / "mine.json.gz")
    assert (made.device, made.cudnn, made.placed("conv")) == ("NVIDIA-H200", "9.19", {(8, 64): OWN.choice})
    theirs = file(tmp_path / "theirs.json.gz", OTHER, NEW)
    assert main(["plans", "import", theirs]) == 0
    assert own().placed("conv") == {(8, 64): OWN.choice, (16, 64): NEW.choice}
    assert own().get("k") == OWN.choice
    assert main(["plans", "import", theirs, "--replace"]) == 0
    assert own().placed("conv")[8, 64] == OTHER.choice
    assert "2 plans added, 0 were there" in capsys.readouterr().out


def test_plans_are_imported_where_nothing_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["plans", "import", file(tmp_path / "x", NEW)]) == 0
    assert own().placed("conv") == {(16, 64): NEW.choice}
    assert main(["plans", "import", file(tmp_path / "x", NEW, cudnn="9.8")]) == 1
    assert len(list(own().path.parent.iterdir())) == 1


@pytest.mark.feature("B042")
@pytest.mark.parametrize("which", ["others", "no folder"])
def test_what_cannot_be_kept_was_not_imported(
    which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = own().path.parent
    if which == "others":
        own().add([OWN])
        folder.chmod(0o770)
        with pytest.warns(RuntimeWarning, match="can be written by others"):
            assert main(["plans", "import", file(tmp_path / "x", NEW)]) == 1
    else:
        folder.write_text("")
        assert main(["plans", "import", file(tmp_path / "x", NEW)]) == 1
    found = capsys.readouterr()
    assert "added" not in found.out
    assert str(folder) in found.err


@pytest.mark.feature("B010")
def test_databases_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = file(tmp_path / "one", OWN), file(tmp_path / "two", OTHER, NEW)
    assert main(["plans", "merge", str(tmp_path / "all"), one, two]) == 0
    assert read_database(tmp_path / "all").placed("conv") == {(8, 64): OTHER.choice, (16, 64): NEW.choice}
    third = file(tmp_path / "three", NEW, device="NVIDIA A100")
    assert main(["plans", "merge", str(tmp_path / "all"), one, third]) == 1
    assert "NVIDIA-A100" in capsys.readouterr().err


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torn").write_bytes(b"\x1f\x8b")
    assert main(["plans", "import", str(tmp_path / "torn")]) == 1
    assert "no database of plans" in capsys.readouterr().err
    assert main(["plans", "export", str(tmp_path / "mine")]) == 1
    assert "there is nothing to export" in capsys.readouterr().err
    own().add([OWN])
    PlanStore("NVIDIA A100", "9.19.0").add([OWN])
    assert main(["plans", "export", str(tmp_path / "mine")]) == 1
    both = "stores: NVIDIA-A100-9.19.0, NVIDIA-H200-9.19.0"
    assert f"--store: say which store; {both}" in capsys.readouterr().err
    assert main(["plans", "export", str(tmp_path / "mine"), "--store", "mine"]) == 1
    assert f"there is no store 'mine'; {both}" in capsys.readouterr().err
    assert main(["plans", "export", str(tmp_path / "mine"), "--store", "NVIDIA-A100-9.19.0"]) == 0
    assert read_database(tmp_path / "mine").device == "NVIDIA-A100"


def test_every_action_is_one_of_the_module() -> None:
    assert set(command._ACTIONS) == {"list", "export", "import", "merge"}
