"""A norm of inference in the layer before it: the same values from one layer."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn.utils import fuse_conv_bn_eval, fuse_linear_bn_eval

RNG = np.random.default_rng(0)


def norm(kind: Any, features: int, **options: Any) -> Any:
    bn = kind(features, **options)
    bn.load_state_dict(
        {
            k: RNG.uniform(0.5, 2.0, v.shape) if v.dtype.is_float else np.zeros((), np.int64)
            for k, v in bn.state_dict().items()
        }
    )
    return bn.eval()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("conv", "transpose"),
    [
        (lambda: nn.Conv2d(4, 6, 3), False),
        (lambda: nn.Conv2d(4, 6, 3, bias=False, groups=2), False),
        (lambda: nn.ConvTranspose2d(4, 6, 3), True),
        (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), True),
    ],
)
def test_convolutions(conv: Any, transpose: bool, affine: bool) -> None:
    layer, bn = conv().eval(), norm(nn.BatchNorm2d, 6, affine=affine)
    x = lm.tensor(RNG.standard_normal((2, 4, 5, 6)).astype(np.float32))
    fused = fuse_conv_bn_eval(layer, bn, transpose)
    np.testing.assert_allclose(fused(x).numpy(), bn(layer(x)).numpy(), rtol=1e-4, atol=1e-5)
    assert fused is not layer
    assert [k for k, _ in fused.named_parameters()] == ["weight", "bias"]


def test_linear_layers() -> None:
    layer, bn = nn.Linear(4, 6).eval(), norm(nn.BatchNorm1d, 6)
    x = lm.tensor(RNG.standard_normal((3, 4)).astype(np.float32))
    np.testing.assert_allclose(
        fuse_linear_bn_eval(layer, bn)(x).numpy(), bn(layer(x)).numpy(), rtol=1e-4, atol=1e-5
    )


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="fuse_linear_bn_eval: both layers must be in inference mode"):
        fuse_linear_bn_eval(nn.Linear(4, 6), nn.BatchNorm1d(6).eval())
    with pytest.raises(ValueError, match="fuse_conv_bn_eval: the norm has no running statistics"):
        fuse_conv_bn_eval(nn.Conv2d(4, 6, 3).eval(), nn.BatchNorm2d(6, track_running_stats=False).eval())
