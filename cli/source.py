"""Where ``plan`` and ``explain`` have their problem from, the live cluster or files, and who solves it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.apiserver import ApiServer
    from scheduler.planner_client import PlanCall
    from scheduler.settings import Settings
    from scheduler.still import StillCluster
    from solver.api import planner_pb2 as pb

BAD_INPUT, USAGE = 1, 2
"""Exit codes."""

EFFORT = 50
"""About a second for some hundred jobs."""

GUARD_MS = 10_000
"""Longest time for a plan, whatever its effort (milliseconds)."""

SILENT_SECONDS = 60
"""A controller that has not renewed its Lease for so long does not run; clocks of two machines differ by less."""


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


def instant_of(text: str | None) -> int:
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


def tuned(effort: int, budget: str | None, default_duration: str | None, seed: int, settings: Settings) -> Settings:
    """What the policy says, and on top of it what the options do."""
    from dataclasses import replace

    if default_duration is not None:
        estimate = _duration("--default-duration", default_duration)
        queues = {name: replace(each, default_duration_ms=estimate) for name, each in settings.queues.items()}
        settings = replace(settings, default_duration_ms=estimate, queues=queues)
    if budget is None:
        return replace(settings, budget_ms=GUARD_MS, work_limit=effort, seed=seed)
    return replace(settings, budget_ms=_duration("--budget", budget), seed=seed)


def policy_of(file: Path) -> Settings:
    """The policy of a file, enforced whatever its mode: a plan shows what it would bring."""
    from dataclasses import replace

    from scheduler.policy import BadPolicy, read_policy
    from scheduler.schema_file import Mistake

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


def read_files(paths: Sequence[str], instant: int, gate_all: bool) -> Read:
    """The objects of files."""
    from scheduler.files import read
    from scheduler.settings import Settings

    files = read(paths, instant, gate_all=gate_all)
    return Read(files, Settings(), [Said(str(r.place), r.message, r.error) for r in files.remarks], files.places)


def look_at_cluster(instant: int, kubeconfig: Path | None, context: str | None) -> Read:
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
    from scheduler.leader import LEASE, LEASES
    from scheduler.policy_source import NAMESPACE

    nothing = "no controller runs, so what is planned is not released"
    try:
        spec = api.request("GET", LEASES.path(NAMESPACE, LEASE)).get("spec") or {}
    except ApiError as error:
        return [f"{nothing}: there is no Lease {NAMESPACE}/{LEASE}"] if error.status == NOT_FOUND else []
    renewed = spec.get("renewTime")
    if not spec.get("holderIdentity") or not renewed:
        return [f"{nothing}: nobody holds the Lease {NAMESPACE}/{LEASE}"]
    silent = time.time() - parse_instant(renewed) / 1000
    return [f"{nothing}: its Lease was last renewed at {renewed}"] if silent > SILENT_SECONDS else []


def solver_at(address: str | None) -> PlanCall:
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


@contextmanager
def busy(console: Console, what: str) -> Iterator[None]:
    """Tell a terminal that something is under way."""
    with console.status(f"{what} ..."):
        yield


@contextmanager
def errors_told(console: Console) -> Iterator[None]:
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
