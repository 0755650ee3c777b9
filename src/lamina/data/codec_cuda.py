"""Image files on a GPU, by NVIDIA's nvImageCodec. `lamina.data.codec` imports this module at first use."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

from lamina.data.idx import DataError, check_pixels
from lamina.runtime import Device
from lamina.tensors import Tensor, from_dlpack

try:
    from nvidia import nvimgcodec
except ImportError as error:
    raise ImportError(
        "images on a GPU need nvImageCodec: pip install 'lamina[image-cu13]' (or image-cu12)"
    ) from error

_lock = threading.Lock()  # a decoder handles one call at a time


@lru_cache(maxsize=16)
def _decoder(index: int) -> Any:
    return nvimgcodec.Decoder(device_id=index)


@lru_cache(maxsize=16)
def _encoder(index: int) -> Any:
    return nvimgcodec.Encoder(device_id=index)


class NvImageCodec:
    """Decodes and encodes with nvImageCodec, on the default stream of the device."""

    def decode(self, data: bytes, grey: bool, where: Device, max_pixels: int) -> Tensor:
        """The image (H, W, C): the decoder's own memory; rotated by its EXIF orientation."""
        spec = nvimgcodec.ColorSpec.GRAY if grey else nvimgcodec.ColorSpec.SRGB
        parameters = nvimgcodec.DecodeParams(color_spec=spec)
        stream = where.default_stream.handle
        with _lock, where.current():
            try:
                header = nvimgcodec.CodeStream(data)
                check_pixels(header.height, header.width, max_pixels)
                image = _decoder(where.index).decode(data, params=parameters, cuda_stream=stream)
            except RuntimeError as error:
                raise DataError(
                    f"decode_image: nvImageCodec refuses these {len(data)} bytes: {error}"
                ) from error
            if image is None:
                raise DataError(
                    f"decode_image: these {len(data)} bytes are no image that nvImageCodec can read"
                )
            if image.buffer_kind == nvimgcodec.ImageBufferKind.STRIDED_HOST:
                image = image.cuda()
            return from_dlpack(image)

    def encode(self, image: Tensor, format: str, quality: int) -> bytes:
        """The bytes of a file."""
        where = image.device
        stream = where.default_stream.handle
        options = {}
        if format == "jpeg":
            options = {"quality_type": nvimgcodec.QualityType.QUALITY, "quality_value": float(quality)}
        with _lock, where.current():
            source = nvimgcodec.as_image(image, cuda_stream=stream)
            parameters = nvimgcodec.EncodeParams(**options)
            made = _encoder(where.index).encode(source, format, params=parameters, cuda_stream=stream)
        if made is None:
            raise DataError(f"encode_image: nvImageCodec cannot write {image.spec} as {format}")
        return bytes(made)


cuda = NvImageCodec()
