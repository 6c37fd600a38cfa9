"""``punctual advise serving``: how much can this server take?"""

from __future__ import annotations

import asyncio
import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.advise_success import success_of, text_of

if TYPE_CHECKING:
    from advisor.serving import Options
    from advisor.serving_profile import Profile
    from advisor.serving_report import Hardware
    from advisor.serving_target import Target
    from advisor.success import Service, Success

FAILED, USAGE, NOT_FOUND, VOID, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit codes."""
INSTALL = "python -m pip install 'kueue-punctual[serving]'"


class Output(StrEnum):
    """Ways to print what was found."""

    TABLE = "table"
    JSON = "json"


def serving(
    target: Annotated[str, typer.Option(metavar="URL", help="The server, say http://127.0.0.1:8000.")],
    profile: Annotated[Path, typer.Option(metavar="FILE", help='Requests, a JSON object a line; "-": standard input.')],
    goals: Annotated[Path, typer.Option(metavar="FILE", help="success.yaml: what a service must keep.")],
    service: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which service of it; may be left out if there is one.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="May be put under load, besides this machine. Repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model for chats that name none.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="Environment variable with the server's key; never kept.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Keeps all trials; goes on from there.", show_default="serving-NAME"),
    ] = None,
    start_rate: Annotated[float, typer.Option(metavar="N", help="Requests a second to begin with.")] = 1.0,
    min_rate: Annotated[float, typer.Option(metavar="N", help="Never try less.")] = 0.05,
    max_rate: Annotated[float, typer.Option(metavar="N", help="Never try more.")] = 1000.0,
    width: Annotated[float, typer.Option(metavar="SHARE", help="How wide the bracket may be: 0.1 is 10 %.")] = 0.1,
    duration: Annotated[str, typer.Option(metavar="DURATION", help="Measured length of a trial, at least.")] = "60s",
    max_duration: Annotated[
        str, typer.Option(metavar="DURATION", help="At most, where the rate is too low to see its percentiles in less.")
    ] = "10m",
    warm_up: Annotated[str, typer.Option(metavar="DURATION", help="Load before it, not measured.")] = "10s",
    max_trials: Annotated[int, typer.Option(min=1, metavar="N", help="Stop after so many.")] = 40,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the random arrivals and order.")] = 0,
    gpus: Annotated[
        float | None, typer.Option(metavar="N", help="GPUs that the server holds: tells GPU time per good answer.")
    ] = None,
    flavor: Annotated[str, typer.Option(metavar="NAME", help="Their ResourceFlavor, for the price.")] = "*",
    prices: Annotated[
        Path | None,
        typer.Option(envvar="PUNCTUAL_PRICES", metavar="FILE", help="A price list (docs/cost.md): tells cost."),
    ] = None,
    facts_command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Tells what the server is; if it ever tells otherwise, the run is void."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print what was found.")] = Output.TABLE,
) -> None:
    """Measure how many requests a second a server can take with all goals kept.

    Sends requests when they are due by chance (Poisson), whether or not
    earlier ones are answered, at rates that double, then halve the gap, then
    repeat on both sides of the edge. A rate passes only if response times and
    the quality of answers hold in the same trial. Prints the bracket: the
    highest rate that passes and the lowest that fails.

    \b
    punctual advise serving --target http://127.0.0.1:8000 --model small \\
      --profile requests.jsonl --goals success.yaml --gpus 1 --prices prices.yaml

    Takes about twelve trials of --warm-up and --duration each. Ctrl-C keeps
    those that are done; the same command goes on from there. docs/serving.md
    says how to read the result.

    Exit codes: 0 the bracket is found; 1 nothing can be measured; 2 wrong usage;
    3 no bracket so narrow; 4 something changed; 130 interrupted.
    """
    _need_aiohttp()
    name, chosen = _service(success_of(goals), service, goals)
    options = _options(
        target=_target(target, allow_host or [], api_key_env),
        profile=_profile(profile, model, chosen),
        service=chosen,
        start_rate=start_rate,
        min_rate=min_rate,
        max_rate=max_rate,
        width=width,
        duration=duration,
        max_duration=max_duration,
        warm_up=warm_up,
        max_trials=max_trials,
        seed=seed,
        facts=facts_command,
    )
    hardware = _hardware(gpus, flavor, prices)
    _run(options, folder or Path(f"serving-{name}"), name, hardware, output)


def _run(options: Options, folder: Path, name: str, hardware: Hardware | None, output: Output) -> None:
    from advisor.serving import CannotMeasure, measure
    from advisor.serving_report import report
    from advisor.serving_store import BadStore, Changed, Store
    from cli.advise_serving_print import as_data, show
    from cli.advise_serving_progress import Progress

    code, why = 0, ""
    try:
        with Store(folder) as store:
            try:
                with Progress() as progress:
                    why = asyncio.run(measure(options, store, progress)).why
            except KeyboardInterrupt:
                code, why = INTERRUPTED, "interrupted; the same command goes on from here"
            except CannotMeasure as error:
                code, why = FAILED, str(error)
            except Changed as error:
                if not store.void:
                    raise _error(
                        f"{folder} holds a run of something else; give another --dir ({error})", VOID
                    ) from None
                code, why = VOID, f"the run is void, something changed: {error}"
            found = report(store.trials, options.service, options.rules.width, hardware)
            code = code or (0 if found.found else NOT_FOUND)
            if output is Output.JSON:
                told = as_data(found, store, name, why, void=code == VOID)
                typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
            elif store.trials or not code:
                show(found, store, "" if code else why, void=code == VOID)
    except BadStore as error:
        raise _error(f"--dir: {error}", FAILED) from None
    if code:
        typer.echo(f"error: {why}", err=True)
        raise typer.Exit(code)


# --- what is given ----------------------------------------------------------------------------------------------------


def _need_aiohttp() -> None:
    from importlib.util import find_spec

    if find_spec("aiohttp") is None:
        raise _error(f"this needs aiohttp, which is not installed; install it with: {INSTALL}", FAILED)


def _service(success: Success, name: str | None, file: Path) -> tuple[str, Service]:
    if not success.services:
        raise _error(f"{file} names no service; write its goals there (docs/success.md)", USAGE)
    known = ", ".join(success.services)
    if name is None and len(success.services) == 1:
        return next(iter(success.services.items()))
    if name is None:
        raise _error(f"{file} has these services: {known}; choose one with --service", USAGE)
    if name not in success.services:
        raise _error(f"--service: {file} has no service {name}; it has {known}", USAGE)
    return name, success.services[name]


def _target(url: str, allowed: list[str], variable: str | None) -> Target:
    from advisor.serving_target import BadTarget, target_of

    headers = {}
    if variable is not None:
        if not os.environ.get(variable):
            raise _error(f"--api-key-env: the environment has no {variable}", USAGE)
        headers["Authorization"] = f"Bearer {os.environ[variable]}"
    try:
        return target_of(url, allowed, headers)
    except BadTarget as error:
        raise _error(f"--target: {error}", USAGE) from None


def _profile(file: Path, model: str | None, service: Service) -> Profile:
    from advisor.serving_profile import read_profile
    from cli.advise_success import tell
    from scheduler.schema_file import BadFile

    judged = service.quality is not None and service.quality.judge.kind != "command"
    try:
        return read_profile(text_of(file), model=model, judged=judged)
    except BadFile as error:
        tell(file, error)
        raise typer.Exit(FAILED) from None


def _options(
    *,
    target: Target,
    profile: Profile,
    service: Service,
    start_rate: float,
    min_rate: float,
    max_rate: float,
    width: float,
    duration: str,
    max_duration: str,
    warm_up: str,
    max_trials: int,
    seed: int,
    facts: str | None,
) -> Options:
    from advisor.serving import Options
    from advisor.serving_fingerprint import digest
    from advisor.serving_search import Rules

    for option, rate in (("--start-rate", start_rate), ("--min-rate", min_rate), ("--max-rate", max_rate)):
        if not 0 < rate <= 1e6:
            raise _error(f"{option} is {rate:g}; it must be more than 0 and no more than 1000000", USAGE)
    if not min_rate <= start_rate <= max_rate:
        raise _error(f"--start-rate {start_rate:g} is not from {min_rate:g} (--min-rate) to {max_rate:g}", USAGE)
    if not 0.01 <= width <= 1:
        raise _error(f"--width is {width:g}; it must be from 0.01 (1 %) to 1 (100 %)", USAGE)
    seconds, warm = _seconds("--duration", duration), _seconds("--warm-up", warm_up)
    longest = max(seconds, _seconds("--max-duration", max_duration))
    given = {
        "target": target.url,
        "requests": digest("".join(f"{request}" for request in profile.requests)),
        "goals": digest(service.model_dump(mode="json")),
        "trials": f"{seconds:g} s to {longest:g} s after {warm:g} s, seed {seed}",
        "bracket": f"{width:g}",
    }
    rules = Rules(start_rate, min_rate, max_rate, width, max_trials)
    return Options(target, profile, service, rules, seconds, longest, warm, seed, facts, given)


def _seconds(option: str, text: str) -> float:
    from scheduler.annotations import parse_estimate

    try:
        return parse_estimate(text) / 1000
    except ValueError as error:
        raise _error(f"{option}: {error}", USAGE) from None


def _hardware(gpus: float | None, flavor: str, prices: Path | None) -> Hardware | None:
    from advisor.cost_prices import BadPrices, read_prices
    from advisor.serving_report import Hardware
    from cli.advise_success import tell

    if gpus is None:
        return None
    if not gpus > 0:
        raise _error(f"--gpus is {gpus:g}; it must be more than 0", USAGE)
    if prices is None:
        return Hardware(gpus, None, "")
    try:
        listed = read_prices(text_of(prices))
    except BadPrices as error:
        tell(prices, error)
        raise typer.Exit(FAILED) from None
    hourly = listed.of(flavor)
    if hourly is None:
        raise _error(f"--flavor: {prices} has no price for {flavor}; it has {', '.join(listed.gpu_hour)}", USAGE)
    return Hardware(gpus, hourly, listed.currency)


def _error(message: str, code: int) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(code)
