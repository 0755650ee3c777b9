"""LSTMs that see their cell state: the cell against its formula, the layer against the cell, lengths, gradients."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.spec import ShapeError

RNG = np.random.default_rng(4)


def close(found: Any, wanted: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=atol)


def test_peepholes_of_zero_are_an_lstm() -> None:
    """And those that are not change what the gates see."""
    cell, plain = nn.PeepholeLSTMCell(3, 4), nn.LSTMCell(3, 4)
    plain.load_state_dict({k: v for k, v in cell.state_dict().items() if "_c" not in k})
    rng = np.random.default_rng(0)
    x, h, c = (lm.tensor(rng.standard_normal((2, width)).astype(np.float32)) for width in (3, 4, 4))
    seen = [getattr(cell, f"weight_c{gate}").numpy() for gate in "ifo"]
    sums = x.numpy() @ cell.weight_ih.numpy().T + cell.bias_ih.numpy() + cell.bias_hh.numpy()
    parts = np.split(sums + h.numpy() @ cell.weight_hh.numpy().T, 4, 1)
    i, f = (1 / (1 + np.exp(-parts[k] - seen[k] * c.numpy())) for k in range(2))
    after = f * c.numpy() + i * np.tanh(parts[2])
    found = cell(x, (h, c))
    close(found[1].numpy(), after)
    close(found[0].numpy(), np.tanh(after) / (1 + np.exp(-parts[3] - seen[2] * after)))
    for name in ("weight_ci", "weight_cf", "weight_co"):
        nn.init.zeros_(getattr(cell, name))
    for mine, theirs in zip(cell(x), plain(x), strict=True):
        close(mine.numpy(), theirs.numpy())


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def one_by_one(layer: Any, x: Any, h: Any, c: Any) -> tuple[Any, list[Any], list[Any]]:
    """(outputs [T, 1, D H], last h, last c) of one sequence [T, 1, I] by calls of the cells."""
    last_h, last_c = [], []
    for _number in range(layer.num_layers):
        sides = []
        for direction in range(layer.directions):
            place, outputs = len(last_h), []
            state = (h[place], c[place])
            for step in x[::-1] if direction else x:
                state = layer.cells[place](step, state)
                outputs.append(state[0].numpy())
            sides.append(
                np.stack(outputs[::-1] if direction else outputs) if outputs else np.zeros((0, 1, 4))
            )
            last_h.append(np.asarray(state[0]))
            last_c.append(np.asarray(state[1]))
        x = np.concatenate(sides, 2).astype(np.float32)
    return x, last_h, last_c


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("lengths", [None, [5, 2, 1, 0]], ids=str)
def test_the_layer_is_its_cells_step_by_step(layers: int, both: bool, lengths: Any) -> None:
    layer = nn.PeepholeLSTM(3, 4, layers, bidirectional=both)
    count = layers * layer.directions
    x, h, c = drawn(5, 4, 3), drawn(count, 4, 4), drawn(count, 4, 4)
    y, (hn, cn) = layer(x, (h, c), lengths=None if lengths is None else np.array(lengths))
    assert y.shape == (5, 4, 4 * layer.directions)
    for n, length in enumerate(lengths or [5] * 4):
        one = slice(n, n + 1)
        wanted, last_h, last_c = one_by_one(layer, x[:length, one], h[:, one], c[:, one])
        close(y.numpy()[:length, one], wanted)
        assert not y.numpy()[length:, n].any()
        close(hn.numpy()[:, n], np.stack(last_h)[:, 0])
        close(cn.numpy()[:, n], np.stack(last_c)[:, 0])


def test_batch_first_and_single_sequences() -> None:
    layer = nn.PeepholeLSTM(3, 4, bidirectional=True)
    x = drawn(5, 2, 3)
    y, (h, c) = layer(x)
    first = nn.PeepholeLSTM(3, 4, batch_first=True, bidirectional=True)
    first.load_state_dict(layer.state_dict())
    close(first(x.swapaxes(0, 1))[0].numpy(), y.numpy().swapaxes(0, 1))
    single, (h1, c1) = layer(x[:, 0])
    close(single.numpy(), y.numpy()[:, 0])
    close(h1.numpy(), h.numpy()[:, 0])
    close(c1.numpy(), c.numpy()[:, 0])


def test_gradients_of_all_parameters() -> None:
    layer = nn.PeepholeLSTM(2, 3, bidirectional=True)
    x, lengths = drawn(4, 2, 2), np.array([4, 2])

    def loss(net: Any) -> Any:
        return (net(x, lengths=lengths)[0] ** 2).sum()

    found = lm.grad(loss)(layer)
    for name, parameter in layer.named_parameters():
        direction, held = drawn(*parameter.shape), parameter.numpy().copy()
        sides = []
        for step in (1e-2, -1e-2):
            parameter.copy_(held + step * direction)
            sides.append(float(loss(layer).numpy()))
        parameter.copy_(held)
        close((found[name].numpy() * direction).sum(), (sides[0] - sides[1]) / 2e-2, 2e-2)


def test_it_learns_in_a_compiled_step() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.rnn, self.head = nn.PeepholeLSTM(2, 8), nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            return self.head(self.rnn(x)[0][-1])

    x = drawn(6, 16, 2)
    step = lm.train_step(Net(), ops.mse_loss, optim.Adam(lr=0.03))
    losses = [float(step(x, x.sum((0, 2))[:, None])) for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]


def test_errors_name_what_is_wrong() -> None:
    layer = nn.PeepholeLSTM(3, 4)
    with pytest.raises(ShapeError, match=r"PeepholeLSTM: x must be \(T, B, I\) or \(T, I\).*got f32\[3\]"):
        layer(drawn(3))
    with pytest.raises(IndexError, match="PeepholeLSTM: lengths: index 6 at position 1"):
        layer(drawn(5, 2, 3), lengths=np.array([1, 6]))
    with pytest.raises(ValueError, match="PeepholeLSTM: num_layers must be at least 1, got 0"):
        nn.PeepholeLSTM(3, 4, 0)
    with pytest.raises(ShapeError, match=r"PeepholeLSTMCell: x must be \(B, I\) or \(I,\), got f32\[2,2,3\]"):
        nn.PeepholeLSTMCell(3, 4)(drawn(2, 2, 3))
