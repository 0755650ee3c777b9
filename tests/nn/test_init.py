"""Initial values: the distributions, and that a seed says everything."""

import math
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn import init
from lamina.nn.random import PART


@pytest.fixture
def weight() -> nn.Parameter:
    nn.manual_seed(0)
    return nn.Parameter(np.zeros((200, 50, 3, 3), np.float32))


def test_fans() -> None:
    assert init.fans((200, 50, 3, 3)) == (450, 1800)
    with pytest.raises(lm.ShapeError, match=r"rank 2 or more, got shape \(3,\)"):
        init.fans((3,))


@pytest.mark.parametrize(
    ("fill", "deviation"),
    [
        (init.kaiming_normal_, math.sqrt(2 / 450)),
        (lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 1800)),
        (init.xavier_normal_, math.sqrt(2 / 2250)),
        (lambda w: init.normal_(w, 0.0, 0.3), 0.3),
    ],
)
def test_normal_distributions(weight: nn.Parameter, fill: object, deviation: float) -> None:
    assert fill(weight) is weight  # type: ignore[operator]
    values = weight.numpy()
    assert abs(values.mean()) < 5 * deviation / math.sqrt(values.size)
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert np.abs(values).max() > 3.5 * deviation  # no uniform distribution


@pytest.mark.parametrize(
    ("fill", "bound"),
    [
        (lambda w: init.kaiming_uniform_(w, a=math.sqrt(5)), 1 / math.sqrt(450)),
        (init.xavier_uniform_, math.sqrt(6 / 2250)),
        (lambda w: init.uniform_(w, -0.2, 0.2), 0.2),
    ],
)
def test_uniform_distributions(weight: nn.Parameter, fill: object, bound: float) -> None:
    fill(weight)  # type: ignore[operator]
    values = weight.numpy()
    assert np.abs(values).max() <= bound * (1 + 1e-6)
    assert np.abs(values).max() > 0.999 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.01)


@pytest.mark.parametrize(
    "fill", [init.normal_, init.uniform_, init.trunc_normal_, lambda w: init.trunc_normal_(w, a=2.0, b=3.0)]
)
def test_large_tensors_do_not_depend_on_how_many_threads_draw(
    fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of the stream comes first; and a tensor's first part is what a smaller one holds."""
    drawn = []
    for cores in (1, 5):
        monkeypatch.setattr(init, "usable_cores", lambda cores=cores: cores)
        nn.manual_seed(3)
        drawn.append(fill(nn.Parameter(lm.empty((3, PART // 2 + 7)))).numpy().reshape(-1))
    np.testing.assert_array_equal(*drawn)
    nn.manual_seed(3)
    np.testing.assert_array_equal(drawn[0][:PART], fill(nn.Parameter(lm.empty(PART))).numpy())
    parts = [drawn[0][:1000], drawn[0][PART : PART + 1000]]
    assert len(np.unique(parts)) > 1900  # another part, other numbers


def test_what_a_thread_raises_is_raised() -> None:
    with pytest.raises(RuntimeWarning, match="overflow"):
        init.normal_(nn.Parameter(lm.empty(PART + 1)), 0.0, 3e38)


def test_constants(weight: nn.Parameter) -> None:
    assert init.ones_(weight).numpy().min() == 1.0
    assert np.ptp(init.constant_(weight, 2.5).numpy()) == 0.0
    assert not init.zeros_(weight).numpy().any()


def test_unknown_names_are_refused(weight: nn.Parameter) -> None:
    with pytest.raises(ValueError, match="mode must be 'fan_in' or 'fan_out', got 'fan'"):
        init.kaiming_normal_(weight, mode="fan")
    with pytest.raises(ValueError, match="unknown nonlinearity 'step'; known: linear"):
        init.calculate_gain("step")


def test_layers_start_like_torchs() -> None:
    nn.manual_seed(0)
    layer = nn.Linear(400, 300)
    assert np.abs(layer.weight.numpy()).max() == pytest.approx(1 / 20, rel=1e-3)
    assert np.abs(layer.bias.numpy()).max() == pytest.approx(1 / 20, rel=0.05)


@pytest.mark.parametrize(
    ("scheme", "deviation"),
    [
        (init.lecun_, 1 / math.sqrt(72)),
        (init.he_, math.sqrt(2 / 72)),
        (init.he_out_, math.sqrt(2 / 576)),
        (init.small_, 0.01),
        (init.truncated(0.03), 0.03),
    ],
)
def test_schemes(scheme: Any, deviation: float) -> None:
    """Normal weights, and biases of zeros where there are any."""
    with init.scheme(scheme):
        layer, without = nn.Conv2d(8, 64, 3), nn.Conv2d(8, 64, 3, bias=False)
    for weight in (layer.weight.numpy(), without.weight.numpy()):
        assert weight.std() == pytest.approx(deviation, rel=0.05)
        assert abs(weight.mean()) < 5 * deviation / math.sqrt(weight.size)
        assert np.abs(weight).max() > 3 * deviation
    assert not layer.bias.numpy().any()
    assert without.bias is None


def test_a_scheme_holds_within_its_block() -> None:
    with init.scheme(init.he_):
        layer = nn.Conv2d(8, 16, 3)
    assert layer.weight.numpy().std() == pytest.approx(math.sqrt(2 / 72), rel=0.1)
    assert not layer.bias.numpy().any()
    assert nn.Conv2d(8, 16, 3).bias.numpy().any()


def test_a_seed_says_everything() -> None:
    def weights(seed: int) -> list[np.ndarray]:  # type: ignore[type-arg]
        nn.manual_seed(seed)
        return [p.numpy().copy() for p in nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).parameters()]

    first, again, other = weights(5), weights(5), weights(6)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert not np.array_equal(first[0], first[2])  # every parameter has a stream of its own


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_are_checked(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be at least 0"):
        nn.manual_seed(seed)


def test_gains() -> None:
    gains = {
        "linear": 1.0,
        "conv_transpose3d": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": 2**0.5,
        "selu": 0.75,
    }
    assert {name: init.calculate_gain(name) for name in gains} == gains
    assert init.calculate_gain("leaky_relu", 1.0) == 1.0
    assert init.calculate_gain("leaky_relu") == pytest.approx((2 / 1.0001) ** 0.5)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["linear", "conv2d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"])
@pytest.mark.parametrize("param", [None, 0.5])
def test_gains_are_torchs(name: str, param: float | None) -> None:
    torch = pytest.importorskip("torch")
    assert init.calculate_gain(name, param) == pytest.approx(torch.nn.init.calculate_gain(name, param))


@pytest.mark.parametrize(
    ("mean", "std", "a", "b"),
    [
        (0.0, 1.0, -2.0, 2.0),
        (0.0, 0.02, -2.0, 2.0),
        (1.0, 2.0, 0.5, 0.9),
        (0.0, 1.0, 3.0, 5.0),
        (0.0, 1.0, -9.0, -3.0),
        (0.0, 1.0, -math.inf, -3.0),
        (1.0, 0.5, 2.0, 1e9),
        (0.0, 1.0, -math.inf, math.inf),
    ],
)
def test_truncated_normal(weight: nn.Parameter, mean: float, std: float, a: float, b: float) -> None:
    """The mean and deviation of the distribution, from its density on a fine grid."""
    values = init.trunc_normal_(weight, mean, std, a, b).numpy().astype(np.float64)
    assert values.min() >= np.float32(a)
    assert values.max() <= np.float32(b)
    x = np.linspace(max(a, mean - 9 * std), min(b, mean + 9 * std), 200_001)
    density = np.exp(-((x - mean) ** 2) / (2 * std**2))
    density /= density.sum()
    middle = (x * density).sum()
    spread = math.sqrt(((x - middle) ** 2 * density).sum())
    assert values.std() == pytest.approx(spread, rel=0.02)
    assert abs(values.mean() - middle) < 5 * spread / math.sqrt(values.size)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (6, 2, 3, 3), (40, 2, 3), (0, 3)], ids=str)
def test_orthogonal(shape: tuple[int, ...]) -> None:
    nn.manual_seed(0)
    w = init.orthogonal_(nn.Parameter(np.zeros(shape, np.float32)), gain=2.0).numpy().astype(np.float64)
    w = w.reshape(shape[0], -1) if 0 not in shape else np.zeros((0, 3))
    fewer = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
    np.testing.assert_allclose(fewer, 4 * np.eye(len(fewer)), atol=1e-5)


def test_orthogonal_is_even_among_signs() -> None:
    """QR alone would give R a positive diagonal, or always a negative one."""
    nn.manual_seed(0)
    one = nn.Parameter(np.zeros((1, 1), np.float32))
    signs = {float(init.orthogonal_(one).numpy()[0, 0]) for _ in range(20)}
    assert signs == {-1.0, 1.0}


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(4, 4, 3), (6, 2, 3, 5), (2, 6, 4, 4), (6, 3, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_dirac_is_torchs(shape: tuple[int, ...], groups: int) -> None:
    torch = pytest.importorskip("torch")
    found = init.dirac_(nn.Parameter(np.ones(shape, np.float32)), groups).numpy()
    np.testing.assert_array_equal(found, torch.nn.init.dirac_(torch.ones(shape), groups).numpy())


def test_dirac_hands_on_its_input() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
    init.dirac_(layer.weight, 2)
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)
    np.testing.assert_array_equal(layer(lm.tensor(x)).numpy(), x)


def test_eye_and_sparse() -> None:
    nn.manual_seed(0)
    np.testing.assert_array_equal(init.eye_(nn.Parameter(np.ones((3, 5), np.float32))).numpy(), np.eye(3, 5))
    w = init.sparse_(nn.Parameter(np.ones((500, 30), np.float32)), 0.3, std=0.5).numpy()
    assert ((w == 0).sum(axis=0) == 150).all()
    assert w[w != 0].std() == pytest.approx(0.5, rel=0.05)
    assert not ((w == 0) == (w == 0)[:, :1]).all()  # other rows in other columns


@pytest.mark.parametrize(
    ("fill", "error", "message"),
    [
        (lambda w: init.eye_(w), lm.ShapeError, r"init.eye_: needs rank 2, got shape \(200, 50, 3, 3\)"),
        (lambda w: init.sparse_(w, 0.1), lm.ShapeError, "init.sparse_: needs rank 2"),
        (lambda w: init.sparse_(w[0, :, 0], 1.5), ValueError, r"sparsity must be in \[0, 1\], got 1.5"),
        (lambda w: init.dirac_(w, 3), lm.ShapeError, r"shape \(200, 50, 3, 3\) cannot be shared by 3 groups"),
        (lambda w: init.dirac_(w[0, 0]), lm.ShapeError, r"needs rank 3 or 4 or 5, got shape \(3, 3\)"),
        (lambda w: init.orthogonal_(w[0, 0, 0]), lm.ShapeError, r"a rank of 2 or more, got shape \(3,\)"),
        (
            lambda w: init.trunc_normal_(w, a=2.0, b=1.0),
            ValueError,
            "needs a < b, std > 0, and finite mean and std, got mean=0.0, std=1.0, a=2.0, b=1.0",
        ),
        (lambda w: init.trunc_normal_(w, math.nan), ValueError, "got mean=nan, std=1.0"),
        (lambda w: init.trunc_normal_(w, 0.0, math.inf), ValueError, "got mean=0.0, std=inf"),
        (lambda w: init.trunc_normal_(w, math.inf), ValueError, "got mean=inf"),
        (lambda w: init.trunc_normal_(w, std=0.0), ValueError, "std=0.0"),
        (lambda w: init.uniform_(w, low=0.1), TypeError, "it is 'a' now"),
    ],
)
def test_what_does_not_fit_is_refused(
    weight: nn.Parameter, fill: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fill(weight)


@pytest.mark.parametrize(
    "fill",
    [
        init.trunc_normal_,
        init.orthogonal_,
        lambda w, generator=None: init.sparse_(w, 0.5, generator=generator),
    ],
)
def test_a_seed_or_a_generator_says_everything(fill: Any) -> None:
    def drawn(seed: int) -> Any:
        nn.manual_seed(seed)
        return fill(nn.Parameter(np.zeros((20, 20), np.float32))).numpy().copy()

    np.testing.assert_array_equal(drawn(3), drawn(3))
    assert (drawn(3) != drawn(4)).any()
    own = [fill(lm.zeros((20, 20)), generator=np.random.default_rng(5)).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*own)


@pytest.mark.parametrize("shape", [(3,), (7, 2341), (1 << 14, 3)])
def test_what_is_drawn_in_blocks_is_what_is_drawn_at_once(shape: tuple[int, ...]) -> None:
    for fill, draw in (
        (
            lambda x, rng: init.normal_(x, 0.5, 2.0, rng),
            lambda rng: rng.standard_normal(shape, np.float32) * 2 + 0.5,
        ),
        (lambda x, rng: init.uniform_(x, -1.0, 2.0, rng), lambda rng: rng.random(shape, np.float32) * 3 - 1),
    ):
        wanted = draw(np.random.Generator(np.random.Philox(3))).astype(np.float32)
        for x in (
            lm.zeros(shape),
            lm.zeros(shape, dtype="float64"),
            lm.zeros(shape[::-1]).permute(*range(len(shape))[::-1]),
        ):
            found = fill(x, np.random.Generator(np.random.Philox(3)))
            assert found is x
            np.testing.assert_array_equal(x.numpy(), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("count", [1, init._BLOCK, init._BLOCK + 1, 3 * init._BLOCK - 5])
def test_numbers_are_drawn_in_order_however_many(count: int, dtype: str) -> None:
    """They are drawn and scaled block by block: as one draw of all gives them."""
    for fill, draw, shift, scale in (
        (init.normal_, "standard_normal", -1.0, 2.0),
        (lambda x, a, b, generator: init.uniform_(x, a, a + b, generator), "random", -1.0, 4.0),
    ):
        found = fill(lm.zeros((1, count), dtype=dtype), shift, scale, generator=np.random.default_rng(7))
        drawn = getattr(np.random.default_rng(7), draw)(count, np.float32)
        np.testing.assert_array_equal(found.numpy()[0], (drawn * scale + shift).astype(dtype))
