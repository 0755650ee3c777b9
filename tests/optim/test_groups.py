"""Parameter groups: how they are chosen, what each trains by, whose gradient is whose, and what is kept."""

import copy
import pickle
import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.spec import ShapeError

pytestmark = pytest.mark.feature("B044")

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)


def network() -> nn.Sequential:
    nn.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def loss_of(net: Any, x: Any = X) -> Any:
    return ops.mean(ops.square(net(x) - 1.0))


def names(group: optim.ParameterGroup) -> list[str]:
    return list(group.params)


def values(net: nn.Module) -> dict[str, Any]:
    return {n: p.numpy().copy() for n, p in net.named_parameters()}


def test_groups_by_name_module_and_predicate() -> None:
    net = network()
    rule = optim.AdamW(lr=0.1, weight_decay=0.5)
    chosen = rule.over(
        net,
        [
            {"params": lambda name, p: p.ndim < 2, "weight_decay": 0.0},
            {"params": "0", "lr": 0.2},
            {"params": "*.weight", "betas": (0.5, 0.9)},
        ],
    )
    first, second, third = chosen.param_groups
    assert (names(first), names(second), names(third)) == (["0.bias", "2.bias"], ["0.weight"], ["2.weight"])
    assert (first["weight_decay"], second["weight_decay"], third["betas"]) == (0.0, 0.5, (0.5, 0.9))
    by_module = rule.over(net, [{"params": net[2], "lr": 0.3}]).param_groups
    assert [names(g) for g in by_module] == [["2.weight", "2.bias"], ["0.weight", "0.bias"]]
    by_parameters = rule.over(net, [{"params": [net[2].weight], "lr": 0.3}]).param_groups
    assert names(by_parameters[0]) == ["2.weight"]
    assert "3 parameters" in repr(by_parameters[1])


def test_a_group_follows_the_optimizers_rate_unless_it_has_its_own() -> None:
    net = network()
    optimizer = optim.SGD(lr=0.1).over(net, [{"params": "0", "momentum": 0.9}, {"params": "2", "lr": 0.5}])
    assert optimizer.bound.rates(0) == [0.1, 0.5]
    optimizer.lr = 0.25
    assert optimizer.bound.rates(0) == [0.25, 0.5]
    optimizer.param_groups[1]["lr"] = lambda step: 1.0 / (step + 1)
    optimizer.param_groups[0].lr = 0.75
    assert optimizer.bound.rates(1) == [0.75, 0.5]


@pytest.mark.parametrize("kind", ["eager", "jit", "train_step"])
def test_a_rate_is_as_wide_as_the_widest_parameter_of_its_group(kind: str) -> None:
    """0.1 is not the float32 next to it; a group of both types trains both, the narrow one as before."""
    net = nn.Sequential(nn.Linear(2, 1).double(), nn.Linear(2, 1))
    start = values(net)
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    def update() -> Any:
        _, grads = lm.value_and_grad(
            lambda net: sum(ops.sum(ops.cast(p, "float64")) for p in net.parameters())
        )(net)
        optimizer.step(grads)

    if kind == "train_step":
        net, start = nn.Sequential(net[0]), {n: p for n, p in start.items() if n.startswith("0")}
        x, optimizer = np.ones((1, 2)), optim.SGD(net.parameters(), lr=0.1)
        lm.train_step(net, lambda y, t: ops.sum(y), optimizer, precision="fp64")(x)
    else:
        (lm.jit(update) if kind == "jit" else update)()
    for name, value in values(net).items():
        tolerance = 1e-15 if value.dtype == np.float64 else 1e-7
        np.testing.assert_allclose(value, start[name] - 0.1, rtol=0, atol=tolerance, err_msg=name)
    assert [s.dtype.short for s in optimizer.bound.given_specs()] == ["f64"]
    net.float()
    assert [s.dtype.short for s in optimizer.bound.given_specs()] == ["f32"]


@pytest.mark.parametrize("compiled", [False, True])
def test_each_group_trains_by_its_own_numbers_and_schedule(compiled: bool) -> None:
    net = network()
    start = values(net)
    optimizer = optim.SGD(
        [
            {"params": net[2].parameters(), "lr": lambda step: 0.1 * (step + 1)},
            {"params": [net[0].weight], "weight_decay": 0.5},
            {"params": [net[0].bias], "lr": 0.0},
        ],
        lr=0.25,
    )

    def step() -> Any:
        loss, grads = lm.value_and_grad(loss_of)(net)
        optimizer.step(grads)
        return loss, dict(grads)

    run = lm.jit(step) if compiled else step
    expected = start
    for number in range(3):
        _, grads = run()
        rates = {
            "2.weight": 0.1 * (number + 1),
            "2.bias": 0.1 * (number + 1),
            "0.weight": 0.25,
            "0.bias": 0.0,
        }
        decay = {"0.weight": 0.5}
        expected = {n: p - rates[n] * (grads[n].numpy() + decay.get(n, 0.0) * p) for n, p in expected.items()}
        for name, value in values(net).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-7)
    assert optimizer.bound.number == 3


def test_a_frozen_group_or_module_has_no_gradient_no_state_and_no_update() -> None:
    net = network()
    start = values(net)
    optimizer = optim.Adam(lr=0.1).over(net, [{"params": "0", "frozen": True}])
    assert not net[0].weight.requires_grad
    assert net[2].weight.requires_grad
    _, grads = lm.value_and_grad(loss_of)(net)
    assert list(grads) == ["2.weight", "2.bias"]
    optimizer.step(grads)
    for name, value in values(net).items():
        assert np.array_equal(value, start[name]) == name.startswith("0")
    assert sorted(n for n in optimizer.state_dict() if not n.startswith("param_groups")) == sorted(
        ["step", *(f"2.{n}.{part}" for n in ("weight", "bias") for part in optimizer.parts)]
    )
    net.requires_grad_(True)
    optimizer.step(lm.grad(loss_of)(net))
    assert not np.array_equal(net[0].weight.numpy(), start["0.weight"])


def test_freezing_is_seen_by_compiled_functions_and_kept_by_copies() -> None:
    net = network()
    grads = lm.jit(lambda: dict(lm.grad(loss_of)(net)))
    assert len(grads()) == 4
    net[0].weight.requires_grad = False
    assert list(grads()) == ["0.bias", "2.weight", "2.bias"]
    assert not copy.deepcopy(net)[0].weight.requires_grad
    net[0].weight.requires_grad_()
    assert len(grads()) == 4
    assert not nn.Parameter(X, requires_grad=False).requires_grad
    assert not lm.tensor(X).requires_grad


def test_freezing_alone_traces_anew() -> None:
    net, traced = network(), []

    def gradients() -> dict[str, Any]:
        traced.append(len(traced))
        return dict(lm.grad(loss_of)(net))

    compiled = lm.jit(gradients)
    for frozen, times in ((False, 1), (False, 1), (True, 2), (True, 2)):
        net[0].weight.requires_grad = not frozen
        assert len(compiled()) == 4 - frozen
        assert len(traced) == times


def test_gradients_find_their_parameters() -> None:
    """Whatever the order of groups; of several modules; by name; in a list."""
    net, other = network(), network()
    net_start = values(net)
    grads = lm.grad(loss_of)(net)

    def check(optimizer: optim.Optimizer, given: Any) -> None:
        net.load_state_dict(net_start)
        optimizer.step(given)
        for name, value in values(net).items():
            np.testing.assert_allclose(
                value, net_start[name] - 0.5 * grads[name].numpy(), rtol=1e-5, atol=1e-7
            )

    swapped = optim.SGD(
        [{"params": [net[2].bias, net[0].bias]}, {"params": [net[2].weight, net[0].weight]}], lr=0.5
    )
    check(swapped, grads)
    check(optim.SGD(net.parameters(), lr=0.5), grads)
    check(optim.SGD(net.parameters(), lr=0.5), list(grads.values()))
    check(optim.SGD(net.named_parameters(), lr=0.5), dict(grads))
    check(optim.SGD(net, lr=0.5), {n: g.numpy() for n, g in grads.items()})
    net.load_state_dict(net_start)
    both = lm.grad(lambda a, b: loss_of(a) + loss_of(b), argnums=(0, 1))(net, other)
    check(optim.SGD(chain(other.parameters(), net.parameters()), lr=0.5), both)
    check(optim.SGD([other, net], lr=0.5), both)


def test_gradients_of_others_are_named() -> None:
    net, other = network(), network()
    optimizer = optim.SGD(net, lr=0.5)
    grads = lm.grad(loss_of)(net)
    with pytest.raises(ValueError, match="none of the gradients is of a parameter that it trains"):
        optimizer.step(lm.grad(loss_of)(other))
    with pytest.raises(ValueError, match="3 gradients for 4 parameters"):
        optimizer.step(list(grads.values())[:3])
    with pytest.raises(ValueError, match=r"1 gradients for 0 parameters and 1 frozen ones \(requires_grad"):
        optim.SGD([lm.zeros(3)], lr=0.1).step([lm.ones(3)])
    with pytest.raises(ValueError, match=r"gradients are named a, parameters 0.weight, 0.bias"):
        optimizer.step({"a": X})
    with pytest.raises(TypeError, match="gradients are a dict by name, a list"):
        optimizer.step("all")
    with pytest.raises(ShapeError, match=r"0.weight is \(4, 3\), its gradient \(6, 3\)"):
        optimizer.step({"0.weight": X})
    with pytest.raises(ValueError, match="there are no gradients: give them, or call accumulate"):
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda net: optim.SGD(lr=0.1).over([]), ValueError, "SGD: there are no parameters to train"),
        (lambda net: optim.SGD(lr=0.1).over(["a"]), TypeError, r"SGD: params\[0\] is no parameter"),
        (
            lambda net: optim.SGD(lr=0.1).over(net, [{"params": "9.*"}]),
            ValueError,
            "group 0 selects none of the parameters 0.weight",
        ),
        (
            lambda net: optim.SGD(lr=0.1).over(net, [{"params": "0", "rho": 1}]),
            TypeError,
            "SGD: a group sets rho; its numbers are lr, momentum",
        ),
        (lambda net: optim.SGD(lr=0.1).over(net, [{"lr": 1}]), TypeError, "group 0 has no 'params'"),
        (
            lambda net: optim.SGD([{"params": "0"}], lr=1),
            TypeError,
            r"group 0 needs its parameters under 'params'",
        ),
        (
            lambda net: optim.SGD([{"params": net}, {"params": net[0]}], lr=1),
            ValueError,
            "1.weight, 1.bias is in more than one group",
        ),
        (
            lambda net: optim.SGD(lr=1).over(net[0], [{"params": net[2], "lr": 1}]),
            ValueError,
            "group 0 has parameters that are not among those to train",
        ),
        (
            lambda net: optim.SGD(lr=1).over(net, [{"params": "0", "frozen": True, "momentum": 0.9}]),
            ValueError,
            "group 0 is frozen, so that",
        ),
        (lambda net: optim.SGD([net[0].weight] * 2, lr=1), ValueError, "given more than once"),
    ],
)
def test_bad_groups_are_named(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(network())


@pytest.mark.parametrize("compiled", [False, True])
def test_gathered_gradients_update_by_their_mean(compiled: bool) -> None:
    net, whole = network(), network()
    optimizer, other = optim.SGD(net, lr=0.5, momentum=0.9), optim.SGD(whole, lr=0.5, momentum=0.9)

    def step(x: Any, update: bool) -> None:
        optimizer.accumulate(lm.grad(loss_of)(net, x))
        if update:
            optimizer.step()

    run = lm.jit(step) if compiled else step
    for _ in range(2):
        run(X[:3], False)
        run(X[3:], True)
        other.step(lm.grad(loss_of)(whole, X))
    run(X[:3], True)  # a short group
    other.step(lm.grad(loss_of)(whole, X[:3]))
    for name, value in values(net).items():
        np.testing.assert_allclose(value, values(whole)[name], rtol=1e-5, atol=1e-7)
    assert optimizer.bound.number == 3


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_are_gathered_in_the_type_of_their_parameter(shape: tuple[int, ...], dtype: str) -> None:
    number = nn.Parameter(np.ones(shape, dtype))
    optimizer = optim.SGD([number], lr=1.0)
    for gradient in (0.25, 1 / 3):
        optimizer.accumulate([np.full(shape, gradient, dtype)])
    (gathered,) = (x for name, x in optimizer.state_dict().items() if name.endswith("sum_of_gradients"))
    assert str(gathered.dtype) == dtype
    optimizer.step()
    mean = (np.array(0.25, dtype) + np.array(1 / 3, dtype)) / np.array(2, dtype)
    np.testing.assert_array_equal(number.numpy(), np.full(shape, 1 - mean))


def test_two_updates_within_one_program_are_two_updates() -> None:
    net, eager = network(), network()
    rate = lambda step: 0.5 / (step + 1)  # noqa: E731
    first, second = optim.SGD(net, lr=rate, momentum=0.9), optim.SGD(eager, lr=rate, momentum=0.9)

    @lm.jit
    def step() -> Any:
        first.step(lm.grad(loss_of)(net))
        first.step(lm.grad(loss_of)(net))
        return loss_of(net)

    for _ in range(3):
        found = step()
        for _ in range(2):
            second.step(lm.grad(loss_of)(eager))
        assert found.item() == pytest.approx(loss_of(eager).item(), rel=1e-5)
    assert first.bound.number == second.bound.number == 6


def test_states_are_saved_and_loaded() -> None:
    net = network()
    optimizer = optim.Adam(net, lr=0.1)
    optimizer.step(lm.grad(loss_of)(net))
    optimizer.accumulate(lm.grad(loss_of)(net))
    state = {n: x.numpy().copy() for n, x in optimizer.state_dict().items()}
    twin = copy.deepcopy(net)
    other = optim.Adam(twin, lr=0.1)
    other.load_state_dict(state)
    for each in (optimizer, other):
        each.step()
    for name, value in values(net).items():
        np.testing.assert_array_equal(value, values(twin)[name])
    assert other.bound.number == 2
    with pytest.raises(ValueError, match="Adam.load_state_dict: does not fit: 9.bias"):
        other.load_state_dict({**state, "9.bias": X})


def test_rates_and_numbers_are_saved_and_loaded() -> None:
    """As torch's `param_groups`: what was set since they were made, of groups with and without rates of their own."""
    net = network()
    made = [
        optim.Adam([{"params": net[0].parameters(), "lr": 0.5}, {"params": net[2].parameters()}], lr=0.1)
        for _ in range(2)
    ]
    first, second = made
    first.param_groups[0].lr, first.lr = 0.25, 0.05
    first.param_groups[1]["betas"] = (0.5, 0.75)
    first.weight_decay = 0.125
    state = {n: x.numpy().copy() for n, x in first.state_dict().items()}
    assert state["param_groups.0.lr"] == 0.25
    second.load_state_dict(state)
    for one, other in zip(first.param_groups, second.param_groups, strict=True):
        assert {n: x for n, x in one.items() if n != "params"} == {
            n: x for n, x in other.items() if n != "params"
        }
    second.lr = 0.01  # the second group still follows it
    assert [group.lr for group in second.param_groups] == [0.25, 0.01]
    older = {n: x for n, x in state.items() if not n.startswith("param_groups")}
    second.load_state_dict(older)
    assert second.param_groups[0].lr == 0.25


def test_a_schedule_is_no_part_of_a_state_and_stays() -> None:
    net, schedule = network(), optim.schedule.cosine(0.1, 10)
    scheduled, plain = optim.SGD(net, lr=schedule), optim.SGD(net, lr=0.5)
    assert "param_groups.0.lr" not in scheduled.state_dict()
    scheduled.load_state_dict(plain.state_dict() | {"step": lm.tensor(3)})
    assert scheduled.lr is schedule
    assert scheduled.bound.number == 3


def test_a_number_that_an_optimizer_has_for_good() -> None:
    net = network()
    other, without = optim.Adam(net, lr=0.1, eps=1e-3, amsgrad=True), optim.Adam(net, lr=0.2)
    with pytest.raises(ValueError, match="Adam.amsgrad: with True it keeps"):
        without.load_state_dict(other.state_dict())
    assert (without.lr, without.eps, without.amsgrad) == (0.2, 1e-8, False)
    with pytest.raises(ValueError, match=r"does not fit: param_groups.1.lr$"):
        without.load_state_dict(without.state_dict() | {"param_groups.1.lr": lm.tensor(0.1)})


@pytest.mark.parametrize(
    "change", [lambda x: x[None], lambda x: x[..., :-1], None], ids=["longer", "shorter", "missing"]
)
def test_each_part_of_a_state_must_have_its_shape(change: Callable[[Any], Any] | None) -> None:
    """Of another shape, or missing beside others of its parameter: it is named, and nothing is taken over."""
    net = network()
    optimizer = optim.Adam(net, lr=0.1)
    optimizer.step(lm.grad(loss_of)(net))
    before = {n: x.numpy().copy() for n, x in optimizer.state_dict().items()}
    for name, x in before.items():
        if not x.ndim or (change is None and name.startswith("param_groups")):  # a number may be missing
            continue
        wrong = {n: y + 1 for n, y in before.items()}
        if change is None:
            del wrong[name]
        else:
            wrong[name] = change(x)
        with pytest.raises(ValueError, match=f"does not fit: {re.escape(name)}$"):
            optimizer.load_state_dict(wrong)
        for n, y in optimizer.state_dict().items():
            np.testing.assert_array_equal(y.numpy(), before[n])


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.embedding(x))

    net = Tied()
    start = net.head.weight.numpy().copy()
    tokens = np.array([1, 3, 3])
    optimizer = optim.SGD(net, lr=1.0)
    assert [names(g) for g in optimizer.param_groups] == [["embedding.weight"]]
    grads = lm.grad(lambda net: ops.sum(net(tokens)))(net)
    looked_up = start[tokens]
    expected = np.broadcast_to(looked_up.sum(0), start.shape).copy()
    np.add.at(expected, tokens, start.sum(0))
    np.testing.assert_allclose(grads["embedding.weight"].numpy(), expected, rtol=1e-5)
    optimizer.step(grads)
    assert net.head.weight is net.embedding.weight
    np.testing.assert_allclose(net.embedding.weight.numpy(), start - expected, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_derivatives_end_at_updated_parameters(compiled: bool) -> None:
    """What is differentiated after an update, in the same program, does not go through it."""
    first, second = network(), nn.Linear(2, 1)
    other, last = copy.deepcopy(first), copy.deepcopy(second)

    def step(a: nn.Module, b: nn.Module, of_a: optim.Optimizer, of_b: optim.Optimizer) -> None:
        of_b.step(lm.grad(lambda b: ops.mean(ops.square(b(a(X)))))(b))
        of_a.step(lm.grad(lambda a: ops.mean(b(a(X))))(a))

    both = [optim.Adam(net, lr=0.1) for net in (first, second, other, last)]
    run = lm.jit(step) if compiled else step
    for _ in range(3):
        run(first, second, both[0], both[1])
        both[3].step(lm.grad(lambda b: ops.mean(ops.square(b(other(X)))))(last))
        both[2].step(lm.grad(lambda a: ops.mean(last(a(X))))(other))
    for name, value in values(first).items():
        np.testing.assert_allclose(value, values(other)[name], rtol=1e-4, atol=1e-6)


def test_a_group_is_read_as_a_dict_and_what_is_missing_says_what_to_write() -> None:
    optimizer = optim.SGD(network().parameters(), lr=0.1, momentum=0.9)
    group = optimizer.param_groups[0]
    assert group.keys() == ["params", "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"]
    assert (group.get("momentum"), group.get("betas"), group.get("betas", 3)) == (0.9, None, 3)
    assert "lr" in group
    assert "betas" not in group
    assert {name: group[name] for name in group}["lr"] == 0.1
    for name, text in (
        ("state", r"state_dict\(\)"),
        ("defaults", "param_groups"),
    ):
        with pytest.raises(AttributeError, match=text):
            getattr(optimizer, name)


def test_a_copy_with_its_network_trains_the_copy() -> None:
    net = network()
    own = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    own.step(lm.grad(loss_of)(net))
    for second, its in (copy.deepcopy((net, own)), pickle.loads(pickle.dumps((net, own)))):
        kept = net[0].weight.numpy().copy()
        before = second[0].weight.numpy().copy()
        its.step(lm.grad(loss_of)(second))
        assert np.abs(second[0].weight.numpy() - before).max() > 0
        np.testing.assert_array_equal(net[0].weight.numpy(), kept)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_group_that_is_added_trains_by_its_own_numbers(compiled: bool) -> None:
    """A network that is unfrozen layer by layer: its first layer joins after two steps."""
    net = network()
    start = values(net)
    optimizer = optim.SGD(net[2].parameters(), lr=0.1, momentum=0.9)
    step = lm.train_step(net, lambda out, y: ops.mean(ops.square(out - y)), optimizer, device="cpu")

    def run() -> None:
        if compiled:
            step(X, np.ones((6, 2), np.float32))
        else:
            optimizer.step(lm.grad(loss_of)(net))

    run()
    run()
    before = values(net)
    np.testing.assert_array_equal(before["0.weight"], start["0.weight"])
    gradient = lm.grad(loss_of)(net)["0.weight"].numpy()
    optimizer.add_param_group({"params": net[0].parameters(), "lr": 0.5, "momentum": 0.0})
    run()
    np.testing.assert_allclose(values(net)["0.weight"], before["0.weight"] - 0.5 * gradient, rtol=1e-5)
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    assert optimizer.param_groups[1]["momentum"] == 0.0
    assert {name.partition(".")[0] for name in optimizer.state_dict()} == {"step", "0", "1", "param_groups"}
    with pytest.raises(ValueError, match="is in more than one group"):
        optimizer.add_param_group({"params": net[0].weight})
    with pytest.raises(TypeError, match="group 2 needs its parameters under 'params'"):
        optimizer.add_param_group({"lr": 0.5})
    optimizer.add_param_group({"params": nn.Linear(1, 1).parameters()})
    with pytest.raises(
        ValueError, match="the optimizer trains 2.0, 2.1, which neither Sequential nor its loss has"
    ):
        step(X, np.ones((6, 2), np.float32))


def test_groups_without_numbers_of_their_own_are_apart() -> None:
    net = network()
    optimizer = optim.SGD([{"params": net[0].parameters()}, {"params": net[2].parameters()}], lr=0.5)
    first, second = optimizer.param_groups
    first["lr"] *= 0.5
    first["weight_decay"] = 0.25
    assert (first["lr"], second["lr"], optimizer.lr) == (0.25, 0.5, 0.5)
    assert (first["weight_decay"], second["weight_decay"], optimizer.weight_decay) == (0.25, 0.0, 0.0)
    optimizer.momentum = 0.5
    assert [dict(group.items())["momentum"] for group in (first, second)] == [0.5, 0.5]
    with pytest.raises(KeyError, match="a group of SGD sets lr, momentum, .*, not 'betas'"):
        first["betas"] = (0.5, 0.5)


def test_parameters_without_a_gathered_gradient_are_left_alone() -> None:
    net = network()
    optimizer = optim.SGD(net.parameters(), lr=0.5, weight_decay=0.5)
    grads = lm.grad(loss_of)(net)
    optimizer.accumulate(grads)
    optimizer.step()
    before = values(net)
    optimizer.accumulate({"1": grads["0.bias"]})
    optimizer.step()
    after = values(net)
    assert [name for name in before if np.any(before[name] != after[name])] == ["0.bias"]


def test_compiled_steps_leave_parameters_without_a_gathered_gradient_alone() -> None:
    net = network()
    optimizer = optim.SGD(net.parameters(), lr=0.5, weight_decay=0.5, momentum=0.9)
    grads = lm.grad(loss_of)(net)
    gather = lm.jit(lambda: optimizer.accumulate(grads))
    some = lm.jit(lambda: optimizer.accumulate({"1": grads["0.bias"]}))
    update = lm.jit(lambda: optimizer.step())

    @lm.jit
    def both() -> None:
        optimizer.accumulate({"1": grads["0.bias"]})
        optimizer.step()

    for first, after in ((gather, update), (some, update), (gather, update), (both, None), (some, both)):
        before = values(net)
        first()
        if after is not None:
            after()
        now = values(net)
        changed = {name for name in before if np.any(before[name] != now[name])}
        assert changed == (set(before) if first is gather else {"0.bias"})
    with pytest.raises(ValueError, match="there are no gradients"):
        update()


@pytest.mark.torch
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_parameters_that_a_loss_does_not_depend_on_are_left_alone_as_torchs(
    name: str, compiled: bool
) -> None:
    """Two heads in turn: neither weight decay nor momentum moves the one that a batch does not use."""
    import torch

    own = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)])
    other = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)])
    own.load_state_dict(other.state_dict())
    numbers = {"lr": 0.1, "weight_decay": 0.1} | ({"momentum": 0.9} if name == "SGD" else {})
    optimizer = getattr(optim, name)(own.parameters(), **numbers)
    torchs = getattr(torch.optim, name)(other.parameters(), **numbers)

    def update(x: Any, head: int) -> Any:
        loss, grads = lm.value_and_grad(lambda net: ops.mean(ops.square(net[head](ops.tanh(net[0](x))))))(own)
        nn.utils.clip_grad_norm_(grads, 1.0)
        optimizer.step(grads)
        return loss

    step = lm.jit(update) if compiled else update
    for head in (1, 1, 2, 1, 2, 2):
        x = np.random.default_rng(head).standard_normal((4, 3)).astype(np.float32)
        torchs.zero_grad()
        loss = other[head](other[0](torch.tensor(x)).tanh()).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        torchs.step()
        assert step(lm.tensor(x), head).item() == pytest.approx(loss.item(), rel=1e-5)
    for p, q in zip(own.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_none_is_no_gradient() -> None:
    net = network()
    optimizer = optim.SGD(net, lr=0.5, weight_decay=0.5)
    grads = lm.grad(loss_of)(net)
    listed = [g if name == "0.bias" else None for name, g in grads.items()]
    for given in ({n: g if n == "0.bias" else None for n, g in grads.items()}, listed):
        before = values(net)
        optimizer.step(given)
        after = values(net)
        assert [name for name in before if np.any(before[name] != after[name])] == ["0.bias"]


def test_gradients_of_a_compiled_function_are_those_of_their_parameters() -> None:
    """Whatever the optimizer calls them, and in a function that is compiled itself."""
    net, twin = network(), network()
    slope = lm.jit(lm.value_and_grad(loss_of))
    for make in (optim.SGD, optim.Adam):
        second = list(net.parameters())[::-1]
        first, other = make(second, lr=0.1), make(list(twin.parameters())[::-1], lr=0.1)
        apply = lm.jit(lambda grads, first=first: first.step(grads))
        for _ in range(2):
            first.step(slope(net)[1])
            apply(slope(net)[1])
            other.step(lm.grad(loss_of)(twin))
            other.step(lm.grad(loss_of)(twin))
    for name, value in values(net).items():
        np.testing.assert_allclose(value, values(twin)[name], rtol=1e-5, atol=1e-6)
    nearest = optim.LBFGS(net.parameters(), lr=1.0, max_iter=5)
    before = nearest.step(lambda: slope(net))
    assert loss_of(net).item() < before.item()


def trained(optimizer: Any, *nets: nn.Module, steps: int = 3) -> list[float]:
    """The losses of a few steps of networks behind each other."""
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)

    def loss(*nets: Any) -> Any:
        y: Any = x
        for net in nets:
            y = net(y)
        return ops.mean(ops.square(y))

    found = []
    for _ in range(steps):
        value, grads = lm.value_and_grad(loss, tuple(range(len(nets))))(*nets)
        optimizer.step(grads)
        found.append(float(value))
    return found


def test_parameters_of_two_networks_may_have_the_same_names() -> None:
    """Named pairs of both are trained, whatever their names."""
    nets = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = optim.SGD(chain.from_iterable(n.named_parameters() for n in nets), lr=0.1)
    before = [p.numpy().copy() for n in nets for p in n.parameters()]
    trained(optimizer, *nets, steps=1)
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 4
    for old, now in zip(before, [p for n in nets for p in n.parameters()], strict=True):
        assert not np.array_equal(old, now.numpy())


def test_a_group_that_is_added_has_names_and_state_of_its_own() -> None:
    """Its parameters would be called as those of the first group's second layer are."""

    def made() -> tuple[nn.Module, nn.Module, Any]:
        lm.manual_seed(0)
        body, head = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 3)
        optimizer = optim.SGD(body, lr=0.1, momentum=0.9)
        optimizer.add_param_group({"params": head, "lr": 0.01})
        return body, head, optimizer

    body, head, optimizer = made()
    trained(optimizer, body, head)
    state = {k: lm.tensor(v.numpy().copy()) for k, v in optimizer.state_dict().items()}
    again, last, other = made()
    again.load_state_dict(body.state_dict())
    last.load_state_dict(head.state_dict())
    other.load_state_dict(state)
    assert trained(other, again, last) == trained(optimizer, body, head)


@pytest.mark.parametrize("rule", [optim.SGD(lr=0.1, momentum=0.9), optim.Adam(lr=0.1)], ids=["sgd", "adam"])
def test_a_state_from_before_the_first_step_begins_anew(rule: Any) -> None:
    net = nn.Linear(3, 2)
    optimizer = rule.over(net)
    weights = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    first = optimizer.state_dict()
    losses = trained(optimizer, net, steps=4)
    net.load_state_dict(weights)
    optimizer.load_state_dict(first)
    assert trained(optimizer, net, steps=4) == losses


def test_a_name_that_was_made_free_may_be_there_already() -> None:
    """Each parameter is trained, and has a state of its own, whatever names meet on the way."""
    first, second, third, fourth = (nn.Parameter(lm.zeros(1)) for _ in range(4))
    optimizer = optim.SGD([("w", first), ("w", second), ("1.w", third)], lr=0.1, momentum=0.9)
    optimizer.add_param_group({"params": [("w", fourth)]})
    _, grads = lm.value_and_grad(lambda *ps: ops.sum(sum(ps)), (0, 1, 2, 3))(first, second, third, fourth)
    optimizer.step(grads)
    for p in (first, second, third, fourth):
        assert p.tolist() == pytest.approx([-0.1])
    assert len([name for name in optimizer.state_dict() if name.endswith("w.momentum")]) == 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW, optim.Adafactor])
def test_parameters_of_half_types_are_updated_in_float32(kind: Any, dtype: str) -> None:
    numbers = {"momentum": 0.9} if kind is optim.SGD else {}
    start, slopes = np.linspace(-1, 1, 12).reshape(4, 3), np.linspace(1, -2, 12).reshape(4, 3)
    found = {}
    for way in ("at once", "compiled"):
        weights = lm.nn.Parameter(lm.tensor(start, dtype=dtype))
        optimizer = kind([weights], lr=0.05, **numbers)
        step = optimizer.step if way == "at once" else lm.jit(lambda grads, held=optimizer: held.step(grads))
        wide = lm.tensor(weights.float().numpy())
        state = optimizer.init(wide)
        for number in range(3):
            g = lm.tensor(slopes + number, dtype=dtype)
            step([g])
            wide, state = optimizer.update(wide, g.float(), state, np.float32(0.05))
            wide = wide.to(dtype).float()
            np.testing.assert_allclose(weights.float().numpy(), wide.numpy(), rtol=2e-3)
        found[way] = weights.float().numpy()
        assert weights.dtype == lm.tensor([], dtype=dtype).dtype
        states = [
            x.dtype for n, x in optimizer.state_dict().items() if n.startswith("0") and x.dtype.is_float
        ]
        assert set(states) <= {lm.float32, lm.float64}
    np.testing.assert_allclose(found["at once"], found["compiled"], rtol=2e-3)


def test_gradients_of_half_types_are_gathered_in_float32() -> None:
    weights = lm.nn.Parameter(lm.zeros(1, dtype=lm.bfloat16))
    optimizer = optim.SGD([weights], lr=1.0)
    for part in (256.0, 1.0, 1.0, 1.0):  # in bfloat16 256 + 1 is 256
        optimizer.accumulate([lm.tensor([part], dtype=lm.bfloat16)])
    optimizer.step()
    np.testing.assert_allclose(weights.float().numpy(), [-64.75], rtol=4e-3)
    assert weights.item() != -64
