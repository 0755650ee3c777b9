"""Dropout: its masks are a function of the generator's state."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops


def test_inference_and_p_zero_do_nothing() -> None:
    x = lm.ones((4, 4))
    assert nn.Dropout(0.5).eval()(x) is x
    assert nn.Dropout(0.0)(x) is x


def test_kept_elements_grow_and_the_rest_is_zero() -> None:
    nn.manual_seed(1)
    y = nn.Dropout(0.25)(lm.ones((100, 100))).numpy()
    assert set(np.unique(y)) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.02)
    assert not nn.Dropout(1.0)(lm.ones(10)).numpy().any()


def test_each_call_advances_the_generator() -> None:
    nn.manual_seed(7)
    layer, x = nn.Dropout(0.5), lm.ones(1000)
    assert repr(layer.generator) == "Generator(seed=7, counter=0)"
    first, second = layer(x).numpy(), layer(x).numpy()
    assert layer.generator.counter == 500  # four draws per block, two calls
    assert not np.array_equal(first, second)
    nn.manual_seed(7)
    np.testing.assert_array_equal(layer(x).numpy(), first)


def test_own_generator() -> None:
    generator = nn.Generator(3)
    layers = nn.Sequential(nn.Dropout(0.5, generator=generator), nn.Dropout(0.5))
    assert layers.generators() == [generator, nn.random.default_generator]
    before = nn.random.default_generator.counter
    layers[0](lm.ones(8))
    assert (generator.counter, nn.random.default_generator.counter) == (2, before)
    assert generator.manual_seed(9).seed == 9


def test_a_trace_draws_the_mask_of_an_eager_call() -> None:
    generator = nn.Generator(11)
    layer, x = nn.Dropout(0.5, generator=generator), np.ones((8, 8), np.float32)
    expected, mask, after = ops.dropout(x, 0.5, state=generator.state)
    np.testing.assert_array_equal(layer(x).numpy(), expected.numpy())
    np.testing.assert_array_equal(generator.state.numpy(), after.numpy())
    np.testing.assert_array_equal(mask.numpy(), expected.numpy() != 0)
    with pytest.raises(TypeError, match="takes no part in this trace"):
        lm.trace(layer, x)
    assert lm.trace(layer.eval(), x)(x)[0].numpy().all()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("Dropout1d", "dropout1d"), ("Dropout2d", "dropout2d"), ("Dropout3d", "dropout3d"),
        ("AlphaDropout", "alpha_dropout"), ("FeatureAlphaDropout", "feature_alpha_dropout"),
    ],
)  # fmt: skip
def test_modules_are_their_functions(name: str, function: str) -> None:
    generator = nn.Generator(4)
    shape = {"Dropout1d": (2, 6, 5), "Dropout3d": (2, 6, 2, 3, 2)}.get(name, (2, 6, 4, 3))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    layer = getattr(nn, name)(0.3, generator=generator)
    expected, _, after = getattr(ops, function)(x, 0.3, state=generator.state)
    np.testing.assert_array_equal(layer(x).numpy(), expected.numpy())
    np.testing.assert_array_equal(generator.state.numpy(), after.numpy())
    assert repr(layer) == f"{name}(p=0.3)"
    given = lm.tensor(x)
    assert layer.eval()(given) is given
    with pytest.raises(ValueError, match=f"{name}: p must be between 0 and 1, got 2"):
        getattr(nn, name)(2)
