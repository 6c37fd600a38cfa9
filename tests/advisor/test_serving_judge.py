"""Judges: what they take for right, and what becomes of one that does not judge."""

import sys
from pathlib import Path

import pytest

from advisor.serving_judge import Answered, JudgeFailed, scores
from advisor.serving_profile import Request
from advisor.success import Judge


def score(judge: Judge, text: str, expected="4") -> float:
    (given,) = scores(judge, [Answered(Request("1", False, "POST", "", b"", "", expected, {"q": "2+2"}), text)])
    return given


@pytest.mark.parametrize(
    ("judge", "text", "expected", "right"),
    [
        ({"kind": "exact"}, " 4\n", "4", True),
        ({"kind": "exact"}, "4.0", "4", False),
        ({"kind": "exact"}, "4", 4, True),
        ({"kind": "exact"}, "Yes", "yes", False),
        ({"kind": "exact", "ignoreCase": True}, "Yes", "yes", True),
        ({"kind": "contains"}, "it is 4, I think", "4", True),
        ({"kind": "contains"}, "it is five", "4", False),
        ({"kind": "contains", "ignoreCase": True}, "LISBON it is", "Lisbon", True),
        ({"kind": "regex"}, "about 42 ms", r"\b4\d ms", True),
        ({"kind": "regex"}, "about 52 ms", r"\b4\d ms", False),
        ({"kind": "exact", "field": "labels.0.name"}, '{"labels": [{"name": "cat"}]}', "cat", True),
        ({"kind": "exact", "field": "labels.1.name"}, '{"labels": [{"name": "cat"}]}', "cat", False),
        ({"kind": "exact", "field": "sum"}, '{"sum": 4}', 4, True),
        ({"kind": "exact", "field": "sum"}, "no JSON", "no JSON", False),
    ],
)
def test_comparing(judge: dict, text: str, expected: object, right: bool) -> None:
    """An answer is compared with the one expected as its judge says, and is right or wrong."""
    assert score(Judge.model_validate(judge), text, expected) == float(right)


def program(tmp_path: Path, body: str, timeout: str = "10s") -> Judge:
    (tmp_path / "judge.py").write_text("import json, sys, time\n" + body)
    command = [sys.executable, str(tmp_path / "judge.py")]
    return Judge.model_validate({"kind": "command", "command": command, "timeout": timeout})


def test_a_program_judges(tmp_path: Path) -> None:
    """A program sees request, answer and what is expected, and its scores are taken."""
    judge = program(
        tmp_path, "for line in sys.stdin:\n a = json.loads(line)\n print(0.25 if a['answer'] == 'é' else 1)"
    )
    assert (score(judge, "é"), score(judge, "4")) == (0.25, 1.0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('no model')", "failed with exit code 1: no model"),
        ("print(1, 1)", "wrote 2 scores for 1 answers"),
        ("print('good')", "wrote 'good' in line 1; a score is a number from 0 to 1"),
        ("print('nan')", "wrote 'nan' in line 1"),
        ("print(1.5)", "a score is a number from 0 to 1"),
        ("", "wrote 0 scores for 1 answers"),
        ("time.sleep(20)", "was not done after 500ms"),
    ],
)
def test_a_program_that_does_not_judge(tmp_path: Path, body: str, said: str) -> None:
    """One that crashes, hangs or writes anything else has not judged, and that is said."""
    with pytest.raises(JudgeFailed, match=said.replace("(", r"\(")):
        score(program(tmp_path, body, "500ms" if "sleep" in body else "10s"), "4")


def test_a_program_that_is_not_there() -> None:
    """A program that cannot be started has not judged."""
    with pytest.raises(JudgeFailed, match="cannot be started: No such file"):
        score(Judge.model_validate({"kind": "command", "command": ["/no/such/judge"]}), "4")


def test_a_pattern_that_is_none() -> None:
    """A pattern that cannot be read is the profile's mistake, not the server's."""
    with pytest.raises(JudgeFailed, match="is no pattern"):
        score(Judge.model_validate({"kind": "regex"}), "4", "(")
