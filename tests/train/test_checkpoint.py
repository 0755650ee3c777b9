"""Checkpoints: training goes on to the bit; damage is found; a crash while writing leaves the old file."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.files import WeightsError, read_safetensors, save_safetensors
from lamina.train import CheckpointError, Position, Step, fit, load_checkpoint, save_checkpoint

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((24, 1, 6, 6)).astype(np.float32)
LABELS = RNG.integers(0, 3, 24)


def make(
    seed: int = 1, optimizer: optim.Optimizer | None = None, backend: str = "cpu", **kwargs: Any
) -> Step:
    nn.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3))
    rate = optim.schedule.cosine(0.05, 12)
    chosen = optimizer or optim.SGD(rate, 0.9)
    return lm.train_step(net, ops.cross_entropy, chosen, device="cpu", backend=backend, **kwargs)


def batches() -> data.Batches:
    return data.arrays(IMAGES, LABELS, batch_size=8, seed=2)


def state(step: Step) -> dict[str, np.ndarray[Any, Any]]:
    return {k: v.numpy().copy() for k, v in step.state.named().items()}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [(lambda: optim.SGD(optim.schedule.cosine(0.05, 12), 0.9), "fp32"), (lambda: optim.Adam(0.01), "fp16")],
    ids=["sgd-fp32", "adam-fp16"],
)
@pytest.mark.parametrize("stop", [2, 3, 4])
@pytest.mark.feature("B029")
def test_resumed_training_equals_uninterrupted_training_to_the_bit(
    tmp_path: Path, backend: str, optimizer: Callable[[], optim.Optimizer], precision: str, stop: int
) -> None:
    """Stopped after 2 batches, after an epoch, in the second epoch: weights, optimizer, masks, order go on."""
    file = tmp_path / "run.safetensors"
    whole = make(1, optimizer(), backend, precision=precision)
    expected = fit(whole, batches(), 3, progress=False)
    first = make(1, optimizer(), backend, precision=precision)
    begun = fit(first, batches(), 3, checkpoint=file, max_steps=stop, progress=False)
    second = make(
        7, optimizer(), backend, precision=precision
    )  # another seed: everything comes from the file
    position = load_checkpoint(file, second)
    assert position == Position(stop // 3, stop % 3)
    rest = fit(second, batches(), 3, start=position, progress=False)
    assert begun.losses + rest.losses == expected.losses
    assert second.number == whole.number == 9
    for name, value in state(whole).items():
        np.testing.assert_array_equal(state(second)[name], value, err_msg=name)


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    step = make(precision="fp16")
    step(IMAGES[:8], LABELS[:8])
    save_checkpoint(tmp_path / "c", step, Position(3, 4))
    tensors, texts = read_safetensors(tmp_path / "c")
    facts = json.loads(texts["lamina"])
    setup = facts.pop("setup")
    assert facts == {"step": 1, "precision": "fp16", "epoch": 3, "batch": 4}
    assert (setup["optimizer"], setup["optimizer.momentum"], setup["loss"]) == ("SGD", 0.9, "cross_entropy")
    assert setup["lr"][:2] == [optim.schedule.cosine(0.05, 12)(n) for n in range(2)]
    assert {name.split("/")[0] for name in tensors} == {"parameters", "optimizer", "random", "scale"}
    assert "optimizer/0.weight.momentum" in tensors
    assert tensors["parameters/4.weight"].shape == (3, 64)


@pytest.mark.feature("B029")
def test_a_crash_while_writing_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, step = tmp_path / "c", make()
    save_checkpoint(file, step)
    before = file.read_bytes()
    step(IMAGES[:8], LABELS[:8])
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, _fail)
            with pytest.raises(OSError, match="the disk is full"):
                save_checkpoint(file, step)
        assert file.read_bytes() == before
        assert [f.name for f in tmp_path.iterdir()] == ["c"]  # nothing is left lying about
    save_checkpoint(file, step)
    assert file.read_bytes() != before


def _fail(*_: Any, **__: Any) -> None:
    raise OSError("the disk is full")


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    file, step = tmp_path / "c", make()
    save_checkpoint(file, step)
    sound = file.read_bytes()
    before = state(step)
    header = 8 + int.from_bytes(sound[:8], "little")
    places = [*range(0, 64, 7), *range(64, header, 97), *range(header, len(sound), 131), len(sound) - 1]
    for place in places:
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 0x15]) + sound[place + 1 :])
        with pytest.raises((WeightsError, CheckpointError)):
            load_checkpoint(file, step)
    for length in (0, 7, 8, 100, header, len(sound) - 1):
        file.write_bytes(sound[:length])
        with pytest.raises(WeightsError, match="c: not a sound safetensors file"):
            load_checkpoint(file, step)
    for name, value in before.items():  # nothing was taken over
        np.testing.assert_array_equal(state(step)[name], value)


def test_a_changed_tensor_is_named(tmp_path: Path) -> None:
    file, step = tmp_path / "c", make()
    save_checkpoint(file, step)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(WeightsError, match="c: the content of tensor 'random/0' was changed"):
        load_checkpoint(file, step)


def test_checkpoints_of_something_else_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "c"
    save_checkpoint(file, make())
    with pytest.raises(CheckpointError, match="precision was fp32, the step's is bf16"):
        load_checkpoint(file, make(precision="bf16"))
    with pytest.raises(CheckpointError, match=r"does not fit: optimizer/0.bias.exp_avg is missing"):
        load_checkpoint(file, make(optimizer=optim.Adam(0.1)))
    other = lm.train_step(
        nn.Linear(2, 3), ops.cross_entropy, optim.SGD(0.1), device="cpu", backend="reference"
    )
    with pytest.raises(CheckpointError, match=r"optimizer/bias.momentum is missing"):
        load_checkpoint(file, other)
    save_safetensors(nn.Linear(2, 3), file)
    with pytest.raises(WeightsError, match=r"not a checkpoint \(its format is None\)"):
        load_checkpoint(file, other)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "absent", other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"step": "x", "epoch": 0, "batch": 0, "precision": "fp32"}',
        '{"step": -1, "epoch": 0}',
    ],
)
def test_unsound_numbers_are_refused(tmp_path: Path, text: str) -> None:
    step = make()
    texts = {"format": "lamina checkpoint 1", "lamina": text}
    save_safetensors(step.state.named(), tmp_path / "c", texts)
    with pytest.raises(WeightsError, match="the header's numbers are not sound"):
        load_checkpoint(tmp_path / "c", step)
    good = {"step": -1, "epoch": 0, "batch": 0, "precision": "fp32"}
    save_safetensors(step.state.named(), tmp_path / "c", {**texts, "lamina": json.dumps(good)})
    with pytest.raises(WeightsError, match="numbers are negative"):
        load_checkpoint(tmp_path / "c", step)


def test_permissions_are_kept(tmp_path: Path) -> None:
    file, step = tmp_path / "c", make()
    save_checkpoint(file, step)
    file.chmod(0o640)
    save_checkpoint(file, step)
    assert file.stat().st_mode & 0o777 == 0o640
