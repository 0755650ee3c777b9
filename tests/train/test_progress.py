"""What a run shows on a terminal and elsewhere, with a bar and without one."""

import io

import pytest
from rich.console import Console

from lamina.train.progress import Reporter


def shown(*, terminal: bool, bar: bool | None, total: int | None = 10, done: int = 0) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None, highlight=False)
    with Reporter(total, done, console, bar) as reporter:
        reporter.start_epoch(1, 3)
        reporter.advance(0.25, None, 12.6)
        reporter.advance(0.125, 0.5, 99.5)
        reporter.line("a [line] that stays")
    return text.getvalue()


@pytest.mark.parametrize(
    ("terminal", "bar", "drawn"),
    [
        (True, None, True),
        (True, True, True),
        (True, False, False),
        (False, None, False),
        (False, True, True),
        (False, False, False),
    ],
)
def test_a_bar_is_drawn_on_terminals_or_as_asked(terminal: bool, bar: bool | None, drawn: bool) -> None:
    text = shown(terminal=terminal, bar=bar)
    assert ("epoch 2/3" in text) == drawn
    assert "that stays\n" in text


def test_figures_of_the_last_step() -> None:
    text = shown(terminal=True, bar=True, done=3)
    for part in ("loss 0.1250  accuracy  50.0 %  100 samples/s", "5/10", "50%", "left"):
        assert part in text
    assert "2/?" in shown(terminal=True, bar=True, total=None)
