"""What ``advise usage``, ``outcomes`` and ``cost`` have in common: the window, its work, and who says what counts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli.ledger import FAILED, USAGE, Address, fail, reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from advisor.outcomes import Judge
    from advisor.success import Success
    from advisor.usage import Usage, Window
    from advisor.usage_services import Answers
    from scheduler.ledger_entry import Entry
    from scheduler.schema_file import BadFile

__all__ = ["FAILED", "USAGE", "Address", "fail"]

PARTIAL = 3
"""Exit code: a source did not answer, or not for all of the window; what is known is printed."""

T = TypeVar("T")


class Output(StrEnum):
    """Ways to print figures."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Export = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", "--export", metavar="FILE", help="A copy of a ledger instead: punctual ledger export -o json."
    ),
]
Since = Annotated[str, typer.Option(metavar="DURATION", help="How far to look back: 7d, 12h.")]
Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="Up to when (RFC 3339), instead of now.", show_default="now")
]
Queue = Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only of this ClusterQueue.")]
Goals = Annotated[
    Path | None,
    typer.Option("--success", envvar="PUNCTUAL_SUCCESS", metavar="FILE", help="What counts: success.yaml."),
]
Shares = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu-share",
        metavar="RESOURCE=FRACTION",
        help="What one of a resource is of a GPU: nvidia.com/gpu.shared=1/4. MIG slices are known.",
    ),
]
PrometheusUrl = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        envvar="PUNCTUAL_PROMETHEUS",
        metavar="URL",
        help="A Prometheus that scrapes the DCGM exporter: how busy GPUs were.",
    ),
]
Token = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="Bearer token for Prometheus and OpenCost, where they want one."),
]
Patience = Annotated[
    str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for an answer of theirs.")
]
Format = Annotated[Output, typer.Option("--output", "-o", help="How to print it; json has all of it.")]


@dataclass
class Sources:
    """Where figures come from, and which sources are missing or did not answer."""

    told: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, place: str, *, ok: bool = True, why: str = "") -> None:
        """A source, and whether it answered (for all of the window)."""
        self.told[name] = {"place": place, "complete": ok, **({"why": why} if why else {})}

    def missing(self, name: str, how: str) -> None:
        """One that nobody named."""
        self.told[name] = {"place": None, "complete": False, "why": how}

    @property
    def partial(self) -> bool:
        """Whether one that was named did not answer, or not for all of the window."""
        return any(each["place"] is not None and not each["complete"] for each in self.told.values())

    def lines(self) -> Iterator[str]:
        """In words."""
        for name, each in self.told.items():
            if each["place"] is None:
                yield f"no {name}: {each['why']}"
            elif not each["complete"]:
                why = str(each.get("why") or "not for all of the window")
                yield why if each["place"] in why else f"{name} {each['place']}: {why}"


@dataclass(frozen=True)
class Seen:
    """The work of a window."""

    window: Window
    now: int
    entries: list[Entry]
    """Of the queue that was asked for."""
    everybody: list[Entry]
    """Of all queues."""
    hide: Callable[[str], str] | None
    """How an anonymous ledger has names; None for others."""
    remarks: tuple[str, ...] = ()


def look(ledger: str | None, file: Path | None, since: str, until: str | None, queue: str | None) -> Seen:
    """The window, and all work that was there in it, with runs."""
    now = time.time_ns() // 1_000_000
    window = window_of(since, until, now)
    if file is not None:
        from advisor.usage_export import BadExport, read_export

        try:
            entries, hide = read_export(file), None
        except BadExport as error:
            raise fail(str(error), FAILED) from None
        except OSError as error:
            raise fail(f"{file}: {error.strerror}", FAILED) from None
    else:
        with reading(ledger) as book:
            found = book.recent(since=window.start, details=True)
            entries = list(counted(found, "workloads"))
            hide = book.hide if book.anonymous else None
    kept = [
        entry
        for entry in entries
        if entry.submitted < window.end and (entry.outcome is None or (entry.ended or 0) >= window.start)
    ]
    wanted = queue if queue is None or hide is None else hide(queue)
    chosen = [entry for entry in kept if wanted is None or entry.family.cluster_queue == wanted]
    told = []
    if not chosen:
        told.append(_nothing(file, entries, kept, queue, wanted))
    elif file is not None and until is None and any(entry.runs and entry.runs[-1].ended is None for entry in chosen):
        told.append(
            f"{file} says nothing about the time since it was made: what ran then is counted until now (--until)"
        )
    return Seen(window, min(now, window.end), chosen, kept, hide, tuple(told))


def _nothing(
    file: Path | None, entries: Sequence[Entry], kept: Sequence[Entry], queue: str | None, name: str | None
) -> str:
    """Why there is no work in a window, in words."""
    from scheduler.annotations import format_instant

    place = "the ledger" if file is None else str(file)
    if kept:
        queues = sorted({entry.family.cluster_queue for entry in kept if entry.family.cluster_queue})
        others = (
            f"; there is work of {', '.join(queues)}" if queue == name else ""
        )  # a name that is hidden tells nothing
        return f"{place} has no work of ClusterQueue {queue} in that time{others}"
    if not entries:
        return f"{place} has no work {'at all' if file else 'in that time'}"
    last = max(max(entry.submitted, entry.ended or 0) for entry in entries)
    return f"{place} has no work in that time; the newest is of {format_instant(last // 1000 * 1000)} (--until)"


def window_of(since: str, until: str | None, now: int) -> Window:
    """From ``--since`` before ``--until`` to ``--until``."""
    from advisor.usage import Window
    from scheduler.annotations import parse_estimate, parse_instant

    try:
        end = now if until is None else parse_instant(until)
    except ValueError as error:
        raise fail(f"--until: {error}", USAGE) from None
    try:
        length = parse_estimate(since)
    except ValueError as error:
        raise fail(f"--since: {error}", USAGE) from None
    if end - length < 0:
        raise fail(f"--since: {since} before {until or 'now'} is before 1970", USAGE)
    if end - length >= now:
        raise fail(f"--until: {since} before {until} is still to come", USAGE)
    return Window(end - length, end)


@dataclass(frozen=True)
class Servers:
    """How to reach Prometheus and OpenCost."""

    prometheus: str | None
    token: str
    timeout: float
    """Seconds."""


def servers_of(prometheus: str | None, token_file: Path | None, timeout: str) -> Servers:
    """What the options say."""
    from scheduler.annotations import parse_estimate

    try:
        seconds = parse_estimate(timeout) / 1000
    except ValueError as error:
        raise fail(f"--timeout: {error}", USAGE) from None
    return Servers(prometheus, text_of(token_file).strip() if token_file else "", seconds)


def measure_busy(usage: Usage, seen: Seen, servers: Servers, sources: Sources) -> None:
    """Ask Prometheus, if there is one, how busy GPUs were."""
    from advisor.prometheus import Prometheus
    from advisor.usage_busy import measure
    from advisor.usage_pods import Pods

    if servers.prometheus is None:
        sources.missing("Prometheus", "how busy GPUs were is not known (--prometheus URL)")
        return
    try:
        prometheus = Prometheus(servers.prometheus, servers.token, servers.timeout)
    except ValueError as error:
        raise fail(f"--prometheus: {error}", USAGE) from None
    with waiting("asking Prometheus") as told:
        wrong = measure(usage, Pods(seen.everybody, seen.now, seen.hide), prometheus, told)
    sources.add("Prometheus", prometheus.url, ok=not wrong, why=wrong)


def judge_of(success: Success | None, seen: Seen, servers: Servers, sources: Sources) -> tuple[Judge, Answers | None]:
    """Who says what counts; of services, hour by hour, if there is a Prometheus."""
    from advisor.outcomes import Judge
    from advisor.prometheus import Prometheus
    from advisor.usage_services import Answers, answers

    if success is None or not success.services:
        return Judge(success), None
    if servers.prometheus is None:
        return Judge(success), None
    if seen.hide is not None:
        told = Answers(remarks=["services are not judged: the ledger is anonymous, Prometheus has names"])
        return Judge(success), told
    with waiting("asking Prometheus") as progress:
        prometheus = Prometheus(servers.prometheus, servers.token, servers.timeout)
        told = answers(success, seen.entries, seen.window, prometheus, progress)
    if told.wrong:
        sources.add("services", prometheus.url, ok=False, why=told.wrong)
    return Judge(success, told.good_hours), told


def success_of(file: Path | None) -> Success | None:
    """What counts, if somebody says it."""
    from advisor.success import BadSuccess, read_success

    if file is None:
        return None
    try:
        return read_success(text_of(file))
    except BadSuccess as error:
        raise bad_file(file, error) from None


def text_of(file: Path) -> str:
    """The text of a file."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise fail(f"{file}: {error.strerror}", FAILED) from None
    except UnicodeDecodeError:
        raise fail(f"{file} is no text in UTF-8", FAILED) from None


def bad_file(file: Path, error: BadFile) -> typer.Exit:
    """Say all that is wrong with a file; the exit to raise."""
    for mistake in error.mistakes:
        place = f"{file}:{mistake.line}" if mistake.line else str(file)
        typer.echo(f"error: {place}: {f'{mistake.path}: ' if mistake.path else ''}{mistake.message}", err=True)
    return typer.Exit(FAILED)


def shares_of(texts: Sequence[str] | None) -> Mapping[str, Fraction]:
    """What ``--gpu-share`` says."""
    from advisor.usage_gpus import parse_shares

    try:
        return parse_shares(texts or ())
    except ValueError as error:
        raise fail(f"--gpu-share: {error}", USAGE) from None


def counted(items: Iterable[T], what: str) -> Iterator[T]:
    """Show on a terminal how far it has come."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # there it would leave an empty line
        yield from items
        return
    with Progress(
        SpinnerColumn(), TextColumn(f"{{task.completed}} {what}"), console=console, transient=True
    ) as progress:
        yield from progress.track(items, total=None)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is waited for; the text may change."""
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ...") as status:
        yield lambda text: status.update(f"{text} ...")


def span(window: Window) -> str:
    """A window, in words."""
    from scheduler.annotations import format_instant

    return f"{format_instant(window.start // 1000 * 1000)} to {format_instant(window.end // 1000 * 1000)}"


def span_object(window: Window) -> dict[str, str]:
    """A window, for machines."""
    from scheduler.annotations import format_instant

    return {"start": format_instant(window.start), "end": format_instant(window.end)}
