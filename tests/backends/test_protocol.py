"""What all backends share: tables of planning functions and of fusions, and what plans say about themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from lamina import backends
from lamina.backends import (
    Backend,
    Call,
    Fusion,
    Fusions,
    Kernels,
    NoKernel,
    NonDeterministicError,
    Plan,
    worthwhile,
)
from lamina.backends.pattern import made_by
from lamina.ops.core import Op
from lamina.ops.primitives import Add, Conv, Exp, Neg
from lamina.runtime import Device, Machine
from lamina.spec import Policy, Spec, float32

X = Spec((2, 3), float32).fixed
PLAN = Plan((X,), (X,), lambda call: lambda: None)


def fusion(name: str, *after: str) -> Fusion:
    return Fusion(name, made_by(Exp), lambda match: None, after=after)


def test_kernels_are_found_by_class() -> None:
    kernels = Kernels("mine")

    @kernels(Exp, Neg, source="kernel")
    def plan(op: object, specs: object, device: object, policy: object) -> Plan:
        return PLAN

    assert kernels.get(Exp) is kernels.get(Neg) is plan
    assert (kernels.source(Exp), kernels.source(Add)) == ("kernel", "")
    assert kernels.plan(Exp(), [X], Device("cpu"), Policy()) is PLAN
    with pytest.raises(NoKernel, match=r"mine has no kernel for add \(f32"):
        kernels.plan(Add(), [X, X], Device("cpu"), Policy())


class Shaky(Backend):
    """A backend whose plans say that they vary."""

    name = "shaky"

    def __init__(self, why: str) -> None:
        super().__init__(Device("cpu"))
        self.why = why

    def choose(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        return replace(PLAN, varies=self.why, label="sums by atomics")

    def reorder(self, source: Spec, target: Spec) -> Plan:
        return PLAN

    def supports(self, op: type[Op]) -> str:
        return "kernel"


@pytest.mark.feature("F091", "B041")
def test_plans_that_vary_are_refused_where_the_same_bits_are_wanted() -> None:
    same = Policy(deterministic=True)
    assert Shaky("a race").plan(Exp(), [X], Policy()).varies == "a race"
    assert Shaky("").plan(Exp(), [X], same).varies == ""
    message = (
        r"shaky: exp \(f32\[2,3\]\) by sums by atomics may give other bits from run to run: a race; use_det"
    )
    with pytest.raises(NonDeterministicError, match=message):
        Shaky("a race").plan(Exp(), [X], same)
    kernels = Kernels("mine")  # one kernel that is made of others asks the table for them
    kernels(Exp, source="kernel")(lambda op, specs, device, policy: replace(PLAN, varies="a race"))
    assert kernels.plan(Exp(), [X], Device("cpu"), Policy()).varies
    with pytest.raises(NonDeterministicError, match="mine: exp .* by its kernel may give other bits"):
        kernels.plan(Exp(), [X], Device("cpu"), same)


@dataclass(frozen=True)
class _Racing(Exp):
    """An op of which no kernel repeats."""

    varies = "threads race"


@pytest.mark.feature("F091", "B041")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_ops_that_vary_are_refused_by_their_name(backend: str) -> None:
    found = backends.get(Device("cpu"), backend)
    assert found.plan(_Racing(), [X], Policy()).outputs[0].shape == X.shape
    with pytest.raises(NonDeterministicError, match="racing.*: threads race"):
        found.plan(_Racing(), [X], Policy(deterministic=True))


def test_plans_are_bound_to_addresses() -> None:
    seen: list[Call] = []
    plan = Plan((X,), (X,), lambda call: lambda: seen.append(call))
    plan.bind(Call((1,), (2,)))()
    assert seen == [Call((1,), (2,), 0, 0)]
    assert plan != replace(plan)


def test_a_fused_plan_pays_unless_it_runs_its_parts() -> None:
    assert worthwhile(PLAN) == ""
    assert worthwhile(replace(PLAN, parts=(PLAN, PLAN))) == "there is no fused kernel for it"
    assert worthwhile(replace(PLAN, parts=(PLAN, PLAN), seconds=1e-5)) == "the unfused form is as fast"


def test_fusions_stand_behind_those_that_they_name() -> None:
    found = Fusions()
    for name, *after in (("a", "c"), ("b",), ("c", "d", "b"), ("d",)):
        found.add(fusion(name, *after))
    assert [one.name for one in found.ordered()] == ["d", "b", "c", "a"]


def test_fusions_have_one_name_each_and_no_circle() -> None:
    found = Fusions()
    found.add(fusion("a", "b"))
    with pytest.raises(ValueError, match="there is a fusion 'a' already"):
        found.add(fusion("a"))
    with pytest.raises(KeyError, match="b"):
        found.ordered()
    found.add(fusion("b", "a"))
    with pytest.raises(ValueError, match="fusions name each other: a after b after a"):
        found.ordered()


@pytest.mark.parametrize("name", ["cpu", "reference", "null"])
def test_backends_say_what_they_have(name: str) -> None:
    backend = backends.get(Device("cpu"), name)
    assert isinstance(backend, Backend)
    assert backend.has_kernel(Conv) == (backend.supports(Conv) == "onednn")
    assert list(backend.fusions()) == []


@pytest.mark.parametrize(("name", "kind"), [("cpu", "cuda"), ("reference", "cuda"), ("cuda", "cpu")])
def test_a_backend_says_on_what_it_does_not_run(name: str, kind: str) -> None:
    device = Device("cuda", machine=Machine.named("h200")) if kind == "cuda" else Device(kind)
    with pytest.raises(ValueError, match=f"the {name} backend runs on .*, not on {kind}"):
        backends.get(device, name)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="unknown backend 'tpu'; known: cpu, cuda"):
        backends.get(Device("cpu"), "tpu")
