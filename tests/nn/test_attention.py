"""Attention of heads by its formula in float64: learned rows, rows of zeros, masks, batches and single sequences."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from tests.helpers.second_device import SECOND, known

BATCH, STEPS, WIDE, HEADS = 3, 5, 8, 2


def by_formula(
    net: nn.MultiheadAttention, given: Any, causal: bool, padding: Any
) -> tuple[np.ndarray, np.ndarray]:
    """(y [B, L, E], weights [B, H, L, S]) of query, key and value [B, L, E]; padding [B, S]: true where hidden."""
    state = {name: value.numpy().astype(np.float64) for name, value in net.state_dict().items()}
    weights, biases = np.split(state["in_proj_weight"], 3), np.split(state["in_proj_bias"], 3)
    q, k, v = (x @ w.T + b for x, w, b in zip(given, weights, biases, strict=True))
    hidden = np.zeros((BATCH, STEPS, STEPS), bool)
    hidden |= np.triu(np.ones((STEPS, STEPS), bool), 1) & causal
    hidden |= False if padding is None else padding[:, None]
    more = []
    if "bias_k" in state:
        more.append([np.broadcast_to(state[name], (BATCH, 1, WIDE)) for name in ("bias_k", "bias_v")])
    if net.add_zero_attn:
        more.append([np.zeros((BATCH, 1, WIDE))] * 2)
    for row, other in more:
        k, v = np.concatenate([k, row], 1), np.concatenate([v, other], 1)
        hidden = np.concatenate([hidden, np.zeros((BATCH, STEPS, 1), bool)], 2)
    q, k, v = (x.reshape(BATCH, -1, HEADS, WIDE // HEADS).swapaxes(1, 2) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(WIDE // HEADS)
    scores[np.broadcast_to(hidden[:, None], scores.shape)] = -np.inf
    found = np.exp(scores - scores.max(-1, keepdims=True))
    found /= found.sum(-1, keepdims=True)
    y = (found @ v).swapaxes(1, 2).reshape(BATCH, STEPS, WIDE)
    return y @ state["out_proj.weight"].T + state["out_proj.bias"], found


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True, "add_bias_kv": True}])
def test_values_are_those_of_the_formula(
    options: dict[str, bool], causal: bool, padded: bool, first: bool
) -> None:
    nn.manual_seed(0)
    net = nn.MultiheadAttention(WIDE, HEADS, batch_first=first, **options).eval()
    rng = np.random.default_rng(1)
    for parameter in net.parameters():
        parameter.copy_(rng.uniform(-1, 1, parameter.shape).astype(np.float32))
    given = [rng.standard_normal((BATCH, STEPS, WIDE)).astype(np.float32) for _ in range(3)]
    padding = np.arange(STEPS) >= np.array([[5], [3], [4]]) if padded else None
    wanted, weights = by_formula(net, given, causal, padding)
    close: Any = {"rtol": 2e-5, "atol": 2e-5}

    lying = [lm.tensor(x if first else x.swapaxes(0, 1)) for x in given]
    masks: dict[str, Any] = {} if padding is None else {"key_padding_mask": lm.tensor(padding)}
    for average in (True, False):
        y, found = net(*lying, **masks, is_causal=causal, average_attn_weights=average)
        np.testing.assert_allclose(y.numpy() if first else y.numpy().swapaxes(0, 1), wanted, **close)
        np.testing.assert_allclose(found.numpy(), weights.mean(1) if average else weights, **close)
    y, nothing = net(*lying, **masks, is_causal=causal, need_weights=False)
    assert nothing is None
    np.testing.assert_allclose(y.numpy() if first else y.numpy().swapaxes(0, 1), wanted, **close)

    for i in range(BATCH):  # each as one sequence
        alone = {} if padding is None else {"key_padding_mask": lm.tensor(padding[i])}
        y, found = net(*(lm.tensor(x[i]) for x in given), **alone, is_causal=causal)
        np.testing.assert_allclose(y.numpy(), wanted[i], **close)
        np.testing.assert_allclose(found.numpy(), weights[i].mean(0), **close)
        y, nothing = net(*(lm.tensor(x[i]) for x in given), **alone, is_causal=causal, need_weights=False)
        assert nothing is None
        np.testing.assert_allclose(y.numpy(), wanted[i], **close)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_mask_of_what_lies_ahead(dtype: str) -> None:
    """0 up to the diagonal, -inf above; on the CPU unless a device is given."""
    make = nn.Transformer.generate_square_subsequent_mask
    row, column = np.indices((4, 4))
    with known():
        for device, wanted in ((None, lm.Device("cpu")), ("cpu", lm.Device("cpu")), (SECOND, SECOND)):
            mask = make(4, device, dtype)
            assert (mask.device, mask.dtype.name) == (wanted, dtype)
            np.testing.assert_array_equal(mask.numpy(), np.where(column > row, -np.inf, 0.0))
    assert (make(1).tolist(), make(2).dtype, make(0).shape) == ([[0.0]], lm.float32, (0, 0))


def test_matrices_of_a_transformer_are_xaviers() -> None:
    """Uniform up to sqrt(6 / (fan_in + fan_out)), in all layers of both stacks; the rest is as in the layers."""
    nn.manual_seed(0)
    net = nn.Transformer(32, 4, 2, 2, 48)
    matrices = [p.numpy() for p in net.parameters() if p.ndim == 2]
    assert len(matrices) == 2 * 4 + 2 * 6
    for matrix in matrices:
        bound = np.sqrt(6 / sum(matrix.shape))
        assert 0.98 * bound < np.abs(matrix).max() <= bound * (1 + 1e-6)
    norms = [m for m in net.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 2 * 3 + 2
    for norm in norms:
        state = norm.state_dict()
        assert state["weight"].tolist() == [1.0] * 32
        assert state["bias"].tolist() == [0.0] * 32
