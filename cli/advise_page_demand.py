"""What ``punctual advise`` knows of services: what was measured of them, and what is asked of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.advise_source import Seen, Servers, Sources, fail, text_of, waiting
from cli.ledger import USAGE
from cli.source import BAD_INPUT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from advisor.advise_demand import Demand, Measured
    from advisor.success import Success
    from advisor.usage import Window


@dataclass(frozen=True)
class Rate:
    """What ``--demand`` says of a service; None where it does not."""

    rate: float | None
    servers: int | None


@dataclass(frozen=True)
class Services:
    """What the options say about services."""

    measured: Sequence[Measured]
    rates: dict[str, Rate]
    """By service; empty: of the only one."""
    queries: dict[str, str]


def services_of(files: Sequence[Path], demands: Sequence[str], queries: Sequence[str]) -> Services:
    """What the options say."""
    from advisor.advise_demand import BadReport, read_report
    from advisor.advise_requests import check_query

    measured = []
    for file in files:
        try:
            measured.append(read_report(text_of(file)))
        except BadReport as error:
            raise fail(f"{file}: {error}", BAD_INPUT) from None
    names = [each.service for each in measured]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise fail(f"--serving: {twice[0]} was measured in two files; say which one counts", USAGE)
    rates = dict(_rate(text) for text in demands)
    asked = {}
    for text in queries:
        name, _, query = text.partition("=")
        name, query = (name, query) if name in names else ("", text)
        if wrong := check_query(query):
            raise fail(f"--demand-query: {wrong}", USAGE)
        asked[name] = query
    for option, said, example in (("--demand", rates, "chat=40"), ("--demand-query", asked, "chat=sum(rate(…[5m]))")):
        if said and not measured:
            raise fail(
                f"{option}: say what the service can take: --serving FILE (punctual advise serving -o json)", USAGE
            )
        if "" in said and len(measured) > 1:
            raise fail(f"{option}: there are several services; say which: {example}", USAGE)
        if wrong := next(iter(sorted(said.keys() - {*names, ""})), ""):
            raise fail(f"{option}: {wrong} was not measured; there are: {', '.join(sorted(names))}", USAGE)
    return Services(measured, rates, asked)


def _rate(text: str) -> tuple[str, Rate]:
    name, _, number = text.rpartition("=")
    rate, _, servers = number.partition("x")
    try:
        found = Rate(float(rate) if rate else None, int(servers) if servers else None)
    except ValueError:
        found = Rate(-1.0, None)
    if found == Rate(None, None) or not 0 <= (found.rate or 0.0) < float("inf") or found.servers == 0:
        raise fail(
            f"--demand: {text} is no rate; write 40, chat=40, chat=40x2 for two servers, "
            "or chat=x2 where --prometheus tells the rate",
            USAGE,
        )
    return name, found


def demands_of(
    services: Services, success: Success | None, seen: Seen | None, window: Window, servers: Servers, sources: Sources
) -> list[Demand]:
    """What is asked of each service: as it was said, else as a Prometheus knows it."""
    from advisor.advise_demand import Demand

    found = []
    for each in services.measured:
        name = each.service
        said = services.rates.get(name, services.rates.get("")) or Rate(None, None)
        if said.rate is not None:
            found.append(Demand(each, said.rate, said.servers or 1))
            continue
        if servers.prometheus is None:
            raise fail(
                f"--serving: say how much is asked of {name}: --demand {name}=RATE, or where to look: --prometheus URL",
                USAGE,
            )
        query = services.queries.get(name, services.queries.get("", ""))
        pods = "" if query else _pods(name, success, seen)
        found.append(_ask(each, said.servers, query, pods, window, servers, sources))
    return found


def _pods(name: str, success: Success | None, seen: Seen | None) -> str:
    """A selector of a service's pods: by the ledger, or by ``success.yaml`` alone."""
    from advisor.advise_requests import selector
    from advisor.outcomes import Judge
    from advisor.usage_services import selector_of

    service = success.services.get(name) if success else None
    if service is None:
        hint = f"--success FILE with services.{name}, or --demand-query"
        raise fail(f"--prometheus: say which requests are those of {name}: {hint}, or --demand {name}=RATE", USAGE)
    if seen is not None and seen.hide is None:
        judge = Judge(success)
        if entries := [entry for entry in seen.entries if judge.service(entry)[0] == name]:
            return selector_of(entries)
    if chosen := selector(service.match):
        return chosen
    raise fail(
        f"--prometheus: which pods are those of {name} takes services.{name}.match.namespace in success.yaml, "
        f"or a ledger that has its work; or say --demand-query, or --demand {name}=RATE",
        USAGE,
    )


def _ask(
    measured: Measured, servers: int | None, query: str, pods: str, window: Window, at: Servers, sources: Sources
) -> Demand:
    from advisor.advise_demand import Demand
    from advisor.advise_requests import NoRequests, requests
    from advisor.prometheus import Prometheus
    from scheduler.annotations import format_instant

    assert at.prometheus is not None
    key = f"requests of {measured.service}"
    try:
        prometheus = Prometheus(at.prometheus, at.token, at.timeout)
    except ValueError as error:
        raise fail(f"--prometheus: {error}", USAGE) from None
    try:
        with waiting("asking Prometheus") as told:
            found = requests(prometheus, window, query=query, pods=pods, told=told)
    except NoRequests as error:
        sources.add(key, prometheus.url, ok=False, why=str(error))
        return Demand(measured, None, servers or 1, why=str(error))
    sources.add(key, prometheus.url, ok=not found.wrong, why=found.wrong)
    lines = [f"at its busiest in the five minutes before {format_instant(found.at)}, by {found.query}"]
    if not query:
        lines.append("these are requests that were answered: what was asked in vain is not among them (--demand-query)")
    if found.measured < _WHOLE:
        lines.append(f"measured in {found.measured:.0%} of the time only: it may have been asked for more")
    if servers is None and found.servers is None:
        lines.append(f"taken for one server: keep the label pod in the query, or say --demand {measured.service}=xN")
    if found.growth is None:
        lines.append("whether it grows is not known: that takes two whole weeks (--since 28d)")
    elif not found.growth:
        lines.append("it neither grows nor falls for sure, by its busiest times of day")
    return Demand(measured, found.rate, servers or found.servers or 1, found.growth, (*lines, *found.remarks))


_WHOLE = 0.95
"""From this part of the time on it counts as all of it."""
