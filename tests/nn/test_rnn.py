"""Initial values of recurrent layers; what they compute is in test_sequences.py."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_weights_are_uniform_within_one_by_the_root_of_the_hidden_size(kind: Any) -> None:
    nn.manual_seed(0)
    layer = kind(60, 64, 2, bidirectional=True)
    for name, weight in layer.named_parameters():
        values = weight.numpy()
        assert np.abs(values).max() <= 1 / 8, name
        if values.ndim == 2:
            assert np.abs(values).max() > 0.99 / 8
            assert values.std() == pytest.approx(1 / 8 / np.sqrt(3), rel=0.05)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_one_sequence_may_be_padded_as_those_of_a_batch_are(kind: Any, first: bool) -> None:
    nn.manual_seed(0)
    layer = kind(3, 4, 2, bidirectional=True, batch_first=first)
    x = np.random.default_rng(0).standard_normal((2, 6, 3)).astype(np.float32)
    wanted, states = layer(x if first else x.swapaxes(0, 1), lengths=np.array([6, 4]))
    states = states if isinstance(states, tuple) else (states,)
    for i, length in enumerate((6, 4)):
        y, last = layer(x[i], lengths=np.int64(length))
        both = wanted.numpy() if first else wanted.numpy().swapaxes(0, 1)
        np.testing.assert_allclose(y.numpy(), both[i], rtol=1e-5, atol=1e-6)
        for own, of_batch in zip(last if isinstance(last, tuple) else (last,), states, strict=True):
            np.testing.assert_allclose(own.numpy(), of_batch.numpy()[:, i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"])
def test_one_input_and_one_unit_are_enough_and_none_is_refused(name: str) -> None:
    kind = getattr(nn, name)
    layer = kind(1, 1)
    y = layer(lm.ones((2, 1)))
    assert (y[0] if isinstance(y, tuple) else y).shape == (2, 1)
    for size in (0, -1):
        with pytest.raises(lm.ShapeError, match=f"^{name}: input_size must be at least 1, got {size}$"):
            kind(size, 1)
        with pytest.raises(ValueError, match="hidden and layers must be at least 1"):
            kind(1, size)


@pytest.mark.torch
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_a_cell_is_torchs_from_given_states_and_for_one_sample(name: str, bias: bool) -> None:
    import torch

    theirs, ours = getattr(torch.nn, name)(3, 4, bias), getattr(nn, name)(3, 4, bias)
    ours.load_state_dict(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    rng = np.random.default_rng(0)
    x, *states = (rng.standard_normal((2, n)).astype(np.float32) for n in (3, 4, 4))
    states = states if name == "LSTMCell" else states[:1]
    for rows in (slice(None), 0):
        for given in (None, [s[rows] for s in states]):
            told = None if given is None else [torch.tensor(s) for s in given]
            wanted = theirs(torch.tensor(x[rows]), told if told is None or len(told) == 2 else told[0])
            found = ours(
                lm.tensor(x[rows]),
                None
                if given is None
                else tuple(map(lm.tensor, given))
                if len(given) == 2
                else lm.tensor(given[0]),
            )
            pairs = zip(found, wanted, strict=True) if len(states) == 2 else [(found, wanted)]
            for mine, other in pairs:
                np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_the_text_of_a_layer_is_torchs(name: str) -> None:
    import torch

    for options in (
        {},
        {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.5, "bidirectional": True},
    ):
        assert repr(getattr(nn, name)(3, 4, **options)) == repr(getattr(torch.nn, name)(3, 4, **options))


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"])
def test_an_input_of_another_size_is_named(name: str) -> None:
    shape = (4, 5) if name.endswith("Cell") else (2, 4, 5)
    with pytest.raises(lm.ShapeError, match=f"^{name}: input_size is 3, but the last axis of x has 5: f32"):
        getattr(nn, name)(3, 6)(lm.ones(shape))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_programs_may_ask_for_flat_weights(kind: Any) -> None:
    layer, x = kind(3, 4), lm.ones(2, 1, 3)
    before = layer(x)[0].numpy()
    layer.flatten_parameters()
    np.testing.assert_array_equal(layer(x)[0].numpy(), before)
