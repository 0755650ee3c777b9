"""Buckets: padding that changes no result, few shapes, least padding, an order by seed and epoch alone."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim

pytestmark = pytest.mark.feature("B047")

RNG = np.random.default_rng(0)
LENGTHS = [3, 9, 4, 10, 5, 3, 8, 9, 4, 2]
SAMPLES = [(RNG.integers(1, 7, n), RNG.integers(0, 5, n)) for n in LENGTHS]


def test_padding_and_masks() -> None:
    batch = data.pad([{"x": np.ones((n, 2)), "label": np.int64(n)} for n in (2, 4)], length=5, padding=-1)
    assert batch.values["x"].shape == (2, 5, 2)
    np.testing.assert_array_equal(batch.values["x"][0], [[1, 1]] * 2 + [[-1, -1]] * 3)
    np.testing.assert_array_equal(batch.values["label"], [2, 4])
    np.testing.assert_array_equal(batch.lengths, [2, 4])
    np.testing.assert_array_equal(batch.mask, [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    inputs, targets = data.pad(SAMPLES[:2], padding=(0, -100)).values
    assert inputs.dtype == np.int64
    assert (inputs[0, 3:] == 0).all()
    assert (targets[0, 3:] == -100).all()
    assert data.pad([np.zeros(2), np.zeros(3)]).values.shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.pad([]), "pad: there are no samples"),
        (lambda: data.pad([np.zeros(4)], length=3), "a sample of 4 does not fit into length=3"),
        (lambda: data.pad([np.zeros(2), (np.zeros(2), np.zeros(2))]), "samples have different structures"),
        (
            lambda: data.pad([np.zeros((2, 3)), np.zeros((2, 4))]),
            r"array 0 of the samples has shapes \(3,\), \(4,\)",
        ),
        (lambda: data.pad([np.zeros(())]), "a sample's first array is its sequence"),
        (lambda: data.Buckets(SAMPLES, 0), "batch_size must be at least 1, got 0"),
        (lambda: data.Buckets(SAMPLES, 2, buckets=[5]), r"a sample of 10 is longer than the buckets \[5\]"),
        (lambda: data.Buckets(SAMPLES, 20, drop_last=True), "10 samples make no batch of 20"),
        (lambda: data.boundaries([], 2), "0 lengths in 2 buckets"),
    ],
)
def test_what_cannot_be_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20])
def test_boundaries_have_the_least_padding(count: int) -> None:
    def places(ends: Any) -> int:
        return sum(min(e for e in ends if e >= n) for n in LENGTHS)

    found = data.boundaries(LENGTHS, count)
    assert len(found) <= count
    every = sorted(set(LENGTHS))
    best = min(
        places((*chosen, every[-1]))
        for k in range(min(count, len(every)))
        for chosen in combinations(every[:-1], k)
    )
    assert places(found) == best
    assert data.boundaries(LENGTHS, 2, multiple=4) == [4, 12]


def test_every_sample_comes_once_in_its_bucket() -> None:
    batches = data.Buckets(SAMPLES, 3, buckets=[4, 8, 12], padding=(0, -100), seed=1)
    seen: list[bytes] = []
    shapes = set()
    for (inputs, lengths), _ in batches:
        assert inputs.shape[1] == min(b for b in (4, 8, 12) if b >= lengths.max())
        shapes.add(inputs.shape[1])
        seen += [row[:n].tobytes() for row, n in zip(inputs, lengths, strict=True)]
    assert sorted(seen) == sorted(x.tobytes() for x, _ in SAMPLES)
    assert shapes == {4, 8, 12}
    assert len(batches) == len(list(batches.epoch(0)))
    assert len(data.Buckets(SAMPLES, 3, buckets=[4, 8, 12], drop_last=True)) == 2


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def read(number: int, start: int = 0, seed: int = 0) -> list[Any]:
        batches = data.Buckets(SAMPLES, 2, buckets=3, seed=seed)
        return [x.tolist() for (x, _), _ in batches.epoch(number, start)]

    assert read(1) == read(1)
    assert read(1, 2) == read(1)[2:]
    assert read(0) != read(1)
    assert read(0) != read(0, seed=1)
    batches = data.Buckets(SAMPLES, 2, buckets=3)
    assert isinstance(batches, data.Epochs)
    assert [x.tolist() for (x, _), _ in batches] == read(0)
    assert [x.tolist() for (x, _), _ in batches] == read(1)
    assert batches.describe() == data.Buckets(SAMPLES, 2, buckets=3).describe()
    assert batches.describe() != data.Buckets(SAMPLES[1:], 2, buckets=3).describe()
    assert "10 samples, lengths" in repr(batches)


class Tagger(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(7, 6)
        self.rnn = nn.LSTM(6, 5, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Any, lengths: Any) -> Any:
        return ops.transpose(self.head(self.rnn(self.embedding(x), lengths=lengths)[0]), 1, 2)


def test_padding_changes_no_loss_and_no_gradient() -> None:
    """Of a bidirectional LSTM: as if each sample came alone."""
    nn.manual_seed(0)
    net = Tagger()
    (batch,) = data.Buckets(SAMPLES, 10, buckets=[16], padding=(0, -100))

    def padded(net: Any) -> Any:
        (inputs, lengths), targets = batch
        return ops.cross_entropy(net(inputs, lengths), targets, reduction="sum")

    def alone(net: Any) -> Any:
        parts = [
            ops.cross_entropy(net(x[None], np.array([len(x)])), y[None], reduction="sum") for x, y in SAMPLES
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    found, expected = lm.value_and_grad(padded)(net), lm.value_and_grad(alone)(net)
    assert found[0].item() == pytest.approx(expected[0].item(), rel=1e-5)
    for name, g in found[1].items():
        np.testing.assert_allclose(g.numpy(), expected[1][name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_training_needs_one_program_a_bucket() -> None:
    nn.manual_seed(0)
    step = lm.train_step(Tagger(), ops.cross_entropy, optim.Adam(lr=0.05), device="cpu")
    batches = data.Buckets(SAMPLES * 4, 4, buckets=2, padding=(0, -100), drop_last=True)
    losses = [step(*batch).item() for _ in range(6) for batch in batches]
    assert len(step._programs) == 2
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_ranks_have_one_bucket_at_a_time() -> None:
    options: dict[str, Any] = {"batch_size": 4, "buckets": 2, "seed": 1, "padding": (0, -100)}
    whole = list(data.Buckets(SAMPLES, **options))
    ranks = [data.Buckets(SAMPLES, rank=r, world_size=2, **options) for r in range(2)]
    assert ranks[1].describe() == data.Buckets(SAMPLES, **options).describe()
    assert ranks[0].uneven
    assert not data.Buckets(SAMPLES, **options).uneven
    assert not data.Buckets(SAMPLES, rank=0, world_size=2, drop_last=True, **options).uneven
    parts = [[y for _, y in rank.epoch(0)] for rank in ranks]
    assert sum(len(y) for part in parts for y in part) == len(SAMPLES)
    halves = iter(parts[1])
    for (_, expected), first in zip(whole, parts[0], strict=True):
        found = np.concatenate([first, next(halves)]) if len(expected) > 2 else first
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("count", "multiple"), [(0, 1), (1, 0), (2, 1 << 31), (10**30, 10**30)])
def test_boundaries_refuse_numbers_out_of_range(count: int, multiple: int) -> None:
    with pytest.raises(
        ValueError, match=f"boundaries: 2 lengths in {count} buckets of multiples of {multiple}"
    ):
        data.boundaries([4, 2], count, multiple)
