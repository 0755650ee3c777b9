"""Adaptive softmax: probabilities, torch's numbers and keys, training, errors."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops


def test_probabilities_of_labels() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0)
    shapes = {k: v.shape for k, v in layer.state_dict().items()}
    assert shapes == {
        "head.weight": (5, 8),
        "tail.0.0.weight": (4, 8),
        "tail.0.1.weight": (4, 4),
        "tail.1.0.weight": (2, 8),
        "tail.1.1.weight": (5, 2),
    }
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    logs = layer.log_prob(lm.tensor(x)).numpy()
    np.testing.assert_allclose(np.exp(logs).sum(1), 1, rtol=1e-5)
    labels = np.array([0, 2, 3, 6, 7, 11])
    output, loss = layer(lm.tensor(x), lm.tensor(labels))
    np.testing.assert_allclose(output.numpy(), logs[np.arange(6), labels], rtol=1e-6)
    np.testing.assert_allclose(loss.item(), -output.numpy().mean(), rtol=1e-6)
    assert layer.predict(lm.tensor(x)).tolist() == logs.argmax(1).tolist()
    one = layer(lm.tensor(x[0]), lm.tensor(labels[0]))
    np.testing.assert_allclose(one.output.item(), output.numpy()[0], rtol=1e-6)


def test_it_trains() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2, 4], div_value=2.0, head_bias=True)
    step = lm.train_step(
        nn.Sequential(layer.head), lambda y, t: ops.cross_entropy(y, t), lm.optim.SGD(0.5), device="cpu"
    )
    x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 3])
    losses = [step(x, y).item() for _ in range(20)]
    assert losses[-1] < losses[0]


def test_errors() -> None:
    for cutoffs in ([], [3, 3], [0, 2], [3, 6], [4, 2]):
        with pytest.raises(ValueError, match="cutoffs must increase within 1 … n_classes - 1 = 5"):
            nn.AdaptiveLogSoftmaxWithLoss(4, 6, cutoffs)
    with pytest.raises(lm.ShapeError, match=r"input \[N, D\] and labels \[N\]"):
        nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2])(lm.ones((3, 4)), lm.tensor([1, 2]))


@pytest.mark.torch
def test_as_torchs() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 9, 15], div_value=2.0, head_bias=True)
    mine = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 9, 15], div_value=2.0, head_bias=True)
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    x, labels = torch.randn(50, 16), torch.randint(0, 20, (50,))
    wanted, found = theirs(x, labels), mine(lm.tensor(x.numpy()), lm.tensor(labels.numpy()))
    np.testing.assert_allclose(found.output.numpy(), wanted.output.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.loss.item(), wanted.loss.item(), rtol=1e-5)
