"""Success metrics: what they mean, their mistakes, and the page about them."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.success import OWN, BadSuccess, Success, percentile, read_success, schema
from cli.main import app
from scheduler.schema_docs import fields_table

DOCS = Path(__file__).parents[2] / "docs" / "success.md"
CHAT = "version: 1\nservices: {chat: {goals: {endToEnd: {p95: 2s}}}}"


def mistakes(text: str) -> list[str]:
    with pytest.raises(BadSuccess) as caught:
        read_success(text)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_both_kinds() -> None:
    """A task has a deadline, a service response times; what is not written has a default."""
    success = read_success(CHAT + "\ntasks: {train: {match: {family: train-*}, budget: {gpuHours: 9}}}")
    train, chat = success.tasks["train"], success.services["chat"]
    assert (train.deadline, train.on_time, train.result.when, train.result.count) == (OWN, 0.95, "succeeded", 1)
    assert chat.goals.limits() == {"endToEnd": {"p95": 2000}}
    assert (chat.answered, chat.timeout, chat.quality) == (0.99, 60_000, None)
    created = 1_796_083_200_000  # 2026-12-01T00:00:00Z
    due = read_success("version: 1\ntasks: {t: {match: {namespace: n}, deadline: 'due 06:00 UTC'}}").tasks["t"].deadline
    assert due.of(created) == created + 6 * 3_600_000


def test_every_mistake_is_told() -> None:
    """All mistakes at once, each with its line, its path and what is allowed."""
    said = mistakes("""version: 1
tasks:
  t: {match: {}, deadline: none, qualitty: 1}
  u:
    match: {clusterQeue: x}
    quality: {threshold: 2, judge: {kind: exakt}}
services:
  s: {goals: {ttft: {p100: 3s, p95: 3}}}
  z: {goals: {ttft: {p50: 3s, p95: 2s}}}
  y: {goals: {ttft: {p50: 3s, p95: 12s}}, timeout: 1s}
  x: {goals: {}, budget: {cost: 3}}
""")
    assert said == [
        "line 3: tasks.t.match: is empty; name a clusterQueue, a namespace or a family",
        'line 3: tasks.t.deadline: "none" is no deadline; a task has one, a service has none',
        "line 3: tasks.t.qualitty: is not known; did you mean quality?",
        "line 5: tasks.u.match.clusterQeue: is not known; did you mean clusterQueue?",
        "line 6: tasks.u.quality.judge.kind: is 'exakt'; must be 'exact', 'contains', 'regex' or 'command'",
        "line 6: tasks.u.quality.threshold: is 2; should be less than or equal to 1",
        "line 8: services.s.goals.ttft.p100: p100 is no percentile; write one from p1 to p99.999, say p95",
        'line 8: services.s.goals.ttft.p95: "3" has no unit; write 3s, 3m, 3h or 3d',
        "line 9: services.z.goals.ttft: p95 is 2s and p50 is 3s; a higher percentile is never shorter",
        "line 10: services.y: timeout is 1s, less than 12s of goals.ttft; write a longer one",
        "line 11: services.x.goals: is empty; write ttft, perToken or endToEnd, say endToEnd: {p95: 2s}",
        "line 11: services.x.budget: speaks of money but not of which; write, say, currency: EUR",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; write version: 1, and tasks or services"),
        ("version: 1", "names neither tasks nor services"),
        (CHAT + "\ntasks: {chat: {match: {family: f}}}", "chat is both a task and a service"),
        (
            "version: 1\ntasks: {t: {match: {family: f}, quality: {threshold: 1, judge: {kind: exact}}}}",
            "kind: command",
        ),
        (CHAT[:-1] + ", q: {goals: {ttft: {p9: 1s}}, quality: {threshold: 1, judge: {kind: command}}}}", "no command"),
        (
            CHAT[:-1] + ", q: {goals: {ttft: {p9: 1s}}, quality: {threshold: 1, judge: {kind: exact, command: [a]}}}}",
            "there is a command, but kind is exact",
        ),
        ("version: 1\nservices: {a: {goals: {ttft: {p95: 1s}}, budget: {per: day}}}", "is empty; write gpuHours"),
        ("version: 1\nservices: {a: {goals: {ttft: {p95: .inf}}}}", "services.a.goals.ttft.p95"),
    ],
)
def test_a_mistake(text: str, message: str) -> None:
    """What cannot be meant is refused in words for the one who wrote it."""
    assert any(message in said for said in mistakes(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "tasks", "services", "goals", "ttft", "p95", "match", "judge", "quality"])
                | st.text(max_size=4),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=50, deadline=None)
def test_any_junk_is_read_or_refused(data: Any) -> None:
    """Whatever is written, it is read or refused in words; nothing else happens."""
    with contextlib.suppress(BadSuccess):
        read_success(yaml.safe_dump(data))


@given(st.floats(min_value=1, max_value=99.9).map(lambda share: round(share, 2)))
def test_percentiles(share: float) -> None:
    """A percentile's name is its share in per cent."""
    assert percentile(f"p{share:g}") == pytest.approx(share / 100, abs=1e-5)


@pytest.mark.parametrize("name", ["p0", "p100", "95", "p", "p95%", "P95", "p09", "p99.9999"])
def test_no_percentiles(name: str) -> None:
    """Anything else is none."""
    with pytest.raises(ValueError, match="is no percentile"):
        percentile(name)


def blocks(kind: str) -> list[str]:
    return [block.partition("```")[0] for block in DOCS.read_text().split(f"```{kind}\n")[1:]]


def test_the_page_has_every_field() -> None:
    """The table of docs/success.md is what the schema says, and the schema refuses unknown keys as we do."""
    found = schema()
    assert fields_table(found) in DOCS.read_text()
    for part in (found, *found["$defs"].values()):
        assert part["additionalProperties"] is False
        assert all(field.get("description") or "$ref" in field for field in part["properties"].values())
    json.dumps(found)


def test_what_the_page_shows(tmp_path: Path) -> None:
    """The example of docs/success.md is read, prints what the page says, and survives being written out in full."""
    (text,) = blocks("yaml")
    success = read_success(text)
    assert read_success(yaml.safe_dump(success.as_data())) == success
    assert isinstance(success, Success)
    (tmp_path / "success.yaml").write_text(text)
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(app, ["advise", "success", "check", "success.yaml"])
        assert (done.exit_code, done.output) == (0, blocks("console")[0].partition("\n")[2])
        shown = CliRunner().invoke(app, ["advise", "success", "check", "success.yaml", "-o", "json"])
    assert read_success(json.dumps(json.loads(shown.output)["success"])) == success


def test_the_judge_of_the_page() -> None:
    """The program of docs/success.md scores a line each, as the page says."""
    import subprocess

    asked = [{"id": 1, "request": {}, "expected": "4", "answer": answer} for answer in ("it is 4", "it is 5")]
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    done = subprocess.run([sys.executable, "-c", blocks("python")[0]], input=lines, capture_output=True, text=True)
    assert done.stdout.split() == ["1.0", "0.0"]


def test_the_command_tells_mistakes(tmp_path: Path) -> None:
    """Mistakes have file and line and end with exit code 1; a file that is not there does too."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(CHAT + "\nextra: 1")
    done = CliRunner().invoke(app, ["advise", "success", "check", str(bad)])
    assert (done.exit_code, done.stderr) == (
        1,
        f"{bad}:3: extra: is not known; allowed here: version, tasks, services\n",
    )
    told = json.loads(CliRunner().invoke(app, ["advise", "success", "check", str(bad), "-o", "json"]).stdout)
    assert (told["valid"], told["mistakes"][0]["line"]) == (False, 3)
    missing = CliRunner().invoke(app, ["advise", "success", "check", str(tmp_path / "none.yaml")])
    assert missing.exit_code == 1
    assert "cannot be read: No such file" in missing.stderr


def test_the_schema_is_printed() -> None:
    """As JSON Schema and as the table of the page."""
    assert json.loads(CliRunner().invoke(app, ["advise", "success", "schema"]).output) == schema()
    assert CliRunner().invoke(app, ["advise", "success", "schema", "-o", "markdown"]).output.strip() in DOCS.read_text()
