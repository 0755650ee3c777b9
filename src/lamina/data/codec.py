"""Image codecs: image files to tensors and back, on the CPU by Pillow, on a GPU by NVIDIA's nvImageCodec.

An image is a uint8 tensor of shape (H, W, C), C = 3 (red, green, blue) or 1. On a GPU the file's bytes are copied to
the device and decoded there; the tensor is the decoder's memory, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from lamina._lazy import lazy
from lamina.data.image import triangle
from lamina.ops import floor
from lamina.ops.arguments import checked
from lamina.runtime import Device
from lamina.runtime import device as find_device
from lamina.spec import DType, DTypeError, ShapeError, as_dtype
from lamina.tensors import Tensor, as_tensor

FORMATS = ("jpeg", "png", "bmp")
_CHANNELS = {"rgb": 3, "grey": 1}
#: The largest image that is decoded unless a caller allows more: 8192 × 8192, for which Pillow needs 0.4 GB.
MAX_PIXELS = 1 << 26


class Codec(Protocol):
    """Decodes and encodes on one kind of device."""

    def decode(self, data: bytes, grey: bool, where: Device, max_pixels: int) -> Tensor:
        """The image (H, W, C) in the bytes of a file. Raises DataError for a larger one, before decoding it."""
        ...

    def encode(self, image: Tensor, format: str, quality: int) -> bytes:
        """The bytes of a file with the image (H, W, C)."""
        ...


_codec = lazy(__name__, {"host": "lamina.data.codec_host", "cuda": "lamina.data.codec_cuda"})


def _codec_of(where: Device) -> Codec:
    found: Codec = _codec("host" if where.kind == "cpu" else "cuda")
    return found


def decode_image(
    data: Any, *, mode: str = "rgb", device: Device | str | None = "cpu", max_pixels: int = MAX_PIXELS
) -> Tensor:
    """The image in the bytes of an image file, as a uint8 tensor (H, W, C) on `device`.

    On a GPU JPEG is decoded there by nvImageCodec, on the CPU by Pillow. Decoders may differ by a few levels
    where colours are kept at half resolution, because they interpolate them differently.

    Args:
        data: the file's content (bytes, or anything with the buffer protocol).
        mode: "rgb" (C = 3) or "grey" (C = 1); other images are converted.
        device: where the tensor is.
        max_pixels: larger images are refused by their header: a file of some kilobytes can hold an image of
            gigabytes. (Pillow itself refuses more than 178,956,970.)

    Raises:
        ImportError: the decoder is not installed; the message says what to install.
        DataError: not an image, a damaged one, or one of more pixels. NoGpuError: the device does not exist.
    """
    if mode not in _CHANNELS:
        raise ValueError(f"decode_image: mode must be 'rgb' or 'grey', got {mode!r}")
    if max_pixels < 1:
        raise ValueError(f"decode_image: max_pixels must be at least 1, got {max_pixels}")
    try:
        content = bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"decode_image: data must be bytes, got {type(data).__name__}") from None
    where = find_device(device)
    return _codec_of(where).decode(content, mode == "grey", where, max_pixels)


@checked
def encode_image(image: Any, format: str = "jpeg", *, quality: int = 90) -> bytes:
    """The bytes of an image file with `image`, encoded on the device where it is.

    Args:
        image: uint8 of shape (H, W, 3), (H, W, 1) or (H, W): a tensor, or an array of any library.
        format: "jpeg", "png" or "bmp".
        quality: of a JPEG, 1 to 100.

    Raises:
        ImportError: the encoder is not installed. ShapeError, DTypeError: not an image.
        DataError: the encoder refuses it.
    """
    if format not in FORMATS:
        raise ValueError(f"encode_image: format must be one of {', '.join(FORMATS)}; got {format!r}")
    if not 1 <= quality <= 100:
        raise ValueError(f"encode_image: quality must be 1 to 100, got {quality}")
    picture = as_tensor(image)
    if picture.dtype.name != "uint8":
        raise DTypeError(f"encode_image: the image must be uint8, got {picture.spec}")
    if picture.ndim == 2:
        picture = picture.reshape(*picture.shape, 1)
    if picture.ndim != 3 or picture.shape[2] not in _CHANNELS.values() or 0 in picture.shape:
        raise ShapeError(f"encode_image: needs (H, W, 3), (H, W, 1) or (H, W), got {picture.shape}")
    return _codec_of(picture.device).encode(picture.contiguous(), format, quality)


@checked
def resize(images: Any, size: int | tuple[int, int], *, antialias: bool = True) -> Tensor:
    """Images resized bilinearly to `size`, on their device.

    Two matrix products, one per axis. With `antialias` a shrinking image is averaged over all of its pixels (as
    Pillow's BILINEAR, and torch's interpolate with antialias=True); without, each result interpolates its four
    nearest pixels. Beyond the border the border's pixels are repeated.

    Args:
        images: (H, W, C) or (N, H, W, C), uint8 or float: a tensor, or an array of any library.
        size: height and width of the result; one number for both.
        antialias: see above.

    Returns:
        (h, w, C) or (N, h, w, C) of the same dtype; uint8 is rounded to the nearest level.

    Raises:
        ShapeError: another rank, or an empty size. DTypeError: other integers.
    """
    pictures = as_tensor(images)
    height, width = (size, size) if isinstance(size, int) else size
    if pictures.ndim not in (3, 4) or 0 in pictures.shape[-3:] or height < 1 or width < 1:
        raise ShapeError(
            f"resize: needs (H, W, C) or (N, H, W, C) and a size >= 1, got {pictures.shape} to {size}"
        )
    if not (pictures.dtype.is_float or pictures.dtype.name == "uint8"):
        raise DTypeError(f"resize: the images must be uint8 or float, got {pictures.spec}")
    *batch, rows, columns, channels = pictures.shape
    wide = pictures.to(dtype="float32").reshape(*batch, rows, columns * channels)
    where = pictures.device
    down = as_tensor(triangle(height, rows, antialias)).to(where)  # (h, H)
    across = as_tensor(triangle(width, columns, antialias)).to(where)  # (w, W)
    tall = (down @ wide).reshape(*batch, height, columns, channels)
    scaled: Tensor = across @ tall  # (…, h, w, C)
    if pictures.dtype.is_float:
        return scaled.to(dtype=pictures.dtype)
    level: Tensor = floor(scaled + 0.5).clamp(0.0, 255.0)
    return level.to(dtype="uint8")


@checked
def normalize(
    images: Any,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    *,
    dtype: DType | str = "float32",
) -> Tensor:
    """Images (…, H, W, C) of uint8 as a network's input (…, C, H, W): (x / 255 - mean) / std.

    Args:
        images: a tensor, or an array of any library.
        mean: of the levels from 0 to 1, one for all channels or one per channel.
        std: likewise, not 0.
        dtype: of the result, a float.

    Raises:
        ShapeError: fewer than three axes, or mean and std for another number of channels. DTypeError: not uint8.
    """
    pictures = as_tensor(images)
    if pictures.dtype.name != "uint8" or not as_dtype(dtype).is_float:
        raise DTypeError(f"normalize: needs uint8 images and a float dtype, got {pictures.spec} and {dtype}")
    if pictures.ndim < 3:
        raise ShapeError(f"normalize: needs (…, H, W, C), got {pictures.shape}")
    middle, spread = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    for name, figures in (("mean", middle), ("std", spread)):
        if figures.shape not in ((), (1,), pictures.shape[-1:]):
            raise ShapeError(f"normalize: {name} has shape {figures.shape}, the images {pictures.shape}")
    if not spread.all():
        raise ValueError(f"normalize: std must not be 0, got {std}")
    where = pictures.device
    scale = as_tensor(np.atleast_1d(1 / (255 * spread)).astype(np.float32)).to(where)
    shift = as_tensor(np.atleast_1d(-middle / spread).astype(np.float32)).to(where)
    made = pictures.to(dtype="float32") * scale + shift
    front = range(pictures.ndim - 3)
    axes = (*front, pictures.ndim - 1, pictures.ndim - 3, pictures.ndim - 2)
    result: Tensor = made.permute(*axes).contiguous()
    return result.to(dtype=dtype)
