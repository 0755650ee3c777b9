"""Weight norm, spectral norm, orthogonal weights against PyTorch: values, gradients, state; what training does."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.nn.utils import parametrizations
from tests.helpers import slow_from

LAYERS = [
    ("Linear", (5, 4), (3, 5)),
    ("Conv2d", (4, 6, 3), (2, 4, 5, 5)),
    ("ConvTranspose2d", (4, 6, 3), (2, 4, 5, 5)),
]


def pair(name: str, arguments: Any, parametrize: str, **options: Any) -> tuple[Any, Any, Any]:
    """Both libraries' layers with the same state."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(*arguments)
    mine = getattr(nn, name)(*arguments)
    getattr(torch.nn.utils.parametrizations, parametrize)(theirs, **options)
    getattr(parametrizations, parametrize)(mine, **options)
    state = {k: v.detach().clone().numpy() for k, v in theirs.state_dict().items()}
    mine.load_state_dict(state)
    return torch, theirs, mine


@pytest.mark.torch
@pytest.mark.parametrize(("name", "arguments", "shape"), LAYERS, ids=lambda x: str(x))
@pytest.mark.parametrize(
    ("parametrize", "options"),
    [
        ("weight_norm", {}),
        ("weight_norm", {"dim": None}),
        ("weight_norm", {"dim": 1}),
        ("spectral_norm", {}),
        ("spectral_norm", {"n_power_iterations": 3, "dim": 0}),
    ],
    ids=str,
)
def test_values_and_gradients_are_torchs(
    name: str, arguments: Any, shape: Any, parametrize: str, options: Any
) -> None:
    torch, theirs, mine = pair(name, arguments, parametrize, **options)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for mode in (True, False):
        theirs.train(mode)
        mine.train(mode)
        loss = (theirs(torch.tensor(x)) ** 2).sum()
        wanted = dict(
            zip(
                (k for k, _ in theirs.named_parameters()),
                torch.autograd.grad(loss, list(theirs.parameters())),
                strict=True,
            )
        )
        value, found = lm.value_and_grad(lambda net: ops.sum(ops.square(net(lm.tensor(x)))))(mine)
        np.testing.assert_allclose(float(value), loss.item(), rtol=1e-4)
        for key, g in wanted.items():
            np.testing.assert_allclose(found[key].numpy(), g.numpy(), rtol=2e-3, atol=2e-4, err_msg=key)
        for key, held in theirs.state_dict().items():
            np.testing.assert_allclose(
                mine.state_dict()[key].numpy(), held.numpy(), rtol=1e-4, atol=1e-5, err_msg=key
            )


def test_weight_norm_begins_with_the_weight_as_it_is() -> None:
    layer = nn.Conv2d(3, 4, 3)
    before = layer.weight.numpy().copy()
    parametrizations.weight_norm(layer)
    np.testing.assert_allclose(layer.weight.numpy(), before, rtol=1e-6)
    assert layer.get_parameter("parametrizations.weight.original0").shape == (4, 1, 1, 1)


def test_spectral_norm_is_one_after_some_reads() -> None:
    nn.manual_seed(0)
    layer = nn.Linear(6, 4)
    nn.init.orthogonal_(layer.weight, 3.0)
    layer.weight.copy_(layer.weight.numpy() * np.linspace(0.2, 1.0, 4, dtype=np.float32)[:, None])
    parametrizations.spectral_norm(layer)
    assert np.linalg.norm(layer.weight.numpy(), 2) == pytest.approx(1.0, rel=1e-2)
    state = layer.eval().state_dict()["parametrizations.weight.0._u"].numpy().copy()
    layer(lm.ones((1, 6)))
    np.testing.assert_array_equal(layer.state_dict()["parametrizations.weight.0._u"].numpy(), state)
    step = lm.train_step(layer.train(), ops.mse_loss, lm.optim.SGD(0.1), device="cpu")
    x, y = np.random.default_rng(0).standard_normal((8, 6)), np.random.default_rng(1).standard_normal((8, 4))
    for _ in range(30):
        step(x.astype(np.float32), y.astype(np.float32))
    assert (layer.state_dict()["parametrizations.weight.0._u"].numpy() != state).any()
    assert np.linalg.norm(layer.eval().weight.numpy(), 2) == pytest.approx(1.0, rel=2e-2)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("dim", slow_from(1, [-1, 0, 1]))
def test_spectral_norm_divides_by_the_largest_singular_value(shape: tuple[int, ...], dim: int) -> None:
    """Of the matrix whose rows are the indices of the axis, from the first reading in inference on."""
    weight = np.random.default_rng(0).standard_normal(shape)
    module = nn.Module()
    module.weight = nn.Parameter(lm.tensor(weight, "float64"))
    parametrizations.spectral_norm(module, n_power_iterations=300, dim=dim)
    module.weight  # noqa: B018
    rows = np.moveaxis(weight, dim, 0).reshape(shape[dim], -1)
    largest = np.linalg.svd(rows, compute_uv=False)[0]
    np.testing.assert_allclose(module.eval().weight.numpy(), weight / largest, rtol=1e-9)
    sizes = [module.state_dict()[f"parametrizations.weight.0.{name}"].shape for name in ("_u", "_v")]
    assert sizes == [(shape[dim],), (weight.size // shape[dim],)]


@pytest.mark.torch
@pytest.mark.parametrize("use_trivialization", [True, False])
@pytest.mark.parametrize("orthogonal_map", [None, "matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("sizes", [(4, 4), (6, 3), (3, 6)], ids=str)
def test_orthogonal_weights_are_torchs(
    sizes: Any, orthogonal_map: str | None, use_trivialization: bool
) -> None:
    options = {"orthogonal_map": orthogonal_map, "use_trivialization": use_trivialization}
    torch, theirs, mine = pair("Linear", sizes, "orthogonal", **options)
    rng = np.random.default_rng(0)
    moved = {
        k: v.numpy()
        + 0.1 * rng.standard_normal(v.shape).astype(np.float32) * np.tril(np.ones(v.shape, np.float32), -1)
        if "original" in k
        else v.numpy()
        for k, v in theirs.state_dict().items()
    }
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in moved.items()})
    mine.load_state_dict(moved)
    weight = mine.weight.numpy()
    np.testing.assert_allclose(weight, theirs.weight.detach().numpy(), atol=1e-5)
    columns = weight if weight.shape[0] >= weight.shape[1] else weight.T
    np.testing.assert_allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-5)
    x = rng.standard_normal((5, sizes[0])).astype(np.float32)
    wanted = torch.autograd.grad((theirs(torch.tensor(x)) ** 3).sum(), list(theirs.parameters()))
    found = lm.grad(lambda net: ops.sum(net(lm.tensor(x)) ** 3))(mine)
    for (key, _), g in zip(theirs.named_parameters(), wanted, strict=True):
        np.testing.assert_allclose(found[key].numpy(), g.numpy(), rtol=1e-3, atol=1e-3, err_msg=key)


@pytest.mark.parametrize("options", [{}, {"orthogonal_map": "householder", "use_trivialization": False}])
@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (2, 5), (2, 4, 3), (1, 1)], ids=str)
def test_orthogonal_begins_with_an_orthogonal_weight_and_stays_orthogonal(shape: Any, options: Any) -> None:
    rng = np.random.default_rng(0)
    high = np.swapaxes(np.zeros(shape), -2, -1).shape if shape[-2] < shape[-1] else shape
    first, second = (np.linalg.qr(rng.standard_normal(high))[0].reshape(high) for _ in range(2))
    if high != shape:
        first, second = (np.swapaxes(x, -2, -1) for x in (first, second))
    module = nn.Module()
    module.weight = nn.Parameter(lm.tensor(first, "float64"))
    parametrizations.orthogonal(module, **options)
    np.testing.assert_allclose(module.weight.numpy(), first, atol=1e-12)
    module.weight = lm.tensor(second, "float64")
    np.testing.assert_allclose(module.weight.numpy(), second, atol=1e-12)
    grads = lm.grad(lambda net: ops.sum(net.weight * lm.tensor(first, "float64")))(module)
    lm.optim.SGD(0.5).over(module).step(grads)
    w = module.weight.numpy() if high == shape else np.swapaxes(module.weight.numpy(), -2, -1)
    np.testing.assert_allclose(
        np.swapaxes(w, -2, -1) @ w,
        np.broadcast_to(np.eye(w.shape[-1]), (*w.shape[:-2], w.shape[-1], w.shape[-1])),
        atol=1e-12,
    )
    assert shape == (1, 1) or not np.allclose(module.weight.numpy(), second, atol=1e-3)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="orthogonal: Linear has no parameter 'w'"):
        parametrizations.orthogonal(nn.Linear(2, 2), "w")
    with pytest.raises(lm.ShapeError, match="orthogonal: bias must be a matrix or a batch of them, got f32"):
        parametrizations.orthogonal(nn.Linear(2, 2), "bias")
    with pytest.raises(ValueError, match="orthogonal_map must be .*'cayley'.* got 'polar'"):
        parametrizations.orthogonal(nn.Linear(2, 2), orthogonal_map="polar")  # type: ignore[arg-type]
    layer = nn.Linear(2, 2)
    parametrizations.orthogonal(layer, orthogonal_map="cayley", use_trivialization=False)
    with pytest.raises(TypeError, match="has no right_inverse"):
        setattr(layer, "weight", lm.ones(2, 2))  # noqa: B010
    for number in (0, 10**30):
        with pytest.raises(
            ValueError, match=f"spectral_norm: n_power_iterations must be from 1 to 1000, got {number}"
        ):
            parametrizations.spectral_norm(nn.Linear(2, 2), n_power_iterations=number)
    with pytest.raises(ValueError, match="spectral_norm: Linear has no parameter 'w'"):
        parametrizations.spectral_norm(nn.Linear(2, 2), "w")
    with pytest.raises(lm.ShapeError, match="spectral_norm: axis 2 is outside a tensor of rank 2"):
        parametrizations.spectral_norm(nn.Linear(2, 2), dim=2)


def test_files_with_torchs_older_names_load() -> None:
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 3)))
    length, direction = np.full((3, 1), 2, np.float32), np.ones((3, 2), np.float32)
    net.load_state_dict({"0.weight_g": length, "0.weight_v": direction, "0.bias": np.zeros(3, np.float32)})
    np.testing.assert_allclose(net[0].weight.numpy(), np.full((3, 2), np.sqrt(2)), rtol=1e-6)
    with pytest.raises(AttributeError, match="it is lamina.nn.utils.parametrizations.weight_norm"):
        nn.utils.weight_norm  # type: ignore[attr-defined]  # noqa: B018
