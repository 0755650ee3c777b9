"""Data sets of single samples: arrays, subsets of other sets, folders of images.

A data set has a length and returns sample i by `dataset[i]`: an array, a tensor, a number, or nested tuples, lists
and dicts of them, as PyTorch's do. If samples are augmented it also has a method `sample(i, rng)`, which
`DataLoader` calls with a generator that depends only on the seed, the epoch and the sample's position.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from lamina.data.batches import SeededGenerator, seed_of
from lamina.data.codec import decode_image
from lamina.data.collate import has_tensors
from lamina.data.idx import DataError
from lamina.ops.arguments import Checked, checked
from lamina.tensors import Tensor, as_tensor

Array = np.ndarray[Any, Any]
#: Transforms an image (H, W, C) or the result of an earlier transform; the generator is for random transforms.
Transform = Callable[[Array, np.random.Generator], Array]
S = TypeVar("S", covariant=True)
#: File name extensions of images for `ImageFolder`.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@runtime_checkable
class Dataset(Protocol[S]):
    """Samples by their number. Subclasses are concatenated by `a + b` (`ConcatDataset`)."""

    def __init_subclass__(cls, **options: Any) -> None:
        # Not in the protocol: an object with a length and samples is a data set, whether or not it supports
        # addition.
        super().__init_subclass__(**options)
        if not hasattr(cls, "__add__"):
            cls.__add__ = _joined  # type: ignore[operator]

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> S: ...


class IterableDataset(Generic[S]):
    """Samples one after another, as torch's IterableDataset: a base for classes whose `__iter__` yields an epoch's
    samples.

    A `DataLoader` accepts any iterable without `__getitem__`. If it has a method `set_epoch`, that is called with the
    epoch's number beforehand.
    """

    def __iter__(self) -> Iterator[S]:
        raise NotImplementedError(
            f"{type(self).__name__} needs a method __iter__ that gives an epoch's samples"
        )

    def __add__(self, other: Iterable[Any]) -> ChainDataset:
        """The samples of both sets, concatenated."""
        return ChainDataset([self, other])


def _joined(self: Dataset[Any], other: Dataset[Any]) -> ConcatDataset:
    """The samples of both sets, concatenated."""
    return ConcatDataset([self, other])


class _Joinable(Checked):
    """A base of sets that are concatenated by `a + b`."""

    __add__ = _joined


def sample_of(dataset: Dataset[Any], index: int, rng: np.random.Generator) -> Any:
    """A sample, augmented with the generator if the data set supports that."""
    draw = getattr(dataset, "sample", None)
    return dataset[index] if draw is None else draw(index, rng)


def samples_of(dataset: Dataset[Any], indices: list[int], rng: np.random.Generator) -> list[Any]:
    """The samples of a batch: each by `sample` with a spawned generator, if the data set has that; otherwise all at
    once where it has `__getitems__` (torch's).

    Raises ValueError for another number of samples."""
    draw = getattr(dataset, "sample", None)
    if draw is not None:
        return [draw(i, own) for i, own in zip(indices, rng.spawn(len(indices)), strict=True)]
    together = getattr(dataset, "__getitems__", None)
    if together is None:
        return [dataset[i] for i in indices]
    found = list(together(indices))
    if len(found) != len(indices):
        raise ValueError(
            f"{type(dataset).__name__}.__getitems__ must give a sample for each of {len(indices)} indices, gave "
            f"{len(found)}"
        )
    return found


def joined_of(dataset: Dataset[Any], indices: Sequence[int]) -> Any | None:
    """The arrays of a batch, gathered without reading sample by sample; None where the data set cannot."""
    joined = getattr(dataset, "_joined", None)
    return None if joined is None else joined(indices)


class TensorDataset(_Joinable):
    """Sample i is (a[i], b[i], …) of tensors or arrays with equally long first axes: tensors of tensors (of another
    library's, too), arrays of NumPy arrays and lists. Raises ValueError for others."""

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise ValueError("TensorDataset: needs at least one array")
        self.tensors = tuple(_tensor_or_array(t) for t in tensors)
        shapes = [t.shape for t in self.tensors]
        if any(not s for s in shapes) or len({s[0] for s in shapes}) != 1:
            raise ValueError(f"TensorDataset: first axes must be equally long, got shapes {shapes}")

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """One sample of each array."""
        return tuple(t[index] for t in self.tensors)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Several samples."""
        if type(self).__getitem__ is not TensorDataset.__getitem__:  # a subclass makes samples of its own
            return [self[i] for i in indices]
        return list(zip(*(_rows(t, indices) for t in self.tensors), strict=True))

    def _joined(self, indices: Sequence[int]) -> tuple[Any, ...] | None:
        own = _same_methods(self, TensorDataset, "__getitem__", "__getitems__") and not hasattr(
            self, "sample"
        )
        if not own or not all(isinstance(t, Tensor) or has_tensors(t.dtype) for t in self.tensors):
            return None
        return tuple(_gathered(t, indices) for t in self.tensors)


def _tensor_or_array(x: Any) -> Any:
    """The data of a `TensorDataset`."""
    is_tensor = hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray | np.generic)
    return as_tensor(x) if is_tensor else np.asarray(x)


def _gathered(x: Any, indices: Sequence[int]) -> Any:
    """Rows of an array or tensor in new memory: an array, or, of a tensor on a GPU, a tensor."""
    places = np.asarray(indices, np.int64)
    return (x.numpy() if isinstance(x, Tensor) and x.device.kind == "cpu" else x)[places]


def _rows(x: Any, indices: Sequence[int]) -> list[Any]:
    """The same one by one: tensors of a tensor."""
    rows = list(_gathered(x, indices))
    return [as_tensor(row) for row in rows] if isinstance(x, Tensor) else rows


def _same_methods(dataset: object, base: type, *names: str) -> bool:
    """Whether the data set's class has these methods of `base`, and no others in their place."""
    return all(getattr(type(dataset), name) is getattr(base, name) for name in names)


class Subset(_Joinable):
    """Some samples of another set, in the order of `indices`, which may be negative.

    Raises IndexError for invalid indices.
    """

    def __init__(self, dataset: Dataset[Any], indices: Sequence[int]) -> None:
        self.dataset, size = dataset, len(dataset)
        given = [int(i) for i in indices]
        wrong = next((i for i in given if not -size <= i < size), None)
        if wrong is not None:
            raise IndexError(f"Subset: index {wrong} is not from 0 to {size - 1}, nor from the back")
        self.indices = [i % size for i in given]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        """The sample at this position of the indices."""
        return self.dataset[self.indices[index]]

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Likewise, augmented."""
        return sample_of(self.dataset, self.indices[index], rng)

    def _joined(self, indices: Sequence[int]) -> Any | None:
        own = _same_methods(self, Subset, "__getitem__", "sample")
        return joined_of(self.dataset, [self.indices[i] for i in indices]) if own else None


class ConcatDataset(_Joinable):
    """The samples of several sets, concatenated; indices may be negative."""

    def __init__(self, datasets: Sequence[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: needs at least one data set")
        self.ends = list(itertools.accumulate(len(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.ends[-1]

    def _place(self, index: int) -> tuple[Dataset[Any], int]:
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"ConcatDataset: index {index} is not from 0 to {len(self) - 1}, nor from the back"
            )
        index %= len(self)
        number = bisect_right(self.ends, index)
        return self.datasets[number], index - (self.ends[number - 1] if number else 0)

    def __getitem__(self, index: int) -> Any:
        """The sample, from the set that contains it."""
        dataset, place = self._place(index)
        return dataset[place]

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Likewise, augmented."""
        return sample_of(*self._place(index), rng)


class StackDataset(_Joinable):
    """Sample i of several sets of one length: a tuple, or, with sets by name, a dict; torch's StackDataset.

    Raises ValueError for sets of different lengths, for none, and for a mix of named and unnamed ones.
    """

    def __init__(self, *args: Dataset[Any], **kwargs: Dataset[Any]) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset: needs data sets, either all by position or all by name")
        self.datasets: tuple[Dataset[Any], ...] | dict[str, Dataset[Any]] = args or kwargs
        lengths = [len(d) for d in (*args, *kwargs.values())]
        if len(set(lengths)) != 1:
            raise ValueError(f"StackDataset: data sets must be equally long, got lengths {lengths}")
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        """The sample of each set."""
        return self._each(lambda d, i: d[index])

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Likewise, augmented, each with its own generator."""
        own = rng.spawn(len(self.datasets))
        return self._each(lambda d, i: sample_of(d, index, own[i]))

    def _each(self, get: Callable[[Dataset[Any], int], Any]) -> Any:
        if isinstance(self.datasets, dict):
            return {name: get(d, i) for i, (name, d) in enumerate(self.datasets.items())}
        return tuple(get(d, i) for i, d in enumerate(self.datasets))


class ChainDataset(IterableDataset[Any], Checked):
    """The samples of several iterable sets, concatenated; torch's ChainDataset."""

    def __init__(self, datasets: Sequence[Iterable[Any]]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)

    def set_epoch(self, number: int) -> None:
        """Tell the sets the number of the next epoch."""
        for dataset in self.datasets:
            getattr(dataset, "set_epoch", lambda number: None)(number)


@checked
def random_split(
    dataset: Dataset[Any],
    lengths: Sequence[float],
    generator: SeededGenerator | np.random.Generator | None = None,
    *,
    seed: int | None = None,
) -> list[Subset]:
    """Disjoint random subsets of a set.

    lengths: numbers of samples that sum to the total, or fractions whose sum is 1 (the remainder of rounding down
        goes to the first ones, one each, as torch does).
    generator: an `nn.Generator`, whose seed is used, or NumPy's, from which a seed is drawn; or seed, 0 by default.
    Raises ValueError for other lengths, and for a generator with a seed.
    """
    total = len(dataset)
    counts = [int(n) for n in lengths]
    if lengths and all(0 <= n <= 1 for n in lengths) and math.isclose(sum(lengths), 1, abs_tol=1e-9):
        counts = [math.floor(total * n) for n in lengths]
        for i in range(total - sum(counts)):
            counts[i % len(counts)] += 1
    if any(n < 0 for n in counts) or sum(counts) != total:
        raise ValueError(
            f"random_split: lengths {list(lengths)} are neither {total} in all nor fractions of 1"
        )
    order = np.random.default_rng(seed_of("random_split", generator, seed)).permutation(total)
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - n : end].tolist()) for n, end in zip(counts, ends, strict=True)]


class ImageFolder(_Joinable):
    """Images in one folder per class: root/cat/1.jpg, root/dog/a/2.png (torchvision's).

    Sample i is (image, label): the image uint8 (H, W, 3), or the result of `transform`, and the class index.

    transform: (image, rng) -> image, such as `transforms.Compose`. mode: "rgb" or "grey".
    classes: their names; by default those of the folders, sorted. For testing, pass those of the training.
    max_pixels: as in `decode_image`. samples: (path, label) of every image, sorted.
    Raises DataError for a root without folders, folders without images, classes that are not listed, and, on reading,
    a file that is not an image.
    """

    def __init__(
        self,
        root: str | Path,
        transform: Transform | None = None,
        *,
        mode: str = "rgb",
        classes: Sequence[str] | None = None,
        max_pixels: int = 1 << 26,
    ) -> None:
        self.root, self.transform, self.mode, self.max_pixels = Path(root), transform, mode, max_pixels
        found = sorted(f.name for f in self.root.iterdir() if f.is_dir()) if self.root.is_dir() else []
        if not found:
            raise DataError(f"{root}: there is no folder of images, one for each class, in it")
        self.classes = found if classes is None else list(classes)
        unknown = [name for name in found if name not in self.classes]
        if unknown:
            raise DataError(f"{root}: the folders {', '.join(unknown)} are none of the classes")
        self.samples = [
            (file, self.classes.index(name)) for name in found for file in image_files(self.root / name)
        ]
        empty = [name for name in found if not image_files(self.root / name)]
        if empty:
            raise DataError(f"{root}: no images ({', '.join(IMAGE_SUFFIXES)}) in {', '.join(empty)}")

    def __len__(self) -> int:
        return len(self.samples)

    def image(self, index: int) -> Array:
        """The original image of the file, uint8 (H, W, C). Raises DataError, which names the file."""
        return read_image(self.samples[index][0], self.mode, self.max_pixels)

    def sample(self, index: int, rng: np.random.Generator) -> tuple[Array, int]:
        """An image, transformed with the generator, and its label."""
        picture = self.image(index)
        return picture if self.transform is None else self.transform(picture, rng), self.samples[index][1]

    def __getitem__(self, index: int) -> tuple[Array, int]:
        """Likewise, with a generator that depends only on the index."""
        return self.sample(index, np.random.default_rng(index))

    def __repr__(self) -> str:
        return f"ImageFolder({self.root}: {len(self)} images of {len(self.classes)} classes)"


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and its subfolders, sorted; a file stands for itself."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    return [f for f in files if f.suffix.lower() in IMAGE_SUFFIXES and f.is_file()]


def read_image(file: Path, mode: str = "rgb", max_pixels: int = 1 << 26) -> Array:
    """The image in a file, uint8 (H, W, C). Raises DataError, which names the file."""
    try:
        return decode_image(file.read_bytes(), mode=mode, max_pixels=max_pixels).numpy()
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
