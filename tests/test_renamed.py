"""An old keyword fails and says the new one; nothing else changes."""

import inspect
from typing import Any

import numpy as np
import pytest

from lamina import data, nn, vmap
from lamina._renamed import renamed
from lamina.optim import schedule


@renamed(old="new")
def example(new: int = 1, other: int = 2) -> int:
    """What it does."""
    return new + other


def test_everything_else_stays() -> None:
    assert example(3, other=4) == example(new=3, other=4) == 7
    assert inspect.getdoc(example) == "What it does."
    assert list(inspect.signature(example).parameters) == ["new", "other"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        example(nothing=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: example(old=1), "example() got an unexpected keyword argument 'old'; it is 'new' now"),
        (
            lambda: nn.LeNet(classes=3),
            "LeNet() got an unexpected keyword argument 'classes'; it is 'num_classes'",
        ),
        (lambda: nn.AlexNet(classes=3), "AlexNet() got an unexpected keyword argument 'classes'"),
        (lambda: data.arrays(np.zeros(3), batch=2), "arrays() got an unexpected keyword argument 'batch'"),
        (lambda: data.mnist(".", batch=2), "'batch'; it is 'batch_size' now"),
        (lambda: data.Batches(print, 3, batch=2), "Batches() got an unexpected keyword argument 'batch'"),
        (
            lambda: vmap(abs, in_axes=1),
            "vmap() got an unexpected keyword argument 'in_axes'; it is 'in_dims' now",
        ),
        (lambda: schedule.cosine(0.1, steps=3), "cosine() got an unexpected keyword argument 'steps'"),
        (lambda: schedule.one_cycle(peak=1.0), "one_cycle() got an unexpected keyword argument 'peak'"),
    ],
)
def test_an_old_keyword_is_named_with_the_new_one(call: Any, text: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert text in str(error.value)
