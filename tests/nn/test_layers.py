"""Every layer against PyTorch's: values, state_dict keys, and how it prints."""

import re
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from tests.helpers.nn import GOLDEN_FILES
from tests.helpers.nn.cases import CASES, LOSSES

GOLDEN = np.load(GOLDEN_FILES / "golden.npz")


def layer_and_arrays(index: int) -> tuple[nn.Module, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    case = CASES[index]
    layer = getattr(nn, case.layer)(*case.args, **case.kwargs)
    prefix = f"{index}/state/"
    state = {k.removeprefix(prefix): GOLDEN[k] for k in GOLDEN.files if k.startswith(prefix)}
    layer.load_state_dict(state)  # strict: the keys are torch's
    return layer, GOLDEN[f"{index}/x"], GOLDEN[f"{index}/y"]


@pytest.mark.feature("F094")
@pytest.mark.parametrize("index", range(len(CASES)), ids=[c.id for c in CASES])
def test_layer_computes_what_torch_does(index: int) -> None:
    layer, x, expected = layer_and_arrays(index)
    np.testing.assert_allclose(np.asarray(layer(x)), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("index", range(len(CASES)), ids=[c.id for c in CASES])
def test_layer_records_what_it_computes(index: int) -> None:
    layer, x, expected = layer_and_arrays(index)
    graph = lm.trace(layer, x)
    run = lm.compile(graph, "cpu", backend="reference")
    np.testing.assert_allclose(run(x)[0].numpy(), expected, rtol=2e-5, atol=2e-6)


#: Layers that print otherwise than torch's: it unfolds the sizes of one-dimensional pools, and leaves out or adds
#: arguments that do not exist here.
PRINT_OTHERWISE = {"AvgPool1d", "Softplus", "ConvTranspose2d"}
PRINTED = [
    i for i, c in enumerate(CASES) if c.layer not in PRINT_OTHERWISE and c.kwargs.get("padding") != "same"
]


@pytest.mark.parametrize("index", PRINTED, ids=[CASES[i].id for i in PRINTED])
def test_layer_prints_like_torch(index: int) -> None:
    assert repr(layer_and_arrays(index)[0]) == str(GOLDEN[f"{index}/repr"])


@pytest.mark.parametrize(("index", "name", "kwargs", "kind"), [(i, *c) for i, c in enumerate(LOSSES)])
@pytest.mark.feature("F096")
def test_loss_computes_what_torch_does(index: int, name: str, kwargs: dict[str, Any], kind: str) -> None:
    loss = getattr(nn, name)(**kwargs)
    found = loss(GOLDEN["x"], GOLDEN[kind]).numpy()
    np.testing.assert_allclose(found, GOLDEN[f"loss{index}"], rtol=1e-5, atol=1e-6)


def test_spatial_criteria_average_over_every_position() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    labels = rng.integers(0, 3, (2, 4, 5))
    shifted = x - x.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    expected = -np.take_along_axis(logs, labels[:, None], 1).mean()
    np.testing.assert_allclose(nn.CrossEntropyLoss()(x, labels).item(), expected, rtol=1e-5)
    np.testing.assert_allclose(nn.NLLLoss()(logs, labels).item(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "groups=2 must divide in_channels=3"),
        (lambda: nn.Conv2d(0, 4, 3), "channels and groups must be at least 1, got 0 -> 4"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), "kernel_size must be one int or 2 ints"),
        (lambda: nn.ConvTranspose2d(4, 3, 3, groups=2), "groups=2 must divide in_channels=4"),
        (lambda: nn.Linear(0, 3), "sizes must be at least 1, got 0 -> 3"),
        (lambda: nn.MaxPool2d(0), "kernel_size"),
        (lambda: nn.Dropout(1.5), "p must be between 0 and 1, got 1.5"),
        (
            lambda: nn.MSELoss(reduction="average"),
            "reduction must be one of 'mean', 'sum', 'none', got 'average'",
        ),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_wrong_input_is_named() -> None:
    x = np.zeros((2, 5, 8, 8), np.float32)
    with pytest.raises(lm.ShapeError, match="5 channels"):
        nn.Conv2d(3, 4, 3)(x)
    with pytest.raises(lm.ShapeError, match="linear"):
        nn.Linear(7, 3)(x)


@pytest.mark.feature("F051")
def test_convolution_borders_and_true_convolution() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)
    layer = nn.Conv2d(2, 3, 3, padding="half", bias=False)
    assert layer(x).shape == (1, 3, 6, 6)
    assert nn.Conv2d(2, 3, 3, padding="full")(x).shape == (1, 3, 8, 8)
    assert nn.Conv2d(2, 3, 3, padding="valid")(x).shape == (1, 3, 4, 4)
    assert nn.Conv2d(2, 3, 3, padding=((1, 0), (2, 1)))(x).shape == (1, 3, 5, 7)
    flipped = nn.Conv2d(2, 3, 3, padding="half", bias=False, flip=True)
    flipped.load_state_dict({"weight": layer.weight.numpy()[:, :, ::-1, ::-1]})
    np.testing.assert_allclose(flipped(x).numpy(), layer(x).numpy(), rtol=1e-5, atol=1e-6)


def test_glu_halves_an_axis() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 6) - 6
    found = nn.GLU(dim=1)(lm.tensor(x)).numpy()
    np.testing.assert_allclose(found, x[:, :3] / (1 + np.exp(-x[:, 3:])), rtol=1e-6)
    with pytest.raises(lm.ShapeError, match="glu: axis 0 of .* has an odd size"):
        nn.GLU(0)(lm.ones((3, 2)))


def test_random_slopes() -> None:
    x = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32)
    layer = nn.RReLU(0.2, 0.4, generator=nn.Generator(3))
    slopes = layer(x).numpy()[x < 0] / x[x < 0]
    assert 0.2 <= slopes.min() < 0.21 < 0.39 < slopes.max() <= 0.4001
    assert abs(slopes.mean() - 0.3) < 0.01
    assert (layer(x).numpy()[x < 0] / x[x < 0] != slopes).any(), "the next call draws other slopes"
    np.testing.assert_allclose(layer.eval()(x).numpy(), np.where(x > 0, x, x * np.float32(0.3)), rtol=1e-6)
    np.testing.assert_array_equal(layer(x[x > 0]).numpy(), x[x > 0])
    assert repr(layer) == "RReLU(lower=0.2, upper=0.4)"
    with pytest.raises(ValueError, match="RReLU: lower must be at most upper, got 0.5 and 0.4"):
        nn.RReLU(0.5, 0.4)


def test_bilinear_and_channels_softmax() -> None:
    layer = nn.Bilinear(2, 3, 4)
    assert {k: v.shape for k, v in layer.state_dict().items()} == {"weight": (4, 2, 3), "bias": (4,)}
    assert float(np.abs(layer.weight.numpy()).max()) <= 2**-0.5
    assert layer(np.ones((5, 2), np.float32), np.ones((5, 3), np.float32)).shape == (5, 4)
    assert repr(layer) == "Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True)"
    with pytest.raises(lm.ShapeError, match="Bilinear: sizes must be at least 1, got 0, 3 -> 4"):
        nn.Bilinear(0, 3, 4)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(nn.Softmax2d()(x).numpy().sum(1), 1, rtol=1e-6)
    with pytest.raises(lm.ShapeError, match="Softmax2d: needs"):
        nn.Softmax2d()(x[0, 0])


def test_layers_of_a_rank_have_its_number_and_the_function_of_their_name() -> None:
    """Conv2d has rank 2 and is conv2d, LPPool1d has rank 1 and is lp_pool1d, …"""
    functions = 0
    for name in nn.__all__:
        layer, found = getattr(nn, name), re.fullmatch(r"(\w+?)([123])d", name)
        if found is None or not isinstance(layer, type):
            continue
        assert getattr(layer, "rank", int(found[2])) == int(found[2]), name
        if hasattr(layer, "function"):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=LP)(?=Pool)", "_", name).lower()
            assert layer.function.__name__ == words
            functions += 1
    assert functions > 25
