"""What a search for an RNN's algorithm lists, and in which order; the search itself is in test_gpu_rnn.py."""

from contextlib import nullcontext
from typing import Any

import pytest

from lamina.cudnn.legacy import rnn_search
from lamina.cudnn.legacy.rnn_search import RNNPerformance

#: Milliseconds and whether two runs agreed; None: it does not run.
FOUND = {
    "standard": (3.0, True),
    "persist_static": (1.0, False),
    "persist_dynamic": None,
    "persist_static_small_h": (2.0, True),
}


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        ({}, ["persist_static", "persist_static_small_h", "standard", "persist_dynamic"]),
        ({"deterministic": True}, ["persist_static_small_h", "standard", "persist_dynamic"]),
        ({"algorithms": ("standard", "persist_static")}, ["persist_static", "standard"]),
    ],
)
def test_the_fastest_comes_first_and_what_does_not_run_last(
    options: dict[str, Any], listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that run, but for those whose runs differed where that is asked for."""
    asked: list[tuple[Any, ...]] = []

    def tried(handle: Any, stream: Any, rnn: Any, kind: Any, x: Any, *rest: Any) -> RNNPerformance:
        asked.append(rest)
        found = FOUND[kind]
        time, same = found or (float("inf"), False)
        reason = "" if found else "refused"
        return RNNPerformance(kind, reason, time, time, 0.0, 0.0, None, same, None)  # type: ignore[arg-type]

    monkeypatch.setattr(rnn_search, "_tried", tried)
    monkeypatch.setattr(rnn_search, "_runtime_stream", nullcontext)
    monkeypatch.setattr(rnn_search, "flag", lambda kind, name: name)
    nothing: Any = None
    found = rnn_search.search_rnn(nothing, nothing, nothing, **options)
    assert [one.algorithm for one in found] == listed
    assert set(asked) == {(True, None, 5)}  # training, without a limit, five times
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        rnn_search.search_rnn(nothing, nothing, nothing, repeats=0)
