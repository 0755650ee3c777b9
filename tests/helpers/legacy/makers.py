"""One object of each class of the imperative API that needs no GPU, for tests that cover all."""

from __future__ import annotations

from collections.abc import Callable

from lamina.cudnn import legacy

MAKERS: dict[str, Callable[[], legacy.Descriptor]] = {
    "tensor": lambda: legacy.TensorDescriptor((2, 3, 4, 5), data_type="float16"),
    "tensor nhwc": lambda: legacy.TensorDescriptor((2, 4, 5, 3), format="nhwc"),
    "tensor strided": lambda: legacy.TensorDescriptor((2, 3, 4), format=None, strides=(40, 13, 3)),
    "tensor vectorised": lambda: legacy.TensorDescriptor(
        (2, 32, 4, 5), data_type="int8x4", format="nchw_vect_c"
    ),
    "filter": lambda: legacy.FilterDescriptor((8, 3, 3, 2)),
    "filter nhwc": lambda: legacy.FilterDescriptor((8, 3, 2, 5), data_type="bfloat16", format="nhwc"),
    "convolution": lambda: legacy.Convolution(
        pad=(1, 2),
        stride=(2, 1),
        dilation=(1, 3),
        groups=2,
        mode="convolution",
        compute_type="float64",
        math_type="fma",
        reorder="no",
    ),
    "convolution 3d": lambda: legacy.Convolution(pad=1, stride=2, spatial=3, math_type="tensor_op"),
    "deconvolution": lambda: legacy.Deconvolution(pad=1, stride=2, dilation=(1, 2)),
    "activation": lambda: legacy.Activation("clipped_relu", coef=6.0, nan="propagate"),
    "pooling": lambda: legacy.Pooling("max_deterministic", window=(3, 2), pad=(1, 0), stride=(2, 1)),
    "pooling 3d": lambda: legacy.Pooling(
        "average_count_exclude_padding", window=2, spatial=3, nan="propagate"
    ),
    "softmax": lambda: legacy.Softmax(algorithm="log", mode="instance"),
    "batch norm": lambda: legacy.BatchNorm("per_activation"),
    "batch norm ex": lambda: legacy.BatchNormEx("spatial_persistent", ops="bn_add_activation"),
    "normalization": lambda: legacy.Normalization("per_channel", ops="norm_activation", algorithm="persist"),
    "lrn": lambda: legacy.LRN(n=7, alpha=0.5, beta=0.25, k=1.0),
    "op tensor": lambda: legacy.OpTensor("max", compute_type="float64", nan="propagate"),
    "reduce": lambda: legacy.ReduceTensor("amax", indices="flattened", nan="propagate"),
    "transform": lambda: legacy.TensorTransform(
        format="nhwc", pad_before=(0, 0, 1, 2), pad_after=(0, 0, 3, 0), fold=(2, 3)
    ),
    "transform 5d": lambda: legacy.TensorTransform(rank=5, direction="unfold", fold=(1, 2, 3)),
    "spatial transformer": lambda: legacy.SpatialTransformer((2, 3, 4, 5), data_type="float64"),
    "ctc": lambda: legacy.CTCLoss(normalization="none", gradient="skip", max_label_length=17),
    "dropout without settings": legacy.Dropout.empty,
}
