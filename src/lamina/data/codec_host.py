"""Image files on the CPU, by Pillow. `lamina.data.codec` imports this module at first use."""

from __future__ import annotations

import io
import threading
import warnings

import numpy as np

from lamina.data.idx import DataError, check_pixels
from lamina.runtime import Device
from lamina.tensors import Tensor, as_tensor

try:
    from PIL import Image, ImageOps
except ImportError as error:
    raise ImportError("images on the CPU need Pillow: pip install 'lamina[image]'") from error

#: Warning filters are global to the process: one thread at a time changes them, while it reads a header.
_filters = threading.Lock()


class PillowCodec:
    """Decodes and encodes with Pillow."""

    def decode(self, data: bytes, grey: bool, where: Device, max_pixels: int) -> Tensor:
        """The image (H, W, C), rotated by its EXIF orientation."""
        try:
            with _filters, warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", Image.DecompressionBombWarning
                )  # `max_pixels` is the limit here
                file = Image.open(io.BytesIO(data))
            with file:
                check_pixels(file.height, file.width, max_pixels)
                picture = ImageOps.exif_transpose(file).convert("L" if grey else "RGB")
        except DataError:
            raise
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"decode_image: these {len(data)} bytes are no image: {error}") from error
        levels = np.array(picture)
        return as_tensor(levels[:, :, None] if grey else levels)

    def encode(self, image: Tensor, format: str, quality: int) -> bytes:
        """The bytes of a file."""
        levels = image.numpy()
        file = io.BytesIO()
        options = {"quality": quality} if format == "jpeg" else {}
        Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(file, format, **options)
        return file.getvalue()


host = PillowCodec()
