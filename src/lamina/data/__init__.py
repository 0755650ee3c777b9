"""Floor 5: real data as batches of NumPy arrays: digits, MNIST files, arrays, image files; shuffling, prefetching."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing
from lamina.data.batches import Batches, Epochs, Prefetch, arrays, prefetch
from lamina.data.codec import decode_image, encode_image, normalize, resize
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
    "decode_image",
    "digits",
    "encode_image",
    "mnist",
    "normalize",
    "prefetch",
    "read_idx",
    "resample",
    "resize",
]
__dir__ = listing(__all__)

__getattr__ = lazy(__name__, {"digits": "lamina.data.scikit"})
