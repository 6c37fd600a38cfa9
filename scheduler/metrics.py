"""What the controller tells Prometheus.

Names follow Prometheus' conventions: base units, ``_total`` for counters, no label whose values are unbounded. All of
it hangs on one registry per instance, so that simulations and tests do not share numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from scheduler.cluster import Release

SOLVE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds: the first plan of a small queue up to the largest budget anybody would give."""

PATCH_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 10.0)
"""Seconds: one patch on a healthy apiserver takes about ten milliseconds."""

PLACES = ("dispatch", "ledger", "metrics", "news", "observe", "queues", "release", "step")
"""Where errors are counted."""

_HOUR = 3600.0
LATENESS_BUCKETS = tuple(hours * _HOUR for hours in (-24, -8, -4, -1, -0.25, -1 / 60, 0, 1 / 60, 0.25, 1, 4, 8, 24, 72))
"""Seconds before (negative) and after a deadline, or a forecast."""

RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
"""Run time by its estimate."""


class Metrics:
    """Counters and gauges of one controller.

    Parameters
    ----------
    registry
        Where they are registered; a registry of its own by default.
    clock
        Seconds on a clock that never jumps: ages are measured on it.
    """

    def __init__(self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry = registry or CollectorRegistry()
        self._clock = clock
        self._beat = clock()
        self._plan_at: float | None = None

        self._build = Info("punctual_build", "What runs here.", registry=registry)
        self._plans = Counter("punctual_plans", "Plans received, by engine.", ["engine"], registry=registry)
        self._failures = Counter(
            "punctual_plan_failures",
            "Plans that did not come or were refused, by reason.",
            ["reason"],
            registry=registry,
        )
        self._solve = Histogram(
            "punctual_plan_duration_seconds",
            "From asking for a plan to having it.",
            buckets=SOLVE_BUCKETS,
            registry=registry,
        )
        Gauge(
            "punctual_plan_age_seconds",
            "Age of the plan in force; NaN before the first one.",
            registry=registry,
        ).set_function(self._plan_age)
        self._gap = Gauge(
            "punctual_plan_gap_ratio",
            "Weight that the plan in force may leave late needlessly, at most; a part of all weight with a due date.",
            registry=registry,
        )
        self._planner_up = Gauge(
            "punctual_planner_up", "1 when the last call to the planner worked.", registry=registry
        )
        self._releases = Counter(
            "punctual_releases", "Attempts to release, by outcome.", ["outcome"], registry=registry
        )
        for outcome in Release:
            self._releases.labels(_word(outcome.value))
        self._release = Histogram(
            "punctual_release_duration_seconds",
            "One release: the patch and its answer.",
            buckets=PATCH_BUCKETS,
            registry=registry,
        )
        self._latency = Histogram(
            "punctual_release_latency_seconds",
            "From the watch event by which quota came free to sending the patch of a release into it.",
            buckets=PATCH_BUCKETS,
            registry=registry,
        )
        queue = ["cluster_queue"]
        self._queues = {
            "gated": Gauge(
                "punctual_gated_workloads",
                "Workloads behind our gate. Kueue counts them neither as pending nor for autoscalers.",
                queue,
                registry=registry,
            ),
            "in_flight": Gauge("punctual_in_flight_workloads", "Released, not admitted yet.", queue, registry=registry),
            "running": Gauge("punctual_running_workloads", "Workloads that hold quota.", queue, registry=registry),
            "late": Gauge(
                "punctual_late_forecast_workloads",
                "Workloads that the plan in force expects to finish after their deadline.",
                queue,
                registry=registry,
            ),
            "overdue": Gauge(
                "punctual_overdue_workloads",
                "Workloads whose deadline has passed and that have not finished.",
                queue,
                registry=registry,
            ),
            "stuck": Gauge(
                "punctual_stuck_workloads",
                "Released, and not admitted for longer than the warning about it takes.",
                queue,
                registry=registry,
            ),
            "overrunning": Gauge(
                "punctual_overrunning_workloads",
                "Workloads that have run for longer than estimated, and run.",
                queue,
                registry=registry,
            ),
            "bypassing": Gauge(
                "punctual_bypassing_workloads",
                "Workloads that somebody let pass by the plan (punctual.kueue/bypass), and that have not finished.",
                queue,
                registry=registry,
            ),
        }
        self._deadlines = Counter(
            "punctual_deadlines",
            "Workloads with a deadline that were seen to finish: met or missed.",
            ["cluster_queue", "priority_class", "outcome"],
            registry=registry,
        )
        self._overruns = Counter(
            "punctual_overruns", "Workloads that outlived their estimate.", queue, registry=registry
        )
        self._lateness = Histogram(
            "punctual_lateness_seconds",
            "Finish less deadline of each workload that finished: actual, and as it was forecast at its release.",
            ["reading"],
            buckets=LATENESS_BUCKETS,
            registry=registry,
        )
        self._forecast_error = Histogram(
            "punctual_forecast_error_seconds",
            "Finish less the finish that was forecast at its release, of each workload that finished.",
            buckets=LATENESS_BUCKETS,
            registry=registry,
        )
        self._estimate_ratio = Histogram(
            "punctual_estimate_ratio",
            "Run time by its estimate, of each workload that finished, by where the estimate came from.",
            ["source"],
            buckets=RATIO_BUCKETS,
            registry=registry,
        )
        self._idle = Counter(
            "punctual_idle_resource_seconds",
            "Quota x time that was free while work waited for it. Cohort: the topmost, or the ClusterQueue.",
            ["cohort", "resource"],
            registry=registry,
        )
        self._idling: tuple[float, dict[tuple[str, str], float]] = (0.0, {})
        self._unsupported = Gauge(
            "punctual_unsupported_cluster_queues",
            "1 for each ClusterQueue of ours that is left to Kueue, and each cause.",
            ["cluster_queue", "cause"],
            registry=registry,
        )
        self._lead = Gauge(
            "punctual_start_lead_seconds",
            "How long after its admission work is expected to begin, by flavor: as set, or as learned.",
            ["flavor"],
            registry=registry,
        )
        self._policy = Gauge(
            "punctual_policy_info",
            "1 for the policy in force: a digest of what it says, and where it is written.",
            ["digest", "source"],
            registry=registry,
        )
        self._policy_valid = Gauge(
            "punctual_policy_valid",
            "1 when the newest policy is in force, 0 when it cannot be read and the last good one goes on.",
            registry=registry,
        )
        self._policies = Counter(
            "punctual_policy_reads", "Policies read, by outcome: good, refused.", ["outcome"], registry=registry
        )
        self._beside_window = Gauge(
            "punctual_observed_seconds", "Time that the last look back at observed queues covers.", registry=registry
        )
        self._beside_deadlines = Gauge(
            "punctual_observed_deadlines", "Deadlines of observed queues that fell into that time.", registry=registry
        )
        schedule = ["schedule"]
        self._beside = {
            "missed": Gauge(
                "punctual_observed_deadlines_missed",
                "Of these, missed: really, by plans made beside (planned), and by Kueue's order replayed (kueue).",
                schedule,
                registry=registry,
            ),
            "idleGpus": Gauge(
                "punctual_observed_idle_gpus",
                "GPUs idle for a minute or longer at the worst time, though work waited that could have used some.",
                schedule,
                registry=registry,
            ),
            "idleGpuSeconds": Gauge(
                "punctual_observed_idle_gpu_seconds",
                "GPUs × seconds idle though work waited.",
                schedule,
                registry=registry,
            ),
        }
        self._named: dict[str, set[str]] = {state: set() for state in self._queues}
        self._errors = Counter("punctual_errors", "Errors, by where they happened.", ["where"], registry=registry)
        for where in PLACES:
            self._errors.labels(where)
        self._synced = Gauge(
            "punctual_watch_synced", "1 while the objects of a kind are followed.", ["kind"], registry=registry
        )
        self._dropped = Counter(
            "punctual_notices_dropped",
            "Events and annotations that were not written: too many at once, or refused.",
            registry=registry,
        )
        self._enforcing = Gauge(
            "punctual_enforcing",
            "1 while this replica makes work wait for its planned start; 0 while it stands by, only observes, or Kueue "
            "ignores gates.",
            registry=registry,
        )
        self._heeded = Gauge(
            "punctual_gates_heeded",
            "1 while Kueue heeds admission gates, as far as this replica knows.",
            registry=registry,
        )
        self._leader = Gauge("punctual_leader", "1 while this replica may release.", registry=registry)
        Gauge(
            "punctual_heartbeat_age_seconds", "Since the control loop last came round.", registry=registry
        ).set_function(self.heartbeat_age)

    def build(self, **facts: str) -> None:
        """Tell once what runs here (version, identity)."""
        self._build.info(facts)

    def planned(self, engine: str, seconds: float, gap: float = float("nan")) -> None:
        """A plan came ``seconds`` after it was asked for and is in force now."""
        self._plans.labels(engine).inc()
        self._gap.set(gap)
        self._solve.observe(seconds)
        self._plan_at = self._clock()
        self._planner_up.set(1)

    def plan_failed(self, reason: str) -> None:
        """No plan came, or a bad one. ``reason`` is a short word out of few, e.g. a gRPC status code's name."""
        self._failures.labels(reason).inc()
        self._planner_up.set(0)

    def released(self, outcome: str, seconds: float) -> None:
        """One attempt to release ended, ``seconds`` after it was begun.

        ``outcome`` is a value of :class:`scheduler.cluster.Release`.
        """
        self._releases.labels(_word(outcome)).inc()
        self._release.observe(seconds)

    def release_latency(self, seconds: float) -> None:
        """A patch was sent ``seconds`` after the event by which its quota came free."""
        self._latency.observe(seconds)

    def queues(self, **states: Mapping[str, int]) -> None:
        """How many workloads each ClusterQueue has in each of some states; a queue not named any more is forgotten.

        States: ``gated``, ``in_flight``, ``running``, ``late`` (as planned), ``overdue``, ``stuck``, ``overrunning``,
        ``bypassing``.
        """
        for state, counts in states.items():
            gauge, named = self._queues[state], self._named[state]
            for queue in named - counts.keys():
                gauge.remove(queue)
            for queue, count in counts.items():
                gauge.labels(queue).set(count)
            self._named[state] = set(counts)

    def expect(self, cluster_queue: str, priority_class: str) -> None:
        """A workload with a deadline is followed from now on.

        A counter that first appears with a 1 has not increased, to Prometheus. So it has to be there before.
        """
        for outcome in ("met", "missed"):
            self._deadlines.labels(cluster_queue, priority_class, outcome)

    def finished(
        self,
        cluster_queue: str,
        priority_class: str,
        *,
        lateness: float | None,
        forecast_error: float | None,
        estimate_ratio: float | None,
        estimate_source: str,
    ) -> None:
        """A workload was seen to finish.

        Parameters
        ----------
        lateness
            Seconds from its deadline to its finish; None without a deadline.
        forecast_error
            Seconds from the finish that was forecast when it was released to its finish; None without a forecast.
        estimate_ratio
            Its run time by its estimate; None when it is not known when it began.
        estimate_source
            One out of few: see :attr:`scheduler.items.Item.estimate_source`.
        """
        if lateness is not None:
            self._deadlines.labels(cluster_queue, priority_class, "missed" if lateness > 0 else "met").inc()
            self._lateness.labels("actual").observe(lateness)
            if forecast_error is not None:
                self._lateness.labels("predicted").observe(lateness - forecast_error)
        if forecast_error is not None:
            self._forecast_error.observe(forecast_error)
        if estimate_ratio is not None:
            self._estimate_ratio.labels(estimate_source).observe(estimate_ratio)

    def overran(self, cluster_queue: str) -> None:
        """A workload has run for longer than estimated, from now on."""
        self._overruns.labels(cluster_queue).inc()

    def idle(self, amounts: Mapping[tuple[str, str], float]) -> None:
        """What is free from now on though work waits for it: by (cohort, resource), in units of the resource."""
        now = self._clock()
        since, before = self._idling
        for (cohort, resource), amount in before.items():
            self._idle.labels(cohort, resource).inc(amount * (now - since))
        self._idling = (now, dict(amounts))

    def unsupported(self, causes: Iterable[tuple[str, str]]) -> None:
        """The ClusterQueues that are left to Kueue, each with one of the causes; what is not named is forgotten."""
        self._unsupported.clear()
        for cluster_queue, cause in causes:
            self._unsupported.labels(cluster_queue, cause).set(1)

    def leads(self, leads: Mapping[str, int]) -> None:
        """Lead time of each flavor in milliseconds; what is not named is forgotten."""
        self._lead.clear()
        for flavor, lead in leads.items():
            self._lead.labels(flavor).set(lead / 1000)

    def beside(self, seconds: float, deadlines: int, schedules: Mapping[str, Mapping[str, float]]) -> None:
        """A look back at observed queues: figures of the schedules ``real``, ``planned`` and ``kueue``."""
        self._beside_window.set(seconds)
        self._beside_deadlines.set(deadlines)
        for figure, gauge in self._beside.items():
            for schedule in ("real", "planned", "kueue"):
                gauge.labels(schedule).set(schedules[schedule][figure])

    def policy(self, digest: str, source: str) -> None:
        """The policy in force."""
        self._policy.clear()
        self._policy.labels(digest, source).set(1)

    def policy_valid(self, valid: bool) -> None:
        """Whether the newest policy is the one in force."""
        self._policy_valid.set(valid)

    def policy_read(self, outcome: str) -> None:
        """A policy was read. ``outcome``: ``good`` or ``refused``."""
        self._policies.labels(outcome).inc()

    def error(self, where: str) -> None:
        """Something went wrong that the log has the details of. ``where`` is a short word out of few."""
        self._errors.labels(where).inc()

    def watching(self, kind: str, followed: Callable[[], bool]) -> None:
        """How to know whether the objects of a kind are followed at the moment."""
        self._synced.labels(kind).set_function(lambda: float(followed()))

    def notice_dropped(self) -> None:
        """An Event or annotation was given up."""
        self._dropped.inc()

    def leading(self, may_act: Callable[[], bool]) -> None:
        """How to know whether this replica may release."""
        self._leader.set_function(lambda: float(may_act()))

    def enforcing(self, enforces: Callable[[], bool], heeded: Callable[[], bool]) -> None:
        """How to know whether this replica enforces plans, and whether Kueue heeds gates."""
        self._enforcing.set_function(lambda: float(enforces()))
        self._heeded.set_function(lambda: float(heeded()))

    def beat(self) -> None:
        """The control loop came round: it is alive."""
        self._beat = self._clock()

    def heartbeat_age(self) -> float:
        """Seconds since the last :meth:`beat`."""
        return self._clock() - self._beat

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def _plan_age(self) -> float:
        return float("nan") if self._plan_at is None else self._clock() - self._plan_at


def _word(outcome: str) -> str:
    return outcome.replace(" ", "_")
