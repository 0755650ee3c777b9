"""Norms and products as graphs have them: which become one op."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.backends.cuda.matmul.normed_matmul_fusion import NormedMatmul
from lamina.graph import compile, trace
from lamina.ops.core import bind
from lamina.ops.primitives import LayerNorm, Matmul
from lamina.spec import ShapeError, Spec, bfloat16, float32
from tests.helpers.planned import H200

rng = np.random.default_rng(5)


def test_rows_are_normalized_one_by_one() -> None:
    with pytest.raises(ShapeError, match=r"rows \[M, K\] are normalized one by one"):
        NormedMatmul(LayerNorm(2, 1e-5), Matmul()).infer(
            Spec((4, 8), bfloat16), Spec((4, 8), float32), Spec((4, 8), float32), Spec((8, 8), bfloat16)
        )


def labels(fn: Any, *specs: Spec) -> list[str]:
    """Kernels of a function, planned for an H200."""
    found = compile(trace(fn, *specs), H200)
    return [step.plan.label for step in found.program.steps if not step.plan.view]


def specs_of(*shapes: tuple[int, ...]) -> list[Spec]:
    """x and weights in bfloat16; vectors, a norm's numbers, in float32."""
    return [Spec(s, float32 if len(s) == 1 else bfloat16) for s in shapes]


def test_graphs_of_few_tokens() -> None:
    """A norm that one product reads is taken into it, with steps behind; one that is read elsewhere too is not."""

    def layer(x: Any, scale: Any, bias: Any, w: Any) -> Any:
        return ops.gelu(ops.layer_norm(x, (64,), scale, bias) @ w.T)

    def twice(x: Any, scale: Any, bias: Any, w: Any) -> Any:
        y = ops.layer_norm(x, (64,), scale, bias)
        return y @ w.T, y

    given = specs_of((2, 9, 64), (64,), (64,), (128, 64))
    assert labels(layer, *given) == ["kernel normed_matmul+gelu"]
    assert not any("normed" in label for label in labels(twice, *given))
    many = specs_of((8, 197, 64), (64,), (64,), (3072, 64))
    assert not any("normed" in label for label in labels(layer, *many))


def test_statistics_that_are_read_keep_the_norm() -> None:
    def statistics(x: Any, scale: Any, bias: Any, w: Any) -> Any:
        y, mean, _ = bind(LayerNorm(1, 1e-5), x, scale, bias)
        return y @ w.T, mean

    assert not any(
        "normed" in label for label in labels(statistics, *specs_of((9, 64), (64,), (64,), (128, 64)))
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("tokens", [1, 7, 49])
def test_a_block_on_a_gpu(tokens: int, dtype: str) -> None:
    """A network of few tokens by its predictor, beside the same in float32 on the host."""
    net = nn.TransformerEncoderLayer(128, 4, 256, norm_first=True, batch_first=True).eval()
    x = rng.standard_normal((1, tokens, 128)).astype(np.float32)
    precision = {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    found = lm.infer.Predictor(net, device="cuda", precision=precision)(x)
    exact = np.asarray(lm.infer.Predictor(net, device="cpu")(x), np.float64)
    room = {"bfloat16": 2.0**-5, "float16": 2.0**-8}[dtype]
    assert np.abs(np.asarray(found, np.float64) - exact).max() < room * np.abs(exact).max()
