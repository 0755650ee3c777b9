"""Folders of checkpoints: each rank writes its part, the index comes last, what is not whole does not count."""

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, distributed, nn, ops, optim
from lamina.files import WeightsError
from lamina.files.stored import Storage
from lamina.train import CheckpointFolder, Position, checkpoint_folder
from tests.helpers.killed_ranks import kill_often
from tests.helpers.ranks import run_ranks

pytestmark = pytest.mark.feature("B056")

X = np.random.default_rng(0).standard_normal((8, 12, 6)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 5, (8, 12))


def make(seed: int = 5, **options: Any) -> lm.train.Step:
    nn.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 33), nn.BatchNorm1d(33), nn.Tanh(), nn.Dropout(0.2), nn.Linear(33, 5))
    options = {"parallel": "data", **options}
    return lm.train_step(net, ops.cross_entropy, optim.AdamW(1e-2), device="cpu", **options)


def losses(step: lm.train.Step, batches: range) -> list[float]:
    n, me = distributed.world_size(), distributed.rank()
    part = slice(me * 12 // n, (me + 1) * 12 // n)
    return [float(step(X[i][part], Y[i][part]).item()) for i in batches]


def own_state(step: lm.train.Step) -> dict[str, Any]:
    return {n: x.numpy().copy() for n, x in step.state.named().items()}


# ---- one rank


def test_the_newest_whole_checkpoint_goes_on(tmp_path: Path) -> None:
    step = make()
    folder = CheckpointFolder(tmp_path / "run", step, keep=2)
    assert folder.load() is None
    for i in range(4):
        losses(step, range(i, i + 1))
        folder.save(Position(0, i + 1))
    folder.wait()
    assert sorted(f.suffix for f in folder.path.iterdir()) == [".json"] * 2 + [".safetensors"] * 2
    expected = losses(step, range(4, 8))
    again = make(9)
    found = CheckpointFolder(tmp_path / "run", again)
    assert found.load() == Position(0, 4)
    assert again.number == 4
    assert losses(again, range(4, 8)) == expected
    found.save()
    found.wait()
    newest = found.newest()
    assert newest is not None
    assert newest.name == "checkpoint-000005.json"


def damaged(name: str, file: Path) -> None:
    content = bytearray(file.read_bytes())
    if name == "shorter":
        content = content[:-1]
    elif name == "header":
        content[20] ^= 1
    elif name == "gone":
        file.unlink()
        return
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["shorter", "header", "gone", "index", "half an index"])
def test_what_is_not_whole_does_not_count(tmp_path: Path, name: str) -> None:
    step = make()
    folder = CheckpointFolder(tmp_path, step)
    for batch in (1, 2):
        folder.save(Position(0, batch))
    folder.wait()
    newest = folder.newest()
    assert newest is not None
    if "index" in name:
        text = newest.read_text()
        newest.write_text(text[: len(text) // 2] if name != "index" else text.replace("bytes", "Bytes"))
    else:
        damaged(name, tmp_path / json.loads(newest.read_text())["files"][0]["name"])
    assert CheckpointFolder(tmp_path, step).load() == Position(0, 1)


def test_a_changed_tensor_is_found(tmp_path: Path) -> None:
    step = make()
    folder = CheckpointFolder(tmp_path, step)
    folder.save()
    folder.wait()
    (file,) = tmp_path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(WeightsError, match="the content of tensor"):
        folder.load()


def test_saving_copies_at_once_and_tells_later_what_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make()
    folder = CheckpointFolder(tmp_path, step)
    losses(step, range(1))
    before, may = own_state(step), threading.Event()
    save = checkpoint_folder.save_safetensors

    def later(*args: Any) -> None:
        may.wait(30)
        save(*args)

    monkeypatch.setattr(checkpoint_folder, "save_safetensors", later)
    folder.save()
    losses(step, range(1, 3))  # while it is written
    may.set()
    folder.wait()
    folder.load()
    for name, x in before.items():
        np.testing.assert_array_equal(own_state(step)[name], x, err_msg=name)

    monkeypatch.setattr(checkpoint_folder, "save_safetensors", full)
    folder.save()
    with pytest.raises(OSError, match="the disk is full"):
        folder.save()
    assert folder.load() is not None  # the one before


def test_two_runs_in_one_folder_are_told(tmp_path: Path) -> None:
    """The one that began first would write over what the other one has written."""
    first, second = make(), make(7)
    old, new = CheckpointFolder(tmp_path, first), CheckpointFolder(tmp_path, second)
    new.save(Position(3, 4))
    new.wait()
    old.save(Position(0, 1))
    with pytest.raises(
        FileExistsError, match="another run, or another CheckpointFolder .* a folder of its own"
    ):
        old.wait()
    assert CheckpointFolder(tmp_path, second).load() == Position(3, 4)


def test_objects_of_ones_own(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    optimizer = optim.SGD(net, lr=0.1, momentum=0.9)
    optimizer.step([np.ones((2, 3), np.float32), np.ones(2, np.float32)])
    folder = CheckpointFolder(tmp_path, {"net": net, "optimizer": optimizer})
    folder.save(Position(3, 1))
    folder.wait()
    other = nn.Linear(3, 2)
    second = optim.SGD(other, lr=0.1, momentum=0.9)
    assert CheckpointFolder(tmp_path, {"net": other, "optimizer": second}).load() == Position(3, 1)
    np.testing.assert_array_equal(other.weight.numpy(), net.weight.numpy())
    assert second.bound.number == 1
    with pytest.raises(ValueError, match="keep must be at least 1"):
        CheckpointFolder(tmp_path, {"net": net}, keep=0)


def test_fit_writes_it_and_goes_on(tmp_path: Path) -> None:
    batches = data.arrays(X.reshape(-1, 6), Y.reshape(-1), batch_size=12, seed=2)
    whole = lm.fit(make(), batches, 2, progress=False)
    first = make()
    begun = lm.fit(
        first, batches, 2, checkpoint=CheckpointFolder(tmp_path, first), max_steps=5, progress=False
    )
    second = make(8)
    folder = CheckpointFolder(tmp_path, second)
    start = folder.load()
    assert start == Position(0, 5)
    rest = lm.fit(second, batches, 2, start=start, checkpoint=folder, progress=False)
    assert begun.losses + rest.losses == whole.losses
    assert folder.load() == Position(2, 0)
    with pytest.raises(ValueError, match="is a folder of another step"):
        lm.fit(first, batches, 2, checkpoint=folder, progress=False)


# ---- several ranks

OPTIONS: list[dict[str, Any]] = [
    {"shard_optimizer": True, "precision": "bf16"},
    {"accumulate": 3, "shard_optimizer": True},
    {},
]


def write(path: str) -> list[Any]:
    """Losses behind a checkpoint within an accumulation, and what goes on from it."""
    found = []
    for i, options in enumerate(OPTIONS):
        step = make(5 + distributed.rank(), **options)
        folder = CheckpointFolder(f"{path}{i}", step)
        losses(step, range(4))
        folder.save(Position(0, 4))
        state = own_state(step)
        after = losses(step, range(4, 8))
        folder.wait()
        distributed.barrier()
        again = make(20, **options)
        assert CheckpointFolder(f"{path}{i}", again).load() == Position(0, 4)
        same = all(np.array_equal(x, state[n]) for n, x in own_state(again).items())
        found.append((after, losses(again, range(4, 8)), same))
    return found


def read(path: str) -> list[list[float]]:
    """What another number of ranks goes on with."""
    found = []
    for i, options in enumerate(OPTIONS):
        step = make(30, **options)
        assert CheckpointFolder(f"{path}{i}", step).load() == Position(0, 4)
        found.append(losses(step, range(4, 8)))
    return found


def go_on_behind_a_full_disk(path: str) -> bool:
    """Whether the newest checkpoint is of one step, where one rank could not write the one before the last two."""
    step = make(shard_optimizer=True)
    folder = CheckpointFolder(path, step)
    write = checkpoint_folder.save_safetensors
    for number in range(3):
        if number == 0 and distributed.rank() == 0:
            checkpoint_folder.save_safetensors = full  # type: ignore[assignment]
        losses(step, range(number, number + 1))
        with suppress(OSError):  # a program that says so, and goes on
            folder.save(Position(0, number + 1))
        if folder._thread is not None:
            folder._thread.join()
        checkpoint_folder.save_safetensors = write
    folder.wait()
    distributed.barrier()
    state, again = own_state(step), make(9, shard_optimizer=True)
    assert CheckpointFolder(path, again).load() == Position(0, 3)
    return all(np.array_equal(x, state[n]) for n, x in own_state(again).items())


def full(*args: Any) -> None:
    raise OSError("the disk is full")


def test_ranks_number_checkpoints_alike_where_one_could_not_be_written(tmp_path: Path) -> None:
    assert run_ranks(go_on_behind_a_full_disk, 2, args=(str(tmp_path / "run"),)) == [True, True]


@pytest.mark.feature("B034")
def test_ranks_write_their_parts_and_go_on_to_the_bit(tmp_path: Path) -> None:
    results = run_ranks(write, 2, args=(str(tmp_path / "run"),))
    for found in results:
        for after, again, same in found:
            assert same
            assert again == after
    for i in range(len(OPTIONS)):
        files = sorted((tmp_path / f"run{i}").glob("*.safetensors"), key=lambda f: f.stat().st_size)
        assert len(files) == 2
        assert files[1].stat().st_size < 1.3 * files[0].stat().st_size  # each about half
    # On one rank, with the statistics of the first one: batch norm has seen other batches, so nearly.
    alone = read(str(tmp_path / "run"))
    for i, options in enumerate(OPTIONS):
        updates = [3] if options.get("accumulate") else [0]
        expected = [results[0][i][0][u] for u in updates]
        np.testing.assert_allclose([alone[i][u] for u in updates], expected, rtol=0.2)


def write_unevenly(path: str) -> list[Any]:
    """Losses of ranks with other numbers of samples, before and behind a checkpoint, and those that go on from it."""
    part = (slice(0, 5), slice(5, 12))[distributed.rank()]

    def run(step: lm.train.Step, batches: range) -> list[float]:
        return [float(step(X[i][part], Y[i][part]).item()) for i in batches]

    parallel = distributed.DataParallel(equal_parts=False)
    step = make(parallel=parallel)
    run(step, range(3))
    folder = CheckpointFolder(path, step)
    folder.save(Position(0, 3))
    folder.wait()
    after = run(step, range(3, 6))
    distributed.barrier()
    again = make(9, parallel=parallel)
    CheckpointFolder(path, again).load()
    return [after, run(again, range(3, 6))]


def draw_unevenly(path: str) -> list[Any]:
    """Of objects of one's own: what a generator gives that every rank has drawn from so often."""
    net, generator = nn.Linear(2, 2), nn.Generator().manual_seed(4)
    ops.rand((3 + 8 * distributed.rank(),), generator=generator)
    folder = CheckpointFolder(path, {"net": net, "generator": generator})
    folder.save()
    folder.wait()
    expected = ops.rand((4,), generator=generator).numpy().tolist()
    distributed.barrier()
    folder.load()
    return [expected, ops.rand((4,), generator=generator).numpy().tolist()]


@pytest.mark.feature("B034")
@pytest.mark.parametrize("train", [write_unevenly, draw_unevenly])
def test_ranks_that_draw_other_numbers_of_random_values_go_on_to_the_bit(tmp_path: Path, train: Any) -> None:
    results = run_ranks(train, 2, args=(str(tmp_path),))
    for after, again in results:
        assert again == after
    step = make()
    if train is write_unevenly:  # one rank goes on with the random state of the first
        CheckpointFolder(tmp_path, step).load()
        assert step.state.random["0"].numpy()[1] == 3 * -(-2 * 5 * 33 // 4)


def count_bytes(path: str) -> list[dict[str, Any]]:
    """Bytes of tensors that this rank reads from each folder, and whether it then goes on as the run itself."""
    found, read = [], Storage.read
    for i, options in enumerate(OPTIONS):
        step, count = make(40 + distributed.rank(), **options), [0]

        def counted(self: Storage, count: list[int] = count) -> Any:
            count[0] += self.nbytes
            return read(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Storage, "read", counted)
            CheckpointFolder(f"{path}{i}", step).load()
        found.append({"bytes": count[0], "losses": losses(step, range(4, 6))})
    return found


@pytest.mark.slow
@pytest.mark.feature("B034")
def test_each_rank_reads_its_part_and_another_number_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    run_ranks(write, 2, args=(path,))
    alone = count_bytes(path)
    for ranks in (2, 3):
        results = run_ranks(count_bytes, ranks, args=(path,))
        for i, options in enumerate(OPTIONS):
            counts = [found[i]["bytes"] for found in results]
            if not options.get("shard_optimizer"):  # pieces of other lengths share stored ones
                assert sum(counts) == pytest.approx(alone[i]["bytes"], rel=0.3 if ranks == 2 else 0.05)
            if ranks == 2 or not options.get("shard_optimizer"):
                assert max(counts) < 0.75 * alone[i]["bytes"]
            if not options.get("accumulate"):
                wanted = alone[i]["losses"][0]
                assert [r[i]["losses"][0] for r in results] == pytest.approx([wanted] * ranks, rel=0.2)


def spoiled(path: str) -> str:
    """What is said where a tensor of one file is not as it was written."""
    step = make(**OPTIONS[1])
    folder = CheckpointFolder(path, step)
    folder.save()
    folder.wait()
    distributed.barrier()
    if distributed.rank() == 0:
        (file,) = Path(path).glob("*.1-of-2.safetensors")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    distributed.barrier()
    before = own_state(step)
    try:
        folder.load()
    except WeightsError as error:
        assert all(np.array_equal(x, before[n]) for n, x in own_state(step).items())
        return str(error)
    return ""


def test_what_one_rank_cannot_read_is_an_error_of_all(tmp_path: Path) -> None:
    first, second = run_ranks(spoiled, 2, args=(str(tmp_path),))
    assert first == second
    assert "1-of-2.safetensors: the content of tensor " in first


@pytest.mark.slow
@pytest.mark.feature("B034")
@pytest.mark.parametrize(("kills", "ranks", "one"), [(6, 2, False), (2, 3, True)])
def test_runs_that_are_killed_go_on_from_a_whole_checkpoint(
    tmp_path: Path, kills: int, ranks: int, one: bool
) -> None:
    found = kill_often(tmp_path, kills=kills, ranks=ranks, seed=1, one=one)
    assert found["kills"] == kills
    assert found["wrong"] == []
    assert kills < 6 or found["within_writing"] > 0
