"""Floor 5: real data as batches of NumPy arrays: digits, MNIST files, arrays; shuffling, prefetching."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy
from lamina.data.batches import Batches, Epochs, Prefetch, arrays, prefetch
from lamina.data.idx import DataError, mnist, read_idx
from lamina.data.image import resample

if TYPE_CHECKING:
    from lamina.data.scikit import digits

__all__ = [
    "Batches",
    "DataError",
    "Epochs",
    "Prefetch",
    "arrays",
    "digits",
    "mnist",
    "prefetch",
    "read_idx",
    "resample",
]

__getattr__ = lazy(__name__, {"digits": "lamina.data.scikit"})
