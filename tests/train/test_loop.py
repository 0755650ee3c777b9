"""fit: figures, evaluation, early end, the progress bar, plain lines elsewhere."""

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.train import Epoch, Position, Scores, Step, fit

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 48)
IMAGES = (RNG.standard_normal((48, 4)) * 0.3 + np.eye(3, 4)[LABELS]).astype(np.float32)


def make(rate: float = 0.5) -> Step:
    nn.manual_seed(1)
    return lm.train_step(
        nn.Linear(4, 3), ops.cross_entropy, optim.SGD(rate), device="cpu", backend="reference"
    )


def batches(count: int = 40, **kwargs: Any) -> data.Batches:
    return data.arrays(IMAGES[:count], LABELS[:count], batch_size=8, seed=1, **kwargs)


HELD_OUT = data.arrays(IMAGES[40:], LABELS[40:], batch_size=8, shuffle=False)


def console(terminal: bool = False) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=150, highlight=False), text


def test_figures_and_lines() -> None:
    where, text = console()
    history = fit(make(), batches(), 3, held_out=HELD_OUT, console=where)
    assert len(history.losses) == 15
    assert [e.number for e in history.epochs] == [0, 1, 2]
    last = history.epochs[-1]
    assert last.loss == pytest.approx(np.mean(history.losses[-5:]))
    assert last.loss < history.epochs[0].loss
    assert last.accuracy is not None
    assert last.accuracy > 0.8
    assert last.held_out is not None
    assert last.held_out.samples == 8
    assert last.images_per_second > 0
    assert history.position == Position(3, 0)
    lines = text.getvalue().splitlines()
    assert lines == [str(e) for e in history.epochs]  # no bar without a terminal
    assert lines[0].startswith("epoch 1: loss ")
    assert "held out" in lines[0]
    assert "images/s" in lines[0]


def test_a_bar_on_a_terminal() -> None:
    where, text = console(terminal=True)
    fit(make(), batches(), 2, console=where)
    shown = text.getvalue()
    for part in ("epoch 2/2", "10/10", "loss ", "accuracy ", "images/s", "left", "100%"):
        assert part in shown
    quiet, text = console(terminal=True)
    fit(make(), batches(), 1, console=quiet, progress=False)
    assert len(text.getvalue().splitlines()) == 1


def test_callbacks_end_the_run() -> None:
    seen: list[Epoch] = []

    def enough(epoch: Epoch) -> bool:
        seen.append(epoch)
        return epoch.number == 1

    history = fit(make(), batches(), 9, callbacks=[enough, lambda epoch: None], progress=False)
    assert len(seen) == len(history.epochs) == 2


@pytest.mark.parametrize("limit", [1, 5, 7])
def test_limit_of_steps(limit: int) -> None:
    history = fit(make(), batches(), 3, limit_steps=limit, progress=False)
    assert len(history.losses) == limit
    assert history.position == Position(limit // 5, limit % 5)


def test_any_iterable_with_a_length_and_prefetched_data() -> None:
    plain = list(batches(shuffle=False))
    expected = fit(make(), batches(shuffle=False), 2, progress=False).losses
    assert fit(make(), plain, 2, progress=False).losses == expected
    assert fit(make(), data.prefetch(plain), 2, progress=False).losses == expected
    shuffled = fit(make(), batches(), 2, progress=False).losses
    assert fit(make(), data.prefetch(batches()), 2, progress=False).losses == shuffled
    rest = fit(make(), data.prefetch(plain), 2, start=Position(1, 2), progress=False)
    assert len(rest.losses) == 3


def test_losses_without_hits() -> None:
    step = lm.train_step(nn.Linear(4, 4), nn.MSELoss(), optim.SGD(0.1), device="cpu", backend="reference")
    history = fit(step, data.arrays(IMAGES, IMAGES, batch_size=16), 2, progress=False)
    assert history.epochs[0].accuracy is None
    assert "accuracy" not in str(history.epochs[0])


def test_bad_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        fit(make(), batches(), 0)


def test_the_text_of_an_epoch() -> None:
    epoch = Epoch(1, 0.12345, 0.9876, 321.4, 4.56, Scores(349, 359))
    assert str(epoch) == (
        "epoch 2: loss 0.1235, accuracy 98.76 %, held out 97.21 % (349 of 359), 321 images/s, 4.6 s"
    )
