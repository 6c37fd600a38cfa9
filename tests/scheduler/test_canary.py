"""Whether Kueue heeds gates: asked and tried, on an apiserver with a Kueue that does or does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.apiserver import ApiError
from scheduler.canary import CANARY_GATE, NAME, ask, try_out
from scheduler.canary_watch import CanaryWatch, held_in_spite_of_gates
from scheduler.cluster import GATE, GATES_ANNOTATION
from tests.scheduler.fake_apiserver import Refusal
from tests.scheduler.fake_kueue import WORKLOADS, FakeKueue

NAMESPACE = "punctual-system"


@pytest.fixture
def kueue(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKueue]:
    monkeypatch.setattr("scheduler.canary._GRACE", 0)  # this Kueue has said it all when the Workload is there
    server = FakeKueue()
    yield server
    server.stop()


def left(kueue: FakeKueue) -> list[str]:
    return list(kueue.objects.get(WORKLOADS, {}))


@pytest.mark.parametrize("heeds", [True, False])
def test_asking_stores_nothing(kueue: FakeKueue, heeds: bool) -> None:
    """Kueue's webhook refuses a malformed gate exactly when it knows gates; nothing is left of the question."""
    kueue.heeds = heeds
    assert ask(kueue.api(), NAMESPACE) is heeds
    assert left(kueue) == []


def test_asking_without_rights_is_no_answer(kueue: FakeKueue) -> None:
    """A refusal that is not Kueue's says nothing about gates."""

    def refuse(method: str, path: str) -> None:
        raise Refusal(403, 'cannot create resource "workloads"')

    kueue.hooks.append(refuse)
    with pytest.raises(ApiError, match="cannot create"):
        ask(kueue.api(), NAMESPACE)


@pytest.mark.parametrize("heeds", [True, False])
def test_trying_is_believed_whatever_kueue_says_next(kueue: FakeKueue, heeds: bool) -> None:
    """Kueue 0.17 goes on to call a gated Workload without a queue inadmissible: its first words count."""
    kueue.heeds = heeds
    assert try_out(kueue.api(), NAMESPACE, seconds=5) is heeds
    assert left(kueue) == []


def test_a_kueue_that_says_nothing(kueue: FakeKueue) -> None:
    """Without a word from Kueue in time nothing is known, and nothing is left behind."""
    kueue.awake = False
    assert try_out(kueue.api(), NAMESPACE, seconds=0.1) is None
    assert left(kueue) == []


def test_one_that_was_left_behind_is_removed(kueue: FakeKueue) -> None:
    """A canary whose maker was killed is deleted by the next, which then makes its own."""
    annotations = {GATES_ANNOTATION: CANARY_GATE}
    kueue.put(WORKLOADS, {"metadata": {"name": NAME, "namespace": NAMESPACE, "annotations": annotations}})
    assert try_out(kueue.api(), NAMESPACE, seconds=5) is True
    assert left(kueue) == []


def test_it_is_deleted_though_deleting_fails_at_first(kueue: FakeKueue) -> None:
    """One failed call does not leave a Workload behind that Kueue would rewrite for ever."""
    failures = iter([500, 503])

    def fail(method: str, path: str) -> None:
        if method == "DELETE" and (status := next(failures, None)):
            raise Refusal(status, "try again")

    kueue.hooks.append(fail)
    assert try_out(kueue.api(), NAMESPACE, seconds=5) is True
    assert left(kueue) == []


class Watched:
    """A watch that is moved by hand, and what it has told."""

    def __init__(self, kueue: FakeKueue) -> None:
        self.workloads: dict[str, Any] = {}
        self.told: list[bool] = []
        self.watch = CanaryWatch(kueue.api(), NAMESPACE, lambda: self.workloads, self.told.append, seconds=1)

    def admit_gated(self, name: str) -> None:
        condition = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved"}
        metadata = {"name": name, "uid": name, "annotations": {GATES_ANNOTATION: GATE}}
        self.workloads[name] = {"metadata": metadata, "status": {"conditions": [condition]}}


def tries(kueue: FakeKueue) -> int:
    path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads"
    return kueue.count("POST", path) - kueue.count("POST", path, dryRun="All")


def test_a_restart_without_the_feature_is_noticed_and_its_return_too(kueue: FakeKueue) -> None:
    """As long as the answer is the same it is not tried again; when it changes it is, and told once."""
    watched = Watched(kueue)
    for _ in range(3):
        watched.watch.look()
    assert (watched.watch.heeded, watched.told, tries(kueue)) == (True, [], 1)
    kueue.heeds = False
    for _ in range(3):
        watched.watch.look()
    assert (watched.watch.heeded, watched.told, tries(kueue)) == (False, [False], 2)
    kueue.heeds = True
    watched.watch.look()
    assert (watched.watch.heeded, watched.told) == (True, [False, True])


def test_admitted_gated_work_is_reason_enough(kueue: FakeKueue) -> None:
    """Where the webhook cannot tell, work that gets quota with our gate on lets it be tried; each piece only once."""
    kueue.webhook = False
    watched = Watched(kueue)
    watched.watch.look()
    assert watched.watch.heeded
    kueue.heeds = False
    watched.watch.look()
    assert watched.watch.heeded, "nothing has shown it yet"
    watched.admit_gated("one")
    watched.watch.look()
    assert not watched.watch.heeded
    kueue.heeds, before = True, tries(kueue)
    watched.watch.look()
    assert tries(kueue) == before


def test_left_overs_do_not_count_for_ever(kueue: FakeKueue) -> None:
    """Work that was admitted while gates were ignored runs on; plans are enforced again all the same."""
    watched = Watched(kueue)
    kueue.heeds = False
    watched.admit_gated("one")
    watched.watch.look()
    assert not watched.watch.heeded
    kueue.heeds = True
    watched.watch.look()
    assert watched.watch.heeded
    before = tries(kueue)
    watched.watch.look()
    assert (watched.watch.heeded, tries(kueue)) == (True, before)


def test_a_kueue_that_is_away_comes_back_another(kueue: FakeKueue) -> None:
    """While Kueue does not answer nothing changes; when it does, it is tried, though it answers as before."""
    watched = Watched(kueue)
    watched.watch.look()

    def away(method: str, path: str) -> None:
        if path.endswith("/workloads"):
            raise Refusal(500, "failed calling webhook")

    kueue.hooks.append(away)
    before = tries(kueue)
    watched.watch.look()
    assert watched.watch.heeded
    kueue.hooks.clear()
    watched.watch.look()
    assert (watched.watch.heeded, tries(kueue)) == (True, before + 1)


def test_without_rights_work_goes_on(kueue: FakeKueue, caplog: pytest.LogCaptureFixture) -> None:
    """Where no canary may be made it is said once, with what to do, and plans are enforced as if nothing was wrong."""

    def refuse(method: str, path: str) -> None:
        raise Refusal(403, 'cannot create resource "workloads"')

    kueue.hooks.append(refuse)
    watched = Watched(kueue)
    for _ in range(3):
        watched.watch.look()
    assert watched.watch.heeded
    (warning,) = [record.getMessage() for record in caplog.records if "cannot find out" in record.getMessage()]
    assert "apply manifests/controller again" in warning
    watched.admit_gated("one")
    watched.watch.look()
    assert "AdmissionGatedBy must be on" in caplog.text


def test_nobody_is_asked_while_it_does_not_matter(kueue: FakeKueue) -> None:
    """Where the policy gates nothing, a Kueue without the feature is fine; it is tried as soon as that changes."""
    kueue.heeds = False
    needed, told = [False], list[bool]()
    watch = CanaryWatch(kueue.api(), NAMESPACE, dict, told.append, lambda: needed[0], seconds=1)
    watch.look()
    assert (watch.heeded, told, kueue.requests) == (True, [], [])
    needed[0] = True
    watch.look()
    assert (watch.heeded, told) == (False, [False])
    needed[0] = False
    watch.look()
    assert (watch.heeded, told) == (True, [False])


def test_it_ends_and_leaves_nothing_behind(kueue: FakeKueue) -> None:
    """Stopped in the middle of trying, it deletes its Workload before it ends."""
    kueue.awake = False
    begun = threading.Event()
    kueue.hooks.append(lambda method, path: begun.set() if method == "WATCH" else None)
    watch = CanaryWatch(kueue.api(), NAMESPACE, dict, seconds=60)
    watch.start()
    assert begun.wait(5)
    watch.stop()
    assert left(kueue) == []


def test_finished_work_is_no_evidence() -> None:
    """Only Workloads that have our gate, hold quota and have not finished show that gates are ignored."""

    def workload(uid: str, gates: str, **conditions: str) -> dict[str, Any]:
        found = [{"type": kind, "status": status} for kind, status in conditions.items()]
        return {
            "metadata": {"uid": uid, "annotations": {GATES_ANNOTATION: gates}},
            "status": {"conditions": found},
        }

    workloads = {
        "a": workload("a", GATE, QuotaReserved="True"),
        "b": workload("b", GATE, QuotaReserved="False"),
        "c": workload("c", GATE, QuotaReserved="True", Finished="True"),
        "d": workload("d", "a.example/other", QuotaReserved="True"),
        "e": {"metadata": {"uid": "e"}},
    }
    assert held_in_spite_of_gates(workloads) == {"a"}
