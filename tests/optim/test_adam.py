"""Adam's kin in float64 against PyTorch: every option, odd shapes, rates that change; the closed form of NAdam."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import optim
from tests.helpers.optimizers import RATES, SHAPES, assert_as_torch, gradients, mine, rate_at, start

CASES: list[tuple[Any, dict[str, Any]]] = [
    (optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "betas": (0.5, 0.6)}),
    (optim.Adam, {"decoupled_weight_decay": True, "weight_decay": 0.1, "maximize": True}),
    (optim.AdamW, {"amsgrad": True, "maximize": True}),
    (optim.NAdam, {}),
    (optim.NAdam, {"betas": (0.5, 0.9), "eps": 1e-3, "momentum_decay": 0.1, "weight_decay": 0.1}),
    (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    (optim.RAdam, {}),
    (optim.RAdam, {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    (optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    (optim.Adamax, {}),
    (optim.Adamax, {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
]


@pytest.mark.torch
@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("make", "options"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_ten_steps_are_torchs(make: Any, options: dict[str, Any], shape: Any) -> None:
    pytest.importorskip("torch")
    assert_as_torch(make, options, shape)


def by_formula(name: str, options: dict[str, Any], shape: Any) -> np.ndarray[Any, Any]:
    """Ten steps as the papers have them, number by number."""
    b1, b2 = options.get("betas", (0.9, 0.999))
    eps, decay, apart = (
        options.get(k, v)
        for k, v in (("eps", 1e-8), ("weight_decay", 0.0), ("decoupled_weight_decay", False))
    )
    p, m, v, product = start(shape), np.zeros(shape), np.zeros(shape), 1.0
    for t, (g, lr) in enumerate(zip(gradients(shape), RATES, strict=True), 1):
        g = -g if options.get("maximize") else g
        p, g = (p * (1 - lr * decay), g) if apart else (p, g + decay * p)
        m = b1 * m + (1 - b1) * g
        if name == "Adamax":
            v = np.maximum(b2 * v, np.abs(g) + eps)
            p = p - lr / (1 - b1**t) * m / v
            continue
        v = b2 * v + (1 - b2) * g * g
        root = np.sqrt(v / (1 - b2**t))
        if name == "NAdam":
            now, then = (
                b1 * (1 - 0.5 * 0.96 ** (i * options.get("momentum_decay", 4e-3))) for i in (t, t + 1)
            )
            product *= now
            p = p - lr * (then * m / (1 - product * then) + (1 - now) * g / (1 - product)) / (root + eps)
            continue
        longest = 2 / (1 - b2) - 1
        length = longest - 2 * t * b2**t / (1 - b2**t)
        step = m / (1 - b1**t)
        if length > 5:
            r = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            step = step * np.sqrt(r) * np.sqrt(1 - b2**t) / (np.sqrt(v) + eps)
        p = p - lr * step
    return p


@pytest.mark.parametrize(
    ("make", "options"),
    [case for case in CASES if case[0] in (optim.NAdam, optim.RAdam, optim.Adamax)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_ten_steps_are_the_formulas(make: Any, options: dict[str, Any]) -> None:
    found, _ = mine(make(rate_at, **options), (5, 3))
    np.testing.assert_allclose(found, by_formula(make.__name__, options, (5, 3)), rtol=1e-12)


def test_nadam_keeps_the_product_of_its_momenta() -> None:
    _, state = mine(optim.NAdam(rate_at, betas=(0.8, 0.9), momentum_decay=0.5), (3,))
    product = np.prod([0.8 * (1 - 0.5 * 0.96 ** (t * 0.5)) for t in range(1, 11)])
    np.testing.assert_allclose(state["mu_product"], product, rtol=1e-14)
    assert state["mu_product"].dtype == np.float64
    assert state["step"] == 10


def test_radam_waits_until_the_variance_is_known() -> None:
    """With the default betas the first five steps are momentum's, corrected for its bias alone."""
    p, m = start((4,)), np.zeros(4)
    first = p.copy()
    for t, g in enumerate(gradients((4,))[:5], 1):
        m = 0.9 * m + 0.1 * g
        p = p - RATES[t - 1] * m / (1 - 0.9**t)
    optimizer, q = optim.RAdam(rate_at), lm.tensor(first, "float64")
    state: Any = optimizer.init(q)
    for i, g in enumerate(gradients((4,))[:6]):
        if i == 5:
            np.testing.assert_allclose(q.numpy(), p, rtol=1e-13)
        q, state = optimizer.update(q, lm.tensor(g, "float64"), state, np.float32(RATES[i]))
    m = 0.9 * m + 0.1 * gradients((4,))[5]
    assert np.abs(q.numpy() - (p - RATES[5] * m / (1 - 0.9**6))).max() > 1e-3


def test_state_by_name() -> None:
    assert optim.Adam().parts == ("exp_avg", "exp_avg_sq", "step")
    assert optim.AdamW(amsgrad=True).parts == ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
    assert optim.NAdam().parts == ("exp_avg", "exp_avg_sq", "mu_product", "step")
    assert optim.Adamax().parts == ("exp_avg", "exp_inf", "step")


def test_repr() -> None:
    assert repr(optim.NAdam()) == "NAdam(lr=0.002, betas=(0.9, 0.999), weight_decay=0.0)"
    assert repr(optim.RAdam()) == "RAdam(lr=0.001, betas=(0.9, 0.999), weight_decay=0.0)"
    assert repr(optim.Adamax()) == "Adamax(lr=0.002, betas=(0.9, 0.999), weight_decay=0.0)"
