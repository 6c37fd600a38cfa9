"""``punctual plan``: what would start when, and what will be late; of the live cluster or of files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.apiserver import ApiServer
    from scheduler.forecast import Forecast
    from scheduler.planner_client import PlanCall
    from scheduler.settings import Settings
    from scheduler.snapshot import Snapshot
    from scheduler.still import StillCluster
    from solver.api import planner_pb2 as pb

EFFORT = 50
"""About a second for some hundred jobs."""

GUARD_MS = 10_000
"""Longest time for a plan, whatever its effort (milliseconds)."""

BAD_INPUT, USAGE, LATE = 1, 2, 3
"""Exit codes."""

SILENT_SECONDS = 60
"""A controller that has not renewed its Lease for so long does not run; clocks of two machines differ by less."""

WARNINGS = frozenset({"DeadlinePassed", "GatedByOthers", "QueueObserved", "WeightCapped"})
"""Complaints that are no mistake of whoever wrote the object."""


class Output(StrEnum):
    """Ways to print a plan."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def plan(
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE|DIR",
            help="Read Jobs, Workloads, queues, flavors from there, not a cluster.",
        ),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE|DIR]...", help="More files or folders.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    now: Annotated[
        str | None, typer.Option(metavar="TIME", help="Plan as if it were this time (RFC 3339: 2026-12-01T06:00:00Z).")
    ] = None,
    effort: Annotated[
        int, typer.Option(min=1, help="Work that goes into the plan; the same on any machine gives the same plan.")
    ] = EFFORT,
    budget: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time to look for a better plan, in place of --effort.")
    ] = None,
    default_duration: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Run time of jobs that give no estimate.", show_default="as in the policy: 1h"
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Go by this policy.", show_default="the cluster's; with -f the defaults, as enforced"
        ),
    ] = None,
    gate_all: Annotated[
        bool, typer.Option("--gate-all", help="With -f: plan all waiting work, as if Punctual were in charge of it.")
    ] = False,
    solver: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Ask this solver (host:port, unix:///path). Default: plan in this process."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Source of random choices.")] = 0,
    kubeconfig: Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    fail_on_late: Annotated[
        bool, typer.Option("--fail-on-late", help="Exit with 3 if something will be late.")
    ] = False,
) -> None:
    """Show what would start when, when it ends, and what will be late and why.

    Reads the live cluster (as kubectl finds it), or, with -f, files: YAML of
    many documents, JSON, lists of "kubectl get -o yaml", "-" for the standard
    input. Changes nothing. What is wrong with one object is said, and does not
    stop the others.

    \b
    punctual plan
    punctual plan -f examples/01-four-jobs
    punctual plan -f dump.yaml --gate-all
      after kubectl get -A -o yaml ns,jobs,workloads,localqueues,\\
        clusterqueues,cohorts,resourceflavors,workloadpriorityclasses,\\
        limitranges,runtimeclasses > dump.yaml

    Exit codes: 0 planned, even if something will be late; 1 something could not
    be read or planned (or, with files, has a mistake in it); 2 wrong usage, or
    no cluster configured; 3 with --fail-on-late, if something will be late.
    """
    from rich.console import Console

    from cli.planview import Clock, show
    from scheduler.forecast import forecast, to_json
    from scheduler.settings import Settings
    from scheduler.snapshot import snapshot

    told = Console(stderr=True, soft_wrap=True, highlight=False)
    paths = [*(files or ()), *(more or ())]
    if gate_all and not paths:
        raise typer.BadParameter("works with files only: a gate cannot be put on what a cluster has already")
    instant = _instant(now)
    tune = partial(_settings, effort, budget, default_duration, seed)
    tune(Settings())  # wrong options are told before anything is read
    text = output in (Output.TABLE, Output.WIDE)
    clock = Clock(instant)
    with _errors_told(told):
        with _busy(told, "reading"):
            read = _read(paths, instant, gate_all) if paths else _look(instant, kubeconfig, context)
            seen = snapshot(read.cluster, tune(_policy(policy) if policy else read.settings))
        with _busy(told, "planning"):
            response = _call(solver)(seen.request)
            result = forecast(seen, response, clock) if text else forecast(seen, response)
    remarks = [*read.remarks, *_remarks(seen, result, read.places)]
    for remark in remarks:
        told.print(str(remark), markup=False)
    if text:
        show(result, Console(highlight=False), clock, output is Output.WIDE)
    else:
        _write(to_json(result) | {"remarks": [remark.told() for remark in remarks]}, output)
    if paths and any(remark.mistake for remark in remarks):
        raise typer.Exit(BAD_INPUT)
    if fail_on_late and result.late():
        raise typer.Exit(LATE)


@dataclass(frozen=True)
class Said:
    """Something that the user should know about an object, or about a file."""

    place: str
    """``file:line``, or the object itself in a live cluster."""
    message: str
    mistake: bool

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"

    def told(self) -> dict[str, Any]:
        """For machines."""
        return {"place": self.place, "message": self.message, "mistake": self.mistake}


@dataclass(frozen=True)
class Read:
    """A cluster, the settings that it goes by, what was wrong with its files, and the place of each object in them."""

    cluster: StillCluster
    settings: Settings
    remarks: Sequence[Said] = ()
    places: Mapping[tuple[str, str], Any] = field(default_factory=dict)


def _instant(text: str | None) -> int:
    from scheduler.annotations import parse_instant

    if text is None:
        return int(time.time()) * 1000  # whole seconds, as creation times have: a deadline of 1h is an hour from now
    try:
        instant = parse_instant(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--now") from None
    if instant <= 0:
        raise typer.BadParameter(f"{text} is before 1970", param_hint="--now")
    return instant


def _settings(effort: int, budget: str | None, default_duration: str | None, seed: int, settings: Settings) -> Settings:
    """What the policy says, and on top of it what the options do."""
    from dataclasses import replace

    if default_duration is not None:
        estimate = _duration("--default-duration", default_duration)
        queues = {name: replace(each, default_duration_ms=estimate) for name, each in settings.queues.items()}
        settings = replace(settings, default_duration_ms=estimate, queues=queues)
    if budget is None:
        return replace(settings, budget_ms=GUARD_MS, work_limit=effort, seed=seed)
    return replace(settings, budget_ms=_duration("--budget", budget), seed=seed)


def _policy(file: Path) -> Settings:
    """The policy of a file, enforced whatever its mode: a plan shows what it would bring."""
    from dataclasses import replace

    from scheduler.policy import BadPolicy, Mistake, read_policy

    try:
        settings = read_policy(file.read_text(encoding="utf-8")).settings()
    except OSError as error:
        raise BadPolicy([Mistake("", f"{file}: {error.strerror}", 0)]) from None
    except UnicodeDecodeError:
        raise BadPolicy([Mistake("", f"{file} is no text in UTF-8", 0)]) from None
    queues = {name: replace(each, observed=False) for name, each in settings.queues.items()}
    return replace(settings, observed=False, queues=queues)


def _duration(option: str, text: str) -> int:
    from scheduler.annotations import parse_estimate

    try:
        return parse_estimate(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _read(paths: Sequence[str], instant: int, gate_all: bool) -> Read:
    """The objects of files."""
    from scheduler.files import read
    from scheduler.settings import Settings

    files = read(paths, instant, gate_all=gate_all)
    return Read(files, Settings(), [Said(str(r.place), r.message, r.error) for r in files.remarks], files.places)


def _look(instant: int, kubeconfig: Path | None, context: str | None) -> Read:
    """The objects of the live cluster."""
    from scheduler.apiserver import connect
    from scheduler.in_force import find_policy
    from scheduler.policy_source import NAMESPACE
    from scheduler.still import look

    api = connect(kubeconfig, context)
    left_out: list[str] = []
    try:
        cluster = look(api, instant, told=left_out.append)
        left_out += _controller_missing(api)
        found = find_policy(api, NAMESPACE)
        told = [Said("cluster", message, False) for message in left_out]
        told += [Said("policy", remark, False) for remark in found.remarks]
        return Read(cluster, found.policy.settings(), told)
    finally:
        api.close()


def _controller_missing(api: ApiServer) -> list[str]:
    """That no controller runs, by its Lease, as far as we may read it."""
    from scheduler.annotations import parse_instant
    from scheduler.apiserver import NOT_FOUND, ApiError
    from scheduler.controller import LEASE
    from scheduler.policy_source import NAMESPACE

    nothing = "no controller runs, so what is planned is not released"
    try:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"
        spec = api.request("GET", path).get("spec") or {}
    except ApiError as error:
        return [f"{nothing}: there is no Lease {NAMESPACE}/{LEASE}"] if error.status == NOT_FOUND else []
    renewed = spec.get("renewTime")
    if not spec.get("holderIdentity") or not renewed:
        return [f"{nothing}: nobody holds the Lease {NAMESPACE}/{LEASE}"]
    silent = time.time() - parse_instant(renewed) / 1000
    return [f"{nothing}: its Lease was last renewed at {renewed}"] if silent > SILENT_SECONDS else []


def _call(address: str | None) -> PlanCall:
    """Makes a plan: in this process, or by asking a solver."""
    if address is None:
        return _plan_here
    from scheduler.planner_client import PlannerClient

    return PlannerClient(address).plan


def _plan_here(request: pb.PlanRequest) -> pb.PlanResponse:
    """What a solver does with a request, its verifier included."""
    from scheduler.planner_client import PlannerRefused
    from solver.decode import decode
    from solver.encode import encode
    from solver.planner import plan
    from solver.verify import verify

    problem = decode(request)
    best = plan(problem, request.policy, request.budget, request.seed)
    response = encode(problem, best, request.policy)
    if violations := verify(request, response.plan, response.objective):
        raise PlannerRefused(
            "bad_plan", f"the plan did not pass the verifier, please report this: {violations[0].message}"
        )
    return response


def _remarks(seen: Snapshot, result: Forecast, places: Mapping[tuple[str, str], Any]) -> list[Said]:
    """What is wrong with objects, and what is not planned."""
    lost = {stranded.item.uid for stranded in seen.stranded}  # complained about already
    about = [(c.target, c.message, c.reason not in WARNINGS) for c in seen.complaints]
    about += [
        (row.item.root, row.reason, True) for row in result.rows if row.finish is None and row.item.uid not in lost
    ]
    remarks = []
    for target, message, mistake in about:
        key = f"{target.namespace}/{target.name}" if target.namespace else target.name
        place = places.get((target.kind, key))
        remarks.append(Said(str(place or target), f"{target}: {message}" if place else message, mistake))
    return remarks


def _write(data: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        import yaml

        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


@contextmanager
def _busy(console: Console, what: str) -> Iterator[None]:
    """Tell a terminal that something is under way."""
    with console.status(f"{what} ..."):
        yield


@contextmanager
def _errors_told(console: Console) -> Iterator[None]:
    """Say what went wrong, without a traceback."""
    from scheduler.apiserver import ApiError, NoCluster
    from scheduler.planner_client import PlannerError
    from scheduler.plans import BadPlan
    from scheduler.policy import BadPolicy
    from solver.decode import InvalidRequest

    try:
        yield
    except NoCluster as error:
        console.print(f"error: {error}", markup=False)
        raise typer.Exit(USAGE) from None
    except (ApiError, PlannerError) as error:
        message = str(error)
    except InvalidRequest as error:
        message = f"the queues make no sense: {error}"
    except BadPolicy as error:
        message = f"the policy cannot be used: {error}"
    except BadPlan as error:
        message = f"the solver's answer makes no sense: {error}"
    else:
        return
    console.print(f"error: {message}", markup=False)
    raise typer.Exit(BAD_INPUT)
