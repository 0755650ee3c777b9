"""Batches of samples of any structure: what is joined, and what becomes a tensor (torch's rules)."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import _tree, ops
from lamina.ops.arguments import checked, shown
from lamina.spec import DTypeError, as_dtype
from lamina.tensors import Tensor, as_tensor


@checked
def default_collate(samples: list[Any]) -> Any:
    """A batch of samples of one structure, as torch's default_collate: arrays, numbers and tensors are stacked to
    tensors (N, …) on the CPU, those of tensors on a GPU there; texts become lists.

    Dtypes are kept; Python's ints give int64, floats float64 and bools bool. Tuples become lists; dicts and named
    tuples stay what they are. Arrays of dtypes that tensors do not have (such as uint16) are joined as arrays.
    Raises ValueError when samples differ in structure or shape, TypeError for those that are no numbers.
    """
    return converted(stacked(samples))


@checked
def default_convert(data: Any) -> Any:
    """A sample with its NumPy arrays and scalars as tensors that share their memory, as torch's default_convert.

    Python's numbers, texts, tensors and other objects are unchanged, and so are arrays of dtypes that tensors do not
    have. Tuples become lists; dicts and named tuples stay what they are.
    """
    return converted(data)


def converted(data: Any) -> Any:
    """As `default_convert`; no data is copied."""
    if isinstance(data, np.ndarray | np.generic):
        return as_tensor(data) if has_tensors(data.dtype) else data
    if isinstance(data, list) or (isinstance(data, tuple) and not hasattr(data, "_fields")):
        return [converted(x) for x in data]
    if isinstance(data, dict | tuple):
        entries, structure = _tree.flatten(data, lambda x: x is not data)
        return _tree.unflatten(structure, [converted(x) for x in entries])
    return data


def has_tensors(dtype: np.dtype[Any]) -> bool:
    """Whether there are tensors of a dtype of NumPy's."""
    try:
        as_dtype(dtype)
    except DTypeError:
        return False
    return True


def stacked(samples: list[Any]) -> Any:
    """The batch of samples as NumPy arrays, and as tensors where the samples are on a GPU; see `default_collate`."""
    first, structure = _tree.flatten(samples[0])
    columns: list[list[Any]] = [[] for _ in first]
    for number, sample in enumerate(samples):
        leaves, shape = _tree.flatten(sample)
        if shape != structure:
            raise ValueError(f"default_collate: sample {number} is {shape}, the first one {structure}")
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    return _tree.unflatten(structure, [_column(c) for c in columns])


def _column(samples: list[Any]) -> Any:
    """One leaf of all samples."""
    texts = [isinstance(x, str | bytes) for x in samples]
    if all(texts):
        return samples
    arrays = [_array(x) for x in samples]
    wrong = next(
        (x for x, a, text in zip(samples, arrays, texts, strict=True) if text or a.dtype == object), None
    )
    if wrong is not None:
        raise TypeError(
            f"default_collate: a batch is of arrays and numbers, or of texts, got {shown(wrong)} of "
            f"type {type(wrong).__name__} among {len(samples)} samples; give a collate_fn for others"
        )
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise ValueError(
            f"default_collate: samples of shapes {', '.join(map(str, sorted(shapes)))} make no batch; bring them "
            "to one size (a transform such as Resize, CenterCrop), or give a collate_fn"
        )
    on_host = all(isinstance(a, np.ndarray) for a in arrays)
    return np.stack(arrays) if on_host else ops.stack(arrays)


def _array(x: Any) -> Any:
    """An array, number or tensor as a NumPy array; a tensor on a GPU as it is."""
    if isinstance(x, Tensor):
        return x.numpy() if x.device.kind == "cpu" else x
    return np.asarray(x)
