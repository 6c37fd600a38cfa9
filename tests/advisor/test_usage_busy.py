"""How busy GPUs were, beside what was allocated; and a Prometheus that does not do as it should."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from fractions import Fraction

import pytest

from advisor.outcomes import Judge
from advisor.prometheus import Prometheus, SourceError
from advisor.usage import Row, Usage, Window, allocate, rows, total
from advisor.usage_busy import ACTIVE, UTILISATION, measure
from advisor.usage_pods import Pods
from scheduler.ledger_entry import Entry
from scheduler.settings import DAY, HOUR, MINUTE
from tests.advisor.fake_prometheus import FakePrometheus, fake_prometheus, slow
from tests.advisor.work import START, work

WINDOW = Window(START, START + 6 * HOUR)
DCGM = {"Hostname": "node-1", "UUID": "GPU-1", "gpu": "0"}


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    """A Prometheus."""
    with fake_prometheus() as running:
        yield running


def measured(
    fake: FakePrometheus, *entries: Entry, window: Window = WINDOW, timeout: float = 5.0, wrong: str = ""
) -> Usage:
    """The usage of some work; what went wrong must be as said."""
    usage = allocate(entries, window, window.end)
    said = measure(usage, Pods(entries, window.end), Prometheus(fake.url, timeout=timeout))
    assert (wrong in said) if wrong else not said, said
    return usage


def pod(name: str, gpu: str = "GPU-1", **labels: str) -> dict[str, str]:
    """Labels of a GPU used by a pod, as the exporter writes them and Prometheus keeps them."""
    return {
        **DCGM, "UUID": gpu, "exported_namespace": "team", "exported_pod": name, "namespace": "gpu-operator",
        "pod": "nvidia-dcgm-exporter-x7k2p", **labels,
    }  # fmt: skip


def whole(usage: Usage) -> Row:
    """All of it."""
    return total(usage, Judge().worth)


def test_busy_is_what_the_exporter_saw_of_what_was_allocated(fake: FakePrometheus) -> None:
    """Two GPUs for two hours, one half busy and one not at all: four allocated, four measured, one busy."""
    entry = work(verdict="verified")
    fake.gauge(ACTIVE, 0.5, START, START + 2 * HOUR, **pod("train-1-bcdf5", "GPU-1"))
    fake.gauge(ACTIVE, 0.0, START, START + 2 * HOUR, **pod("train-1-bcdf5", "GPU-2"))
    row = whole(measured(fake, entry))
    assert (row.allocated, row.seen, row.busy, row.productive, row.unjudged) == pytest.approx((4, 4, 1, 1, 0))


def test_what_was_not_scraped_is_not_measured(fake: FakePrometheus) -> None:
    """A gap, as an exporter leaves that is restarted, is neither busy nor idle."""
    fake.gauge(ACTIVE, 1.0, START, START + 30 * MINUTE, **pod("train-1-bcdf5"))
    fake.gauge(ACTIVE, 1.0, START + 90 * MINUTE, START + 2 * HOUR, **pod("train-1-bcdf5"))
    row = whole(measured(fake, work(gpus=1)))
    assert (row.allocated, row.seen, row.busy) == pytest.approx((2, 1, 1))
    assert row.gap == pytest.approx(0)


def test_a_gap_within_a_step_counts_by_its_samples(fake: FakePrometheus) -> None:
    """Of ten minutes, scraped each minute, four samples of the second five are missing: six minutes are measured."""
    fake.gauge(ACTIVE, 1.0, START, START + 6 * MINUTE, **pod("train-1-bcdf5"))
    row = whole(measured(fake, work(runs=((0, 1 / 6),), gpus=1)))
    assert row.seen * 60 == pytest.approx(6)


def test_the_better_metric_counts(fake: FakePrometheus) -> None:
    """Engine activity where it is there, utilisation in percent where it is not."""
    fake.gauge(ACTIVE, 0.25, START, START + HOUR, **pod("train-1-bcdf5"))
    fake.gauge(UTILISATION, 100, START, START + 2 * HOUR, **pod("train-1-bcdf5"))
    row = whole(measured(fake, work(gpus=1)))
    assert (row.seen, row.busy) == pytest.approx((2, 1.25))


def test_samples_that_are_no_numbers_are_none(fake: FakePrometheus) -> None:
    """NaN is not measured, more than all the time is all the time."""
    fake.gauge(ACTIVE, math.nan, START, START + HOUR, **pod("train-1-bcdf5"))
    fake.gauge(ACTIVE, 7.0, START + HOUR, START + 2 * HOUR, **pod("train-1-bcdf5"))
    row = whole(measured(fake, work(gpus=1)))
    assert (row.seen, row.busy) == pytest.approx((1, 1))


def test_a_pod_name_that_comes_again_is_told_by_its_time(fake: FakePrometheus) -> None:
    """Two jobs of the same name, one after the other, and their pods too: each has its own hours."""
    first = work(gpus=1, runs=((0, 1),), verdict="verified")
    second = replace(work(gpus=1, runs=((1, 2),)), uid="second")
    fake.gauge(ACTIVE, 1.0, START, START + HOUR, **pod("train-1-bcdf5"))
    fake.gauge(ACTIVE, 0.2, START + HOUR, START + 2 * HOUR, **pod("train-1-bcdf5"))
    usage = measured(fake, first, second)
    busy = {slot.entry.uid: slot.busy / HOUR for slot in usage.slots}
    assert busy == pytest.approx({first.uid: 1.0, "second": 0.2})


def test_a_gpu_that_is_handed_on_is_not_shared(fake: FakePrometheus) -> None:
    """One job ends and the next begins on the same GPU within one step: each has its part."""
    entries = work("a", ((0, 0.55),), gpus=1, kind="JobSet"), work("b", ((0.55, 1),), gpus=1, kind="JobSet")
    fake.gauge(ACTIVE, 1.0, START, START + 33 * MINUTE, **pod("a-w-0-0-bcdf5"))
    fake.gauge(ACTIVE, 1.0, START + 33 * MINUTE, START + HOUR, **pod("b-w-0-0-bcdf5"))
    usage = measured(fake, *entries)
    assert {row.key: row.busy for row in rows(usage, "workload")} == pytest.approx(
        {"team/a": 0.55, "team/b": 0.45}, abs=0.02
    )
    assert usage.shared == 0


def test_whose_a_shared_gpu_was_is_not_guessed(fake: FakePrometheus) -> None:
    """Two pods on one GPU at once: what it did is nobody's, and said."""
    entries = work("a", ((0, 1),), gpus=1), work("b", ((0, 1),), gpus=1)
    for name in ("a-bcdf5", "b-bcdf5"):
        fake.gauge(ACTIVE, 0.5, START, START + HOUR, **pod(name))
    usage = measured(fake, *entries)
    assert whole(usage).seen == 0
    assert "of GPUs that pods share" in " ".join(usage.remarks)


def test_replicas_of_a_time_sliced_gpu_are_not_guessed_either(fake: FakePrometheus) -> None:
    """The exporter may name only one of several pods: by the resource it is known that there may be more."""
    fake.gauge(ACTIVE, 1.0, START, START + HOUR, **pod("a-bcdf5"))
    usage = measured(fake, work("a", ((0, 1),), gpus=1, resource="nvidia.com/gpu.shared"))
    assert (whole(usage).seen, usage.shared / HOUR) == (0, pytest.approx(1))


def test_a_share_that_is_said_is_not_alone(fake: FakePrometheus) -> None:
    """Time-sliced under the name of whole GPUs: once that is said, its busy time is nobody's."""
    fake.gauge(ACTIVE, 1.0, START, START + HOUR, **pod("a-bcdf5"))
    entry = work("a", ((0, 1),), gpus=1)
    usage = allocate([entry], WINDOW, WINDOW.end, {"nvidia.com/gpu": Fraction(1, 4)})
    assert measure(usage, Pods([entry], WINDOW.end), Prometheus(fake.url)) == ""
    assert (usage.slots[0].allocated / HOUR, usage.slots[0].seen, usage.shared / HOUR) == (0.25, 0, pytest.approx(1))


def test_a_slice_is_measured_as_its_part(fake: FakePrometheus) -> None:
    """A MIG instance that is busy half the time is half of its part of a GPU."""
    slice_ = {"GPU_I_ID": "3", "GPU_I_PROFILE": "3g.40gb"}
    fake.gauge(ACTIVE, 0.5, START, START + 2 * HOUR, **pod("train-1-bcdf5", **slice_))
    fake.gauge(ACTIVE, 0.9, START, START + 2 * HOUR, **DCGM)  # the GPU as a whole, which no pod has
    usage = measured(fake, work(gpus=1, resource="nvidia.com/mig-3g.40gb"))
    row = whole(usage)
    assert (row.allocated, row.seen, row.busy) == pytest.approx((6 / 7, 6 / 7, 3 / 7))
    assert usage.elsewhere == 0


def test_one_gpu_that_is_scraped_twice_is_one(fake: FakePrometheus) -> None:
    """Two Prometheus behind one address, or an exporter under two names: the GPU is counted once."""
    for replica in ("a", "b"):
        fake.gauge(ACTIVE, 1.0, START, START + HOUR, **pod("train-1-bcdf5"), replica=replica)
    row = whole(measured(fake, work(runs=((0, 1),), gpus=1)))
    assert (row.seen, row.busy) == pytest.approx((1, 1))


def test_more_gpus_than_allocated_are_left_out(fake: FakePrometheus) -> None:
    """Never more measured than allocated; it is said where."""
    for gpu in ("GPU-1", "GPU-2", "GPU-3"):
        fake.gauge(ACTIVE, 1.0, START, START + HOUR, **pod("train-1-bcdf5", gpu))
    usage = measured(fake, work(runs=((0, 1),), gpus=1))
    assert (whole(usage).seen, whole(usage).busy) == pytest.approx((1, 1))
    assert "more GPUs were measured than allocated for 1 workloads (team/train-1: 2.0 GPU-hours)" in usage.remarks[0]


def test_hosts_may_be_scraped_at_other_intervals(fake: FakePrometheus) -> None:
    """A host that is scraped half as often is measured as fully."""
    fake.gauge(ACTIVE, 1.0, START, START + HOUR, every=15, **pod("a-bcdf5", "GPU-1"))
    fake.gauge(ACTIVE, 1.0, START, START + HOUR, every=60, **{**pod("b-bcdf5", "GPU-2"), "Hostname": "node-2"})
    row = whole(measured(fake, work("a", ((0, 1),), gpus=1), work("b", ((0, 1),), gpus=1)))
    assert row.seen == pytest.approx(2)


def test_pods_of_nobody_are_elsewhere(fake: FakePrometheus) -> None:
    """Of another namespace, or outside of all runs; told, and no row has them."""
    fake.gauge(ACTIVE, 1.0, START, START + HOUR, **{**pod("train-1-bcdf5"), "exported_namespace": "other"})
    fake.gauge(ACTIVE, 1.0, START + 3 * HOUR, START + 4 * HOUR, **pod("train-1-bcdf5", "GPU-2"))
    usage = measured(fake, work(gpus=1))
    assert (whole(usage).seen, usage.elsewhere / HOUR) == (0, pytest.approx(2))
    assert "2.0 busy GPU-hours are of pods that the ledger does not know" in usage.remarks


# --- whose pod it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod_name", "labels", "owner", "found"),
    [
        ("train-bcdf5", {}, "", ["train"]),
        ("train-7-bcdf5", {}, "", None),  # the job train-7, or index 7 of the job train
        ("train-7-bcdf5", {"job_name": "train"}, "", ["train"]),
        ("train-7-bcdf5", {}, "train-7", ["train-7"]),
        ("train-bcdf5", {}, "something-else", []),
        ("train-worker", {}, "", []),
        ("set-workers-0-0-bcdf5", {}, "", ["set"]),
        ("set-workers-0-0-bcdf5", {}, "set-workers-0", ["set"]),
        ("chat-7d9f8c5b6-x2k7p", {}, "chat-7d9f8c5b6", ["chat-7d9f8c5b6-x2k7p"]),
        ("chat-7d9f8c5b6-zzzzz", {}, "", []),
        ("other", {}, "", []),
    ],
)
def test_a_pod_belongs_to_the_work_that_made_it(
    pod_name: str, labels: dict[str, str], owner: str, found: list[str] | None
) -> None:
    """By label, by controller, or by how Kubernetes makes names; where two could be meant, none is."""
    entries = [
        work("train", ((0, 1),)),
        work("train-7", ((0, 1),)),
        work("set", ((0, 1),), kind="JobSet"),
        work("chat-7d9f8c5b6-x2k7p", ((0, 1),), kind="Pod"),
    ]
    parts = Pods(entries, START + DAY).parts("team", pod_name, START, START + HOUR, labels, owner)
    assert (parts if parts is None else [part.entry.name for part in parts]) == found


def test_two_names_are_told_apart_by_their_time() -> None:
    """Of two jobs that a pod could be of, one had not begun."""
    entries = [work("train", ((0, 1),)), work("train-7", ((1, 2),))]
    (part,) = Pods(entries, START + DAY).parts("team", "train-7-bcdf5", START, START + HOUR) or ()
    assert (part.entry.name, part.start, part.end) == ("train", START, START + HOUR)


def test_an_anonymous_ledger_knows_pods_too() -> None:
    """Names are hidden in the same way before they are compared."""
    hidden = work("train"[::-1], ((0, 1),), namespace="team"[::-1])
    (part,) = Pods([hidden], START + DAY, lambda name: name[::-1]).parts("team", "train-bcdf5", START, START + 1) or ()
    assert part.entry is hidden


# --- a Prometheus that does not do as it should -------------------------------------------------------------------


def test_one_that_is_down_is_said_at_once(fake: FakePrometheus) -> None:
    """The allocation stays; nothing is measured, and nobody is asked again and again."""
    usage = allocate([work()], Window(START, START + 6 * DAY), START + 6 * DAY)
    said = measure(usage, Pods([], START), Prometheus("http://127.0.0.1:1"))
    assert "Prometheus http://127.0.0.1:1 does not answer: " in said
    assert (usage.slots[0].seen, total(usage).allocated) == (0, 4)


def test_one_that_is_slow_is_not_waited_for_for_ever(fake: FakePrometheus) -> None:
    """It is asked for less, then given up."""
    fake.hooks.append(slow(0.2))
    usage = measured(
        fake, work(), window=Window(START, START + 2 * DAY), timeout=0.05, wrong="did not answer within 0.05 s"
    )
    assert total(usage).allocated == 4
    assert len(fake.requests) <= 8


def test_too_much_at_once_is_asked_for_in_parts(fake: FakePrometheus) -> None:
    """A limit of Prometheus' is met by halves and quarters of the day, and nothing is lost."""

    def refuse(query: dict[str, str]) -> tuple[int, bytes] | None:
        if float(query["end"]) - float(query["start"]) > 3 * 3600:
            return (
                422,
                b'{"status":"error","errorType":"execution","error":"query processing would load too many samples"}',
            )
        return None

    fake.hooks.append(refuse)
    fake.gauge(ACTIVE, 1.0, START, START + 20 * HOUR, every=300, **pod("train-1-bcdf5"))
    row = whole(measured(fake, work(runs=((0, 20),), gpus=1), window=Window(START, START + DAY)))
    assert (row.seen, row.busy) == pytest.approx((20, 20))


def test_what_is_known_before_it_fails_is_kept(fake: FakePrometheus) -> None:
    """The first day is measured, the second is not known; it is said from when on."""

    def fail(query: dict[str, str]) -> tuple[int, bytes] | None:
        return (500, b"out of disk") if float(query["end"]) > START / 1000 + 86400 else None

    fake.hooks.append(fail)
    fake.gauge(ACTIVE, 1.0, START, START + 2 * DAY, every=300, **pod("train-1-bcdf5"))
    window = Window(START, START + 2 * DAY)
    entry = work(runs=((0, 48),), gpus=1)
    row = whole(measured(fake, entry, window=window, wrong="answers 500: out of disk (from 2026-12-01T00:00:00Z"))
    assert (row.allocated, row.seen, row.busy) == pytest.approx((48, 24, 24))


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>hello</html>", "something that is no JSON object: is it a Prometheus?"),
        (200, b"[]", "something that is no JSON object"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[]}}', "answers no matrix"),
        (200, b'{"status":"success"}', "answers no matrix"),
        (
            200,
            b'{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,"x"]]}]}}',
            "answers no matrix",
        ),
        (200, b'{"status":"error","error":"no such thing"}', "answers: no such thing"),
        (401, b"Unauthorized", "answers 401: Unauthorized"),
        (404, b"404 page not found", "answers 404: 404 page not found"),
        (503, b'{"status":"error","error":"too many concurrent queries"}', "too many concurrent queries"),
    ],
)
def test_an_answer_that_is_none_is_told(fake: FakePrometheus, status: int, body: bytes, said: str) -> None:
    """With what it was."""
    fake.hooks.append(lambda query: (status, body))
    with pytest.raises(SourceError, match=said.replace("?", r"\?")):
        Prometheus(fake.url).range("up", 0, 60, 60)


def test_one_without_the_exporter_is_told(fake: FakePrometheus) -> None:
    """It answers, but has no such metrics."""
    usage = measured(fake, work(), wrong=f"it has no {ACTIVE} and no {UTILISATION} in this window")
    assert whole(usage).busy is None


def test_a_clock_that_is_off_and_warnings_are_told(fake: FakePrometheus) -> None:
    """Begin and end of runs are of another clock."""
    fake.gauge(ACTIVE, 1.0, START, START + HOUR, **pod("train-1-bcdf5"))
    fake.date = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    fake.warnings = ["some blocks could not be read"]
    remarks = measured(fake, work(gpus=1)).remarks
    assert any("the clock of Prometheus is 300 s ahead of ours" in each or "299 s ahead" in each for each in remarks)
    assert "Prometheus warns: some blocks could not be read" in remarks


def test_who_wants_to_know_who_asks_is_told(fake: FakePrometheus) -> None:
    """A token, or name and password of the address; which is not shown with them."""
    Prometheus(fake.url, token="secret").range("avg_over_time(up[60s])", 0, 60, 60)
    assert fake.headers[-1]["Authorization"] == "Bearer secret"
    basic = Prometheus(fake.url.replace("://", "://me:pass%40word@"))
    basic.range("avg_over_time(up[60s])", 0, 60, 60)
    assert fake.headers[-1]["Authorization"] == "Basic bWU6cGFzc0B3b3Jk"
    assert basic.url == fake.url


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://h:port"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """With how to write one."""
    with pytest.raises(ValueError, match=r"write its address as http://host:port|[Pp]ort"):
        Prometheus(url)
