"""Files of torch.save are read bit by bit, without torch and without running anything that is in them."""

import builtins
import contextlib
import os
import pickle
import zipfile
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pytest

from lamina import nn
from lamina.files import WeightsError, load_torch, load_weights, save_torch
from lamina.spec import DType
from tests.helpers import pickles, torch_files

pytestmark = pytest.mark.feature("B025", "B042")


def written(folder: Path, data: bytes) -> Path:
    file = folder / "weights.pt"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("way", torch_files.WAYS)
def test_files_of_torch_are_read(tmp_path: Path, way: str) -> None:
    torch_files.check(load_torch(written(tmp_path, torch_files.files()[way])))


@pytest.mark.torch
@pytest.mark.parametrize("way", torch_files.WAYS)
def test_files_of_this_torch_are_read(tmp_path: Path, way: str) -> None:
    torch_files.check(load_torch(written(tmp_path, torch_files.written(way))))


@pytest.mark.torch
def test_files_without_checksums_and_of_the_other_byte_order(tmp_path: Path) -> None:
    import torch

    state = {
        "w": torch.arange(5, dtype=torch.float32),
        "c": torch.tensor([1 + 2j]),
        "b": torch.ones(3).bfloat16(),
    }
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, tmp_path / "unchecked.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert load_torch(tmp_path / "unchecked.pt")["w"].numpy().tolist() == [0, 1, 2, 3, 4]
    torch.save(state, tmp_path / "little.pt")
    with zipfile.ZipFile(tmp_path / "little.pt") as archive:
        data = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
    for name, item in {"data/0": 4, "data/1": 4, "data/2": 2}.items():  # a complex number is two of 4 bytes
        numbers = [data[name][i : i + item] for i in range(0, len(data[name]), item)]
        data[name] = b"".join(n[::-1] for n in numbers)
    data["byteorder"] = b"big"
    found = load_torch(written(tmp_path, pickles.archive(data.pop("data.pkl"), data)))
    assert found["w"].numpy().tolist() == [0, 1, 2, 3, 4]
    assert found["c"].numpy().tolist() == [[1, 2]]
    assert found["b"].numpy().astype(int).tolist() == [1, 1, 1]


class Ran(Exception):
    """A pickle has called something."""


@pytest.mark.parametrize(
    "command", [(os.system, ("touch ran",)), (builtins.eval, ("1+1",)), (builtins.exec, ("x=1",)), (print, ("x",))],
    ids=["system", "eval", "exec", "print"],
)  # fmt: skip
def test_no_pickle_runs_code(tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in pickles.write_all(tmp_path, command):
        with pytest.raises(WeightsError, match="hostile"):
            load_torch(file)
    assert not (tmp_path / "ran").exists()


def test_what_is_no_weight_is_named(tmp_path: Path) -> None:
    content = pickle.dumps({"args": pickles.Call(os.getenv, "HOME")}, 2)
    with pytest.raises(
        WeightsError, match=r"os\.getenv is not among what weights consist of; save a state_dict"
    ):
        load_torch(written(tmp_path, pickles.archive(content)))


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    save_torch({"w": np.arange(100, dtype=np.float32)}, file)
    content = bytearray(file.read_bytes())
    place = content.find(np.float32(50).tobytes())
    content[place] ^= 1
    with pytest.raises(WeightsError, match="the content of storage '0' was changed"):
        load_torch(written(tmp_path, bytes(content)))
    with pytest.raises(WeightsError, match="it has no end record; it may have been cut off"):
        load_torch(written(tmp_path, bytes(content[:200])))
    with pytest.raises(WeightsError, match="not a file of torch.save"):
        load_torch(written(tmp_path, b"{}"))


def tensor_pickle(count: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """A tensor in a storage of float32."""

    def body(value: Any) -> bytes:
        return pickle.dumps(value, 2)[2:-1]

    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    return (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n(" + storage + body(count) + b"tQ"
        + body(offset) + body(shape) + body(strides) + b"\x89}tRs."
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "offset", "shape", "strides"),
    [
        (4, 0, (5,), (1,)), (4, 1, (4,), (1,)), (4, -1, (2,), (1,)), (4, 0, (2,), (-1,)), (4, 3, (2,), (2**62,)),
        (4, 0, (2**40, 2**40), (0, 0)), (5, 0, (4,), (1,)), (4, 0, (-1,), (1,)), (4, 0, (1,) * 65, (1,) * 65),
        (4, 0, (2, 2), (1,)), (2**62, 0, (4,), (1,)),
    ],
)  # fmt: skip
def test_a_tensor_must_lie_in_its_storage(
    tmp_path: Path, count: int, offset: int, shape: Any, strides: Any
) -> None:
    content = tensor_pickle(count, offset, shape, strides)
    with pytest.raises(WeightsError, match=r"weights\.pt: its pickle is not that of weights: "):
        load_torch(written(tmp_path, pickles.archive(content, {"data/0": bytes(16)})))
    good = tensor_pickle(4, 1, (2,), (2,))
    found = load_torch(
        written(tmp_path, pickles.archive(good, {"data/0": np.arange(4, dtype="f4").tobytes()}))
    )
    assert found["w"].numpy().tolist() == [1, 3]


@pytest.mark.parametrize(
    "content",
    [b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".", b"\x80\x02]" + b"]a" * 50_000 + b".",
     b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".", b"\x80\x02" + b"}" * 2_500_000 + b".",
     b"\x80\x02]q\x00h\x00a.", b"\x80\x02I1\n}s.", b"\x80\x02a.", b"\x80\x02.", b"\x80\x02h\x07.", b"\x80\x02((t.",
     b"\x80\x02}]K\x01s.", b"\x80\x02ctorch\nFloatStorage\n."],
    ids=["tuples", "wide", "deep", "dicts", "itself", "no dict", "empty", "no value", "no memo", "mark", "key",
         "bare"],
)  # fmt: skip
def test_strange_pickles_end_in_errors(tmp_path: Path, content: bytes) -> None:
    found: Any = None
    with contextlib.suppress(WeightsError):
        found = load_torch(written(tmp_path, pickles.archive(content)))
    assert type(found) in (NoneType, list, tuple, DType)


def test_a_chain_of_doublings_stays_small(tmp_path: Path) -> None:
    doubled = b"\x80\x02]K\x01a" + b"".join(b"q\x000]h\x00ah\x00a" for _ in range(150)) + b"."
    found = load_torch(written(tmp_path, pickles.archive(doubled)))
    assert found[0] is found[1]


def test_numpys_archives_say_who_reads_them(tmp_path: Path) -> None:
    arrays = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
    for save in (np.savez_compressed, np.savez):
        save(tmp_path / "w.npz", **arrays)
        with pytest.raises(
            WeightsError, match=r"of NumPy's arrays: net.load_state_dict\(dict\(numpy.load\(path\)\)\)"
        ):
            load_weights(tmp_path / "w.npz")
    np.save(tmp_path / "w.npy", arrays["bias"])
    with pytest.raises(
        WeightsError, match=r"an array of NumPy's, without a name: lm.tensor\(numpy.load\(path\)\)"
    ):
        load_weights(tmp_path / "w.npy")
    net = nn.Linear(3, 2)
    net.load_state_dict(dict(np.load(tmp_path / "w.npz")))
    assert net.weight.numpy().all()
