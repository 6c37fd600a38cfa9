"""The fields of a file that people write as a table, from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def fields_table(whole: dict[str, Any]) -> str:
    """A Markdown table: field, allowed, default, meaning; in the order of the schema."""
    rows = ["| field | allowed | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{path}` | {allowed} | {default} | {meaning} |" for path, allowed, default, meaning in _of(whole, whole, "")
    ]
    return "\n".join(rows) + "\n"


def _of(whole: dict[str, Any], part: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    for name, field in part["properties"].items():
        path = prefix + name
        inner = _inner(whole, field)
        if inner is None:
            yield path, _allowed(field), _default(field), field["description"].replace("\n", " ")
        else:
            step, definition = inner
            yield from _of(whole, definition, f"{path}{step}")


def _inner(whole: dict[str, Any], field: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The mapping that a field holds, and how a path goes on into it."""
    for step, holder in (
        *((".", option) for option in (field, *field.get("anyOf", ()))),
        (".NAME.", field.get("additionalProperties") or {}),
        ("[].", field.get("items") or {}),
    ):
        if isinstance(holder, dict) and "$ref" in holder:
            return step, whole["$defs"][holder["$ref"].rpartition("/")[2]]
    return None


def _allowed(field: dict[str, Any]) -> str:
    if "anyOf" in field:  # of which one is null: left out
        return _allowed(next(option for option in field["anyOf"] if option.get("type") != "null"))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_allowed(field['items'])}"
    if field.get("type") == "object":
        return f"by name: {_allowed(field['additionalProperties'])}"
    if "examples" in field:
        return "text: " + ", ".join(f"`{value}`" for value in field["examples"])
    if field.get("format") == "date-time":
        return "time: `2026-12-01T06:00:00Z`"
    if field.get("type") == "boolean":
        return "`true`, `false`"
    if field.get("type") in ("number", "integer"):
        return _range(field)
    return "text"


def _range(field: dict[str, Any]) -> str:
    above, below = field.get("exclusiveMinimum"), field.get("exclusiveMaximum")
    if above is not None and below is not None:
        return f"number: between {above:g} and {below:g}"
    least = f"{field['minimum']:g}" if above is None else f"more than {above:g}"
    if "maximum" in field:
        return f"number: {least} to {field['maximum']:g}"
    return f"number: {least}" if above is not None else f"number: {least} or more"


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    if isinstance(value, list):
        return ", ".join(f"`{each}`" for each in value)
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
