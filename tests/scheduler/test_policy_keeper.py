"""Which policy is in force: the newest that makes sense, over any edits, and who hears of it."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cluster import Reference
from scheduler.in_force import IN_FORCE, InForce, modes
from scheduler.metrics import Metrics
from scheduler.policy import read_policy
from scheduler.policy_keeper import PolicyKeeper, digest
from scheduler.policy_source import CONFIG_MAP, KEY, ConfigMapFollower, FileSource, Written
from scheduler.settings import MINUTE, Settings
from tests.scheduler.fake_apiserver import FakeApiServer
from tests.scheduler.memory_cluster import MemoryCluster

OBSERVE = "version: 1\nmode: observe\n"
ENFORCE = "version: 1\n"
BAD = "version: 1\nmode: maybe\n"
TARGET = Reference("ConfigMap", "punctual-system", "punctual-policy", "uid")


class Desk:
    """A source that a test writes on."""

    def __init__(self, text: str | None = None) -> None:
        self.text, self.edits = text, 0

    def write(self, text: str | None) -> None:
        self.text, self.edits = text, self.edits + 1

    def look(self) -> Written:
        return Written(self.text, str(self.edits) if self.text is not None else "", "the desk", TARGET)


def value(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name)


def test_an_edit_counts_at_the_next_look() -> None:
    """What is written is in force as soon as somebody looks; the same object as long as it says the same."""
    desk = Desk(ENFORCE)
    keeper = PolicyKeeper(desk)
    before = keeper.look()
    assert not before.observed
    desk.write("# the same, in other words\nversion: 1\nmode: enforce\n")
    assert keeper.look() is before
    desk.write(OBSERVE)
    assert keeper.look().observed
    assert keeper.text == OBSERVE


def test_a_bad_policy_keeps_the_last_good_one(caplog: pytest.LogCaptureFixture) -> None:
    """It is told in the log, to the object, and in a metric; nothing changes, and the next good one counts."""
    told: list[tuple[Reference, str, str, str]] = []
    metrics, desk = Metrics(), Desk(OBSERVE)
    keeper = PolicyKeeper(desk, metrics=metrics, tell=lambda *said: told.append(said))
    good = keeper.look()
    desk.write(BAD)
    with caplog.at_level(logging.WARNING):
        assert keeper.look() is good
        assert keeper.look() is good
    (record,) = caplog.records
    assert record.__dict__["mistakes"] == ["line 2: mode: is 'maybe'; must be 'enforce' or 'observe'"]
    assert [(target, kind, reason) for target, kind, reason, _ in told] == [(TARGET, "Warning", "PolicyRefused")]
    assert "line 2: mode" in told[0][3]
    assert value(metrics, "punctual_policy_valid") == 0
    desk.write(OBSERVE)
    assert keeper.look() is good
    assert value(metrics, "punctual_policy_valid") == 1
    assert [reason for _, _, reason, _ in told] == ["PolicyRefused", "PolicyInForce"]
    name = {"digest": digest(keeper.policy), "source": "the desk"}
    assert metrics.registry.get_sample_value("punctual_policy_info", name) == 1


def test_a_policy_that_is_taken_away_goes_on() -> None:
    """A deleted policy is no order to go back to the defaults; none at the start is."""
    metrics, desk = Metrics(), Desk(OBSERVE)
    keeper = PolicyKeeper(desk, metrics=metrics)
    desk.write(None)
    assert keeper.look().observed
    assert value(metrics, "punctual_policy_valid") == 0
    assert PolicyKeeper(Desk(), metrics=metrics).look() == read_policy(ENFORCE).settings()
    assert value(metrics, "punctual_policy_valid") == 1


def test_the_last_good_one_outlives_a_restart() -> None:
    """A controller that starts beside a bad policy, or none, goes by what was in force last."""
    for desk in (Desk(BAD), Desk()):
        keeper = PolicyKeeper(desk, last=OBSERVE)
        assert keeper.look().observed
        assert keeper.text == OBSERVE
    assert not PolicyKeeper(Desk(ENFORCE), last=OBSERVE).look().observed
    assert not PolicyKeeper(Desk(BAD), last="version: 99").look().observed


@given(st.lists(st.sampled_from([OBSERVE, ENFORCE, BAD, "", None]), max_size=8))
def test_any_edits(edits: list[str | None]) -> None:
    """After any edits, the last good text is in force."""
    desk = Desk()
    keeper = PolicyKeeper(desk)
    for text in edits:
        desk.write(text)
        keeper.look()
    good = [text for text in edits if text in (OBSERVE, ENFORCE)]
    assert keeper.text == (good[-1] if good else None)
    assert keeper.settings == read_policy(keeper.text or ENFORCE).settings()


def test_what_no_policy_says_stays() -> None:
    """The lengths of time that no policy has are those that the keeper was given."""
    keeper = PolicyKeeper(Desk("version: 1\nbudget: 2s"), Settings(settle_ms=7))
    assert (keeper.settings.settle_ms, keeper.settings.budget_ms) == (7, 2000)
    assert keeper.settings.replan_ms == MINUTE


def test_a_file_is_followed(tmp_path: Path) -> None:
    """A file counts anew when it is written anew, also within the clock tick of its last change."""
    file = tmp_path / "policy.yaml"
    file.write_text(ENFORCE)
    keeper = PolicyKeeper(FileSource(file))
    stamp = file.stat().st_mtime_ns
    file.write_text(OBSERVE)
    os.utime(file, ns=(stamp, stamp))
    assert keeper.look().observed
    file.unlink()
    assert keeper.look().observed


def test_modes_for_the_admission_policies() -> None:
    """They are told the mode of all, and each LocalQueue whose ClusterQueue has another."""
    cluster = MemoryCluster()
    cluster.queue("a", local="one")
    cluster.queue("a", local="two")
    cluster.queue("b", local="three")
    policy = read_policy("version: 1\nclusterQueues: {a: {mode: observe}, b: {mode: enforce}}")
    assert modes(policy.settings(), cluster) == {"mode": "enforce", "team_one": "observe", "team_two": "observe"}
    policy = read_policy("version: 1\nmode: observe\nclusterQueues: {b: {mode: enforce}}")
    assert modes(policy.settings(), cluster) == {"mode": "observe", "team_three": "enforce"}


def wait_until(check: object) -> None:
    end = time.monotonic() + 10
    while not check():  # type: ignore[operator]
        assert time.monotonic() < end, "waited for ten seconds"
        time.sleep(0.01)


def test_a_config_map_is_followed() -> None:
    """A ConfigMap without the key says which keys it has; with it, its text is the policy."""
    fake = FakeApiServer()
    metadata = {"name": CONFIG_MAP, "namespace": "punctual-system"}
    follower = ConfigMapFollower(fake.api(), "punctual-system", CONFIG_MAP, lambda: None)
    follower.start()
    try:
        assert follower.wait_synced(10)
        assert follower.look().text is None
        told: list[str] = []
        keeper = PolicyKeeper(follower, tell=lambda _target, _kind, _reason, message: told.append(message))
        fake.put("/api/v1/configmaps", {"metadata": metadata, "data": {"my-policy.yaml": OBSERVE}})
        wait_until(lambda: keeper.look() and told)
        assert "has no key policy.yaml (it has: my-policy.yaml)" in told[0]
        fake.put("/api/v1/configmaps", {"metadata": metadata, "data": {KEY: OBSERVE}})
        wait_until(lambda: keeper.look().observed)
    finally:
        follower.stop()
        fake.stop()


def test_what_is_in_force_is_written_down() -> None:
    """The ConfigMap says what is wanted, whoever else writes it; without leave to act it is left alone."""
    fake = FakeApiServer()
    key = f"punctual-system/{IN_FORCE}"
    fake.put("/api/v1/configmaps", {"metadata": {"name": IN_FORCE, "namespace": "punctual-system"}})

    def data() -> dict[str, str]:
        with fake.lock:
            return dict(fake.objects["/api/v1/configmaps"][key].get("data") or {})

    leads = False
    in_force = InForce(fake.api(), "punctual-system", lambda: leads)
    in_force.start()
    try:
        assert in_force.wait_synced(10)
        in_force.want(OBSERVE, {"mode": "observe"})
        time.sleep(0.2)
        assert data() == {}
        leads = True
        wait_until(lambda: data() == {KEY: OBSERVE, "mode": "observe"})
        in_force.want(OBSERVE, {"mode": "observe", "a_b": "enforce"})
        wait_until(lambda: data() == {KEY: OBSERVE, "mode": "observe", "a_b": "enforce"})
        wait_until(lambda: in_force.policy() == OBSERVE)
        in_force.want(OBSERVE, {"mode": "observe"})
        wait_until(lambda: data() == {KEY: OBSERVE, "mode": "observe"})
        with fake.lock:
            there = dict(fake.objects["/api/v1/configmaps"][key])
        fake.put("/api/v1/configmaps", {**there, "data": {"mode": "enforce"}})
        wait_until(lambda: data() == {KEY: OBSERVE, "mode": "observe"})
    finally:
        in_force.stop()
        fake.stop()
