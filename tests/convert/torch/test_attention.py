"""Attention, and rows of tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


CASES = [
    "F.scaled_dot_product_attention(x, x, x, is_causal=True)",
    "F.scaled_dot_product_attention(x, x, x, x > 0)",
    "F.embedding((x[0, 0] > 0).long(), x[0, 0])",
    "F.embedding_bag((x[0, 0] > 0).long(), x[0, 0], mode='sum')",
    "F.embedding_bag((x[0, 0] > 0).long(), x[0, 0], mode='sum', padding_idx=0)",
    "F.embedding_bag((x[0, 0] > 0).long() * 5, x[0, 0], mode='mean', padding_idx=-1)",
    "F.embedding((x[0, 0] > 0).long(), x[0, 0], padding_idx=-1)",
]


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_torch(text: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    agree(eval("lambda x: " + text, {"torch": torch, "F": F}), x)


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 5, "vdim": 7}, {"add_bias_kv": True}, {"add_zero_attn": True}]
)
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both"])
def test_multi_head_attention(options: dict[str, object], mask: str) -> None:
    import torch

    from tests.helpers.torch_functions import captured, close

    net = torch.nn.MultiheadAttention(8, 2, batch_first=True, **options).eval()
    q = torch.randn(3, 4, 8)
    k, v = (torch.randn(3, 6, size) for size in (options.get("kdim", 8), options.get("vdim", 8)))
    given = {
        "none": {},
        "padding": {"key_padding_mask": torch.arange(6) > torch.tensor([[5], [3], [4]])},
        "causal": {"attn_mask": torch.ones(4, 6).triu(1).bool(), "need_weights": False},
        "both": {
            "attn_mask": torch.linspace(-1, 1, 24).reshape(4, 6),
            "key_padding_mask": torch.linspace(-2, 1, 18).reshape(3, 6),
        },
    }[mask]
    with torch.no_grad():

        def call(q: object, k: object, v: object) -> object:
            return net(q, k, v, **given)

        program = captured(call, q, k, v)
        found = program(*(_of(name, net, q, k, v, given) for name in program.inputs))
        wanted = net(q, k, v, **given)
    close(found.outputs[0], wanted[0])


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_the_flag_of_causal_attention_takes_the_place_of_its_mask(
    options: dict[str, bool], padded: bool, need_weights: bool
) -> None:
    """Without padding and weights PyTorch goes by the flag alone: then no query sees the keys behind the others."""
    import torch

    from tests.helpers.torch_training import compiled

    net, x = torch.nn.MultiheadAttention(8, 2, **options).eval(), torch.randn(5, 2, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.arange(5) >= torch.tensor([[5], [3]]) if padded else None
    given = {"attn_mask": mask, "key_padding_mask": padding, "is_causal": True, "need_weights": need_weights}
    with torch.no_grad():
        torch.testing.assert_close(compiled(net)(x, x, x, **given)[0], net(x, x, x, **given)[0])


def _of(name: str, net: object, q: object, k: object, v: object, given: dict[str, object]) -> object:
    """What Dynamo's placeholder of this name stands for."""
    tensors = {"l_q_": q, "l_k_": k, "l_v_": v}
    held = dict(net.named_parameters())  # type: ignore[attr-defined]
    for path, tensor in held.items():
        if (
            name.replace("_modules", "")
            .replace("_parameters", "")
            .endswith("_" + path.replace(".", "_") + "_")
        ):
            return tensor.detach()
    masks = {f"l_given_{key}_": x for key, x in given.items()}
    return tensors.get(name, masks.get(name, next((x for x in given.values() if hasattr(x, "dtype")), None)))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("mask", ["none", "of places", "of keys"])
def test_an_encoder_layer_of_inference_that_pytorch_calls_as_one_function(first: bool, mask: str) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    torch.manual_seed(0)
    net = torch.nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=first, activation="gelu" if first else "relu"
    ).eval()
    x, options = torch.randn(3, 5, 8), {}
    if mask == "of places":
        options = {"src_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)}
    if mask == "of keys":
        options = {"src_key_padding_mask": torch.arange(5) >= torch.tensor([[5], [3], [4]])}
    with torch.no_grad():
        torch.testing.assert_close(compiled(net)(x, **options), net(x, **options))


def flexible(name: str) -> Any:
    """(a call of flex_attention of q, k and v, what it does to the scores [B, H, T, S])."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slopes, document = torch.tensor([0.5, 0.25]), torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
    bias = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(3))
    i, j = torch.arange(8)[:, None], torch.arange(8)

    def masked(mask: Any) -> Any:
        blocks = create_block_mask(mask, None, None, 8, 8, device="cpu", BLOCK_SIZE=4)
        return lambda q, k, v: flex_attention(q, k, v, block_mask=blocks)

    return {
        "biases": (
            lambda q, k, v: flex_attention(
                q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i) + bias[h, i, j] + b * 0.1, scale=0.3
            ),
            lambda s: (
                s * 0.6
                + slopes[:, None, None] * (j - i)
                + bias
                + torch.arange(3.0)[:, None, None, None] * 0.1
            ),
        ),
        "a cap": (
            lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: 2 * torch.tanh(s / 2)),
            lambda s: 2 * torch.tanh(s / 2),
        ),
        "documents": (
            masked(lambda b, h, i, j: (i >= j) & (document[i] == document[j])),
            lambda s: s.masked_fill((i < j) | (document[:, None] != document), float("-inf")),
        ),
        "a row without keys": (
            masked(lambda b, h, i, j: i > j),
            lambda s: s.masked_fill(i <= j, float("-inf")),
        ),
    }[name]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("name", ["biases", "a cap", "documents", "a row without keys"])
def test_scores_by_functions(name: str) -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch
    from tests.helpers.torch_training import compiled

    class Net(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return call(q, k, v)

    call, scores = flexible(name)
    q, k, v = (torch.randn(3, 2, 8, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    wanted = call(q, k, v)
    torch.testing.assert_close(compiled(call, fullgraph=True)(q, k, v), wanted, rtol=1e-5, atol=1e-5)
    net = from_torch(Net(), q, k, v)
    np.testing.assert_allclose(net(q, k, v).numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)
    # PyTorch has no gradient of it on a CPU: that of the formula.
    own = [x.double().requires_grad_() for x in (q, k, v)]
    given = scores(own[0] @ own[1].mT / 2)
    empty = given.isneginf().all(-1, keepdim=True)
    weights = given.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    (weights @ own[2]).square().sum().backward()
    found = lm.grad(lambda q, k, v: lm.ops.sum(net(q, k, v) ** 2), argnums=(0, 1, 2))(
        *(lm.tensor(x.numpy()) for x in (q, k, v))
    )
    for g, x in zip(found, own, strict=True):
        np.testing.assert_allclose(g.numpy(), x.grad.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("training", [False, True])
def test_scores_by_functions_of_projections_that_train(training: bool) -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(4, 12)

        def forward(self, x: Any) -> Any:
            q, k, v = self.project(x).chunk(3, -1)
            if flexible:
                return flex_attention(q, k, v, lambda s, b, h, i, j: s + 0.5 * (i - j))
            places = torch.arange(8.0)
            bias = 0.5 * (places[:, None] - places)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)

    torch.manual_seed(0)
    net, x, flexible = Net().train(training), torch.randn(3, 2, 8, 4), True
    converted = from_torch(net, x, share=False)
    found, slopes = lm.value_and_grad(lambda m: lm.ops.sum(m(x) ** 2))(converted)
    flexible = False
    wanted = net(x).square().sum()
    wanted.backward()
    assert float(found) == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(
        slopes["project.weight"].numpy(), net.project.weight.grad, rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_rows_that_are_looked_up_are_scaled_down_in_the_table(kind: str) -> None:
    """max_norm: in results and gradients, in the table, and where a compiled step trains on from there."""
    import torch

    import lamina as lm
    from lamina import ops
    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, x = getattr(torch.nn, kind)(6, 3, max_norm=1.0), torch.tensor([[0, 1, 1], [2, 3, 0]])
    converted = from_torch(net, x, share=False)
    found = check(net, converted, x)
    assert max(found.output, found.gradient, *found.state.values()) < 1e-5, found
    step = lm.train_step(converted, lambda y, _: ops.sum(ops.square(y)), lm.optim.SGD(lr=0.1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        step(x.numpy(), None)
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
    np.testing.assert_allclose(
        converted.state_dict()["weight"].numpy(), net.weight.detach().numpy(), rtol=1e-5
    )
