"""What success is: per task or service what counts as a result, in what time, of what quality, at what cost.

``success.yaml`` is written by those who use the results, not by those who run the cluster. Nothing here looks at a
cluster: what has happened is judged by it elsewhere.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from scheduler.annotations import format_duration
from scheduler.duedate import NEVER, parse_due_date
from scheduler.schema_file import BadFile, Duration, Name, Part, read_file, reads, schema_of
from scheduler.settings import MINUTE, SECOND

OWN = "own"
"""The deadline that the work itself has."""

_PERCENTILE = re.compile(r"p([1-9][0-9]?(?:\.[0-9]{1,3})?)")


def percentile(name: str) -> float:
    """The share that a percentile's name means: 0.95 for ``p95``, 0.999 for ``p99.9``."""
    match = _PERCENTILE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is no percentile; write one from p1 to p99.999, say p95")
    return round(float(match[1]) / 100, 5)


def _percentile_name(name: str) -> str:
    percentile(name)
    return name


def _due(text: str) -> Any:
    if text == OWN:
        return OWN
    rule = parse_due_date(text)
    if rule is NEVER:
        raise ValueError('"none" is no deadline; a task has one, a service has none')
    return rule


Due = Annotated[
    Any,
    reads(_due),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["own", "8h", "due 06:00 Europe/Lisbon"]}),
]
"""``OWN``, or a :class:`~scheduler.duedate.DueDate`."""

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
Percentile = Annotated[str, AfterValidator(_percentile_name)]
Limits = Annotated[
    dict[Percentile, Duration],
    Field(min_length=1, json_schema_extra={"propertyNames": {"pattern": f"^{_PERCENTILE.pattern}$"}}),
]
"""From a percentile's name to what it may be at most, in milliseconds."""


class Match(Part):
    """Which work of the cluster it is: what is written must all hold. `*` stands for anything."""

    cluster_queue: Name | None = None
    """Name of its ClusterQueue."""
    namespace: Name | None = None
    """Its namespace."""
    family: Name | None = None
    """Its name without what is generated, or its family label: FAMILY of `punctual ledger calibration`."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.cluster_queue is None and self.namespace is None and self.family is None:
            raise ValueError("is empty; name a clusterQueue, a namespace or a family")
        return self


class Judge(Part):
    """Who says how good a result is. A score is a number from 0 (worthless) to 1."""

    kind: Literal["exact", "contains", "regex", "command"]
    """`exact`: the answer is the one expected; `contains`: the one expected is in it; `regex`: the one expected is a pattern that is found in it; `command`: a program scores it."""  # noqa: E501
    field: Name | None = None
    """Where in an answer that is JSON to look: keys and list positions with dots between, `choices.0.label`. Left out: the whole answer."""  # noqa: E501
    ignore_case: bool = False
    """Whether upper and lower case are the same (not for `command`)."""
    command: list[str] = Field(default_factory=list)
    """Program and arguments, for `command`. It reads one JSON object a line and writes one score a line."""
    timeout: Duration = MINUTE
    """How long the program may take for all of it, for `command`."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.kind == "command" and not self.command:
            raise ValueError("kind is command, but there is no command; write, say, command: [python, judge.py]")
        if self.kind != "command" and self.command:
            raise ValueError(f"there is a command, but kind is {self.kind}; write kind: command")
        if self.kind == "command" and (self.field is not None or self.ignore_case):
            raise ValueError("field and ignoreCase are not for kind: command; its program sees the whole answer")
        return self


class Quality(Part):
    """How good results must be."""

    judge: Judge
    """Who says how good a result is."""
    threshold: Share
    """What the mean score of all results must be at least; a result that did not come scores 0."""
    good_score: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.5
    """From which score on a single result is a good one."""


class Budget(Part):
    """What it may cost. At least one of the first three must be there."""

    gpu_hours: Positive | None = None
    """GPU-hours in a period (`per`)."""
    cost: Positive | None = None
    """Money in a period (`per`)."""
    cost_per_result: Positive | None = None
    """Money for one good result."""
    per: Literal["day", "week", "month"] = "month"
    """The period; a month is 30 days."""
    currency: Currency | None = None
    """Of the money: EUR, USD …"""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        money = self.cost is not None or self.cost_per_result is not None
        if not money and self.gpu_hours is None:
            raise ValueError("is empty; write gpuHours, cost or costPerResult")
        if money and self.currency is None:
            raise ValueError("speaks of money but not of which; write, say, currency: EUR")
        return self


class TaskResult(Part):
    """What counts as a result of a task."""

    name: Name = "result"
    """What it is called in reports: model, report …"""
    when: Literal["succeeded", "finished"] = "succeeded"
    """`succeeded`: the work ended well; `finished`: it ended by itself, well or not."""
    count: Annotated[int, Field(ge=1)] = 1
    """How many results one such piece of work is."""


class Task(Part):
    """Work that is worth most when it is done by a deadline."""

    match: Match
    """Which work of the cluster it is."""
    result: TaskResult = TaskResult()
    """What counts as a result."""
    deadline: Due = OWN
    """By when: `own` (what the work itself or its queue's policy says), a time after creation, or a time of day at a place."""  # noqa: E501
    on_time: Share = 0.95
    """Which share of its work must give its result by then."""
    quality: Quality | None = None
    """How good results must be. The judge is a `command`, which reads what `punctual ledger export -o json` writes."""
    budget: Budget | None = None
    """What it may cost."""

    @model_validator(mode="after")
    def _judge_can_judge(self) -> Self:
        if self.quality is not None and self.quality.judge.kind != "command":
            raise ValueError(f"the judge's kind is {self.quality.judge.kind}: that is for answers; write kind: command")
        return self


class ServiceResult(Part):
    """What counts as a result of a service."""

    name: Name = "answer"
    """What it is called in reports: answer, classification …"""
    min_length: Annotated[int, Field(ge=0)] = 1
    """Characters that an answer has at least; a shorter one is none."""
    cut_off: Literal["counts", "fails"] = "counts"
    """Whether an answer that the server cut off (`finish_reason` is `length`) is one."""


class Goals(Part):
    """Response times, by percentile over all requests; one that got no answer took for ever. A request's time counts from when it was due to be sent."""  # noqa: E501

    ttft: Limits | None = None
    """Time to the first token, or the first byte of the answer: `{p95: 500ms, p99: 1s}`."""
    per_token: Limits | None = None
    """Mean time from one token of an answer to the next, after the first."""
    end_to_end: Limits | None = None
    """Time to the end of the answer."""

    def limits(self) -> dict[str, dict[str, int]]:
        """By the fields' names in the file (`ttft` …): percentile and milliseconds, those that are there."""
        told = {"ttft": self.ttft, "perToken": self.per_token, "endToEnd": self.end_to_end}
        return {name: limits for name, limits in told.items() if limits is not None}

    @field_validator("ttft", "per_token", "end_to_end")
    @classmethod
    def _rise(cls, limits: dict[str, int] | None) -> dict[str, int] | None:
        ordered = sorted((percentile(name), name, limit) for name, limit in (limits or {}).items())
        for (_, low, less), (_, high, more) in pairwise(ordered):
            if more < less:
                told = f"{high} is {format_duration(more)} and {low} is {format_duration(less)}"
                raise ValueError(f"{told}; a higher percentile is never shorter")
        return limits

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.limits():
            raise ValueError("is empty; write ttft, perToken or endToEnd, say endToEnd: {p95: 2s}")
        return self


class Service(Part):
    """What answers around the clock."""

    match: Match | None = None
    """Which work of the cluster it is; left out: no one looks for it there."""
    result: ServiceResult = ServiceResult()
    """What counts as a result."""
    goals: Goals
    """Response times."""
    answered: Share = 0.99
    """Which share of requests must get a result."""
    timeout: Duration = 60 * SECOND
    """After this long no one waits for an answer any more."""
    quality: Quality | None = None
    """How good answers must be."""
    budget: Budget | None = None
    """What it may cost."""

    @model_validator(mode="after")
    def _timeout_is_last(self) -> Self:
        for name, limits in self.goals.limits().items():
            if (most := max(limits.values())) > self.timeout:
                told = f"timeout is {format_duration(self.timeout)}, less than {format_duration(most)} of goals.{name}"
                raise ValueError(f"{told}; write a longer one")
        return self


class Success(Part):
    """What success is, for each task and each service."""

    version: Literal[1]
    """Version of this schema."""
    tasks: dict[Name, Task] = Field(default_factory=dict)
    """Work with a deadline, by a name of your own."""
    services: dict[Name, Service] = Field(default_factory=dict)
    """What answers around the clock, by a name of your own."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.tasks and not self.services:
            raise ValueError("names neither tasks nor services")
        if both := sorted(self.tasks.keys() & self.services.keys()):
            raise ValueError(f"{both[0]} is both a task and a service")
        return self

    def as_data(self) -> dict[str, Any]:
        """The same with all defaults filled in, as plain data in the form of the file."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class BadSuccess(BadFile):
    """Success metrics that cannot be read; ``mistakes`` has all that is wrong with them."""


def read_success(text: str) -> Success:
    """Success metrics in YAML or JSON.

    Raises
    ------
    BadSuccess
        If they are none, with every mistake: its path, its line and what is allowed.
    """
    hint = "write version: 1, and tasks or services (docs/success.md)"
    try:
        return read_file(text, Success, hint)
    except BadFile as error:
        raise BadSuccess(error.mistakes) from None


def schema() -> dict[str, Any]:
    """JSON Schema of success metrics, for editors and other tools."""
    return schema_of(Success, "https://punctual.kueue/success.v1.json")
