"""Image files: Pillow on the CPU, nvImageCodec on a GPU."""

import io
import struct
import sys
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data
from lamina.data import DataError
from lamina.data.image import triangle

Image = pytest.importorskip("PIL.Image")
HERE = pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def picture(height: int = 75, width: int = 100) -> Any:
    """A smooth picture: what JPEG keeps well."""
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / 15), np.cos(y / 10), np.sin((x + y) / 20)], -1)
    return np.round(127 + 100 * waves).astype(np.uint8)


def on(where: str, array: Any) -> lm.Tensor:
    if where == "cuda":
        pytest.importorskip("nvidia.nvimgcodec")
    return lm.tensor(array, device=where)


def difference(a: Any, b: Any) -> tuple[float, float]:
    """Mean and largest difference in levels."""
    gap = np.abs(np.asarray(a, np.int64) - np.asarray(b, np.int64))
    return float(gap.mean()), float(gap.max())


@HERE
@pytest.mark.feature("F042")
@pytest.mark.parametrize(("quality", "mean"), [(50, 4.0), (90, 2.0), (100, 1.5)])
def test_jpeg_there_and_back(where: str, quality: int, mean: float) -> None:
    array = picture()
    content = data.encode_image(on(where, array), quality=quality)
    assert content.startswith(b"\xff\xd8\xff")
    decoded = data.decode_image(content, device=where)
    assert decoded.spec == lm.Spec((75, 100, 3), lm.uint8).fixed
    assert decoded.device.kind == where
    assert difference(decoded.numpy(), array)[0] < mean
    with Image.open(io.BytesIO(content)) as file:
        assert difference(np.array(file.convert("RGB")), decoded.numpy())[0] < 1.0


@HERE
@pytest.mark.feature("F042")
def test_grey_and_lossless(where: str) -> None:
    array = picture()
    grey = data.decode_image(data.encode_image(on(where, array)), mode="grey", device=where)
    assert grey.shape == (75, 100, 1)
    assert difference(grey.numpy()[:, :, 0], np.array(Image.fromarray(array).convert("L")))[0] < 2.0
    one = data.encode_image(on(where, array[:, :, 0]))
    assert (
        difference(data.decode_image(one, mode="grey", device=where).numpy()[:, :, 0], array[:, :, 0])[0]
        < 1.0
    )
    for format in ("png", "bmp"):
        exact = data.decode_image(data.encode_image(on(where, array), format), device=where)
        assert np.array_equal(exact.numpy(), array)


@HERE
@pytest.mark.feature("F042")
@pytest.mark.parametrize("size", [(32, 40), (150, 210), (75, 33), 64])
def test_resize_as_pillow_does(where: str, size: Any) -> None:
    array = np.random.default_rng(1).integers(0, 256, (75, 100, 3), np.uint8)
    scaled = data.resize(on(where, array), size)
    height, width = (size, size) if isinstance(size, int) else size
    expected = np.array(Image.fromarray(array).resize((width, height), Image.BILINEAR))
    assert scaled.dtype == lm.uint8
    assert difference(scaled.numpy(), expected)[1] <= 1
    batch = data.resize(on(where, np.stack([array, array[::-1]])), size)
    assert np.array_equal(batch.numpy()[0], scaled.numpy())
    assert batch.shape == (2, height, width, 3)


@pytest.mark.gpu
@pytest.mark.feature("F042")
def test_a_picture_stays_on_the_gpu() -> None:
    """File to network input to file: every step on the device, against Pillow's way of the same steps."""
    array = picture(240, 320)
    content = data.encode_image(on("cuda", array))
    decoded = data.decode_image(content, device="cuda")
    small = data.resize(decoded, 64)
    batch = data.normalize(small.reshape(1, 64, 64, 3), 0.5, 0.25)
    assert {x.device.kind for x in (decoded, small, batch)} == {"cuda"}
    with Image.open(io.BytesIO(content)) as file:
        expected = np.array(file.convert("RGB").resize((64, 64), Image.BILINEAR))
    assert difference(small.numpy(), expected)[0] < 1.5
    np.testing.assert_allclose(
        batch.numpy()[0], (small.numpy().transpose(2, 0, 1) / 255 - 0.5) / 0.25, atol=1e-4
    )
    again = data.decode_image(data.encode_image(small, quality=95), device="cuda")
    # Scaled down the colours are steep, and JPEG halves their resolution: Pillow, too, loses 3.27 levels of this one.
    pillow = data.decode_image(data.encode_image(small.to("cpu"), quality=95))
    assert difference(again.numpy(), small.numpy())[0] < difference(pillow.numpy(), small.numpy())[0] + 0.5


@pytest.mark.torch
@pytest.mark.feature("F042")
def test_resize_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    array = np.random.default_rng(1).random((2, 20, 31, 3), np.float32)
    for antialias in (False, True):
        planes = torch.from_numpy(array).permute(0, 3, 1, 2)
        scaled = torch.nn.functional.interpolate(planes, (9, 50), mode="bilinear", antialias=antialias)
        ours = data.resize(array, (9, 50), antialias=antialias)
        np.testing.assert_allclose(ours.numpy(), scaled.permute(0, 2, 3, 1).numpy(), atol=1e-5)


def test_the_matrix_keeps_a_flat_picture() -> None:
    for size, source in ((3, 10), (10, 3), (7, 7)):
        np.testing.assert_allclose(triangle(size, source).sum(1), 1, rtol=1e-6)
    assert np.array_equal(triangle(4, 4), np.eye(4, dtype=np.float32))


@HERE
@pytest.mark.feature("F042")
def test_normalize(where: str) -> None:
    array = picture(5, 4)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    made = data.normalize(on(where, array), mean, std)
    expected = ((array / 255 - mean) / std).transpose(2, 0, 1)
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert (
        data.normalize(on(where, array[None]), dtype="float16").spec
        == lm.Spec((1, 3, 5, 4), lm.float16).fixed
    )


@HERE
@pytest.mark.feature("F042")
def test_what_is_no_image(where: str) -> None:
    on(where, [0.0])
    whole = data.encode_image(picture())
    for content in (b"", b"not an image", whole[:20]):
        with pytest.raises(DataError, match="no image|refuses"):
            data.decode_image(content, device=where)


@HERE
@pytest.mark.feature("F042", "B042")
def test_a_picture_of_too_many_pixels_is_refused_by_its_header(where: str) -> None:
    """172 KB that would take two gigabytes: refused before anything of that size is allocated."""
    on(where, [0.0])
    file = io.BytesIO()
    Image.new("1", (13_300, 13_300)).save(file, "PNG")
    tracemalloc.start()
    with pytest.raises(
        DataError, match="13300 × 13300 are 176890000 pixels, max_pixels is 67108864; allow more only"
    ):
        data.decode_image(file.getvalue(), device=where)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6
    small = data.encode_image(picture(75, 100), "png")
    with pytest.raises(DataError, match="75 × 100 are 7500 pixels, max_pixels is 7499"):
        data.decode_image(small, device=where, max_pixels=7499)
    assert data.decode_image(small, device=where, max_pixels=7500).shape == (75, 100, 3)


def test_more_pixels_than_pillow_takes() -> None:
    """A header alone: what it claims is all that is read."""
    file = io.BytesIO()
    Image.new("1", (8, 8)).save(file, "PNG")
    claims = struct.pack(">II", 20_000, 20_000)
    head = bytearray(file.getvalue())
    head[16:24] = claims
    head[29:33] = struct.pack(">I", zlib.crc32(head[12:29]))
    with pytest.raises(DataError, match="no image: Image size .* exceeds limit"):
        data.decode_image(bytes(head), max_pixels=1 << 40)
    with pytest.raises(DataError):
        data.decode_image(bytes(head))


@pytest.mark.feature("F042")
@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        (lambda: data.decode_image(7), TypeError, "data must be bytes, got int"),
        (lambda: data.decode_image(b"", mode="cmyk"), ValueError, "'rgb' or 'grey', got 'cmyk'"),
        (lambda: data.decode_image(b"", max_pixels=0), ValueError, "max_pixels must be at least 1, got 0"),
        (lambda: data.encode_image(picture(), "gif"), ValueError, "jpeg, png, bmp; got 'gif'"),
        (lambda: data.encode_image(picture(), quality=0), ValueError, "1 to 100, got 0"),
        (lambda: data.encode_image(np.zeros((2, 2, 3), np.float32)), lm.DTypeError, "must be uint8"),
        (lambda: data.encode_image(np.zeros((2, 2, 2), np.uint8)), lm.ShapeError, "got \\(2, 2, 2\\)"),
        (lambda: data.resize(np.zeros((2, 2), np.uint8), 4), lm.ShapeError, "got \\(2, 2\\)"),
        (lambda: data.resize(picture(), (0, 4)), lm.ShapeError, "a size >= 1"),
        (lambda: data.resize(np.zeros((2, 2, 3), np.int32), 4), lm.DTypeError, "uint8 or float"),
        (lambda: data.normalize(np.zeros((2, 2, 3), np.float32)), lm.DTypeError, "needs uint8"),
        (lambda: data.normalize(picture(), [0.1, 0.2]), lm.ShapeError, "mean has shape \\(2,\\)"),
        (lambda: data.normalize(picture(), 0, 0), ValueError, "std must not be 0"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        call()


@pytest.mark.feature("F042")
@pytest.mark.parametrize(
    ("module", "missing", "advice"),
    [("codec_host", "PIL", r"lamina\[image\]"), ("codec_cuda", "nvidia", r"lamina\[image-cu13\]")],
)
def test_a_missing_library_is_named(
    module: str, missing: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"lamina.data.{module}", raising=False)
    load = lm._lazy.lazy("lamina.data.codec", {"found": f"lamina.data.{module}"})
    with pytest.raises(ImportError, match=advice):
        load("found")
