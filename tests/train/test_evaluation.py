"""Inference as a compiled graph, and accuracy on held-out data."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.infer import Predictor
from lamina.train import Scores

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((10, 1, 8, 8)).astype(np.float32)


def net_of(seed: int = 1) -> nn.Module:
    nn.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-5), ("fp64", 1e-5), ("bf16", 3e-2), ("fp16", 3e-3)]
)
def test_a_predictor_gives_what_the_network_gives(backend: str, precision: str, tolerance: float) -> None:
    net = net_of()
    expected = net.eval()(IMAGES).numpy()
    found = Predictor(net.train(), device="cpu", backend=backend, precision=precision)(IMAGES)
    assert found.dtype.name == ("float64" if precision == "fp64" else "float32")
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)
    assert net.training


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_smaller_batch_is_filled_up(backend: str) -> None:
    predictor = Predictor(net_of(), device="cpu", backend=backend)
    whole = predictor(IMAGES).numpy()
    np.testing.assert_allclose(predictor(IMAGES[:3]).numpy(), whole[:3], rtol=1e-5, atol=1e-6)
    assert len(predictor._programs) == 1
    assert predictor(np.concatenate([IMAGES, IMAGES])).shape == (20, 3)
    assert len(predictor._programs) == 2


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_refresh_takes_over_trained_weights(backend: str) -> None:
    net = net_of()
    labels = np.arange(10) % 3
    predictor = Predictor(net, device="cpu", backend=backend)
    predictor(IMAGES)
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.1), device="cpu", backend=backend)
    for _ in range(3):
        step(IMAGES, labels)
    predictor.refresh()
    np.testing.assert_allclose(predictor(IMAGES).numpy(), net.eval()(IMAGES).numpy(), rtol=1e-4, atol=1e-5)


def test_tensors_are_taken_too() -> None:
    predictor = Predictor(net_of(), device="cpu", backend="reference")
    np.testing.assert_array_equal(predictor(lm.tensor(IMAGES)).numpy(), predictor(IMAGES).numpy())


def test_evaluate_counts() -> None:
    net = net_of()
    answers = net.eval()(IMAGES).numpy().argmax(1)
    labels = answers.copy()
    labels[:4] = (labels[:4] + 1) % 3  # four are wrong
    batches: Any = data.arrays(IMAGES, labels, batch_size=4, shuffle=False)
    found = lm.evaluate(net, batches, device="cpu", backend="reference")
    assert found == Scores(6, 10)
    assert found.accuracy == 0.6
    assert str(found) == "60.00 % (6 of 10)"
    with pytest.raises(ValueError, match="the data has no batches"):
        lm.evaluate(net, [], device="cpu", backend="reference")


class Fixed(nn.Module):
    """Gives its input, so that a test says what the outputs are."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(np.ones(1, np.float32))

    def forward(self, x: Any) -> Any:
        return x * self.weight


def scores(outputs: Any, targets: Any, *args: Any, **kwargs: Any) -> Scores:
    batch = (np.asarray(outputs, np.float32), np.asarray(targets))
    return lm.evaluate(Fixed(), [batch], *args, device="cpu", backend="reference", **kwargs)


def test_one_label_a_pixel() -> None:
    """Outputs (N, C, H, W), labels (N, H, W): every pixel counts, but for those to be ignored."""
    outputs = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
    labels = outputs.argmax(1)
    labels[0, 0, :3] = (labels[0, 0, :3] + 1) % 3
    assert scores(outputs, labels) == Scores(37, 40)
    labels[1, 1, :2] = -100
    assert scores(outputs, labels) == Scores(35, 38)
    assert scores(outputs, labels, ignore_index=0) == Scores(
        int(((labels != 0) & (outputs.argmax(1) == labels)).sum()), int((labels != 0).sum())
    )
    with pytest.raises(ValueError, match="the data has no labels that count"):
        scores(outputs, np.full_like(labels, -100))


def test_nan_is_never_right() -> None:
    """argmax takes a NaN for the largest."""
    outputs = [[np.nan, 1, 2], [3, 1, 2], [1, np.nan, 2], [1, 2, 3]]
    assert scores(outputs, [0, 0, 1, 2]) == Scores(2, 4)
    assert str(scores(np.full((4, 3), np.nan), np.zeros(4, np.int64))) == "0.00 % (0 of 4)"


def test_regression_has_a_loss_and_no_accuracy() -> None:
    found = scores([[1.0], [3.0]], np.array([[1.0], [1.0]], np.float32), nn.MSELoss())
    assert found == Scores(None, None, 2.0)
    assert found.accuracy is None
    assert str(found) == "loss 2.0000"
    message = r"outputs f32\[2,1\] and targets f32\[2,1\] have no accuracy, which needs .*; give a loss_fn or metrics"
    with pytest.raises(ValueError, match=message):
        scores([[1.0], [3.0]], np.array([[1.0], [1.0]], np.float32))


def test_loss_is_the_mean_over_samples_not_over_batches() -> None:
    logits = RNG.standard_normal((10, 3)).astype(np.float32)
    labels = np.arange(10) % 3
    batches: Any = [(logits[:8], labels[:8]), (logits[8:], labels[8:])]
    found = lm.evaluate(Fixed(), batches, ops.cross_entropy, device="cpu", backend="reference")
    assert found.loss == pytest.approx(ops.cross_entropy(logits, labels).item(), rel=1e-6)
    assert found.labels == 10
    assert str(found).endswith(f", loss {found.loss:.4f}")


def test_loss_is_the_mean_over_labels_that_count() -> None:
    """Batches of other lengths, padded labels, a batch in which nothing counts, and one without samples."""
    outputs = [RNG.standard_normal((n, 3, 5)).astype(np.float32) for n in (4, 2, 1, 0)]
    labels = [RNG.integers(0, 3, (len(x), 5)) for x in outputs]
    labels[0][1:, 2:] = labels[1][:, 4:] = labels[2][:] = -100
    batches = list(zip(outputs, labels, strict=True))
    found = lm.evaluate(Fixed(), batches, ops.cross_entropy, device="cpu")
    every = ops.cross_entropy(np.concatenate(outputs), np.concatenate(labels)).item()
    assert found.loss == pytest.approx(every, rel=1e-6)
    assert found.labels == 4 * 5 - 9 + 2 * 5 - 2
    nothing = [(outputs[3], outputs[3])]
    with pytest.raises(ValueError, match="evaluate: the data has no samples"):
        lm.evaluate(Fixed(), nothing, ops.mse_loss, device="cpu")


def test_batches_are_pairs() -> None:
    x = np.zeros((2, 3), np.float32)
    for batch, kind in (((x,), "tuple of 1"), ((x, x, x), "tuple of 3"), (x, "ndarray")):
        with pytest.raises(ValueError, match=rf"batch 0 is a {kind}; a batch is a pair \(inputs, targets\)"):
            lm.evaluate(Fixed(), [batch], device="cpu", backend="reference")


class Two(nn.Module):
    """Two inputs, two outputs: their sum and their difference, times a weight."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(np.ones(1, np.float32))

    def forward(self, a: Any, b: Any) -> Any:
        return (a + b) * self.weight, {"difference": a - b}


def test_several_inputs_outputs_and_targets() -> None:
    a, b = (RNG.standard_normal((5, 3)).astype(np.float32) for _ in range(2))

    def loss(outputs: Any, targets: Any) -> Any:
        total, rest = outputs
        return ops.mse_loss(total, targets[0]) + ops.mse_loss(rest["difference"], targets[1])

    found = lm.evaluate(Two(), [((a, b), (a, b))], loss, device="cpu", backend="reference")
    assert found.accuracy is None
    assert found.loss == pytest.approx(float((b**2).mean() + ((a - 2 * b) ** 2).mean()), rel=1e-5)
    with pytest.raises(
        ValueError, match=r"outputs f32\[5,3\], f32\[5,3\] and targets i64\[5\] have no accuracy"
    ):
        lm.evaluate(Two(), [((a, b), np.zeros(5, np.int64))], device="cpu", backend="reference")


def test_labels_in_a_list_of_numbers() -> None:
    logits = np.eye(3, dtype=np.float32)
    assert lm.evaluate(Fixed(), [(logits, [0, 1, 1])], device="cpu", backend="reference") == Scores(2, 3)


# ---- predict


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_predict_arrays_whole_and_in_parts(backend: str) -> None:
    net = net_of()
    expected = net.eval()(IMAGES).numpy()
    whole = lm.predict(net, IMAGES, device="cpu", backend=backend)
    np.testing.assert_allclose(whole.numpy(), expected, rtol=1e-4, atol=1e-5)
    parts = lm.predict(net, lm.tensor(IMAGES), batch_size=4, device="cpu", backend=backend)
    assert parts.shape == (10, 3)
    np.testing.assert_allclose(parts.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_predict_batches_with_and_without_targets() -> None:
    predictor = Predictor(net_of(), device="cpu", backend="reference")
    expected = predictor(IMAGES).numpy()
    labels = np.arange(10)
    pairs = data.arrays(IMAGES, labels, batch_size=4, shuffle=False)
    for found in (
        lm.predict(predictor, pairs, labelled=True),
        lm.predict(predictor, list(pairs.epoch(0)), labelled=True),
        lm.predict(predictor, [(IMAGES[:5], labels[:5]), (IMAGES[5:], labels[5:])], labelled=True),
        lm.predict(predictor, (IMAGES, labels), labelled=True),
        lm.predict(predictor, data.arrays(IMAGES, batch_size=4, shuffle=False)),
        lm.predict(predictor, (IMAGES[i : i + 3] for i in range(0, 10, 3))),
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_predict_several_inputs_and_outputs() -> None:
    a, b = (RNG.standard_normal((5, 3)).astype(np.float32) for _ in range(2))
    for given in ((a, b), {"a": a, "b": b}):
        total, rest = lm.predict(Two(), given, batch_size=2, device="cpu", backend="reference")
        np.testing.assert_allclose(total.numpy(), a + b, rtol=1e-6)
        np.testing.assert_allclose(rest["difference"].numpy(), a - b, rtol=1e-6)


def test_predict_a_sample_without_a_batch() -> None:
    nn.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    found = lm.predict(net, np.ones(4, np.float32), device="cpu", backend="reference")
    assert found.shape == (3,)
    image = nn.Conv2d(1, 2, 3)
    assert lm.predict(image, IMAGES[0], device="cpu", backend="reference").shape == (2, 6, 6)


def test_predict_names_what_is_wrong() -> None:
    net = net_of()
    with pytest.raises(ValueError, match="predict: the data has no batches"):
        lm.predict(net, iter([]), device="cpu")
    with pytest.raises(ValueError, match="predict: batch_size must be at least 1, got 0"):
        lm.predict(net, IMAGES, batch_size=0, device="cpu")
    with pytest.raises(
        lm.ShapeError, match=r"predict: inputs f32\[10,1,8,8\], f32\[3\] have no common first"
    ):
        lm.predict(Two(), (IMAGES, np.ones(3, np.float32)), batch_size=2, device="cpu")
    given = (np.ones((2, n), np.float32) for n in (3, 4))
    with pytest.raises(lm.ShapeError, match=r"cannot be joined .*: f32\[2,3\], f32\[2,4\]"):
        lm.predict(Fixed(), given, device="cpu", backend="reference")
    with pytest.raises(TypeError) as raised:
        lm.predict(net, iter([(IMAGES, np.zeros(len(IMAGES)))]), device="cpu")
    assert "predict: batch 0 is a pair; labelled=True leaves out its targets" in raised.value.__notes__
    with pytest.raises(ValueError, match=r"a batch is a pair.*whole arrays are \[\(inputs, targets\)\]"):
        lm.evaluate(net, (IMAGES, np.zeros(len(IMAGES))), ops.mse_loss, device="cpu")
    with pytest.raises(ValueError, match="predict: batch 0 is a ndarray; a batch is a pair"):
        lm.predict(net, iter([IMAGES]), labelled=True, device="cpu")


def test_predict_takes_a_list_of_dicts_as_batches() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any, by: Any) -> Any:
            return x * by

    batches = [{"x": np.full((n, 2), 3, np.float32), "by": np.full((n, 1), n, np.float32)} for n in (3, 3, 1)]
    found = lm.predict(Scaled(), batches, device="cpu")
    assert found.shape == (7, 2)
    assert found[:, 0].tolist() == [9, 9, 9, 9, 9, 9, 3]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.feature("B028")
def test_data_that_is_filled_up_is_refused(ahead: bool) -> None:
    x, y = np.ones((5, 3), np.float32), np.arange(5) % 3
    padded = data.arrays(x, y, batch_size=4, pad_last=True)
    with pytest.raises(ValueError, match="evaluate: data has pad_last=True, .*; make it without"):
        lm.evaluate(nn.Linear(3, 3), data.prefetch(padded) if ahead else padded, device="cpu")
