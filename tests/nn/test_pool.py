"""Pooling modules: PyTorch's values, keywords and text."""

from typing import Any

import numpy as np
import pytest

from lamina import nn


@pytest.mark.torch
@pytest.mark.feature("F057")
@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("LPPool1d", {"norm_type": 2, "kernel_size": 3}, (2, 3, 10)),
        ("LPPool1d", {"norm_type": 1, "kernel_size": 3, "stride": 2, "ceil_mode": True}, (3, 10)),
        ("LPPool2d", {"norm_type": 2.5, "kernel_size": (3, 2), "stride": (2, 1)}, (2, 3, 8, 7)),
        ("LPPool2d", {"norm_type": 2, "kernel_size": 3, "stride": 2, "ceil_mode": True}, (3, 8, 8)),
        ("LPPool3d", {"norm_type": 2, "kernel_size": 2, "stride": 1}, (2, 3, 4, 5, 3)),
        ("MaxPool2d", {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True}, (3, 9, 8)),
        ("AvgPool3d", {"kernel_size": 2, "stride": 2, "ceil_mode": True, "divisor_override": 3}, (2, 3, 5, 5, 4)),
        ("AvgPool2d", {"kernel_size": 3, "padding": 1, "count_include_pad": False, "ceil_mode": True}, (3, 7, 8)),
    ],
)  # fmt: skip
def test_as_torch(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x = np.abs(np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    wanted = getattr(torch.nn, name)(**options)(torch.from_numpy(x)).numpy()
    layer = getattr(nn, name)(**options)
    np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-5, atol=1e-6)
    if name.startswith("LP"):
        assert repr(layer) == repr(getattr(torch.nn, name)(**options))
