"""What holds for every test."""

import gc
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.helpers.audio_extension  # noqa: F401  before transformers imports torchaudio
from lamina.graph.passes.verify import check_passes
from lamina.graph.run import remembered
from lamina.spec import current_policy

# JAX takes three quarters of the free memory of a GPU at its first use unless told not to; the tests beside it (those
# of other worker processes too) would run out of memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


# Warnings are errors in these tests, and in nothing else: said in pytest's own configuration, it would hold for the
# start of every plugin that happens to be installed, and end the session where one of them warns.
@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    """What a test file warns of when it is imported is an error."""
    with warnings.catch_warnings():
        if _is_ours(collector):
            warnings.simplefilter("error")
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a test warns of is an error, but for what its own marks say; workers must find the same names."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"the name of a test differs from process to process: {item.nodeid}")
        if _is_ours(item):
            item.add_marker(pytest.mark.filterwarnings("error"), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """What is collected stays to the end: it is not looked through for cycles again and again, here and in tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _is_ours(node: pytest.Item | pytest.Collector) -> bool:
    return Path(__file__).parent in node.path.parents


@pytest.fixture(scope="module", autouse=True)
def _what_stays_is_not_looked_through() -> Iterator[None]:
    """What the tests of a file leave behind stays to the end too: what is kept by text, shape or type."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    """What a test plans for a GPU is not what another one is given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembered, "LONG", math.inf)
        yield


@pytest.fixture(autouse=True)
def _passes_are_checked() -> Iterator[None]:
    """After each pass of the compiler specs are inferred again and outputs compared with those before."""
    with check_passes():
        yield


@pytest.fixture(autouse=True)
def _the_policy_stays() -> Iterator[None]:
    """A test that leaves another policy behind changes what those after it are about."""
    before = current_policy()
    yield
    assert current_policy() == before
