"""What a program tells those who watch it."""

import pytest

from lamina import distributed
from lamina.runtime.ranks.progress import progress


def test_patience_is_told() -> None:
    with distributed.patience(100.0, "evaluating"):
        assert progress.facts()["doing"] == "evaluating"
    assert progress.facts()["doing"] == ""
    with pytest.raises(ValueError, match="seconds must be above 0, got 0"):
        distributed.patience(0, "evaluating")
