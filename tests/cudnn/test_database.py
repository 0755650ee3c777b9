"""The database of plans: written, read, merged, and what is no database."""

import gzip
import json
from pathlib import Path

import pytest

from lamina.cudnn import Choice, StoredChoice, database
from lamina.cudnn.database import (
    DatabaseError,
    PlanDatabase,
    database_of,
    database_of_kin,
    file_name,
    read_database,
)
from lamina.runtime import Device, Machine
from tests.helpers.cudnn.installed import needs_cudnn_919
from tests.helpers.planned import H200

PLANS = [
    StoredChoice("", Choice("plain", 3, ((1, 2), (7, 0)), 0.25), "conv b", (8, 64)),
    StoredChoice("", Choice("direct", milliseconds=0.125), "conv a", (4, 64)),
    StoredChoice("", Choice("split"), "conv a", (2, 64)),
]


ENGINES = {
    "conv half acdb plain 3": (40, 12),
    "conv half acdb plain 7": (25, 0),
    "conv half acdb plain 9": (database.ENOUGH - 1, 0),
}


def made() -> PlanDatabase:
    return PlanDatabase.of("NVIDIA H200", "9.19.0", PLANS, {"driver": "580"}, ENGINES)


@pytest.mark.feature("B010", "F081")
def test_a_database_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / file_name("NVIDIA H200", "9.19")
    made().save(file)
    first = file.read_bytes()
    assert file.name == "NVIDIA-H200-9.19.json.gz"
    again = read_database(file)
    assert again == made()
    assert [e.nature for e in again.entries()] == ["conv a", "conv a", "conv b"]
    assert again.placed("conv a") == {(4, 64): PLANS[1].choice, (2, 64): PLANS[2].choice}
    assert again.placed("nothing") == {}
    assert again.engines == ENGINES
    PlanDatabase.of("NVIDIA H200", "9.19", PLANS[::-1], {"driver": "580"}, ENGINES).save(file)
    assert file.read_bytes() == first  # whatever the order


def test_the_others_choices_count_where_databases_are_merged() -> None:
    other = PlanDatabase.of(
        "NVIDIA H200", "9.19", [StoredChoice("", Choice("plain", 9), "conv a", (4, 64))], {}
    )
    both = made().merged(other)
    assert both.placed("conv a") == {(4, 64): Choice("plain", 9), (2, 64): Choice("split")}
    assert len(both.entries()) == 3
    with pytest.raises(DatabaseError, match=r"NVIDIA-H100 with cuDNN 9\.19 do not go"):
        made().merged(PlanDatabase.of("NVIDIA H100", "9.19", [], {}))


def test_engines_that_are_never_near_the_best_are_outclassed() -> None:
    """For the op, form, type and layout that were measured, where that was often; half types are one."""
    known = made()
    assert known.outclasses("conv", "bfloat16", "acdb", "plain", 7)
    assert known.outclasses("conv", "float16", "acdb", "plain", 7)
    for op, dtype, lies, form, engine in (
        ("conv", "bfloat16", "acdb", "plain", 3),
        ("conv", "bfloat16", "acdb", "plain", 9),
        ("conv", "float32", "acdb", "plain", 7),
        ("conv", "bfloat16", "acdb", "turned", 7),
        ("matmul", "bfloat16", "acdb", "plain", 7),
        ("conv", "bfloat16", "abcd", "plain", 7),
    ):
        assert not known.outclasses(op, dtype, lies, form, engine)
    more = PlanDatabase.of(
        "NVIDIA H200", "9.19", [], {}, {"conv half acdb plain 7": (5, 1), "conv half acdb plain 9": (1, 0)}
    )
    both = known.merged(more)
    assert both.engines["conv half acdb plain 7"] == (30, 1)
    assert not both.outclasses("conv", "bfloat16", "acdb", "plain", 7)
    assert both.outclasses("conv", "bfloat16", "acdb", "plain", 9)


@pytest.mark.feature("B010")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        gzip.compress(b"{"),
        gzip.compress(b"[]"),
        gzip.compress(b'{"format": "other"}'),
        gzip.compress(json.dumps({"format": database.FORMAT}).encode()),
        gzip.compress(
            json.dumps(
                {
                    **dict.fromkeys(("device", "cudnn"), "x"),
                    "format": database.FORMAT,
                    "measured": {},
                    "natures": [],
                    "plans": [[0, [1], "plain", 1, [], 0.0]],
                }
            ).encode()
        ),
    ],
    ids=lambda content: str(len(content)),
)
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.json.gz"
    file.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"x\.json\.gz"):
        read_database(file)


def test_a_torn_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json.gz"
    made().save(file)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DatabaseError):
        read_database(file)


@needs_cudnn_919
def test_a_device_has_the_database_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FOLDER", tmp_path)
    made().save(tmp_path / file_name(H200.name, "9.19"))
    assert database_of(H200) == made()
    assert database_of(Device("cpu")) is None


@needs_cudnn_919
@pytest.mark.feature("F081")
def test_another_model_of_the_architecture_lends_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FOLDER", tmp_path)
    made().save(tmp_path / file_name(H200.name, "9.19"))
    h100, a100 = (Device("cuda", machine=Machine.named(name)) for name in ("h100", "a100"))
    assert database_of(h100) is None
    assert database_of_kin(h100) == made()
    assert database_of_kin(a100) is None
    assert database_of_kin(H200) is None
    assert database_of_kin(Device("cpu")) is None
