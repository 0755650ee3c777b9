"""The compiled step of text generation: its programs, its cache, and parameters that another library may write."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import infer, nn, ops
from lamina.infer import decoding


@dataclass
class Counts:
    """A cache with tensors, and a flag that is fixed in each program."""

    sums: Any
    begun: bool = False


class Counter(nn.Module):
    """The next token is the sum of all tokens so far, times a weight, modulo 7; after the first call plus 1."""

    def __init__(self, weight: Any) -> None:
        self.weight = nn.Parameter(weight)
        self.calls = list[bool]()

    def empty_cache(self, batch: int, length: int) -> Counts:
        return Counts(lm.zeros((batch,)))

    def continued(self, input_ids: Any, cache: Counts, position: Any) -> tuple[Any, Counts]:
        self.calls.append(cache.begun)
        sums = cache.sums + ops.sum(ops.cast(input_ids, "float32"), 1)
        token = ops.remainder(sums * self.weight + float(cache.begun), 7.0)
        return -ops.abs(token[:, None, None] - np.arange(7.0, dtype=np.float32)), Counts(sums, True)


def expected(prompt: list[int], weight: int, count: int) -> list[int]:
    text = list(prompt)
    for made in range(count):
        text.append((sum(text) * weight + (made > 0)) % 7)
    return text


def test_what_a_cache_holds_beside_tensors_is_fixed_in_each_program() -> None:
    net = Counter(lm.tensor(np.float32(2)))
    for prompt in ([3, 1], [5, 5]):
        assert infer.generate(net, [prompt], 5)[0].tolist() == expected(prompt, 2, 5)
    assert net.calls == [False, True]  # traced once each


def test_parameters_of_another_library_are_read_for_each_text() -> None:
    memory = np.array(2, np.float32)
    net = Counter(lm.from_dlpack(memory))
    assert net.weight.buffer.borrowed
    assert infer.generate(net, [[3, 1]], 5)[0].tolist() == expected([3, 1], 2, 5)
    memory[...] = 4
    assert infer.generate(net, [[3, 1]], 5)[0].tolist() == expected([3, 1], 4, 5)
    assert len(net.calls) == 2


def test_few_caches_are_kept() -> None:
    net = Counter(lm.tensor(np.float32(2)))
    for count in range(2, 2 + 2 * decoding.MOST_STEPS):
        infer.generate(net, [[3, 1]], count)
    kept = decoding._kept[net].idle
    assert [length for _, length, _ in kept] == [
        2 + n for n in range(decoding.MOST_STEPS + 2, 2 + 2 * decoding.MOST_STEPS)
    ]


def test_a_mask_that_a_network_does_not_take_is_refused() -> None:
    net = Counter(lm.tensor(np.float32(2)))
    with pytest.raises(
        TypeError, match=r"Counter\.continued takes no attention_mask: generate for texts of one length"
    ):
        infer.generate(net, [[3, 1]], 2, attention_mask=[[0, 1]])


def test_a_cache_that_changes_its_shape_is_refused() -> None:
    class Grows(Counter):
        def continued(self, input_ids: Any, cache: Counts, position: Any) -> tuple[Any, Counts]:
            logits, after = super().continued(input_ids, cache, position)
            return logits, Counts(ops.concat([after.sums, after.sums]))

    with pytest.raises(TypeError, match="must return a cache like the one that it takes"):
        infer.generate(Grows(lm.tensor(np.float32(2))), [[3, 1]], 2)
