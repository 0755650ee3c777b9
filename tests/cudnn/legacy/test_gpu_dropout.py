"""Dropout and CTC on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lamina.cudnn import legacy
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import FLOATS, SURE, Gpu, Operand, close, ran

pytestmark = pytest.mark.gpu
SHAPE = (4, 8, 32, 32)


def mask(gpu: Gpu, dropout: legacy.Dropout) -> Any:
    """What the next forward keeps."""
    x, y = gpu.tensor(np.ones(SHAPE)), gpu.output(SHAPE)
    dropout.forward(gpu.handle, **x.named("x"), **y.named("y"))
    return y.read() != 0


@pytest.mark.feature("F023", "F063")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5])
def test_dropout_forward_and_backward(gpu: Gpu, dtype: str, rate: float) -> None:
    dropout = legacy.Dropout(gpu.handle, rate=rate, seed=7)
    x, y = gpu.tensor(gpu.normal(SHAPE) + 10.0, dtype), gpu.output(SHAPE, dtype)
    reserve: list[Any] = []
    run = lambda: reserve.append(dropout.forward(gpu.handle, **x.named("x"), **y.named("y")))  # noqa: E731
    if not ran(run, sure=dtype in SURE):
        return
    found = y.read()
    kept = found != 0
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / kept.size) + 1e-12
    scale = 1 / (1 - rate)
    y.check(np.where(kept, x.values * scale, 0.0))
    dy, dx = gpu.tensor(gpu.normal(SHAPE), dtype), gpu.output(SHAPE, dtype)
    dropout.backward(gpu.handle, **dy.named("dy"), **dx.named("dx"), reserve=reserve[0])
    dx.check(np.where(kept, dy.values * scale, 0.0))


@pytest.mark.feature("F023", "F063")
def test_masks_follow_from_the_seed(gpu: Gpu) -> None:
    first, again = (legacy.Dropout(gpu.handle, rate=0.5, seed=1) for _ in range(2))
    other = legacy.Dropout(gpu.handle, rate=0.5, seed=2)
    masks = [mask(gpu, first) for _ in range(3)]
    assert all(np.array_equal(mask(gpu, again), one) for one in masks)
    assert not np.array_equal(masks[0], masks[1])  # each call moves the generator on
    assert not np.array_equal(mask(gpu, other), masks[0])


@pytest.mark.feature("F023")
def test_save_and_restore_repeat_the_masks(gpu: Gpu) -> None:
    dropout = legacy.Dropout(gpu.handle, rate=0.3, seed=11)
    mask(gpu, dropout)
    state = dropout.save(gpu.handle)
    assert (state.seed, len(state.states)) == (11, legacy.Dropout.states_size(gpu.handle))
    assert state.rate == pytest.approx(0.3)
    masks = [mask(gpu, dropout) for _ in range(2)]
    restored = legacy.Dropout.restore(gpu.handle, state)
    assert all(np.array_equal(mask(gpu, restored), one) for one in masks)
    assert restored.get(gpu.handle)[:2] == dropout.get(gpu.handle)[:2]
    dropout.load(gpu.handle, state)  # in place
    assert all(np.array_equal(mask(gpu, dropout), one) for one in masks)
    own = gpu.zeros(len(state.states))
    borrowed = legacy.Dropout.restore(gpu.handle, state, states=(own.pointer, own.nbytes))
    assert np.array_equal(mask(gpu, borrowed), masks[0])
    assert borrowed.get(gpu.handle).states == own.pointer
    with pytest.raises(ValueError, match="state has 3 bytes, this generator has"):
        dropout.load(gpu.handle, state._replace(states=b"abc"))
    with pytest.raises(ValueError, match="state has"):
        legacy.Dropout.restore(gpu.handle, state, states=gpu.zeros(8))


@pytest.mark.feature("F023", "F029", "F008")
def test_dropout_settings_and_lifetime(gpu: Gpu) -> None:
    own = gpu.zeros(legacy.Dropout.states_size(gpu.handle))
    dropout = legacy.Dropout(gpu.handle, rate=0.5, seed=3, states=own)
    assert dropout.get(gpu.handle) == dropout.get() == (0.5, 3, own.pointer)
    assert dropout.states is own
    assert repr(dropout) == f"Dropout(rate=0.5, seed=3, states={own.pointer})"
    dropout.close()
    dropout.close()
    with pytest.raises(legacy.ClosedError, match="this Dropout was closed"):
        dropout.get()
    assert repr(dropout) == "Dropout(closed)"


# ------------------------------------------------------------------------------------------------------- CTC
LABELS = [[1, 2, 2, 3], [4], [2, 1, 3]]
LENGTHS = [9, 5, 7]


def ctc_case(gpu: Gpu, normalization: str) -> tuple[Operand, Any, Any]:
    """Inputs (T, N, A), costs and gradients by the activations."""
    activations = gpu.tensor(gpu.normal((9, 3, 5))).values
    costs, gradients = ref.ctc(activations, LABELS, LENGTHS)
    if normalization == "none":
        exponentials = np.exp(activations)
        activations = exponentials / exponentials.sum(-1, keepdims=True)
    array = activations.astype(np.float32)
    desc = legacy.TensorDescriptor(array.shape, format=None)
    return Operand(gpu, desc, gpu.put(array), activations, "float32", "strided"), costs, gradients


@pytest.mark.feature("F074", "F028")
@pytest.mark.parametrize("normalization", ["softmax", "none"])
@pytest.mark.parametrize("algorithm", legacy.members(legacy.CTCAlgorithm))
@pytest.mark.parametrize("where", ["host", "device"])
def test_ctc_loss(gpu: Gpu, normalization: str, algorithm: str, where: str) -> None:
    x, costs, gradients = ctc_case(gpu, normalization)
    loss = legacy.CTCLoss(normalization=normalization, max_label_length=8 if where == "device" else 0)
    targets: dict[str, Any] = {
        "labels": [one for label in LABELS for one in label],
        "label_lengths": [len(label) for label in LABELS],
        "input_lengths": LENGTHS,
    }
    if where == "device":
        targets = {name: gpu.put(np.array(value, np.int32)) for name, value in targets.items()}
    memory, out = gpu.zeros(4 * 3), gpu.put(np.full((9, 3, 5), np.nan, np.float32))

    def run() -> None:
        loss.loss(
            gpu.handle,
            probs_desc=x.desc,
            probs=x.memory,
            **targets,
            costs=memory,
            gradients_desc=x.desc,
            gradients=out,
            algorithm=algorithm,
        )

    if not ran(run, sure=algorithm == "deterministic" and normalization == "softmax"):
        return
    close(gpu.read(memory, (3,), "float32").astype(np.float64), costs, 1e-4)
    if normalization == "softmax":
        found = gpu.read(out, (9, 3, 5), "float32").astype(np.float64)
        for i, steps in enumerate(LENGTHS):  # beyond a sequence's end the library may leave what was there
            close(found[:steps, i], gradients[:steps, i], 1e-4)


@pytest.mark.feature("F074")
@pytest.mark.parametrize("where", ["host", "device"])
def test_ctc_costs_alone(gpu: Gpu, where: str) -> None:
    x, costs, _ = ctc_case(gpu, "softmax")
    loss = legacy.CTCLoss(max_label_length=8 if where == "device" else 0)
    targets: dict[str, Any] = {
        "labels": [one for label in LABELS for one in label],
        "label_lengths": [len(label) for label in LABELS],
        "input_lengths": LENGTHS,
    }
    size = loss.workspace(gpu.handle, probs_desc=x.desc, **(targets if where == "host" else {}))
    assert size > 0
    if where == "device":
        targets = {name: gpu.put(np.array(value, np.int32)) for name, value in targets.items()}
    memory = gpu.zeros(4 * 3)
    operands = {"probs_desc": x.desc, "probs": x.memory, **targets, "costs": memory}
    if ran(lambda: loss.loss(gpu.handle, **operands, workspace=gpu.zeros(size)), sure=False):
        close(gpu.read(memory, (3,), "float32").astype(np.float64), costs, 1e-4)
