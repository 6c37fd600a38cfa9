"""How a load test comes along, on the standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from advisor.serving_trial import Trial


class Progress:
    """A line for each trial; on a terminal also how far the one is that runs."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=self._console, transient=True,
            disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None
        self._why = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begins(self, number: int, rate: float, seconds: float, why: str) -> None:
        """A trial begins."""
        self._why = why
        if not self._console.is_terminal:
            self._console.print(f"trial {number}: {rate:g}/s for {seconds:.0f} s ({why}) ...")
        self._task = self._bar.add_task(f"trial {number}: {rate:g}/s ({why})", total=1.0)

    def share(self, done: float) -> None:
        """So much of it is done."""
        if self._task is not None:
            self._bar.update(self._task, completed=done)

    def ended(self, trial: Trial) -> None:
        """It has ended."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        told = f": {trial.reasons[0]}" if trial.reasons else f", {trial.goodput:.1f} good answers a second"
        self._console.print(f"trial {trial.number}: {trial.rate:g}/s {trial.verdict}{told}")

    def remark(self, text: str) -> None:
        """Something worth knowing."""
        self._console.print(f"remark: {text}")
