"""From an order to a schedule: what every engine decodes its ideas with.

Two passes over the same quota arithmetic. First each row, in the given order, takes the earliest room that is left,
also in front of rows placed before it: at exact instants (:mod:`solver.timeline`), or in time buckets
(:mod:`solver.buckets`) when there is very much work. Then forward in time (:mod:`solver.exact`), which takes any
rounding out again and grants what Kueue would grant. The second pass decides, so whatever an engine dreamt up, what
leaves here is feasible.

Work that is not ours to order goes first, always: released rows, then foreign ones, in Kueue's order. They are placed
once, and from then on count as held.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solver.buckets import Flag, Rows, make_hints, make_use, place
from solver.exact import start_in_order
from solver.plan import HOUR
from solver.problem import NEVER, Problem, State
from solver.quota import Int32s, Int64s
from solver.slots import Compact, Held, compact, rather_next
from solver.timeline import Board, Line, follow, keep, make_line, make_marks

NEAR = 3 / 4
"""Part of the buckets that is spent, evenly, on the time that all work should take; the rest reaches to the horizon."""


MOST_ENTRIES = 1 << 23
"""Most entries of the table of use by slot and bucket, or instant: 64 MB."""

ROUNDING, FEWEST_BUCKETS, MOST_BUCKETS = 0.02, 2_048, 1 << 16
"""Length of a bucket, in parts of a mean run time. A row loses half a bucket on average, so one per cent of the quota
× time is lost where there are buckets enough. (With 100,000 rows in too few buckets, a third of the work was late.)"""

FEW_ROWS, MOST_ROWS, MOST_SPANNED = 2_000, 20_000, 150
"""Rows that are placed at exact instants: a few always; more, when each lasts for no more instants than this."""


class Starts(NamedTuple):
    """When each row of a problem starts and with which option; ``int64 [n]``, ``int32 [n]``."""

    start: Int64s
    option: Int32s


class Buckets(NamedTuple):
    """Bucket and option of each row of a problem, ``int32 [n]``.

    Rows for which there was no time have the number of buckets, and option −1; those that were not to be placed have −1
    for both.
    """

    bucket: Int32s
    option: Int32s


def never_stop() -> Flag:
    """A stop flag that nobody sets."""
    return np.zeros(1, dtype=np.uint8)


class Scheduler:
    """Decodes orders for one problem.

    Parameters
    ----------
    problem
        What to plan.
    stop
        ``uint8 [1]``: set by another thread to end all work early. What is not placed by then is placed one after
        another behind all else, so that there always is a schedule.

    Attributes
    ----------
    ours
        ``int64 [m]``: rows that are ours to order (pending).
    fixed
        Starts of the other rows; −1 for ours.
    """

    def __init__(self, problem: Problem, stop: Flag | None = None) -> None:
        self.problem = problem
        self.stop = never_stop() if stop is None else stop
        self.compact = compact(problem)
        self.ours = np.flatnonzero(problem.state == State.PENDING)
        options = problem.options
        queue = _strict_queues(problem)
        self.rows = Rows(
            options.first[problem.pair],
            options.first[problem.pair + 1],
            problem.release,
            problem.duration,
            queue,
            rather_next(problem)[problem.pair],
        )
        self.floor = np.zeros(int(queue.max(initial=-1)) + 1, dtype=np.int64)
        self.edge = edges(problem, self.compact)
        self.hints = make_hints(self.compact.needs, problem.duration)
        self.held: Held = self.compact.held
        spanned = 2 * len(problem) * _mean_length(problem) / max(1.0, work_span(problem, self.compact))
        self._exact = len(problem) <= FEW_ROWS or (len(problem) <= MOST_ROWS and spanned <= MOST_SPANNED)
        self._use: Int64s | None = None
        self._line: tuple[Board, Line] | None = None
        self.fixed = Starts(np.full(len(problem), -1, dtype=np.int64), np.full(len(problem), -1, dtype=np.int32))
        others = np.flatnonzero(problem.state != State.PENDING)
        if len(others):
            self._place_others(others)

    def _place_others(self, others: Int64s) -> None:
        problem = self.problem
        released = problem.state[others] != State.IN_FLIGHT
        turn = others[np.lexsort((others, problem.created[others], -problem.priority[others], released))]
        start, option = self.schedule(turn)
        self.fixed.start[others], self.fixed.option[others] = start[others], option[others]
        self.held = self.with_rows(self.held, others, start, option)
        strict = others[self.rows.queue[others] >= 0]
        np.maximum.at(self.floor, self.rows.queue[strict], start[strict])
        self._line = self._use = None

    def options_of(self, row: int) -> range:
        """Options of a row."""
        return range(int(self.rows.first[row]), int(self.rows.last[row]))

    def earliest(self) -> Int64s:
        """Earliest start of each row, ``int64 [n]``: its release date, and its turn in a strict queue."""
        strict = self.rows.queue >= 0
        result = self.rows.release.copy()
        result[strict] = np.maximum(result[strict], self.floor[self.rows.queue[strict]])
        return result

    def with_rows(self, held: Held, which: Int64s, start: Int64s, option: Int32s) -> Held:
        """What is held when some rows have their places too."""
        needs = self.compact.needs
        count = needs.first[option[which] + 1] - needs.first[option[which]]
        row = np.repeat(which, count)
        entry = np.arange(len(row)) + np.repeat(needs.first[option[which]] - np.cumsum(count) + count, count)
        return Held(
            np.concatenate([held.slot, needs.slot[entry]]),
            np.concatenate([held.amount, needs.amount[entry]]),
            np.concatenate([held.start, start[row]]),
            np.concatenate([held.end, (start + self.problem.length(option))[row]]),
        ).by_start()

    def schedule(
        self, order: Int64s, tail: Int64s | None = None, held: Held | None = None, quick: bool = False
    ) -> Starts:
        """Place rows in an order.

        Parameters
        ----------
        order
            Rows to place, the most important first.
        tail
            When given: a row of ``order`` that would be late is put back, and placed with the rows of ``tail``, in the
            order of ``tail``, which must have all rows that are to be placed.
        held
            What is in use, if more than by default.
        quick
            Rather soon than well, when there is very much work.

        Returns
        -------
        Starts
            Of the rows placed; −1 for all others.
        """
        first, option = self._at_instants(order, tail, held) or self.in_buckets(order, tail, held, quick)
        placed = order if tail is None else tail
        rank = np.empty(len(self.problem), dtype=np.int64)
        rank[placed] = np.arange(len(placed))
        if tail is not None:
            rank[order] = np.arange(len(order)) - len(order)
        by_start = np.lexsort((rank[placed], first[placed]))
        return self.exactly(placed[by_start], option, held)

    def line(self, held: Held | None = None, unit: int = 1) -> tuple[Board, Line]:
        """A schedule without any row yet, in units of so many milliseconds, and what goes into it.

        Without limits: rows are placed however late they are. Work without a due date, or worth nothing, is never late.
        """
        problem, (slots, needs, *_) = self.problem, self.compact
        held = self.held if held is None else held
        held = held._replace(start=held.start // unit, end=-(-held.end // unit))
        release, floor = -(-problem.release // unit), -(-self.floor // unit)
        n = len(problem)
        line = make_line(slots, held, np.concatenate([release, floor]), n, self.hints.size, len(floor))
        known = line.time[: line.size[0]]
        line.floor[:] = np.searchsorted(known, floor)
        counts = (problem.due < NEVER) & (problem.weight > 0)
        board = Board(
            slots,
            needs._replace(lead=-(-needs.lead // unit)),
            self.hints._replace(duration=self.hints.duration // unit),
            self.rows._replace(duration=-(-problem.duration // unit)),
            np.searchsorted(known, release).astype(np.int32),
            np.full(n, NEVER, dtype=np.int64),
            np.zeros(n, dtype=np.bool_),
            np.where(counts, problem.due // unit, NEVER),
            np.where(counts, problem.weight, 0.0),
            np.where(problem.hard, 0.0, problem.weight) * unit / HOUR,
            problem.pull * unit / HOUR,
        )
        return board, line

    def _at_instants(self, order: Int64s, tail: Int64s | None, held: Held | None) -> Starts | None:
        """The first pass of :meth:`schedule` at exact instants; nothing where that would take too long."""
        n, slots = len(self.problem), len(self.compact.slots.up)
        instants = 2 * (n + len((self.held if held is None else held).slot))
        if instants * max(1, slots) > MOST_ENTRIES or not self._exact:
            return None
        if held is None and self._line is None:
            self._line = self.line()
        board, empty = self._line if held is None and self._line is not None else self.line(held)
        line = Line._make(array.copy() for array in empty)
        marks = make_marks(line, 0, 1)
        start, option = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int32)
        any_value = np.full(3, np.inf)
        due = board._replace(limit=self.problem.due)
        for rows, at in [(order, board)] if tail is None else [(order, due), (tail, board)]:
            follow(at, line, marks, rows[start[rows] < 0], 0, any_value, start, option, self.stop)
            keep(line, marks)
        return Starts(np.where(start < 0, NEVER, start), option)

    def in_buckets(
        self, order: Int64s, tail: Int64s | None = None, held: Held | None = None, quick: bool = False
    ) -> Buckets:
        """The first pass of :meth:`schedule` when there is very much work."""
        problem, (slots, needs, *_) = self.problem, self.compact
        edge = self.edge if not quick else edges(problem, self.compact, FEWEST_BUCKETS)
        if held is None and not quick:
            if self._use is None:
                self._use = make_use(slots, self.held, edge)
            use = self._use.copy()
        else:
            use = make_use(slots, self.held if held is None else held, edge)
        floor = np.searchsorted(edge, self.floor).astype(np.int64)
        table = np.zeros(self.hints.size, dtype=np.int32)
        bucket = np.full(len(problem), -1, dtype=np.int32)
        option = np.full(len(problem), -1, dtype=np.int32)
        never = np.full(len(problem), NEVER, dtype=np.int64)
        for rows, due in [(order, never)] if tail is None else [(order, problem.due), (tail, never)]:
            waiting = rows[bucket[rows] < 0]
            place(
                slots, needs, self.hints, self.rows, edge, use, waiting, due, floor, table, bucket, option,
                self.stop,
            )  # fmt: skip
        placed = order if tail is None else tail
        bucket[placed] = np.where(bucket[placed] < 0, len(edge) - 1, bucket[placed])
        return Buckets(bucket, option)

    def exactly(
        self,
        order: Int64s,
        options: Int32s | None = None,
        held: Held | None = None,
        release: Int64s | None = None,
    ) -> Starts:
        """Start rows one after another, none before the one in front of it; −1 for all other rows.

        Parameters
        ----------
        options
            ``int32 [n]``: the option that each row gets. Where it is −1, or without it, the first that fits.
        held
            What is in use, if more than by default.
        release
            ``int64 [n]``: earliest starts, if later than the problem's.
        """
        slots, needs, *_ = self.compact
        held = self.held if held is None else held
        rows = self.rows if release is None else self.rows._replace(release=release)
        if options is not None:
            given = options >= 0
            rows = rows._replace(
                first=np.where(given, options, rows.first), last=np.where(given, options + np.int32(1), rows.last)
            )
        n = len(self.problem)
        start, option = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int32)
        start_in_order(slots, needs, held, rows, order, self.floor.copy(), start, option, self.stop)
        rest = order[start[order] < 0]
        if len(rest):
            self._one_after_another(rest, order, held, start, option)
        return Starts(start, option)

    def _one_after_another(self, rest: Int64s, order: Int64s, held: Held, start: Int64s, option: Int32s) -> None:
        """What is left when time is up: behind everything, where each row has all quota for itself."""
        option[rest] = self.rows.first[rest]
        length = self.problem.length(option)
        done = order[start[order] >= 0]
        begin = max(
            int(held.end.max(initial=0)),
            int((start + length)[done].max(initial=0)),
            int(self.problem.release[rest].max(initial=0)),
            int(self.floor.max(initial=0)),
        )
        start[rest] = begin + np.cumsum(length[rest]) - length[rest]


def _strict_queues(problem: Problem) -> Int32s:
    """Queue of each row where Kueue admits nothing behind a blocked head (StrictFIFO); −1 elsewhere."""
    tree = problem.tree
    strict = np.full(len(tree.parent), -1, dtype=np.int32)
    for queue in np.flatnonzero(tree.strict_fifo & (tree.queue_node >= 0)):
        strict[tree.queue_node[queue]] = queue
    return strict[problem.options.node[problem.pair]]


def edges(problem: Problem, compact: Compact, buckets: int | None = None) -> Int64s:
    """Bucket borders: even over the time that all work should take, then ever longer up to the horizon.

    How many ``buckets``: the more the finer; if not given, it goes by how long a row takes.
    """
    reach = work_span(problem, compact)
    if buckets is None:
        length = max(1.0, ROUNDING * _mean_length(problem))
        buckets = int(np.clip(reach / NEAR / length, FEWEST_BUCKETS, MOST_BUCKETS))
    buckets = min(buckets, max(256, MOST_ENTRIES // max(1, len(compact.slots.up))))
    near = int(buckets * NEAR)
    span = max(float(near), min(float(problem.horizon), reach))
    even = np.arange(near + 1, dtype=np.float64) * (span / near)
    # From there on each bucket is longer than the one before it by the factor that reaches the horizon.
    far = np.geomspace(span, max(float(problem.horizon), 2 * span), buckets - near + 1)[1:]
    edge = np.unique(np.ceil(np.concatenate([even, far])).astype(np.int64))
    edge[-1] = max(edge[-1], problem.horizon)
    return edge


def _mean_length(problem: Problem) -> float:
    """How long a row takes, the mean weighted by what it takes of quota."""
    total = float(problem.size.sum())
    return float(problem.size @ problem.shortest) / total if total > 0 else 1.0


def work_span(problem: Problem, compact: Compact) -> float:
    """About how long the work takes: what it asks of a slot over what the slot has, where that is most."""
    if not len(problem):
        return 0.0
    slots, needs, held, *_ = compact
    count = np.diff(problem.options.first)
    # Each option of a pair gets its share of the pair's time.
    time = np.bincount(problem.pair, weights=problem.shortest, minlength=len(count)) / np.maximum(1, count)
    weight = np.repeat(np.repeat(time, count), np.diff(needs.first)) * needs.amount
    length = (held.end - held.start).astype(np.float64)
    load = np.zeros(len(slots.up))
    np.add.at(load, needs.slot, weight)
    np.add.at(load, held.slot, held.amount * length)
    room = slots.cap.astype(np.float64)
    for slot in range(len(slots.up) - 1, -1, -1):
        if (above := slots.up[slot]) >= 0:
            load[above] += load[slot]
            room[above] += slots.local[slot]
    room += slots.local
    busy = float((load / np.maximum(1, room)).max(initial=0))
    return 1.25 * busy + float(np.quantile(problem.release + problem.shortest, 0.9))
