"""What all that serves has in common: its numbers are checked, and waiting has an end."""

from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import pytest

from lamina import nn
from lamina.infer import Inferer
from lamina.infer.serving import default_contexts
from lamina.runtime import Device, usable_cores
from tests.infer.test_inferer import floats, held

__all__ = ["held"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"max_batch": 0}, "max_batch must be at least 1, got 0"),
        ({"max_wait_ms": -1.0}, "max_wait_ms must be at least 0, got -1.0"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms must be at least 0, got nan"),
        ({"contexts": 0}, "contexts must be at least 1, got 0"),
        ({"queue_limit": 0}, "queue_limit must be at least 1, got 0"),
        ({"max_programs": 0}, "max_programs must be at least 1, got 0"),
        ({"when_full": "drop"}, "when_full must be 'wait' or 'raise', got 'drop'"),
    ],
)
def test_bad_arguments(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Inferer(nn.Linear(3, 2), device="cpu", **more)


def test_what_is_no_number_is_said() -> None:
    net = nn.Linear(3, 2)
    with Inferer(net, device="cpu", max_batch=2) as inferer:
        for timeout in ("1", float("nan")):
            with pytest.raises(TypeError, match=r"Inferer: timeout must be a number of seconds, got "):
                inferer(floats(0, 1, 3), timeout=timeout)  # type: ignore[arg-type]


def test_an_answer_is_waited_for_so_long(held: Any) -> None:
    with Inferer(nn.Linear(3, 2), device="cpu", max_batch=2) as inferer:
        inferer(floats(0, 1, 3))
        held.clear()
        with pytest.raises((TimeoutError, FutureTimeout), match=r"no answer within 0\.01 s"):
            inferer(floats(0, 1, 3), timeout=0.01)
        held.set()


def test_calls_at_a_time() -> None:
    gpu = Device("cuda")
    assert [default_contexts(gpu, n) for n in (1, 8)] == [8, 2]
    assert [default_contexts(Device("cpu"), n) for n in (1, 8)] == [usable_cores(), 1]
