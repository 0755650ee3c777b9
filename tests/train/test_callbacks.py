"""Callbacks: each alone on given epochs, and in runs that are interrupted and go on to the bit."""

import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.cli import main
from lamina.optim import schedule
from lamina.train import CheckpointFolder, Epoch, History, Position, Scores, Step, fit, load_checkpoint
from lamina.train.callbacks import (
    BestCheckpoint,
    Callback,
    CSVLogger,
    EarlyStopping,
    ReduceLROnPlateau,
    Run,
    TensorBoard,
    Trace,
)
from lamina.train.metrics import MeanSquaredError, TopK
from tests.helpers.events import read_events
from tests.helpers.ranks import run_ranks

pytestmark = pytest.mark.feature("B028")

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 48)
IMAGES = (RNG.standard_normal((48, 4)) * 0.3 + np.eye(3, 4)[LABELS]).astype(np.float32)
VALIDATION = data.arrays(IMAGES[40:], LABELS[40:], batch_size=8, shuffle=False)


def make(rate: Any = 0.5) -> Step:
    nn.manual_seed(1)
    return lm.train_step(
        nn.Linear(4, 3), ops.cross_entropy, optim.SGD(rate), device="cpu", backend="reference"
    )


def batches() -> data.Batches:
    return data.arrays(IMAGES[:40], LABELS[:40], batch_size=8, seed=1)


def epoch(number: int, loss: float, /, **validation: Any) -> Epoch:
    scores = Scores(**validation) if validation else None
    return Epoch(number, loss, None, 1.0, 1.0, scores)


def told(callback: Callback, losses: list[float]) -> list[bool | None]:
    """What a callback says to epochs of these losses."""
    callback.begin(Run(make(), len(losses), History()))
    return [callback.epoch(epoch(n, loss)) for n, loss in enumerate(losses)]


# ---- early stopping


def test_early_stopping_waits_for_so_many_epochs() -> None:
    losses = [3.0, 2.0, 2.5, 2.0, 1.9, 2.0, 2.0, 2.0]
    assert told(EarlyStopping(patience=3), losses) == [False] * 7 + [True]
    assert told(EarlyStopping(patience=2), losses) == [False] * 3 + [True, False, False, True, True]
    assert told(EarlyStopping(patience=2, min_delta=0.5), losses) == [False] * 3 + [True] * 5
    assert told(EarlyStopping(patience=1, mode="max"), [1, 2, 3, 3])[-2:] == [False, True]
    assert told(EarlyStopping(patience=2), [float("nan")] * 2) == [False, True]


def test_which_figure_and_which_way() -> None:
    one = EarlyStopping("validation.top5", patience=1)
    one.begin(Run(make(), 3, History(), metrics={"top5": TopK()}))
    given = [epoch(n, 1.0, loss=1.0, metrics={"top5": v}) for n, v in enumerate((0.5, 0.6, 0.6))]
    assert [one.epoch(e) for e in given] == [False, False, True]
    small = EarlyStopping("validation.mse", patience=1)
    small.begin(Run(make(), 3, History(), metrics={"mse": MeanSquaredError()}))
    assert [small.epoch(epoch(n, 1.0, metrics={"mse": v})) for n, v in enumerate((3.0, 2.0, 2.5))] == [
        False,
        False,
        True,
    ]
    usual = EarlyStopping(patience=1)  # validation.loss, where it is
    assert usual.epoch(epoch(0, 1.0, loss=2.0)) is False
    assert usual.epoch(epoch(1, 0.5, loss=2.5)) is True
    hits = EarlyStopping("validation.accuracy", patience=1)
    assert [hits.epoch(epoch(n, 1.0, correct=c, labels=4)) for n, c in enumerate((1, 2, 2))][-1] is True
    with pytest.raises(ValueError, match="epoch 1 has no figure 'validation.f1', only loss"):
        EarlyStopping("validation.f1").epoch(epoch(0, 1.0))


def test_the_best_weights_are_given_back() -> None:
    step = make(50.0)  # far too high: it gets worse
    net = step.net
    seen: list[tuple[float, Any]] = []

    def note(e: Epoch) -> None:
        assert e.validation is not None
        seen.append((e.validation.loss or 0.0, net.state_dict()["weight"].numpy().copy()))

    stop = EarlyStopping(patience=3, restore_best=True)
    history = fit(step, batches(), 30, validation=VALIDATION, callbacks=[note, stop], progress=False)
    assert len(history.epochs) < 30
    best = min(range(len(seen)), key=lambda i: seen[i][0])
    assert best < len(seen) - 1
    np.testing.assert_array_equal(net.state_dict()["weight"].numpy(), seen[best][1])


def best_weights_in_shards() -> list[bool]:
    """Whether the float32 parameters are those that the network has rounded, when the best ones were given back."""
    nn.manual_seed(1)
    options: dict[str, Any] = {
        "device": "cpu",
        "parallel": "data",
        "shard_optimizer": True,
        "precision": "bf16",
    }
    step = lm.train_step(nn.Linear(4, 3), ops.cross_entropy, optim.SGD(50.0, momentum=0.9), **options)
    parts = data.arrays(IMAGES[:40], LABELS[:40], batch_size=8, seed=1, parallel="data")
    stop = EarlyStopping("loss", patience=2, restore_best=True)
    assert len(fit(step, parts, 30, callbacks=[stop], progress=False).epochs) < 30
    whole = step.whole_state()
    return [
        np.array_equal(whole[f"parameters/{n}"].to("bfloat16").numpy(), x.numpy())
        for n, x in step.state.parameters.items()
    ]


@pytest.mark.feature("B034")
def test_the_best_weights_of_several_ranks_are_those_that_training_goes_on_with() -> None:
    assert run_ranks(best_weights_in_shards, 2) == [[True, True]] * 2


def test_early_stopping_begins_anew_in_another_run_but_goes_on_in_the_same_one() -> None:
    stop = EarlyStopping(patience=2)
    for _ in range(2):
        assert told(stop, [1.0, 2.0, 2.0]) == [False, False, True]
        assert told(stop, [3.0, 4.0]) == [False, False]
    stop.load_state({"best": 3.0, "waited": 1})
    stop.begin(Run(make(), 4, History(), Position(2, 0)))
    assert stop.epoch(epoch(2, 4.0)) is True


# ---- rates


def rates(plateau: ReduceLROnPlateau, losses: list[float], lr: Any = 1.0) -> list[float]:
    """The rate after each epoch."""
    step = make(lr)
    plateau.begin(Run(step, len(losses), History()))
    found = []
    for n, loss in enumerate(losses):
        plateau.epoch(epoch(n, loss))
        found.append(step.optimizer.rate(0))
    return found


LOSSES = [1.0, 0.9, 0.95, 0.9, 0.91, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5, 0.49999, 0.5, 0.5, 0.5]


def test_the_rate_falls_on_a_plateau() -> None:
    assert rates(ReduceLROnPlateau(patience=1, factor=0.5), [3, 2, 2, 2, 2, 2]) == [1, 1, 1, 0.5, 0.5, 0.25]
    assert rates(ReduceLROnPlateau(patience=0, factor=0.5, min_factor=0.3), [1, 1, 1, 1]) == [
        1,
        0.5,
        0.3,
        0.3,
    ]
    planned = schedule.step(2.0, 1, 0.5)
    assert rates(ReduceLROnPlateau(patience=0, factor=0.1), [1, 1], planned) == [2.0, pytest.approx(0.2)]
    assert rates(ReduceLROnPlateau(patience=0, mode="max"), [1, 2, 3]) == [1, 1, 1]


@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"patience": 1},
        {"patience": 0, "cooldown": 2},
        {"patience": 2, "factor": 0.5, "threshold": 0.2},
        {"patience": 1, "threshold": 0.02, "threshold_mode": "abs"},
        {"patience": 1, "mode": "max"},
    ],
)
def test_the_rate_falls_as_torch_s(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    expected = []
    for loss in LOSSES:
        optimizer.step()
        theirs.step(loss)
        expected.append(optimizer.param_groups[0]["lr"])
    assert rates(ReduceLROnPlateau(**options), LOSSES) == pytest.approx(expected)


def falling(factor: float, **options: Any) -> ReduceLROnPlateau:
    """Changes the rate after each epoch but the first."""
    return ReduceLROnPlateau(
        "loss", patience=0, factor=factor, threshold=10.0, threshold_mode="abs", **options
    )


def test_callbacks_that_change_the_rate_multiply_the_present_one() -> None:
    step = make(1.0)
    fit(step, batches(), 2, callbacks=[falling(0.1), falling(0.5)], progress=False)
    assert step.optimizer.rate(0) == pytest.approx(0.05)
    again = falling(0.5)
    for rate in (
        0.025,
        0.0125,
    ):  # another one in another run begins at the rate that there is; so does the same one
        fit(step, batches(), 2, callbacks=[again], progress=False)
        assert step.optimizer.rate(0) == pytest.approx(rate)
    step.optimizer.lr = 2.0
    fit(step, batches(), 1, callbacks=[again], progress=False)
    assert step.optimizer.rate(0) == 2.0


def test_the_rates_of_several_callbacks_go_on(tmp_path: Path) -> None:
    """On a new step, and on the one that has the rate already."""

    def watched() -> list[Any]:
        return [falling(0.1, min_factor=0.05), falling(0.5)]

    expected = fit(make(1.0), batches(), 4, callbacks=watched(), progress=False).epochs[-1].learning_rate
    assert expected == pytest.approx(0.05 * 0.25)
    used = make(1.0)
    fit(used, batches(), 4, callbacks=watched(), checkpoint=tmp_path / "c", max_steps=15, progress=False)
    for step in (make(1.0), used):
        start = load_checkpoint(tmp_path / "c", step)
        history = fit(step, batches(), 4, callbacks=watched(), start=start, progress=False)
        assert history.epochs[-1].learning_rate == pytest.approx(expected)


def test_a_state_of_before_has_the_factor_of_one_callback() -> None:
    plateau, step = ReduceLROnPlateau(), make(1.0)
    plateau.load_state({"best": 1.0, "scale": 0.25, "waited": 0, "cooling": 0})
    plateau.begin(Run(step, 4, History(), Position(2, 0)))
    assert step.optimizer.rate(0) == 0.25


def test_a_rate_may_fall_to_nothing() -> None:
    assert rates(ReduceLROnPlateau(patience=0, factor=1e-200), [1.0] * 5)[-2:] == [0, 0]


# ---- files


def test_the_best_checkpoint_stays(tmp_path: Path) -> None:
    file = tmp_path / "best"
    step = make(50.0)
    seen: list[tuple[float, Any]] = []

    def note(e: Epoch) -> None:
        seen.append((e.loss, step.net.state_dict()["weight"].numpy().copy()))

    fit(step, batches(), 6, callbacks=[note, BestCheckpoint(file, "loss")], progress=False)
    best = min(range(6), key=lambda i: seen[i][0])
    again = make(50.0)
    assert load_checkpoint(file, again) == Position(best + 1, 0)
    np.testing.assert_array_equal(again.net.state_dict()["weight"].numpy(), seen[best][1])
    with pytest.raises(OSError, match="folder"):
        fit(make(), batches(), 1, callbacks=[BestCheckpoint(tmp_path / "none" / "c")], progress=False)


def test_a_run_goes_on_from_the_best_checkpoint_as_from_its_own(tmp_path: Path) -> None:
    """Whatever the order of the callbacks: each has seen the epoch before the file is written."""

    def watched() -> list[Any]:
        first, last = (BestCheckpoint(tmp_path / name, "loss") for name in ("first", "last"))
        return [first, *watching(), last]

    whole, file = watched(), tmp_path / "own"
    expected = fit(make(), batches(), 6, callbacks=whole, progress=False)
    assert whole[0].best == expected.epochs[-1].loss  # the fourth epoch, too, was the best until then
    fit(make(), batches(), 6, callbacks=watched(), max_steps=20, checkpoint=file, progress=False)
    starts = {name: load_checkpoint(tmp_path / name, make()) for name in ("own", "first", "last")}
    assert starts["first"].loop == starts["last"].loop == starts["own"].loop
    step, again = make(), watched()
    start = load_checkpoint(tmp_path / "first", step)
    rest = fit(step, batches(), 6, callbacks=again, start=start, progress=False)
    assert rest.losses == expected.losses[20:]
    assert [c.state() for c in again] == [c.state() for c in whole]


def test_the_best_checkpoint_of_an_epoch_that_was_cut_goes_on_within_it(tmp_path: Path) -> None:
    expected = fit(make(), batches(), 2, progress=False).losses
    fit(make(), batches(), 2, callbacks=[BestCheckpoint(tmp_path / "b", "loss")], max_steps=3, progress=False)
    step = make()
    start = load_checkpoint(tmp_path / "b", step)
    assert start == Position(0, 3)
    assert fit(step, batches(), 2, start=start, progress=False).losses == expected[3:]


def test_a_line_of_csv_for_each_epoch(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    log = CSVLogger(file)
    history = fit(make(0.25), batches(), 3, validation=VALIDATION, callbacks=[log], progress=False)
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [r["epoch"] for r in rows] == ["1", "2", "3"]
    assert [float(r["loss"]) for r in rows] == [e.loss for e in history.epochs]
    assert [float(r["validation.loss"]) for r in rows] == [
        e.validation.loss for e in history.epochs if e.validation
    ]
    assert rows[0]["learning_rate"] == "0.25"
    with pytest.raises(OSError, match="folder"):
        fit(make(), batches(), 1, callbacks=[CSVLogger(tmp_path / "none" / "c")], progress=False)


def test_one_of_several_ranks_writes(tmp_path: Path) -> None:
    step, seen = make(), list[Any]()
    fit(step, batches(), 1, callbacks=[seen.append], progress=False)
    for leads, written in ((False, []), (True, ["best", "events", "log.csv"])):
        best = BestCheckpoint(tmp_path / "best", "loss")
        for callback in (CSVLogger(tmp_path / "log.csv"), best, TensorBoard(tmp_path / "events")):
            callback.begin(Run(step, 1, History(), leads=leads))
            callback.step(0, 1.0)
            callback.epoch(seen[0])
            callback.after_epoch(Position(1, 0))
            callback.end()
        assert sorted(p.name for p in tmp_path.iterdir()) == written


def test_events_for_tensorboard(tmp_path: Path) -> None:
    history = fit(make(), batches(), 2, callbacks=[TensorBoard(tmp_path, every=2)], progress=False)
    (file,) = tmp_path.iterdir()
    events = [e for e in read_events(file) if "scalars" in e]
    losses = {e["step"]: e["scalars"]["step/loss"] for e in events if "step/loss" in e["scalars"]}
    assert losses == {n: np.float32(history.losses[n]) for n in range(0, 10, 2)}
    ends = [e for e in events if "epoch/loss" in e["scalars"]]
    assert [e["step"] for e in ends] == [4, 9]
    assert ends[1]["scalars"]["epoch/learning_rate"] == 0.5


# ---- the whole


class Noting(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, run: Run) -> None:
        self.told.append(("begin", run.start, run.epochs))

    def step(self, number: int, loss: float) -> None:
        self.told.append((number, loss))

    def epoch(self, epoch: Epoch) -> bool:
        self.told.append(("epoch", epoch.number))
        return epoch.number == 1

    def end(self) -> None:
        self.told.append("end")


def test_what_a_callback_is_told() -> None:
    one = Noting()
    history = fit(make(), batches(), 5, callbacks=[one], progress=False)
    steps = list(enumerate(history.losses))
    assert one.told == [
        ("begin", Position(), 5),
        *steps[:5],
        ("epoch", 0),
        *steps[5:],
        ("epoch", 1),
        "end",
    ]


def test_callbacks_end_when_training_fails() -> None:
    one = Noting()
    with pytest.raises(ValueError, match="no batches"):
        fit(make(), [], 1, callbacks=[one], progress=False)
    assert one.told[-1] == "end"
    with pytest.raises(TypeError, match="callbacks must be Callbacks or functions of an Epoch, got <class"):
        fit(make(), batches(), 1, callbacks=[Noting], progress=False)


def test_callbacks_end_whatever_another_one_raises_at_its_end(tmp_path: Path) -> None:
    class Failing(Callback):
        def end(self) -> None:
            raise OSError("no room")

    one, step = Noting(), make()
    folder = CheckpointFolder(tmp_path, step)
    with pytest.raises(OSError, match="no room"):
        fit(step, batches(), 1, callbacks=[Failing(), one], checkpoint=folder, progress=False)
    assert one.told[-1] == "end"
    assert folder._thread is None  # the checkpoint is whole
    assert folder.newest() is not None


class Counting(Callback):
    """Remembers how many epochs it has seen."""

    def __init__(self) -> None:
        self.count = 0

    def epoch(self, epoch: Epoch) -> None:
        self.count += 1

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])


def watching() -> list[Any]:
    return [ReduceLROnPlateau(patience=0, threshold=0.5, factor=0.5), EarlyStopping(patience=4), Counting()]


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 10, 13])
def test_a_run_that_goes_on_is_the_run_that_was_not_interrupted(tmp_path: Path, cut: int) -> None:
    """Rates that fell, patience, an own count, means over the whole epoch: also within an epoch."""
    whole = watching()
    expected = fit(make(), batches(), 8, validation=VALIDATION, callbacks=whole, progress=False)
    assert expected.epochs[-1].learning_rate < 0.5
    file = tmp_path / "c"
    fit(
        make(),
        batches(),
        8,
        validation=VALIDATION,
        callbacks=watching(),
        max_steps=cut,
        checkpoint=file,
        progress=False,
    )
    step, again = make(), watching()
    rest = fit(
        step,
        batches(),
        8,
        validation=VALIDATION,
        callbacks=again,
        start=load_checkpoint(file, step),
        progress=False,
    )
    assert rest.losses == expected.losses[cut:]
    ours, theirs = [
        [(e.number, e.loss, e.accuracy, e.validation, e.learning_rate) for e in h.epochs]
        for h in (rest, expected)
    ]
    assert ours == theirs[-len(ours) :]
    assert [c.state() for c in again] == [c.state() for c in whole]


def test_csv_goes_on_where_the_run_does(tmp_path: Path) -> None:
    file, log = tmp_path / "c", tmp_path / "log.csv"
    fit(make(), batches(), 4, callbacks=[CSVLogger(log)], checkpoint=file, max_steps=7, progress=False)
    step = make()
    fit(step, batches(), 4, callbacks=[CSVLogger(log)], start=load_checkpoint(file, step), progress=False)
    with log.open(newline="") as lines:
        assert [r["epoch"] for r in csv.DictReader(lines)] == ["1", "2", "3", "4"]
    fit(make(), batches(), 1, callbacks=[CSVLogger(log)], progress=False)  # a new run begins anew
    assert len(log.read_text().splitlines()) == 2


def test_tensorboard_forgets_what_is_done_again(tmp_path: Path) -> None:
    file = tmp_path / "c"
    fit(make(), batches(), 2, checkpoint=file, max_steps=5, progress=False)
    step = make()
    start = load_checkpoint(file, step)
    fit(step, batches(), 2, start=start, callbacks=[TensorBoard(tmp_path / "t")], progress=False)
    (events,) = (tmp_path / "t").iterdir()
    assert bytes([0x10, 5, 0x3A, 2, 0x08, 1]) in events.read_bytes()  # step 5, SessionLog(status=START)


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: EarlyStopping(patience=0), "EarlyStopping: patience must be at least 1, got 0"),
        (lambda: EarlyStopping(mode="up"), "EarlyStopping: mode must be 'min' or 'max', got 'up'"),
        (lambda: EarlyStopping(min_delta=-1), "EarlyStopping: min_delta must be at least 0, got -1"),
        (lambda: ReduceLROnPlateau(factor=1.0), "factor must be between 0 and 1, got 1.0"),
        (lambda: ReduceLROnPlateau(patience=-1), "patience and cooldown must be at least 0: -1, 0"),
        (lambda: ReduceLROnPlateau(threshold_mode="x"), "threshold_mode must be 'rel' or 'abs', got 'x'"),
        (lambda: TensorBoard("x", every=0), "TensorBoard: every must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(make_one: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_one()


# ---- what ran when


@pytest.mark.feature("B038")
def test_a_trace_shows_some_steps_and_changes_none(tmp_path: Path) -> None:
    expected = fit(make(), batches(), 2, progress=False).losses
    trace = Trace(tmp_path / "run.json", first=1, steps=3)
    assert fit(make(), batches(), 2, callbacks=[trace], progress=False).losses == expected
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    host = [e["name"] for e in events if e.get("cat") == "host"]
    assert host.count("train_step") == host.count("data") == 3
    assert {e["cat"] for e in events if e["ph"] == "X"} == {"host", "compute", "update"}


@pytest.mark.feature("B038")
def test_each_rank_writes_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"rank": lambda: 3, "world_size": lambda: 4, "all_gather_object": lambda value: [value] * 4}
    for name, function in told.items():
        monkeypatch.setattr(f"lamina.train.callbacks.distributed.{name}", function)
    fit(make(), batches(), 1, callbacks=[Trace(tmp_path / "run.json")], progress=False)
    found = json.loads((tmp_path / "run.rank3.json").read_text())
    assert {e["pid"] for e in found["traceEvents"]} == {3}
    assert found["otherData"]["ranks"][0]["clock_error_us"] > 0


PROGRAM = """
import sys
import numpy as np
import lamina as lm
from lamina import data, distributed, nn, ops, optim
from lamina.train import fit
from lamina.train.callbacks import Trace

def loss(outputs, targets):
    labels, weights = targets
    return ops.mean(weights * ops.cross_entropy(outputs, labels, reduction="none"))

distributed.init()
rng = np.random.default_rng(0)
x, y = rng.standard_normal((44, 6)).astype(np.float32), rng.integers(0, 3, 44)
nn.manual_seed(0)
step = lm.train_step(nn.Linear(6, 3), loss, optim.SGD(0.1), device="cpu", parallel="data")
here = {"rank": distributed.rank(), "world_size": distributed.world_size()}
batches = data.arrays(x, y, batch_size=8, seed=2, pad_last=True, **here)
trace = Trace(sys.argv[1] + "/run.json")
losses = fit(step, batches, 2, callbacks=[trace], progress=False).losses
print("losses", *losses)
assert (trace.timeline.communication > 0) == (here["world_size"] > 1)
distributed.shutdown()
"""


@pytest.mark.slow
@pytest.mark.feature("B038", "B032")
def test_ranks_train_as_one_and_show_what_they_communicate(tmp_path: Path) -> None:
    """The last batch of 44 samples in batches of 8 is half padding, which no rank's loss knows of."""
    (tmp_path / "program.py").write_text(PROGRAM)
    found = []
    for ranks in ("1", "2"):
        command = ["-m", "lamina", "run", "--ranks", ranks, str(tmp_path / "program.py"), str(tmp_path)]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("losses")]
        assert len(lines) == int(ranks)
        found += [[float(loss) for loss in line] for line in lines]
    np.testing.assert_allclose(found[1:], found[:1] * 2, rtol=1e-5)
    files = [str(tmp_path / f"run.rank{rank}.json") for rank in range(2)]
    assert main(["trace", str(tmp_path / "all.json"), *files]) == 0
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert {e["pid"] for e in events if e.get("cat") == "communication"} == {0, 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first": -1}, "first must be at least 0 and steps at least 1, got -1 and 3"),
        ({"steps": 0}, "got 2 and 0"),
    ],
)
def test_bad_traces_are_named(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Trace(tmp_path / "run.json", **options)
    with pytest.raises(OSError, match="the folder .* does not exist"):
        fit(make(), batches(), 1, callbacks=[Trace(tmp_path / "no" / "run.json")], progress=False)


@pytest.mark.feature("B038")
@pytest.mark.parametrize(("first", "steps"), [(0, 1), (0, 2), (3, 1)])
def test_a_trace_begins_behind_so_many_calls(first: int, steps: int, tmp_path: Path) -> None:
    trace = Trace(tmp_path / "run.json", first=first, steps=steps)
    fit(make(), batches(), 1, callbacks=[trace], progress=False)
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    host = [e["name"] for e in events if e.get("cat") == "host"]
    assert host.count("train_step") == steps
    assert (trace.timeline.skip, trace.timeline.recorded) == (0, steps)
