"""What all backends share: tables of planning functions and of fusions, and what plans say about themselves."""

from dataclasses import replace

import pytest

from lamina import backends
from lamina.backends import Backend, Call, Fusion, Fusions, Kernels, NoKernel, Plan, worthwhile
from lamina.backends.pattern import made_by
from lamina.ops.primitives import Add, Conv, Exp, Neg
from lamina.runtime import Device
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


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="unknown backend 'tpu'; known: cpu, cuda"):
        backends.get(Device("cpu"), "tpu")
