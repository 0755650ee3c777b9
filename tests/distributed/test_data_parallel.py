"""N ranks with a part of each batch train as one rank with the whole batch."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import lamina as lm
from lamina import distributed, nn, ops, optim
from lamina.distributed import DataParallel, Group
from tests.helpers import slow_from
from tests.helpers.ranks import run_ranks

BATCH, STEPS = 12, 5


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.SyncBatchNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(8 * 36, 5), nn.Dropout(0.1),
    )  # fmt: skip


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """Losses, hits and the state after some steps, of this rank's part of each batch."""
    given = dict(settings)
    nn.manual_seed(3 if distributed.rank() == 0 else 4)  # the first rank's parameters are taken
    step = lm.train_step(
        network(),
        ops.cross_entropy,
        given.pop("optimizer", optim.SGD(0.1, momentum=0.9)),
        device=given.pop("device", "cpu"),
        parallel=DataParallel(bucket_bytes=3000, **given.pop("parallel", {})),
        **given,
    )
    rng, n, me = np.random.default_rng(0), distributed.world_size(), distributed.rank()
    losses, hits = [], []
    for _ in range(STEPS):
        x = rng.standard_normal((BATCH, 3, 6, 6)).astype(np.float32)
        y, part = rng.integers(0, 5, BATCH), slice(me * BATCH // n, (me + 1) * BATCH // n)
        losses.append(float(step(x[part], y[part]).item()))
        assert step.correct is not None
        hits.append(int(step.correct.item()))
    return {"losses": losses, "hits": hits, "state": {k: v.numpy() for k, v in step.state.named().items()}}


def several(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [train(one) for one in settings]


class Sequences(nn.Module):
    """Sequences whose samples are along axis 1, in a recurrent network or a transformer, with dropout."""

    def __init__(self, kind: str, **settings: Any) -> None:
        if kind == "transformer":
            layer = nn.TransformerEncoderLayer(6, 2, 10, dropout=0.3, norm_first=True)
            self.body: nn.Module = nn.TransformerEncoder(layer, 2)
        else:
            self.body = getattr(nn, kind)(6, 6, **(settings or {"num_layers": 3, "dropout": 0.4}))
        wide = settings.get("proj_size", 6) * (1 + settings.get("bidirectional", False))
        self.head = nn.Linear(wide, 5)

    def forward(self, x: lm.Tensor) -> lm.Tensor:
        """(B, T, 6) -> (B, 5)."""
        y = self.body(ops.transpose(x, 0, 1))
        return self.head((y[0] if isinstance(y, tuple) else y)[-1])


def sequences(kinds: list[tuple[str, dict[str, Any]]], bucket_bytes: int = 25 << 20) -> list[list[float]]:
    """Losses of some steps of each kind of network."""
    found, n, me = [], distributed.world_size(), distributed.rank()
    for kind, settings in kinds:
        nn.manual_seed(3)
        net, together = Sequences(kind, **settings), DataParallel(bucket_bytes=bucket_bytes)
        step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.5), device="cpu", parallel=together)
        rng, losses, part = np.random.default_rng(0), [], slice(me * BATCH // n, (me + 1) * BATCH // n)
        for _ in range(STEPS):
            x, y = rng.standard_normal((BATCH, 4, 6)).astype(np.float32), rng.integers(0, 5, BATCH)
            losses.append(float(step(x[part], y[part]).item()))
        found.append(losses)
    return found


@pytest.mark.feature("F116", "B032", "B033")
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sequences_are_dropped_as_one_rank_would(ranks: int) -> None:
    kinds: list[tuple[str, dict[str, Any]]] = [
        (k, {}) for k in ("LSTM", "GRU", "PeepholeLSTM", "transformer")
    ]
    alone = sequences(kinds)
    for found in run_ranks(sequences, ranks, args=(kinds,)):
        for kind, losses, wanted in zip(kinds, found, alone, strict=True):
            assert losses == pytest.approx(wanted, rel=1e-5), kind


#: Networks whose layers' gradients are results of one op.
STACKED: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {"num_layers": 2}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 4}),
    ("GRU", {"num_layers": 3, "bias": False}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("RNN", {"num_layers": 2, "nonlinearity": "relu"}),
    ("RNN", {"num_layers": 2, "nonlinearity": "tanh", "bidirectional": True}),
]


@pytest.mark.feature("F116", "B032", "B033")
@pytest.mark.parametrize("launcher", [pytest.param("variables", marks=pytest.mark.slow), "mpirun"])
def test_stacked_recurrent_networks_train_as_on_one_rank(launcher: Any) -> None:
    alone = sequences(STACKED)
    for found in run_ranks(sequences, 2, launcher=launcher, args=(STACKED, 300)):
        for kind, losses, wanted in zip(STACKED, found, alone, strict=True):
            assert losses == pytest.approx(wanted, rel=1e-5), kind


SETTINGS: list[dict[str, Any]] = [
    {},
    {"clip_norm": 0.3, "optimizer": optim.AdamW(1e-3)},
    {"accumulate": 2},
]


@pytest.mark.feature("F116", "B032", "B033")
@pytest.mark.parametrize(
    ("launcher", "ranks", "count"),
    slow_from(1, [("mpirun", 2, len(SETTINGS)), ("variables", 4, 1)], several=True),
)
def test_ranks_train_as_one(launcher: Any, ranks: int, count: int) -> None:
    alone = several(SETTINGS[:count])
    for rank, results in enumerate(run_ranks(several, ranks, launcher=launcher, args=(SETTINGS[:count],))):
        for settings, found, wanted in zip(SETTINGS[:count], results, alone, strict=True):
            updates = [i for i in range(STEPS) if (i + 1) % settings.get("accumulate", 1) == 0]
            what = f"rank {rank} of {ranks}, {settings}"
            for i in updates:  # between updates nothing is told to others: the loss is the rank's own
                assert found["losses"][i] == pytest.approx(wanted["losses"][i], rel=1e-5), what
                assert found["hits"][i] == wanted["hits"][i], what
            for name, x in wanted["state"].items():
                if updates[-1] == STEPS - 1 or not name.startswith(("gathered/", "buffers/")):
                    np.testing.assert_allclose(
                        found["state"][name], x, rtol=1e-5, atol=1e-5, err_msg=f"{what} {name}"
                    )


class Proxies(nn.Module):
    """Outputs as similarities to learned proxies of the classes."""

    def __init__(self) -> None:
        self.proxies = nn.Parameter(
            np.random.default_rng(distributed.rank()).standard_normal((4, 5), np.float32)
        )

    def forward(self, y: Any, t: Any) -> Any:
        return ops.cross_entropy(y @ ops.transpose(self.proxies, 0, 1), t)


def train_proxies(settings: list[dict[str, Any]]) -> list[tuple[list[float], Any, Any]]:
    """Losses, the proxies and the state's names of this rank's part of each batch."""
    found = []
    for given in settings:
        nn.manual_seed(3)
        loss = Proxies()
        step = lm.train_step(nn.Linear(6, 5), loss, optim.AdamW(0.01), device="cpu", parallel="data", **given)
        rng, n, me = np.random.default_rng(0), distributed.world_size(), distributed.rank()
        losses, part = [], slice(me * BATCH // n, (me + 1) * BATCH // n)
        for _ in range(STEPS):
            x, y = rng.standard_normal((BATCH, 6)).astype(np.float32), rng.integers(0, 4, BATCH)
            losses.append(float(step(x[part], y[part]).item()))
        whole = step.whole_state()
        found.append((losses, whole["parameters/loss_fn.proxies"].numpy(), sorted(whole)))
    return found


@pytest.mark.feature("B032")
def test_ranks_train_a_loss_with_parameters_as_one() -> None:
    half = {"precision": "bf16", "shard_optimizer": True}
    alone = train_proxies([{}, {}, {"precision": "bf16"}])
    ranks = run_ranks(train_proxies, 2, args=([{}, {"shard_optimizer": True}, half],))
    for found in ranks:
        for (losses, proxies, names), wanted, tolerance in zip(found, alone, (1e-5, 1e-5, 2e-2), strict=True):
            assert losses == pytest.approx(wanted[0], rel=tolerance)
            np.testing.assert_allclose(proxies, wanted[1], rtol=tolerance, atol=tolerance)
            assert names == wanted[2]


def test_compressed_gradients_keep_what_rounding_left() -> None:
    (first, second) = run_ranks(several, 2, args=([{}, {"parallel": {"compression": "bf16"}}],))
    for plain, compressed in (first, second):
        assert max(np.abs(e).max() for k, e in compressed["state"].items() if k.startswith("errors/")) > 0
        np.testing.assert_allclose(compressed["losses"], plain["losses"], rtol=2e-2)
    for name, x in first[1]["state"].items():
        if not name.startswith("errors/"):
            np.testing.assert_array_equal(x, second[1]["state"][name])


def test_gradients_in_bfloat16_alone_keep_nothing() -> None:
    settings = [{}, {"parallel": {"compression": "bf16", "error_feedback": False}}]
    for plain, rounded in run_ranks(several, 2, args=(settings,)):
        assert not any(name.startswith("errors/") for name in rounded["state"])
        assert rounded["losses"] != plain["losses"]
        np.testing.assert_allclose(rounded["losses"], plain["losses"], rtol=2e-2)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="DataParallel: bucket_bytes must be at least 1, got 0"):
        DataParallel(bucket_bytes=0)
    with pytest.raises(ValueError, match="DataParallel: compression must be None or 'bf16', got 'fp8'"):
        DataParallel(compression="fp8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="DataParallel: rank 0 is not among ranks 1,2"):
        DataParallel(distributed.Group(1, 2)).place  # noqa: B018
    with pytest.raises(ValueError, match="train_step: parallel must be one of 'data'"):
        lm.train_step(network(), ops.cross_entropy, optim.SGD(0.1), parallel="model")  # type: ignore[arg-type]


def test_in_a_world_of_one_it_changes_nothing() -> None:
    nn.manual_seed(3)
    step = lm.train_step(network(), ops.cross_entropy, optim.SGD(0.1), device="cpu", parallel="data")
    assert step.options.parallel is None


def evaluate_and_fit(checkpoint: str) -> dict[str, Any]:
    """Scores of uneven parts, and a run of two epochs with validation and a checkpoint of one rank."""
    rng, n, me = np.random.default_rng(1), distributed.world_size(), distributed.rank()
    x = rng.standard_normal((11, 3, 6, 6)).astype(np.float32)
    y = rng.integers(0, 5, 11)
    nn.manual_seed(3)
    net = network()
    mine = [(x[i : i + 1], y[i : i + 1]) for i in range(me, 11, n)]
    metrics = [lm.train.metrics.ConfusionMatrix(5)]
    scores = lm.evaluate(net, mine, ops.cross_entropy, metrics=metrics, device="cpu", parallel="data")
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.05), device="cpu", parallel="data")
    batches = lm.data.Batches(lambda which, _: (x[which], y[which]), 8, 4, rank=me, world_size=n)
    console = Console(file=io.StringIO(), highlight=False)
    history = lm.fit(step, batches, 2, validation=mine, console=console, checkpoint=f"{checkpoint}{me}")
    assert history.epochs[-1].validation is not None
    uneven = lm.data.arrays(x, y, batch_size=4, rank=me, world_size=n)
    if n > 1:
        with pytest.raises(
            ValueError, match="fit: ranks may have different numbers of samples .*drop_last=True"
        ):
            lm.fit(step, uneven, 1, console=console)
        with pytest.raises(
            ValueError, match="fit: .* samples of batch 1=3 on rank 1 and samples of batch 1=2 on"
        ):
            lm.fit(step, [(x[:2], y[:2]), (x[: 2 + me], y[: 2 + me])], 1, console=console)
        with pytest.raises(ValueError, match="fit: .* is batches=2 on rank 1 and batches=3 on rank 0"):
            lm.fit(step, [(x[:2], y[:2])] * (3 - me), 1, console=console)
    return {
        "accuracy": scores.accuracy, "loss": scores.loss, "matrix": scores.metrics["confusion_matrix"].tolist(),
        "losses": history.losses, "validation": history.epochs[-1].validation.loss,
        "wrote": len(console.file.getvalue()) > 0, "saved": Path(f"{checkpoint}{me}").exists(),  # type: ignore[attr-defined]
    }  # fmt: skip


@pytest.mark.feature("B032")
def test_scores_are_exact_and_one_rank_logs_and_saves(tmp_path: Path) -> None:
    alone = evaluate_and_fit(str(tmp_path / "alone"))
    assert (alone.pop("wrote"), alone.pop("saved")) == (True, True)
    for rank, found in enumerate(run_ranks(evaluate_and_fit, 2, args=(str(tmp_path / "rank"),))):
        assert (found.pop("wrote"), found.pop("saved")) == (rank == 0, rank == 0)
        assert found["matrix"] == alone["matrix"]
        for name in ("accuracy", "loss", "losses", "validation"):
            assert found[name] == pytest.approx(alone[name], rel=1e-5), name


def infer_alone() -> int:
    """How many synchronized norms infer what others do on the first rank, while the other ranks do nothing."""
    equal = 0
    if distributed.rank() == 0:
        x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
        for tracked in (False, True):
            synchronized = nn.SyncBatchNorm(3, track_running_stats=tracked).eval()
            own = nn.BatchNorm1d(3, track_running_stats=tracked).eval()
            equal += np.array_equal(synchronized(x).numpy(), own(x).numpy())
    distributed.barrier()
    return equal


def normalize_uneven_parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """Gradients of a sum of losses and running statistics, of a synchronized norm over parts of different sizes."""
    n, me = distributed.world_size(), distributed.rank()
    rng = np.random.default_rng(0)
    x, weight = (
        rng.standard_normal((12, 3, 2)) + 5 * np.arange(12.0)[:, None, None],
        rng.standard_normal((12, 3, 2)),
    )
    cuts = {1: [0, 12], 2: [0, 1, 12], 3: [0, 1, 1, 12]}[n]
    own = slice(cuts[me], cuts[me + 1])
    norm = nn.SyncBatchNorm(3).to(dtype="float64")

    def loss(net: Any, x: Any) -> Any:
        return ops.sum(ops.square(net(x)) * lm.tensor(weight[own]))

    of_norm, of_x = lm.grad(loss, argnums=(0, 1))(norm, lm.tensor(x[own]))
    found = {name: distributed.all_reduce(g).numpy() for name, g in of_norm.items()}
    found["x"] = np.concatenate(distributed.all_gather_object(of_x.numpy()))
    return found, {name: b.numpy() for name, b in norm.named_buffers()}


@pytest.mark.feature("B032")
@pytest.mark.parametrize("ranks", [2, 3], ids=["two", "three, one without samples"])
def test_a_synchronized_norm_counts_each_element_once(ranks: int) -> None:
    wanted = normalize_uneven_parts()
    for rank in run_ranks(normalize_uneven_parts, ranks):
        for found, own in zip(rank, wanted, strict=True):
            for name, value in own.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


class Halves(nn.Module):
    """A hidden layer of which the ranks of a pair have each its half; without a pair the whole."""

    def __init__(self, pair: Group) -> None:
        rng, place = np.random.default_rng(2), distributed.group_rank(pair) or 0
        first, second = rng.standard_normal((6, 4)), rng.standard_normal((3, 6))
        own = slice(place * 6 // pair.size, (place + 1) * 6 // pair.size)
        self.first, self.second = nn.Parameter(first[own]), nn.Parameter(second[:, own])
        self.pair = pair

    def forward(self, x: Any) -> Any:
        def over_the_pair(y: Any) -> Any:
            return distributed.all_reduce(y, group=self.pair)

        total = lm.custom_vjp(over_the_pair)  # both ranks of a pair compute the same loss, which counts once
        total.defvjp(lambda y: (over_the_pair(y), None), lambda _, g: (g,))
        return total(ops.linear(ops.tanh(ops.linear(x, self.first)), self.second))


def train_in_pairs() -> list[float]:
    n, me = distributed.world_size(), distributed.rank()
    width = 2 if n > 1 else 1
    pair = Group(*range(me // width * width, me // width * width + width))
    across = Group(*range(me % width, n, width))
    step = lm.train_step(
        Halves(pair), ops.cross_entropy, optim.Adam(0.05), device="cpu", precision="fp64",
        parallel=DataParallel(across), shard_optimizer=n > 1,
    )  # fmt: skip
    rng, part, losses = np.random.default_rng(0), across.ranks.index(me), []
    for _ in range(4):
        x, y = rng.standard_normal((8, 4)), rng.integers(0, 3, 8)
        own = slice(part * 8 // across.size, (part + 1) * 8 // across.size)
        losses.append(float(step(x[own], y[own]).item()))
    return losses


def test_a_group_trains_beside_groups_of_another_kind() -> None:
    assert run_ranks(train_in_pairs, 4) == [pytest.approx(train_in_pairs(), rel=1e-9)] * 4


def test_inference_waits_for_no_other_rank() -> None:
    assert run_ranks(infer_alone, 2) == [2, 0]


class TwoHeads(nn.Module):
    """Of two heads the loss depends on one."""

    def __init__(self) -> None:
        self.used, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.used(x)


def idle_head(options: dict[str, Any]) -> dict[str, Any]:
    """How far each head has moved, and the state of the optimizer for the one that is not used."""
    nn.manual_seed(3)
    net = TwoHeads()
    step = lm.train_step(
        net, ops.cross_entropy, optim.AdamW(0.1, weight_decay=0.5), device="cpu", parallel="data",
        keep_grads=True, **options,
    )  # fmt: skip
    before = {n: p.numpy().copy() for n, p in net.named_parameters()}
    n, me = distributed.world_size(), distributed.rank()
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    for _ in range(2):
        step(x[me * 4 // n :][: 4 // n], np.zeros(4 // n, np.int64))
    moved = {k: float(np.abs(p.numpy() - before[k]).max()) for k, p in net.named_parameters()}
    state = {k: float(np.abs(x.numpy()).max()) for k, x in step.state.optimizer.items() if "idle" in k}
    assert step.grads is not None
    return {"moved": moved, "state": state, "grad": float(np.abs(step.grads["idle.weight"].numpy()).max())}


def idle_heads() -> list[dict[str, Any]]:
    return [idle_head(options) for options in ({}, {"shard_optimizer": True}, {"precision": "bf16"})]


def test_what_the_loss_does_not_depend_on_is_left_alone_on_several_ranks() -> None:
    for found in (idle_heads(), *run_ranks(idle_heads, 2)):
        for case in found:
            assert case["moved"]["idle.weight"] == case["moved"]["idle.bias"] == 0
            assert case["moved"]["used.weight"] > 0
            assert set(case["state"].values()) == {0.0}
            assert case["grad"] == 0


SAMPLES = np.random.default_rng(0).standard_normal((48, 4)).astype(np.float32)
CLASSES = np.random.default_rng(1).integers(0, 3, 48)


def gathered(**settings: Any) -> tuple[nn.Module, Any, Any]:
    """A network, its step that gathers two batches, and the batches."""
    nn.manual_seed(0)
    net = nn.Linear(4, 3)
    many = distributed.world_size() > 1
    step = lm.train_step(
        net,
        ops.cross_entropy,
        optim.SGD(0.5),
        device="cpu",
        accumulate=2,
        parallel="data" if many else None,
        **settings,
    )
    batches = lm.data.arrays(SAMPLES, CLASSES, batch_size=8, seed=1, parallel="data" if many else None)
    return net, step, batches


def epochs_of_gathered() -> list[Any]:
    """Losses, accuracies and rates of epochs under a schedule that looks at the losses."""
    _, step, batches = gathered()
    plateau = lm.train.callbacks.ReduceLROnPlateau("loss", patience=1, factor=0.5)
    history = lm.fit(step, batches, 6, callbacks=[plateau], progress=False)
    return [(e.loss, e.accuracy, e.learning_rate) for e in history.epochs]


def test_figures_of_gathered_gradients_are_those_of_all_ranks() -> None:
    """So that callbacks decide alike; those of one process."""
    first, second = run_ranks(epochs_of_gathered, 2)
    assert first == second
    np.testing.assert_allclose(first, epochs_of_gathered(), rtol=1e-5)


def resumed_between(folder: str, shards: bool) -> float:
    """How far a run that ends between two gradients of an update, and goes on, is from one that does not end."""
    path = Path(folder) / "file.safetensors"
    whole, step, batches = gathered(shard_optimizer=shards)
    lm.fit(step, batches, 1, progress=False)
    _, step, batches = gathered(shard_optimizer=shards)
    lm.fit(step, batches, 1, checkpoint=path, max_steps=3, progress=False)
    distributed.barrier()
    again, step, batches = gathered(shard_optimizer=shards)
    lm.fit(step, batches, 1, start=lm.train.load_checkpoint(path, step), progress=False)
    return float(np.abs(whole.weight.numpy() - again.weight.numpy()).max())


@pytest.mark.parametrize("shards", slow_from(1, [True, False]))
def test_a_file_between_gathered_gradients_has_those_of_all_ranks(tmp_path: Path, shards: bool) -> None:
    assert run_ranks(resumed_between, 2, args=(str(tmp_path), shards)) == [pytest.approx(0.0, abs=1e-6)] * 2


def saved_by_the_first(folder: str) -> bool:
    """Whether rank 0 has written what it alone was asked for."""
    distributed.init(fault_timeout=None)
    path = Path(folder) / "file.safetensors"
    _, step, batches = gathered()
    lm.fit(step, batches, 1, checkpoint=path if distributed.rank() == 0 else None, progress=False)
    distributed.barrier()
    return path.exists()


def test_a_checkpoint_may_be_asked_of_the_first_rank_alone(tmp_path: Path) -> None:
    """As PyTorch's programs do; with pieces of the optimizer's state every rank gives its own."""
    assert run_ranks(saved_by_the_first, 2, args=(str(tmp_path),), init=False) == [True, True]


def pieces_of_the_first(folder: str) -> str:
    """The error of a rank that would keep its pieces for itself."""
    _, step, batches = gathered(shard_optimizer=True)
    path = Path(folder) / "file.safetensors"
    with pytest.raises(ValueError, match="fit: rank") as refused:
        lm.fit(step, batches, 1, checkpoint=path if distributed.rank() == 0 else None, progress=False)
    return str(refused.value)


def test_pieces_are_asked_of_all_ranks(tmp_path: Path) -> None:
    text = "fit: rank 1 has no checkpoint=, rank 0 has: with shard_optimizer=True each rank gives its pieces"
    assert run_ranks(pieces_of_the_first, 2, args=(str(tmp_path),)) == [text] * 2


def test_steps_of_a_rank_alone_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps that all ranks make the one that is behind is blamed; nobody waits for these."""
    begun: list[int] = []
    monkeypatch.setattr("lamina.train.step.progress.begin_step", begun.append)
    step = lm.train_step(nn.Linear(4, 3), ops.cross_entropy, optim.SGD(0.5), device="cpu")
    step(SAMPLES[:8], CLASSES[:8])
    assert begun == []
