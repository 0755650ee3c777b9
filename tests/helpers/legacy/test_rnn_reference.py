"""The NumPy recurrent network against PyTorch on the CPU, and its clipped cell against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.legacy import rnn_reference as reference
from tests.helpers.legacy.rnn_reference import Rnn

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

TIME, BATCH = 5, 4
LENGTHS = [5, 4, 2, 1]


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.uniform(-0.8, 0.8, shape)


def module(rnn: Rnn, parameters: dict[str, Any]) -> Any:
    """PyTorch's module with the same parameters, in float64."""
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(rnn.cell, torch.nn.RNN)
    extra: dict[str, Any] = {"proj_size": rnn.projection} if rnn.projection else {}
    if kind is torch.nn.RNN:
        extra["nonlinearity"] = rnn.cell
    made = kind(rnn.inputs, rnn.hidden, rnn.layers, bidirectional=rnn.bidirectional, **extra).double()
    made.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
    return made


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "variable"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    ("cell", "projection"), [("relu", None), ("tanh", None), ("lstm", None), ("gru", None), ("lstm", 3)]
)
def test_values_and_gradients_equal_pytorchs(
    cell: str, projection: int | None, bidirectional: bool, lengths: list[int] | None
) -> None:
    rnn = Rnn(cell, 3, 6, layers=2, projection=projection, bidirectional=bidirectional)
    rng = np.random.default_rng(7)
    parameters = {name: numbers(rng, shape) for name, shape in rnn.shapes().items()}
    states = 2 * rnn.directions
    x, h0 = numbers(rng, (TIME, BATCH, 3)), numbers(rng, (states, BATCH, rnn.size))
    c0 = numbers(rng, (states, BATCH, 6))
    dy, dhn = numbers(rng, (TIME, BATCH, rnn.size * rnn.directions)), numbers(rng, h0.shape)
    dcn = numbers(rng, c0.shape)
    got = reference.forward(rnn, parameters, x, h0, c0, lengths)
    back = reference.backward(got, dy, dhn, dcn)

    network = module(rnn, parameters)
    tx, th, tc = (torch.from_numpy(a).requires_grad_() for a in (x, h0, c0))
    data = tx if lengths is None else torch.nn.utils.rnn.pack_padded_sequence(tx, lengths)
    y, last = network(data, (th, tc) if cell == "lstm" else th)
    if lengths is not None:
        y = torch.nn.utils.rnn.pad_packed_sequence(y)[0]
    hn, cn = last if cell == "lstm" else (last, None)
    loss = (y * torch.from_numpy(dy)).sum() + (hn * torch.from_numpy(dhn)).sum()
    if cn is not None:
        loss = loss + (cn * torch.from_numpy(dcn)).sum()
    loss.backward()

    close = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(got.y, y.detach().numpy(), **close)
    np.testing.assert_allclose(got.hn, hn.detach().numpy(), **close)
    np.testing.assert_allclose(back.dx, tx.grad.numpy(), **close)
    np.testing.assert_allclose(back.dh0, th.grad.numpy(), **close)
    if cn is not None:
        assert got.cn is not None
        np.testing.assert_allclose(got.cn, cn.detach().numpy(), **close)
        assert back.dc0 is not None
        np.testing.assert_allclose(back.dc0, tc.grad.numpy(), **close)
    assert set(back.parameters) == set(parameters)
    for name, parameter in network.named_parameters():
        np.testing.assert_allclose(back.parameters[name], parameter.grad.numpy(), **close, err_msg=name)


def test_skip_input_is_an_identity() -> None:
    rnn = Rnn("gru", 6, 6, layers=2)
    rng = np.random.default_rng(3)
    parameters = {name: numbers(rng, shape) for name, shape in rnn.shapes().items()}
    x = numbers(rng, (TIME, BATCH, 6))
    skipping = {name: value for name, value in parameters.items() if name != "weight_ih_l0"}
    parameters["weight_ih_l0"] = np.tile(np.eye(6), (3, 1))
    with_ones, skipped = (reference.forward(rnn, p, x) for p in (parameters, skipping))
    np.testing.assert_array_equal(with_ones.y, skipped.y)
    dy = numbers(rng, with_ones.y.shape)
    left, right = reference.backward(with_ones, dy), reference.backward(skipped, dy)
    np.testing.assert_array_equal(left.dx, right.dx)
    assert set(left.parameters) - set(right.parameters) == {"weight_ih_l0"}


def test_the_clipped_cell_against_finite_differences() -> None:
    rnn = Rnn("lstm", 3, 4, layers=2, bidirectional=True, projection=2, clip=(-0.3, 0.35))
    rng = np.random.default_rng(5)
    parameters = {name: numbers(rng, shape) for name, shape in rnn.shapes().items()}
    x, c0 = numbers(rng, (TIME, BATCH, 3)), numbers(rng, (4, BATCH, 4))
    dy, dcn = numbers(rng, (TIME, BATCH, 4)), numbers(rng, c0.shape)

    def loss() -> float:
        found = reference.forward(rnn, parameters, x, None, c0, LENGTHS)
        return float((found.y * dy).sum() + (found.cn * dcn).sum())

    got = reference.forward(rnn, parameters, x, None, c0, LENGTHS)
    clipped = [step.inner != step.cell for done in got.tape for step in done.steps]
    assert 0.05 < np.mean(clipped) < 0.95
    kept = np.mean([done.kept for done in got.tape])  # the initial cells are clipped too
    assert 0.2 < kept < 0.8
    assert got.cn is not None
    assert np.mean((got.cn < -0.3) | (got.cn > 0.35)) > 0.05  # the last ones are not
    back = reference.backward(got, dy, None, dcn)
    assert back.dc0 is not None
    checked = {"x": (x, back.dx), "c0": (c0, back.dc0)}
    checked |= {name: (parameters[name], back.parameters[name]) for name in parameters}
    for name, (value, gradient) in checked.items():
        for _ in range(4):
            at = tuple(int(rng.integers(n)) for n in value.shape)
            before = value[at]
            value[at] = before + 1e-6
            up = loss()
            value[at] = before - 1e-6
            down = loss()
            value[at] = before
            assert (up - down) / 2e-6 == pytest.approx(gradient[at], rel=1e-5, abs=1e-7), (name, at)


def test_sides_of_relu_are_taken_only_next_to_zero() -> None:
    rnn, rng = Rnn("relu", 3, 6, layers=2, bidirectional=True), np.random.default_rng(11)
    parameters = {name: numbers(rng, shape) for name, shape in rnn.shapes().items()}
    x, h0 = numbers(rng, (TIME, BATCH, 3)), numbers(rng, (4, BATCH, 6))
    dy, limit = numbers(rng, (TIME, BATCH, 12)), 0.02
    want, other = (reference.forward(rnn, parameters, x, h0) for _ in range(2))
    places = [
        (step, place)
        for step in (step for done in other.tape for step in done.steps)
        for place in map(tuple, np.argwhere(np.abs(step.inner) < limit))
    ]
    assert len(places) > 3
    for step, place in places[::2]:
        step.inner[place] *= -1
    got = reference.backward(other, dy)

    def distance() -> float:
        found = reference.backward(want, dy)
        return float(np.linalg.norm(got.dx - found.dx) + np.linalg.norm(got.dh0 - found.dh0))

    before = distance()
    assert before > 1e-3
    assert reference.take_sides(want, limit, distance) == len(places[::2])
    assert distance() < 1e-12
    other.tape[0].steps[0].inner[...] *= -1  # sides not explained by rounding stay
    got = reference.backward(other, dy)
    reference.take_sides(want, limit, distance)
    assert distance() > 0.1
