"""Entries from a copy of a ledger, as ``punctual ledger export -o json`` writes it: for who cannot reach the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scheduler.annotations import parse_instant
from scheduler.family import Family
from scheduler.ledger_entry import DeadlineEdit, Entry, Judgement, Outcome, Run, Verdict


class BadExport(ValueError):
    """A line that is no entry; the message says where and why."""


def read_export(file: Path) -> list[Entry]:
    """All entries of an export, one JSON object a line; of ``ledger show -o json`` (one list) too.

    Raises
    ------
    BadExport
        If something in it is no entry.
    OSError
        If it cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadExport(f"{file} is no text in UTF-8") from None
    entries: dict[str, Entry] = {}
    for place, item in _objects(file, text):
        try:
            entry = _entry(item)
        except KeyError as error:
            raise BadExport(f"{place}: no field {error}: write it with punctual ledger export -o json") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise BadExport(f"{place}: {error}") from None
        entries[entry.uid] = entry
    return list(entries.values())


def _objects(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    if text.lstrip().startswith("["):
        try:
            for number, item in enumerate(json.loads(text), 1):
                yield f"{file}: entry {number}", item
        except json.JSONDecodeError as error:
            raise BadExport(f"{file}:{error.lineno}: {error.msg}") from None
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"{file}:{number}", json.loads(line)
        except json.JSONDecodeError as error:
            raise BadExport(f"{file}:{number}: {error.msg}: write it with punctual ledger export -o json") from None


def _entry(item: Mapping[str, Any]) -> Entry:
    runs = tuple(
        Run(parse_instant(run["started"]), _instant(run, "planned_start"), _instant(run, "ended"), run["ending"])
        for run in item["runs"]
    )
    stem = str(item["family"])  # label or stem: which of them, an export does not say
    return Entry(
        uid=str(item["uid"]),
        name=str(item["name"]),
        family=Family(
            namespace=str(item["namespace"]),
            local_queue=str(item["local_queue"]),
            cluster_queue=str(item["cluster_queue"]),
            kind=str(item["kind"]),
            image=str(item["image"]),
            shape=str(item["shape"]),
            stem=stem,
            label=stem,
        ),
        submitted=parse_instant(item["submitted"]),
        updated=_instant(item, "ended") or _instant(item, "started") or parse_instant(item["submitted"]),
        managed=bool(item["managed"]),
        deadline=_instant(item, "deadline"),
        earliest_start=_instant(item, "earliest_start"),
        weight=float(item["weight"]),
        hard=bool(item["hard"]),
        priority_class=str(item["priority_class"]),
        bypassed_by=str(item["bypassed_by"]),
        planned_start=_instant(item, "planned_start"),
        started=_instant(item, "started"),
        ended=_instant(item, "ended"),
        interruptions=int(item["interruptions"]),
        flavor=str(item["flavor"]),
        gpus=int(item["gpus"]),
        usage=tuple((str(use["flavor"]), str(use["resource"]), int(use["amount"])) for use in item["usage"]),
        outcome=Outcome(item["outcome"]) if item["outcome"] else None,
        reason=str(item["reason"] or ""),
        runs=runs,
        deadlines=tuple(
            DeadlineEdit(parse_instant(edit["since"]), _instant(edit, "deadline")) for edit in item["deadlines"]
        ),
        judgements=tuple(
            Judgement(parse_instant(said["noticed"]), Verdict(said["verdict"]), str(said["by"]), str(said["reason"]))
            for said in item.get("judgements") or ()
        ),
    )


def _instant(item: Mapping[str, Any], field: str) -> int | None:
    text = item.get(field)
    return None if text is None else parse_instant(text)
