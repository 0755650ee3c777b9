"""Compiled programs follow what is set on a module after they were made: numbers, parts, hooks."""

import argparse
import gc
import pickle
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph.ir.surroundings import SameSurroundings
from lamina.infer import Inferer, Predictor
from lamina.nn.settings import SameModules, settings_of

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


class Scaled(nn.Module):
    """Divides by a number of its own, and uses an activation of its own."""

    def __init__(self) -> None:
        self.inner = nn.Linear(3, 3)
        self.temperature = 1.0
        self.sizes = [1, 2]
        self.named = {"factor": 1.0}
        self.config = SimpleNamespace(scale=1.0)
        self.weight: Any = np.float32(1)
        self.rows = np.ones(3, np.float32)
        self.activation: Any = ops.tanh
        self.note = "first"

    def forward(self, x: Any) -> Any:
        def inside() -> Any:
            return self.activation(self.inner(x)) / self.temperature

        return inside() * self._factor() * lm.tensor(self.rows)

    def _factor(self) -> float:
        return float(self.sizes[0]) * self.named["factor"] * self.config.scale * self.weight.item()


class Counting(nn.Module):
    """Counts its calls, which is no setting."""

    def __init__(self) -> None:
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * 2


def callers(net: nn.Module) -> dict[str, Any]:
    """Compiled in each way: arrays -> outputs."""
    jitted, predictor = lm.jit(lambda x: net(x)), Predictor(net, device="cpu")
    step = lm.train_step(net, lambda y, _: ops.sum(y), optim.SGD(lr=0.0), device="cpu")
    inferer = Inferer(net, device="cpu")

    def served(x: Any) -> Any:
        inferer.refresh()
        return inferer(x)

    return {"jit": jitted, "predictor": predictor, "step": lambda x: step(x, x), "inferer": served}


CHANGES: dict[str, Callable[[Any], Any]] = {
    "number": lambda net: setattr(net, "temperature", 4.0),
    "function": lambda net: setattr(net, "activation", ops.exp),
    "list": lambda net: setattr(net, "sizes", [3, 2]),
    "element": lambda net: net.sizes.insert(0, 5),
    "field": lambda net: setattr(net.config, "scale", 3.0),
    "NumPy's number": lambda net: setattr(net, "weight", np.float32(4)),
    "array": lambda net: setattr(net, "rows", np.full(3, 2, np.float32)),
    "array's element": lambda net: net.rows.fill(2.0),
    "entry": lambda net: net.named.update(factor=3.0),
    "hook": lambda net: net.inner.register_forward_hook(lambda m, given, y: y * 3),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["jit", "predictor", "step", "inferer"])
def test_programs_follow(change: str, how: str) -> None:
    net = Scaled()
    call = callers(net)[how]
    before = np.asarray(call(X))
    CHANGES[change](net)
    after, wanted = np.asarray(call(X)), net(lm.tensor(X)).numpy()
    if how == "step":
        wanted = wanted.sum()
    np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, after)


@pytest.mark.parametrize("how", ["jit", "predictor", "inferer"])
def test_programs_follow_other_parts(how: str) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    call = callers(net)[how]
    call(X)
    net[0].weight = nn.Parameter(np.eye(3, dtype=np.float32))
    np.testing.assert_allclose(np.asarray(call(X)), net(lm.tensor(X)).numpy(), rtol=1e-5, atol=1e-6)
    net[0] = nn.Linear(3, 5)
    np.testing.assert_allclose(np.asarray(call(X)), net(lm.tensor(X)).numpy(), rtol=1e-5, atol=1e-6)
    net.append(nn.Tanh())
    np.testing.assert_allclose(np.asarray(call(X)), net(lm.tensor(X)).numpy(), rtol=1e-5, atol=1e-6)
    del net[1]
    np.testing.assert_allclose(np.asarray(call(X)), net(lm.tensor(X)).numpy(), rtol=1e-5, atol=1e-6)


def test_a_step_refuses_other_parameters() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    step = lm.train_step(net, lambda y, _: ops.sum(y), optim.SGD(lr=0.0), device="cpu")
    step(X, X)
    net[0] = nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="0.bias, 0.weight of Sequential was replaced.*make a new step"):
        step(X, X)


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_the_rate_of_dropout_may_change(p: float) -> None:
    layer = nn.Dropout(0.5)
    call, x = lm.jit(layer), lm.ones((64, 64))
    call(x)
    layer.p = p
    assert abs((call(x).numpy() == 0).mean() - p) < 0.05


def test_the_momentum_of_a_norm_may_change() -> None:
    norm = nn.BatchNorm1d(3)
    step = lm.train_step(norm, lambda y, _: ops.sum(y), optim.SGD(lr=0.0), device="cpu")
    step(X, X)
    norm.momentum = 1.0
    step(X, X)
    np.testing.assert_allclose(norm.running_mean.numpy(), X.mean(0), rtol=1e-5, atol=1e-6)


def test_what_changes_nothing_compiles_nothing() -> None:
    net = Scaled()
    jitted, predictor = lm.jit(net), Predictor(net, device="cpu")
    step = lm.train_step(net, lambda y, _: ops.sum(y), optim.SGD(lr=0.0), device="cpu")
    for turn in range(3):
        jitted(X), predictor(X), step(X, X)
        net.note = f"turn {turn}"  # no function of the class names it but __init__
        net.last_loss = float(turn)
        net.temperature = 1.0
        net.train(net.training)
    assert len(jitted._programs) == len(predictor._programs) == len(step._programs) == 1


def test_what_a_forward_pass_assigns_is_no_setting() -> None:
    net = Counting()
    call = lm.jit(lambda x: net(x))
    for _ in range(3):
        call(X)
    assert net.calls == 1
    net.calls = 7
    call(X)
    assert net.calls == 7
    assert len(call._programs) == 1


def test_copies_have_settings_of_their_own() -> None:
    net = nn.Sequential(nn.Dropout(0.5))
    copy = pickle.loads(pickle.dumps(net))
    assert settings_of(net[0]) == settings_of(copy[0])
    copy[0].p = 0.1
    assert settings_of(net[0]) != settings_of(copy[0])
    guard = SameModules(net)
    guard.settle()
    assert guard()
    del net
    gc.collect()
    nn.ReLU().inplace = False  # something was set since
    assert not guard()


def test_functions_are_compared_by_identity() -> None:
    net = Scaled()
    before = settings_of(net)
    net.activation = ops.relu
    assert settings_of(net) != before
    net.activation = ops.tanh
    assert settings_of(net) == before
    net.activation = nn.ReLU()  # a part now
    assert settings_of(net) != before


class Listing(nn.Module):
    """Notes sizes in a list of its own, which is no setting, and reads another one."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.factors = [2.0]

    def forward(self, x: Any) -> Any:
        self.seen.append(x.shape[0])
        return x * self.factors[-1]


def test_a_list_that_a_call_changes_is_no_setting() -> None:
    net = Listing()
    call = lm.jit(net)
    for _ in range(3):
        call(X)
        net.seen.clear()
    assert not net.seen  # nothing was traced again
    net.factors.append(3.0)
    np.testing.assert_allclose(call(X).numpy(), X * 3)
    assert net.seen == [4]


FACTOR = 1.0


class ByTheModule(nn.Module):
    """Reads a number of its Python module, by way of a function of it."""

    def forward(self, x: Any) -> Any:
        return _by_the_factor(x)


def _by_the_factor(x: Any) -> Any:
    return x * FACTOR


def test_a_number_of_the_python_module_that_forward_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(ByTheModule())
    call = lm.jit(lambda x: net(x))
    np.testing.assert_array_equal(call(X).numpy(), X)
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    np.testing.assert_array_equal(call(X).numpy(), X * 3)
    call(X)
    assert len(call._programs) == 2


class Tabled(nn.Module):
    """Multiplies by a tensor that is a plain attribute, and keeps its result in another one."""

    def __init__(self) -> None:
        self.table = lm.ones(3)
        self.last: Any = None

    def forward(self, x: Any) -> Any:
        self.last = x * self.table
        return self.last + 0.0


def test_a_tensor_that_is_no_buffer_may_be_exchanged() -> None:
    net = Tabled()
    call = lm.jit(lambda x: net(x))
    call(X)
    net.table = lm.full(3, 2.0)
    np.testing.assert_array_equal(call(X).numpy(), X * 2)
    net.table.mul_(2.0)  # read by reference
    np.testing.assert_array_equal(call(X).numpy(), X * 4)
    for _ in range(3):
        net(X)  # at once: another result is kept
        call(X)
    assert len(call._programs) == 2


class Expanding(nn.Module):
    """Reads a number of its class."""

    expansion = 2.0

    def forward(self, x: Any) -> Any:
        return x * self.expansion


def test_a_number_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(Expanding(), Expanding())
    call = lm.jit(lambda x: net(x))
    call(X)
    guards = next(iter(call._programs)).guards
    assert [sum(isinstance(g, kind) for g in guards) for kind in (SameModules, SameSurroundings)] == [1, 1]
    monkeypatch.setattr(Expanding, "expansion", 3.0)
    np.testing.assert_allclose(call(X).numpy(), X * 9, rtol=1e-6)
    net[1].expansion = 1.0
    np.testing.assert_allclose(call(X).numpy(), X * 3, rtol=1e-6)


COUNT = 0


class AroundAll(nn.Module):
    """Reads a number of its class and one of the Python module, and counts its calls there."""

    power = 1.0

    def forward(self, x: Any) -> Any:
        global COUNT
        COUNT += 1
        return x * FACTOR * self.power


def test_a_predictor_follows_what_is_around_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(AroundAll(), nn.Linear(3, 3))
    predictor, inferer = Predictor(net, device="cpu"), Inferer(net, device="cpu")
    with inferer:
        first, again = predictor(X).numpy(), inferer(X).numpy()
        bias = net[1].bias.numpy()
        monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
        np.testing.assert_allclose(predictor(X).numpy() - bias, 3 * (first - bias), rtol=1e-5, atol=1e-6)
        inferer.refresh()
        np.testing.assert_allclose(inferer(X).numpy() - bias, 3 * (again - bias), rtol=1e-5, atol=1e-6)
        monkeypatch.setattr(AroundAll, "power", 2.0)
        np.testing.assert_allclose(predictor(X).numpy() - bias, 6 * (first - bias), rtol=1e-5, atol=1e-6)
    traced = COUNT
    for _ in range(3):
        predictor(X)
    assert traced == COUNT


class Annealed:
    """An object of no particular kind, with a number that a method sets."""

    def __init__(self) -> None:
        self.value = 1.0

    def step(self) -> None:
        self.value = 3.0


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0


class Config:
    """A class that is read as such."""

    factor = 1.0


class Policy(nn.Module):
    """Is used by a method of its own, and never called."""

    def __init__(self) -> None:
        self.layer, self.temperature = nn.Linear(3, 3), 1.0

    def logits(self, x: Any) -> Any:
        return self.layer(x) / self.temperature


class Agent(nn.Module):
    """Uses what it has in other ways than by calling it."""

    def __init__(self) -> None:
        self.policy, self.norm, self.drop = Policy(), nn.LayerNorm(3), nn.Dropout(0.5)
        self.arguments = argparse.Namespace(scale=1.0)
        self.annealed, self.slotted = Annealed(), Slotted()
        self.gates: nn.ModuleList[Any] = nn.ModuleList([Policy()])
        self.heads: nn.ModuleDict[Any] = nn.ModuleDict({"a": nn.Linear(3, 3)})
        self.biases = nn.ParameterList([np.ones(3, np.float32)])
        self.names, self.recent = {"a"}, deque([1.0])
        self.scored: Any = lambda y: y * FACTOR
        self.alpha = 1.0

    def forward(self, x: Any) -> Any:
        y = self.policy.logits(x) * self.arguments.scale * self.annealed.value * self.slotted.value
        for gate in self.gates:
            y = gate.layer.forward(y) * gate.temperature
        y = y * self.norm.eps * 1e5 + self.drop.p * len(self.names) * self.recent[-1]
        y = self.heads["b"](y) if "b" in self.heads else self.heads["a"](y)
        for bias in self.biases:
            y = y + bias
        return self.scored(y) * _alpha_of(self) * getattr(self, "beta", 1.0) * Config.factor


def _alpha_of(net: Any) -> Any:
    return net.alpha


def _swap(net: Agent) -> None:
    net.gates.append(Policy())
    net.gates[0], net.gates[1] = net.gates[1], net.gates[0]


USES: dict[str, Callable[[Any], Any]] = {
    "a number that a method reads": lambda net: setattr(net.policy, "temperature", 4.0),
    "a number that others read": lambda net: setattr(net.drop, "p", 0.25),
    "a number of a layer that is not called": lambda net: setattr(net.norm, "eps", 1e-3),
    "a number of an element": lambda net: setattr(net.gates[0], "temperature", 4.0),
    "a number that a function reads": lambda net: setattr(net, "alpha", 2.0),
    "an attribute that was not there": lambda net: setattr(net, "beta", 2.0),
    "a field of a namespace": lambda net: setattr(net.arguments, "scale", 3.0),
    "a field of an object": lambda net: net.annealed.step(),
    "a slot of an object": lambda net: setattr(net.slotted, "value", 3.0),
    "a set": lambda net: net.names.add("b"),
    "a deque": lambda net: net.recent.append(3.0),
    "an appended module": lambda net: net.gates.append(Policy()),
    "swapped modules": _swap,
    "a replaced module of a list": lambda net: net.gates.__setitem__(0, Policy()),
    "an inserted module": lambda net: net.gates.insert(0, Policy()),
    "another key": lambda net: net.heads.update({"b": nn.Linear(3, 3)}),
    "a replaced module of a dict": lambda net: net.heads.update({"a": nn.Linear(3, 3)}),
    "an appended parameter": lambda net: net.biases.append(np.full(3, 2, np.float32)),
    "another function": lambda net: setattr(net, "scored", lambda y: y + 5.0),
}


#: What a step refuses: other parameters.
PARTS = [use for use in USES if any(word in use for word in ("module", "key", "parameter"))]
CALLS = [
    (how, use)
    for how in ("jit", "argument", "predictor", "step")
    for use in USES
    if how != "step" or use not in PARTS
]


@pytest.mark.parametrize(("how", "use"), CALLS)
def test_programs_follow_what_is_used_without_a_call(how: str, use: str) -> None:
    net = Agent().eval()
    apart = list(net.heads.values()), list(net.gates)  # they stay alive
    if how == "argument":
        call: Any = partial(lm.jit(lambda net, x: net(x)), net)
    else:
        call = callers(net)[how]
    before = np.asarray(call(X))
    USES[use](net)
    after, wanted = np.asarray(call(X)), net(lm.tensor(X)).numpy()
    wanted = wanted.sum() if how == "step" else wanted
    np.testing.assert_allclose(after, wanted, rtol=1e-4, atol=1e-5)
    assert not np.allclose(before, after)
    assert apart


def test_programs_follow_classes_and_what_is_around_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    net, scale = Agent().eval(), [1.0]
    net.policy.layer.register_forward_hook(lambda module, given, y: y * scale[0])
    call = lm.jit(lambda x: net(x))
    changes: list[Callable[[], Any]] = [
        lambda: monkeypatch.setattr(Config, "factor", 2.0),
        lambda: monkeypatch.setattr(f"{__name__}.FACTOR", 3.0),
        lambda: scale.__setitem__(0, 2.0),
        lambda: net.policy.layer.register_forward_hook(lambda module, given, y: y + scale[0]),
        lambda: scale.__setitem__(0, 3.0),
    ]
    for change in changes:
        before = call(X).numpy()
        change()
        np.testing.assert_allclose(call(X).numpy(), net(lm.tensor(X)).numpy(), rtol=1e-4, atol=1e-5)
        assert not np.allclose(before, call(X).numpy())
    assert len(call._programs) == 1 + len(changes)


class Logged(nn.Module):
    """Counts in a dict what it also reads of, and in an object with fields."""

    def __init__(self) -> None:
        self.state = {"calls": 0, "factor": 1.0}
        self.config = SimpleNamespace(calls=0, factor=1.0, deep={"calls": 0, "factor": 1.0})

    def forward(self, x: Any) -> Any:
        self.state["calls"] += 1
        self.config.calls += 1
        self.config.deep["calls"] += 1
        return x * self.state["factor"] * self.config.factor * self.config.deep["factor"]


def test_entries_beside_those_that_a_call_changes_are_settings() -> None:
    net = Logged()
    call = lm.jit(lambda x: net(x))
    for _ in range(3):
        net.state["calls"] = net.config.calls = net.config.deep["calls"] = 7
        call(X)
    assert len(call._programs) == 1
    net.state["factor"] = 2.0
    np.testing.assert_allclose(call(X).numpy(), 2 * X, rtol=1e-6)
    net.config.factor = 3.0
    np.testing.assert_allclose(call(X).numpy(), 6 * X, rtol=1e-6)
    net.config.deep["factor"] = 5.0
    np.testing.assert_allclose(call(X).numpy(), 30 * X, rtol=1e-6)


def test_a_part_that_is_used_without_its_owner() -> None:
    """A function that closes over a network, and calls a part of it."""
    net: Any = nn.Module()
    table: nn.ModuleDict[Any] = nn.ModuleDict({"a": nn.Linear(3, 3)})
    net.body = nn.Linear(3, 3)
    call = lm.jit(lambda x: table["b"](net.body(x)) if "b" in table else net.body(x))
    call(X)
    net.body = nn.Sequential(net.body, nn.Tanh())
    np.testing.assert_allclose(call(X).numpy(), net.body(lm.tensor(X)).numpy(), rtol=1e-5)
    table["b"] = nn.Linear(3, 2)
    assert call(X).shape == (4, 2)


class Lazy(nn.Module):
    """Makes tables when it is called first, in places where there was something else."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"cache": None, "text": "abc", "factor": 1.0, "all": None}
        self.state["all"] = self.state  # leads to itself
        self.config = SimpleNamespace(cache=None, factor=1.0)
        self.many: dict[Any, Any] = {k: k for k in range(300)}

    def forward(self, x: Any) -> Any:
        if self.state["cache"] is None:
            self.state["cache"] = {"width": {"of": x.shape[1]}}
            self.state["text"] = {"a": 1}
            self.config.cache = SimpleNamespace(width=x.shape[1])
            self.many.clear()
        return x * self.state["factor"] * self.config.factor


@pytest.mark.parametrize("how", ["jit", "predictor", "step"])
def test_tables_that_the_first_call_makes_are_no_settings(how: str) -> None:
    net = nn.Sequential(Lazy(), nn.Linear(3, 3))
    call = callers(net)[how]
    before = np.asarray(call(X))
    np.testing.assert_array_equal(np.asarray(call(X)), before)
    net[0].config.factor = 3.0
    wanted = net(lm.tensor(X)).numpy()
    np.testing.assert_allclose(
        np.asarray(call(X)), wanted.sum() if how == "step" else wanted, rtol=1e-5, atol=1e-5
    )


def test_a_slice_of_a_list_is_looked_into() -> None:
    blocks: nn.ModuleList[Any] = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

    def through(x: Any) -> Any:
        for block in blocks[1:]:
            x = block(x)
        return x

    call, kept = lm.jit(through), list(blocks)
    call(X)
    blocks[2] = nn.Linear(3, 3)
    np.testing.assert_allclose(call(X).numpy(), through(lm.tensor(X)).numpy(), rtol=1e-5, atol=1e-6)
    assert len(kept) == 3


def test_a_guard_names_what_changed() -> None:
    net = Scaled()
    guard = SameModules(net)
    assert guard.changed == []
    net.temperature, net.sizes = 2.0, [3]
    assert sorted(guard.changed) == ["Scaled.sizes", "Scaled.temperature"]


def test_many_values_of_a_setting_are_warned_of() -> None:
    net = Scaled()
    step = lm.train_step(net, ops.mse_loss, optim.SGD(0.1), device="cpu")
    for i in range(15):
        net.temperature = 1 + i / 20
        step(X, X)
    net.temperature = 2.0
    with pytest.warns(
        UserWarning, match=r"train_step: 16 programs .* one for each value of Scaled.temperature: "
    ):
        step(X, X)
