"""How a convolution layer's plans are chosen: by the policy in force, or by its own choice until it is reset."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.graph import Graph, gradients, trace
from lamina.ops.primitives import Conv, ConvDataGrad, ConvFilterGrad
from lamina.spec import Policy, ShapeError, Spec, current_policy, float32, policy


def chosen(layer: Any, x: Spec) -> dict[type, Policy]:
    """The policy with which each direction of the layer's convolution is planned."""

    def step(value: Any, weight: Any) -> Any:
        layer._parameters["weight"] = weight
        y = layer(value)
        return gradients([lm.ops.sum(y)], [value, weight])

    kept = layer._parameters["weight"]
    try:
        graph: Graph = trace(step, x, kept.spec)
    finally:
        layer._parameters["weight"] = kept
    return {
        type(node.op): node.policy.of(node.op.name)
        for node in graph.nodes
        if isinstance(node.op, (Conv, ConvDataGrad, ConvFilterGrad))
    }


X = Spec((2, 3, 8, 8), float32)


@pytest.mark.feature("F085")
def test_a_layer_keeps_its_own_choice_until_it_is_reset() -> None:
    layer = nn.Conv2d(3, 4, 3, bias=False)
    layer.set_mode("plain eng58", "fallback", "time_once")
    with policy(algorithm="fastest"):
        found = chosen(layer, X)
    assert found[ConvDataGrad] == Policy(algorithm="fallback")
    assert found[ConvFilterGrad].algorithm == "fastest"
    assert found[ConvFilterGrad].once
    assert "data_grad='fallback'" in repr(layer)
    layer.reset_mode()
    with policy(algorithm="fastest"):
        found = chosen(layer, X)
    assert set(found.values()) == {Policy(algorithm="fastest")}
    assert "algorithm" not in repr(layer)


@pytest.mark.feature("F085")
def test_the_forward_pass_too() -> None:
    layer = nn.Conv2d(3, 4, 3, bias=False)
    layer.set_mode("direct", data_grad="heuristic")
    graph = trace(lambda v: layer(v), X)
    (conv,) = [node for node in graph.nodes if isinstance(node.op, Conv)]
    assert conv.policy.of("conv") == Policy(algorithm="direct")
    assert conv.policy.of("conv_data_grad") == Policy(algorithm="heuristic")
    assert conv.policy.of("conv_filter_grad") == Policy(algorithm="direct")


@pytest.mark.feature("F085")
def test_a_transposed_layer_runs_as_a_data_gradient() -> None:
    layer = nn.ConvTranspose2d(3, 4, 3, bias=False)
    layer.set_mode("fallback", "fastest")
    graph = trace(lambda v: layer(v), X)
    (conv,) = [node for node in graph.nodes if isinstance(node.op, ConvDataGrad)]
    assert conv.policy.of("conv_data_grad") == Policy(algorithm="fallback")
    assert conv.policy.of("conv") == Policy(algorithm="fastest")
    assert conv.policy.of("conv_filter_grad") == Policy(algorithm="fallback")


@pytest.mark.feature("F085")
def test_a_mode_does_not_change_values() -> None:
    layer, x = nn.Conv2d(3, 4, 3), np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    before = layer(x).numpy()
    layer.set_mode("fastest", "fallback", "plain eng1{2:0}")
    np.testing.assert_allclose(layer(x).numpy(), before, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"filter_grad must be one of auto.*got 'fft'"):
        layer.set_mode(filter_grad="fft")


@pytest.mark.feature("F083")
def test_once_or_for_each_size() -> None:
    """The names that other systems have, and what they mean here."""
    expected = {
        "guess_once": ("heuristic", True),
        "guess_on_shape_change": ("heuristic", False),
        "time_once": ("fastest", True),
        "time_on_shape_change": ("fastest", False),
    }
    for name, (algorithm, once) in expected.items():
        with policy(algorithm=name) as made:
            assert (made.algorithm, made.once) == (algorithm, once)
            with policy(algorithm="heuristic"):
                assert not current_policy().once
            with policy(tf32=True):
                assert current_policy().once == once


@pytest.mark.parametrize("name", ["kernel_size", "stride", "dilation"])
@pytest.mark.parametrize(
    ("value", "message"), [(0, "0"), ((1, 0), "0"), (-1, "-1"), ((1, 2, 3), "one int or 2 ints")]
)
def test_sizes_of_a_window_are_checked(name: str, value: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=f"Conv2d: {name}.*{message}"):
        nn.Conv2d(3, 4, **{"kernel_size": 3, name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": "sam"}, "Conv2d: padding must be one of valid, half, full, same, .* got 'sam'"),
        ({"padding": "same", "stride": 2}, 'Conv2d: padding "same" needs stride 1'),
        ({"padding": (1, 2, 3)}, r"Conv2d: padding must be one int or 2 ints, got \(1, 2, 3\)"),
    ],
)
def test_a_padding_is_checked_when_the_layer_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nn.Conv2d(3, 8, 3, **options)


def test_a_negative_padding_is_refused_and_none_is_not() -> None:
    with pytest.raises(ShapeError, match="Conv2d: padding.*-1"):
        nn.Conv2d(3, 4, 3, padding=-1)
    assert nn.Conv2d(3, 4, 3, stride=1, padding=0).stride == (1, 1)
    assert nn.Conv2d(3, 4, 1, stride=(2, 1))(lm.zeros((1, 3, 5, 5))).shape == (1, 4, 3, 5)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize(
    ("channels", "groups", "message"),
    [
        ((0, 1), 1, "channels and groups must be at least 1, got 0 -> 1, groups=1"),
        ((1, 0), 1, "channels and groups must be at least 1, got 1 -> 0, groups=1"),
        ((1, 1), 0, "channels and groups must be at least 1, got 1 -> 1, groups=0"),
        ((3, 2), 2, "groups=2 must divide in_channels=3 and out_channels=2"),
        ((2, 3), 2, "groups=2 must divide in_channels=2 and out_channels=3"),
    ],
)
def test_channels_are_in_groups(kind: Any, channels: tuple[int, int], groups: int, message: str) -> None:
    assert kind(1, 1, 1).weight.shape == (1, 1, 1, 1)
    assert kind(2, 2, 1, groups=2).weight.shape == (2, 1, 1, 1)
    with pytest.raises(ShapeError, match=f"{kind.__name__}: {message}"):
        kind(*channels, 1, groups=groups)


@pytest.mark.parametrize(
    ("padding", "around"),
    [("same", ((2, 2), (1, 2))), ("valid", ((0, 0), (0, 0))), ((1, 2), ((1, 1), (2, 2)))],
)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_what_is_around_an_image(padding: Any, around: Any, mode: Any) -> None:
    """As a convolution of the image that is padded before; "same" has the odd element behind."""
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 7)).astype(np.float32)
    layer = nn.Conv2d(3, 4, (3, 4), 1, padding, (2, 1), padding_mode=mode)
    named = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    wide = np.pad(x, ((0, 0), (0, 0), *around), mode=named)
    wanted = lm.ops.conv2d(lm.tensor(wide), layer.weight, layer.bias, 1, 0, (2, 1))
    np.testing.assert_allclose(layer(lm.tensor(x)).numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_layers_are_their_function(rank: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, *(9, 8, 7)[:rank])).astype(np.float32)
    layer = getattr(nn, f"Conv{rank}d")(4, 6, 3, 2, 1, 2, 2)
    assert layer.weight.shape == (6, 2, *(3,) * rank)
    assert layer.stride == layer.dilation == (2,) * rank
    wanted = getattr(lm.ops, f"conv{rank}d")(lm.tensor(x), layer.weight, layer.bias, 2, 1, 2, 2)
    np.testing.assert_array_equal(layer(lm.tensor(x)).numpy(), wanted.numpy())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_layers_are_their_function(rank: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, *(5, 4, 3)[:rank])).astype(np.float32)
    layer = getattr(nn, f"ConvTranspose{rank}d")(4, 6, 3, 2, 1, 1, 2)
    function = getattr(lm.ops, f"conv_transpose{rank}d")
    wanted = function(lm.tensor(x), layer.weight, layer.bias, 2, 1, 1, 2)
    np.testing.assert_array_equal(layer(lm.tensor(x)).numpy(), wanted.numpy())


@pytest.mark.torch
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_size_of_the_output_is_asked_for(rank: int) -> None:
    torch = pytest.importorskip("torch")
    own = getattr(nn, f"ConvTranspose{rank}d")(2, 3, 3, stride=3, dilation=2)
    other = getattr(torch.nn, f"ConvTranspose{rank}d")(2, 3, 3, stride=3, dilation=2)
    own.load_state_dict(other.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 2, 3, 4, 5)[: rank + 2]).astype(np.float32)
    least = other(torch.tensor(x)).shape[2:]
    sizes = tuple(n + i for i, n in enumerate(least))
    for wanted in (sizes, (2, 3, *sizes)):
        found = own(lm.tensor(x), output_size=wanted)
        np.testing.assert_allclose(
            found.numpy(), other(torch.tensor(x), output_size=list(wanted)).detach().numpy(), atol=1e-6
        )
    with pytest.raises(lm.ShapeError, match=r"output_size must be from \(.*\) to \(.*\), got"):
        own(lm.tensor(x), output_size=[n + 3 for n in least])
    with pytest.raises(lm.ShapeError, match="output_size must be"):
        own(lm.tensor(x), output_size=(1,) * (rank + 3))


@pytest.mark.parametrize("x", [-1, [[1.0]]])
def test_output_size_of_what_is_no_image_is_the_ops_error(x: Any) -> None:
    with pytest.raises(lm.ShapeError, match="conv_transpose2d: input .* must be of rank 4"):
        nn.ConvTranspose2d(3, 4, 3)(x, output_size=[2, 3])


@pytest.mark.parametrize("size", ["ab", [2.5, 3]])
def test_an_output_size_of_other_than_ints_is_named(size: Any) -> None:
    with pytest.raises(lm.ShapeError, match="ConvTranspose2d: output_size must be ints, got"):
        nn.ConvTranspose2d(3, 4, 3)(np.zeros((1, 3, 4, 4), np.float32), output_size=size)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_text_of_a_layer_has_what_is_not_its_default(kind: str, rank: int) -> None:
    make = getattr(nn, f"{kind}{rank}d")

    def each(n: int) -> str:
        return f"({', '.join([str(n)] * rank)}{',' * (rank == 1)})"

    first = f"{kind}{rank}d(4, 6, kernel_size={each(3)}, stride="
    assert repr(make(4, 6, 3)) == f"{first}{each(1)})"
    options = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, "bias": False, "flip": True}
    extra = {"output_padding": 1} if kind == "ConvTranspose" else {}
    shown = f"padding={each(1)}, dilation={each(2)}, groups=2, bias=False, flip=True, algorithm='fallback'"
    last = f", output_padding={each(1)}" if extra else ""
    layer = make(4, 6, 3, **options, **extra, algorithm="fallback")
    assert repr(layer) == f"{first}{each(2)}, {shown}{last})"
