"""Objects from files: what is read, what is filled in, and what is said about what is wrong."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.cluster import GATE, GATES_ANNOTATION
from scheduler.files import Files, read
from scheduler.snapshot import snapshot
from solver.problem import State

NOW = 1_800_000_000_000

JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
  labels: {{kueue.x-k8s.io/queue-name: gpus}}
spec:
  template:
    spec:
      containers: [{{name: main, resources: {{requests: {{nvidia.com/gpu: 1}}}}}}]
"""


def written(tmp_path: Path, text: str, name: str = "work.yaml") -> Files:
    """What is read from a text."""
    path = tmp_path / name
    path.write_text(text)
    return read([str(path)], NOW)


def said(files: Files) -> list[tuple[int, str]]:
    """Line and message of all remarks."""
    return [(remark.place.line, remark.message) for remark in files.remarks]


def job(name: str = "a", **metadata: Any) -> dict[str, Any]:
    """A job as a dictionary."""
    item: dict[str, Any] = yaml.safe_load(JOB.format(name=name))
    item["metadata"].update(metadata)
    return item


def test_every_document_of_a_file_is_read(tmp_path: Path) -> None:
    """Documents are separated by --- at the start of a line, with or without comments, empty ones among them."""
    text = "# first\n---\n" + JOB.format(name="a") + "---  # second\n" + JOB.format(name="b") + "---\n---\n...\n"
    files = written(tmp_path, text)
    assert list(files.objects("Job")) == ["default/a", "default/b"]
    assert said(files) == []
    assert [str(files.places["Job", key].line) for key in files.objects("Job")] == ["3", "13"]


@pytest.mark.parametrize("name", ["work.json", "work.yaml"])
def test_lists_of_kubectl_are_read(tmp_path: Path, name: str) -> None:
    """`kubectl get -o json|yaml` writes a List; each member is an object with a line of its own."""
    items = {"apiVersion": "v1", "kind": "List", "items": [job("a"), job("b", labels={"n": 1})]}
    text = json.dumps(items, indent=4) if name.endswith("json") else yaml.safe_dump(items)
    files = written(tmp_path, text, name)
    assert list(files.objects("Job")) == ["default/a", "default/b"]
    second = 1 + text[: text.rindex("apiVersion")].count("\n")
    (line, message), *_ = said(files)
    assert abs(line - second) <= 1
    assert 'Job default/b: metadata.labels.n must be text: write "1"' in message


def test_typed_lists_are_read(tmp_path: Path) -> None:
    """A JobList need not repeat kind and version in its members."""
    bare = {key: value for key, value in job().items() if key not in ("kind", "apiVersion")}
    files = written(tmp_path, json.dumps({"apiVersion": "batch/v1", "kind": "JobList", "items": [bare]}), "jobs.json")
    assert list(files.objects("Job")) == ["default/a"]


def test_folders_are_read_but_not_what_is_below_them(tmp_path: Path) -> None:
    """All YAML and JSON files of a folder, in order of their names."""
    (tmp_path / "b.yml").write_text(JOB.format(name="b"))
    (tmp_path / "a.json").write_text(json.dumps(job("a")))
    (tmp_path / "README.md").write_text("not a manifest")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c.yaml").write_text(JOB.format(name="c"))
    assert list(read([str(tmp_path)], NOW).objects("Job")) == ["default/a", "default/b"]


def test_the_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minus stands for the standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO(JOB.format(name="a") + "---\nkind: 3\n"))
    files = read(["-"], NOW)
    assert list(files.objects("Job")) == ["default/a"]
    assert [str(remark) for remark in files.remarks] == ["<stdin>:11: is no Kubernetes object: it has no kind"]


def test_an_error_in_one_document_does_not_cost_the_others(tmp_path: Path) -> None:
    """Broken YAML is told with its line; the documents before and after it are read."""
    text = JOB.format(name="a") + "---\nkind: Job\nmetadata: {name: b\n---\n" + JOB.format(name="c")
    files = written(tmp_path, text)
    assert list(files.objects("Job")) == ["default/a", "default/c"]
    ((line, message),) = said(files)
    assert line in (12, 13)
    assert "is not YAML" in message
    assert files.failed


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("3\n", 1, "has no kind"),
        ("\n\nkind: Job\napiVersion: batch/v1\n", 3, "Job without metadata.name"),
        (JOB.format(name="a").replace("containers:", "volumes:"), 1, "spec.template.spec.containers is missing"),
        (JOB.format(name="a").replace("spec:\n  t", "spec:\n  parallelism: many\n  t", 1), 1, "parallelism is 'many'"),
        (JOB.format(name="a") + "---\n" + JOB.format(name="a"), 11, "is at "),
        (
            "kind: LocalQueue\napiVersion: kueue.x-k8s.io/v1beta1\nmetadata: {name: q}\n",
            1,
            "only kueue.x-k8s.io/v1beta2",
        ),
        ("kind: Job\napiVersion: batch/v1\nmetadata: {name: a, labels: [x]}\n", 1, "metadata.labels is not a mapping"),
        (JOB.format(name="a") + "status: [x]\n", 1, "status is not a mapping"),
        (JOB.format(name="a") + "status: {conditions: x}\n", 1, "status.conditions is not a list of mappings"),
        (JOB.format(name="a") + "status: {conditions: [null]}\n", 1, "status.conditions is not a list of mappings"),
        (
            JOB.format(name="a").replace("  labels", "  ownerReferences: [x]\n  labels"),
            1,
            "ownerReferences is not a list",
        ),
        (
            "kind: WorkloadPriorityClass\napiVersion: kueue.x-k8s.io/v1beta2\nmetadata: {name: p}\nvalue: high\n",
            1,
            "value is 'high', not a whole number",
        ),
        (
            JOB.format(name="a").replace("  labels", "  uid: x\n  labels")
            + "---\n"
            + JOB.format(name="b").replace("  labels", "  uid: x\n  labels"),
            12,
            "Job default/b has the metadata.uid of Job default/a",
        ),
        ("number: " + "9" * 5000, 1, "is not YAML"),
        ('{"number": ' + "9" * 5000 + "}", 1, "is not JSON that can be read"),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, 1, "is not JSON that can be read"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    """Each unusable object is told once, at the line where it begins, and is an error."""
    files = written(tmp_path, text)
    ((where, what),) = said(files)
    assert where == line
    assert message in what
    assert files.failed


@pytest.mark.parametrize(
    ("path", "message"), [("missing.yaml", "No such file"), ("empty", "no *.yaml"), ("latin.yaml", "is not UTF-8")]
)
def test_files_that_cannot_be_read_are_told(tmp_path: Path, path: str, message: str) -> None:
    """A missing file, an empty folder and a file that is no text are told by name."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"a: b\nc: \xe9\n")
    files = read([str(tmp_path / path)], NOW)
    (remark,) = files.remarks
    assert str(remark).startswith(str(tmp_path / path))
    assert message in remark.message


def test_unknown_kinds_are_skipped_with_a_note(tmp_path: Path) -> None:
    """A Service plays no part; that is said, and is no error. A Job of another API group is not ours either."""
    text = "kind: Service\napiVersion: v1\nmetadata: {name: s}\n---\nkind: Job\napiVersion: example.com/v1\n"
    files = written(tmp_path, text)
    assert [line for line, _ in said(files)] == [1, 5]
    assert not files.failed


def test_times_stay_text(tmp_path: Path) -> None:
    """An unquoted time in an annotation is text, as kubectl has it."""
    text = JOB.format(name="a").replace(
        "metadata:\n", "metadata:\n  annotations: {punctual.kueue/deadline: 2027-01-16T06:00:00Z}\n", 1
    )
    files = written(tmp_path, text)
    assert said(files) == []
    assert (
        files.objects("Job")["default/a"]["metadata"]["annotations"]["punctual.kueue/deadline"]
        == "2027-01-16T06:00:00Z"
    )


def test_a_number_in_an_annotation_is_told_and_taken_as_it_was_meant(tmp_path: Path) -> None:
    """kubectl would refuse a bare number; the plan goes on with its text, and says so."""
    text = JOB.format(name="a").replace("metadata:\n", "metadata:\n  annotations: {punctual.kueue/weight: 3}\n", 1)
    files = written(tmp_path, text)
    ((_, message),) = said(files)
    assert 'punctual.kueue/weight must be text: write "3"' in message
    assert files.objects("Job")["default/a"]["metadata"]["annotations"]["punctual.kueue/weight"] == "3"


def test_a_fresh_job_gets_workload_gate_and_creation_time(tmp_path: Path) -> None:
    """A job that no cluster has seen is planned as if it were created now in a managed namespace."""
    files = written(tmp_path, JOB.format(name="a"))
    ((_, workload),) = files.objects("Workload").items()
    made = files.objects("Job")["default/a"]
    assert workload["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert workload["metadata"]["annotations"][GATES_ANNOTATION] == GATE
    assert made["metadata"]["annotations"][GATES_ANNOTATION] == GATE
    assert made["metadata"]["creationTimestamp"] == "2027-01-15T08:00:00Z"


def test_a_job_of_an_unmanaged_namespace_gets_no_gate(tmp_path: Path) -> None:
    """If the Namespace is among the objects, its label decides."""
    files = written(
        tmp_path, JOB.format(name="a") + "---\nkind: Namespace\napiVersion: v1\nmetadata: {name: default}\n"
    )
    assert GATES_ANNOTATION not in files.objects("Job")["default/a"]["metadata"]["annotations"]


def test_a_finished_job_gets_no_workload(tmp_path: Path) -> None:
    """What is over is not planned."""
    done = {**job(uid="u"), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert not written(tmp_path, json.dumps(done), "a.json").objects("Workload")


def test_a_workload_of_the_cluster_is_not_made_again(tmp_path: Path) -> None:
    """A job whose Workload is among the objects keeps it."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u"}
    pods = [{"name": "main", "count": 1, "template": job()["spec"]["template"]}]
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "job-a", "namespace": "default", "uid": "w", "ownerReferences": [owner]},
        "spec": {"queueName": "gpus", "podSets": pods},
    }
    dump = {"apiVersion": "v1", "kind": "List", "items": [job(uid="u"), workload]}
    assert list(written(tmp_path, json.dumps(dump), "dump.json").objects("Workload")) == ["default/job-a"]


def test_a_job_without_a_queue_is_noted(tmp_path: Path) -> None:
    """Kueue ignores a job that names no queue, unless its namespace has a LocalQueue called default."""
    lonely = JOB.format(name="a").replace("labels: {kueue.x-k8s.io/queue-name: gpus}", "labels: {}")
    files = written(tmp_path, lonely)
    assert not files.objects("Workload")
    ((_, message),) = said(files)
    assert "names no queue" in message
    assert not files.failed
    queue = (
        "kind: LocalQueue\napiVersion: kueue.x-k8s.io/v1beta2\nmetadata: {name: default}\nspec: {clusterQueue: cq}\n"
    )
    (workload,) = written(tmp_path, lonely + "---\n" + queue).objects("Workload").values()
    assert workload["spec"]["queueName"] == "default"


def test_other_kinds_of_work_need_their_workload(tmp_path: Path) -> None:
    """What Kueue would make of a JobSet is not known here; that is noted, and with its Workload it is planned."""
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "a", "uid": "u"}}
    ((_, message),) = said(written(tmp_path, json.dumps(jobset), "a.json"))
    assert message.startswith("JobSet default/a is not planned: its Workload is not here")
    owner = {"apiVersion": jobset["apiVersion"], "kind": "JobSet", "name": "a", "uid": "u"}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "jobset-a", "uid": "w", "ownerReferences": [owner]},
        "spec": {"queueName": "gpus", "podSets": [{"name": "w", "count": 1, "template": job()["spec"]["template"]}]},
    }
    files = written(tmp_path, json.dumps({"kind": "List", "items": [jobset, workload]}), "a.json")
    assert said(files) == []
    assert list(files.objects("JobSet")) == ["default/a"]


def test_a_dump_is_planned_as_it_is_or_as_if_all_were_ours(tmp_path: Path) -> None:
    """Ungated work of a cluster is not ours to order; with gate_all it is planned as if it were."""
    text = Path("examples/01-four-jobs/queues.yaml").read_text().replace('managed: "true"', 'managed: "false"')
    (tmp_path / "queues.yaml").write_text(text)
    (tmp_path / "jobs.json").write_text(json.dumps(job(namespace="research", uid="u")))
    states = []
    for gate_all in (False, True):
        (item,) = snapshot(read([str(tmp_path)], NOW, gate_all=gate_all)).items
        states.append(item.state)
    assert states == [State.FOREIGN, State.PENDING]


def test_the_view_stands_still(tmp_path: Path) -> None:
    """The time is the one that was given."""
    files = written(tmp_path, JOB.format(name="a"))
    assert files.now() == NOW
    assert not files.objects("ClusterQueue")
