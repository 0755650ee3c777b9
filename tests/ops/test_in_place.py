"""`inplace=True` of activations and dropouts: later readers of the input see the result, as in torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim

X = np.float32([-2, 7, 1])
Function = Callable[[Any], Any]


def of_parts(y: Any) -> Any:
    return ops.elu(y[1:], inplace=True).sum()


#: A function that writes over its argument, and what it leaves there.
CASES: dict[str, tuple[Function, Function]] = {
    "function": (lambda y: ops.relu(y, inplace=True), ops.relu),
    "by place": (lambda y: ops.leaky_relu(y, 0.1, True), lambda y: ops.leaky_relu(y, 0.1)),
    "layer": (nn.Hardtanh(-1, 1, inplace=True), lambda y: ops.hardtanh(y, -1, 1)),
    "inference": (nn.RReLU(inplace=True).eval(), lambda y: ops.rrelu(y)),
    "result is not read": (lambda y: (ops.celu(y, 0.5, inplace=True), y)[1], lambda y: ops.celu(y, 0.5)),
}


def around(f: Function) -> Function:
    """A program that reads what f wrote over."""

    def program(x: Any) -> Any:
        y = x * 2
        z = f(y)
        return y * 3 + z

    return program


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_written_values(name: str) -> None:
    over, plain = CASES[name]
    program, expected = around(over), lambda x: plain(x * 2) * 4
    x = lm.tensor(X)
    wanted, slopes = expected(x).numpy(), lm.grad(lambda x: expected(x).sum())(x).numpy()
    for f in (program, lm.jit(program)):
        np.testing.assert_allclose(f(x).numpy(), wanted, rtol=1e-6)
        np.testing.assert_allclose(lm.grad(lambda x: f(x).sum())(x).numpy(), slopes, rtol=1e-6)  # noqa: B023
    np.testing.assert_array_equal(x.numpy(), X)


def test_a_part_is_written_in_the_whole() -> None:
    whole = lm.tensor(X)
    ops.relu(whole[:2], inplace=True)
    assert whole.tolist() == [0, 7, 1]
    program = around(of_parts)
    np.testing.assert_allclose(lm.jit(program)(lm.tensor(-X)).numpy(), program(lm.tensor(-X)).numpy())


def test_arguments_of_compiled_functions_and_arrays_stay_for_their_owners() -> None:
    def f(x: Any) -> Any:
        return ops.relu(x, inplace=True) + x

    x, array = lm.tensor(X), X.copy()
    for run in (lm.jit(f), lambda x: lm.grad(lambda x: f(x).sum())(x) * 0 + f(x.clone())):
        assert run(x).tolist() == [0, 14, 2]
        assert x.tolist() == X.tolist()
    assert lm.vmap(f)(lm.tensor(np.stack([X, X]))).tolist() == [[0, 14, 2]] * 2
    assert ops.relu(array, inplace=True).tolist() == [0, 7, 1]
    assert array.tolist() == X.tolist()


def test_a_step_trains_a_network_that_begins_in_place() -> None:
    losses = []
    for inplace in (False, True):
        nn.manual_seed(0)
        net = nn.Sequential(nn.ReLU(inplace), nn.Linear(3, 4), nn.Dropout(0.5, inplace), nn.ELU(1.0, inplace))
        step = lm.train_step(net, ops.mse_loss, optim.SGD(0.1), device="cpu")
        losses.append([step(X[None], np.zeros((1, 4), np.float32)).item() for _ in range(3)])
    assert losses[0] == losses[1]


def test_what_cannot_be_written_is_named() -> None:
    held = np.arange(3, dtype=np.float32)
    held.flags.writeable = False
    with pytest.raises(ValueError, match="copy_: .* cannot be written: its memory is read-only"):
        ops.relu(lm.from_dlpack(held), inplace=True)
    with pytest.raises(TypeError, match="relu: inplace must be a bool, got 'yes'"):
        ops.relu(lm.ones(2), inplace="yes")  # type: ignore[arg-type]
    assert ops.relu(lm.tensor([1, -2]), inplace=True).tolist() == [1, 0]


def test_layers_print_it() -> None:
    layers = [nn.ReLU(True), nn.LeakyReLU(0.1, True), nn.Dropout(0.5, True), nn.ReLU(), nn.Dropout(0.5)]
    assert [str(layer) for layer in layers] == [
        "ReLU(inplace=True)",
        "LeakyReLU(negative_slope=0.1, inplace=True)",
        "Dropout(p=0.5, inplace=True)",
        "ReLU()",
        "Dropout(p=0.5)",
    ]
