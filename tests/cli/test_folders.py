"""Folders of images as training data: splits, classes, what a network sees."""

from pathlib import Path

import numpy as np
import pytest

from lamina import data
from lamina.cli.folders import MEAN, STD, Sight, classes_of, image_batches, inputs_of

COLOURS = {"blue": (20, 30, 220), "green": (30, 200, 40), "red": (210, 40, 30)}


def colours(root: Path, count: int = 10, size: int = 12) -> Path:
    """Pictures of one noisy colour a class."""
    for number, (name, colour) in enumerate(COLOURS.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            noise = np.random.default_rng([number, i]).integers(-20, 20, (size, size + i % 3, 3))
            levels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            (root / name / f"{i:02d}.png").write_bytes(data.encode_image(levels, "png"))
    return root


SIGHT = Sight("resnet18", tuple(COLOURS), size=16)


def names_in(batches: data.DataLoader) -> set[bytes]:
    """What is in the images, as it is transformed, to compare splits."""
    return {x.numpy().tobytes() for images, _ in batches.epoch(0) for x in images}


def test_a_folder_is_split_by_a_fixed_seed(tmp_path: Path) -> None:
    root = colours(tmp_path)
    assert classes_of(root) == ("blue", "green", "red")
    splits = {
        name: image_batches(root, name, 4, SIGHT, augment=False) for name in ("train", "validation", "test")
    }
    assert {name: s.count for name, s in splits.items()} == {"train": 24, "validation": 3, "test": 3}
    seen = [names_in(s) for s in splits.values()]
    assert len(set.union(*seen)) == 30  # disjoint
    assert splits["train"].shuffle
    assert not splits["test"].shuffle
    assert all(s.num_classes == 3 for s in splits.values())


def test_folders_of_splits(tmp_path: Path) -> None:
    colours(tmp_path / "train", 10)
    colours(tmp_path / "val", 2)
    assert classes_of(tmp_path) == ("blue", "green", "red")
    counts = {name: image_batches(tmp_path, name, 2, SIGHT).count for name in ("train", "validation", "test")}
    assert counts == {"train": 27, "validation": 6, "test": 3}
    colours(tmp_path / "test", 1)
    counts = {name: image_batches(tmp_path, name, 2, SIGHT).count for name in ("train", "validation", "test")}
    assert counts == {"train": 30, "validation": 6, "test": 3}


def test_training_is_augmented_and_mixed(tmp_path: Path) -> None:
    root = colours(tmp_path)
    plain, augmented = (image_batches(root, "train", 8, SIGHT, augment=a) for a in (False, True))
    (x, labels), (y, same) = next(plain.epoch(0)), next(augmented.epoch(0))
    np.testing.assert_array_equal(labels, same)
    assert x.shape == y.shape == (8, 3, 16, 16)
    assert (x != y).any()
    _, shares = next(image_batches(root, "train", 8, SIGHT, mixup=0.4).epoch(0))
    assert shares.shape == (8, 3)
    _, labels = next(image_batches(root, "test", 3, SIGHT, mixup=0.4).epoch(0))
    assert labels.ndim == 1


def test_what_a_network_sees_is_in_its_header() -> None:
    grey = Sight("lenet", ("a", "b"), 1, 28, (0.5,), (0.25,), 0.0)
    for sight in (SIGHT, grey):
        assert Sight.of(sight.header(), "x") == sight
    assert Sight.of({"format": "x"}, "x") is None
    for text in ("[", "{}", '{"network": 1, "classes": [], "mean": [], "std": [], "more": 1}'):
        with pytest.raises(ValueError, match="file: its header's network is not sound"):
            Sight.of({"lamina network": text}, "file")
    picture = np.full((30, 40, 1), 255, np.uint8)
    np.testing.assert_allclose(inputs_of([picture, picture], grey), np.full((2, 1, 28, 28), 2.0), rtol=1e-6)


@pytest.mark.parametrize(("channels", "mean", "std"), [(1, (0.5,), (0.5,)), (3, MEAN, STD)])
def test_black_and_white_where_nothing_is_known(
    channels: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    sight = Sight.usual("net", (), channels, 8)
    levels = np.array([0, 255], np.uint8)[:, None, None, None]
    found = inputs_of(list(np.broadcast_to(levels, (2, 12, 10, channels))), sight)
    assert found.shape == (2, channels, 8, 8)
    for x, level in zip(found, (0.0, 1.0), strict=True):
        wanted = (level - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
        np.testing.assert_allclose(x, np.broadcast_to(wanted, x.shape), rtol=1e-5)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("augment", [True, False])
def test_only_training_images_are_augmented(split: str, augment: bool, tmp_path: Path) -> None:
    """These differ from epoch to epoch; the others are ever the same, in training in another order."""
    batches = image_batches(colours(tmp_path), split, 4, SIGHT, augment=augment)
    first, second = ({x.numpy().tobytes() for images, _ in batches.epoch(n) for x in images} for n in (0, 1))
    assert (first == second) == (not (augment and split == "train"))
