"""Optimizers: twenty steps against the formulas of the papers, and against PyTorch where it is installed."""

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.backends.cuda import backend as cuda_backend
from lamina.graph.passes.foreach import group_small
from lamina.ops.primitives import Foreach
from lamina.train.checkpoint import load_checkpoint, save_checkpoint
from tests.helpers.planned import H200

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
START = RNG.standard_normal((5, 3))
GRADS = RNG.standard_normal((20, 5, 3))
RATES = [0.05 / (1 + i) for i in range(20)]


def sgd(
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
) -> Array:
    p, v = START.copy(), np.zeros_like(START)
    for t, (g, rate) in enumerate(zip(GRADS, RATES, strict=True)):
        d = (-g if maximize else g) + weight_decay * p
        v = momentum * v + (1 - dampening if t else 1) * d
        p = p - rate * (d + momentum * v if nesterov else v if momentum else d)
    return p


def adam(
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    amsgrad: bool = False,
    maximize: bool = False,
) -> Array:
    highest = 0 * START
    p, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for t, (g, rate) in enumerate(zip(GRADS, RATES, strict=True), 1):
        if decoupled:
            p = p * (1 - rate * weight_decay)
        g = -g if maximize else g
        d = g if decoupled else g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * d
        v = betas[1] * v + (1 - betas[1]) * d * d
        highest = np.maximum(highest, v)
        w = (highest if amsgrad else v) / (1 - betas[1] ** t)
        p = p - rate * (m / (1 - betas[0] ** t)) / (np.sqrt(w) + eps)
    return p


def adagrad(
    weight_decay: float = 0.0, initial: float = 0.0, eps: float = 1e-10, lr_decay: float = 0.0
) -> Array:
    p, s = START.copy(), np.full_like(START, initial)
    for t, (g, rate) in enumerate(zip(GRADS, RATES, strict=True)):
        d = g + weight_decay * p
        s = s + d * d
        p = p - rate / (1 + t * lr_decay) * d / (np.sqrt(s) + eps)
    return p


def adadelta(rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0) -> Array:
    p, v, u = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for g, rate in zip(GRADS, RATES, strict=True):
        d = g + weight_decay * p
        v = rho * v + (1 - rho) * d * d
        step = d * np.sqrt(u + eps) / np.sqrt(v + eps)
        u = rho * u + (1 - rho) * step * step
        p = p - rate * step
    return p


def rmsprop(
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
) -> Array:
    p, v, a, b = (START.copy(), *(np.zeros_like(START) for _ in range(3)))
    for g, rate in zip(GRADS, RATES, strict=True):
        d = g + weight_decay * p
        v = alpha * v + (1 - alpha) * d * d
        a = alpha * a + (1 - alpha) * d
        b = momentum * b + d / (np.sqrt(v - a * a if centered else v) + eps)
        p = p - rate * b
    return p


#: Options of RMSprop, one by one and together.
RMSPROP: list[dict[str, Any]] = [
    {},
    {"alpha": 0.9, "eps": 1e-3},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"centered": True},
    {"alpha": 0.5, "eps": 1e-6, "weight_decay": 0.1, "momentum": 0.8, "centered": True},
]
#: Optimizer, its arguments, the formula, the formula's arguments, PyTorch's class.
CASES: list[
    tuple[Callable[..., optim.Optimizer], dict[str, Any], Callable[..., Array], dict[str, Any], str]
] = [
    (optim.SGD, {}, sgd, {}, "SGD"),
    (optim.SGD, {"momentum": 0.9}, sgd, {"momentum": 0.9}, "SGD"),
    (optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}, sgd, {"momentum": 0.9, "weight_decay": 0.1}, "SGD"),
    (optim.SGD, {"momentum": 0.9, "nesterov": True}, sgd, {"momentum": 0.9, "nesterov": True}, "SGD"),
    (optim.SGD, {"momentum": 0.8, "dampening": 0.5}, sgd, {"momentum": 0.8, "dampening": 0.5}, "SGD"),
    (optim.SGD, {"maximize": True}, sgd, {"maximize": True}, "SGD"),
    (optim.Adam, {}, adam, {}, "Adam"),
    (optim.Adam, {"betas": (0.5, 0.9), "eps": 1e-3}, adam, {"betas": (0.5, 0.9), "eps": 1e-3}, "Adam"),
    (optim.Adam, {"weight_decay": 0.1}, adam, {"weight_decay": 0.1}, "Adam"),
    (optim.AdamW, {}, adam, {"weight_decay": 0.01, "decoupled": True}, "AdamW"),
    (optim.AdamW, {"weight_decay": 0.3}, adam, {"weight_decay": 0.3, "decoupled": True}, "AdamW"),
    (optim.Adam, {"amsgrad": True}, adam, {"amsgrad": True}, "Adam"),
    (
        optim.Adam,
        {"maximize": True, "weight_decay": 0.1},
        adam,
        {"maximize": True, "weight_decay": 0.1},
        "Adam",
    ),
    (
        optim.AdamW,
        {"amsgrad": True, "betas": (0.5, 0.6)},
        adam,
        {"weight_decay": 0.01, "decoupled": True, "amsgrad": True, "betas": (0.5, 0.6)},
        "AdamW",
    ),
    (optim.Adagrad, {}, adagrad, {}, "Adagrad"),
    (optim.Adagrad, {"lr_decay": 0.5}, adagrad, {"lr_decay": 0.5}, "Adagrad"),
    (
        optim.Adagrad,
        {"weight_decay": 0.1, "initial_accumulator_value": 0.5},
        adagrad,
        {"weight_decay": 0.1, "initial": 0.5},
        "Adagrad",
    ),
    (optim.Adadelta, {}, adadelta, {}, "Adadelta"),
    (
        optim.Adadelta,
        {"rho": 0.8, "weight_decay": 0.1},
        adadelta,
        {"rho": 0.8, "weight_decay": 0.1},
        "Adadelta",
    ),
    *((optim.RMSprop, options, rmsprop, options, "RMSprop") for options in RMSPROP),
]
IDS = [f"{c[0].__name__}-{c[1]}" for c in CASES]


def run(optimizer: optim.Optimizer, dtype: str) -> Array:
    p: Any = lm.tensor(START, dtype)
    state = optimizer.init(p)
    assert len(state) == len(optimizer.parts)
    for i, g in enumerate(GRADS):
        rate = np.float32(optimizer.rate(i))
        p, state = optimizer.update(p, lm.tensor(g, dtype), state, rate)
    found: Array = p.numpy()
    return found


@pytest.mark.feature("F111")
@pytest.mark.parametrize(("make", "kwargs", "formula", "arguments", "torch_name"), CASES, ids=IDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_twenty_steps_follow_the_formula(
    make: Any, kwargs: Any, formula: Any, arguments: Any, torch_name: str, dtype: str
) -> None:
    found = run(make(lambda step: RATES[step], **kwargs), dtype)
    np.testing.assert_allclose(found, formula(**arguments), rtol=1e-5, atol=1e-6)


LIKE_TORCH = [(c[0], c[1], c[4]) for c in CASES]


@pytest.mark.torch
@pytest.mark.parametrize(("make", "kwargs", "name"), LIKE_TORCH, ids=[f"{c[2]}-{c[1]}" for c in LIKE_TORCH])
def test_twenty_steps_equal_torchs(make: Any, kwargs: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.tensor(START, dtype=torch.float32))
    theirs = getattr(torch.optim, name)([p], lr=1.0, **kwargs)
    for g, rate in zip(GRADS, RATES, strict=True):
        theirs.param_groups[0]["lr"] = rate
        p.grad = torch.tensor(g, dtype=torch.float32)
        theirs.step()
    found = run(make(lambda step: RATES[step], **kwargs), "float32")
    np.testing.assert_allclose(found, p.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize(("make", "kwargs", "name"), LIKE_TORCH, ids=[f"{c[2]}-{c[1]}" for c in LIKE_TORCH])
def test_a_state_of_torchs_goes_on(make: Any, kwargs: Any, name: str) -> None:
    """Ten steps there and ten here are twenty there; the rate comes along."""
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.tensor(START, dtype=torch.float32))
    theirs = getattr(torch.optim, name)([p], lr=0.01, **kwargs)

    def step(g: Any) -> None:
        p.grad = torch.tensor(g, dtype=torch.float32)
        theirs.step()

    for g in GRADS[:10]:
        step(g)
    held = nn.Parameter(lm.tensor(p.detach().numpy().copy()))
    ours = make(0.5, **kwargs).over([held])
    ours.load_state_dict(theirs.state_dict())
    assert ours.param_groups[0].lr == 0.01
    for g in GRADS[10:]:
        step(g)
        ours.step([lm.tensor(g.astype(np.float32))])
    np.testing.assert_allclose(held.numpy(), p.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.torch
def test_a_state_of_torchs_of_other_groups() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
    with pytest.raises(
        ValueError, match=r"Adam.load_state_dict: does not fit: groups of \[2\] parameters, \[1\] are"
    ):
        optim.Adam(nn.Linear(3, 2, bias=False)).load_state_dict(theirs.state_dict())


@pytest.mark.feature("F111")
def test_l1_and_l2_regularisation() -> None:
    p, v = START.copy(), np.zeros_like(START)
    for g, rate in zip(GRADS, RATES, strict=True):
        v = 0.9 * v + g + 0.2 * p + 0.1 * np.sign(p)
        p = p - rate * v
    found = run(optim.Regularized(optim.SGD(lambda step: RATES[step], 0.9), l1=0.1, l2=0.2), "float32")
    np.testing.assert_allclose(found, p, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="l1=-1 and l2=0.0 must be at least 0"):
        optim.Regularized(optim.SGD(), l1=-1)


def test_half_gradients_update_single_parameters() -> None:
    optimizer = optim.SGD(0.1, momentum=0.9)
    p = lm.ones((4,))
    new, _ = optimizer.update(p, lm.ones((4,), dtype="bfloat16"), optimizer.init(p), np.float32(0.1))
    assert new.dtype is lm.float32
    np.testing.assert_allclose(new.numpy(), np.full(4, 0.9), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.SGD(-0.1), "SGD: lr must be at least 0, got -0.1"),
        (lambda: optim.SGD(math.nan), "SGD: lr must be at least 0, got nan"),
        (lambda: optim.SGD(0.1, momentum=-1), "SGD: momentum must be at least 0, got -1"),
        (lambda: optim.SGD(0.1, nesterov=True), "nesterov needs momentum > 0"),
        (lambda: optim.Adam(betas=(0.9, 1.0)), r"betas must be in \[0, 1\), got \(0.9, 1.0\)"),
        (lambda: optim.Adadelta(rho=2), r"rho must be in \[0, 1\], got 2"),
        (lambda: optim.Adadelta(eps=-1), "Adadelta: eps must be at least 0, got -1"),
        (lambda: optim.Adagrad(eps=-1), "Adagrad: eps must be at least 0, got -1"),
        (lambda: optim.RMSprop(alpha=-1), "RMSprop: alpha must be at least 0, got -1"),
        (lambda: optim.RMSprop(eps=math.nan), "RMSprop: eps must be at least 0, got nan"),
        (lambda: optim.AdamW(eps=-1), "AdamW: eps must be at least 0, got -1"),
        (lambda: optim.NAdam(momentum_decay=-1), "NAdam: momentum_decay must be at least 0, got -1"),
        (lambda: optim.RAdam(betas=(1, 0.5)), r"RAdam: betas must be in \[0, 1\), got \(1, 0.5\)"),
        (lambda: optim.Adamax(eps=-1), "Adamax: eps must be at least 0, got -1"),
        (lambda: optim.ASGD(weight_decay=-1), "ASGD: weight_decay must be at least 0, got -1"),
        (lambda: optim.Rprop(etas=(1.0, 1.2)), r"Rprop: etas must be \(below 1, above 1\)"),
        (lambda: optim.Rprop(step_sizes=(1.0, 0.5)), r"Rprop: step_sizes must be \(smallest, largest\), got"),
        (lambda: optim.Lion(betas=(0.9,)), r"Lion: betas must be in \[0, 1\), got \(0.9,\)"),  # type: ignore[arg-type]
        (lambda: optim.LAMB(weight_decay=-1), "LAMB: weight_decay must be at least 0, got -1"),
        (lambda: optim.LARS(trust_coefficient=-1), "LARS: trust_coefficient must be at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def defaults_of(kind: Any) -> dict[str, Any]:
    arguments = inspect.signature(kind.__init__).parameters
    return {name: argument.default for name, argument in arguments.items() if name != "self"}


DEFAULTS: dict[Any, dict[str, Any]] = {
    optim.ASGD: {"lr": 0.01, "lambd": 1e-4, "alpha": 0.75, "t0": 1e6},
    optim.Adadelta: {"lr": 1.0, "rho": 0.9, "eps": 1e-6},
    optim.Adafactor: {"lr": 0.01, "beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0},
    optim.Adagrad: {"lr": 0.01, "lr_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10},
    optim.Adam: {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "decoupled_weight_decay": False},
    optim.AdamW: {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "weight_decay": 0.01},
    optim.Adamax: {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8},
    optim.LAMB: {"betas": (0.9, 0.999), "eps": 1e-6},
    optim.LARS: {"lr": 0.1, "momentum": 0.9, "trust_coefficient": 1e-3, "eps": 0.0},
    optim.Lion: {"lr": 1e-4, "betas": (0.9, 0.99)},
    optim.Muon: {
        "weight_decay": 0.1, "momentum": 0.95, "nesterov": True, "ns_coefficients": (3.4445, -4.775, 2.0315),
        "eps": 1e-7, "ns_steps": 5, "adjust_lr_fn": None,
    },
    optim.NAdam: {
        "lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "momentum_decay": 4e-3, "decoupled_weight_decay": False,
    },
    optim.RAdam: {"betas": (0.9, 0.999), "eps": 1e-8, "decoupled_weight_decay": False},
    optim.RMSprop: {"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False},
    optim.Rprop: {"lr": 0.01, "etas": (0.5, 1.2), "step_sizes": (1e-6, 50.0)},
    optim.SGD: {"momentum": 0.0, "dampening": 0.0, "nesterov": False},
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda k: k.__name__)
def test_what_is_not_given_is_as_in_torch(kind: Any) -> None:
    """Of those that PyTorch has; LAMB, LARS and Lion as in their papers."""
    found = defaults_of(kind)
    common = {"lr": 1e-3, "weight_decay": 0.0, "maximize": False}
    assert found == {name: (common | DEFAULTS[kind])[name] for name in found}


@pytest.mark.torch
@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda k: k.__name__)
def test_torch_gives_these(kind: Any) -> None:
    torch = pytest.importorskip("torch")
    if theirs := getattr(torch.optim, kind.__name__, None):
        ours, given = defaults_of(kind), defaults_of(theirs)
        common = ours.keys() & given.keys()
        assert "lr" in common
        assert {name: ours[name] for name in common} == {name: given[name] for name in common}


def test_names_of_torch_that_are_absent_say_what_to_write() -> None:
    rule = optim.SGD(lr=0.1)
    with pytest.raises(AttributeError, match=r"SGD has no attribute 'zero_grad'; .*accumulate\(grads\)"):
        rule.zero_grad()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="SGD has no attribute 'momentun'$"):
        _ = rule.momentun  # type: ignore[attr-defined]
    assert not hasattr(copy.deepcopy(rule), "zero_grad")


def test_repr() -> None:
    assert repr(optim.SGD(0.1, 0.9)) == "SGD(lr=0.1, momentum=0.9, weight_decay=0.0)"
    assert repr(optim.RMSprop()) == "RMSprop(lr=0.01, alpha=0.99, momentum=0.0, centered=False)"
    assert repr(optim.AdamW(1e-3)) == "AdamW(lr=0.001, betas=(0.9, 0.999), weight_decay=0.01)"


@pytest.mark.parametrize(
    "kind", [optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.LAMB]
)
def test_parameters_that_are_given_as_elsewhere(kind: Any) -> None:
    """torch's optimizers take them first; a rule without them is given some by `over`."""
    net = lm.nn.Linear(2, 3)
    for given in (net, net.parameters(), list(net.parameters()), [{"params": net.parameters()}]):
        optimizer = kind(given, lr=0.1)
        assert [p for g in optimizer.param_groups for p in g["params"]] == list(net.parameters())
        assert optimizer.param_groups[0].lr == 0.1
    assert kind(params=net.parameters(), lr=0.1).is_bound
    assert not kind(lr=0.1).is_bound
    with pytest.raises(
        RuntimeError, match=f"{kind.__name__}: this optimizer has no parameters: make it with"
    ):
        kind(lr=0.1).step({})
    assert copy.deepcopy(kind(lr=0.5)).lr == pickle.loads(pickle.dumps(kind(0.5))).lr == 0.5


def test_rates_that_are_none() -> None:
    for bad in ("0.1", None, [0.1]):
        with pytest.raises(TypeError, match="SGD: "):
            optim.SGD(lr=bad)  # type: ignore[arg-type]
    assert optim.SGD(lr=np.float32(0.5)).rate(0) == 0.5


#: An optimizer of each kind, and for a number of it what it is set to, step by step.
CHANGES: list[tuple[str, dict[str, Any], str, list[Any], int]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}, "momentum", [0.5, 0.7, 0.0, 0.8], 3),
    ("SGD", {"lr": 0.1, "momentum": 0.9}, "nesterov", [True, False], 2),
    ("SGD", {"lr": 0.1}, "weight_decay", [0.1, 0.2, 0.3], 2),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, "dampening", [0.25, 0.125], 2),
    ("Adam", {"lr": 0.1}, "betas", [(0.5, 0.9), (0.6, 0.99), (0.7, 0.999)], 2),
    ("AdamW", {"lr": 0.1}, "weight_decay", [0.5, 0.25, 0.125], 2),
    ("Adam", {"lr": 0.1, "amsgrad": True}, "eps", [0.5, 0.25], 2),
    ("NAdam", {"lr": 0.1}, "momentum_decay", [0.5, 0.25], 2),
    ("RAdam", {"lr": 0.1}, "betas", [(0.5, 0.9), (0.6, 0.99)], 2),
    ("Adamax", {"lr": 0.1}, "betas", [(0.5, 0.9), (0.6, 0.99)], 2),
    ("Adagrad", {"lr": 0.1}, "eps", [0.5, 0.25], 2),
    ("Adadelta", {"lr": 0.1}, "rho", [0.5, 0.25], 2),
    ("RMSprop", {"lr": 0.1, "momentum": 0.5, "centered": True}, "momentum", [0.25, 0.125], 2),
    ("ASGD", {"lr": 0.1}, "lambd", [0.5, 0.25], 2),
    ("Rprop", {"lr": 0.1}, "etas", [(0.25, 2.0), (0.125, 1.5)], 2),
    ("Muon", {"lr": 0.1}, "weight_decay", [2.0, 4.0], 3),
    ("Adafactor", {"lr": 0.1}, "d", [2.0, 3.0], 3),
]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "options", "name", "values", "programs"), CHANGES)
@pytest.mark.parametrize("compiled", [False, True])
def test_numbers_that_change_between_steps_are_torchs(
    kind: str, options: dict[str, Any], name: str, values: list[Any], programs: int, compiled: bool
) -> None:
    """Each value takes effect at the next step, and from the first change on no value is compiled in."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.nn.Linear(3, 2, bias=False)
    net = lm.nn.Linear(3, 2, bias=False)
    net.weight.copy_(theirs.weight.detach().numpy())
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    their_optimizer = getattr(torch.optim, kind)(theirs.parameters(), **options)
    optimizer = getattr(optim, kind)(net.parameters(), **options)
    step = lm.train_step(net, lm.ops.mse_loss, optimizer, device="cpu")
    for value in (None, None, *values, values[-1]):
        if value is not None:
            their_optimizer.param_groups[0][name] = value
            optimizer.param_groups[0][name] = value
            assert optimizer.param_groups[0][name] == value
        their_optimizer.zero_grad()
        torch.nn.functional.mse_loss(theirs(x), y).backward()
        their_optimizer.step()
        if compiled:
            step(x.numpy(), y.numpy())
        else:
            optimizer.step(lm.grad(lambda net: lm.ops.mse_loss(net(x.numpy()), y.numpy()))(net))
        np.testing.assert_allclose(
            net.weight.numpy(),
            theirs.weight.detach().numpy(),
            rtol=1e-4,
            atol=1e-2 if kind == "Muon" else 1e-5,
        )
    assert not compiled or len(step._programs) == programs


def test_numbers_that_cannot_be_changed_say_so() -> None:
    optimizer = optim.SGD(lm.nn.Linear(2, 1).parameters(), 0.1, 0.9)
    with pytest.raises(ValueError, match="SGD: momentum must be at least 0, got -1"):
        optimizer.momentum = -1.0
    with pytest.raises(
        ValueError, match="SGD.dampening: with 0.5 it keeps momentum, step of each parameter, not mom"
    ):
        optimizer.dampening = 0.5
    with pytest.raises(AttributeError, match="SGD.op is .* for good"):
        optimizer.op = optimizer.op
    assert (optimizer.momentum, optimizer.dampening) == (0.9, 0.0)


def test_numbers_of_a_wrapped_optimizer_and_its_wrapper_change() -> None:
    optimizer = optim.Regularized(optim.SGD(0.5), l2=0.0)
    net = lm.nn.Linear(2, 1, bias=False)
    weight = net.weight.numpy().copy()
    step = lm.train_step(net, lambda out, y: 0.0 * lm.ops.sum(out), optimizer, device="cpu")
    x, y = np.ones((1, 2), np.float32), np.zeros(1, np.float32)
    for decay, l2 in ((0.0, 0.0), (0.5, 0.0), (0.25, 0.0), (0.25, 0.5)):
        optimizer.optimizer.weight_decay, optimizer.l2 = decay, l2
        step(x, y)
        weight = weight - 0.5 * (decay + l2) * weight
        np.testing.assert_allclose(net.weight.numpy(), weight, rtol=1e-5)


def test_a_number_that_changes_is_given_to_a_jitted_step() -> None:
    net = lm.nn.Linear(2, 1, bias=False)
    optimizer = optim.SGD(net.parameters(), lr=0.5)
    weight, traces = net.weight.numpy().copy(), []

    def run(net: lm.nn.Module) -> None:
        traces.append(1)
        optimizer.step(lm.grad(lambda net: 0.0 * lm.ops.sum(net.weight))(net))

    jitted = lm.jit(run)
    for decay in (0.0, 0.5, 0.25, 0.125):
        optimizer.param_groups[0]["weight_decay"] = decay
        jitted(net)
        weight = weight - 0.5 * decay * weight
        np.testing.assert_allclose(net.weight.numpy(), weight, rtol=1e-5)
    assert len(traces) == 2


def test_the_rate_may_be_set_between_steps() -> None:
    optimizer = optim.SGD(0.5)
    net = lm.nn.Linear(2, 1, bias=False)
    start = net.weight.numpy().copy()
    step = lm.train_step(net, lambda out, y: lm.ops.sum(out), optimizer, device="cpu")
    x, y = np.ones((1, 2), np.float32), np.zeros(1, np.float32)
    step(x, y)
    optimizer.lr = 0.25
    step(x, y)
    np.testing.assert_allclose(net.weight.numpy(), start - 0.75, rtol=1e-6)
    with pytest.raises(ValueError, match="SGD: lr must be at least 0, got -1"):
        optimizer.lr = -1
    assert optimizer.lr == 0.25


#: Every optimizer whose step is one op.
FUSED: list[Callable[..., optim.Optimizer]] = [
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad, optim.Adadelta,
    optim.RMSprop, optim.ASGD, optim.Rprop, optim.Lion, optim.LAMB, optim.LARS,
]  # fmt: skip


@pytest.mark.feature("F111")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp64"])
@pytest.mark.parametrize("make", FUSED, ids=lambda m: m.__name__)
def test_training_goes_on_from_a_checkpoint_to_the_bit(
    make: Callable[..., optim.Optimizer], precision: str, tmp_path: Path
) -> None:
    """Master weights and state are float32 (float64 in fp64) and travel with the checkpoint."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.integers(0, 3, 8)

    def training(seed: int) -> Any:
        lm.manual_seed(seed)
        net = lm.nn.Sequential(lm.nn.Linear(6, 5), lm.nn.Tanh(), lm.nn.Linear(5, 3))
        optimizer = make(lr=0.0625)
        return lm.train_step(net, lm.ops.cross_entropy, optimizer, device="cpu", precision=precision)

    whole, second = training(0), training(1)
    for _ in range(3):
        whole(x, y)
    save_checkpoint(tmp_path / "run.safetensors", whole)
    losses = [float(whole(x, y)) for _ in range(3)]
    load_checkpoint(tmp_path / "run.safetensors", second)
    assert [float(second(x, y)) for _ in range(3)] == losses
    for name, value in whole.state.named().items():
        np.testing.assert_array_equal(second.state.named()[name].numpy(), value.numpy(), err_msg=name)
        if name.startswith("parameters/"):
            assert value.dtype is (lm.float64 if precision == "fp64" else lm.float32)


@pytest.mark.parametrize("make", FUSED, ids=lambda m: m.__name__)
def test_all_parameters_of_a_network_are_one_launch(make: Callable[..., optim.Optimizer]) -> None:
    """On a GPU: planned for one that is not there."""
    optimizer = make(lr=0.0625)
    shapes = [(5, 3), (), (7,)]
    state = [optimizer.init(lm.zeros(shape)) for shape in shapes]

    def updates(rate: Any, *values: Any) -> list[Any]:
        given = iter(values)
        results = []
        for kept in state:
            p, g, *own = [next(given) for _ in range(2 + len(kept))]
            new, after = optimizer.update(p, g, tuple(own), rate)
            results += [new, *after]
        return results

    like = [lm.Spec(shape, lm.float32) for shape in shapes]
    specs = [x for p, kept in zip(like, state, strict=True) for x in (p, p, *(s.spec.open for s in kept))]
    graph = lm.trace(updates, lm.Spec((), lm.float32), *specs)
    grouped = group_small(graph, cuda_backend(H200))
    assert [n.op for n in grouped.nodes] == [Foreach(optimizer.op, 3)]  # type: ignore[attr-defined]


def test_which_updates_go_element_by_element() -> None:
    assert optim.AdamW(0.1).elementwise == (True, True, False)
    assert optim.SGD(0.1).elementwise == (True,)
    assert optim.Regularized(optim.SGD(0.1)).elementwise == (True,)
    assert [o.elementwise for o in (optim.LAMB(0.1), optim.LARS(0.1), optim.Muon(), optim.Adafactor())] == [
        None
    ] * 4


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW, optim.RMSprop])
def test_words_for_how_torch_computes_an_update_change_nothing(kind: Any) -> None:
    found = []
    for how in ({}, {"fused": True}, {"foreach": False, "capturable": True}):
        weights = nn.Parameter(lm.ones(3))
        optimizer = kind([weights], lr=0.1, weight_decay=0.01, **how)
        optimizer.step([lm.ones(3)])
        optimizer.weight_decay = 0.1
        optimizer.step([lm.ones(3)])
        found.append(weights.numpy())
    np.testing.assert_array_equal(found[1:], [found[0]] * 2)


def test_an_optimizer_of_ones_own() -> None:
    class Plain(optim.Optimizer):
        def update(self, param: Any, grad: Any, state: Any, rate: Any) -> Any:
            return param - rate * ops.sign(grad), state

    class Slowed(optim.Optimizer):
        parts = ("mean",)

        def init(self, param: Any) -> Any:
            return (lm.zeros(param.shape),)

        def update(self, param: Any, grad: Any, state: Any, rate: Any) -> Any:
            mean = state[0] * 0.5 + grad
            return param - rate * mean, (mean,)

    for kind, wanted in ((Plain, [0.8, 1.2]), (Slowed, [0.5, 1.5])):
        weights = nn.Parameter(lm.ones(2))
        optimizer = kind([weights], lr=0.1)
        for _ in range(2):
            optimizer.step([lm.tensor([2.0, -2.0])])
        np.testing.assert_allclose(weights.numpy(), wanted, rtol=1e-6)
        step = lm.train_step(nn.Linear(2, 2), lambda y, _: ops.mean(y), kind(lr=0.1), device="cpu")
        assert step(lm.ones((1, 2))).item() > step(lm.ones((1, 2))).item()


@pytest.mark.parametrize(
    "make",
    [
        partial(optim.SGD, lr=0.1),
        partial(optim.SGD, lr=0.1, momentum=0.9),
        optim.AdamW,
        optim.RMSprop,
        optim.LAMB,
    ],
)
def test_updates_at_once_are_in_the_parameters_memory(make: Any) -> None:
    rng = np.random.default_rng(4)
    start, slopes = rng.standard_normal((5, 3), np.float32), rng.standard_normal((4, 5, 3), np.float32)
    here, apart = nn.Parameter(lm.tensor(start)), nn.Parameter(lm.tensor(start))
    optimizers = [make([x]) for x in (here, apart)]
    compiled = lm.jit(lambda g: optimizers[1].step([g]))
    held, version = here.buffer.pointer, here.version
    for slope in slopes:
        optimizers[0].step([lm.tensor(slope)])
        compiled(slope)
        assert here.buffer.pointer == held
        np.testing.assert_allclose(here.numpy(), apart.numpy(), rtol=1e-6, atol=1e-7)
    assert here.version >= version + 4
    itself = nn.Parameter(lm.tensor(start))
    make([itself]).step([itself])  # the gradient lies where the result is written
    other = nn.Parameter(lm.tensor(start))
    make([other]).step([lm.tensor(start)])
    np.testing.assert_array_equal(itself.numpy(), other.numpy())


def test_an_optimizer_of_ones_own_that_takes_parameters_first() -> None:
    class Lion(optim.Optimizer):
        parts = ("mean",)

        def __init__(self, params: Any, lr: float = 1e-3, beta: float = 0.5) -> None:
            super().__init__(params, {"lr": lr, "beta": beta})

        def init(self, param: Any) -> Any:
            return (ops.zeros_like(param),)

        def update(self, param: Any, grad: Any, state: Any, rate: Any) -> Any:
            mean = self.beta * state[0] + (1 - self.beta) * grad
            return param - rate * ops.sign(mean), (mean,)

    class Plain(optim.Optimizer):
        def __init__(self, params: Any, lr: float, share: float) -> None:
            super().__init__(lr)
            self.share = share

        def update(self, param: Any, grad: Any, state: Any, rate: Any) -> Any:
            return param - rate * self.share * grad, state

    a, b = nn.Parameter(lm.ones(2)), nn.Parameter(lm.ones(2))
    lion = Lion(iter([a]), 0.1)
    assert (lion.lr, lion.beta) == (0.1, 0.5)
    for slope in (2.0, -1.5):  # means 1 and -0.25
        lion.step([lm.tensor([slope, slope])])
    np.testing.assert_allclose(a.numpy(), [1, 1], rtol=1e-6)
    lion.beta = 0.0
    lion.step([lm.tensor([1.0, -1.0])])
    np.testing.assert_allclose(a.numpy(), [0.9, 1.1], rtol=1e-6)
    plain = Plain([{"params": a, "share": 0.5}, {"params": b, "lr": 2.0}], 1.0, share=0.1)
    plain.step([lm.ones(2), lm.ones(2)])
    np.testing.assert_allclose([*a.numpy(), *b.numpy()], [0.4, 0.6, 0.8, 0.8], rtol=1e-6)
    with pytest.raises(TypeError, match="a group sets beta; its numbers are lr, share"):
        Plain([{"params": a, "beta": 1.0}], 1.0, 0.1)
    step = lm.train_step(nn.Linear(2, 2), lambda y, _: ops.mean(y), Lion(lr=0.1), device="cpu")  # type: ignore[call-arg]
    assert step(lm.ones((1, 2))).item() > step(lm.ones((1, 2))).item()


def test_an_optimizer_of_ones_own_says_what_its_init_gives() -> None:
    class Plain(optim.Optimizer):
        def __init__(self, params: Any, numbers: Any = None) -> None:
            super().__init__(params, numbers)

        def update(self, param: Any, grad: Any, state: Any, rate: Any) -> Any:
            return param, state

    with pytest.raises(TypeError, match=r"Plain: Optimizer.__init__ takes lr, or params and a dict"):
        Plain([nn.Parameter(lm.ones(2))])
    with pytest.raises(TypeError, match=r"Plain: the defaults have no \"lr\", only 'beta'"):
        Plain([nn.Parameter(lm.ones(2))], {"beta": 1.0})


def test_an_optimizer_in_torchs_style_says_what_to_define() -> None:
    class Signs(optim.Optimizer):
        def step(self, grads: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad.sign(), alpha=-group["lr"])

    for make in (lambda: Signs(nn.Linear(2, 2).parameters(), lr=0.1), lambda: optim.Optimizer(0.1)):  # type: ignore[abstract]
        with pytest.raises(TypeError, match=r"an optimizer defines update\(self, param, grad, state, rate\)"):
            make()

    class Unbegun(optim.Optimizer):
        parts = ("mean",)

        def update(self, param: Any, grad: Any, state: Any, rate: Any) -> Any:
            return param, state

    with pytest.raises(NotImplementedError, match=r"Unbegun does not say how mean begin: define init"):
        Unbegun([nn.Parameter(lm.ones(2))], lr=0.1).step([lm.ones(2)])
