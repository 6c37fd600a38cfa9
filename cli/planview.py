"""How a plan looks in a terminal: a table in the order of admission, and a Gantt chart in text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from scheduler.forecast import Forecast, Row
from solver.explain import quantity

NAME = 26
"""Columns for a name in the chart; longer ones lose their beginning."""

SHORTEST = 12
"""Columns that a name keeps in the table. A narrower terminal breaks the lines: columns that vanish would tell less."""

FAR = 253_402_128_000_000
"""9999-12-30, about the last day that can be written; milliseconds since the Unix epoch."""


class Clock:
    """Writes instants as people read them: ``06:10``, with the day when it is not today, with seconds when it is near.

    Parameters
    ----------
    now
        What "today" and "near" are told from.
    zone
        Time zone; None: the machine's.
    """

    def __init__(self, now: int, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._today = self.local(now)

    def local(self, instant: int) -> datetime:
        """The instant as a date and time of the zone."""
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(instant, FAR))).astimezone(self._zone)

    def __call__(self, instant: int) -> str:
        time = self.local(instant)
        near = abs((time.date() - self._today.date()).days)
        seconds = ":%S" if time.second and abs(time - self._today) < timedelta(minutes=5) else ""
        day = "" if near == 0 else "%a " if near < 6 else "%Y-%m-%d "
        return time.strftime(f"{day}%H:%M{seconds}")

    def full(self, instant: int) -> str:
        """Date, time and zone."""
        return self.local(instant).strftime("%a %Y-%m-%d %H:%M:%S %Z")


def show(forecast: Forecast, console: Console, clock: Clock, wide: bool) -> None:
    """Print a forecast: the table, the chart, and what they come to."""
    if not forecast.rows:
        console.print("Nothing to plan: no job waits or runs.")
        return
    heading = Text(f"Plan of {clock.full(forecast.now)}", style="bold")
    if wide:
        table = _table(forecast, clock, wide=True)
        # As wide as it is, like kubectl's: a terminal breaks the lines, a pipe keeps them whole.
        console.width = max(console.width, console.measure(table, options=console.options.update_width(10_000)).maximum)
        console.print(Group(heading, Text(), table))
    else:
        table = _table(forecast, clock, wide=False)
        whole = console.measure(table, options=console.options.update_width(10_000)).maximum
        longest = max(len(row.name) for row in forecast.rows)
        console.width = max(console.width, whole - max(0, longest - SHORTEST))
        console.print(Group(heading, Text(), table, Text()))
        console.print(Group(*_chart(forecast, clock, console)))
    console.print(Group(Text(), *_summary(forecast, wide)))


def length(milliseconds: int) -> str:
    """A length of time in at most two units: ``2h05m``, ``45s``, ``-1d03h``."""
    seconds = round(abs(milliseconds) / 1000)
    sign = "-" if milliseconds < 0 and seconds else ""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d{hours:02}h"
    if hours:
        return f"{sign}{hours}h{minutes:02}m"
    return (
        f"{sign}{minutes}m{seconds:02}s"
        if minutes and seconds
        else f"{sign}{minutes}m"
        if minutes
        else f"{sign}{seconds}s"
    )


def _table(forecast: Forecast, clock: Clock, *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("JOB", overflow="ellipsis", no_wrap=wide)  # where there is no room, names are cut and nothing else
    if wide:
        for title in ("QUEUE", "REQUEST", "FLAVOR"):
            table.add_column(title, no_wrap=True)
    for title in ("START", "FINISH", "DEADLINE", "SLACK"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    if wide:
        table.add_column("WHY", no_wrap=not wide)
    rank = 0
    for row in forecast.rows:
        planned = not row.running and row.start is not None
        rank += planned
        cells = [str(rank) if planned else "", row.name]
        if wide:
            request = ", ".join(f"{quantity(name, amount)} {name}" for name, amount in row.amounts.items())
            cells += [row.item.queue, request, ", ".join(sorted(set(row.flavors.values())))]
        cells += [
            "now" if planned and row.start == forecast.now else "–" if row.start is None else clock(row.start),
            "–" if row.finish is None else clock(row.finish),
            "–" if row.item.deadline is None else clock(row.item.deadline),
            "–" if row.slack is None else length(row.slack),
        ]
        word, style = _state(row)
        texts: list[RenderableType] = [Text(cell) for cell in cells]
        texts.append(Text(word, style=style))
        if wide:
            texts.append(Text(row.reason))
        table.add_row(*texts)
    return table


def _state(row: Row) -> tuple[str, str]:
    """One word about a row, and its colour."""
    if row.start is None and not row.running:
        return "not planned", "red"
    if row.on_time is False:
        return "LATE", "bold red"
    running = "running" if row.running else ""
    if row.on_time is None:
        return running or "best effort", "dim"
    return (running or "on time"), "green"


def _why(row: Row) -> str:
    """The reason; of what runs already also how late it will be, which no planner decides any more."""
    return f"late by {length(-row.slack)}: {row.reason}" if row.running and row.slack is not None else row.reason


def _chart(forecast: Forecast, clock: Clock, console: Console) -> list[Text]:
    """Bars from start to finish, one line a job; a mark where its deadline is."""
    utf8 = (console.encoding or "").lower().startswith("utf")
    bar, mark, edge = ("█", "│", "─") if utf8 else ("#", "|", "-")
    rows = [row for row in forecast.rows if row.finish is not None]
    if not rows:
        return []
    width = max(20, min(console.width, 160) - NAME - 2)
    begin, end = forecast.now, max(row.finish or 0 for row in rows)
    scale = max(1, end - begin) / (width - 1)

    def column(instant: int) -> int:
        return max(0, min(width - 1, round((instant - begin) / scale)))

    axis = [edge] * width
    labels = [" "] * width
    ticks = [(instant, clock.local(instant)) for instant in _ticks(begin, end, clock, width)]
    form = "%H:%M:%S" if any(local.second for _, local in ticks) else "%H:%M"
    for instant, local in ticks:
        text = local.strftime(form)
        at = column(instant)
        if at + len(text) <= width:
            axis[at] = mark
            labels[at : at + len(text)] = text
    lines = [Text(" " * NAME + "  " + "".join(labels).rstrip()), Text(" " * NAME + "  " + "".join(axis))]
    for row in rows:
        name = row.name if len(row.name) <= NAME else "…" + row.name[1 - NAME :] if utf8 else row.name[-NAME:]
        cells = [" "] * width
        first, last = column(max(begin, row.start or begin)), column(row.finish or begin)
        cells[first : max(last, first + 1)] = bar * max(last - first, 1)
        style = _state(row)[1] or "green"
        line = Text(f"{name:<{NAME}}  ")
        deadline = row.item.deadline
        due = column(deadline) if deadline is not None and begin <= deadline <= end else None
        for at, cell in enumerate(cells):
            if at == due:
                line.append(mark, style="yellow")
            else:
                line.append(cell, style=style)
        line.rstrip()
        lines.append(line)
    return lines


_STEPS = [timedelta(seconds=s) for s in (1, 5, 15, 30, 60, 300, 900, 1800)] + [
    timedelta(hours=h) for h in (1, 2, 3, 6, 12, 24, 48, 168, 336, 720, 2160, 8760)
]


def _ticks(begin: int, end: int, clock: Clock, width: int) -> list[int]:
    """Round instants of the zone between begin and end, so that their labels have room."""
    most = max(1, width // 9)
    step = next((s for s in _STEPS if (end - begin) / 1000 / s.total_seconds() <= most), _STEPS[-1])
    local = clock.local(begin)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    tick = midnight + step * -((midnight - local) // step)
    ticks = []
    while (instant := round(tick.timestamp() * 1000)) <= end:
        ticks.append(instant)
        tick += step
    return ticks


def _summary(forecast: Forecast, wide: bool) -> list[Text]:
    due = [row for row in forecast.rows if row.item.deadline is not None]
    late = forecast.late()
    lines = []
    if due:
        text = f"{len(due) - len(late)} of {len(due)} deadlines will be met."
        lines.append(Text(text, style="bold red" if late else "bold green"))
    if not wide:
        told = [row for row in forecast.rows if row.on_time is False or (row.start is None and not row.running)]
        lines += [Text(f"{row.name}: {_why(row)}") for row in told]
    peaks = [
        f"{quantity(resource, amount)} {resource} ({flavor})"
        for flavor, used in forecast.peak.items()
        for resource, amount in used.items()
    ]
    lines.append(Text(f"Peak: {', '.join(peaks) or 'nothing'}"))
    if forecast.order:
        best = (
            "no plan makes less late, by weight"
            if forecast.gap == 0
            else f"a plan with up to {forecast.gap:.1%} less weight late may exist"
        )
        lines.append(Text(f"Planned by {forecast.engine}: {best}.", style="dim"))
    return lines
