"""Fixtures of the imperative API's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.legacy.gpu import Gpu


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    """The first GPU, with a handle of its own."""
    made = Gpu()
    yield made
    made.handle.close()
