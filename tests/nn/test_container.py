"""Containers behave like the lists and dicts that they are; what plain lists hide is said."""

import re
from collections import OrderedDict
from typing import Any

import pytest

import lamina as lm
from lamina import nn


def layers(*widths: int) -> list[nn.Linear]:
    return [nn.Linear(n, n) for n in widths]


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_children()]


@pytest.mark.parametrize("kind", [lambda *m: nn.Sequential(*m), lambda *m: nn.ModuleList(m)])
def test_as_a_list(kind) -> None:  # type: ignore[no-untyped-def]
    a, b, c, d = layers(1, 2, 3, 4)
    held = kind(a, b, c)
    part = held[1:]
    assert type(part) is type(held)
    assert list(part) == [b, c]
    assert (held[0], held[-1], len(held), b in held) == (a, c, 3, True)
    assert held.append(d) is held
    assert names(held) == ["0", "1", "2", "3"]
    held[1] = d
    assert list(held) == [a, d, c, d]
    del held[0]
    assert (list(held), names(held)) == ([d, c, d], ["0", "1", "2"])
    del held[1:]
    assert (list(held), names(held)) == ([d], ["0"])
    assert held.insert(0, a) is held
    assert list(held) == [a, d]
    assert held.pop() is d
    assert held.extend([b, c]) is held
    joined = held + [d]  # noqa: RUF005
    assert list(joined) == [a, b, c, d]
    assert list(held) == [a, b, c]
    held += [d]
    assert list(held.parameters()) == [p for m in (a, b, c, d) for p in m.parameters()]
    held.extend(held)
    assert len(held) == 8


def test_a_part_keeps_its_names() -> None:
    net = nn.Sequential({"first": nn.Linear(2, 3), "second": nn.ReLU(), "third": nn.Linear(3, 1)})
    assert names(net[:2]) == ["first", "second"]
    assert sorted(net[:2].state_dict()) == ["first.bias", "first.weight"]
    assert net[:2](lm.ones((4, 2))).shape == (4, 3)


def test_indices_and_values_are_checked() -> None:
    held = nn.ModuleList(layers(1, 2))
    with pytest.raises(IndexError, match="ModuleList: index 2 is out of range of 2 modules"):
        _ = held[2]
    with pytest.raises(IndexError, match="out of range"):
        held[-3] = nn.ReLU()  # type: ignore[call-overload]
    for wrong in (lambda: held.append(3), lambda: nn.Sequential("relu"), lambda: nn.ModuleDict({"a": max})):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="holds modules, got"):
            wrong()


def test_module_dict() -> None:
    a, b = layers(1, 2)
    held = nn.ModuleDict({"a": a})
    held["b"] = b
    assert (list(held), len(held), "a" in held, held["b"]) == (["a", "b"], 2, True, b)
    assert (list(held.keys()), list(held.values()), list(held.items())) == (
        ["a", "b"],
        [a, b],
        [("a", a), ("b", b)],
    )
    assert sorted(held.state_dict()) == ["a.bias", "a.weight", "b.bias", "b.weight"]
    held.update([("c", a)])
    assert held.pop("c") is a
    del held["a"]
    assert list(held) == ["b"]
    held.clear()
    assert len(held) == 0
    with pytest.raises(KeyError):
        held.pop("a")


def test_identity_takes_the_arguments_of_any_layer() -> None:
    x = lm.ones(3)
    assert nn.Identity(54, unused=1)(x) is x


@pytest.mark.parametrize("held", [layers(1, 2), tuple(layers(1)), {"a": nn.ReLU()}])
def test_modules_in_plain_containers_are_named(held: object) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Module()
            with pytest.warns(
                UserWarning, match=re.escape(f"inner is a plain {type(held).__name__} that holds")
            ):
                self.inner.inner = held  # type: ignore[assignment]

    net = Net()
    assert net.unregistered() == ["inner.inner"]
    assert list(net.parameters()) == []


def test_a_list_that_is_filled_later_is_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layers: list[nn.Module] = []
            self.layers.append(nn.Linear(2, 2))

    assert Net().unregistered() == ["layers"]
    with pytest.raises(ValueError, match=r"Net has no parameters.*layers.*nn\.ModuleList"):
        lm.train_step(Net(), lm.ops.mse_loss, lm.optim.SGD(lr=0.1), device="cpu")


def test_parameters_in_a_list() -> None:
    held = nn.ParameterList([lm.ones(3), lm.zeros(2)])
    assert held.append(nn.Parameter(lm.ones(1))) is held
    held += [lm.ones(4)]
    assert [p.shape for p in held] == [(3,), (2,), (1,), (4,)]
    assert (held[-1].shape, len(held), held[1:3][1].shape) == ((4,), 4, (1,))
    assert [name for name, _ in held.named_parameters()] == ["0", "1", "2", "3"]
    held[0] = lm.zeros(7)
    assert held[0].shape == (7,)
    with pytest.raises(IndexError, match="ParameterList: index 4 is out of range of 4 parameters"):
        _ = held[4]


def test_parameters_in_a_dict() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.held = nn.ParameterDict({"a": lm.ones(3)})

        def forward(self, x: lm.Tensor) -> lm.Tensor:
            return x * self.held["a"]

    net = Net()
    net.held["b"] = lm.zeros(2)
    assert (list(net.held), list(net.held.keys()), len(net.held)) == (["a", "b"], ["a", "b"], 2)
    assert [p.shape for p in net.held.values()] == [(3,), (2,)]
    assert sorted(net.state_dict()) == ["held.a", "held.b"]
    assert net.held.pop("b").shape == (2,)
    assert ("b" in net.held, dict(net.held.items())["a"].shape) == (False, (3,))
    with pytest.raises(KeyError):
        _ = net.held["b"]
    step = lm.train_step(net, lambda y, t: lm.ops.sum(y), lm.optim.SGD(0.5), device="cpu")
    step(lm.ones(3), lm.ones(()))
    assert net.held["a"].tolist() == [0.5, 0.5, 0.5]
    net.held.clear()
    assert len(net.held) == 0


def test_sequentials_are_multiplied() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    twice = net * 2
    assert [twice[i] is net[i % 2] for i in range(4)] == [True] * 4
    assert list((3 * net)._modules) == ["0", "1", "2", "3", "4", "5"]
    assert len(list(twice.parameters())) == 2  # shared
    net *= 2
    assert len(net) == 4
    for times, error in ((0, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="Sequential: is multiplied by an int"):
            net * times  # type: ignore[operator]


@pytest.mark.torch
def test_parameter_dicts_as_torchs() -> None:
    import torch

    def told(lib: Any, made: Any) -> list[Any]:
        held = lib.ParameterDict({"a": made(1), "b": made(2)})
        first = held["a"]
        out: list[Any] = [held.get("a") is first, held.get("z"), held.get("z", 3)]
        out += [held.setdefault("a", made(5)) is first, list(held.setdefault("c", made(3)).shape)]
        copied = held.copy()
        out += [list(copied.keys()), copied["a"] is first, type(copied).__name__]
        name, last = held.popitem()
        out += [name, list(last.shape), list(reversed(held)), list(copied.keys())]
        keyed = held.fromkeys(["x", "y"], made(4))
        out += [list(keyed.keys()), list(keyed["y"].shape)]
        both = held | {"b": made(7), "d": made(8)}
        out += [{n: list(x.shape) for n, x in both.items()}, list(held.keys())]
        held |= lib.ParameterDict({"e": made(9)})
        out += [list(held.keys()), len(list(held.parameters()))]
        ordered = OrderedDict([("z", made(1)), ("b", made(2))])
        orders = [dict(ordered), ordered, list(ordered.items()), lib.ParameterDict(ordered)]
        out += [[n for n, _ in lib.ParameterDict(given).named_parameters()] for given in orders]
        out += [list(lib.ParameterDict(ordered).fromkeys(["y", "x"], made(4)).keys())]
        return [*out, list(lib.ParameterDict(ordered).copy().keys())]

    ours = told(nn, lambda n: nn.Parameter(lm.zeros((n,))))
    assert ours == told(torch.nn, lambda n: torch.nn.Parameter(torch.zeros(n)))
    with pytest.raises(KeyError, match="popitem of an empty"):
        nn.ParameterDict().popitem()
