"""What is written comes back bit by bit, here and in torch."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.files import load_torch, save_torch
from lamina.files.element_types import ELEMENT_TYPES
from lamina.files.torch_writer import (
    _central,
    _end,
    _local,
    _Written,
)  # their limits cannot be reached in a test

pytestmark = pytest.mark.feature("B025")


def arrays() -> dict[str, np.ndarray]:
    return {
        t.torch: np.arange(6).reshape(2, 3).astype(t.numpy)
        for t in ELEMENT_TYPES
        if t.torch != "float8_e8m0fnu"
    }


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    tree = {
        "model": {"w": lm.tensor([[1.0, 2.0]]), "n": np.int64(3)}, "epoch": 2, "big": -(2**70),
        "rates": [0.5, -1e300],
        "none": None, "yes": True, "raw": b"\xff\x00", "text": "é", "pair": (1, "a"), 3: lm.bfloat16, "no": (),
    }  # fmt: skip
    save_torch(tree, file)
    found = load_torch(file)
    assert found["model"]["w"].numpy().tolist() == [[1, 2]]
    assert found["model"]["n"].shape == ()
    rest = {k: v for k, v in found.items() if k != "model"}
    assert rest == {k: v for k, v in tree.items() if k != "model"}
    first = file.read_bytes()
    save_torch(tree, file)
    assert file.read_bytes() == first
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        for member in archive.infolist():  # APPNOTE 4.4: by version 4.5, for 2.0, names in UTF-8, 1980-01-01
            said = (member.create_version, member.extract_version, member.flag_bits, member.date_time)
            assert said == (45, 20, 0x800, (1980, 1, 1, 0, 0, 0))
            said = (member.create_system, member.volume, member.internal_attr, member.external_attr)
            assert said == (0, 0, 0, 0)
    with pytest.raises(TypeError, match="save_torch: object is not an array"):
        save_torch({"x": object()}, file)
    assert file.read_bytes() == first


def test_memory_that_is_shared_stays_shared(tmp_path: Path) -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    save_torch({"a": base, "b": base, "part": base[1:, :2], "turned": base.T}, tmp_path / "w.pt")
    found = {k: v.numpy() for k, v in load_torch(tmp_path / "w.pt").items()}
    assert np.shares_memory(found["a"], found["b"])
    assert np.shares_memory(found["a"], found["turned"])
    np.testing.assert_array_equal(found["part"], base[1:, :2])
    np.testing.assert_array_equal(found["turned"], base.T)


def overlapping() -> dict[str, list[np.ndarray]]:
    """Pairs of arrays in each order and position."""
    base = np.arange(24, dtype=np.float32)
    rows = base.reshape(6, 4)
    return {
        "the whole and its end": [rows, rows[2:]],
        "its beginning and the whole": [rows[:1], rows],
        "its middle, turned, and the whole": [rows[1:3].T, rows],
        "one over the end of the other": [base[:16], base[8:]],
        "three in a chain": [base[16:], base[:9], base[8:17]],
        "a number and the whole": [base[5:6].reshape(()), rows],
    }


@pytest.mark.parametrize("name", overlapping())
def test_memory_that_overlaps_is_one_storage(name: str, tmp_path: Path) -> None:
    given = overlapping()[name]
    save_torch(given, tmp_path / "w.pt")
    found = [t.numpy() for t in load_torch(tmp_path / "w.pt")]
    lows = [[np.lib.array_utils.byte_bounds(a)[0] for a in arrays] for arrays in (given, found)]
    assert [a - lows[0][0] for a in lows[0]] == [a - lows[1][0] for a in lows[1]]
    for a, b in zip(found, given, strict=True):
        np.testing.assert_array_equal(a, b)
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        assert [n for n in archive.namelist() if "/data/" in n] == ["archive/data/0"]
        assert archive.getinfo("archive/data/0").file_size == 24 * 4


def apart() -> dict[str, list[np.ndarray]]:
    base = np.arange(24, dtype=np.float32)
    return {
        "neighbours": [base[12:], base[:12]],
        "other types": [base[:12].view(np.int32), base],
        "elements between those of another": [base, base.view(np.uint8)[2:-2].view(np.float32)],
        "nothing": [base[3:3], base, base[:0]],
        "views with gaps, and turned round": [base, base[:12:2], base[::-1]],
    }


@pytest.mark.parametrize("name", apart())
def test_memory_that_does_not_overlap_as_elements_is_apart(name: str, tmp_path: Path) -> None:
    given = apart()[name]
    save_torch(given, tmp_path / "w.pt")
    found = [t.numpy() for t in load_torch(tmp_path / "w.pt")]
    for a, b in zip(found, given, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        sizes = [m.file_size for m in archive.infolist() if "/data/" in m.filename]
    assert sizes == [a.nbytes for a in given]


@pytest.mark.torch
def test_torch_sees_one_memory_where_arrays_overlap(tmp_path: Path) -> None:
    import torch

    base = np.arange(24, dtype=np.float32).reshape(6, 4)
    save_torch({"end": base[2:], "all": base, "turned": base[1:3].T}, tmp_path / "w.pt")
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    assert {t.untyped_storage().data_ptr() for t in found.values()} == {found["all"].data_ptr()}
    found["all"].mul_(2)
    for name, wanted in {"end": base[2:], "turned": base[1:3].T}.items():
        np.testing.assert_array_equal(found[name].numpy(), wanted * 2)


@pytest.mark.torch
def test_torch_reads_every_dtype_weights_only(tmp_path: Path) -> None:
    import torch

    file = tmp_path / "w.pt"
    given = arrays()
    save_torch(
        {**given, "turned": given["float32"].T, "scalar": np.float32(2), "none": np.zeros((0, 3), np.int8)},
        file,
    )
    for options in ({}, {"mmap": True}):
        found = torch.load(file, weights_only=True, **options)
        for name, array in given.items():
            assert found[name].dtype == getattr(torch, name)
            assert found[name].contiguous().view(torch.uint8).numpy().tobytes() == array.tobytes(), name
        assert found["turned"].t().is_contiguous()
        assert (found["scalar"].shape, found["none"].shape) == ((), (0, 3))


@pytest.mark.torch
def test_a_network_goes_to_torch_and_back(tmp_path: Path) -> None:
    import torch

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2).bfloat16())
    save_torch({"state_dict": net.state_dict(), "epoch": 4}, tmp_path / "w.pt")
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2).bfloat16()
    )
    theirs.load_state_dict(torch.load(tmp_path / "w.pt", weights_only=True)["state_dict"])
    torch.save(theirs.state_dict(), tmp_path / "back.pt")
    mine, back = net.state_dict(), lm.load_weights(tmp_path / "back.pt")
    assert mine.keys() == back.keys()
    for name, value in mine.items():
        assert value.dtype == back[name].dtype
        assert value.numpy().tobytes() == back[name].numpy().tobytes()


def test_large_members_have_64_bit_sizes() -> None:

    entry = _Written(b"archive/data/0", 2**33, 7, 2**34)
    assert (2**33).to_bytes(8, "little") in _local(entry)
    assert (2**34).to_bytes(8, "little") in _central(entry)
    assert len(_local(entry)) % 64 == 0
    assert _end(3, 100, 2**34).startswith(b"PK\x06\x06")
