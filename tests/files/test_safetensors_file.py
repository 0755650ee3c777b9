"""Safetensors files: every dtype goes both ways, other programs read them, and strangers' files do no harm."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lamina as lm
from lamina.files import WeightsError, load_safetensors, read_safetensors, save_safetensors
from lamina.spec import DTYPES

VALUES = {
    d.name: (np.arange(6).reshape(2, 3) % 2 if d.kind == "b" else np.arange(6).reshape(2, 3)) for d in DTYPES
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def test_every_dtype_goes_both_ways(file: Path) -> None:
    arrays = {d.name: VALUES[d.name].astype(d.numpy) for d in DTYPES}
    save_safetensors(
        {**arrays, "scalar": np.float32(3), "none": np.zeros((0, 4), np.int8)}, file, {"note": "é"}
    )
    tensors, texts = read_safetensors(file)
    assert texts == {"note": "é"}
    for name, array in arrays.items():
        assert tensors[name].dtype.name == name
        np.testing.assert_array_equal(tensors[name].numpy(), array)
    assert tensors["scalar"].shape == ()
    assert tensors["none"].shape == (0, 4)


def test_the_safetensors_library_reads_them(file: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    array = np.random.default_rng(0).random((3, 5), np.float32)
    save_safetensors({"w": lm.tensor(array), "t": array.T}, file)
    found = numpy.load_file(file)
    np.testing.assert_array_equal(found["w"], array)
    np.testing.assert_array_equal(found["t"], array.T)


@pytest.mark.parametrize(
    "state", [3, [np.zeros(2)], {1: np.zeros(2)}, None], ids=["int", "list", "key", "None"]
)
def test_what_has_no_names_is_refused(file: Path, state: Any) -> None:
    with pytest.raises(TypeError, match="state must be a module or a mapping of names to arrays"):
        lm.save_safetensors(state, file.with_name("other"))
    assert not file.with_name("other").exists()


def test_it_reads_those_of_the_library(file: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    array = np.random.default_rng(0).random((3, 5), np.float32)
    numpy.save_file({"w": array}, file)
    np.testing.assert_array_equal(load_safetensors(file)["w"].numpy(), array)
    with pytest.raises(WeightsError, match="the header was changed"):
        read_safetensors(file, sealed=True)  # it has no digest, so nobody can tell


def test_data_starts_aligned(file: Path) -> None:
    for name in ("a", "ab", "abc"):
        save_safetensors({name: np.ones(3, ml_dtypes.bfloat16)}, file)
        assert int.from_bytes(file.read_bytes()[:8], "little") % 8 == 0


def test_a_changed_header_is_found(file: Path) -> None:
    save_safetensors({"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)}, file)
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"a":{', b'"c":{', 1))  # the tensors change names
    with pytest.raises(WeightsError, match="the header was changed after it was written"):
        load_safetensors(file)


def _file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


STRANGE = {
    "huge header": (2**62).to_bytes(8, "little") + b"{}",
    "no json": _file(b"{"),
    "list": _file([]),
    "huge shape": _file({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, b"1234"),
    "negative": _file({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
    "beyond the end": _file({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"1234"),
    "overlap": _file({n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "ab"}, b"1234"),
    "unknown type": _file({"a": {"dtype": "F6_E2M3", "shape": [1], "data_offsets": [0, 1]}}, b"1"),
    "pickle": b"\x80\x04cos\nsystem\n",
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_files_are_refused(file: Path, name: str) -> None:
    file.write_bytes(STRANGE[name])
    with pytest.raises(WeightsError, match=r"weights\.safetensors"):
        load_safetensors(file)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_nothing_but_weights_errors(tmp_path_factory: Any, data: st.DataObject) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    save_safetensors({"a": np.arange(4, dtype=np.float32)}, file)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        found = load_safetensors(file)
    except WeightsError:
        return
    np.testing.assert_array_equal(found["a"].numpy(), np.arange(4))  # only the same content passes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "pointer of Git LFS"),
        (b"\n<!DOCTYPE html><html>not found</html>", "it is a web page"),
    ],
)
def test_what_a_download_left_in_its_place_is_named(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        lm.load_weights(file)


def test_the_entry_that_is_no_array_is_named(file: Path) -> None:
    with pytest.raises(TypeError, match="weights: a.bias: NoneType is not an array"):
        save_safetensors({"a.weight": np.ones(2), "a.bias": None}, file)
    with pytest.raises(ValueError, match="'__metadata__' is not a tensor's name"):
        save_safetensors({"__metadata__": np.ones(2)}, file)
