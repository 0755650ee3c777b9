"""Convolutions over images with last axes of size 1 compute what those without these axes do."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends import get
from lamina.backends.cpu.library import PrimitiveStage
from lamina.infer import Predictor
from lamina.ops.core import inferred
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.window import Window
from lamina.spec import Policy, Spec, float32

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("flat", [1, 2])
@pytest.mark.parametrize(("channels", "out", "groups"), [(3, 8, 1), (32, 48, 1), (32, 32, 32), (8, 12, 4)])
def test_outputs_and_gradients_are_those_without_the_axes(
    flat: int, channels: int, out: int, groups: int
) -> None:
    x, w, b = drawn(2, channels, 37), drawn(out, channels // groups, 5), drawn(out)
    skip = drawn(2, out, 18)
    more = (1,) * flat

    def loss(x: Any, w: Any, b: Any, skip: Any) -> Any:
        rank = x.ndim - 2
        conv = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}[rank]
        y = conv(x, w, b, (2, *more)[:rank], (1, 0, 0)[:rank], groups=groups)
        return (ops.relu(y + skip) ** 2).sum(), y

    def run(*given: np.ndarray) -> list[np.ndarray]:
        def both(*given: Any) -> Any:
            grads, y = lm.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*given)
            return (*grads, y)

        return [np.asarray(v.numpy()) for v in lm.jit(both)(*map(lm.tensor, given))]

    wide = run(*(a.reshape(*a.shape, *more) if a.ndim == 3 else a for a in (x, w, b, skip)))
    for found, wanted in zip(wide, run(x, w, b, skip), strict=True):
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-3, atol=1e-3)


def test_the_kernels_go_along_the_axis_that_has_elements() -> None:
    """oneDNN's kernel for rows of one element takes three times as long."""
    window = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
    x, w = Spec((1, 64, 200, 1), float32), Spec((64, 64, 3, 1), float32)
    (y,) = inferred(Conv(window), x, w)
    for op, specs in (
        (Conv(window), [x, w]),
        (ConvDataGrad(window, x.shape[2:]), [y, w]),
        (ConvFilterGrad(window, w.shape[2:]), [x, y]),
    ):
        plan = get(lm.device("cpu")).plan(op, specs, Policy())
        described = [s.desc for s in plan.make.stages if isinstance(s, PrimitiveStage)]
        ends = [m for d in described for m in (d.src, d.dst, d.diff_src, d.diff_dst) if m.dims]
        assert ends
        assert all(m.dims[2] == 1 < m.dims[3] for m in ends)
        assert plan.outputs[0].tag is not None


def test_layers_without_a_gap_between_them_stay_channels_last() -> None:
    net = lm.nn.Sequential(*(m for _ in range(3) for m in (lm.nn.Conv2d(32, 32, (3, 1)), lm.nn.ReLU())))
    steps = Predictor(net).program(Spec((1, 32, 100, 1), float32)).program.steps
    assert sum("reorder" in str(s.plan.label) or s.node is None for s in steps) <= 2
