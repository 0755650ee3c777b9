"""Generators: their seeds and states, by torch's names; the default one's."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.runtime import Device
from tests.helpers.second_device import SECOND, known


def test_a_state_is_gone_on_from() -> None:
    generator = lm.Generator().manual_seed(7)
    assert (generator.initial_seed(), generator.counter) == (7, 0)
    kept = generator.get_state()
    first = ops.randn(4, generator=generator).tolist()
    assert generator.counter > 0
    assert generator.set_state(kept) is generator
    assert ops.randn(4, generator=generator).tolist() == first
    assert ops.randn(4, generator=lm.Generator(7, device="cpu")).tolist() == first
    with pytest.raises(ValueError, match=r"new_state must be what get_state gave, .* got float64 \(3,\)"):
        generator.set_state(np.zeros(3))


def test_the_default_generator() -> None:
    lm.manual_seed(5)
    assert lm.initial_seed() == 5
    kept = lm.get_rng_state()
    first = ops.rand(3).tolist()
    assert ops.rand(3).tolist() != first
    lm.set_rng_state(kept)
    assert ops.rand(3).tolist() == first
    lm.manual_seed(0)


def test_a_compiled_function_draws_where_it_runs() -> None:
    """Whatever device is named, which for one that runs on a GPU is not the generator's own."""
    lm.manual_seed(5)
    draw = lm.jit(lambda x: x + ops.rand(3, device=Device("cuda:0")), device="cpu")
    first, second = draw(np.zeros(3, np.float32)).tolist(), draw(np.zeros(3, np.float32)).tolist()
    lm.manual_seed(5)
    assert [ops.rand(3).tolist(), ops.rand(3).tolist()] == [first, second]
    lm.manual_seed(0)


def test_a_function_that_is_differentiated_draws_where_it_says_or_beside_an_operand() -> None:
    """The state is the host's; what is drawn of it is not."""

    def picked(x: Any) -> Any:
        rows = ops.randint(0, 5, (3,), device=SECOND)
        noise = ops.rand_like(x) + ops.randn(5, device=SECOND)
        return ops.sum((x + ops.stop_gradient(noise))[rows])

    with known():
        x = lm.ones(5, device=SECOND)
        lm.manual_seed(3)
        value, slope = lm.value_and_grad(picked)(x)
        after = lm.get_rng_state().tolist()
        lm.manual_seed(3)
        assert picked(x).item() == value.item()
        assert lm.get_rng_state().tolist() == after
        assert value.device is SECOND
        assert slope.device is SECOND
        assert ops.sum(slope).item() == 3


class Noise(lm.nn.Module):
    """A module with a generator of its own."""

    def __init__(self) -> None:
        self.generator = lm.Generator(4)


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_of_a_generator_go_on_where_it_is(again: Any) -> None:
    generator = lm.Generator(4)
    ops.rand(3, generator=generator)
    for other in (again(generator), again(Noise()).generator):
        if other.get_state().tolist() != generator.get_state().tolist():
            ops.rand(3, generator=other)  # the module's has drawn nothing yet
        state = generator.get_state()
        assert ops.rand(3, generator=other).tolist() == ops.rand(3, generator=generator).tolist()
        generator.set_state(state)
    assert again(lm.nn.random.default_generator) is lm.nn.random.default_generator
