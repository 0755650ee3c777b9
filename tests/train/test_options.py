"""How a training step treats gradients: what is refused, and when state is shared."""

from typing import Any

import pytest

from lamina.distributed import DataParallel
from lamina.train.options import Options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clip_norm": -1.0}, "train_step: clip_norm must be positive, got -1.0"),
        ({"clip_value": float("nan")}, "train_step: clip_value must be positive, got nan"),
        ({"accumulate": 1.5}, "train_step: accumulate must be an int of at least 1, got 1.5"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**given)


def test_one_rank_shares_nothing() -> None:
    options = Options(shard_optimizer=True)
    assert options.shards is None
    assert not options.keeps_errors


def test_ranks_share_what_they_were_told_to() -> None:
    compressed = DataParallel(compression="bf16")
    whole, pieces = Options(parallel=compressed), Options(parallel=compressed, shard_optimizer=True)
    assert whole.shards is None
    assert pieces.shards is not None
    assert whole.keeps_errors
    assert not Options(parallel=DataParallel()).keeps_errors
