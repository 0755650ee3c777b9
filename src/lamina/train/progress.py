"""Progress display of a training run: a bar on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Reporter:
    """Shows loss, accuracy, samples per second and the time left. Use as a context manager.

    total: steps of the whole run, None if unknown. done: steps of an earlier run.
    bar: None draws one on terminals only.
    """

    def __init__(
        self, total: int | None, done: int = 0, console: Console | None = None, bar: bool | None = None
    ) -> None:
        self.console = console or Console(highlight=False)
        shown = self.console.is_terminal if bar is None else bar
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not shown,
        )
        self._task = self._progress.add_task("training", total=total, completed=done, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start_epoch(self, number: int, count: int) -> None:
        """Name the epoch that begins (counted from 0) of `count`."""
        self._progress.update(self._task, description=f"epoch {number + 1}/{count}")

    def advance(self, loss: float, accuracy: float | None, rate: float) -> None:
        """One more step is done; figures of the epoch so far. rate: samples per second."""
        hits = "" if accuracy is None else f"accuracy {100 * accuracy:5.1f} %  "
        self._progress.update(self._task, advance=1, figures=f"loss {loss:.4f}  {hits}{rate:.0f} samples/s")

    def line(self, text: str) -> None:
        """A line that stays: above the bar, or plain."""
        self.console.print(text, soft_wrap=True)
