"""Recurrent, attention, transformer and embedding layers against PyTorch's: values, gradients, state_dict keys."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from tests.helpers.nn import GOLDEN_FILES
from tests.helpers.nn.make_sequences import flat
from tests.helpers.nn.sequence_cases import CASES

GOLDEN = np.load(GOLDEN_FILES / "sequences.npz")
IDS = [c.id for c in CASES]
RECURRENT = ("RNN", "LSTM", "GRU")


def made(index: int) -> tuple[nn.Module, list[Any]]:
    """The layer with torch's values, and its inputs."""
    case = CASES[index]
    layer = getattr(nn, case.layer)(*case.args, **case.kwargs)
    prefix = f"{index}/state/"
    layer.load_state_dict({k.removeprefix(prefix): GOLDEN[k] for k in GOLDEN.files if k.startswith(prefix)})
    return layer, [GOLDEN[f"{index}/x{n}"] for n in range(len(case.inputs))]


def options_on(index: int, device: str) -> dict[str, Any]:
    """What else the layer's forward takes: masks lie on the device of its inputs, as in torch."""
    given = CASES[index].options
    return {k: lm.tensor(v, device=device) if isinstance(v, np.ndarray) else v for k, v in given.items()}


def close(found: Any, wanted: Any, what: str = "") -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-5, err_msg=what)


def check_values(index: int, device: str) -> None:
    layer, inputs = made(index)
    layer.to(device)
    found = flat(layer(*[lm.tensor(x, device=device) for x in inputs], **options_on(index, device)))
    for n, y in enumerate(found):
        close(y.numpy(), GOLDEN[f"{index}/y{n}"], f"output {n}")
    assert f"{index}/y{len(found)}" not in GOLDEN.files


def check_gradients(index: int, device: str) -> None:
    layer, inputs = made(index)
    layer.to(device)
    names = [name for name, _ in layer.named_parameters()]
    options = options_on(index, device)

    def loss(*values: Any) -> Any:
        xs, weights = values[: len(inputs)], values[len(inputs) :]
        with nn.substitute(layer, dict(zip(names, weights, strict=True))):
            outputs = flat(layer(*xs, **options))
        scales = [np.cos(np.arange(np.prod(y.shape)).reshape(y.shape)).astype(np.float32) for y in outputs]
        return sum((y * s).sum() for y, s in zip(outputs, scales, strict=True))

    held = [lm.tensor(x, device=device) for x in inputs] + [layer.state_dict()[n] for n in names]
    found = lm.grad(loss, list(range(len(held))))(*held)
    for name, g in zip([f"x{n}" for n in range(len(inputs))] + names, found, strict=True):
        close(g.numpy(), GOLDEN[f"{index}/grad/{name}"], name)


@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_layer_computes_what_torch_does(index: int) -> None:
    check_values(index, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("B022")
@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_layer_computes_what_torch_does_on_cuda(index: int) -> None:
    check_values(index, "cuda:0")


@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_gradients_are_those_of_torch(index: int) -> None:
    check_gradients(index, "cpu")


@pytest.mark.gpu
@pytest.mark.feature("B022")
@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_gradients_are_those_of_torch_on_cuda(index: int) -> None:
    check_gradients(index, "cuda:0")


@pytest.mark.parametrize("index", [i for i, c in enumerate(CASES) if c.layer in RECURRENT])
def test_recurrent_layers_print_like_torch(index: int) -> None:
    assert repr(made(index)[0]) == str(GOLDEN[f"{index}/repr"])


def halves(layer: nn.Module, x: Any) -> tuple[Any, Any]:
    return layer(x[:3]), layer(x[3:])


@pytest.mark.feature("F097")
@pytest.mark.parametrize("index", [0, 1, 2, 3, 7], ids=lambda i: IDS[i])
def test_remembered_states_go_on(index: int) -> None:
    layer, (x,) = made(index)
    unidirectional = not CASES[index].kwargs.get("bidirectional", False)
    whole, (hn, *_) = layer(x)[0].numpy(), flat(layer(x)[1])
    first = layer(x[:3])[0].numpy()
    layer.remember(x.shape[1])
    for _ in range(2):
        (a, _), (b, last) = halves(layer, x)
        close(a.numpy(), first)
        if unidirectional:
            close(np.concatenate([a.numpy(), b.numpy()]), whole)
            close(flat(last)[0].numpy(), hn.numpy())
        layer.reset()
    again = layer(x[:3])[0].numpy()
    changed = layer(x[:3])[0].numpy()
    assert not np.allclose(again, changed)
    layer.forget()
    close(layer(x[:3])[0].numpy(), first)
    assert "hidden_state" not in layer.state_dict()


@pytest.mark.feature("F097")
def test_states_go_in_and_out() -> None:
    layer, (x,) = made(2)
    _, states = layer(x[:4])
    y, (hn, cn) = layer(x[4:], states)
    whole, (h, c) = layer(x)
    for found, wanted in ((y, whole[4:]), (hn, h), (cn, c)):
        close(found.numpy(), wanted.numpy())


@pytest.mark.feature("F097")
def test_a_compiled_step_carries_the_remembered_states() -> None:
    layer, (x,) = made(7)
    wanted = layer(x)[0].numpy()
    layer.remember(x.shape[1])

    def step(part: Any, hidden: Any) -> tuple[Any, Any]:
        with nn.substitute(layer, {"hidden_state": hidden}) as standing:
            y, _ = layer(part)
            return y, standing[id(dict(layer.named_buffers())["hidden_state"])]

    run = lm.compile(lm.trace(step, x[:3], np.zeros((1, 3, 7), np.float32)), "cpu")
    first, state = run(x[:3], np.zeros((1, 3, 7), np.float32))
    second, _ = run(x[3:], state)
    close(np.concatenate([first.numpy(), second.numpy()]), wanted)


def test_dropout_is_between_the_layers_in_training_alone() -> None:
    nn.manual_seed(3)
    layer = nn.LSTM(4, 6, 3, dropout=0.5, bidirectional=True)
    x = np.random.default_rng(0).standard_normal((5, 2, 4)).astype(np.float32)
    a, b = layer(x)[0].numpy(), layer(x)[0].numpy()
    assert not np.allclose(a, b)
    layer.eval()
    np.testing.assert_array_equal(layer(x)[0].numpy(), layer(x)[0].numpy())
    layer.train()
    layer.dropout = layer.drop.p = 1e-12  # as good as none: layer by layer is what all at once is
    found, (h, c) = layer(x)
    layer.eval()
    wanted, (hn, cn) = layer(x)
    for one, two in ((found, wanted), (h, hn), (c, cn)):
        close(one.numpy(), two.numpy())


def test_attention_drops_weights_in_training() -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=0.5)
    x = np.random.default_rng(0).standard_normal((5, 2, 8)).astype(np.float32)
    _, weights = layer(x, x, x)
    assert 0.2 < (weights.numpy() == 0).mean() < 0.8 or (weights.numpy() < 1e-6).any()
    assert not np.allclose(layer(x, x, x, need_weights=False)[0].numpy(), layer.eval()(x, x, x)[0].numpy())


def test_layers_of_a_stack_start_alike_and_apart() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0)
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
    first, second = (stack.layers[i].linear1.weight for i in range(2))
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert first is not second
    assert first is not layer.linear1.weight
    assert list(stack.state_dict())[-2:] == ["norm.weight", "norm.bias"]
    x = np.random.default_rng(0).standard_normal((4, 2, 8)).astype(np.float32)
    close(stack(x).numpy(), stack.norm(layer(layer(x))).numpy())
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2)
    assert decoder(x, stack(x)).shape == x.shape


def test_stacks_copy_layers_of_a_users_own() -> None:
    """Whatever arguments their class takes, and with the mode and the frozen parameters that they have."""

    class Mixing(nn.Module):
        def __init__(self, *, width: int) -> None:
            self.linear = nn.Linear(width, width)

        def forward(self, x: Any, mask: Any = None, padding: Any = None, causal: bool = False) -> Any:
            return x + ops.tanh(self.linear(x))

    layer = Mixing(width=8).eval()
    layer.linear.bias.requires_grad = False
    stack = nn.TransformerEncoder(layer, 3)
    x = np.random.default_rng(0).standard_normal((4, 2, 8)).astype(np.float32)
    close(stack(x).numpy(), layer(layer(layer(x))).numpy())
    assert len(set(map(id, stack.parameters()))) == 6
    assert [p.requires_grad for p in stack.parameters()] == [True, False] * 3
    assert not any(part.training for part in stack.layers.modules() if isinstance(part, Mixing))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda layer: nn.TransformerEncoder(len, 4),
            TypeError,
            "encoder_layer must be an instance of Module",
        ),
        (
            lambda layer: nn.TransformerDecoder(nn.TransformerDecoderLayer, 4),
            TypeError,
            r"decoder_layer must be an instance of Module, got <class",
        ),
        (
            lambda layer: nn.TransformerEncoder(layer, 1, norm=1.0),
            TypeError,
            "norm must be an instance of Module or None, got 1.0",
        ),
        (lambda layer: nn.TransformerEncoder(layer, 2.0), TypeError, "num_layers must be an int, got 2.0"),
    ],
    ids=["function", "class", "norm", "float"],
)
def test_stacks_of_what_is_no_layer(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(nn.TransformerEncoderLayer(8, 2, 16))


def test_causal_is_the_mask_behind_the_diagonal() -> None:
    layer = nn.MultiheadAttention(8, 2)
    x = np.random.default_rng(0).standard_normal((5, 2, 8)).astype(np.float32)
    behind = np.triu(np.ones((5, 5), np.bool_), 1)
    close(
        layer(x, x, x, is_causal=True, need_weights=False)[0].numpy(),
        layer(x, x, x, attn_mask=behind)[0].numpy(),
    )


def test_rows_that_see_nothing_are_zero() -> None:
    q = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)
    seen = np.ones((1, 1, 3, 3), np.bool_)
    seen[..., 1, :] = False
    o = ops.attention(q, q, q, seen).numpy()
    assert np.isfinite(o).all()
    assert not o[:, :, 1].any()


def test_embedding_looks_rows_up() -> None:
    layer = nn.Embedding(6, 3, padding_idx=-2)
    table = layer.weight.numpy()
    assert not table[4].any()
    index = np.array([[0, 4], [5, 0]])
    np.testing.assert_array_equal(layer(index).numpy(), table[index])
    assert repr(layer) == "Embedding(6, 3, padding_idx=4)"

    def loss(weight: Any) -> Any:
        return nn.functional_call(layer, {"weight": weight}, index).sum()

    counts = np.array([2, 0, 0, 0, 0, 1], np.float32)[:, None] * np.ones(3, np.float32)
    np.testing.assert_array_equal(lm.grad(loss)(layer.weight).numpy(), counts)
    with pytest.raises(IndexError, match="index 6 at position 0 is outside 0 … 5; 2 of 2 are"):
        nn.Embedding(6, 3)(np.array([6, -1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LSTM(0, 3), "input_size must be at least 1, got 0"),
        (lambda: nn.GRU(3, 0), "hidden and layers must be at least 1"),
        (lambda: nn.RNN(3, 4, nonlinearity="sine"), "nonlinearity must be 'tanh' or 'relu', got 'sine'"),
        (lambda: nn.RNNCell(3, 4, nonlinearity="sine"), "nonlinearity must be 'tanh' or 'relu', got 'sine'"),
        (lambda: nn.LSTM(3, 4, proj_size=4), "0 < projection < hidden = 4"),
        (lambda: nn.LSTM(3, 4)(np.zeros(3, np.float32)), r"x must be \(T, B, I\) or \(T, I\)"),
        (lambda: nn.GRUCell(3, 4)(lm.ones((2, 2, 3))), r"x must be \(B, I\) or \(I,\)"),
        (lambda: nn.MultiheadAttention(7, 2), "num_heads=2 must divide embed_dim=7"),
        (lambda: nn.TransformerEncoderLayer(8, 2, activation="sine"), "activation must be 'relu', 'gelu'"),
        (
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 0),
            "num_layers must be at least 1",
        ),
        (lambda: nn.Embedding(3, 4, padding_idx=3), "padding_idx must be within 3 rows, got 3"),
        (lambda: nn.Embedding(0, 4), "sizes must be at least 1"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_mask_of_another_shape_is_named() -> None:
    layer, x = nn.MultiheadAttention(8, 2), np.zeros((5, 3, 8), np.float32)
    with pytest.raises(lm.ShapeError, match=r"attn_mask must be of shape \(5, 5\)"):
        layer(x, x, x, attn_mask=np.zeros((4, 5), np.bool_))
    with pytest.raises(lm.ShapeError, match=r"key_padding_mask must be of shape \(3, 5\)"):
        layer(x, x, x, key_padding_mask=np.zeros((5, 3), np.bool_))


def test_the_causal_mask_is_that_of_torch() -> None:
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    assert mask.tolist() == [[0.0, -np.inf, -np.inf], [0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]]
    assert nn.Transformer.generate_square_subsequent_mask(2, dtype="float64").dtype == lm.float64


def test_a_transformer_takes_stacks_of_ones_own() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0)
    own = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    class Last(nn.Module):
        def forward(self, tgt: Any, memory: Any, *masks: Any, **options: Any) -> Any:
            return tgt + memory

    net = nn.Transformer(8, 2, custom_encoder=own, custom_decoder=Last())
    x, y = (
        lm.tensor(np.random.default_rng(i).standard_normal((5, 3, 8)).astype(np.float32)) for i in range(2)
    )
    close(net(x, y).numpy(), own(x).numpy() + y.numpy())


def test_more_layers_than_anybody_has_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="layers must be at most 65536"):
        nn.LSTM(3, 4, 10**30)
    with pytest.raises(ValueError, match="num_layers must be at most 65536"):
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 10**30)
