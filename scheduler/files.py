"""Kubernetes objects from files, as a cluster would show them: to plan work that is not submitted yet, or a dump.

Reads what ``kubectl`` reads and writes: YAML of many documents, JSON, and the Lists of ``kubectl get -o yaml|json``.
What is wrong with one object is said with its file and line and does not stop the others.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scheduler.annotations import format_instant
from scheduler.apiserver import RESOURCES
from scheduler.cluster import GATE, GATES_ANNOTATION, QUEUE_LABEL, Object
from scheduler.kinds import ROOT_KINDS
from scheduler.podset import read_pod_set
from scheduler.settings import Settings
from scheduler.still import StillCluster
from scheduler.workloads import queue_of, workload_for

STDIN = "-"
"""Stands for the standard input among the paths."""


class Place(NamedTuple):
    """Where an object was read."""

    path: str
    line: int
    """Counted from 1; 0 for the file as a whole."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


class Remark(NamedTuple):
    """Something about what was read."""

    place: Place
    message: str
    error: bool
    """False for a note: nothing is wrong, but something was left out."""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass
class Files(StillCluster):
    """A cluster that is read from files.

    Attributes
    ----------
    remarks
        What was wrong or left out.
    places
        Where each object was read, by kind and ``namespace/name``; a Workload made for a Job has the Job's.
    """

    instant: int
    remarks: list[Remark] = field(default_factory=list)
    places: dict[tuple[str, str], Place] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether something could not be read as it was meant."""
        return any(remark.error for remark in self.remarks)


def read(
    paths: Sequence[str], now: int, *, gate_all: bool = False, managed_label: str = Settings.managed_label
) -> Files:
    """Read objects from files and folders (``*.yaml``, ``*.yml``, ``*.json``, not their subfolders) and from ``-``.

    What a cluster would have filled in is filled in: namespace, uid, creation time (``now``), the Workload of each
    unfinished Job, and the Namespace itself. A Job that comes from no cluster yet (it has no uid) gets the gate that
    it would get when it is created, unless its Namespace is among the objects and is not managed.

    Parameters
    ----------
    paths
        Files, folders, or :data:`STDIN`.
    now
        Milliseconds since the Unix epoch.
    gate_all
        Put the gate on all work that has no quota yet: what if Punctual were in charge of it?
    managed_label
        Label of the namespaces in which new jobs get the gate.
    """
    files = Files(now)
    for path, text in _texts(paths, files):
        for place, data in _documents(path, text, files):
            for where, item in _items(place, data, files):
                _add(item, where, files)
    _fill_in(files, managed_label, gate_all)
    return files


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as kubectl reads it: a time is text, like everything else that JSON has no type for."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Item(NamedTuple):
    """A document, and the line of each member of its list if it is one."""

    data: Any
    lines: list[int]


def _texts(paths: Sequence[str], files: Files) -> Iterator[tuple[str, str]]:
    for name in paths:
        if name == STDIN:
            yield "<stdin>", sys.stdin.read()
            continue
        path = Path(name)
        members = [path]
        if path.is_dir():
            members = sorted(member for member in path.iterdir() if member.suffix in {".yaml", ".yml", ".json"})
            if not members:
                _complain(files, Place(name, 0), "no *.yaml, *.yml or *.json file in this folder")
        for member in members:
            try:
                yield str(member), member.read_text(encoding="utf-8")
            except OSError as error:
                _complain(files, Place(str(member), 0), f"cannot be read: {error.strerror}")
            except UnicodeDecodeError as error:
                line = error.object[: error.start].count(b"\n") + 1
                _complain(files, Place(str(member), line), "is not UTF-8 text")


def _documents(path: str, text: str, files: Files) -> Iterator[tuple[Place, _Item]]:
    """The documents of a text, each read for itself: an error in one does not cost the others."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            if path.endswith(".json"):
                _complain(files, Place(path, error.lineno), f"is not JSON: {error.msg}")
                return
        except (ValueError, RecursionError) as error:
            _complain(files, Place(path, 1), f"is not JSON that can be read: {error}")
            return
        else:
            yield Place(path, 1), _Item(data, [])
            return
    for first, part in _split(text):
        loader = _Loader(part)
        try:
            node = loader.get_single_node()
            if node is not None:
                data = loader.construct_document(node)
                lines = [first + mark.line for mark in _list_marks(node)]
                yield Place(path, first + node.start_mark.line), _Item(data, lines)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            _complain(files, Place(path, first + (mark.line if mark else 0)), f"is not YAML: {error.problem}")
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            _complain(files, Place(path, first), f"is not YAML: {' '.join(str(error).split())}")
        finally:
            loader.dispose()


def _split(text: str) -> Iterator[tuple[int, str]]:
    """The YAML documents of a text, each with the number of its first line."""
    line, start = 1, 0
    for mark in re.finditer(r"^(---|\.\.\.)(?=\s|$)", text, re.MULTILINE):
        yield line, text[start : mark.start()]
        line += text.count("\n", start, mark.start())
        start = mark.end()
    yield line, text[start:]


def _list_marks(node: yaml.Node) -> list[yaml.Mark]:
    if isinstance(node, yaml.SequenceNode):
        return [member.start_mark for member in node.value]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == "items" and isinstance(value, yaml.SequenceNode):
                return [member.start_mark for member in value.value]
    return []


def _items(place: Place, document: _Item, files: Files) -> Iterator[tuple[Place, Any]]:
    """The objects of a document: itself, or the members of a List."""
    data = document.data
    members = data if isinstance(data, list) else None
    if isinstance(data, dict) and str(data.get("kind", "")).endswith("List"):
        members = data.get("items") or []
        if not isinstance(members, list):
            _complain(files, place, f"{data['kind']}: items is not a list")
            return
    if members is None:
        yield place, data
        return
    lines = document.lines or _json_lines(place.path, len(members))
    for line, member in zip(lines, members, strict=True):
        kind = str(data["kind"]).removesuffix("List") if isinstance(data, dict) else ""
        if kind and isinstance(member, dict) and "kind" not in member:  # a JobList does not repeat it
            member = {"kind": kind, "apiVersion": data.get("apiVersion", ""), **member}
        yield Place(place.path, line), member


def _json_lines(path: str, count: int) -> list[int]:
    """JSON brings no lines along; a List of kubectl starts each member on a line of its own, as YAML reads it too."""
    if path == "<stdin>":
        return [1] * count
    # Outside of strings a tab is only space in JSON; inside there are none. YAML wants none at all.
    loader = _Loader(Path(path).read_text(encoding="utf-8").replace("\t", " "))
    try:
        node = loader.get_single_node()
        marks = _list_marks(node)
    except yaml.YAMLError:
        marks = []
    finally:
        loader.dispose()
    return [mark.line + 1 for mark in marks] if len(marks) == count else [1] * count


def _add(item: Any, place: Place, files: Files) -> None:
    """Take one object in, or say why not."""
    if item is None:
        return
    if not isinstance(item, dict) or not isinstance(item.get("kind"), str):
        _complain(files, place, "is no Kubernetes object: it has no kind")
        return
    kind, version = item["kind"], str(item.get("apiVersion", ""))
    resource = RESOURCES.get(kind)
    if resource is None or version.rpartition("/")[0] != resource.version.rpartition("/")[0]:
        hint = "; the Jobs that it has made do" if kind == "CronJob" else ""
        said = f"{kind} ({version or 'no apiVersion'}) plays no part in a plan{hint}"
        files.remarks.append(Remark(place, said, False))
        return
    if version != resource.version:
        _complain(files, place, f"{kind} of {version} cannot be read, only {resource.version}")
        return
    metadata = item.get("metadata")
    if resource.only and isinstance(metadata, dict) and metadata.get("name") != resource.only[1]:
        files.remarks.append(Remark(place, f"only {kind} {resource.only[1]} plays a part in a plan", False))
        return
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        _complain(files, place, f"{kind} without metadata.name")
        return
    item = {**item, "metadata": dict(metadata)}
    name = metadata["name"]
    if resource.namespaced:
        item["metadata"]["namespace"] = metadata.get("namespace") or "default"
        name = f"{item['metadata']['namespace']}/{name}"
    if wrong := _wrong(kind, item):
        _complain(files, place, f"{kind} {name}: {wrong}")
        return
    for column in ("labels", "annotations"):
        item["metadata"][column] = _texts_only(kind, name, column, metadata.get(column) or {}, place, files)
    if earlier := files.places.get((kind, name)):
        _complain(files, place, f"{kind} {name} is at {earlier} already; that one counts")
        return
    files.places[kind, name] = place
    files.by_kind[kind][name] = item


def _wrong(kind: str, item: dict[str, Any]) -> str:
    """What keeps an object from being used at all; empty when nothing does."""
    for column in ("labels", "annotations"):
        if not isinstance(item["metadata"].get(column) or {}, dict):
            return f"metadata.{column} is not a mapping"
    for part in ("spec", "status"):
        if not isinstance(item.get(part) or {}, dict):
            return f"{part} is not a mapping"
    conditions = (item.get("status") or {}).get("conditions") or []
    if not isinstance(conditions, list) or not all(isinstance(condition, dict) for condition in conditions):
        return "status.conditions is not a list of mappings"
    owners = item["metadata"].get("ownerReferences") or []
    if not isinstance(owners, list) or not all(isinstance(owner, dict) for owner in owners):
        return "metadata.ownerReferences is not a list of mappings"
    if kind == "WorkloadPriorityClass" and type(value := item.get("value", 0)) is not int:
        return f"value is {value!r}, not a whole number"
    spec = item.get("spec") or {}
    if kind == "Job":
        pod = (spec.get("template") or {}).get("spec") if isinstance(spec.get("template") or {}, dict) else None
        if not isinstance(pod, dict) or not isinstance(pod.get("containers"), list) or not pod["containers"]:
            return "spec.template.spec.containers is missing"
        if not all(isinstance(container, dict) for container in pod["containers"]):
            return "spec.template.spec.containers is not a list of mappings"
        for field_name in ("parallelism", "completions"):
            value = spec.get(field_name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                return f"spec.{field_name} is {value!r}, not a number of pods"
    return ""


def _texts_only(
    kind: str, name: str, column: str, values: Mapping[Any, Any], place: Place, files: Files
) -> dict[str, str]:
    """Labels and annotations are text; kubectl refuses a bare number, so say so and go on with what was meant."""
    result = {}
    for key, value in values.items():
        if not isinstance(value, str):
            _complain(files, place, f'{kind} {name}: metadata.{column}.{key} must be text: write "{_plain(value)}"')
        result[str(key)] = value if isinstance(value, str) else _plain(value)
    return result


def _plain(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)


def _fill_in(files: Files, managed_label: str, gate_all: bool) -> None:
    """What a cluster, and Kueue in it, would have added."""
    created = format_instant(files.instant // 1000 * 1000)
    jobs, namespaces = files.by_kind["Job"], files.by_kind["Namespace"]
    fresh = {key for key, job in jobs.items() if not job["metadata"].get("uid")}
    for kind, objects in files.by_kind.items():
        for key, item in objects.items():
            metadata = dict(item["metadata"])
            metadata["uid"] = metadata.get("uid") or str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{key}"))
            metadata["creationTimestamp"] = metadata.get("creationTimestamp") or created
            objects[key] = {**item, "metadata": metadata}
    _drop_namesakes(files)
    ours = {jobs[key]["metadata"]["namespace"] for key in fresh}
    kinds = (*ROOT_KINDS, "Workload", "LocalQueue")
    for item in [item for kind in kinds for item in files.by_kind[kind].values()]:
        name = item["metadata"]["namespace"]
        if name not in namespaces:
            labels = {managed_label: "true"} if name in ours or gate_all else {}
            metadata = {"name": name, "uid": f"namespace {name}", "creationTimestamp": created, "labels": labels}
            namespaces[name] = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    managed = {
        name for name, item in namespaces.items() if (item["metadata"].get("labels") or {}).get(managed_label) == "true"
    }
    gated = {key for key, job in jobs.items() if gate_all or (key in fresh and job["metadata"]["namespace"] in managed)}
    _make_workloads(files, gated)
    if gate_all:
        for kind in (*ROOT_KINDS, "Workload"):
            objects = files.by_kind[kind]
            objects.update({key: _gated(item) for key, item in objects.items()})


def _drop_namesakes(files: Files) -> None:
    """A uid is of one object: where a manifest was copied with its uid, the first one counts."""
    first: dict[str, str] = {}
    for kind in (*ROOT_KINDS, "Workload"):
        for key, item in list(files.by_kind[kind].items()):
            earlier = first.setdefault(str(item["metadata"]["uid"]), f"{kind} {key}")
            if earlier != f"{kind} {key}":
                told = f"{kind} {key} has the metadata.uid of {earlier}; that one counts"
                _complain(files, files.places[kind, key], told)
                del files.by_kind[kind][key]


def _make_workloads(files: Files, gated: set[str]) -> None:
    """Make the Workload of each Job that is not over and has none, as Kueue would; put the gate on some first."""
    jobs, workloads = files.by_kind["Job"], files.by_kind["Workload"]
    priorities = {name: int(item.get("value", 0)) for name, item in files.by_kind["WorkloadPriorityClass"].items()}
    owned = {owner.get("uid") for item in workloads.values() for owner in item["metadata"].get("ownerReferences") or ()}
    for kind in sorted(ROOT_KINDS.keys() - {"Job"}):
        for key, item in files.by_kind[kind].items():
            if item["metadata"]["uid"] not in owned and not _over(item):
                note = f"{kind} {key} is not planned: its Workload is not here, and only a Job's can be told beforehand"
                files.remarks.append(Remark(files.places[kind, key], note, False))
    for key, job in jobs.items():
        metadata = job["metadata"]
        if metadata["uid"] in owned or _over(job):
            continue
        if not queue_of(job):
            if f"{metadata['namespace']}/default" not in files.by_kind["LocalQueue"]:
                note = f"Job {key} names no queue (label {QUEUE_LABEL}): Kueue, and so the plan, ignores it"
                files.remarks.append(Remark(files.places["Job", key], note, False))
                continue
            labels = {**metadata["labels"], QUEUE_LABEL: "default"}
            job = {**job, "metadata": {**metadata, "labels": labels}}
        jobs[key] = job = _gated(job) if key in gated else job
        try:
            workload = workload_for(job, priorities)
            for pod_set in workload["spec"]["podSets"]:
                read_pod_set(pod_set)
        except Exception as error:  # whatever somebody wrote into it, the others go on
            _complain(files, files.places["Job", key], f"Job {key} cannot be read: {error}")
            continue
        made = f"{metadata['namespace']}/{workload['metadata']['name']}"
        workload["metadata"]["uid"] = str(uuid.uuid5(uuid.NAMESPACE_OID, f"Workload/{made}"))
        workloads[made] = workload
        files.places["Workload", made] = files.places["Job", key]


def with_gate(gates: str | None) -> str:
    """A value of Kueue's gates annotation with ours in it."""
    names = [name.strip() for name in (gates or "").split(",") if name.strip()]
    return ",".join(names if GATE in names else [*names, GATE])


def _gated(item: Object) -> dict[str, Any]:
    annotations = item["metadata"]["annotations"]
    annotations = {**annotations, GATES_ANNOTATION: with_gate(annotations.get(GATES_ANNOTATION))}
    return {**item, "metadata": {**item["metadata"], "annotations": annotations}}


def _over(job: Object) -> bool:
    conditions: Iterable[Mapping[str, Any]] = (job.get("status") or {}).get("conditions") or ()
    return any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions)


def _complain(files: Files, place: Place, message: str) -> None:
    files.remarks.append(Remark(place, message, True))
