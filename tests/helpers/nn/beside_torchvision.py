"""A network of `nn.models` compared with torchvision's of the same name, on the same weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from lamina import nn, ops, value_and_grad
from lamina.nn.dropout import _Dropout
from tests.helpers.vision import models

#: All of torchvision's image classification networks.
CLASSIFIERS: list[str] = models.list_models(module=models)


class _Shapes(TorchFunctionMode):
    """Parameters get no memory: torch.empty gives only shape and dtype."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        meta = {"device": "meta"} if function is torch.empty else {}
        return function(*args, **{**(kwargs or {}), **meta})


def theirs(name: str, **options: Any) -> Any:
    """torchvision's, with random weights."""
    # The names that warn without it accept it.
    if name in ("googlenet", "inception_v3"):
        options = {"init_weights": True, **options}
    return getattr(models, name)(weights=None, **options)


def their_entries(name: str, **options: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of all entries of the state of torchvision's network."""
    with _Shapes():
        state = theirs(name, **options).state_dict()
    return {key: (tuple(v.shape), str(v.dtype).removeprefix("torch.")) for key, v in state.items()}


def our_entries(name: str, **options: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of all entries of the state of `nn.models`' network."""
    with nn.init.skipped():
        state = nn.models.get_model(name, **options).state_dict()
    return {key: (v.shape, str(v.dtype)) for key, v in state.items()}


def their_settings(name: str, **options: Any) -> dict[str, Any]:
    """`settings` of torchvision's network."""
    with _Shapes():
        return settings(theirs(name, **options))


def our_settings(name: str, **options: Any) -> dict[str, Any]:
    """`settings` of `nn.models`' network."""
    with nn.init.skipped():
        return settings(nn.models.get_model(name, **options))


def settings(net: Any) -> dict[str, Any]:
    """Layer settings besides the weights, by name; nonzero dropout rates, in order."""
    found: dict[str, Any] = {}
    for name, module in net.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        for kind in kinds & set(_SETTINGS):
            values = (getattr(module, field) for field in _SETTINGS[kind])
            found[name] = [tuple(v) if isinstance(v, list) else v for v in values]
    dropped = [m.p for m in net.modules() if type(m).__name__ in ("Dropout", "StochasticDepth")]
    return {**found, "dropped": [p for p in dropped if p]}


_SETTINGS = {
    "Conv2d": ("stride", "padding", "dilation", "groups"),
    "BatchNorm2d": ("eps", "momentum"),
    "LayerNorm": ("eps",),
}


def pair(name: str, **options: Any) -> tuple[nn.Module, Any]:
    """(ours, theirs) by the builders of a name."""
    torch.manual_seed(0)
    with nn.init.skipped():
        return nn.models.get_model(name, **options), theirs(name, **options)


def prepare(our: nn.Module, their: Any) -> None:
    """Give both the same varied weights, and remove all randomness."""
    rng = np.random.default_rng(0)
    state = their.state_dict()
    for value in state.values():
        value.copy_(torch.from_numpy(_lively(value.numpy(), rng)))
    our.load_state_dict(state)
    for module in (*our.modules(), *their.modules()):
        if isinstance(module, _Dropout | torch.nn.Dropout | models.convnext.StochasticDepth):
            module.p = 0.0


def _lively(value: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Replace constant initial values (norms, biases, scales, zeros) by numbers around them."""
    if not np.issubdtype(value.dtype, np.floating) or np.ptp(value) > 0:
        return value.copy()
    around = (
        rng.uniform(0.5, 1.5, value.shape) if value.flat[0] == 1 else 0.1 * rng.standard_normal(value.shape)
    )
    return np.asarray(around, value.dtype)


def apart(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))


def outputs_apart(our: nn.Module, their: Any, shape: tuple[int, ...]) -> float:
    """The difference of the outputs in inference from torchvision's, for inputs of a shape."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    with torch.no_grad():
        expected = their.eval()(torch.from_numpy(x)).numpy()
    return apart(our.eval()(x).numpy(), expected)


def gradients_apart(our: nn.Module, their: Any, shape: tuple[int, ...]) -> dict[str, float]:
    """The difference of all parameters' gradients in training, and of the statistics after it, from torchvision's.

    In float64, where norms over few numbers do not amplify errors.
    """
    our, their = our.double().train(), their.double().train()
    x = np.random.default_rng(1).standard_normal(shape)
    made = their(torch.from_numpy(x))
    shares = np.random.default_rng(2).standard_normal((3, *_first(made).shape))
    sum((v * torch.from_numpy(s)).sum() for v, s in zip(_all(made), shares, strict=False)).backward()

    def loss(net: nn.Module) -> Any:
        parts = [ops.sum(v * s) for v, s in zip(_all(net(x)), shares, strict=False)]
        return sum(parts[1:], parts[0])

    _, gradients = value_and_grad(loss)(our)
    wanted = {key: p.grad for key, p in their.named_parameters()}
    assert set(gradients) == set(wanted)
    largest = max(float(v.abs().max()) for v in wanted.values())
    # Values that are zero in exact arithmetic, such as a bias before a norm, are compared with the largest of all.
    found = {
        key: float(np.abs(gradients[key].numpy() - v.numpy()).max())
        / max(float(v.abs().max()), 1e-6 * largest)
        for key, v in wanted.items()
    }
    own = our.state_dict()
    return found | {key: apart(own[key].numpy(), b.numpy()) for key, b in their.named_buffers()}


def agree(our: nn.Module, their: Any, shape: tuple[int, ...], *, gradients: bool = True) -> None:
    """Outputs within 10⁻⁴, gradients and statistics within 10⁻⁶ (in float64) of torchvision's."""
    prepare(our, their)
    assert outputs_apart(our, their, shape) < 1e-4
    if gradients:
        found = gradients_apart(our, their, shape)
        assert max(found.values()) < 1e-6, max(found, key=lambda key: found[key])


def agrees(name: str, size: int, **options: Any) -> None:
    """`agree` of the networks of a name, with five classes, on two images."""
    agree(*pair(name, **{"num_classes": 5, **options}), (2, 3, size, size))


def starts_as(name: str, **options: Any) -> None:
    """`start_alike` of the networks of a name, with 50 classes."""
    torch.manual_seed(0)
    nn.manual_seed(0)
    options = {"num_classes": 50, **options}
    start_alike(nn.models.get_model(name, **options), theirs(name, **options))


def start_alike(our_net: nn.Module, their_net: Any) -> None:
    """Initial values have the same distributions: constants, else mean, deviation and the bounds of uniform ones.

    Mean and deviation are compared within six standard errors of normal numbers.
    """
    their = {key: value.numpy() for key, value in their_net.state_dict().items()}
    our = {key: value.numpy() for key, value in our_net.state_dict().items()}
    assert set(our) == set(their)
    for key, expected in their.items():
        found = our[key]
        if np.ptp(expected) == 0 or not np.issubdtype(expected.dtype, np.floating):
            np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=key)
            continue
        count, deviation = expected.size, float(expected.std())
        assert abs(float(found.std()) / deviation - 1) < 6 / np.sqrt(count), key
        assert abs(float(found.mean() - expected.mean())) < 6 * deviation * np.sqrt(2 / count), key
        kurtosis = ((expected - expected.mean()) ** 4).mean() / deviation**4
        if kurtosis < 2.1 and count > 200:  # uniform: the bounds are well determined
            ends = (found.min() - expected.min(), found.max() - expected.max())
            assert np.abs(ends).max() < 12 * np.ptp(expected) / count, key


def _all(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple) else [made]


def _first(made: Any) -> Any:
    return _all(made)[0]
