"""The policy: all that a platform team tunes, in one file with one schema.

What is not written has a default, so that the shortest policy is ``version: 1``. The code does not read a policy but
what it makes of the :class:`~scheduler.settings.Settings`: the same values, resolved for each queue, in the units that
the code calculates with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from scheduler.annotations import MAX_WEIGHT, format_duration, format_instant, parse_estimate
from scheduler.duedate import NEVER, DueDate, parse_due_date
from scheduler.quantity import amount
from scheduler.schema_file import (
    BadFile,
    Duration,
    Instant,
    Name,
    Part,
    read_file,
    reads,
    schema_of,
)
from scheduler.settings import DAY, HOUR, MINUTE, SECOND, QueueSettings, Reservation, Settings
from solver.amounts import MAX_AMOUNT
from solver.api import planner_pb2 as pb

_LEVELS = {
    "lateWeight": pb.LATE_WEIGHT,
    "tardiness": pb.TARDINESS,
    "peak": pb.PEAK,
    "startTimes": pb.START_TIMES,
    "stability": pb.STABILITY,
}
_ENTITLEMENTS = {"honour": pb.HONOUR, "wait": pb.WAIT}
_ENGINES = {"auto": pb.ENGINE_UNSPECIFIED, "greedy": pb.GREEDY, "search": pb.SEARCH, "cpSat": pb.CP_SAT}


Deadline = Annotated[
    Any,
    reads(parse_due_date),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["none", "8h", "due 06:00 Europe/Lisbon"]}),
]
"""A :class:`~scheduler.duedate.DueDate`."""

Bound = Annotated[
    int,
    reads(lambda text: 0 if text == "never" else parse_estimate(text)),
    PlainSerializer(lambda value: format_duration(value) if value else "never", return_type=str),
    WithJsonSchema({"type": "string", "examples": ["3d", "never"]}),
]
"""Milliseconds, 0 for never; ``3d`` or ``never`` in the file."""

Weight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]
Mode = Literal["enforce", "observe"]


class Defaults(Part):
    """What work is taken to have said that says nothing."""

    deadline: Deadline = NEVER
    """Deadline of jobs without one: `none` (best effort), a time after creation, or the next time of day at a place."""
    duration: Duration = HOUR
    """Run time of jobs of which nothing is known: no annotation, no limit of their own, no history."""


class Weights(Part):
    """What being on time is worth."""

    default: Weight = 1.0
    """Weight of jobs that have no annotation and none of the priority classes below."""
    by_priority_class: dict[Name, Weight] = Field(default_factory=dict)
    """Weight of jobs without an annotation, by the name of their WorkloadPriorityClass (never by its number)."""
    cap: Weight = MAX_WEIGHT
    """Largest weight that an annotation may ask for. More is cut down to it, and the job's owner told."""


class EstimateRule(Part):
    """How run times are estimated."""

    learn: bool = True
    """Whether the past of a job's family corrects what is said about its run time."""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Which quantile of the run time an estimate is meant to be, where the past speaks: 0.5 is right half of the time, 0.9 is cautious."""  # noqa: E501


class OnControllerLoss(Part):
    """What becomes of waiting work while no controller runs."""

    action: Literal["release", "hold"] = "release"
    """`release`: gates are taken off in the order of deadlines; `hold`: work waits until a controller is back."""
    after: Duration = 10 * MINUTE
    """How long the controller must have been gone."""


class ReservationRule(Part):
    """Quota that is kept free for something that is no workload."""

    node: Name
    """Name of a ClusterQueue or, when no queue has that name, of a Cohort."""
    flavor: Name
    """Name of a ResourceFlavor."""
    resource: Name
    """Name of a resource: nvidia.com/gpu, cpu …"""
    amount: Annotated[
        str,
        BeforeValidator(lambda value: str(value)),
        WithJsonSchema({"type": ["string", "number"], "examples": ["8", "500m", "16Gi"]}),
    ]
    """How much of it, as a Kubernetes quantity."""
    start: Instant
    """From when on (RFC 3339 with an offset)."""
    end: Instant
    """Until when."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        held = amount(self.resource, self.amount)
        if not 0 < held <= MAX_AMOUNT:
            raise ValueError(f"amount is {self.amount}; must be more than 0 and no more than {MAX_AMOUNT}")
        if self.end <= self.start:
            raise ValueError(f"ends at {format_instant(self.end)}, not after its start {format_instant(self.start)}")
        return self

    def reservation(self) -> Reservation:
        """The same, as the scheduler has it."""
        held = amount(self.resource, self.amount)
        return Reservation(self.node, self.flavor, self.resource, held, self.start, self.end)


class QueueDefaults(Part):
    """As `defaults`; what is left out is as there."""

    deadline: Deadline | None = None
    """As `defaults.deadline`, for this queue."""
    duration: Duration | None = None
    """As `defaults.duration`, for this queue."""


class QueueWeights(Part):
    """As `weights`; what is left out is as there."""

    default: Weight | None = None
    """As `weights.default`, for this queue."""
    by_priority_class: dict[Name, Weight] = Field(default_factory=dict)
    """As `weights.byPriorityClass`, for this queue; classes that are left out are as there."""
    cap: Weight | None = None
    """As `weights.cap`, for this queue."""


class QueueEstimates(Part):
    """As `estimates`; what is left out is as there."""

    learn: bool | None = None
    """As `estimates.learn`, for this queue."""
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    """As `estimates.quantile`, for this queue."""


class QueueOverride(Part):
    """What is different for one ClusterQueue."""

    mode: Mode | None = None
    """As `mode`, for this queue."""
    defaults: QueueDefaults = QueueDefaults()
    """As `defaults`, for this queue."""
    weights: QueueWeights = QueueWeights()
    """As `weights`, for this queue."""
    estimates: QueueEstimates = QueueEstimates()
    """As `estimates`, for this queue."""


class Policy(Part):
    """Policy of Punctual."""

    version: Literal[1]
    """Version of this schema. The only field that must be there."""
    mode: Mode = "enforce"
    """`enforce`: new work waits for its planned start. `observe`: nothing waits for us; what plans would have brought is reported."""  # noqa: E501
    objective: list[Literal["lateWeight", "tardiness", "peak", "startTimes", "stability"]] = Field(
        default=["lateWeight", "tardiness", "startTimes", "stability"], min_length=1
    )
    """What a good plan is, most important first; a level only decides between plans that are equal in all before it."""
    defaults: Defaults = Defaults()
    """What work is taken to have said that says nothing."""
    weights: Weights = Weights()
    """What being on time is worth."""
    estimates: EstimateRule = EstimateRule()
    """How run times are estimated."""
    ageing: Bound = 3 * DAY
    """Work without a deadline that has waited this long is planned as if due at once; `never`: it may wait for ever."""
    preemption: Literal["honour", "wait"] = "honour"
    """`honour`: work that its queue's preemption entitles to quota in use may be released for it. `wait`: it waits until there is room."""  # noqa: E501
    stability_threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Hours that each planned start that moves must bring on average, of weighted tardiness or of earlier starts; less late work is always worth it. 0: any gain is."""  # noqa: E501
    reservations: list[ReservationRule] = Field(default_factory=list)
    """Quota that is kept free for some time, say for a maintenance."""
    engine: Literal["auto", "greedy", "search", "cpSat"] = "auto"
    """Which planner may be used; `auto`: chosen by size and budget."""
    budget: Duration = SECOND
    """Time that the planner may spend on one plan."""
    replan_every: Duration = MINUTE
    """A new plan is made at least this often, even if nothing seems to have changed."""
    annotate_planned_start: bool = False
    """Whether the planned start is also written into the annotation `punctual.kueue/planned-start`."""
    notice_interval: Duration = 5 * MINUTE
    """At most one Event about its planned start per job in this time."""
    not_admitted_warning: Duration = MINUTE
    """A job that was released and that Kueue has not admitted after this long gets a warning."""
    on_controller_loss: OnControllerLoss = OnControllerLoss()
    """What becomes of waiting work while no controller runs."""
    cluster_queues: dict[Name, QueueOverride] = Field(default_factory=dict)
    """What is different for single ClusterQueues, by name."""

    @model_validator(mode="after")
    def _levels_differ(self) -> Self:
        if twice := [level for k, level in enumerate(self.objective) if level in self.objective[:k]]:
            raise ValueError(f"objective lists {twice[0]} twice")
        return self

    def settings(self, base: Settings | None = None) -> Settings:
        """What the scheduler goes by: this policy, and of ``base`` what no policy says."""
        return replace(
            base or Settings(),
            **vars(self._queue(QueueOverride())),
            queues={name: self._queue(override) for name, override in self.cluster_queues.items()},
            objective=tuple(int(_LEVELS[level]) for level in self.objective),
            ageing_ms=self.ageing,
            preemption=int(_ENTITLEMENTS[self.preemption]),
            stability_threshold=self.stability_threshold,
            reservations=tuple(rule.reservation() for rule in self.reservations),
            engine=int(_ENGINES[self.engine]),
            budget_ms=self.budget,
            replan_ms=self.replan_every,
            annotate=self.annotate_planned_start,
            notice_interval_ms=self.notice_interval,
            in_flight_warning_ms=self.not_admitted_warning,
        )

    def _queue(self, override: QueueOverride) -> QueueSettings:
        """What holds for a queue."""
        defaults, weights, estimates = override.defaults, override.weights, override.estimates
        deadline: DueDate = self.defaults.deadline if defaults.deadline is None else defaults.deadline
        return QueueSettings(
            observed=(override.mode or self.mode) == "observe",
            default_deadline=None if deadline is NEVER else deadline,
            default_duration_ms=defaults.duration or self.defaults.duration,
            default_weight=self.weights.default if weights.default is None else weights.default,
            class_weights={**self.weights.by_priority_class, **weights.by_priority_class},
            weight_cap=self.weights.cap if weights.cap is None else weights.cap,
            learn=self.estimates.learn if estimates.learn is None else estimates.learn,
            estimate_quantile=estimates.quantile or self.estimates.quantile,
        )

    def as_data(self) -> dict[str, Any]:
        """The policy with all defaults filled in, as plain data in the form of the file."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class BadPolicy(BadFile):
    """A policy that cannot be read; ``mistakes`` has all that is wrong with it."""


def read_policy(text: str) -> Policy:
    """A policy in YAML or JSON.

    Raises
    ------
    BadPolicy
        If it is none, with every mistake: its path, its line and what is allowed.
    """
    try:
        return read_file(text, Policy, "the shortest policy is: version: 1")
    except BadFile as error:
        raise BadPolicy(error.mistakes) from None


def schema() -> dict[str, Any]:
    """JSON Schema of a policy, for editors and other tools."""
    return schema_of(Policy, "https://punctual.kueue/policy.v1.json")
