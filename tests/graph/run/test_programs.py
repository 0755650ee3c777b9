"""Programs are kept up to a count and a size; the one that was not used for longest goes, the newest one stays."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph.run.programs import Programs
from lamina.infer import Predictor

pytestmark = pytest.mark.feature("B047")


@dataclass(eq=False)
class Stand:
    """A program of a size."""

    name: str
    own_bytes: int = 1

    @property
    def executable(self) -> Any:
        """What is asked for its size."""
        return SimpleNamespace(own_bytes=self.own_bytes, device=lm.device("cpu"))


def names(programs: Programs[Stand]) -> str:
    return "".join(sorted(p.name for p in programs))


def test_the_least_recently_used_goes() -> None:
    programs: Programs[Stand] = Programs(2)
    for name in "ab":
        programs.add(name, Stand(name))
    found = programs.find("a")
    assert found is not None
    assert found.name == "a"
    programs.add("c", Stand("c"))
    assert names(programs) == "ac"
    assert programs.find("b") is None
    programs.touch(found)
    programs.add("d", Stand("d"))
    assert names(programs) == "ad"
    programs.clear()
    assert len(programs) == 0


def test_bytes_are_a_limit_but_for_the_newest() -> None:
    programs: Programs[Stand] = Programs(10, "100")
    for name, size in (("a", 40), ("b", 50), ("c", 30)):
        programs.add(name, Stand(name, size))
    assert names(programs) == "bc"
    assert programs.nbytes == 80
    programs.add("d", Stand("d", 500))
    assert names(programs) == "d"


def test_several_programs_of_one_key() -> None:
    programs: Programs[Stand] = Programs(3)
    for name in "abc":
        programs.add("key", Stand(name), keep=lambda p: p.name != "a")
    assert names(programs) == "bc"
    found = programs.find("key", lambda p: p.name == "c")
    assert found is not None
    assert found.name == "c"
    assert programs.find("key", lambda p: False) is None


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ((0,), "jit: max_programs must be at least 1, got 0"),
        ((1, 0), "jit: max_program_bytes must be a positive number of bytes, got 0"),
        ((1, "many"), "jit: max_program_bytes: 'many' is no size"),
    ],
)
def test_limits_that_are_none(limits: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Programs(*limits, what="jit")


def images(size: int) -> Any:
    return np.random.default_rng(size).standard_normal((size, 6)).astype(np.float32)


def test_a_step_a_predictor_and_a_function_keep_few() -> None:
    """And go on giving right results for the shapes whose programs are gone."""
    nn.manual_seed(0)
    net, twin = nn.Linear(6, 3), nn.Linear(6, 3)
    twin.load_state_dict(net.state_dict())
    loss = lambda y, t: ops.mean(ops.square(y))  # noqa: E731
    few = lm.train_step(net, loss, optim.SGD(0.1, 0.9), device="cpu", max_programs=2)
    all_ = lm.train_step(twin, loss, optim.SGD(0.1, 0.9), device="cpu")
    for size in (2, 3, 4, 2, 3, 2, 4):
        few(images(size), images(size))
        all_(images(size), images(size))
    assert (len(few._programs), len(all_._programs)) == (2, 3)
    np.testing.assert_array_equal(net.weight.numpy(), twin.weight.numpy())
    predictor = Predictor(net, device="cpu", max_programs=2)
    function = lm.jit(net, max_program_bytes=1)
    for size in (2, 3, 4, 5, 3, 2):
        expected = net(images(size)).numpy()
        np.testing.assert_allclose(predictor(images(size)).numpy(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(function(images(size)).numpy(), expected, rtol=1e-5, atol=1e-6)
        assert len(function._programs) == 1
    assert len(predictor._programs) == 2


def test_memory_of_a_program() -> None:
    net = nn.Linear(64, 64, bias=False)
    step = lm.train_step(net, lambda y, t: ops.mean(y), optim.SGD(0.1), device="cpu")
    step(np.zeros((32, 64), np.float32), np.zeros(1, np.float32))
    (program,) = step._programs
    inputs = 32 * 64 * 4 + 4 + 4
    constants = sum(v.spec.nbytes for v in program.executable.graph.constants)
    expected = program.executable.peak_bytes + inputs + constants
    assert expected <= program.executable.own_bytes < expected + 1024


def test_the_newest_of_a_key() -> None:
    programs: Programs[Stand] = Programs(4)
    assert programs.newest("a") is None
    for key, name in ("ax", "ay", "bz"):
        programs.add(key, Stand(name))
    newest = programs.newest("a")
    assert newest is not None
    assert newest.name == "y"
