"""``punctual advise``: buy, or not, and why, on one page."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli.advise_bill import Currency, OpenCostUrl, check_currency
from cli.advise_capacity_question import Source, length_of, prices_of, share_of
from cli.advise_source import (
    PARTIAL,
    Goals,
    Patience,
    PrometheusUrl,
    Token,
    look,
    servers_of,
    success_of,
    window_of,
)
from cli.ledger import Address
from cli.source import BAD_INPUT, errors_told, instant_of, tuned

DAYS = "7d"
"""How far to look back, if nobody says."""


class Output(StrEnum):
    """Ways to print the page."""

    TEXT = "text"
    JSON = "json"


def page(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE|DIR", help="Read Jobs, queues, flavors from there, no cluster."),
    ] = None,
    ledger: Address = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A copy of a ledger instead: punctual ledger export -o json.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="With a ledger or a Prometheus: how far to look back.", show_default=DAYS
        ),
    ] = None,
    now: Annotated[
        str | None,
        typer.Option("--now", "--until", metavar="TIME", help="As if it were this time (RFC 3339), and no later."),
    ] = None,
    success: Goals = None,
    serving: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="What punctual advise serving -o json has measured. Repeatable."),
    ] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SERVICE=][RATE][xSERVERS]",
            help="Requests a second that it gets at its busiest: chat=40, chat=40x2. "
            "Without a rate a Prometheus is asked; chat=x2: of two servers.",
        ),
    ] = None,
    demand_query: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SERVICE=]PROMQL",
            help="Gives requests a second: chat=sum by (pod) (rate(NAME[5m])). "
            "Default: counters of vLLM, SGLang, TGI, Triton.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="[FLAVOR=]PRICE", help="Of one GPU for an hour. Repeatable.")
    ] = None,
    price_list: Annotated[
        Path | None,
        typer.Option("--prices", envvar="PUNCTUAL_PRICES", metavar="FILE", help="A price list (docs/cost.md)."),
    ] = None,
    opencost: OpenCostUrl = None,
    currency: Currency = None,
    prometheus: PrometheusUrl = None,
    token_file: Token = None,
    timeout: Patience = "30s",
    on_time: Annotated[
        str, typer.Option(metavar="PERCENT", help="How many of the deadlines have to be met, of those that can be.")
    ] = "100",
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="Go by this policy.")] = None,
    effort: Annotated[int, typer.Option(min=1, help="Work that goes into each plan.")] = 25,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Source of random choices.")] = 0,
    kubeconfig: Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")] = None,
    kube_context: Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TEXT,
) -> None:
    """Say whether more hardware is needed, and why: one page from facts.

    Puts the causes side by side: timing (the same work on the same GPUs, with
    planning), serving (what is asked of a service beside what it can take), fit
    (what GPU time went for). Ranks what could be done by what one more result
    costs. Never says buy while something cheaper is shown to help, and says
    what is not known. With a ledger it asks about the past, without about what
    waits now, as if Punctual were in charge. Each question has a command too, below.

    \b
    punctual advise -f examples/01-four-jobs
    punctual advise --ledger ledger.db --since 30d --prices prices.yaml
    punctual advise --ledger ledger.db --opencost http://opencost:9003 --currency EUR
    punctual advise --serving chat.json --demand chat=40
    punctual advise --serving chat.json --success success.yaml --prometheus http://prometheus:9090

    Exit codes: 0 advised, whatever the advice; 1 something could not be read or
    planned (or, with files, has a mistake in it); 2 wrong usage, or no cluster
    configured; 3 a source did not answer for all of the time: the page says which.
    """
    from rich.console import Console

    from advisor.advise import advise
    from advisor.capacity_trials import BadPlan
    from cli.advise_page_demand import services_of
    from cli.advise_page_facts import Asked, facts_of
    from cli.advise_page_view import show, to_json
    from scheduler.settings import Settings

    if context.invoked_subcommand is not None:
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    said = context.get_parameter_source("ledger")
    if files and since is None and said is not None and said.name == "ENVIRONMENT":
        ledger = None  # files are what is asked about, whatever ledger there is
    past = ledger is not None or export is not None
    if since is not None and not past and not (serving and prometheus):
        raise typer.BadParameter("needs to know where the past is: --ledger PATH, or --export", param_hint="--since")
    check_currency(currency, opencost)
    instant = instant_of(now)
    source = Source(
        paths=files or (),
        instant=instant,
        tune=partial(tuned, 1, None, None, seed),
        length=length_of("--since", since or DAYS) if past else None,
        ledger=ledger,
        export=export,
        gate_all=not past,  # what would planning bring?
        policy=policy,
        kubeconfig=kubeconfig,
        context=kube_context,
    )
    source.tune(Settings())
    asked = Asked(
        source, window_of(since or DAYS, now, instant), share_of(on_time), prices_of(price or (), price_list),
        success_of(success), servers_of(prometheus, token_file, timeout),
        services_of(serving or (), demand or (), demand_query or ()), opencost, currency or "", effort, seed,
    )  # fmt: skip
    seen = look(ledger, export, since or DAYS, now, None) if past else None
    with errors_told(console):
        try:
            with console.status("reading ...") as status:
                asked.told = status.update
                facts = facts_of(asked, seen)
        except BadPlan as error:
            console.print(f"error: a plan did not pass the verifier, please report this: {error}", markup=False)
            raise typer.Exit(BAD_INPUT) from None
    for remark in asked.remarks:
        console.print(remark, markup=False)
    advice = advise(facts)
    if output is Output.JSON:
        typer.echo(json.dumps(to_json(advice, facts, asked.sources, asked.remarks), indent=2, ensure_ascii=False))
    else:
        show(advice, facts, Console(highlight=False, soft_wrap=True))
    if files and asked.mistakes:
        raise typer.Exit(BAD_INPUT)
    if asked.sources.partial:
        raise typer.Exit(PARTIAL)
