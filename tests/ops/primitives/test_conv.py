"""Convolutions against their definition, and what users may write for padding, groups and direction."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.ops import primitives
from lamina.ops.core import call
from lamina.ops.primitives import Window
from lamina.spec import Policy, ShapeError, current_policy
from tests.helpers import definitions
from tests.helpers.eager import Eager
from tests.helpers.functions import grad, run

CONV = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}
TRANSPOSED = {1: ops.conv_transpose1d, 2: ops.conv_transpose2d, 3: ops.conv_transpose3d}
SPACE = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}
KERNEL = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}


def _draw(rank: int, groups: int = 1, *, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 2 * groups, *SPACE[rank]))
    return x, rng.standard_normal((3 * groups, 2, *KERNEL[rank])), rng.standard_normal(3 * groups)


@pytest.mark.feature("F045")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_forward(rank: int) -> None:
    x, w, bias = _draw(rank)
    window = Window((2,) * rank, ((1, 1),) * rank, (1,) * rank)
    wanted = definitions.conv(window, x, w) + bias.reshape((-1,) + (1,) * rank)
    np.testing.assert_allclose(run(CONV[rank], x, w, bias, stride=2, padding=1), wanted, atol=1e-12)


@pytest.mark.feature("F048")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_dilation(rank: int) -> None:
    x, w, _ = _draw(rank)
    window = Window((1,) * rank, ((2, 2),) * rank, (2,) * rank)
    np.testing.assert_allclose(
        run(CONV[rank], x, w, None, 1, 2, 2), definitions.conv(window, x, w), atol=1e-12
    )


@pytest.mark.feature("F049")
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [2, 5])
def test_groups(rank: int, groups: int) -> None:
    """Each group sees its own channels: the same as convolving the parts one by one."""
    x, w, bias = _draw(rank, groups)
    parts = zip(np.split(x, groups, 1), np.split(w, groups), np.split(bias, groups), strict=True)
    wanted = np.concatenate([run(CONV[rank], *p, padding=1) for p in parts], 1)
    np.testing.assert_allclose(run(CONV[rank], x, w, bias, padding=1, groups=groups), wanted, atol=1e-12)


@pytest.mark.feature("F050")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_true_convolution_mirrors_the_filter(rank: int) -> None:
    x, w, _ = _draw(rank)
    mirrored = np.flip(w, tuple(range(2, 2 + rank)))
    flipped = run(CONV[rank], x, w, flip=True)
    np.testing.assert_allclose(flipped, run(CONV[rank], x, mirrored), atol=1e-12)
    assert not np.allclose(flipped, run(CONV[rank], x, w))
    if rank == 1:  # NumPy's convolve mirrors, its correlate does not
        alone = run(CONV[1], x[:1, :1], w[:1, :1], flip=True)[0, 0]
        np.testing.assert_allclose(alone, np.convolve(x[0, 0], w[0, 0], "valid"), atol=1e-12)
        plain = run(CONV[1], x[:1, :1], w[:1, :1])[0, 0]
        np.testing.assert_allclose(plain, np.correlate(x[0, 0], w[0, 0], "valid"), atol=1e-12)


@pytest.mark.feature("F051")
@pytest.mark.parametrize(
    ("padding", "pairs"),
    [
        ("valid", ((0, 0), (0, 0))),
        ("half", ((2, 2), (2, 2))),  # kernel 5 x 3, the second axis dilated to reach over 5
        ("full", ((4, 4), (4, 4))),
        ("same", ((2, 2), (2, 2))),
        (3, ((3, 3), (3, 3))),
        ((1, 2), ((1, 1), (2, 2))),
        ([2], ((2, 2), (2, 2))),
        (((0, 3), (2, 1)), ((0, 3), (2, 1))),
    ],
)
def test_padding(padding: Any, pairs: Any) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 3, 8, 9)), rng.standard_normal((4, 3, 5, 3))
    wanted = definitions.conv(Window((1, 1), pairs, (1, 2)), x, w)
    np.testing.assert_allclose(run(ops.conv2d, x, w, padding=padding, dilation=(1, 2)), wanted, atol=1e-12)


@pytest.mark.feature("F051")
def test_same_with_an_even_kernel_pads_more_behind() -> None:
    """Reach 4 needs 3 elements: one before, two behind, as torch has it."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((1, 2, 6)), rng.standard_normal((3, 2, 4))
    wanted = definitions.conv(Window((1,), ((1, 2),), (1,)), x, w)
    np.testing.assert_allclose(run(ops.conv1d, x, w, padding="same"), wanted, atol=1e-12)


@pytest.mark.feature("F051")
def test_padding_names_give_their_sizes() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 1, 10))
    for k in (1, 2, 3, 4, 5):
        w = rng.standard_normal((1, 1, k))
        sizes = {p: run(ops.conv1d, x, w, padding=p).shape[2] for p in ("valid", "half", "full", "same")}
        assert sizes == {"valid": 11 - k, "half": 11 - k + 2 * (k // 2), "full": 9 + k, "same": 10}


@pytest.mark.feature("F046")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients(rank: int) -> None:
    """Data, filter and bias gradients against the definitions, for the gradient that is 1 everywhere."""
    x, w, bias = _draw(rank, groups=2)
    window = Window((2,) * rank, ((1, 0),) * rank, (1,) * rank, 2)
    dx, dw, db = grad(CONV[rank], x, w, bias, 2, ((1, 0),) * rank, 1, 2)
    ones = np.ones_like(definitions.conv(window, x, w))
    np.testing.assert_allclose(dx, definitions.conv_data_grad(window, ones, w, x.shape[2:]), atol=1e-11)
    np.testing.assert_allclose(dw, definitions.conv_filter_grad(window, x, ones, w.shape[2:]), atol=1e-11)
    np.testing.assert_allclose(db, np.full(bias.shape, ones[:, 0].size), atol=1e-11)


@pytest.mark.feature("F047")
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 1])
def test_transposed(rank: int, extra: int) -> None:
    """x spread by the stride and convolved fully, cut by the padding: the definition of the transpose."""
    rng = np.random.default_rng(rank)
    x, w = rng.standard_normal((2, 4, *SPACE[rank])), rng.standard_normal((4, 3, *KERNEL[rank]))
    stride, padding = 2, 1
    spread = np.zeros((2, 4, *(stride * (n - 1) + 1 for n in SPACE[rank])))
    spread[(slice(None), slice(None), *(slice(None, None, stride),) * rank)] = x
    full = Window((1,) * rank, tuple((k - 1, k - 1 + extra) for k in KERNEL[rank]), (1,) * rank, 1, True)
    inner = definitions.conv(full, spread, w.swapaxes(0, 1))
    cut = tuple(slice(padding, n - padding) for n in inner.shape[2:])
    bias = rng.standard_normal(3)
    wanted = inner[(slice(None), slice(None), *cut)] + bias.reshape((-1,) + (1,) * rank)
    found = run(TRANSPOSED[rank], x, w, bias, stride, padding, extra)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.feature("F047")
def test_transposed_groups_and_dilation() -> None:
    """With groups and dilation it is the data gradient of the convolution with the same window."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 6, 4, 5)), rng.standard_normal((6, 2, 3, 2))
    window = Window((3, 2), ((1, 1), (0, 0)), (1, 2), 2)
    y = run(ops.conv_transpose2d, x, w, None, (3, 2), (1, 0), (2, 1), 2, (1, 2))
    assert y.shape == (2, 4, 12, 12)
    np.testing.assert_allclose(y, definitions.conv_data_grad(window, x, w, (12, 12)), atol=1e-12)


@pytest.mark.feature("F053")
def test_unfold_times_filters_is_the_convolution() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((2, 3, 7, 6)), rng.standard_normal((4, 3, 3, 2))
    columns = run(ops.unfold, x, (3, 2), 1, (1, 0), 2)
    y = run(ops.conv2d, x, w, None, 2, (1, 0))
    assert columns.shape == (2, 18, y[0, 0].size)
    np.testing.assert_allclose((w.reshape(4, -1) @ columns).reshape(y.shape), y, atol=1e-12)


def test_large_batches_are_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The references unfold a few images at a time; how many does not change the result."""
    x, w, _ = _draw(2)
    before = [run(ops.conv2d, x, w), *grad(ops.conv2d, x, w)]
    monkeypatch.setattr("lamina.ops.primitives.conv._CHUNK", 1)
    for a, b in zip(before, [run(ops.conv2d, x, w), *grad(ops.conv2d, x, w)], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_algorithm_is_the_policy_of_the_call() -> None:
    seen: list[Policy] = []

    class Spy(Eager):
        bind_priority = 10

        @classmethod
        def bind_op(cls, op: Any, operands: Any) -> Any:
            seen.append(current_policy())
            return Eager.bind_op(op, operands)

    x, w, bias = _draw(2)
    ops.conv2d(Spy(x), Spy(w), algorithm="benchmark")
    ops.conv_transpose2d(Spy(x), Spy(w.swapaxes(0, 1)[:, :1]), algorithm="fallback")
    ops.conv2d(Spy(x), Spy(w), Spy(bias))
    assert [p.algorithm for p in seen[:3]] == ["fastest", "fallback", "auto"]
    with pytest.raises(
        ValueError, match="algorithm must be one of auto, heuristic, fastest, fallback, .* got 'slow'"
    ):
        ops.conv2d(Spy(x), Spy(w), algorithm="slow")


X, W = np.zeros((2, 4, 8, 8)), np.zeros((6, 4, 3, 3))


@pytest.mark.feature("F118")
@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((X[0, 0], W), {}, r"conv2d: input \[N, C, \*spatial\] .* rank 4 .* got f64\[8,8\]"),
        ((X[:, :3], W), {}, r"conv: input f64\[2,3,8,8\] has 3 channels, but filter .* groups=1 takes 4"),
        ((X, W), {"groups": 2}, r"has 4 channels, but filter f64\[6,4,3,3\] with groups=2 takes 8"),
        ((X, W[:5, :2]), {"groups": 2}, r"groups=2 does not divide the 5 filters"),
        ((X, W), {"stride": 0}, r"conv2d: stride must be ints in \[1, 2147483647\], got \(0, 0\)"),
        ((X, W), {"stride": (1, 2, 3)}, r"conv2d: stride must be one int or 2 ints, got \(1, 2, 3\)"),
        ((X, W), {"padding": -1}, r"conv2d: padding must be ints in \[0, 2147483647\], got \(-1, -1\)"),
        ((X, W), {"padding": "reflect"}, "padding must be one of valid, half, full, same, ints or pairs"),
        (
            (X, W),
            {"padding": "same", "stride": 2},
            r'padding "same" needs stride 1, got \(2, 2\); use "half"',
        ),
        ((X, W), {"padding": ((1, 2, 3), (1, 1))}, r"2 \(lo, hi\) pairs, got \(\(1, 2, 3\), \(1, 1\)\)"),
        (
            (X, W),
            {"dilation": 4},
            r"a kernel of 3 with dilation 4 reaches over 9 .* axis 0 of \(8, 8\) has 8",
        ),
        ((X, W), {"groups": 0}, "conv2d: groups must be an int >= 1, got 0"),
        ((X, W, np.zeros(5)), {}, r"conv2d: bias must be of shape \(6,\), got f64\[5\]"),
        ((X, W), {"padding": 2**40}, r"padding must be ints in \[0, 2147483647\]"),
        ((X, W[:, :, :0]), {}, r"conv: kernel size must be ints in \[1, "),
    ],
)
def test_conv_errors(args: Any, options: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        run(ops.conv2d, *args, **options)


def test_more_errors() -> None:
    with pytest.raises(ShapeError, match=r"output_padding \(2, 2\) must be smaller than stride \(2, 2\)"):
        run(ops.conv_transpose2d, X, W.swapaxes(0, 1), None, 2, 0, 2)
    with pytest.raises(ShapeError, match="leaves nothing of the output"):
        run(ops.conv_transpose2d, X[:, :, :1, :1], W.swapaxes(0, 1), padding=4)
    with pytest.raises(TypeError, match="conv: input 1 is float32 but input 0 is float64; cast one"):
        run(ops.conv2d, X, W.astype(np.float32))
    with pytest.raises(TypeError, match="conv: dtype int64 is not among float64, .* cast with ops.cast"):
        run(ops.conv2d, X.astype(np.int64), W.astype(np.int64))
    with pytest.raises(ShapeError, match="must name the same 1, 2 or 3 spatial axes"):
        Window((1,), ((0, 0), (0, 0)), (1, 1))


def test_gradient_ops_check_that_sizes_belong_together() -> None:
    window = Window((2, 2), ((0, 0), (0, 0)), (1, 1))
    g = Eager(np.zeros((2, 6, 3, 3)))
    with pytest.raises(
        ShapeError, match=r"spatial shape \(9, 9\) gives outputs of \(4, 4\), but the gradient"
    ):
        call(primitives.ConvDataGrad(window, (9, 9)), g, Eager(W))
    with pytest.raises(ShapeError, match="gradient .* has 6 channels, filter .* makes 5"):
        call(primitives.ConvDataGrad(window, (8, 8)), g, Eager(W[:5]))
    with pytest.raises(ShapeError, match=r"shape must be 2 spatial sizes, got \(8,\)"):
        call(primitives.ConvDataGrad(window, (8,)), g, Eager(W))
    with pytest.raises(ShapeError, match=r"with a filter of \(5, 5\) gives outputs of \(2, 2\)"):
        call(primitives.ConvFilterGrad(window, (5, 5)), Eager(X), g)
    with pytest.raises(ShapeError, match="need equal batches"):
        call(primitives.ConvFilterGrad(window, (3, 3)), Eager(X[:1]), g)


@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "groups"])
def test_a_known_window_does_not_let_other_types_in(name: str) -> None:
    """1.0 equals 1 and hashes alike."""
    x, w = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 2, 2), np.float32)
    ops.conv2d(x, w, **{name: 1})
    for value in (1.0, (1.0, 1.0), True, b"1"):
        with pytest.raises(TypeError, match=f"conv2d: {name} must be an? "):
            ops.conv2d(x, w, **{name: value})
