"""Causal convolutions: refused by name on an older library; sizes and argument checks on the newest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lamina.c._library import MissingSymbol
from lamina.cudnn.legacy import causal
from tests.c.conftest import cudnn_928, fresh  # noqa: F401
from tests.helpers.cudnn.installed import CUDNN

OLD = () < CUDNN < (9, 22, 0)


@pytest.mark.feature("B001")
@pytest.mark.skipif(not OLD, reason="needs a cuDNN that lacks these calls")
@pytest.mark.parametrize(
    ("make", "needs"),
    [
        (
            lambda: causal.CausalConvolution(2, 3, 64, 4),
            r"cudnnCausalConv1dForward needs cuDNN 9\.22, this is 9",
        ),
        (lambda: causal.CausalConvolution(2, 3, 64, 4, layout="nwc"), r"Nwh\w+ needs cuDNN 9\.24"),
        (lambda: causal.GatedCausalConvolution(2, 3, 64, 4, 4), r"cudnnB2B\w+ needs cuDNN 9\.24"),
        (lambda: causal.FFTCausalConvolution(2, 3, 256, 128), r"cudnnFFT\w+ needs cuDNN 9\.26"),
        (lambda: causal.LongFFTCausalConvolution(2, 3, 4096), r"cudnnLongFFT\w+ needs cuDNN 9\.26"),
    ],
)
def test_an_older_library_is_named(make: Callable[[], Any], needs: str) -> None:
    with pytest.raises(MissingSymbol, match=needs):
        make()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: causal.CausalConvolution(2, 3, 64, 9), ValueError, "kernel must be one of"),
        (lambda: causal.CausalConvolution(0, 3, 64, 4), ValueError, "batch must be from 1"),
        (
            lambda: causal.CausalConvolution(2, 3.0, 64, 4),
            TypeError,
            "channels must be a whole number, got 3.0",
        ),
        (
            lambda: causal.CausalConvolution(2, 3, 64, 4, "int8"),
            ValueError,
            "data_type must be float64, float32",
        ),
        (
            lambda: causal.CausalConvolution(2, 3, 64, 4, layout="nhwc"),
            ValueError,
            "layout must be 'ncw' or 'nwc'",
        ),
        (
            lambda: causal.CausalConvolution(2, 3, 64, 4, activation="relu"),
            ValueError,
            "known: identity, silu",
        ),
        (
            lambda: causal.GatedCausalConvolution(2, 3, 64, 0, 4),
            ValueError,
            "projection_kernel must be from 1",
        ),
        (lambda: causal.FFTCausalConvolution(2, 3, 256, 100), ValueError, "power of two from 128 to 16384"),
        (lambda: causal.FFTCausalConvolution(2, 3, 8192, 8192, "float64"), ValueError, "from 128 to 4096"),
        (
            lambda: causal.FFTCausalConvolution(2, 3, 200, 128),
            ValueError,
            r"multiple of kernel \(128\), got 200",
        ),
        (lambda: causal.LongFFTCausalConvolution(2, 3, 2048), ValueError, "from 4096 to 16777216, got 2048"),
    ],
)
def test_sizes_are_checked_before_the_library(
    make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.feature("B001")
def test_sizes_and_argument_checks_of_the_newest_library(fresh: Any, cudnn_928: str) -> None:  # noqa: F811
    code = """
import json
from lamina.c.errors import CudnnBadParam
from lamina.cudnn.legacy.causal import *
sizes = {t: LongFFTCausalConvolution(2, 3, 4096, t).buffer_sizes() for t in ("float32", "float16", "float64")}
calls = {
    "ncw": lambda: CausalConvolution(2, 3, 64, 4).forward(0, *[None] * 4),
    "nwc": lambda: CausalConvolution(2, 3, 64, 4, layout="nwc").backward(0, *[None] * 7),
    "gated": lambda: GatedCausalConvolution(2, 3, 64, 4, 4, "bfloat16").forward(0, *[None] * 6),
    "gated back": lambda: GatedCausalConvolution(2, 3, 64, 4, 4).backward(0, *[None] * 10),
    "fft": lambda: FFTCausalConvolution(2, 3, 256, 128).forward(0, *[None] * 3),
    "fft back": lambda: FFTCausalConvolution(2, 3, 256, 128).backward(0, *[None] * 5),
    "long": lambda: LongFFTCausalConvolution(2, 3, 4096).forward(0, *[None] * 5),
    "long back": lambda: LongFFTCausalConvolution(2, 3, 4096).backward(0, *[None] * 5),
}
texts = {}
for name, call in calls.items():
    try:
        call()
    except CudnnBadParam as error:
        texts[name] = error.function
types = [CausalConvolution(2, 3, 64, 4, t).weight_gradient_type.name for t in ("float64", "bfloat16")]
print(json.dumps([sizes, texts, types]))
"""
    sizes, texts, types = fresh(code, LAMINA_CUDNN=cudnn_928)
    assert sizes["float32"] == sizes["float16"]
    assert all(size > 2 * 2 * 3 * 4096 * 4 for size in sizes["float32"])  # two spectra in float32
    assert [2 * size for size in sizes["float32"]] == sizes["float64"]
    assert set(texts) == {"ncw", "nwc", "gated", "gated back", "fft", "fft back", "long", "long back"}
    assert texts["nwc"] == "cudnnCausalConv1dNwhBackward"
    assert types == ["CUDNN_DATA_DOUBLE", "CUDNN_DATA_FLOAT"]
