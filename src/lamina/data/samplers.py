"""In which order, and how often, samples are read: what `DataLoader(sampler=…)` takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lamina.ops.arguments import Checked

Array = np.ndarray[Any, Any]


class WeightedRandomSampler(Checked):
    """Draws sample i with a probability in proportion to weights[i], as torch.utils.data.WeightedRandomSampler.

    num_samples: how many an epoch has. replacement: whether a sample may come several times. What an epoch draws
    depends on the loader's seed and the epoch's number alone; `for` over the sampler itself draws anew each time.
    Raises ValueError for weights that are negative, not finite or all 0, and for more samples than there are weights
    above 0 without replacement.
    """

    def __init__(self, weights: Sequence[float] | Any, num_samples: int, replacement: bool = True) -> None:
        found = np.asarray(weights, np.float64)
        if found.ndim != 1 or not np.isfinite(found).all() or (found < 0).any() or not found.sum():
            raise ValueError(
                "WeightedRandomSampler: weights must be numbers of at least 0, one for each sample, not all 0, got "
                f"{weights!r:.80}"
            )
        if num_samples < 1 or (not replacement and num_samples > np.count_nonzero(found)):
            raise ValueError(
                f"WeightedRandomSampler: num_samples={num_samples} must be at least 1, and without replacement at "
                f"most {np.count_nonzero(found)}, of which the weight is above 0"
            )
        self.weights, self.num_samples, self.replacement = found / found.sum(), num_samples, replacement

    def order(self, rng: np.random.Generator) -> Array:
        """The indices of an epoch."""
        return rng.choice(len(self.weights), self.num_samples, self.replacement, self.weights)

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(np.random.default_rng()).tolist())
