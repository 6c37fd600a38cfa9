"""``punctual demo``: the same jobs with plain Kueue and with Punctual, on a simulated cluster."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.planner_client import PlannerClient
    from simulator.compare import Figures
    from simulator.scenario import Scenario
    from simulator.timeline import Timeline
    from solver.api import planner_pb2 as pb

EFFORT = 2
"""The planner's work limit for one plan: a night has more than a hundred of them."""

GUARD_MS = 10_000
"""Wall-clock limit of one plan, far from what it takes: time does not decide, so that every run comes out the same."""


class Output(StrEnum):
    """Ways to print the outcome."""

    TEXT = "text"
    JSON = "json"


def demo(
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print the outcome.")] = Output.TEXT,
    seed: Annotated[int, typer.Option(help="Another night: when its jobs come, and how long they run.")] = 1,
    effort: Annotated[int, typer.Option(min=1, help="Work that goes into each plan; more takes longer.")] = EFFORT,
) -> None:
    """Run the same jobs twice, with plain Kueue and with Punctual, and compare.

    Only the cluster is simulated (its time, too: a night passes in seconds). The
    solver is a process of its own that is asked over gRPC, and the control loop
    is the one that "punctual controller" runs. No figure is prepared, yet the
    same seed and effort give the same figures. Under a minute.
    """
    from rich.console import Console

    from scheduler.planner_client import PlannerClient, PlannerError
    from simulator.scenarios import four_jobs, fuller_morning
    from solver.sidecar import SidecarFailed, sidecar

    console, told = Console(highlight=False), Console(stderr=True, highlight=False)
    began = time.monotonic()
    outcomes = []
    try:
        with _progress(told) as progress:
            progress("starting the solver; the first time it compiles its kernels, which takes a while", 0, 0)
            # The control loop's own, meanwhile: the solver is another process.
            loop_kernels = threading.Thread(target=_warm_up, daemon=True)
            loop_kernels.start()
            with sidecar() as address:
                loop_kernels.join()
                client = PlannerClient(address)
                outcomes = [
                    _run(scenario, client, effort, progress) for scenario in (four_jobs(), fuller_morning(seed))
                ]
                client.close()
    except (SidecarFailed, PlannerError) as error:
        told.print(f"punctual: {error}", markup=False)
        raise typer.Exit(1) from None
    seconds = time.monotonic() - began
    if output is Output.JSON:
        data = {"scenarios": [outcome.to_json() for outcome in outcomes], "seconds": round(seconds, 1)}
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for number, outcome in enumerate(outcomes, 1):
        _tell(console, number, outcome)
    punctual = "punctual" if shutil.which("punctual") else sys.argv[0]  # make runs it from .venv/bin
    console.print(
        f"Took {seconds:.0f} s. Now with jobs of your own: {punctual} plan -f examples/01-four-jobs",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def _warm_up() -> None:
    from scheduler.warmup import warm_up

    warm_up()


Progress = Callable[[str, int, int], None]
"""Told what is going on, and how much of how much is done (0 of 0: nobody knows)."""


@dataclass(frozen=True)
class Outcome:
    """One scenario, run twice."""

    scenario: Scenario
    before: Timeline
    after: Timeline
    plans: int
    """How many the solver made."""
    slowest: float
    """Seconds of the call that took longest."""

    def figures(self) -> tuple[Figures, Figures]:
        """Of plain Kueue, of Punctual."""
        from simulator.compare import figures

        return figures(self.before, self.scenario.gpus), figures(self.after, self.scenario.gpus)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        from simulator.compare import in_words

        plain, punctual = self.figures()
        return {
            "name": self.scenario.name,
            "gpus": self.scenario.gpus,
            "jobs": len(self.scenario.jobs),
            "deadlines": self.deadlines(),
            "plain": plain.to_json(),
            "punctual": punctual.to_json(),
            "plans": self.plans,
            "slowestPlanSeconds": round(self.slowest, 3),
            "changes": in_words(self.before, self.after),
        }

    def deadlines(self) -> int:
        """How many jobs have one."""
        return sum(record.due is not None for record in self.before.records.values())


def _run(scenario: Scenario, client: PlannerClient, effort: int, progress: Progress) -> Outcome:
    from scheduler.settings import Settings
    from simulator.scenario import run_plain, run_planned

    progress(f"{scenario.name}: plain Kueue", 0, 0)
    before = run_plain(scenario)
    calls: list[float] = []

    def call(request: pb.PlanRequest) -> pb.PlanResponse:
        began = time.monotonic()
        response = client.plan(request)
        calls.append(time.monotonic() - began)
        return response

    after = run_planned(
        scenario,
        call,
        Settings(budget_ms=GUARD_MS, work_limit=effort),
        lambda done, of: progress(f"{scenario.name}: Punctual; {len(calls)} plans", done, of),
    )
    return Outcome(scenario, before, after, len(calls), max(calls))


def _tell(console: Console, number: int, outcome: Outcome) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from simulator.compare import in_words

    scenario, (plain, punctual) = outcome.scenario, outcome.figures()
    title = f"{number}. {scenario.name[0].upper()}{scenario.name[1:]}, on {scenario.gpus} GPUs"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2))
    table.add_column("")
    for heading in ("plain Kueue", "Punctual"):
        table.add_column(heading, justify="right")
    rows: list[tuple[str, Callable[[Figures], str]]] = [
        (f"deadlines missed, of {outcome.deadlines()}", lambda figures: str(len(figures.late))),
        ("hours late, all together", lambda figures: f"{figures.hours_late:.1f}"),
        ("most GPUs reserved at once", lambda figures: str(figures.peak)),
        ("GPU-hours idle while jobs waited", lambda figures: f"{figures.idle:.1f}"),
        ("hours until all is done", lambda figures: f"{figures.makespan:.1f}"),
    ]
    if plain.wait is not None:
        rows.append(("median wait without a deadline, hours", lambda figures: f"{figures.wait or 0:.1f}"))
    for label, value in rows:
        table.add_row(label, Text(value(plain)), Text(value(punctual), style="bold"))
    console.print(Text(title, style="bold"), table, *in_words(outcome.before, outcome.after), "", sep="\n")


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    """A bar on a terminal, a line for each new thing elsewhere."""
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    if console.is_terminal:
        with Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as bar:
            task = bar.add_task("", total=None)
            yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of or None)
        return
    said: set[str] = set()

    def say(what: str, done: int, of: int) -> None:
        subject = what.split(";")[0]
        if subject not in said:
            said.add(subject)
            console.print(f"{subject} ...", markup=False, soft_wrap=True)

    yield say
