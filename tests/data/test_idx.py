"""IDX files: sound ones are read, everything else is refused with the file's name and within memory limits."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina import data


def idx(array: np.ndarray[Any, Any], kind: int = 0x08) -> bytes:
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize(
    ("kind", "dtype"), [(8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")]
)
@pytest.mark.parametrize("packed", [False, True])
def test_round_trip(tmp_path: Path, kind: int, dtype: str, packed: bool) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    file = tmp_path / ("x.gz" if packed else "x")
    file.write_bytes(gzip.compress(idx(array, kind)) if packed else idx(array, kind))
    found = data.read_idx(file)
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, array)


SOUND = idx(np.arange(12, dtype=np.uint8).reshape(3, 4))
BAD = {
    "empty": (b"", "not an IDX file"),
    "magic": (b"\x89PNG" + SOUND, "not an IDX file .it starts with 89 50 4e 47"),
    "type": (b"\0\0\x07\1" + SOUND[4:], "not an IDX file"),
    "header": (SOUND[:9], "cut short in its header"),
    "short": (SOUND[:-1], "cut short, 11 of 12 bytes"),
    "long": (SOUND + b"\0", "more than the 12 bytes"),
    "huge": (b"\0\0\x0e\3" + b"\xff" * 12, "claims 6338252996[0-9]* bytes of data, more than the limit"),
    "rank": (b"\0\0\x08\xff" + b"\0\0\0\1" * 255, "claims 255 axes, more than the limit of 8"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_unsound_files_are_refused(tmp_path: Path, name: str, packed: bool) -> None:
    content, message = BAD[name]
    file = tmp_path / ("bad.gz" if packed else "bad")
    file.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(data.DataError, match=message) as error:
        data.read_idx(file)
    assert str(file) in str(error.value)


def test_unsound_gzip_and_missing_files(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    packed = gzip.compress(SOUND)
    broken = (SOUND, packed[:-6], packed[:12], packed[:-8] + b"\0" * 8, packed[:10] + b"\xff" * 9)
    for content in broken:
        file.write_bytes(content)
        with pytest.raises(data.DataError, match=r"x\.gz: not a sound gzip file"):
            data.read_idx(file)
    with pytest.raises(data.DataError, match="cannot be read"):
        data.read_idx(tmp_path / "absent")
    with pytest.raises(data.DataError, match="cannot be read"):
        data.read_idx(tmp_path)


def test_a_packed_bomb_stops_at_what_its_header_claims(tmp_path: Path) -> None:
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(SOUND + bytes(50_000_000)))  # 50 MB packed into 50 kB
    with pytest.raises(data.DataError, match="more than the 12 bytes"):
        data.read_idx(file)
    file.write_bytes(gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 2_000_000_000) + bytes(1000)))
    with pytest.raises(data.DataError, match="cut short, 1000 of 2000000000 bytes"):
        data.read_idx(file)
    file.write_bytes(gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 5000) + bytes(5000)))
    with pytest.raises(data.DataError, match="more than the limit of 4096"):
        data.read_idx(file, limit=4096)


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=64)
    | st.binary(max_size=64).map(lambda b: b"\0\0\x08" + b)
    | st.integers(0, len(SOUND)).map(lambda n: SOUND[:n] + b"\xff" + SOUND[n + 1 :])
)
def test_nothing_but_data_errors(tmp_path_factory: Any, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz"
    file.write_bytes(content)
    try:
        found = data.read_idx(file)
    except data.DataError:
        return
    assert found.nbytes <= len(content)


# ---- MNIST's four files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 20), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 6, 6)).astype(np.uint8)
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    return tmp_path


def test_mnist(folder: Path) -> None:
    train, test = data.mnist(folder, 8), data.mnist(folder, 8, split="test", size=12)
    assert (len(train), train.count, train.drop_last, train.shuffle, train.num_classes) == (
        2,
        17,
        True,
        True,
        10,
    )
    assert (len(test), test.drop_last, test.shuffle) == (2, False, False)
    images = np.concatenate([x for x, _ in data.mnist(folder, 8, validation=0, drop_last=False)])
    assert images.shape == (20, 1, 6, 6)
    assert images.dtype == np.float32
    assert abs(images.mean()) < 1e-5
    assert images.std() == pytest.approx(1.0, abs=1e-5)
    x, y = next(iter(test))
    assert x.shape == (8, 1, 12, 12)
    assert y.dtype == np.int64
    assert y.tolist() == list(range(8))


def test_mnist_cuts_validation_off_the_end_of_the_training_files(folder: Path) -> None:
    """Three splits without a common image, all normalised by what is trained on."""
    whole, _ = next(iter(data.mnist(folder, 20, validation=0, shuffle=False)))
    train, labels = next(iter(data.mnist(folder, 15, validation=0.25, shuffle=False)))
    held, held_labels = next(iter(data.mnist(folder, 15, split="validation", validation=0.25)))
    assert (len(train), len(held)) == (15, 5)
    assert [*labels, *held_labels] == [i % 10 for i in range(20)]
    scale, offset = np.polyfit(whole[:15].ravel(), train.ravel(), 1)
    np.testing.assert_allclose(whole[15:] * scale + offset, held, atol=1e-4)
    assert abs(train.mean()) < 1e-5
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match="validation must be at least 0 and less than 1"):
            data.mnist(folder, validation=share)


def test_mnist_names_what_is_wrong(folder: Path) -> None:
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'valid'"):
        data.mnist(folder, split="valid")
    with pytest.raises(data.DataError, match="there is no file train-images-idx3-ubyte"):
        data.mnist(folder / "nowhere")
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(data.DataError, match=r"20 train images, but labels uint8\[19\]"):
        data.mnist(folder)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((20, 6), np.uint8)))
    with pytest.raises(data.DataError, match=r"train images are uint8\[20, 6\], not uint8\[N,H,W\]"):
        data.mnist(folder)
