"""Schedulers: forty rates of each against PyTorch's, chains and sequences of them, resuming, what is refused."""

import copy
import math
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, optim
from lamina.optim import lr_scheduler as mine

STEPS = 40


def half_by_three(step: int) -> float:
    return float(0.5 ** (step // 3))


def wave(step: int) -> float:
    return 0.9 + 0.2 * (step % 2)


#: Name, keywords that PyTorch's class takes too.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 7}),
    ("StepLR", {"step_size": 1, "gamma": 0.9}),
    ("MultiStepLR", {"milestones": [3, 10, 10, 25], "gamma": 0.5}),
    ("MultiStepLR", {"milestones": []}),
    ("ExponentialLR", {"gamma": 0.93}),
    ("MultiplicativeLR", {"lr_lambda": wave}),
    ("LambdaLR", {"lr_lambda": half_by_three}),
    ("ConstantLR", {}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 11}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.7, "total_iters": 17}),
    ("LinearLR", {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 12}),
    ("PolynomialLR", {}),
    ("PolynomialLR", {"total_iters": 23, "power": 1.7}),
    ("CosineAnnealingLR", {"T_max": 9}),
    ("CosineAnnealingLR", {"T_max": 50, "eta_min": 0.01}),
    ("CosineAnnealingLR", {"T_max": 1, "eta_min": 0.01}),
    ("SWALR", {"swa_lr": 0.05}),
    ("SWALR", {"swa_lr": 0.7, "anneal_epochs": 7, "anneal_strategy": "linear"}),
    ("SWALR", {"swa_lr": 0.05, "anneal_epochs": 0}),
    ("CosineAnnealingWarmRestarts", {"T_0": 6}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2, "eta_min": 0.02}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 5, "cycle_momentum": False}),
    (
        "CyclicLR",
        {
            "base_lr": 0.01, "max_lr": 0.3, "step_size_up": 5, "step_size_down": 3, "mode": "triangular2",
            "cycle_momentum": False,
        },
    ),
    (
        "CyclicLR",
        {
            "base_lr": 0.01, "max_lr": 0.3, "step_size_up": 4, "mode": "exp_range", "gamma": 0.9,
            "cycle_momentum": False,
        },
    ),
    (
        "CyclicLR",
        {
            "base_lr": 0.01, "max_lr": 0.3, "step_size_up": 4, "scale_fn": math.sqrt, "scale_mode": "iterations",
            "cycle_momentum": False,
        },
    ),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 41, "cycle_momentum": False}),
    (
        "OneCycleLR",
        {
            "max_lr": 0.5, "epochs": 5, "steps_per_epoch": 9, "pct_start": 0.4, "anneal_strategy": "linear",
            "three_phase": True, "div_factor": 10.0, "final_div_factor": 100.0, "cycle_momentum": False,
        },
    ),
]  # fmt: skip
IDS = [
    "-".join([name, *(f"{k}={getattr(v, '__name__', v)}" for k, v in options.items())])
    for name, options in CASES
]


def rates(scheduler: Any, steps: int = STEPS) -> list[list[float]]:
    found = [scheduler.get_last_lr()]
    for _ in range(steps):
        scheduler.step()
        found.append(scheduler.get_last_lr())
    return found


def torchs(make: Callable[[Any, Any], Any], first: list[float]) -> list[list[float]]:
    """The rates by PyTorch: make(torch.optim.lr_scheduler, optimizer)."""
    torch = pytest.importorskip("torch")
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in first]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    optimizer.step()
    library = types.SimpleNamespace(SWALR=torch.optim.swa_utils.SWALR, **vars(torch.optim.lr_scheduler))
    return rates(make(library, optimizer))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("groups", [1, 2])
def test_rates_are_torchs(name: str, options: dict[str, Any], groups: int) -> None:
    first = [0.1, 0.7][:groups]
    found = rates(getattr(mine, name)([optim.SGD(lr) for lr in first], **options))
    wanted = torchs(lambda library, optimizer: getattr(library, name)(optimizer, **options), first)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-15)


CYCLES: list[tuple[str, dict[str, Any]]] = [
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 41}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 41, "three_phase": True, "anneal_strategy": "linear",
                    "base_momentum": 0.5, "max_momentum": 0.75}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 5, "mode": "triangular2"}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 4, "mode": "exp_range", "gamma": 0.9,
                  "base_momentum": 0.2, "max_momentum": 0.7}),
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options"), CYCLES)
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("SGD", {"momentum": 0.9, "weight_decay": 0.01}), ("SGD", {"momentum": 0.9, "nesterov": True}), ("AdamW", {}),
     ("NAdam", {}), ("RMSprop", {"momentum": 0.5})],
)  # fmt: skip
def test_momentum_cycles_as_torchs_and_is_compiled_once(
    name: str, options: dict[str, Any], kind: str, numbers: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs, net = torch.nn.Linear(3, 2), lm.nn.Linear(3, 2)
    net.load_state_dict({n: p.detach().numpy() for n, p in theirs.state_dict().items()})
    their_optimizer = getattr(torch.optim, kind)(theirs.parameters(), lr=0.1, **numbers)
    optimizer = getattr(optim, kind)(net.parameters(), lr=0.1, **numbers)
    their_scheduler = getattr(torch.optim.lr_scheduler, name)(their_optimizer, **options)
    scheduler = getattr(mine, name)(optimizer, **options)
    step = lm.train_step(net, lm.ops.mse_loss, optimizer, device="cpu")
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    for _ in range(STEPS):
        their_optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(theirs(x), y)
        loss.backward()
        their_optimizer.step()
        np.testing.assert_allclose(float(step(x.numpy(), y.numpy())), loss.item(), rtol=1e-4, atol=1e-6)
        their_scheduler.step()
        scheduler.step()
        group = their_optimizer.param_groups[0]
        wanted = group["betas"][0] if "betas" in group else group["momentum"]
        np.testing.assert_allclose(scheduler.momenta, [wanted], rtol=1e-12)
        np.testing.assert_allclose(scheduler.get_last_lr(), their_scheduler.get_last_lr(), rtol=1e-9)
    assert len(step._programs) == 1
    again = getattr(mine, name)(getattr(optim, kind)(lr=0.1, **numbers), **options)
    again.load_state_dict(scheduler.state_dict())
    assert again.momenta == scheduler.momenta


@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("total_steps", [2, 12])
def test_a_loop_that_steps_after_each_batch_ends_a_line_behind_its_last_rate(
    total_steps: int, three_phase: bool
) -> None:
    """There PyTorch's rate is below 0, which nobody uses."""
    optimizer = optim.SGD(lr=0.1, momentum=0.9)
    scheduler = mine.OneCycleLR(
        optimizer, 0.1, total_steps, anneal_strategy="linear", three_phase=three_phase, pct_start=0.4
    )
    rates = []
    for _ in range(total_steps):
        rates += scheduler.get_last_lr()
        scheduler.step()
    assert scheduler.get_last_lr() == [rates[-1]]
    assert rates[-1] == pytest.approx(0.1 / 25 / 1e4)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [
        [("LinearLR", {"total_iters": 4}), ("CosineAnnealingLR", {"T_max": 10}), ("ExponentialLR", {"gamma": 0.9})],
        [("ConstantLR", {"total_iters": 20}), ("StepLR", {"step_size": 3}), ("PolynomialLR", {"total_iters": 30})],
        [("MultiStepLR", {"milestones": [2, 7]}), ("LambdaLR", {"lr_lambda": half_by_three}),
         ("CosineAnnealingWarmRestarts", {"T_0": 5})],
        [("ExponentialLR", {"gamma": 0.9}), ("MultiplicativeLR", {"lr_lambda": wave}), ("LinearLR", {})],
    ],
    ids=lambda kinds: "-".join(k[0] for k in kinds),
)  # fmt: skip
def test_several_schedulers_are_torchs(kinds: list[tuple[str, dict[str, Any]]], chained: bool) -> None:
    def make(library: Any, optimizer: Any) -> Any:
        schedulers = [getattr(library, name)(optimizer, **options) for name, options in kinds]
        if chained:
            return library.ChainedScheduler(schedulers, optimizer)
        return library.SequentialLR(optimizer, schedulers, [6, 15])

    found = rates(make(mine, optim.SGD(0.4)))
    np.testing.assert_allclose(found, torchs(make, [0.4]), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    ("mode", "threshold_mode", "better"),
    [
        ("min", "rel", (7.9, 8.1)),
        ("min", "abs", (9.7, 9.9)),
        ("max", "rel", (12.1, 11.9)),
        ("max", "abs", (10.3, 10.1)),
    ],
)
def test_what_is_better_is_so_by_a_part_of_the_best_or_by_a_number(
    mode: str, threshold_mode: str, better: tuple[float, float]
) -> None:
    """Than 10, by a fifth of it or by 0.2."""
    enough, not_enough = better
    for value, rate in ((enough, 0.5), (not_enough, 0.05)):
        own = optim.SGD(0.5)
        scheduler = mine.ReduceLROnPlateau(
            own, mode, patience=0, threshold=0.2, threshold_mode=threshold_mode
        )
        scheduler.step(10.0)
        scheduler.step(value)
        assert own.lr == pytest.approx(rate)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("milestones", [[1, 2], [1, 15], [6, 7]])
def test_schedulers_that_change_early_are_torchs(milestones: list[int]) -> None:
    def make(library: Any, optimizer: Any) -> Any:
        kinds = [
            library.ConstantLR(optimizer, 0.1, 20),
            library.StepLR(optimizer, 3),
            library.LinearLR(optimizer),
        ]
        return library.SequentialLR(optimizer, kinds, milestones)

    np.testing.assert_allclose(rates(make(mine, optim.SGD(0.4))), torchs(make, [0.4]), rtol=1e-9, atol=1e-15)


PLATEAU: list[dict[str, Any]] = [
    {},
    {"patience": 2, "factor": 0.5, "cooldown": 2},
    {"patience": 0, "threshold": 0.1, "threshold_mode": "abs", "min_lr": 0.01},
    {"mode": "max", "patience": 1, "threshold": 0.05},
    {"patience": 1, "threshold": 0.3},
    {"patience": 1, "threshold": 0.3, "threshold_mode": "abs"},
    {"mode": "max", "patience": 1, "threshold": 0.3, "threshold_mode": "abs"},
    {"mode": "max", "patience": 1, "threshold_mode": "abs", "eps": 0.2},
]


@pytest.mark.torch
@pytest.mark.parametrize("options", PLATEAU, ids=str)
def test_plateaus_are_torchs(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    metrics = np.abs(np.random.default_rng(0).standard_normal(60)) + np.linspace(3, 0, 60) // 1
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    own = optim.SGD(0.5)
    scheduler = mine.ReduceLROnPlateau(own, **options)
    for value in metrics:
        theirs.step(value)
        scheduler.step(lm.tensor(value, "float64"))
        assert own.lr == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
    assert own.lr < 0.5 or options.get("eps")


def cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


@pytest.mark.parametrize(
    ("name", "options", "formula"),
    [
        ("StepLR", {"step_size": 7}, lambda n: 0.1 ** (n // 7)),
        ("MultiStepLR", {"milestones": [3, 10, 10]}, lambda n: 0.1 ** ((n >= 3) + 2 * (n >= 10))),
        ("ExponentialLR", {"gamma": 0.93}, lambda n: 0.93**n),
        ("MultiplicativeLR", {"lr_lambda": wave}, lambda n: 1.1 ** ((n + 1) // 2) * 0.9 ** (n // 2)),
        ("LambdaLR", {"lr_lambda": half_by_three}, half_by_three),
        ("ConstantLR", {"factor": 0.25, "total_iters": 11}, lambda n: 0.25 if n < 11 else 1.0),
        ("LinearLR", {"start_factor": 0.1, "end_factor": 0.7, "total_iters": 15}, lambda n: 0.1 + 0.04 * min(n, 15)),
        ("PolynomialLR", {"total_iters": 23, "power": 1.7}, lambda n: max(0.0, 1 - n / 23) ** 1.7),
        ("CosineAnnealingLR", {"T_max": 9}, lambda n: cosine(n / 9)),
        ("CosineAnnealingLR", {"T_max": 1, "eta_min": 0.25}, lambda n: 0.25 + 0.75 * cosine(n)),
        ("CosineAnnealingWarmRestarts", {"T_0": 6, "eta_min": 0.25}, lambda n: 0.25 + 0.75 * cosine(n % 6 / 6)),
        (
            "CyclicLR", {"base_lr": 0.25, "max_lr": 1.0, "step_size_up": 5, "cycle_momentum": False},
            lambda n: 1 - 0.15 * abs(n % 10 - 5),
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)  # fmt: skip
def test_rates_are_what_the_formula_says(
    name: str, options: dict[str, Any], formula: Callable[[int], float]
) -> None:
    found = rates(getattr(mine, name)(optim.SGD(1.0), **options))
    np.testing.assert_allclose(
        [rate for (rate,) in found], [formula(n) for n in range(STEPS + 1)], atol=1e-12
    )


def test_a_scheduler_sets_the_rate_of_the_compiled_step() -> None:
    optimizer = optim.SGD(0.5)
    scheduler = mine.ExponentialLR(optimizer, 0.5)
    net = lm.nn.Linear(2, 1, bias=False)
    start = net.weight.numpy().copy()
    step = lm.train_step(net, lambda out, y: lm.ops.sum(out), optimizer, device="cpu")
    for _ in range(3):
        step(np.ones((1, 2), np.float32), np.zeros(1, np.float32))
        scheduler.step()
    np.testing.assert_allclose(net.weight.numpy(), start - 0.875, rtol=1e-6)


def test_groups_have_rates_of_their_own() -> None:
    """Also those that follow the optimizer's rate until a scheduler sets theirs."""
    lm.manual_seed(0)
    net = lm.nn.Sequential(lm.nn.Linear(2, 2), lm.nn.Linear(2, 2), lm.nn.Linear(2, 1))
    optimizer = optim.SGD(lr=0.5).over(net, [{"params": "0", "lr": 0.125}, {"params": "1", "momentum": 0.5}])
    scheduler = mine.LambdaLR(optimizer, [lambda i: 0.5**i, lambda i: 1.0, lambda i: 2.0**i])
    assert scheduler.get_last_lr() == [0.125, 0.5, 0.5]
    scheduler.step()
    assert [group.lr for group in optimizer.param_groups] == [0.0625, 0.5, 1.0]
    assert optimizer.bound.rates(7) == [0.0625, 0.5, 1.0]
    weights = [p.numpy().copy() for p in net.parameters()]
    optimizer.step([np.ones(p.shape, np.float32) for p in net.parameters()])
    for before, p, rate in zip(weights, net.parameters(), (0.0625, 0.0625, 0.5, 0.5, 1.0, 1.0), strict=True):
        np.testing.assert_allclose(p.numpy(), before - rate, rtol=1e-5)


def test_warm_restarts_go_to_any_epoch() -> None:
    optimizer = optim.SGD(1.0)
    scheduler = mine.CosineAnnealingWarmRestarts(optimizer, 4, 2)
    for epoch, place in ((3.5, 3.5 / 4), (4, 0), (11.0, 7 / 8), (12.5, 0.5 / 16), (2, 0.5)):
        scheduler.step(epoch)
        assert optimizer.lr == pytest.approx((1 + math.cos(math.pi * place)) / 2)
    scheduler.step()
    assert scheduler.last_epoch == 3


def every() -> list[Any]:
    made = [getattr(mine, name)(optim.SGD(0.3), **options) for name, options in CASES]
    optimizer = optim.SGD(0.3)
    made.append(mine.SequentialLR(optimizer, [mine.LinearLR(optimizer), mine.StepLR(optimizer, 2)], [4]))
    return [*made, mine.ChainedScheduler([mine.LinearLR(optimizer), mine.StepLR(optimizer, 2)])]


def test_schedulers_go_on_from_their_state() -> None:
    for whole, second in zip(every(), every(), strict=True):
        for _ in range(5):
            whole.step()
        second.load_state_dict(copy.deepcopy(whole.state_dict()))
        assert second.get_last_lr() == whole.get_last_lr()
        assert rates(second, 30) == rates(whole, 30), type(whole).__name__


def test_plateaus_go_on_from_their_state() -> None:
    whole, second = (mine.ReduceLROnPlateau(optim.SGD(0.5), patience=1) for _ in range(2))
    for value in (3.0, 2.0, 2.5):
        whole.step(value)
    second.load_state_dict(whole.state_dict())
    for value in (2.5, 2.4, 1.0):
        whole.step(value)
        second.step(value)
        assert second.state_dict() == whole.state_dict()
    assert whole.get_last_lr() == [pytest.approx(0.05)]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda o: mine.StepLR(o, 0), ValueError, "StepLR: step_size must be at least 1, got 0"),
        (lambda o: mine.StepLR("sgd", 1), TypeError, "must be an instance of Optimizer or .* got 'sgd'"),
        (lambda o: mine.StepLR(optim.SGD(lambda i: 0.1), 1), TypeError, r"lr of SGD\(.* is a schedule already"),
        (lambda o: mine.ConstantLR(o, 0.0), ValueError, r"factor must be in \(0, 1\], got 0.0"),
        (lambda o: mine.LinearLR(o, 0.0), ValueError, r"start_factor=0.0 must be in \(0, 1\]"),
        (lambda o: mine.CyclicLR(o, 0.1, 1.0, mode="saw"), ValueError, "mode must be one of triangular, .*'saw'"),
        (lambda o: mine.CyclicLR(o, 0.1, 1.0, scale_mode="x"), ValueError, "scale_mode must be 'cycle' or"),
        (lambda o: mine.CyclicLR(optim.Adagrad(0.1), 0.1, 1.0), ValueError, "Adagrad has neither momentum nor betas"),
        (lambda o: mine.CyclicLR(o, [0.1, 0.2], 1.0), ValueError, "base_lr must be one value or 1, one each, got 2"),
        (lambda o: mine.OneCycleLR(o, 1.0), ValueError, "give total_steps, or epochs and steps_per_epoch"),
        (lambda o: mine.OneCycleLR(o, 1.0, 9, anneal_strategy="x"), ValueError, "must be 'cos' or 'linear', got 'x'"),
        (lambda o: mine.OneCycleLR(o, 1.0, 9, pct_start=2), ValueError, r"pct_start must be in \[0, 1\], got 2"),
        (lambda o: rates(mine.OneCycleLR(o, 1.0, 9)), ValueError, "step 10 is behind total_steps=9"),
        (lambda o: mine.SWALR(o, 0.1, -1), ValueError, "SWALR: anneal_epochs must be at least 0, got -1"),
        (lambda o: mine.SWALR(o, [0.1, 0.2]), ValueError, "SWALR: 2 numbers in swa_lr for 1 groups"),
        (lambda o: mine.SequentialLR(o, [], []), ValueError, "SequentialLR: needs at least one scheduler"),
        (lambda o: mine.ChainedScheduler([mine.StepLR(o, 1)], optim.SGD()), ValueError, "is for another optimizer"),
        (
            lambda o: mine.SequentialLR(o, [mine.StepLR(o, 1), mine.ReduceLROnPlateau(o)], [1]),
            TypeError,
            "schedulers must be a sequence of instances of LRScheduler, got",
        ),
        (lambda o: mine.SequentialLR(o, [mine.StepLR(o, 1)], [1]), ValueError, "a milestone for each of 1 sched"),
        (lambda o: mine.ReduceLROnPlateau(o, "low"), ValueError, "mode must be 'min' or 'max', got 'low'"),
        (lambda o: mine.ReduceLROnPlateau(o, factor=1.0), ValueError, r"factor must be in \[0, 1\), got 1.0"),
        (lambda o: mine.ReduceLROnPlateau(o, threshold_mode="x"), ValueError, "must be 'rel' or 'abs', got 'x'"),
        (lambda o: mine.StepLR(o, 1).load_state_dict({"rates": [1.0]}), KeyError, "last_epoch, step_size in one"),
        (lambda o: mine.ChainedScheduler([mine.StepLR(o, 1)]).load_state_dict({}), KeyError, "0 schedulers for 1"),
        (lambda o: mine.CosineAnnealingWarmRestarts(o, 2).step(-1), ValueError, "epoch must be at least 0, got -1"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(optim.SGD(0.1))


@pytest.mark.parametrize("way", ["scheduler", "lr", "group", "momentum"])
def test_numbers_are_set_outside_of_compiled_functions(way: str) -> None:
    weights = lm.nn.Parameter(lm.ones(3))
    optimizer = optim.SGD([weights], lr=0.5)
    scheduler = mine.ExponentialLR(optimizer, 0.5)
    ways: dict[str, Callable[[], None]] = {
        "scheduler": scheduler.step,
        "lr": lambda: setattr(optimizer, "lr", 0.1),
        "group": lambda: optimizer.param_groups[0].__setitem__("lr", 0.1),
        "momentum": lambda: setattr(optimizer, "momentum", 0.9),
    }

    def step(x: Any) -> Any:
        optimizer.step([lm.grad(lambda w: (w * x).sum())(weights)])
        ways[way]()
        return x

    with pytest.raises(
        RuntimeError, match=r"SGD\.\w+ is set within a compiled function.*outside of the function"
    ):
        lm.jit(step)(lm.ones(3))
    np.testing.assert_array_equal(weights.numpy(), 1)
    assert optimizer.param_groups[0].lr == 0.5
    step(lm.ones(3))  # at once it is done in each call
    np.testing.assert_array_equal(weights.numpy(), 0.5)


def test_an_optimizer_may_be_made_while_something_is_traced() -> None:
    weights = lm.nn.Parameter(lm.ones(3))

    @lm.jit
    def make(x: Any) -> Any:
        optim.SGD([{"params": [weights], "lr": 0.1}], lr=0.2)
        return x

    make(lm.ones(2))


GOING_ON: dict[str, Callable[..., Any]] = {
    "StepLR": partial(mine.StepLR, step_size=3),
    "MultiStepLR": partial(mine.MultiStepLR, milestones=[2, 5, 8, 9]),
    "ExponentialLR": partial(mine.ExponentialLR, gamma=0.9),
    "MultiplicativeLR": partial(mine.MultiplicativeLR, lr_lambda=lambda step: 1 / (1 + step)),
    "LambdaLR": partial(mine.LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
    "ConstantLR": partial(mine.ConstantLR, total_iters=7),
    "LinearLR": partial(mine.LinearLR, total_iters=8),
    "PolynomialLR": partial(mine.PolynomialLR, total_iters=9),
    "CosineAnnealingLR": partial(mine.CosineAnnealingLR, T_max=4, eta_min=0.01),
    "CosineAnnealingWarmRestarts": partial(mine.CosineAnnealingWarmRestarts, T_0=3, T_mult=2),
    "CyclicLR": partial(mine.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=3),
    "OneCycleLR": partial(mine.OneCycleLR, max_lr=0.3, total_steps=20),
    "SWALR": partial(mine.SWALR, swa_lr=0.01, anneal_epochs=9),
}


@pytest.mark.parametrize("name", GOING_ON)
def test_last_epoch_goes_on_as_if_nothing_had_ended(name: str) -> None:
    whole, again = (optim.SGD([nn.Parameter(lm.zeros(2))], lr=0.1, momentum=0.9) for _ in range(2))
    make = GOING_ON[name]
    scheduler = make(whole, last_epoch=-1)
    for _ in range(6):
        scheduler.step()
    again.load_state_dict(whole.state_dict())
    with pytest.raises(ValueError, match=rf"{name}: last_epoch=5 goes on where a scheduler ended"):
        make(again, last_epoch=5)
    assert again.param_groups[0].setdefault("initial_lr", 0.1) == again.param_groups[0]["initial_lr"] == 0.1
    later = make(again, last_epoch=5)
    for _ in range(6):
        assert later.last_epoch == scheduler.last_epoch
        assert later.get_last_lr() == pytest.approx(scheduler.get_last_lr())
        later.step()
        scheduler.step()


def test_last_epoch_is_checked() -> None:
    sgd = optim.SGD([nn.Parameter(lm.zeros(2))], lr=0.1)
    with pytest.raises(KeyError, match="no scheduler was made of this group"):
        _ = sgd.param_groups[0]["initial_lr"]
    with pytest.raises(ValueError, match="StepLR: last_epoch must be at least -1, got -2"):
        mine.StepLR(sgd, 3, last_epoch=-2)
    parts = [mine.StepLR(sgd, 3), mine.ExponentialLR(sgd, 0.9)]
    with pytest.raises(ValueError, match="SequentialLR: last_epoch=3 tells nothing of the schedulers' steps"):
        mine.SequentialLR(sgd, parts, [2], last_epoch=3)
