"""L-BFGS against PyTorch step by step, on hard functions and a network; its state; what it refuses."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.optim.lbfgs import _Point, _strong_wolfe
from tests.helpers import slow_but_every

START = np.array([0.6, 1.3, 0.7, 1.2])
OPTIONS: list[dict[str, Any]] = [
    {"lr": 0.01, "max_iter": 4},
    {"line_search_fn": "strong_wolfe", "max_iter": 4},
    {"line_search_fn": "strong_wolfe", "lr": 0.1, "max_iter": 7, "history_size": 2},
    {"line_search_fn": "strong_wolfe", "lr": 50.0, "max_iter": 3, "max_eval": 9},
    {"line_search_fn": "strong_wolfe", "lr": 5e-4, "max_iter": 6},  # lengths have to grow
    {"lr": 0.01, "max_iter": 30, "tolerance_change": 0.1},
    {"line_search_fn": "strong_wolfe", "max_iter": 30, "tolerance_change": 0.01, "history_size": 3},
    {"lr": 0.01, "max_iter": 9, "tolerance_grad": 30.0},
]


def rosenbrock(x: Any) -> Any:
    """For tensors of either library."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def waves(x: Any) -> Any:
    """Many local minima: line searches that zoom."""
    return (x**2 + 10 * (3 * x**2 / (1 + x**4)) ** 2).sum() + (x[0] - x[2]) ** 4


def straight(x: Any) -> Any:
    """No curvature: along a line the cubic through two points is a straight one."""
    return abs(x - 30.0).sum()


def minimizer(function: Any, **options: Any) -> tuple[Any, Any, Any]:
    p = nn.Parameter(lm.tensor(START, "float64"))
    both = lm.value_and_grad(lambda values: function(values[0]))
    return optim.LBFGS([p], **options), lambda: both([p]), p


@pytest.mark.torch
@pytest.mark.feature("F111")
@pytest.mark.parametrize("function", [rosenbrock, waves])
@pytest.mark.parametrize("options", slow_but_every(2, OPTIONS), ids=str)
def test_ten_steps_are_torchs(function: Any, options: dict[str, Any]) -> None:
    steps_are_torchs(10, function, options)


@pytest.mark.torch
@pytest.mark.feature("F111")
@pytest.mark.parametrize("options", OPTIONS[1:4], ids=str)
def test_steps_along_straight_lines_are_torchs(options: dict[str, Any]) -> None:
    """A search goes on to ten times the length; behind the kinks what rounding leaves decides."""
    steps_are_torchs(3, straight, options)


def steps_are_torchs(count: int, function: Any, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    q = torch.nn.Parameter(torch.tensor(START))
    theirs = torch.optim.LBFGS([q], **options)

    def closure() -> Any:
        theirs.zero_grad()
        loss = function(q)
        loss.backward()
        return loss

    own, own_closure, p = minimizer(function, **options)
    for _ in range(count):
        loss, wanted = own.step(own_closure), theirs.step(closure)
        np.testing.assert_allclose(float(loss), wanted.item(), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-6, atol=1e-8)
    assert own.evaluations == theirs.state[q]["func_evals"]


@pytest.mark.torch
@pytest.mark.feature("F111")
@pytest.mark.parametrize("most", [1, 2, 5, 25])
def test_lengths_along_a_line_are_torchs_whatever_a_function_answers(most: int) -> None:
    """Values of a few numbers, many of them equal, and any slopes, as no smooth function need have them."""
    import torch
    from torch.optim.lbfgs import _strong_wolfe as theirs

    for seed in range(300):
        rng = np.random.default_rng(seed)
        fall = float(rng.choice([0.0, 0.5, 1.0]))
        values = np.cumsum(rng.integers(-1, 2, 40)) / 4 - fall * np.arange(1, 41)
        slopes = rng.uniform(-2, 1, 40)
        asked: list[list[float]] = [[], []]

        def answer(length: float, who: int, asked: Any = asked, script: Any = (values, slopes)) -> Any:
            asked[who].append(float(length))
            return [float(numbers[len(asked[who]) - 1]) for numbers in script]

        def at(length: float, answer: Any = answer) -> _Point:
            value, slope = answer(length, 0)
            return _Point(length, value, None, slope)

        def evaluate(x: Any, length: Any, d: Any, answer: Any = answer) -> Any:
            value, slope = answer(length, 1)
            return value, torch.tensor([slope], dtype=torch.float64)

        found = _strong_wolfe(at, _Point(0.0, 0.0, None, -1.0), 1.0, most, 1e-9)
        one = torch.ones(1, dtype=torch.float64)
        value, _, length, count = theirs(evaluate, None, 1.0, one, 0.0, -one, -one[0], max_ls=most)
        assert len(asked[0]) == len(asked[1]) == count, seed
        np.testing.assert_allclose(asked[0], asked[1], rtol=1e-9, atol=1e-12, err_msg=str(seed))
        assert found.value == value, seed
        assert found.length == pytest.approx(float(length), rel=1e-9, abs=1e-12), seed


@pytest.mark.parametrize(
    ("options", "slope", "fall", "iterations", "evaluations"),
    [
        ({}, 1.0, 1.0, 5, 5),  # the last iteration only moves
        ({"tolerance_grad": 1.0}, 1.0, 1.0, 0, 1),  # the largest gradient is no more than that
        ({"tolerance_grad": 0.99}, 1.0, 1.0, 5, 5),
        ({"tolerance_change": 0.25}, 0.5, 1.0, 5, 5),  # the slope along the direction is -0.25, not above it
        ({"tolerance_change": 0.26}, 0.5, 1.0, 1, 1),
        ({"tolerance_change": 0.25}, 1.0, 0.25, 5, 5),  # the loss falls by 0.25, not by less
        ({"tolerance_change": 0.26}, 1.0, 0.25, 1, 2),
        ({"tolerance_change": 0.25}, 1.0, -0.25, 5, 5),  # or grows by it
        ({"tolerance_change": 0.26}, 1.0, -0.25, 1, 2),
        ({"tolerance_change": 0.25, "lr": 0.25}, 1.0, 1.0, 1, 2),  # the step is 0.25, no more
        ({"tolerance_change": 0.24, "lr": 0.25}, 1.0, 1.0, 5, 5),
        ({"max_eval": 3}, 1.0, 1.0, 2, 3),
        ({"max_eval": 1}, 1.0, 1.0, 1, 2),
    ],
)
def test_where_it_stops(
    options: dict[str, Any], slope: float, fall: float, iterations: int, evaluations: int
) -> None:
    """Five iterations along a line of one slope, whose loss falls by as much each time, at the borders."""
    p = nn.Parameter(lm.tensor([0.0], "float64"))
    own = optim.LBFGS([p], max_iter=5, **options)
    losses = iter(-fall * np.arange(9))
    own.step(lambda: (next(losses), [np.array([slope])]))
    assert (own.iterations, own.evaluations) == (iterations, evaluations)


@pytest.mark.feature("F111")
def test_it_finds_the_minimum() -> None:
    own, closure, p = minimizer(rosenbrock, line_search_fn="strong_wolfe", max_iter=100)
    own.step(closure)
    np.testing.assert_allclose(p.numpy(), 1.0, atol=1e-6)
    before = own.evaluations
    own.step(closure)
    assert own.evaluations == before + 1  # nothing is left to do


@pytest.mark.feature("F111")
def test_a_network_by_a_compiled_function() -> None:
    lm.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 3)).astype(np.float32)
    y = np.sin(x.sum(1, keepdims=True))
    both = lm.value_and_grad(lambda module: ops.mse_loss(module(lm.tensor(x)), lm.tensor(y)))
    own = optim.LBFGS(net, line_search_fn="strong_wolfe")
    losses = [float(own.step(lambda: both(net))) for _ in range(5)]
    assert losses[-1] < 0.05 * losses[0]
    assert repr(own) == "LBFGS(lr=1.0, max_iter=20, line_search_fn='strong_wolfe')"


def test_gradients_of_modules_are_found_whatever_the_parameters_are_called() -> None:
    lm.manual_seed(0)
    first, second = nn.Linear(3, 4), nn.Linear(4, 1)
    x, y = np.random.default_rng(0).standard_normal((2, 20, 3)).astype(np.float32)
    loss = lm.value_and_grad(lambda a, b: ops.mse_loss(b(a(lm.tensor(x))), lm.tensor(y[:, :1])), (0, 1))
    own = optim.LBFGS([*second.parameters(), *first.parameters()], line_search_fn="strong_wolfe")
    start = float(own.step(lambda: loss(first, second)))
    assert float(loss(first, second)[0]) < 0.9 * start


def test_gradients_by_the_names_of_the_parameters() -> None:
    """In any order; a name that is none of them is refused."""
    net = nn.Module()
    net.a, net.b = nn.Parameter(lm.tensor([3.0, -1.0])), nn.Parameter(lm.tensor(2.0))
    own = optim.LBFGS(net, line_search_fn="strong_wolfe")

    def closure() -> Any:
        a, b, goal = net.a, net.b, np.float32([1.0, 2.0])
        loss = ops.sum(ops.square(a - goal)) + 4 * ops.square(b + 1)
        return loss, {"b": 8 * (b + 1), "a": 2 * (a - goal)}

    own.step(closure)
    np.testing.assert_allclose(net.a.numpy(), [1.0, 2.0], atol=1e-4)
    np.testing.assert_allclose(net.b.numpy(), -1.0, atol=1e-4)
    with pytest.raises(TypeError, match="closure must give a gradient for each of 2 parameters"):
        own.step(lambda: (closure()[0], {**closure()[1], "c": lm.zeros(1)}))


def test_what_is_frozen_needs_no_gradient_and_stays() -> None:
    lm.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    net[0].requires_grad_(False)
    before = net[0].weight.numpy().copy()
    both = lm.value_and_grad(lambda n: ops.mean(ops.square(n(lm.ones(2, 3)) - 1)))
    for own in (optim.LBFGS(net, lr=0.1), optim.LBFGS(net.parameters(), lr=0.1)):
        first = float(own.step(lambda: both(net)))
        own.step(lambda: (both(net)[0], list(both(net)[1].values())))
        assert float(both(net)[0]) < first
    np.testing.assert_array_equal(net[0].weight.numpy(), before)


def test_it_goes_on_from_its_state() -> None:
    options = {"line_search_fn": "strong_wolfe", "max_iter": 3}
    whole, closure, p = minimizer(rosenbrock, **options)
    for _ in range(3):
        whole.step(closure)
    second, second_closure, q = minimizer(rosenbrock, **options)
    second.load_state_dict(whole.state_dict())
    q.copy_(p)
    for _ in range(3):
        assert float(whole.step(closure)) == float(second.step(second_closure))
    np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_what_is_refused() -> None:
    p = nn.Parameter(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="no parameters to minimize by"):
        optim.LBFGS([])
    with pytest.raises(ValueError, match="lr must be at least 0, got -1"):
        optim.LBFGS([p], lr=-1)
    with pytest.raises(ValueError, match="line_search_fn must be None or 'strong_wolfe', got 'x'"):
        optim.LBFGS([p], line_search_fn="x")
    with pytest.raises(ValueError, match="max_iter=0 and history_size=100 must be at least 1"):
        optim.LBFGS([p], max_iter=0)
    with pytest.raises(TypeError, match=r"closure must give \(loss, gradients\), .*, got 1.0"):
        optim.LBFGS([p]).step(lambda: 1.0)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="a gradient for each of 1 parameters"):
        optim.LBFGS([p]).step(lambda: (1.0, []))
    with pytest.raises(lm.ShapeError, match=r"gradient of 0 must have shape \(2,\), got \(3,\)"):
        optim.LBFGS([p]).step(lambda: (1.0, [np.ones(3, np.float32)]))
