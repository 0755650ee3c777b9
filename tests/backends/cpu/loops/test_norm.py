"""Group, layer and RMS norm and their gradients."""

import pytest

from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.norm import rows_of
from lamina.ops.core import REGISTRY
from lamina.ops.primitives.norm import GroupNorm, LayerNorm
from lamina.spec import Spec, float32
from tests.helpers.loops import check_samples, needs_llvm

pytestmark = needs_llvm
NAMES = [f"{kind}_norm{part}" for kind in ("group", "layer", "rms") for part in ("", "_grad")]


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


def test_rows_are_what_shares_statistics() -> None:
    x = Spec((4, 6, 5, 7), float32)
    assert rows_of(GroupNorm(3, 1e-5).frame(x)) == (4, 3, 2, 35)
    assert rows_of(LayerNorm(2, 1e-5).frame(x)) == (24, 1, 35, 1)
