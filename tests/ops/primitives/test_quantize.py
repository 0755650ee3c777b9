"""8-bit numbers: rounding and saturation, exact int8 sums, refusals that say what is wrong."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.cpu.quantize import adds_in_32_bits
from lamina.graph import compile, trace
from lamina.ops import primitives
from lamina.ops.core import bind
from lamina.ops.primitives.quantize import rounded
from lamina.spec import DTypeError, ShapeError, Spec, as_dtype, float8_e4m3fn, float32, int8
from lamina.tensors import tensor

RNG = np.random.default_rng(11)


def test_int8_rounds_to_even_and_saturates() -> None:
    x = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 126.6, 127.4, 500, -500, 0])
    q = ops.quantize(tensor(x), 1.0).numpy()
    np.testing.assert_array_equal(q, np.int8([0, 2, 2, 0, -2, 127, 127, 127, -128, 0]))
    np.testing.assert_array_equal(ops.dequantize(tensor(q), 0.5).numpy(), q * np.float32(0.5))


def test_float8_holds_what_it_can() -> None:
    x = np.float32([1.0, 1.0625, 1.1875, 448, 470, 1e6, -1e6, 2.0**-9, 2.0**-10, 0])
    q = ops.quantize(tensor(x), 1.0, "float8_e4m3fn")
    assert q.dtype == float8_e4m3fn == as_dtype("f8")
    found = ops.dequantize(q, 1.0).numpy()
    np.testing.assert_array_equal(found, np.float32([1, 1, 1.25, 448, 448, 448, -448, 2.0**-9, 0, 0]))


@pytest.mark.parametrize("dtype", [int8, float8_e4m3fn])
def test_rounding_uses_the_whole_range(dtype: object) -> None:
    w = (
        RNG.standard_normal((6, 4, 3, 3)).astype(np.float32)
        * np.float32([1, 2, 4, 8, 16, 0])[:, None, None, None]
    )
    q, scale = rounded(w, dtype, 0)  # type: ignore[arg-type]
    largest = np.abs(q.astype(np.float32)).max((1, 2, 3))
    np.testing.assert_array_equal(largest, [127 if dtype == int8 else 448] * 5 + [0])
    near = q.astype(np.float32) * scale[:, None, None, None]
    step = (
        0.5 * scale[:, None, None, None]
        if dtype == int8
        else np.abs(w) / 16 + scale[:, None, None, None] / 512
    )
    assert (np.abs(near - w) <= step * 1.001).all()
    assert rounded(w, dtype)[1].shape == ()  # type: ignore[arg-type]


@pytest.mark.feature("B018")
@pytest.mark.parametrize("channels", [(3, 5), (16, 32), (33, 17)])
def test_int8_sums_are_exact_and_steps_are_fused(channels: tuple[int, int]) -> None:
    """Convolution, bias, relu and rounding of the result, against integers."""
    c, k = channels
    x = RNG.integers(-128, 128, (2, c, 9, 8)).astype(np.int8)
    w = RNG.integers(-127, 128, (k, c, 3, 3)).astype(np.int8)
    scale = RNG.uniform(0.5, 1.0, k).astype(np.float32) / 64
    bias = RNG.standard_normal((k, 1, 1)).astype(np.float32)
    win = primitives.Window((1, 1), ((1, 1), (1, 1)), (1, 1))

    def layer(x, w, scale, bias, step):  # type: ignore[no-untyped-def]
        (y,) = bind(primitives.QuantizedConv(win), x, w, scale)
        return ops.quantize(ops.relu(y + bias), step)

    step = np.float32(2)
    run = compile(trace(layer, x, w, scale, bias, step), "cpu")
    # A processor without exact 8-bit sums computes by the definition, step by step.
    assert ([s.label for s in run.program.steps if s.node] == ["fused"]) == adds_in_32_bits()
    found = run(x, w, scale, bias, step)[0].numpy()
    (y,) = primitives.Conv(win).reference(x.astype(np.float64), w.astype(np.float64))
    wanted = np.maximum(y * scale.reshape(-1, 1, 1).astype(np.float64) + bias, 0) / 2
    off = np.abs(found - np.clip(np.rint(wanted), -128, 127))
    assert off.max() <= 1  # a float32 rounding may tip a tie
    assert (off > 0).mean() < 1e-3


def test_an_integer_product_counts_a_multiplication_and_an_addition_each() -> None:
    a, b, scale = Spec((3, 5), int8), Spec((7, 5), int8), Spec((7,), float32)
    assert primitives.QuantizedMatmul().flops(a, b, scale) == 2 * 3 * 7 * 5


def test_refusals() -> None:
    x, w = Spec((2, 4, 5, 5), int8), Spec((8, 4, 3, 3), int8)
    op = primitives.QuantizedConv(primitives.Window((1, 1), ((0, 0), (0, 0)), (1, 1)))
    with pytest.raises(ShapeError, match=r"quantized_conv: scale must be float32\[8\]"):
        op.infer(x, w, Spec((4,), float32))
    with pytest.raises(DTypeError, match="quantized_conv: dtype float32"):
        op.infer(Spec(x.shape, float32), w, Spec((8,), float32))
    with pytest.raises(ShapeError, match=r"quantized_matmul: needs \[M, K\]"):
        primitives.QuantizedMatmul().infer(Spec((2, 3), int8), Spec((3, 2), int8), Spec((3,), float32))
    with pytest.raises(DTypeError, match="quantize: to int8 or float8_e4m3fn, not to int32"):
        ops.quantize(tensor([1.0]), 1.0, "int32")
    with pytest.raises(ShapeError, match="quantize: scale"):
        ops.quantize(tensor([1.0]), np.float32([1.0]))


@pytest.mark.torch
def test_fake_quantization_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    x = (np.random.default_rng(0).standard_normal((4, 3, 5)) * 2).astype(np.float32)
    scales, zeros = np.array([0.1, 0.02, 0.3], np.float32), np.array([0, 3, -2], np.int32)
    for mine, theirs in (
        (
            lambda x: ops.fake_quantize_per_tensor_affine(x, 0.05, 3, -10, 12),
            lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -10, 12),
        ),
        (
            lambda x: ops.fake_quantize_per_channel_affine(x, scales, zeros, 1, -128, 127),
            lambda x: torch.fake_quantize_per_channel_affine(
                x, torch.tensor(scales), torch.tensor(zeros), 1, -128, 127
            ),
        ),
    ):
        given = torch.tensor(x, requires_grad=True)
        wanted = theirs(given)
        (wanted * 2).sum().backward()
        found, slope = lm.value_and_grad(lambda x, mine=mine: (mine(x) * 2).sum())(x)
        np.testing.assert_allclose(mine(lm.tensor(x)).numpy(), wanted.detach().numpy(), rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(slope.numpy(), given.grad.numpy())
        assert found.item() == pytest.approx(wanted.sum().item() * 2, rel=1e-5)


def test_fake_quantization_refuses() -> None:
    x = lm.ones((2, 3))
    with pytest.raises(ValueError, match="quant_min=3 must be at most quant_max=2"):
        ops.fake_quantize_per_tensor_affine(x, 0.1, 0, 3, 2)
    with pytest.raises(ShapeError, match=r"scale must have \[3\], got f64\[2\]"):
        ops.fake_quantize_per_channel_affine(x, np.ones(2), np.zeros(3), 1, 0, 255)
    with pytest.raises(ShapeError, match="zero_point must have one element"):
        ops.fake_quantize_per_tensor_affine(x, 0.1, np.zeros(3), 0, 255)
