"""``punctual advise capacity``: the least quota that meets the deadlines, and what it rests on."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli.advise_capacity_question import Source, length_of, prices_of, share_of
from cli.advise_capacity_view import show, to_json
from cli.ledger import Address
from cli.source import BAD_INPUT, errors_told, instant_of, tuned

SHORT = 3
"""Exit code."""


class Output(StrEnum):
    """Ways to print the answer."""

    TEXT = "text"
    JSON = "json"


def capacity(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE|DIR", help="Read Jobs, queues, flavors from there, no cluster."),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE|DIR]...", help="More files or folders.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Ask about the past, by a ledger: 7d, 12h until now.")
    ] = None,
    ledger: Address = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A copy of a ledger instead: punctual ledger export -o json."),
    ] = None,
    on_time: Annotated[
        str, typer.Option(metavar="PERCENT", help="How many of the deadlines have to be met, of those that can be.")
    ] = "100",
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="NAME", help="Vary the quota of this ClusterQueue alone."),
    ] = None,
    resource: Annotated[
        str | None, typer.Option(metavar="NAME", help="What is asked about.", show_default="all GPUs")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="[FLAVOR=]PRICE", help="Of one for an hour: 2.50, h100=2.50; several times."),
    ] = None,
    price_list: Annotated[
        Path | None,
        typer.Option("--prices", envvar="PUNCTUAL_PRICES", metavar="FILE", help="A price list (docs/cost.md)."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TEXT,
    gate_all: Annotated[
        bool, typer.Option("--gate-all", help="As if Punctual were in charge of all waiting work of finite kinds.")
    ] = False,
    default_duration: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Run time of jobs that give none.", show_default="as in the policy: 1h"),
    ] = None,
    default_deadline: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Deadline of jobs that have none, from their creation.",
            show_default="none: such jobs take the room that is left",
        ),
    ] = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="Go by this policy.")] = None,
    now: Annotated[
        str | None,
        typer.Option("--now", "--until", metavar="TIME", help="As if it were this time (RFC 3339), and no later."),
    ] = None,
    effort: Annotated[int, typer.Option(min=1, help="Work that goes into each plan; more finds and proves more.")] = 25,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Source of random choices.")] = 0,
    kubeconfig: Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")] = None,
    kube_context: Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")] = None,
    fail_on_short: Annotated[
        bool, typer.Option("--fail-on-short", help="Exit with 3 if today's quota is less than is needed.")
    ] = False,
) -> None:
    """Say how many GPUs meet the deadlines when work starts at the right time.

    For each flavor, with the others as they are: the least quota with which a
    plan meets the deadlines, whether a proof says that fewer cannot do, what
    starting everything at once would take, and how many deadlines are met with
    how many GPUs. Of the live cluster, of files (-f), or of the past (--since,
    with a ledger; the queues are the cluster's, or those of -f). Changes
    nothing. docs/capacity.md says what is counted how.

    \b
    punctual advise capacity -f examples/01-four-jobs
    punctual advise capacity --on-time 95 --price 2.50
    punctual advise capacity --since 7d --ledger ledger.db -f queues.yaml

    Exit codes: 0 answered; 1 something could not be read or planned (or, with
    files, has a mistake in it); 2 wrong usage, or no cluster configured; 3 with
    --fail-on-short, if today's quota is less than is needed.
    """
    from rich.console import Console

    from advisor.capacity import Effort
    from advisor.capacity import capacity as ask
    from advisor.capacity_pools import NoPool
    from advisor.capacity_trials import BadPlan
    from scheduler.settings import Settings

    told = Console(stderr=True, soft_wrap=True, highlight=False)
    paths = [*(files or ()), *(more or ())]
    share, prices = share_of(on_time), prices_of(price or (), price_list)
    length = length_of("--since", since)
    said = context.get_parameter_source("ledger")
    if length is None and (export or (said is not None and said.name == "COMMANDLINE")):
        hint = "--export" if export else "--ledger"
        raise typer.BadParameter("tells of the past: say how far to look back with --since 7d", param_hint=hint)
    if length is not None and ledger is None and export is None:
        raise typer.BadParameter("needs to know where the past is: --ledger PATH, or --export", param_hint="--since")
    if length is not None and gate_all:
        raise typer.BadParameter("is about work that waits; the past is always asked as if", param_hint="--gate-all")
    source = Source(
        paths=paths,
        instant=instant_of(now),
        tune=partial(tuned, 1, None, default_duration, seed),
        length=length,
        ledger=ledger,
        export=export,
        gate_all=gate_all,
        due=length_of("--default-deadline", default_deadline),
        policy=policy,
        kubeconfig=kubeconfig,
        context=kube_context,
    )
    source.tune(Settings())  # wrong options are told before anything is read
    with errors_told(told), told.status("reading ...") as status:
        asked = source.question()
        for remark in asked.remarks:
            told.print(str(remark), markup=False)
        try:
            answers = ask(
                asked.request, asked.names, share=share, resource=resource, queue=queue, effort=Effort(effort, seed),
                told=status.update,
            )  # fmt: skip
        except NoPool as error:
            told.print(f"error: {error}", markup=False)
            raise typer.Exit(BAD_INPUT) from None
        except BadPlan as error:
            told.print(f"error: a plan did not pass the verifier, please report this: {error}", markup=False)
            raise typer.Exit(BAD_INPUT) from None
    unknown = {*prices.said} - {answer.pool.flavor_name for answer in answers}
    for flavor in sorted(unknown):
        told.print(f"--price: no answer is about a flavor {flavor}", markup=False)
    if output is Output.JSON:
        typer.echo(json.dumps(to_json(answers, asked, prices), indent=2, ensure_ascii=False))
    else:
        show(answers, asked, prices, Console(highlight=False, soft_wrap=True))
    if paths and any(remark.mistake for remark in asked.remarks):
        raise typer.Exit(BAD_INPUT)
    if fail_on_short and any(answer.short for answer in answers):
        raise typer.Exit(SHORT)
