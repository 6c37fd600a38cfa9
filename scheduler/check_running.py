"""Whether controller, planner and sweeper run."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from scheduler.annotations import parse_instant
from scheduler.apiserver import FORBIDDEN, NOT_FOUND, ApiError
from scheduler.check import Finding, Installation, State
from scheduler.check_cluster import skew
from scheduler.leader import LEASE, LEASES, Timing
from scheduler.planner_client import PlannerClient, PlannerRefused, PlannerUnavailable
from scheduler.settings import SECOND
from solver.api import planner_pb2 as pb

_EVERY = 0.25
_SILENT = Timing().lease + 3
"""Seconds after which a Lease that is not renewed is abandoned."""


def controller(at: Installation) -> Iterable[Finding]:
    """Whether a controller renews its Lease; by watching it change, not by its times."""
    path = LEASES.path(at.namespace, LEASE)
    apply = "kubectl apply --server-side -k manifests/controller"
    try:
        lease = at.api.request("GET", path)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        yield Finding("controller", State.FAIL, f"none has run yet: there is no Lease {at.namespace}/{LEASE}", apply)
        return
    version, end = lease["metadata"]["resourceVersion"], time.monotonic() + _SILENT
    while lease["metadata"]["resourceVersion"] == version:
        if time.monotonic() > end:
            told = f"none runs: its Lease {at.namespace}/{LEASE} was not renewed for {_SILENT:.0f} s; gated work waits"
            fix = f"kubectl -n {at.namespace} rollout restart deployment punctual"
            yield Finding("controller", State.FAIL, told, fix)
            return
        time.sleep(_EVERY)
        before = time.time()
        lease = at.api.request("GET", path)
    who = lease["spec"].get("holderIdentity")
    if not who:
        yield Finding("controller", State.FAIL, "it has just ended, and given its Lease back", apply)
        return
    yield Finding("controller", State.OK, f"{who} leads and renews its Lease")
    with suppress(ValueError, KeyError):
        renewed = parse_instant(lease["spec"]["renewTime"]) / SECOND
        date = parsedate_to_datetime(at.api.date()).timestamp()
        # It was renewed between two looks of ours, and the apiserver's date was read right after.
        later = renewed + time.time() - before + _EVERY
        yield skew("controller's clock", "the controller's clock", date, renewed, later)


def metrics(at: Installation) -> Iterable[Finding]:
    """What the controller says about itself."""
    text = metrics_text(at)
    if text is None:
        told = "the controller's metrics cannot be read from here: what it says about itself is not checked"
        forward = f"kubectl -n {at.namespace} port-forward service/punctual-metrics 8080"
        yield Finding(
            "metrics", State.WARN, told, f"{forward} & punctual check --metrics http://127.0.0.1:8080/metrics"
        )
        return
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    values = {name: value for name, _, value in pairs}
    yield Finding("metrics", State.OK, f"{sum(name.startswith('punctual_') for name in values)} values")
    if values.get("punctual_leader") == "1.0" and values.get("punctual_enforcing") == "0.0":
        told = "the controller does not enforce plans: Kueue ignores gates, or the policy says observe"
        yield Finding(
            "enforcing", State.WARN, told, f"kubectl -n {at.namespace} logs deployment/punctual -c controller"
        )
    if values.get("punctual_planner_up") == "0.0":
        told = "the controller cannot reach its planner; the last plan goes on, newcomers stand behind it by due date"
        yield Finding("planner", State.FAIL, told, f"kubectl -n {at.namespace} logs deployment/punctual -c solver")
    elif "punctual_planner_up" in values and at.solver is None:
        yield Finding("planner", State.OK, "the controller reaches it")


def metrics_text(at: Installation) -> str | None:
    """The controller's metrics, from the URL that was given or through the apiserver; None if they cannot be had."""
    try:
        if at.metrics is not None:
            with urllib.request.urlopen(at.metrics, timeout=5) as answer:
                return str(answer.read().decode())
        service = f"/api/v1/namespaces/{at.namespace}/services/punctual-metrics:metrics/proxy/metrics"
        return at.api.text(service)
    except (ApiError, OSError, ValueError, urllib.error.URLError):
        return None


def planner(at: Installation) -> Iterable[Finding]:
    """Whether the planner answers, and speaks our schema; only where it can be reached from here."""
    if at.solver is None:
        return
    client = PlannerClient(at.solver)
    try:
        client.plan(pb.PlanRequest(schema=1, now_ms=at.now), timeout=5)
    except PlannerUnavailable as error:
        told = f"no answer at {at.solver}: {error}"
        yield Finding("planner", State.FAIL, told, f"kubectl -n {at.namespace} logs deployment/punctual -c solver")
    except PlannerRefused as error:
        told = f"{at.solver} does not speak schema 1 of proto/planner.proto: {error}"
        yield Finding("planner", State.FAIL, told, "use one version for controller and solver (the image has both)")
    else:
        yield Finding("planner", State.OK, f"{at.solver} answers in schema 1")
    finally:
        client.close()


def sweeper(at: Installation) -> Iterable[Finding]:
    """Whether somebody lets work go should the controller be lost."""
    path = f"/apis/batch/v1/namespaces/{at.namespace}/cronjobs/punctual-sweeper"
    apply = "kubectl apply --server-side -k manifests/sweeper"
    try:
        job: dict[str, Any] = at.api.request("GET", path)
    except ApiError as error:
        if error.status == FORBIDDEN:
            yield Finding("sweeper", State.WARN, f"cannot be seen: {error.message}")
            return
        if error.status != NOT_FOUND:
            raise
        yield Finding("sweeper", State.WARN, "none: if the controller is lost, gated work waits for ever", apply)
        return
    if job["spec"].get("suspend"):
        told = "it is suspended: if the controller is lost, gated work waits for ever"
        fix = f'kubectl -n {at.namespace} patch cronjob punctual-sweeper -p \'{{"spec":{{"suspend":false}}}}\''
        yield Finding("sweeper", State.WARN, told, fix)
        return
    last = (job.get("status") or {}).get("lastSuccessfulTime") or "not yet"
    yield Finding("sweeper", State.OK, f"runs {job['spec']['schedule']}, last to its end: {last}")
