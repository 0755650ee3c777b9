"""fit: figures, evaluation, early end, the progress bar, plain lines elsewhere."""

import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.train import Epoch, Position, Scores, Step, fit, load_checkpoint, metrics

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


VALIDATION = data.arrays(IMAGES[40:], LABELS[40:], batch_size=8, shuffle=False)


def console(terminal: bool = False) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=150, highlight=False), text


def test_figures_and_lines() -> None:
    where, text = console()
    history = fit(make(), batches(), 3, validation=VALIDATION, console=where)
    assert len(history.losses) == 15
    assert [e.number for e in history.epochs] == [0, 1, 2]
    last = history.epochs[-1]
    assert last.loss == pytest.approx(np.mean(history.losses[-5:]))
    assert last.loss < history.epochs[0].loss
    assert last.accuracy is not None
    assert last.accuracy > 0.8
    assert last.validation is not None
    assert last.validation.labels == 8
    assert last.validation.loss is not None
    assert last.samples_per_second > 0
    assert history.position == Position(3, 0)
    lines = text.getvalue().splitlines()
    assert lines == [str(e) for e in history.epochs]  # no bar without a terminal
    assert lines[0].startswith("epoch 1: loss ")
    assert "validation" in lines[0]
    assert "samples/s" in lines[0]


def test_metrics_of_validation_data() -> None:
    where, text = console()
    given = {"top2": metrics.TopK(2), "matrix": metrics.ConfusionMatrix()}
    history = fit(make(), batches(), 2, validation=VALIDATION, metrics=given, console=where)
    scores = history.epochs[-1].validation
    assert scores is not None
    assert scores.metrics["top2"] >= (scores.accuracy or 2)
    assert scores.metrics["matrix"].trace() == scores.correct
    assert ", top2 " in text.getvalue()
    with pytest.raises(
        ValueError, match=r"metrics \(top2, matrix\) are of validation data; give validation="
    ):
        fit(make(), batches(), 1, metrics=given, progress=False)


def test_a_bar_on_a_terminal() -> None:
    where, text = console(terminal=True)
    fit(make(), batches(), 2, console=where)
    shown = text.getvalue()
    for part in ("epoch 2/2", "10/10", "loss ", "accuracy ", "samples/s", "left", "100%"):
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
    history = fit(make(), batches(), 3, max_steps=limit, progress=False)
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


@pytest.mark.parametrize("count", [8, 24])
def test_the_learning_rate_of_an_epoch_is_that_of_its_last_step(count: int) -> None:
    """Of one step, or of three."""
    step = lm.train_step(
        nn.Linear(4, 3),
        ops.cross_entropy,
        optim.SGD(lambda n: 1 / (1 + n)),
        device="cpu",
        backend="reference",
    )
    epochs = fit(step, batches(count), 3, progress=False).epochs
    each = count // 8
    assert [e.learning_rate for e in epochs] == pytest.approx([1 / (each * k) for k in (1, 2, 3)])


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
        "epoch 2: loss 0.1235, accuracy 98.76 %, validation 97.21 % (349 of 359), 321 samples/s, 4.6 s"
    )


def test_a_generator_is_one_epoch() -> None:
    """Without a length; and what is empty is an error, wherever it comes from."""
    plain = list(batches(shuffle=False))
    expected = fit(make(), plain, 1, progress=False)
    found = fit(make(), (b for b in plain), 1, progress=False)
    assert found.losses == expected.losses
    assert found.position == Position(1, 0)
    cut = fit(make(), (b for b in plain), 1, max_steps=2, progress=False)
    assert cut.position == Position(0, 2)
    assert fit(make(), (b for b in plain), 1, max_steps=5, progress=False).position == Position(1, 0)
    with pytest.raises(
        TypeError, match="a generator can be read once, which is one epoch of 2; give data that can"
    ):
        fit(make(), (b for b in plain), 2, progress=False)
    with pytest.raises(ValueError, match="the data has no batches; it gave some before: is it an iterator"):
        fit(make(), data.prefetch(b for b in plain), 2, progress=False)


@pytest.mark.parametrize("nothing", [[], (), iter(()), data.prefetch([])])
def test_data_without_batches_is_an_error(nothing: Any) -> None:
    with pytest.raises(ValueError, match="fit: the data has no batches"):
        fit(make(), nothing, 1, progress=False)


def test_a_start_behind_the_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="epoch 1 has no batch 5 to go on from, only 5"):
        fit(make(), batches(), 1, start=Position(0, 5), progress=False)


def test_a_batch_that_is_no_pair_is_named() -> None:
    with pytest.raises(ValueError, match="fit: batch 0 of epoch 1 is a tuple of 1; a batch is a pair"):
        fit(make(), data.arrays(IMAGES, batch_size=8), 1, progress=False)


def test_the_old_keywords_are_named() -> None:
    for old, new in (("held_out", "validation"), ("limit_steps", "max_steps")):
        with pytest.raises(
            TypeError, match=f"fit.. got an unexpected keyword argument '{old}'; it is '{new}'"
        ):
            fit(make(), batches(), 1, **{old: None})


# ---- divergence


def test_a_diverged_run_stops_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "c"
    step = make(0.5)
    fit(step, batches(), 1, checkpoint=file, progress=False)
    before = file.read_bytes()
    spoiled = [(np.full_like(x, 1e30), y) for x, y in batches()]
    with pytest.raises(
        lm.train.DivergedError, match=r"at step [56] with learning rate 0\.5: the loss is nan"
    ) as error:
        fit(step, spoiled, 2, checkpoint=file, progress=False)
    assert "c was not written again" in str(error.value)
    assert not np.isfinite(error.value.loss)
    assert file.read_bytes() == before


def test_parameters_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """The loss of a step is that before its update: after the last one only the parameters tell."""
    file = tmp_path / "c"
    with pytest.raises(lm.train.DivergedError, match="at step 0 .*: parameter weight is not finite"):
        fit(make(1e38), [(IMAGES[:8] * 100, LABELS[:8])], 1, checkpoint=file, progress=False)
    assert not file.exists()


def test_going_on_in_spite_of_it(tmp_path: Path) -> None:
    spoiled = [(np.full_like(x, 1e30), y) for x, y in batches()]
    history = fit(make(), spoiled, 1, checkpoint=tmp_path / "c", check_finite=False, progress=False)
    assert len(history.losses) == 5
    assert np.isnan(history.losses[-1])
    assert (tmp_path / "c").exists()


@pytest.mark.parametrize(("bad", "ends"), [(20, False), (21, True)])
def test_float16_skips_steps_that_overflow(bad: int, ends: bool) -> None:
    """They change no parameter while the loss scale is searched; too many in a row are a divergence."""
    nn.manual_seed(1)
    step = lm.train_step(
        nn.Linear(4, 3),
        ops.cross_entropy,
        optim.SGD(0.1),
        device="cpu",
        backend="reference",
        precision="fp16",
    )
    spoiled = [(np.full((8, 4), np.nan, np.float32), LABELS[:8])] * bad
    given = [(IMAGES[:8], LABELS[:8]), *spoiled, (IMAGES[8:16], LABELS[8:16])]
    if ends:
        with pytest.raises(lm.train.DivergedError, match="at step 21 .*: the loss is nan"):
            fit(step, given, 1, progress=False)
    else:
        assert np.isfinite(fit(step, given, 1, progress=False).losses[-1])
    assert all(np.isfinite(p.numpy()).all() for p in step.net.parameters())


# ---- Ctrl-C


class Interrupting:
    """Data during whose reading Ctrl-C is pressed."""

    def __init__(self, at: int, times: int = 1) -> None:
        self.plain, self.at, self.times = list(batches(shuffle=False)), at, times

    def __len__(self) -> int:
        return len(self.plain)

    def __iter__(self) -> Any:
        for number, batch in enumerate(self.plain):
            for _ in range(self.times if number == self.at else 0):
                signal.raise_signal(signal.SIGINT)
            yield batch


@pytest.mark.parametrize("at", [0, 2, 4])
def test_ctrl_c_finishes_the_step_and_saves_within_the_epoch(tmp_path: Path, at: int) -> None:
    file = tmp_path / "c"
    expected = fit(make(), batches(shuffle=False), 2, progress=False)
    step = make()
    with pytest.raises(
        KeyboardInterrupt, match="interrupted after . epochs and . batches; .*c goes on from there"
    ):
        fit(step, Interrupting(at), 2, checkpoint=file, progress=False)
    again = make()
    position = load_checkpoint(file, again)
    assert position == (Position(0, at + 1) if at < 4 else Position(1, 0))
    rest = fit(again, batches(shuffle=False), 2, start=position, override=["data"], progress=False)
    assert rest.losses == expected.losses[at + 1 :]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(make(), Interrupting(1, times=2), 1, checkpoint=tmp_path / "c", progress=False)
    assert not (tmp_path / "c").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_checkpoint_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    step = make()
    for place in (tmp_path, tmp_path / "absent" / "c"):
        with pytest.raises(OSError, match="folder"):
            fit(step, batches(), 1, checkpoint=place, progress=False)
    assert step.number == 0


def test_accuracy_of_one_label_a_pixel() -> None:
    """Trained by a step and evaluated: both count pixels."""
    images = RNG.standard_normal((8, 2, 4, 4)).astype(np.float32)
    labels = images.argmax(1)
    step = lm.train_step(
        nn.Conv2d(2, 2, 1), ops.cross_entropy, optim.SGD(0.5), device="cpu", backend="reference"
    )
    batches = data.arrays(images, labels, batch_size=4, seed=1)
    last = fit(step, batches, 30, validation=batches, progress=False).epochs[-1]
    assert last.accuracy is not None
    assert 0.9 < last.accuracy <= 1
    assert last.validation is not None
    assert last.validation.labels == 8 * 16


def test_labels_that_are_left_out_are_in_no_accuracy() -> None:
    """Padded labels: training and evaluation count the others."""
    x = RNG.standard_normal((8, 3, 5)).astype(np.float32)
    labels = np.where(np.arange(5) < 2, x.argmax(1), -100)
    labels[5, 1] = -100
    net = nn.Conv1d(3, 3, 1, bias=False)
    net.weight.copy_(np.eye(3, dtype=np.float32)[..., None])
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.0), device="cpu")
    batches = [(x[:4], labels[:4]), (x[4:], labels[4:])]
    last = fit(step, batches, 1, validation=batches, progress=False).epochs[-1]
    assert last.accuracy == 1.0
    assert step.correct is not None
    assert step.labels is not None
    assert step.correct.item() == step.labels.item() == 7
    assert last.validation is not None
    assert (last.validation.correct, last.validation.labels) == (15, 15)
    whole = ops.cross_entropy(x, labels).item()
    assert last.validation.loss == pytest.approx(whole, rel=1e-5)


def test_a_network_of_two_inputs_and_two_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Any, y: Any) -> Any:
            return self.first(x), self.second(y)

    def loss(outputs: Any, targets: Any) -> Any:
        return ops.mse_loss(outputs[0], targets[0]) + ops.mse_loss(outputs[1], targets[1])

    x, y = IMAGES[:8], IMAGES[8:16]
    batches = [((x, y), (x[:, :2], y[:, 2:]))] * 3
    step = lm.train_step(Two(), loss, optim.SGD(0.1), device="cpu", backend="reference")
    found = fit(step, batches, 2, validation=batches, progress=False)
    assert found.losses[-1] < found.losses[0]
    assert found.epochs[-1].accuracy is None
    assert found.epochs[-1].validation is not None
    assert found.epochs[-1].validation.loss is not None


def test_the_last_group_of_gradients_of_an_epoch_may_be_short() -> None:
    def trained(count: int, **kwargs: Any) -> tuple[Step, Any]:
        nn.manual_seed(1)
        net = nn.Linear(4, 3)
        step = lm.train_step(
            net, ops.cross_entropy, optim.SGD(0.5), device="cpu", backend="reference", **kwargs
        )
        fit(step, data.arrays(IMAGES[:count], LABELS[:count], batch_size=8, shuffle=False), 2, progress=False)
        return step, net.weight.numpy().copy()

    step, found = trained(40, accumulate=2)  # groups of 2, 2 and 1
    assert (step.number, step.waiting) == (6, 0)
    nn.manual_seed(1)
    net = nn.Linear(4, 3)
    other = lm.train_step(net, ops.cross_entropy, optim.SGD(0.5), device="cpu", backend="reference")
    for _ in range(2):
        for part in (slice(0, 16), slice(16, 32), slice(32, 40)):
            other(IMAGES[part], LABELS[part])
    np.testing.assert_allclose(found, net.weight.numpy(), rtol=1e-5, atol=1e-6)


class Streamed:
    """Batches that do not know how many they are, and count how many were fetched."""

    def __init__(self, count: int) -> None:
        self.batches = [(IMAGES[i : i + 8], LABELS[i : i + 8]) for i in range(0, 8 * count, 8)]
        self.fetched = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.fetched += 1
            yield batch


@pytest.mark.parametrize(("count", "updates"), [(3, 2), (4, 2), (5, 3)])
def test_the_short_last_group_of_a_stream_ends_with_the_epoch(count: int, updates: int) -> None:
    found = []
    for given in (Streamed(count), Streamed(count).batches):
        nn.manual_seed(1)
        net = nn.Linear(4, 3)
        step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.5), device="cpu", accumulate=2)
        assert len(fit(step, given, 2, progress=False).losses) == 2 * count
        assert (step.number, step.waiting) == (2 * updates, 0)
        found.append(net.weight.numpy().copy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_batch_that_was_fetched_before_its_turn_is_not_lost(steps: int) -> None:
    """The run ends where the next batch, the last one at `steps` of 2, has or has not been fetched already."""
    given = Streamed(3)
    step = lm.train_step(nn.Linear(4, 3), ops.cross_entropy, optim.SGD(0.5), device="cpu", accumulate=3)
    history = fit(step, given, 1, max_steps=steps, progress=False)
    assert history.position == (Position(1, 0) if steps == 3 else Position(0, steps))
    plain = Streamed(3)
    fit(make(), plain, 1, max_steps=1, progress=False)
    assert plain.fetched == 2  # nothing is fetched before its turn but to know whether the epoch is over


class RandomValidation:
    """Validation data that is drawn anew for each epoch, and remembers which were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("data that knows epochs is asked for one")

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        self.asked.append(number)
        yield IMAGES[:4], LABELS[:4]


def test_validation_data_that_knows_epochs_gives_those_of_the_epoch() -> None:
    """A run that goes on is judged by the same figures, though its validation data was never read before."""
    asked = []
    for start in (None, 2):
        validation = RandomValidation()
        begin = Position() if start is None else Position(start, 0)
        fit(make(), batches(), 4, validation=validation, start=begin, progress=False, console=console()[0])
        asked.append(validation.asked)
    assert asked == [[0, 1, 2, 3], [2, 3]]


def test_a_checkpoint_every_so_many_updates_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at each batch whose gradients are gathered; the last is that of the epoch's end."""
    written: list[int] = []
    monkeypatch.setattr(
        "lamina.train.loop.save_checkpoint", lambda path, step, *rest: written.append(step.number)
    )
    step = lm.train_step(nn.Linear(4, 3), ops.cross_entropy, optim.SGD(0.1), device="cpu", accumulate=4)
    many = data.arrays(np.tile(IMAGES, (2, 1))[:64], np.tile(LABELS, 2)[:64], batch_size=4)
    fit(step, many, 1, checkpoint=tmp_path / "file.safetensors", checkpoint_every=2, progress=False)
    assert written == [2, 4, 4]


def test_validation_data_that_fills_up_its_last_batch_is_refused() -> None:
    """Before anything is trained: figures would count samples twice."""
    x, y = np.zeros((5, 3), np.float32), np.arange(5) % 2
    step = lm.train_step(nn.Linear(3, 2), ops.cross_entropy, optim.SGD(0.1), device="cpu")
    padded = data.arrays(x, y, batch_size=4, pad_last=True)
    with pytest.raises(ValueError, match="fit: validation has pad_last=True"):
        lm.fit(step, data.arrays(x, y, batch_size=4), 1, validation=padded, progress=False)
    assert step.number == 0
