"""What holds for tests of training."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """Python's own handling of Ctrl-C, also where the tests run in the background, with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
