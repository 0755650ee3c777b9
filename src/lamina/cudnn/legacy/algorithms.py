"""Convolution algorithms by name, and other data per direction of a convolution."""

from __future__ import annotations

from typing import Final, TypeAlias

from lamina.cudnn.legacy.flags import BackwardDataAlgo, BackwardFilterAlgo, ForwardAlgo, Name, flag

Algorithm: TypeAlias = ForwardAlgo | BackwardDataAlgo | BackwardFilterAlgo

#: direction -> what its C functions are called after
STEMS: Final = {
    "forward": "ConvolutionForward",
    "backward_data": "ConvolutionBackwardData",
    "backward_filter": "ConvolutionBackwardFilter",
}
#: The enum of each direction.
DIRECTIONS: Final[dict[str, type[ForwardAlgo] | type[BackwardDataAlgo] | type[BackwardFilterAlgo]]] = {
    "forward": ForwardAlgo,
    "backward_data": BackwardDataAlgo,
    "backward_filter": BackwardFilterAlgo,
}

#: Descriptive names of algorithms, beside those that cuDNN gives ("implicit_gemm", "algo_1", "fft").
NAMED: Final[dict[str, dict[str, Algorithm]]] = {
    "forward": {
        "none": ForwardAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,  # no workspace
        "small": ForwardAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,  # a small workspace
        "large": ForwardAlgo.CUDNN_CONVOLUTION_FWD_ALGO_GEMM,  # columns are written out
        "deterministic": ForwardAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
        "fft": ForwardAlgo.CUDNN_CONVOLUTION_FWD_ALGO_FFT,
        "fft_tiling": ForwardAlgo.CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
        "winograd": ForwardAlgo.CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
        "winograd_non_fused": ForwardAlgo.CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
    },
    "backward_data": {
        "none": BackwardDataAlgo.CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,  # atomic sums: not deterministic
        "small": BackwardDataAlgo.CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
        "deterministic": BackwardDataAlgo.CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
        "fft": BackwardDataAlgo.CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT,
        "fft_tiling": BackwardDataAlgo.CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING,
        "winograd": BackwardDataAlgo.CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD,
        "winograd_non_fused": BackwardDataAlgo.CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
    },
    "backward_filter": {
        "none": BackwardFilterAlgo.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,  # atomic sums: not deterministic
        "small": BackwardFilterAlgo.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3,  # atomic sums: not deterministic
        "deterministic": BackwardFilterAlgo.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
        "fft": BackwardFilterAlgo.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT,
        "fft_tiling": BackwardFilterAlgo.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING,
        "winograd": BackwardFilterAlgo.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD,
        "winograd_non_fused": BackwardFilterAlgo.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED,
    },
}


def algorithm(direction: str, name: Name = "deterministic") -> Algorithm:
    """The algorithm of a direction by name.

    Args:
        direction: "forward", "backward_data" or "backward_filter".
        name: a name of `NAMED`, one of cuDNN's, or its number. "deterministic", the default of every operation, is
            the general matrix-product algorithm, which supports every shape and is bitwise reproducible; `Search`
            finds faster ones.

    Raises:
        ValueError: no such direction or algorithm.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction={direction!r}: there are {', '.join(DIRECTIONS)}")
    if isinstance(name, str) and name.lower() in NAMED[direction]:
        return NAMED[direction][name.lower()]
    return flag(DIRECTIONS[direction], name)
