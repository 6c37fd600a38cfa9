"""The folder of a run: nothing is lost, and nothing is mixed."""

import json
from pathlib import Path

import pytest

from advisor.serving_fingerprint import changes, of_facts, of_machine
from advisor.serving_store import BadStore, Changed, Store
from advisor.serving_trial import Trial


def trial(number: int) -> Trial:
    times = {"endToEnd": {"p95": 12.5, "p99": None}}
    return Trial(
        number, 2.0, "2026-12-01T00:00:00Z", 7, 60.0, 120, 120, 119, 118, 0.9, times, {"429": 1}, {"429": "no"}, 1.0,
        0.001, "", "pass", [],
    )  # fmt: skip


def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    """Trials, their requests and the fingerprint are there when the folder is opened again."""
    with Store(tmp_path / "a" / "run") as store:
        store.begin({"target": "x"})
        store.add(trial(1), [{"number": 0, "answer": "é"}])
        store.add(trial(2), [])
    with Store(tmp_path / "a" / "run") as store:
        assert store.trials == [trial(1), trial(2)]
        assert store.fingerprint == {"target": "x"}
        store.begin({"target": "x"})


def test_a_run_without_a_trial_holds_nothing(tmp_path: Path) -> None:
    """A folder that it made goes with it; one that was there may begin with anything."""
    with Store(tmp_path / "run") as store:
        store.begin({"target": "x"})
    assert not (tmp_path / "run").exists()
    for target in ("x", "y"):
        with Store(tmp_path) as store:
            store.begin({"target": target})
            assert store.fingerprint == {"target": target}


def test_a_trial_that_was_cut_off(tmp_path: Path) -> None:
    """What was being written when the power went is not taken for a trial, and the next one is whole."""
    with Store(tmp_path) as store:
        store.add(trial(1), [])
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"number": 2, "ra')
    with Store(tmp_path) as store:
        assert store.trials == [trial(1)]
        store.add(trial(2), [])
    with Store(tmp_path) as store:
        assert store.trials == [trial(1), trial(2)]


def test_another_configuration_is_another_run(tmp_path: Path) -> None:
    """A run is not gone on with on another machine or with other goals; what there is stays."""
    with Store(tmp_path) as store:
        store.begin({"goals": "a", "cores": "4"})
        store.add(trial(1), [])
        with pytest.raises(Changed, match="cores: was 4, is 8; gone: was nothing, is x"):
            store.begin({"goals": "a", "cores": "8", "gone": "x"})
        store.invalidate(["cores: was 4, is 8"])
    with Store(tmp_path) as store:
        assert (store.trials, store.void) == ([trial(1)], ["cores: was 4, is 8"])


def test_two_at_a_time(tmp_path: Path) -> None:
    """A second process is kept out while the first measures."""
    with Store(tmp_path), pytest.raises(BadStore, match="another process measures into it"):
        Store(tmp_path)


def test_other_folders(tmp_path: Path) -> None:
    """A folder with something else in it is not written to, and one that cannot be made is said to be so."""
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(BadStore, match="is no run of"):
        Store(tmp_path)
    (tmp_path / "run.json").unlink()
    (tmp_path / "trials.jsonl").write_text('{"number": 1}\n')
    with pytest.raises(BadStore, match="is no trial"):
        Store(tmp_path)
    with pytest.raises(BadStore, match="cannot be written"):
        Store(tmp_path / "trials.jsonl" / "x")


def test_the_fingerprint_is_steady() -> None:
    """Asked twice, a machine and a command say the same; what differs is told with both values."""
    assert changes(of_machine(), of_machine()) == []
    assert {"cores", "memory", "processor", "host"} <= of_machine().keys()
    assert of_facts("echo one") == {"facts": "one"}
    assert changes(of_facts("echo one"), of_facts("echo two")) == ["facts: was one, is two"]
    assert json.dumps(of_machine())
