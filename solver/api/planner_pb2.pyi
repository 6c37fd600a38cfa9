from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Entitlement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HONOUR: _ClassVar[Entitlement]
    WAIT: _ClassVar[Entitlement]

class ObjectiveLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_LEVEL_UNSPECIFIED: _ClassVar[ObjectiveLevel]
    LATE_WEIGHT: _ClassVar[ObjectiveLevel]
    TARDINESS: _ClassVar[ObjectiveLevel]
    PEAK: _ClassVar[ObjectiveLevel]
    START_TIMES: _ClassVar[ObjectiveLevel]
    STABILITY: _ClassVar[ObjectiveLevel]

class Engine(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_UNSPECIFIED: _ClassVar[Engine]
    GREEDY: _ClassVar[Engine]
    CP_SAT: _ClassVar[Engine]
    SEARCH: _ClassVar[Engine]

class PreemptionPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREEMPTION_NEVER: _ClassVar[PreemptionPolicy]
    PREEMPTION_LOWER_PRIORITY: _ClassVar[PreemptionPolicy]
    PREEMPTION_LOWER_OR_NEWER_EQUAL_PRIORITY: _ClassVar[PreemptionPolicy]
    PREEMPTION_ANY: _ClassVar[PreemptionPolicy]

class QueueingStrategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BEST_EFFORT_FIFO: _ClassVar[QueueingStrategy]
    STRICT_FIFO: _ClassVar[QueueingStrategy]

class FlavorFungibility(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MAY_STOP_SEARCH: _ClassVar[FlavorFungibility]
    TRY_NEXT_FLAVOR: _ClassVar[FlavorFungibility]

class WorkloadState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PENDING: _ClassVar[WorkloadState]
    IN_FLIGHT: _ClassVar[WorkloadState]
    RUNNING: _ClassVar[WorkloadState]
    FOREIGN: _ClassVar[WorkloadState]

class MoveReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_REASON_UNSPECIFIED: _ClassVar[MoveReason]
    NOT_POSSIBLE: _ClassVar[MoveReason]
    LATER_RELEASE: _ClassVar[MoveReason]
    ON_TIME: _ClassVar[MoveReason]
    LESS_LATE: _ClassVar[MoveReason]
    SOONER: _ClassVar[MoveReason]
    MAKES_WAY: _ClassVar[MoveReason]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    ROOM_NOW: _ClassVar[Reason]
    WAITS_FOR_QUOTA: _ClassVar[Reason]
    WAITS_FOR_RELEASE_DATE: _ClassVar[Reason]
    LATE_ALREADY: _ClassVar[Reason]
    LATE_NO_ROOM: _ClassVar[Reason]
    RELEASED: _ClassVar[Reason]
    NOT_OURS: _ClassVar[Reason]
    WAITS_FOR_NODES: _ClassVar[Reason]

class RejectionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECTION_KIND_UNSPECIFIED: _ClassVar[RejectionKind]
    INVALID: _ClassVar[RejectionKind]
    NEVER_FITS: _ClassVar[RejectionKind]
    QUEUE_STOPPED: _ClassVar[RejectionKind]
HONOUR: Entitlement
WAIT: Entitlement
OBJECTIVE_LEVEL_UNSPECIFIED: ObjectiveLevel
LATE_WEIGHT: ObjectiveLevel
TARDINESS: ObjectiveLevel
PEAK: ObjectiveLevel
START_TIMES: ObjectiveLevel
STABILITY: ObjectiveLevel
ENGINE_UNSPECIFIED: Engine
GREEDY: Engine
CP_SAT: Engine
SEARCH: Engine
PREEMPTION_NEVER: PreemptionPolicy
PREEMPTION_LOWER_PRIORITY: PreemptionPolicy
PREEMPTION_LOWER_OR_NEWER_EQUAL_PRIORITY: PreemptionPolicy
PREEMPTION_ANY: PreemptionPolicy
BEST_EFFORT_FIFO: QueueingStrategy
STRICT_FIFO: QueueingStrategy
MAY_STOP_SEARCH: FlavorFungibility
TRY_NEXT_FLAVOR: FlavorFungibility
PENDING: WorkloadState
IN_FLIGHT: WorkloadState
RUNNING: WorkloadState
FOREIGN: WorkloadState
MOVE_REASON_UNSPECIFIED: MoveReason
NOT_POSSIBLE: MoveReason
LATER_RELEASE: MoveReason
ON_TIME: MoveReason
LESS_LATE: MoveReason
SOONER: MoveReason
MAKES_WAY: MoveReason
REASON_UNSPECIFIED: Reason
ROOM_NOW: Reason
WAITS_FOR_QUOTA: Reason
WAITS_FOR_RELEASE_DATE: Reason
LATE_ALREADY: Reason
LATE_NO_ROOM: Reason
RELEASED: Reason
NOT_OURS: Reason
WAITS_FOR_NODES: Reason
REJECTION_KIND_UNSPECIFIED: RejectionKind
INVALID: RejectionKind
NEVER_FITS: RejectionKind
QUEUE_STOPPED: RejectionKind

class PlanRequest(_message.Message):
    __slots__ = ("schema", "now_ms", "horizon_ms", "budget", "seed", "policy", "quota", "shapes", "assignments", "workloads", "reservations", "previous")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    HORIZON_MS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    schema: int
    now_ms: int
    horizon_ms: int
    budget: Budget
    seed: int
    policy: Policy
    quota: Quota
    shapes: _containers.RepeatedCompositeFieldContainer[RequestShape]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    workloads: Workloads
    reservations: _containers.RepeatedCompositeFieldContainer[Reservation]
    previous: PreviousPlan
    def __init__(self, schema: _Optional[int] = ..., now_ms: _Optional[int] = ..., horizon_ms: _Optional[int] = ..., budget: _Optional[_Union[Budget, _Mapping]] = ..., seed: _Optional[int] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ..., shapes: _Optional[_Iterable[_Union[RequestShape, _Mapping]]] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., workloads: _Optional[_Union[Workloads, _Mapping]] = ..., reservations: _Optional[_Iterable[_Union[Reservation, _Mapping]]] = ..., previous: _Optional[_Union[PreviousPlan, _Mapping]] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("wall_ms", "work_limit")
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    WORK_LIMIT_FIELD_NUMBER: _ClassVar[int]
    wall_ms: int
    work_limit: int
    def __init__(self, wall_ms: _Optional[int] = ..., work_limit: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("objective", "engine", "ageing_ms", "stability_threshold", "preemption")
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    AGEING_MS_FIELD_NUMBER: _ClassVar[int]
    STABILITY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    objective: _containers.RepeatedScalarFieldContainer[ObjectiveLevel]
    engine: Engine
    ageing_ms: int
    stability_threshold: float
    preemption: Entitlement
    def __init__(self, objective: _Optional[_Iterable[_Union[ObjectiveLevel, str]]] = ..., engine: _Optional[_Union[Engine, str]] = ..., ageing_ms: _Optional[int] = ..., stability_threshold: _Optional[float] = ..., preemption: _Optional[_Union[Entitlement, str]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("resources", "flavors", "cohorts", "cluster_queues")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    FLAVORS_FIELD_NUMBER: _ClassVar[int]
    COHORTS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_QUEUES_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedScalarFieldContainer[str]
    flavors: _containers.RepeatedCompositeFieldContainer[ResourceFlavor]
    cohorts: _containers.RepeatedCompositeFieldContainer[Cohort]
    cluster_queues: _containers.RepeatedCompositeFieldContainer[ClusterQueue]
    def __init__(self, resources: _Optional[_Iterable[str]] = ..., flavors: _Optional[_Iterable[_Union[ResourceFlavor, _Mapping]]] = ..., cohorts: _Optional[_Iterable[_Union[Cohort, _Mapping]]] = ..., cluster_queues: _Optional[_Iterable[_Union[ClusterQueue, _Mapping]]] = ...) -> None: ...

class ResourceFlavor(_message.Message):
    __slots__ = ("name", "nodes", "lead_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LEAD_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeGroup]
    lead_ms: int
    def __init__(self, name: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeGroup, _Mapping]]] = ..., lead_ms: _Optional[int] = ...) -> None: ...

class NodeGroup(_message.Message):
    __slots__ = ("count", "resources", "amounts")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    count: int
    resources: _containers.RepeatedScalarFieldContainer[int]
    amounts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, count: _Optional[int] = ..., resources: _Optional[_Iterable[int]] = ..., amounts: _Optional[_Iterable[int]] = ...) -> None: ...

class Cohort(_message.Message):
    __slots__ = ("name", "parent", "quotas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    parent: str
    quotas: _containers.RepeatedCompositeFieldContainer[FlavorQuotas]
    def __init__(self, name: _Optional[str] = ..., parent: _Optional[str] = ..., quotas: _Optional[_Iterable[_Union[FlavorQuotas, _Mapping]]] = ...) -> None: ...

class ClusterQueue(_message.Message):
    __slots__ = ("name", "cohort", "resource_groups", "queueing_strategy", "flavor_fungibility", "stopped", "preemption")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUEING_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    FLAVOR_FUNGIBILITY_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    cohort: str
    resource_groups: _containers.RepeatedCompositeFieldContainer[ResourceGroup]
    queueing_strategy: QueueingStrategy
    flavor_fungibility: FlavorFungibility
    stopped: bool
    preemption: Preemption
    def __init__(self, name: _Optional[str] = ..., cohort: _Optional[str] = ..., resource_groups: _Optional[_Iterable[_Union[ResourceGroup, _Mapping]]] = ..., queueing_strategy: _Optional[_Union[QueueingStrategy, str]] = ..., flavor_fungibility: _Optional[_Union[FlavorFungibility, str]] = ..., stopped: _Optional[bool] = ..., preemption: _Optional[_Union[Preemption, _Mapping]] = ...) -> None: ...

class Preemption(_message.Message):
    __slots__ = ("within_cluster_queue", "reclaim_within_cohort", "borrow_within_cohort", "max_priority_threshold", "stop_search", "over_borrowing")
    WITHIN_CLUSTER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECLAIM_WITHIN_COHORT_FIELD_NUMBER: _ClassVar[int]
    BORROW_WITHIN_COHORT_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    STOP_SEARCH_FIELD_NUMBER: _ClassVar[int]
    OVER_BORROWING_FIELD_NUMBER: _ClassVar[int]
    within_cluster_queue: PreemptionPolicy
    reclaim_within_cohort: PreemptionPolicy
    borrow_within_cohort: bool
    max_priority_threshold: int
    stop_search: bool
    over_borrowing: bool
    def __init__(self, within_cluster_queue: _Optional[_Union[PreemptionPolicy, str]] = ..., reclaim_within_cohort: _Optional[_Union[PreemptionPolicy, str]] = ..., borrow_within_cohort: _Optional[bool] = ..., max_priority_threshold: _Optional[int] = ..., stop_search: _Optional[bool] = ..., over_borrowing: _Optional[bool] = ...) -> None: ...

class ResourceGroup(_message.Message):
    __slots__ = ("covered_resources", "flavors")
    COVERED_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    FLAVORS_FIELD_NUMBER: _ClassVar[int]
    covered_resources: _containers.RepeatedScalarFieldContainer[int]
    flavors: _containers.RepeatedCompositeFieldContainer[FlavorQuotas]
    def __init__(self, covered_resources: _Optional[_Iterable[int]] = ..., flavors: _Optional[_Iterable[_Union[FlavorQuotas, _Mapping]]] = ...) -> None: ...

class FlavorQuotas(_message.Message):
    __slots__ = ("flavor", "resources")
    FLAVOR_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    flavor: int
    resources: _containers.RepeatedCompositeFieldContainer[ResourceQuota]
    def __init__(self, flavor: _Optional[int] = ..., resources: _Optional[_Iterable[_Union[ResourceQuota, _Mapping]]] = ...) -> None: ...

class ResourceQuota(_message.Message):
    __slots__ = ("resource", "nominal", "borrowing_limit", "lending_limit")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NOMINAL_FIELD_NUMBER: _ClassVar[int]
    BORROWING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    LENDING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    resource: int
    nominal: int
    borrowing_limit: int
    lending_limit: int
    def __init__(self, resource: _Optional[int] = ..., nominal: _Optional[int] = ..., borrowing_limit: _Optional[int] = ..., lending_limit: _Optional[int] = ...) -> None: ...

class RequestShape(_message.Message):
    __slots__ = ("pod_sets",)
    POD_SETS_FIELD_NUMBER: _ClassVar[int]
    pod_sets: _containers.RepeatedCompositeFieldContainer[PodSet]
    def __init__(self, pod_sets: _Optional[_Iterable[_Union[PodSet, _Mapping]]] = ...) -> None: ...

class PodSet(_message.Message):
    __slots__ = ("count", "min_count", "resources", "amounts", "excluded_flavors")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FLAVORS_FIELD_NUMBER: _ClassVar[int]
    count: int
    min_count: int
    resources: _containers.RepeatedScalarFieldContainer[int]
    amounts: _containers.RepeatedScalarFieldContainer[int]
    excluded_flavors: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, count: _Optional[int] = ..., min_count: _Optional[int] = ..., resources: _Optional[_Iterable[int]] = ..., amounts: _Optional[_Iterable[int]] = ..., excluded_flavors: _Optional[_Iterable[int]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("flavors", "resources", "amounts", "pods")
    FLAVORS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    flavors: _containers.RepeatedScalarFieldContainer[int]
    resources: _containers.RepeatedScalarFieldContainer[int]
    amounts: _containers.RepeatedScalarFieldContainer[int]
    pods: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, flavors: _Optional[_Iterable[int]] = ..., resources: _Optional[_Iterable[int]] = ..., amounts: _Optional[_Iterable[int]] = ..., pods: _Optional[_Iterable[int]] = ...) -> None: ...

class Workloads(_message.Message):
    __slots__ = ("id", "cluster_queue", "shape", "state", "created_ms", "release_ms", "duration_ms", "due_ms", "hard", "weight", "priority", "assignment", "reserved_ms", "evicted")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_MS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    HARD_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RESERVED_MS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[str]
    cluster_queue: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    state: _containers.RepeatedScalarFieldContainer[WorkloadState]
    created_ms: _containers.RepeatedScalarFieldContainer[int]
    release_ms: _containers.RepeatedScalarFieldContainer[int]
    duration_ms: _containers.RepeatedScalarFieldContainer[int]
    due_ms: _containers.RepeatedScalarFieldContainer[int]
    hard: _containers.RepeatedScalarFieldContainer[bool]
    weight: _containers.RepeatedScalarFieldContainer[float]
    priority: _containers.RepeatedScalarFieldContainer[int]
    assignment: _containers.RepeatedScalarFieldContainer[int]
    reserved_ms: _containers.RepeatedScalarFieldContainer[int]
    evicted: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, id: _Optional[_Iterable[str]] = ..., cluster_queue: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ..., state: _Optional[_Iterable[_Union[WorkloadState, str]]] = ..., created_ms: _Optional[_Iterable[int]] = ..., release_ms: _Optional[_Iterable[int]] = ..., duration_ms: _Optional[_Iterable[int]] = ..., due_ms: _Optional[_Iterable[int]] = ..., hard: _Optional[_Iterable[bool]] = ..., weight: _Optional[_Iterable[float]] = ..., priority: _Optional[_Iterable[int]] = ..., assignment: _Optional[_Iterable[int]] = ..., reserved_ms: _Optional[_Iterable[int]] = ..., evicted: _Optional[_Iterable[bool]] = ...) -> None: ...

class Reservation(_message.Message):
    __slots__ = ("node", "flavor", "resource", "amount", "start_ms", "end_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FLAVOR_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    node: str
    flavor: int
    resource: int
    amount: int
    start_ms: int
    end_ms: int
    def __init__(self, node: _Optional[str] = ..., flavor: _Optional[int] = ..., resource: _Optional[int] = ..., amount: _Optional[int] = ..., start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ...) -> None: ...

class PreviousPlan(_message.Message):
    __slots__ = ("workload", "start_ms", "assignment", "assignments")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    workload: _containers.RepeatedScalarFieldContainer[int]
    start_ms: _containers.RepeatedScalarFieldContainer[int]
    assignment: _containers.RepeatedScalarFieldContainer[int]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    def __init__(self, workload: _Optional[_Iterable[int]] = ..., start_ms: _Optional[_Iterable[int]] = ..., assignment: _Optional[_Iterable[int]] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("plan", "objective", "rejections", "frozen_queues", "timing", "final", "moves", "notes")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_QUEUES_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    objective: Objective
    rejections: _containers.RepeatedCompositeFieldContainer[Rejection]
    frozen_queues: _containers.RepeatedCompositeFieldContainer[FrozenQueue]
    timing: Timing
    final: bool
    moves: Moves
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., objective: _Optional[_Union[Objective, _Mapping]] = ..., rejections: _Optional[_Iterable[_Union[Rejection, _Mapping]]] = ..., frozen_queues: _Optional[_Iterable[_Union[FrozenQueue, _Mapping]]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., final: _Optional[bool] = ..., moves: _Optional[_Union[Moves, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Moves(_message.Message):
    __slots__ = ("workload", "from_ms", "to_ms", "reason", "cause")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    workload: _containers.RepeatedScalarFieldContainer[int]
    from_ms: _containers.RepeatedScalarFieldContainer[int]
    to_ms: _containers.RepeatedScalarFieldContainer[int]
    reason: _containers.RepeatedScalarFieldContainer[MoveReason]
    cause: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, workload: _Optional[_Iterable[int]] = ..., from_ms: _Optional[_Iterable[int]] = ..., to_ms: _Optional[_Iterable[int]] = ..., reason: _Optional[_Iterable[_Union[MoveReason, str]]] = ..., cause: _Optional[_Iterable[int]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("workload", "start_ms", "not_before_ms", "finish_ms", "assignment", "tardiness_ms", "reason", "assignments")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    FINISH_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    TARDINESS_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    workload: _containers.RepeatedScalarFieldContainer[int]
    start_ms: _containers.RepeatedScalarFieldContainer[int]
    not_before_ms: _containers.RepeatedScalarFieldContainer[int]
    finish_ms: _containers.RepeatedScalarFieldContainer[int]
    assignment: _containers.RepeatedScalarFieldContainer[int]
    tardiness_ms: _containers.RepeatedScalarFieldContainer[int]
    reason: _containers.RepeatedScalarFieldContainer[Reason]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    def __init__(self, workload: _Optional[_Iterable[int]] = ..., start_ms: _Optional[_Iterable[int]] = ..., not_before_ms: _Optional[_Iterable[int]] = ..., finish_ms: _Optional[_Iterable[int]] = ..., assignment: _Optional[_Iterable[int]] = ..., tardiness_ms: _Optional[_Iterable[int]] = ..., reason: _Optional[_Iterable[_Union[Reason, str]]] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ...) -> None: ...

class Objective(_message.Message):
    __slots__ = ("levels", "bound", "gap", "engine")
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    levels: _containers.RepeatedCompositeFieldContainer[ObjectiveValue]
    bound: float
    gap: float
    engine: str
    def __init__(self, levels: _Optional[_Iterable[_Union[ObjectiveValue, _Mapping]]] = ..., bound: _Optional[float] = ..., gap: _Optional[float] = ..., engine: _Optional[str] = ...) -> None: ...

class ObjectiveValue(_message.Message):
    __slots__ = ("level", "value")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    level: ObjectiveLevel
    value: float
    def __init__(self, level: _Optional[_Union[ObjectiveLevel, str]] = ..., value: _Optional[float] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("workload", "id", "field", "message", "kind")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    workload: int
    id: str
    field: str
    message: str
    kind: RejectionKind
    def __init__(self, workload: _Optional[int] = ..., id: _Optional[str] = ..., field: _Optional[str] = ..., message: _Optional[str] = ..., kind: _Optional[_Union[RejectionKind, str]] = ...) -> None: ...

class FrozenQueue(_message.Message):
    __slots__ = ("name", "message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    message: str
    def __init__(self, name: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("decode_us", "solve_us", "verify_us", "encode_us")
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    SOLVE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    ENCODE_US_FIELD_NUMBER: _ClassVar[int]
    decode_us: int
    solve_us: int
    verify_us: int
    encode_us: int
    def __init__(self, decode_us: _Optional[int] = ..., solve_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., encode_us: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("request", "plan")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    request: PlanRequest
    plan: Plan
    def __init__(self, request: _Optional[_Union[PlanRequest, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("valid", "violations")
    VALID_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    valid: bool
    violations: _containers.RepeatedCompositeFieldContainer[Violation]
    def __init__(self, valid: _Optional[bool] = ..., violations: _Optional[_Iterable[_Union[Violation, _Mapping]]] = ...) -> None: ...

class Violation(_message.Message):
    __slots__ = ("workload", "at_ms", "message")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    workload: int
    at_ms: int
    message: str
    def __init__(self, workload: _Optional[int] = ..., at_ms: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
