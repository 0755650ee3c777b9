"""Random tensors: their distributions, that a seed gives them again, in compiled functions and steps too."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina._philox import words
from lamina.ops.primitives import random
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import numerical

#: What is drawn, with a generator or the default one.
DRAWS: list[Any] = [
    lambda **o: ops.rand(3, 5, **o),
    lambda **o: ops.randn((7,), **o),
    lambda **o: ops.rand_like(np.zeros((2, 3)), **o),
    lambda **o: ops.randn_like(np.zeros(5, np.float32), **o),
    lambda **o: ops.normal(1.0, 2.0, (4,), **o),
    lambda **o: ops.normal(np.arange(6.0), 0.5, **o),
    lambda **o: ops.bernoulli(np.full((40,), 0.4), **o),
    lambda **o: ops.bernoulli(np.zeros((40,), np.int64), 0.4, **o),
    lambda **o: ops.randint(10, (20,), **o),
    lambda **o: ops.randint(-4, 9, (20,), dtype=lm.int32, **o),
    lambda **o: ops.multinomial(np.arange(9.0), 30, True, **o),
    lambda **o: ops.multinomial(np.ones((2, 9)), 4, **o),
    lambda **o: ops.randperm(30, **o),
    lambda **o: ops.gumbel_softmax(np.zeros((3, 4)), 0.7, **o),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_gives_the_same_again_and_a_call_moves_on(draw: Any) -> None:
    own = nn.Generator(5)
    first, second = (draw(generator=own).numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    own.manual_seed(5)
    np.testing.assert_array_equal(draw(generator=own).numpy(), first)
    nn.manual_seed(5)
    np.testing.assert_array_equal(draw().numpy(), first)
    run = lm.jit(lambda: draw(generator=own))
    np.testing.assert_array_equal(run().numpy(), second)
    own.manual_seed(5)
    np.testing.assert_allclose(run().numpy(), first, atol=1e-6)


def fine(seed: int, count: int) -> Any:
    """Whole numbers below 2^48: the first draws are their upper 24 bits, as many more the lower ones."""
    high, low = (words(seed, 0, 2 * count).reshape(2, count) >> 8).astype(np.int64)
    return (high << 24) | low


def test_draws_by_their_definition() -> None:
    def own() -> nn.Generator:
        return nn.Generator(5)

    unit = words(5, 0, 21) >> 8
    np.testing.assert_array_equal(ops.rand(3, 7, generator=own()).numpy(), unit.reshape(3, 7) * 2.0**-24)
    gauss = ops.randn(3, 7, generator=own()).numpy()
    np.testing.assert_allclose(gauss, random.normal((3, 7), 5), rtol=1e-5, atol=1e-6)
    for std in (0.0, 0.25, 2.0):
        found = ops.normal(1.0, std, (3, 7), generator=own()).numpy()
        np.testing.assert_allclose(found, 1 + std * gauss, rtol=1e-5, atol=1e-5)
    wanted = unit * 2.0**-24 < np.linspace(0, 1, 21)
    found = ops.bernoulli(np.linspace(0, 1, 21), generator=own()).numpy()
    np.testing.assert_array_equal(found, wanted)
    for p in (0.0, float(unit[3] * 2.0**-24), 1.0):  # less than p, not p itself
        drawn = ops.bernoulli(np.zeros(21), p, generator=own()).numpy()
        np.testing.assert_array_equal(drawn, unit * 2.0**-24 < p)
    steps = fine(5, 21)
    assert ops.randint(2**48, (21,), generator=own()).tolist() == steps.tolist()
    assert ops.randint(-(2**47), 2**47, (21,), generator=own()).tolist() == (steps - 2**47).tolist()
    assert ops.randint(2**60, 2**60 + 1, (3,), generator=own()).tolist() == [2**60] * 3
    assert ops.randint(3, 13, (21,), generator=own()).tolist() == [3 + (10 * int(s) >> 48) for s in steps]
    assert ops.randperm(21, generator=own()).tolist() == np.argsort(steps, kind="stable").tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("draw", DRAWS)
def test_a_gpu_draws_the_same(draw: Any) -> None:
    values = {}
    for device in ("cpu", "cuda:0"):
        own = nn.Generator(5)
        own.state = own.state.to(device)
        values[device] = draw(generator=own)
    np.testing.assert_allclose(values["cuda:0"].numpy(), values["cpu"].numpy(), atol=1e-5)


def test_sizes_and_types() -> None:
    assert (ops.rand(2, 3).shape, ops.rand((2, 3)).shape, ops.rand().shape, ops.randn(0, 2).shape) == (
        (2, 3), (2, 3), (), (0, 2),
    )  # fmt: skip
    assert (ops.rand(2, dtype="float64").dtype, ops.randint(3, (2,), dtype=lm.uint8).dtype) == (
        lm.float64,
        lm.uint8,
    )
    assert ops.bernoulli(np.ones(3, np.int32), 0.5).dtype == lm.int32
    assert ops.multinomial(np.ones((0, 3)), 2, True).shape == (0, 2)


def test_distributions() -> None:
    nn.manual_seed(1)
    u = ops.rand(100_000).numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005
    n = ops.normal(np.array([[3.0], [-1.0]]) * np.ones((2, 50_000)), np.array([[2.0], [0.1]])).numpy()
    np.testing.assert_allclose(n.mean(1), [3, -1], atol=0.03)
    np.testing.assert_allclose(n.std(1), [2, 0.1], rtol=0.02)
    b = ops.bernoulli(np.repeat([[0.0], [0.2], [1.0]], 50_000, 1)).numpy().mean(1)
    np.testing.assert_allclose(b, [0, 0.2, 1], atol=0.01)
    i = ops.randint(-2, 3, (100_000,)).numpy()
    np.testing.assert_allclose(np.bincount(i + 2) / 1e5, 0.2, atol=0.01)
    big = ops.randint(0, 2**48, (1000,)).numpy()
    assert len(np.unique(big)) == 1000
    assert len(np.unique(big % 16)) == 16


@pytest.mark.parametrize("replacement", [True, False])
def test_categories_come_as_often_as_they_weigh(replacement: bool) -> None:
    nn.manual_seed(2)
    weights = np.array([0.5, 0.0, 3.0, 1.5, 0.0])
    rows = np.repeat(weights[None], 1 if replacement else 40_000, 0)
    found = ops.multinomial(rows, 40_000 if replacement else 1, replacement).numpy()
    np.testing.assert_allclose(np.bincount(found.reshape(-1), minlength=5) / 40_000, weights / 5, atol=0.01)


def test_categories_without_replacement_are_all_others() -> None:
    found = ops.multinomial(np.array([[0.1, 0.0, 5.0, 2.0]] * 50), 4).numpy()
    assert (np.sort(found, 1) == np.arange(4)).all()
    assert (found[:, 3] == 1).all(), "the one without a weight comes last"


def test_orders_are_permutations_and_all_as_likely() -> None:
    nn.manual_seed(3)
    orders = np.stack([ops.randperm(3).numpy() for _ in range(600)])
    assert (np.sort(orders, 1) == np.arange(3)).all()
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert counts.min() > 70
    assert (ops.randperm(0).shape, ops.randperm(4, dtype="int32").dtype) == ((0,), lm.int32)


def test_many_categories_of_tiny_weights_are_met() -> None:
    weights = np.ones(70_000, np.float32)
    weights[1::2] = 0
    found = ops.multinomial(weights, 5000, True, generator=nn.Generator(3)).numpy()
    assert (found % 2 == 0).all()
    assert found.max() > 69_000
    assert len(np.unique(found)) > 4500


def test_soft_samples_have_the_gradient_of_softmax_and_hard_ones_that_of_soft() -> None:
    x, scale = np.random.default_rng(0).standard_normal((2, 3, 4)), np.arange(24.0).reshape(2, 3, 4)

    def soft(x: Any) -> Any:
        return (ops.gumbel_softmax(x, 0.5, dim=1, generator=nn.Generator(4)) * scale).sum()

    def hard(x: Any) -> Any:
        return (ops.gumbel_softmax(x, 0.5, True, dim=1, generator=nn.Generator(4)) * scale).sum()

    slope = lm.grad(soft)(lm.tensor(x)).numpy()
    np.testing.assert_allclose(slope, numerical(soft, [x])[0], atol=1e-5)
    np.testing.assert_allclose(lm.grad(hard)(lm.tensor(x)).numpy(), slope, atol=1e-12)
    y = ops.gumbel_softmax(x, 0.5, True, dim=1).numpy()
    np.testing.assert_allclose(np.sort(y, 1), np.sort(np.eye(3)[:, :1] * np.ones((2, 3, 4)), 1), atol=1e-12)
    logits = np.log(np.repeat([[0.1, 0.6, 0.3]], 30_000, 0))
    often = ops.gumbel_softmax(logits, hard=True, generator=nn.Generator(1)).numpy().mean(0)
    np.testing.assert_allclose(often, [0.1, 0.6, 0.3], atol=0.01)


def test_gradients_of_mean_and_deviation() -> None:
    mean, std = np.arange(3.0), np.array([1.0, 2.0, 0.5])

    def total(mean: Any, std: Any) -> Any:
        return (ops.normal(mean, std, generator=nn.Generator(2)) ** 2).sum()

    found = lm.grad(total, (0, 1))(lm.tensor(mean), lm.tensor(std))
    for g, wanted in zip(found, numerical(total, [mean, std]), strict=True):
        np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-5)


class Noisy(nn.Module):
    """Draws by functions alone: no attribute tells of a generator."""

    def __init__(self) -> None:
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        q = self.layer(x)
        drop = 0.5 if self.training else 0.0
        return ops.scaled_dot_product_attention(q, q, q, dropout_p=drop) + ops.randn_like(q)


def test_every_step_draws_anew() -> None:
    x = np.ones((2, 3, 4), np.float32)
    losses = []
    for _ in range(2):
        nn.manual_seed(3)
        step = lm.train_step(Noisy(), lambda y, t: ((y - t) ** 2).mean(), optim.SGD(lr=0.0))
        losses.append([float(step(x, x)) for _ in range(3)])
    assert len(set(losses[0])) == 3
    assert losses[0] == losses[1]


def test_a_trace_that_would_keep_one_draw_is_refused() -> None:
    with pytest.raises(TypeError, match="drawn from a generator that takes no part in this trace"):
        lm.trace(Noisy(), np.ones((2, 3, 4), np.float32))


def test_errors_name_what_is_wrong() -> None:
    for call, kind, message in [
        (lambda: ops.rand(2, dtype="int32"), DTypeError, "rand: dtype must be a float, got int32"),
        (lambda: ops.rand(-1), ShapeError, "rand: size"),
        (lambda: ops.bernoulli(np.ones(2, int)), DTypeError, r"bernoulli: input must be probabilities, got i64\[2\]"),
        (lambda: ops.bernoulli(np.ones(2), 1.5), ValueError, r"bernoulli: p must be in \[0, 1\], got 1.5"),
        (lambda: ops.randint(3, 3, (2,)), ValueError, "randint: low must be < high.* got 3 and 3"),
        (lambda: ops.randint(-1, 2**48, (2,)), ValueError, "randint: low must be < high.* got -1 and"),
        (lambda: ops.randint(3), TypeError, r"randint: needs \(low, high, size\)"),
        (lambda: ops.multinomial(np.ones(3), 4), ValueError, r"num_samples must be in \[1, 3\], got 4"),
        (lambda: ops.multinomial(np.ones((2, 3, 4)), 1), ShapeError, r"multinomial: input must be weights"),
        (lambda: ops.gumbel_softmax(np.ones(3), 0.0), ValueError, "gumbel_softmax: tau must be > 0, got 0.0"),
        (lambda: ops.normal(1.0, 2.0), ShapeError, "normal: mean 1.0 and std 2.0 are numbers: give a size"),
        (lambda: ops.normal(1.0, -0.5, (2,)), ValueError, "normal: std must be >= 0, got -0.5"),
        (lambda: ops.rand(2, generator=3), TypeError, "generator must be an nn.Generator or None, got 3"),
        (
            lambda: ops.scaled_dot_product_attention(*[np.ones((2, 3, 4))] * 3, dropout_p=1.5),
            ValueError, r"scaled_dot_product_attention: dropout_p must be in \[0, 1\], got 1.5",
        ),
    ]:  # fmt: skip
        with pytest.raises(kind, match=message):
            call()


def test_integers_like_a_tensor() -> None:
    found = ops.randint_like(np.zeros((40, 5), np.float32), 3, 6)
    assert (found.dtype, found.shape) == (lm.float32, (40, 5))
    assert sorted(set(found.numpy().ravel())) == [3, 4, 5]
    assert ops.randint_like(found, 2, dtype=lm.int64).max().item() == 1


#: What is drawn for a batch, of its size or for each of its samples.
OF_BATCHES: list[Any] = [
    lambda x: ops.rand(len(x), 3),
    lambda x: ops.randn_like(x),
    lambda x: ops.rand_like(x, dtype=lm.float64),
    lambda x: ops.normal(0.0, 2.0, x.shape),
    lambda x: ops.normal(x, 0.5),
    lambda x: ops.bernoulli(x),
    lambda x: ops.randint(100, x.shape),
    lambda x: ops.multinomial(x, 4, True),
    lambda x: ops.multinomial(x, 3),
    lambda x: ops.gumbel_softmax(x),
]


@pytest.mark.parametrize("columns", [4, 5])
@pytest.mark.parametrize("draw", OF_BATCHES)
def test_ranks_draw_for_their_parts_what_one_draws_for_the_whole(draw: Any, columns: int) -> None:
    x = np.random.default_rng(0).random((6, columns)).astype(np.float32)

    def drawn(part: Any) -> list[Any]:
        nn.manual_seed(5)
        return [draw(part).numpy(), ops.rand(()).numpy(), ops.randperm(9).numpy()]

    whole, number, order = drawn(x)
    parts = []
    for rank, part in enumerate(np.split(x, 3)):
        with random.part_of_batch(rank, 3):
            own, *same = drawn(part)
        parts.append(own)
        for found, wanted in zip(same, (number, order), strict=True):
            np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_slopes_are_drawn_in_training() -> None:
    x = lm.tensor(np.linspace(-2, 2, 1000, dtype=np.float32))
    np.testing.assert_allclose(
        ops.rrelu(x, 0.2, 0.4).numpy(), np.where(x.numpy() > 0, x, x.numpy() * 0.3), 1e-6
    )
    y = ops.rrelu(x, 0.2, 0.4, training=True, generator=nn.Generator(3))
    slopes = (y / x).numpy()[x.numpy() < 0]
    assert 0.2 <= slopes.min() < 0.21
    assert 0.39 < slopes.max() <= 0.4
    assert (y == nn.RReLU(0.2, 0.4, generator=nn.Generator(3))(x)).all()
    with pytest.raises(ValueError, match="rrelu: lower must be at most upper, got 0.5 and 0.4"):
        ops.rrelu(x, 0.5, 0.4)
