"""The support bundle: what helps is in it, and what is secret never."""

from __future__ import annotations

import copy
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.apiserver import ApiError
from scheduler.bundle import Names, blanked, write_bundle
from scheduler.check import Finding, Installation, State
from scheduler.cluster import GATE, GATES_ANNOTATION
from tests.scheduler.memory_cluster import MemoryCluster

SECRET = "hunter2-5up3r-5ecret"


class Api:
    """What a bundle reads beside the objects of plans; secrets wherever somebody may have put one."""

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if path == "/version":
            return {"gitVersion": "v1.36.3"}
        if path.endswith("/deployments/kueue-controller-manager"):
            manager = {
                "name": "manager",
                "image": "registry.example.com/kueue:v0.17.0",
                "args": ["--feature-gates=AdmissionGatedBy=true", f"--token={SECRET}"],
                "env": [{"name": "PASSWORD", "value": SECRET}],
            }
            return {
                "spec": {"template": {"spec": {"containers": [manager]}}},
                "metadata": {"annotations": {"a": SECRET}},
            }
        if path.endswith("/configmaps/kueue-manager-config"):
            text = f"# {SECRET}\nintegrations: {{frameworks: [batch/job]}}\nmultiKueue: {{origin: {SECRET}}}\n"
            return {"data": {"controller_manager_config.yaml": text}}
        if path == "/api/v1/events":
            about = {"kind": "Job", "namespace": "team", "name": "train"}
            words = f'punctual.kueue/deadline: "{SECRET}" is no time'
            event = {
                "involvedObject": about,
                "type": "Warning",
                "reason": "InvalidAnnotation",
                "message": words,
                "count": 1,
            }
            bypass = {"involvedObject": about, "type": "Warning", "reason": "Bypassed", "message": f"because {SECRET}"}
            return {"items": [event, bypass]}
        if path.startswith("/apis/admissionregistration"):
            ours = {"metadata": {"name": "punctual-guard-ungate"}, "spec": {"failurePolicy": "Fail"}}
            return {"items": [ours, {"metadata": {"name": "another"}, "spec": {"variables": SECRET}}]}
        raise ApiError(404, f"no {path}: '{SECRET}'")

    def text(self, path: str) -> str:
        return (
            'punctual_gated_workloads{cluster_queue="cq"} 1.0\n'
            'punctual_build_info{version="0.1.0",identity="pod-of-team"} 1.0\n'
            f'other_metric{{path="{SECRET}"}} 1.0\n'
        )


def everywhere(name: str) -> dict[str, Any]:
    """A pod template with the secret in each place where a user can write something."""
    container = {
        "name": "main",
        "image": f"registry.example.com/{SECRET}",
        "command": [SECRET],
        "args": ["--password", SECRET],
        "env": [
            {"name": "PASSWORD", "value": SECRET},
            {"name": SECRET, "valueFrom": {"secretKeyRef": {"name": SECRET}}},
        ],
        "envFrom": [{"secretRef": {"name": SECRET}}],
        "volumeMounts": [{"name": SECRET, "mountPath": f"/{SECRET}"}],
        "lifecycle": {"preStop": {"exec": {"command": [SECRET]}}},
        "resources": {"requests": {"nvidia.com/gpu": "2"}},
    }
    return {
        "metadata": {"labels": {"x": SECRET}, "annotations": {"x": SECRET}},
        "spec": {
            "containers": [container],
            "initContainers": [copy.deepcopy(container)],
            "volumes": [{"name": SECRET, "hostPath": {"path": SECRET}}],
            "imagePullSecrets": [{"name": SECRET}],
            "nodeSelector": {SECRET: SECRET},
            "tolerations": [{"key": SECRET, "value": SECRET}],
            "serviceAccountName": SECRET,
        },
    }


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.queue()
    cluster.job("train", deadline="8h", weight=f"{SECRET}", bypass=SECRET)
    cluster.put({"kind": "Cohort", "metadata": {"name": "cohort", "annotations": {"x": SECRET}}})

    def plant(item: dict[str, Any]) -> None:
        item["metadata"].setdefault("annotations", {})["example.com/note"] = SECRET
        item["metadata"].setdefault("labels", {})["example.com/note"] = SECRET
        item["metadata"]["managedFields"] = [{"manager": SECRET}]

    def job(item: dict[str, Any]) -> None:
        plant(item)
        item["spec"]["template"] = everywhere("job")

    def workload(item: dict[str, Any]) -> None:
        plant(item)
        item["metadata"]["annotations"][GATES_ANNOTATION] = f"{GATE},example.com/{SECRET}"
        item["spec"]["podSets"][0]["template"] = everywhere("workload")
        item["spec"]["podSets"][0]["name"] = SECRET

    cluster.edit("Job", "team/train", job)
    cluster.edit("Workload", cluster.key_of("train"), workload)
    for kind, key in (
        ("ClusterQueue", "cq"),
        ("LocalQueue", "team/lq"),
        ("ResourceFlavor", "gpu"),
        ("Namespace", "team"),
    ):
        cluster.edit(kind, key, plant)
    cluster.edit("ResourceFlavor", "gpu", lambda item: item["spec"].update(nodeLabels={SECRET: SECRET}))
    cluster.condition(
        "train", "QuotaReserved", "False", "AdmissionGated", f"Admission is gated by: example.com/{SECRET}"
    )
    cluster.condition("train", "Evicted", "True", "Preempted", f"by {SECRET}")
    return cluster


FOUND = [
    Finding("queues", State.WARN, f"Job team/train cannot be read: '{SECRET}' is no number", f"edit {SECRET}"),
    Finding("kubernetes", State.OK, "v1.36.3: what Punctual is tested on"),
]


@pytest.fixture
def bundle(cluster: MemoryCluster, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Writes a bundle; the text of each file in it, by name."""

    def write(anonymise: bool = False) -> dict[str, str]:
        at = Installation(Api())  # type: ignore[arg-type]
        at._cluster = cluster  # type: ignore[assignment]
        write_bundle(at, FOUND, tmp_path / "bundle.tar.gz", anonymise=anonymise)
        with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
            files = {entry.name.rpartition("/")[2]: archive.extractfile(entry) for entry in archive.getmembers()}
            return {name: file.read().decode() for name, file in files.items() if file}

    return write


@pytest.mark.parametrize("anonymise", [False, True])
def test_a_planted_secret_never_appears(bundle: Callable[..., dict[str, str]], anonymise: bool) -> None:
    """Whatever a user wrote anywhere in an object, an environment, an annotation or a configuration stays there."""
    files = bundle(anonymise)
    assert {name for name, text in files.items() if SECRET in text} == set()
    broken = [name for name, text in files.items() if name.endswith(".json") and "missing" in json.loads(text)]
    assert broken == [], "a part that could not be made proves nothing"


def test_what_helps_is_in_it(bundle: Callable[..., dict[str, str]]) -> None:
    """Versions, queues and quotas, Workloads with requests, wishes, gates and reasons, Events, policies, metrics."""
    files = bundle()
    assert set(files) == {
        "README.txt", "check.json", "versions.json", "queues.json", "workloads.json", "events.json", "policies.json",
        "metrics.txt",
    }  # fmt: skip
    versions = json.loads(files["versions.json"])
    assert (versions["kubernetes"], versions["kueue"]) == ("v1.36.3", "v0.17.0")
    assert versions["kueueFeatureGates"] == {"AdmissionGatedBy": True}
    (queue,) = json.loads(files["queues.json"])["clusterQueues"]
    assert queue["resourceGroups"][0]["flavors"][0]["resources"] == [{"name": "nvidia.com/gpu", "nominalQuota": "4"}]
    ((workload,), gates) = (json.loads(files["workloads.json"])["workloads"], [GATE, "another's"])
    assert workload["owner"] == {"kind": "Job", "name": "train", "seen": True}
    assert workload["podSets"][0]["requests"] == [{"nvidia.com/gpu": "2"}]
    assert workload["gates"] == {"workload": gates, "root": [GATE]}
    assert workload["wishes"]["deadline"] is not None
    assert workload["wishes"]["unreadable"] == ["punctual.kueue/weight"]
    assert workload["wishes"]["bypass"] is True
    assert [(each["type"], each["reason"]) for each in workload["conditions"]] == [
        ("QuotaReserved", "AdmissionGated"),
        ("Evicted", "Preempted"),
    ]
    assert json.loads(files["events.json"])[0]["message"] == 'punctual.kueue/deadline: "…" is no time'
    assert list(json.loads(files["policies.json"])["validatingadmissionpolicies"]) == ["punctual-guard-ungate"]
    assert files["metrics.txt"].splitlines()[0] == 'punctual_gated_workloads{cluster_queue="cq"} 1.0'
    assert json.loads(files["check.json"])[0]["message"] == 'Job team/train cannot be read: "…" is no number'


def test_anonymised_it_names_nothing_of_the_users(bundle: Callable[..., dict[str, str]]) -> None:
    """Names are replaced, the same by the same; what is said of Kubernetes and Kueue stays."""
    files = bundle(anonymise=True)
    words = {word for text in files.values() for word in text.replace('"', " ").replace("/", " ").split()}
    assert words & {"team", "lq", "cq", "train", "pod-of-team"} == set()
    assert '"name": "gpu"' not in files["queues.json"]
    (queue,) = json.loads(files["queues.json"])["clusterQueues"]
    assert queue["name"] == json.loads(files["queues.json"])["localQueues"][0]["clusterQueue"]
    assert f'cluster_queue="{queue["name"]}"' in files["metrics.txt"]
    assert json.loads(files["check.json"])[1]["message"] == "v1.36.3: what Punctual is tested on"
    assert json.loads(files["check.json"])[0]["message"] == ""


def test_what_cannot_be_read_is_named(cluster: MemoryCluster, tmp_path: Path) -> None:
    """A part that the apiserver refuses is missing from the bundle with its reason; the other parts are there."""

    class Refusing(Api):
        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if path == "/api/v1/events":
                raise ApiError(403, f'events is forbidden: User "{SECRET}"')
            return super().request(method, path, **more)

    at = Installation(Refusing())  # type: ignore[arg-type]
    at._cluster = cluster  # type: ignore[assignment]
    write_bundle(at, FOUND, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        events, queues = (archive.extractfile(f"punctual-support/{name}.json") for name in ("events", "queues"))
        assert events is not None
        assert queues is not None
        assert json.load(events) == {"missing": 'ApiError: events is forbidden: User "…" (HTTP 403)'}
        assert json.load(queues)["clusterQueues"]


def test_the_same_name_has_the_same_pseudonym() -> None:
    """Pseudonyms are numbered by what they are of; two things of one name are two."""
    names = Names(True)
    told = [names(*each) for each in (("queue", "a"), ("queue", "b"), ("queue", "a"), ("flavor", "a"), ("queue", ""))]
    assert told == ["queue-1", "queue-2", "queue-1", "flavor-1", ""]
    assert Names(False)("queue", "a") == "a"


def test_quotes_are_blanked() -> None:
    """Whatever stands between quotes goes, single or double."""
    assert blanked("""deadline: "x y" is no 'time', really""") == 'deadline: "…" is no "…", really'


def test_the_fixture_is_what_it_seems(cluster: MemoryCluster) -> None:
    """The planted secret really is in the objects that the bundle is made from."""
    text = yaml.safe_dump(
        [dict(cluster.objects(kind)) for kind in ("Job", "Workload", "ClusterQueue", "ResourceFlavor")]
    )
    assert text.count(SECRET) > 40
