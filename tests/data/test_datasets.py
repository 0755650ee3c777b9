"""Data sets: parts, rows of sets, splits, folders of images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina import data
from lamina.data.datasets import image_files, sample_of

pytestmark = pytest.mark.feature("B030")

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((10, 3)), np.arange(10)


def pictures(root: Path, sizes: dict[str, int]) -> Path:
    """A folder of random pictures, so many of each class."""
    for number, (name, count) in enumerate(sizes.items()):
        (root / name / "more").mkdir(parents=True)
        for i in range(count):
            levels = np.random.default_rng([number, i]).integers(0, 256, (6 + i, 8, 3), np.uint8)
            place = root / name / ("more" if i == 1 else "") / f"{i}.png"
            place.write_bytes(data.encode_image(levels, "png"))
    return root


class Noisy:
    """Samples that are augmented."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> float:
        return float(index)

    def sample(self, index: int, rng: np.random.Generator) -> float:
        return index + rng.random()


def test_arrays() -> None:
    found = data.TensorDataset(X, Y)
    assert len(found) == 10
    x, y = found[3]
    np.testing.assert_array_equal(x, X[3])
    assert y == 3
    with pytest.raises(ValueError, match=r"equally long, got shapes \[\(10, 3\), \(9,\)\]"):
        data.TensorDataset(X, Y[:9])
    for wrong in ((), (np.float32(1),)):
        with pytest.raises(ValueError, match="TensorDataset"):
            data.TensorDataset(*wrong)


def test_parts_and_rows() -> None:
    whole = data.TensorDataset(Y)
    part = data.Subset(whole, [7, 2, 2])
    assert [int(part[i][0]) for i in range(len(part))] == [7, 2, 2]
    row = data.ConcatDataset([part, whole, data.Subset(whole, [9])])
    assert [int(row[i][0]) for i in range(len(row))] == [7, 2, 2, *range(10), 9]
    assert [int(row[i][0]) for i in (-1, -2, -14)] == [9, 9, 7]  # from the back, as torch's
    assert int(data.Subset(whole, [0, -1])[1][0]) == 9
    for index in (-15, 14):
        with pytest.raises(IndexError, match=f"index {index} is not from 0 to 13"):
            row[index]
    with pytest.raises(IndexError, match="Subset: index 10 is not from 0 to 9"):
        data.Subset(whole, [0, 10])
    with pytest.raises(ValueError, match="at least one"):
        data.ConcatDataset([])


def test_augmentation_reaches_the_sets_within() -> None:
    row = data.ConcatDataset([data.Subset(Noisy(), [4, 3]), Noisy()])
    for index, inner in enumerate([4, 3, 0, 1, 2, 3, 4]):
        expected = Noisy().sample(inner, np.random.default_rng(index))
        assert sample_of(row, index, np.random.default_rng(index)) == expected
        assert row[index] == inner
    assert sample_of(data.TensorDataset(Y), 3, RNG) == (3,)


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([7, 3], [7, 3]), ([0.5, 0.3, 0.2], [5, 3, 2]), ([0.33, 0.33, 0.34], [4, 3, 3]), ([10], [10])],
)
def test_random_splits_are_disjoint(lengths: list[float], sizes: list[int]) -> None:
    whole = data.TensorDataset(Y)
    parts = data.random_split(whole, lengths, seed=3)
    assert [len(p) for p in parts] == sizes
    assert sorted(int(p[i][0]) for p in parts for i in range(len(p))) == list(range(10))
    again = data.random_split(whole, lengths, seed=3)
    assert [p.indices for p in again] == [p.indices for p in parts]
    if len(sizes) > 1:
        other = data.random_split(whole, lengths, seed=4)
        assert [p.indices for p in other] != [p.indices for p in parts]


@pytest.mark.parametrize("lengths", [[5, 4], [0.5, 0.4], [-1, 11], []])
def test_lengths_that_do_not_fit(lengths: Any) -> None:
    with pytest.raises(ValueError, match="random_split: lengths"):
        data.random_split(data.TensorDataset(Y), lengths)


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    root = pictures(tmp_path, {"dog": 2, "cat": 3})
    (root / "cat" / "notes.txt").write_text("no image")
    found = data.ImageFolder(root)
    assert found.classes == ["cat", "dog"]
    assert len(found) == 5
    assert [label for _, label in found.samples] == [0, 0, 0, 1, 1]
    names = [file.name for file, label in found.samples if label == 0]
    assert sorted(names) == ["0.png", "1.png", "2.png"]
    image, label = found[names.index("2.png")]
    np.testing.assert_array_equal(image, np.random.default_rng([1, 2]).integers(0, 256, (8, 8, 3), np.uint8))
    assert label == 0
    assert data.ImageFolder(root, mode="grey")[0][0].shape[2] == 1
    assert "5 images of 2 classes" in repr(found)
    assert image_files(root / "dog" / "0.png") == [root / "dog" / "0.png"]


def test_a_folder_has_the_kinds_of_images_that_torchvisions_has(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    picture = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
    for kind in ("png", "bmp", "ppm", "tif", "tiff", "webp"):
        image.fromarray(picture).save(
            tmp_path / "a" / f"1.{kind}", **({"lossless": True} if kind == "webp" else {})
        )
    (tmp_path / "a" / "notes.txt").write_text("no image")
    found = data.ImageFolder(tmp_path)
    assert len(found) == 6
    for read, _ in found:
        np.testing.assert_array_equal(read, picture)


def test_transforms_of_a_folder_draw_from_the_generator(tmp_path: Path) -> None:
    root = pictures(tmp_path, {"a": 2, "b": 1})
    found = data.ImageFolder(root, lambda image, rng: image.astype(np.float64) + rng.random())
    same = [found.sample(0, np.random.default_rng(5))[0] for _ in range(2)]
    np.testing.assert_array_equal(*same)
    assert (found.sample(0, np.random.default_rng(6))[0] != same[0]).all()
    np.testing.assert_array_equal(found[0][0], found[0][0])


def test_classes_in_the_order_of_the_training(tmp_path: Path) -> None:
    root = pictures(tmp_path, {"b": 1, "c": 1})
    found = data.ImageFolder(root, classes=["c", "a", "b"])
    assert [label for _, label in found.samples] == [2, 0]
    with pytest.raises(data.DataError, match="the folders c are none of the classes"):
        data.ImageFolder(root, classes=["a", "b"])


def test_unsound_folders_and_files_are_named(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(data.DataError, match="there is no folder of images, one for each class"):
            data.ImageFolder(place)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "x.png").write_bytes(b"no picture")
    with pytest.raises(data.DataError, match=r"no images \(.jpg, .*\) in two"):
        data.ImageFolder(tmp_path)
    (tmp_path / "two").rmdir()
    with pytest.raises(data.DataError, match=r"one/x.png: decode_image: these 10 bytes are no image"):
        data.ImageFolder(tmp_path)[0]


def test_sets_side_by_side() -> None:
    x, y = data.TensorDataset(np.arange(4)), data.TensorDataset(np.arange(4) * 10)
    pairs, named = data.StackDataset(x, y), data.StackDataset(image=x, label=y)
    assert len(pairs) == len(named) == 4
    assert pairs[2] == ((2,), (20,))
    assert named[3] == {"image": (3,), "label": (30,)}
    assert pairs.sample(1, np.random.default_rng(0)) == ((1,), (10,))
    with pytest.raises(ValueError, match="either all by position or all by name"):
        data.StackDataset(x, label=y)
    with pytest.raises(ValueError, match=r"must be equally long, got lengths \[4, 2\]"):
        data.StackDataset(x, data.TensorDataset(np.arange(2)))


class Numbers(data.Dataset[int]):
    """Some numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> int:
        return self.numbers[index]


class Stream(data.IterableDataset[int]):
    """Three numbers."""

    def __iter__(self) -> Any:
        return iter(range(3))


def test_sets_are_added() -> None:
    joined = Numbers(1, 2) + Numbers(3) + data.Subset(Numbers(4, 5), [1])  # type: ignore[operator]
    assert isinstance(joined, data.ConcatDataset)
    assert [joined[i] for i in range(len(joined))] == [1, 2, 3, 5]
    of_tensors = data.TensorDataset(np.arange(2)) + data.TensorDataset(np.arange(3))
    assert len(of_tensors) == 5
    chained = Stream() + Stream()
    assert list(chained + Stream()) == [0, 1, 2] * 3
    assert isinstance([1, 2], data.Dataset)  # whatever has a length and gives samples


def test_a_set_adds_as_it_says_itself() -> None:
    class Own(Numbers):
        def __add__(self, other: Any) -> str:
            return "own"

    assert Own(1) + Numbers(2) == "own"
