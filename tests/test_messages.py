"""What people write at first, and what they are told: what is wrong, what is allowed, what to write instead.

Where a program of PyTorch simply works by now, the test says what it gives.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from tests.helpers import bad_public_calls

X, Y = np.ones((2, 3), np.float32), np.zeros((2, 2), np.float32)


def step(net: nn.Module, loss: Callable[..., Any] = ops.mse_loss) -> Any:
    return lm.train_step(net, loss, optim.SGD(lr=0.1), device="cpu")


class Several(nn.Module):
    """Gives a tuple."""

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x), self.layer(x) * 2


class Listed(nn.Module):
    """Keeps its layers in a plain list."""

    def __init__(self) -> None:
        with pytest.warns(
            UserWarning, match="layers is a plain list that holds Linear: .* use nn.ModuleList"
        ):
            self.layers = [nn.Linear(3, 2)]

    def forward(self, x: Any) -> Any:
        return self.layers[0](x)


# ------------------------------------------------------------------------------------------------------------- works


def test_what_is_written_as_in_pytorch_works() -> None:
    assert lm.zeros(1, 2).shape == (1, 2)
    assert f"{lm.tensor(3.14159):.3f}" == "3.142"
    assert f"{lm.tensor([2.0]):.1f}" == "2.0"
    assert lm.tensor([5.0, 6.0, 7.0])[lm.tensor([0, 2])].tolist() == [5, 7]
    assert np.maximum(lm.tensor([-1.0, 2.0]), 0).tolist() == [0, 2]


def test_an_optimizer_takes_parameters_first() -> None:
    """As in PyTorch: the step is what brings them together."""
    net = nn.Linear(3, 2)
    found = optim.SGD(net.parameters(), lr=0.1)
    assert found.lr == 0.1
    losses = [float(lm.train_step(net, ops.mse_loss, found, device="cpu")(X, Y)) for _ in range(2)]
    assert losses[1] < losses[0]


def test_numpy_functions_are_recorded() -> None:
    traced = lm.trace(lambda x: np.maximum(x, 0) + np.exp(x), X)
    assert [n.op.name for n in traced.nodes] == ["maximum", "exp", "add"]


def test_a_network_may_give_a_tuple() -> None:
    def loss(outputs: Any, target: Any) -> Any:
        return sum(ops.mse_loss(y, target) for y in outputs)

    trained = lm.train_step(Several(), loss, optim.SGD(lr=0.01), device="cpu")
    losses = [float(trained(X, Y)) for _ in range(5)]
    assert losses[-1] < losses[0]


# -------------------------------------------------------------------------------------------------- what goes wrong

NO_NUMBERS = (
    r"a traced value f64\[\] has no numbers yet: a Python number .* cannot be made of it; go on with ops"
)


@pytest.mark.feature("F105")
@pytest.mark.parametrize("through", [lm.jit, lambda fn: lambda x: lm.trace(fn, x)], ids=["jit", "trace"])
@pytest.mark.parametrize(
    "number",
    [float, int, lambda y: y.item(), lambda y: f"{y:.3f}", lambda y: list(range(y)), lambda y: y.tolist()],
    ids=["float", "int", "item", "format", "range", "tolist"],
)
def test_numbers_of_what_is_traced(number: Callable[[Any], Any], through: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=NO_NUMBERS):
        through(lambda x: number(ops.mean(x)))(np.ones(3))


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda x: x if x.sum() > 0 else -x, "branches must not depend on data; use ops.where, or compute"),
        (lambda x: np.asarray(x), r"f64\[3\] has no numbers yet; use lamina.ops inside a trace, not NumPy"),
    ],
    ids=["if", "asarray"],
)  # fmt: skip
def test_branches_and_arrays_of_what_is_traced(fn: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        lm.jit(fn)(np.ones(3))


def test_gradients_of_tensors() -> None:
    with pytest.raises(
        TypeError, match=r"Tensor f32\[\] is not traced; differentiate a function with lamina.grad"
    ):
        lm.gradients(lm.tensor(3.0), [lm.tensor(1.0)])


def test_a_loss_of_one_tensor_given_several() -> None:
    with pytest.raises(
        TypeError, match=r"mse_loss: input must be one tensor, got a tuple of 2: .* a loss of all of them"
    ):
        step(Several())(X, Y)
    with pytest.raises(
        TypeError, match=r"relu: .* must be one tensor, got a list of 1: take one of them \(\[0\]"
    ):
        ops.relu([lm.ones(2)])


def test_layers_in_a_plain_list() -> None:
    with pytest.raises(
        ValueError, match="Listed has no parameters; layers holds modules in a plain list: use nn.ModuleList"
    ):
        step(Listed())


def test_a_format_for_several_numbers() -> None:
    with pytest.raises(
        TypeError, match=r"shape \(2,\) cannot be formatted with '.3f': that is for one number, as x.mean\(\)"
    ):
        f"{lm.ones(2):.3f}"
    assert f"{lm.ones(2)}" == str(lm.ones(2))


def test_sizes_that_are_none() -> None:
    with pytest.raises(TypeError, match=r"size must be an int or a sequence of ints, got \(1, '2'\)"):
        lm.zeros(1, "2")  # type: ignore[arg-type]


def batches() -> Iterator[Any]:
    for _ in range(3):
        yield X, Y


def test_a_generator_of_batches(capsys: pytest.CaptureFixture[str]) -> None:
    """It serves one epoch."""
    history = lm.fit(step(nn.Linear(3, 2)), batches(), 1, progress=False)
    assert len(history.losses) == 3
    with pytest.raises(
        TypeError, match="a generator can be read once, which is one epoch of 2; give data that can be"
    ):
        lm.fit(step(nn.Linear(3, 2)), batches(), 2, progress=False)
    capsys.readouterr()


def test_an_element_of_several() -> None:
    with pytest.raises(
        lm.ShapeError, match=r"item: the tensor has shape \(2,\); only one element can be an item"
    ):
        float(lm.ones(2))


def test_statistics_within_a_plain_trace() -> None:
    with pytest.raises(
        TypeError, match=r"its tensor takes no part in this trace; trace .* or switch it to eval\(\)"
    ) as caught:
        lm.trace(nn.Sequential(nn.BatchNorm1d(3)), X)
    assert caught.value.__notes__[0].startswith("in the module 0 (BatchNorm1d)")


# ------------------------------------------------------------------------------------------------ generated bad calls


def _bad_calls(seed: int, calls: range) -> Any:
    found = bad_public_calls.in_process(seed, calls)
    assert not found["wrong"], "\n".join(found["wrong"])
    return found


def test_generated_bad_calls_end_in_documented_errors() -> None:
    """A part of those of `python -m tests.helpers.bad_public_calls`, in a process of their own."""
    found = _bad_calls(1, range(0, 6000, 29))
    assert sum(found["outcomes"].values()) == 207
    assert found["outcomes"]["TypeError"] > 100


@pytest.mark.slow
def test_many_generated_bad_calls() -> None:
    """20,000: none ends the process, hangs or gives an error that is not documented; nothing is left behind."""
    held = [_bad_calls(2, range(first, first + 4000))["held"] for first in range(0, 20000, 4000)]
    assert max(each["threads"] for each in held) <= 8
    assert max(each["files"] for each in held) <= 40
    assert max(each["bytes"] for each in held) <= 64 << 20
