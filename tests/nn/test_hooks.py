"""Hooks: what they see and change, their order, that compiled programs follow them."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Twice(nn.Module):
    def forward(self, x: Any, shift: float = 0.0) -> Any:
        return 2 * x + shift


def test_hooks_see_and_change() -> None:
    module, seen = Twice(), []
    before = module.register_forward_pre_hook(lambda m, inputs: seen.append((m is module, len(inputs))))
    with before, module.register_forward_hook(lambda m, inputs, output: seen.append(output.shape)):
        np.testing.assert_array_equal(module(lm.tensor(X)).numpy(), 2 * X)
    assert seen == [(True, 1), (2, 3)]
    first = module.register_forward_pre_hook(lambda m, inputs: inputs[0] + 1)
    second = module.register_forward_hook(lambda m, inputs, output: output - inputs[0])
    np.testing.assert_array_equal(module(lm.tensor(X)).numpy(), X + 1)
    first.remove()
    first.remove()
    np.testing.assert_array_equal(module(lm.tensor(X)).numpy(), X)
    second.remove()
    np.testing.assert_array_equal(module(lm.tensor(X)).numpy(), 2 * X)
    assert len(seen) == 2


def test_hooks_with_named_inputs() -> None:
    module = Twice()
    module.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {"shift": 1 + kwargs["shift"]}), with_kwargs=True
    )
    module.register_forward_hook(lambda m, args, kwargs, output: output * kwargs["shift"], with_kwargs=True)
    np.testing.assert_array_equal(module(lm.tensor(X), shift=1.0).numpy(), (2 * X + 2) * 2)


def test_the_order_of_hooks() -> None:
    module, order = Twice(), []
    module.register_forward_hook(lambda *_: order.append("a"))
    module.register_forward_hook(lambda *_: order.append("b"), prepend=True)
    module.register_forward_pre_hook(lambda *_: order.append("before"))
    module.register_forward_pre_hook(lambda *_: order.append("behind"))
    module.register_forward_pre_hook(lambda *_: order.append("in front"), prepend=True)
    module(lm.tensor(X))
    assert order == ["in front", "before", "behind", "b", "a"]
    with pytest.raises(TypeError, match="hook must be a function, got 3"):
        module.register_forward_hook(3)  # type: ignore[arg-type]


@pytest.mark.torch
def test_the_same_as_torchs() -> None:
    torch = pytest.importorskip("torch")
    results = []
    for library, make in ((nn, lm.tensor), (torch.nn, torch.tensor)):
        net = library.Sequential(library.ReLU(), library.Flatten())
        net[0].register_forward_pre_hook(lambda m, inputs: (inputs[0] - 2,))
        net[0].register_forward_hook(lambda m, inputs, output: output + inputs[0])
        net.register_forward_hook(lambda m, inputs, output: 3 * output)
        results.append(net(make(X)).numpy())
    np.testing.assert_array_equal(*results)


def test_compiled_functions_follow_hooks() -> None:
    net = nn.Sequential(Twice())
    run = lm.jit(lambda x: net(x))
    np.testing.assert_array_equal(run(lm.tensor(X)).numpy(), 2 * X)
    handle = net[0].register_forward_hook(lambda m, inputs, output: output + 1)
    np.testing.assert_array_equal(run(lm.tensor(X)).numpy(), 2 * X + 1)
    handle.remove()
    np.testing.assert_array_equal(run(lm.tensor(X)).numpy(), 2 * X)


def test_training_steps_follow_hooks() -> None:
    lm.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 1, bias=False))
    step = lm.train_step(net, lambda y, t: ops.sum(y), optim.SGD(0.0), device="cpu")
    before = float(step(X, np.zeros(2, np.float32)))
    handle = net[0].register_forward_hook(lambda m, inputs, output: output + 1)
    assert float(step(X, np.zeros(2, np.float32))) == pytest.approx(before + 2, rel=1e-5)
    handle.remove()
    assert float(step(X, np.zeros(2, np.float32))) == pytest.approx(before, rel=1e-6)


# ---- hooks of the state


def renamed(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    if prefix + "old" in state:
        state[prefix + "weight"] = state.pop(prefix + "old")


def test_a_hook_changes_what_is_loaded() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    state = {
        n.replace("0.weight", "0.old"): np.ones(x.shape, np.float32) for n, x in net.state_dict().items()
    }
    with net[0].register_load_state_dict_pre_hook(renamed):
        net.load_state_dict(state)
    assert "0.old" in state
    assert net[0].weight.sum().item() == 4
    with pytest.raises(KeyError, match="missing 0.weight"):
        net.load_state_dict(state)


def test_a_hook_forgives_what_does_not_match() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def forgive(module: nn.Module, mismatch: Any) -> None:
        mismatch.missing_keys[:] = [n for n in mismatch.missing_keys if not n.endswith("bias")]

    handle = net.register_load_state_dict_post_hook(forgive)
    state = {"0.weight": np.ones((2, 2), np.float32), "1.weight": np.ones((2, 2), np.float32)}
    assert net.load_state_dict(state) == ([], [])
    assert net[0].weight.sum().item() == 4
    with pytest.raises(KeyError, match="missing 1.weight"):
        net.load_state_dict({"0.weight": state["0.weight"]})
    handle.remove()
    with pytest.raises(KeyError, match="missing 0.bias"):
        net.load_state_dict(state)


def test_a_hook_changes_what_is_saved() -> None:
    net = nn.Sequential(nn.Linear(2, 2))

    def drop(module: nn.Module, state: dict[str, Any], prefix: str, rest: Any) -> None:
        del state[prefix + "bias"]

    net[0].register_state_dict_post_hook(drop)
    assert list(net.state_dict(prefix="a.")) == ["a.0.weight"]
    net[0].register_state_dict_post_hook(lambda *given: {})
    with pytest.raises(TypeError, match="changes what it is given and returns nothing"):
        net.state_dict()


@pytest.mark.parametrize("kind", ["state_dict_post", "load_state_dict_pre", "load_state_dict_post"])
def test_hooks_of_the_state_are_called_in_their_order_until_they_are_removed(kind: str) -> None:
    net, order = nn.Linear(2, 2), []
    register = getattr(net, f"register_{kind}_hook")
    first, second = register(lambda *_: order.append("first")), register(lambda *_: order.append("second"))
    register(lambda *_: order.append("third"))
    state = {name: value.numpy() for name, value in net.state_dict().items()}
    net.load_state_dict(state)
    assert order == ["first", "second", "third"]
    order.clear()
    second.remove()
    net.load_state_dict(dict(net.state_dict()))
    assert order == ["first", "third"]
    first.remove()


class Failing(nn.Module):
    """Fails at negative numbers."""

    def forward(self, x: float) -> float:
        """x: a number."""
        if x < 0:
            raise ArithmeticError("negative")
        return x


def test_hooks_that_are_always_called() -> None:
    net, seen = Failing(), list[Any]()
    net.register_forward_hook(lambda m, x, y: seen.append(("plain", y)))
    net.register_forward_hook(lambda m, x, y: seen.append(("always", y)), always_call=True)
    net(1.0)
    assert seen == [("plain", 1.0), ("always", 1.0)]
    seen.clear()
    with pytest.raises(ArithmeticError, match="negative"):
        net(-1.0)
    assert seen == [("always", None)]


def test_of_hooks_that_fail_the_first_error_is_seen() -> None:
    def fails(*given: Any) -> None:
        raise KeyError("hook")

    net, seen = Failing(), list[Any]()
    net.register_forward_hook(fails, always_call=True)
    net.register_forward_hook(
        lambda m, args, kwargs, y: seen.append((args, kwargs, y)), with_kwargs=True, always_call=True
    )
    with (
        pytest.warns(UserWarning, match="always_call=True raised KeyError: 'hook'"),
        pytest.raises(ArithmeticError, match="negative"),
    ):
        net(x=-1.0)
    assert seen == [((), {"x": -1.0}, None)]
    seen.clear()
    with pytest.raises(KeyError, match="hook"):  # once, as the module did not fail
        net(2.0)
    assert seen == [((2.0,), {}, 2.0)]


@pytest.mark.torch
@pytest.mark.parametrize("x", [1.0, -1.0])
def test_the_order_of_hooks_that_are_always_called_is_torchs(x: float) -> None:
    import torch

    class Theirs(torch.nn.Module):
        def forward(self, x: float) -> float:
            return Failing.forward(self, x)  # type: ignore[arg-type]

    def told(net: Any) -> list[Any]:
        seen: list[Any] = []

        def last(m: Any, x: Any, y: Any) -> None:
            seen.append(("last", y))
            raise IndexError

        net.register_forward_hook(lambda m, x, y: seen.append(("first", y)), always_call=True)
        net.register_forward_hook(last)
        net.register_forward_hook(lambda m, x, y: seen.append(("behind", y)), always_call=True)
        with pytest.raises(LookupError if x > 0 else ArithmeticError):
            net(x)
        return seen

    assert told(Failing()) == told(Theirs())
