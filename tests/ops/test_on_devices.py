"""The functions of `lamina.ops` on tensors of real devices, values and gradients, against the reference."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.graph import grad
from lamina.tensors import Tensor, tensor
from tests.helpers.eager import mismatch
from tests.helpers.functions import grad as reference_grad
from tests.helpers.functions import run

RNG = np.random.default_rng(7)
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def _draw(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def _positive(*shape: int) -> Any:
    return RNG.uniform(0.5, 2.0, shape)


X, W, BIAS = _draw(2, 4, 9, 8), _draw(6, 4, 3, 3), _draw(6)
GROUPED = _draw(6, 2, 3, 3)

CONV: list[Case] = [
    (lambda x, w, b: ops.conv2d(x, w, b, stride=2, padding=1), (X, W, BIAS)),
    (lambda x, w: ops.conv1d(x, w, padding="half"), (_draw(2, 3, 11), _draw(5, 3, 3))),
    (
        lambda x, w: ops.conv3d(x, w, padding=1, stride=(1, 2, 1)),
        (_draw(1, 3, 4, 5, 6), _draw(4, 3, 3, 2, 3)),
    ),
    (lambda x, w: ops.conv2d(x, w, dilation=(2, 3), padding="full"), (X, W)),
    (lambda x, w: ops.conv2d(x, w, groups=2, padding="same"), (X, GROUPED)),
    (lambda x, w: ops.conv2d(x, w, groups=4, padding=((0, 2), (1, 0))), (X, _draw(8, 1, 3, 3))),
    (lambda x, w: ops.conv2d(x, w, flip=True, padding="valid"), (X, W)),
    (lambda x, w, b: ops.conv_transpose2d(x, w, b, 2, 1, 1), (X, _draw(4, 3, 3, 3), _draw(3))),
    (lambda x, w: ops.conv_transpose1d(x, w, None, 3, 0, 2, 2), (_draw(2, 4, 5), _draw(4, 3, 4))),
    (lambda x: ops.unfold(x, (3, 2), 1, (1, 0), 2), (X,)),
]
POOL: list[Case] = [
    (lambda x: ops.max_pool2d(x, 3, 2, 1), (X,)),
    (lambda x: ops.max_pool1d(x, 2, ceil_mode=True), (_draw(2, 3, 7),)),
    (lambda x: ops.max_pool3d(x, 2, 2, 1), (_draw(1, 3, 4, 5, 6),)),
    (lambda x: ops.avg_pool2d(x, 3, 2, 1), (X,)),
    (lambda x: ops.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False), (X,)),
    (lambda x: ops.avg_pool3d(x, 2), (_draw(1, 3, 4, 5, 6),)),
    (lambda x: ops.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (X,)),
    (lambda x: ops.sum_pool2d(x, 3, 2, ceil_mode=True), (X,)),
    (lambda x: ops.adaptive_avg_pool2d(x, (2, 3)), (X,)),
    (ops.global_avg_pool, (X,)),
]
POINTWISE: list[Case] = [
    *((f, (X,)) for f in (
        ops.relu, ops.sigmoid, ops.tanh, ops.relu6, ops.elu, ops.identity, ops.leaky_relu, ops.silu, ops.softplus,
        ops.gelu, ops.exp, ops.sin, ops.abs, ops.hardswish, ops.square,
    )),
    *((f, (_positive(3, 7),)) for f in (ops.log, ops.sqrt, ops.rsqrt, ops.reciprocal)),
    (lambda x: ops.threshold(x, 0.1, -2.0), (X,)),
    (lambda x: ops.gelu(x, approximate="tanh"), (X,)),
    (ops.prelu, (X, _draw(4))),
    *((f, (X, _draw(4, 1, 1))) for f in (ops.add, ops.sub, ops.mul, ops.minimum, ops.maximum)),
    (ops.div, (X, _positive(1, 4, 1, 8))),
    (ops.pow, (_positive(5, 1), _draw(1, 6))),
    (lambda x: 2 * x**2 - 1 / (x * x + 1) + 0.5, (X,)),
    (lambda x, y: ops.where(x > y, x, 0.0), (X, _draw(8))),
]  # fmt: skip
REDUCTIONS = {
    "sum": ops.sum, "mean": ops.mean, "max": ops.amax, "min": ops.amin, "norm1": ops.norm1, "norm2": ops.norm2,
    "amax": ops.abs_max, "prod": ops.prod, "mul_no_zeros": ops.mul_no_zeros,
}  # fmt: skip
REDUCE: list[Case] = [
    *((lambda x, k=kind: REDUCTIONS[k](x, (1, 3)), (X,)) for kind in (
        "sum", "mean", "max", "min", "norm1", "norm2", "amax",
    )),
    *((lambda x, k=kind: REDUCTIONS[k](x, -1, True), (_positive(3, 5),)) for kind in ("prod", "mul_no_zeros")),
    (ops.matmul, (_draw(3, 5, 4), _draw(3, 4, 6))),
    (ops.matmul, (_draw(5, 4), _draw(4))),
    (ops.linear, (_draw(7, 5), _draw(3, 5), _draw(3))),
    (lambda x: ops.var(x, (0, 2)), (X,)),
]  # fmt: skip
SOFTMAX: list[Case] = [
    (lambda x: ops.softmax(x, 1), (X,)),
    (lambda x: ops.softmax(x, (1, 2, 3)), (X,)),
    (lambda x: ops.log_softmax(x, 1), (X,)),
    (lambda x: ops.log_softmax(x, (1, 2, 3)), (X,)),
]
SHAPE: list[Case] = [
    (lambda x, y: ops.cat([x, y], 1), (X, _draw(2, 3, 9, 8))),
    (lambda x: ops.permute(x, (0, 2, 3, 1)), (X,)),
    (lambda x: ops.resize_nearest(x, 2), (X,)),
    (lambda x: ops.space_to_batch(x, (3, 2)), (X,)),
    (lambda x: ops.batch_to_space(x, (1, 2)), (X,)),
    (ops.swap_halves, (X,)),
    (ops.swap_pairs, (X,)),
    (lambda x: ops.space_to_depth(x, (3, 2)), (X,)),
    (lambda x: x[1, ::-1, 2:8:3, ...], (X,)),
    (lambda x: ops.pad(x, (-1, 3, 0, 2, 1, 0), value=1.5), (X,)),
    (lambda x: ops.expand(x, (3, 2, 4)), (_draw(2, 1),)),
]
LABELS = RNG.integers(0, 5, (2, 3, 4))
LOSS: list[Case] = [
    (ops.cross_entropy, (_draw(6, 10), RNG.integers(0, 10, 6))),
    (ops.cross_entropy, (_draw(2, 5, 3, 4), LABELS)),
    (
        lambda x, t: ops.cross_entropy(x, t, reduction="sum", label_smoothing=0.1, ignore_index=2),
        (_draw(2, 5, 3, 4), LABELS),
    ),
    (lambda x, t: ops.nll_loss(ops.log_softmax(x, 1), t), (_draw(2, 5, 3, 4), LABELS)),
    *(
        (f, (_draw(4, 5), _draw(4, 5)))
        for f in (ops.mse_loss, ops.l1_loss, ops.smooth_l1_loss, ops.huber_loss)
    ),
]
DROPOUT: list[Case] = [
    (lambda x, s, p=p: ops.dropout(x, p, state=s)[0], (X, np.array([2**35 + 1, 5])))
    for p in (0.0, 0.3, 0.5, 1.0)
]
MEAN, VAR, SCALE = _draw(4), _positive(4), _draw(4)
NORM: list[Case] = [  # times x: the sum of what is normalized alone hardly depends on x
    (
        lambda x, m, v, w, b: ops.batch_norm_with_statistics(x, m, v, w, b, True)[0] * x,
        (X, MEAN, VAR, SCALE, _draw(4)),
    ),
    (lambda x, m, v: ops.batch_norm_with_statistics(x, m, v, training=True)[2], (X, MEAN, VAR)),
    (
        lambda x, m, v, w, b: ops.batch_norm_with_statistics(x, m, v, w, b)[0] * x,
        (X, MEAN, VAR, SCALE, _draw(4)),
    ),
    (
        lambda x, z, w: (
            ops.batch_norm_with_statistics(x, None, None, w, training=True, relu=True, residual=z)[0] * x
        ),
        (X, _draw(*X.shape), SCALE),
    ),
    (lambda x: ops.batch_norm_with_statistics(x, None, None, training=True, relu=True)[0] * x, (X,)),
    (lambda x, w, b: ops.layer_norm(x, (9, 8), w, b) * x, (X, _draw(9, 8), _draw(9, 8))),
    (lambda x, w: ops.rms_norm(x, 8, w) * x, (X, _draw(8))),
    (lambda x, w, b: ops.group_norm(x, 2, w, b) * x, (X, SCALE, _draw(4))),
    (lambda x: ops.instance_norm_with_statistics(x)[0] * x, (X,)),
    (lambda x: ops.local_response_norm(x, 3, 0.1), (X,)),
    (lambda x, m: ops.divisive_norm(x, 3, 0.1, means=m), (X, _draw(*X.shape))),
]


def _check(cases: Iterable[Case], device: str) -> None:
    """In float32: each function's value, and the gradient of its sum in each float argument."""
    for i, (function, arrays) in enumerate(cases):
        rounded = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in rounded]
        tensors = [tensor(a, device=device) for a in rounded]
        y = function(*tensors)
        assert isinstance(y, Tensor)
        assert str(y.device) == device
        problem = mismatch(y.numpy(), run(function, *wide), y.dtype)
        assert not problem, f"case {i}: {problem}"
        floats = [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]
        found = grad(lambda *xs, f=function: f(*xs).sum(), floats)(*tensors)
        wanted = reference_grad(function, *wide)
        for n, g in zip(floats, found, strict=True):
            problem = mismatch(g.numpy(), wanted[n], g.dtype)
            assert not problem, f"case {i}, gradient in argument {n}: {problem}"


@pytest.mark.feature("F045", "F046", "F047", "F048", "F049", "F050", "F051", "F053")
def test_conv_on_cpu() -> None:
    _check(CONV, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F045", "F046", "F047", "F048", "F049", "F050", "F051", "F053")
def test_conv_on_cuda() -> None:
    _check(CONV, "cuda:0")


@pytest.mark.feature("F054", "F055")
def test_pool_on_cpu() -> None:
    _check(POOL, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F054", "F055")
def test_pool_on_cuda() -> None:
    _check(POOL, "cuda:0")


@pytest.mark.feature("F044", "F056", "F057", "F064", "F066")
def test_pointwise_on_cpu() -> None:
    _check(POINTWISE, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F044", "F056", "F057", "F064", "F066")
def test_pointwise_on_cuda() -> None:
    _check(POINTWISE, "cuda:0")


@pytest.mark.feature("F065", "F066")
def test_reduce_and_matmul_on_cpu() -> None:
    _check(REDUCE, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F065", "F066")
def test_reduce_and_matmul_on_cuda() -> None:
    _check(REDUCE, "cuda:0")


@pytest.mark.feature("F058")
def test_softmax_on_cpu() -> None:
    _check(SOFTMAX, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F058")
def test_softmax_on_cuda() -> None:
    _check(SOFTMAX, "cuda:0")


@pytest.mark.feature("F059", "F060", "F061", "F062")
def test_norm_on_cpu() -> None:
    _check(NORM, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F059", "F060", "F061", "F062")
def test_norm_on_cuda() -> None:
    _check(NORM, "cuda:0")


@pytest.mark.feature("F075")
def test_shape_on_cpu() -> None:
    _check(SHAPE, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F075")
def test_shape_on_cuda() -> None:
    _check(SHAPE, "cuda:0")


@pytest.mark.feature("F076")
def test_loss_on_cpu() -> None:
    _check(LOSS, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F076")
def test_loss_on_cuda() -> None:
    _check(LOSS, "cuda:0")


@pytest.mark.feature("F063")
def test_dropout_on_cpu() -> None:
    _check(DROPOUT, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("F063")
def test_dropout_on_cuda() -> None:
    _check(DROPOUT, "cuda:0")


def _check_indices(device: str) -> None:
    x = RNG.integers(-3, 4, (4, 5, 6)).astype(np.float32)
    for axis in (0, 1, 2):
        values, places = ops.max(tensor(x, device=device), axis)
        np.testing.assert_array_equal(values.numpy(), x.max(axis))
        np.testing.assert_array_equal(places.numpy(), x.argmax(axis))
        np.testing.assert_array_equal(ops.argmin(tensor(x, device=device), axis).numpy(), x.argmin(axis))


@pytest.mark.feature("F067")
def test_indices_on_cpu() -> None:
    _check_indices("cpu")


@pytest.mark.gpu
@pytest.mark.feature("F067")
def test_indices_on_cuda() -> None:
    _check_indices("cuda:0")


@pytest.mark.gpu
def test_a_number_beside_a_tensor_travels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further calls find it on the device; another dtype or value is another number."""
    x = tensor(np.arange(4, dtype=np.float32), device="cuda:0")
    first = [(x * 2.5).tolist(), (x.cast("float64") * 2.5).tolist(), ops.maximum(x, 1.0).tolist()]
    calls: list[int] = []
    monkeypatch.setattr("lamina.tensors._moved", lambda x, where: calls.append(x.nbytes))
    again = [(x * 2.5).tolist(), (x.cast("float64") * 2.5).tolist(), ops.maximum(x, 1.0).tolist()]
    assert first == again == [[0.0, 2.5, 5.0, 7.5], [0.0, 2.5, 5.0, 7.5], [1.0, 1.0, 2.0, 3.0]]
    assert calls == []
