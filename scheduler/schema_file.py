"""A file that people write, of one schema: strict, and every mistake told with its line, its path and what is allowed.

The schema is a pydantic model made of :class:`Part`. The policy is such a file; what counts as success is another.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from scheduler.annotations import format_duration, format_instant, parse_estimate, parse_instant

_DURATION_PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d)(.*)$"


def reads(parse: Callable[[str], Any]) -> BeforeValidator:
    """A field that is text in the file, and that ``parse`` makes a value of."""

    def read(value: object) -> Any:
        if not isinstance(value, str | int | float):
            raise ValueError(f"is {_shown(value)}; must be a text")
        return parse(str(value).strip())

    return BeforeValidator(read)


Duration = Annotated[
    int,
    reads(parse_estimate),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _DURATION_PATTERN, "examples": ["90s", "2h30m", "3d"]}),
]
"""Milliseconds; ``2h30m`` in the file."""

Instant = Annotated[
    int,
    reads(parse_instant),
    PlainSerializer(format_instant, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Milliseconds since the Unix epoch; RFC 3339 with an offset in the file."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class Part(BaseModel):
    """A mapping of the file: keys in camelCase, unknown ones refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True)
class Mistake:
    """Something in a file that cannot be meant."""

    path: str
    """Where: ``clusterQueues.research.mode``; empty for the file as a whole."""
    message: str
    line: int
    """In the file, from 1; 0 when there is none."""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


class BadFile(ValueError):
    """A file that cannot be read; ``mistakes`` has all that is wrong with it."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(str(mistake) for mistake in mistakes))
        self.mistakes = tuple(mistakes)


_Model = TypeVar("_Model", bound=Part)


def read_file(text: str, model: type[_Model], hint: str) -> _Model:
    """What a file in YAML or JSON says.

    Parameters
    ----------
    hint
        What to write, for who has written nothing.

    Raises
    ------
    BadFile
        If it is not of that schema, with every mistake.
    """
    try:
        data = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or str(error)
        raise BadFile([Mistake("", f"is no YAML: {said}", mark.line + 1 if mark else 0)]) from None
    except (ValueError, RecursionError) as error:
        raise BadFile([Mistake("", f"is no YAML: {error}", 0)]) from None
    if data is None:
        raise BadFile([Mistake("", f"is empty; {hint}", 0)])
    if not isinstance(data, dict):
        raise BadFile([Mistake("", f"must be a mapping; {hint}", 1)])
    try:
        return model.model_validate(data)
    except ValidationError as error:
        root = yaml.compose(text, _Loader)  # for the lines
        whole = schema_of(model, "")
        raise BadFile([_mistake(found, root, whole) for found in error.errors()]) from None


def schema_of(model: type[Part], identifier: str) -> dict[str, Any]:
    """JSON Schema of a file, for editors and other tools; its ``$id`` is ``identifier``."""
    generated = model.model_json_schema(by_alias=True, mode="validation")
    for part in Part.__subclasses__():
        if part.__module__ != model.__module__:
            continue
        properties = (generated.get("$defs", {}).get(part.__name__) or generated)["properties"]
        # In the form of the file, not in ours: "1h" and not 3600000.
        told = part.model_construct().model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)
        for name, described in properties.items():
            if described.pop("default", None) is not None and name in told:
                described["default"] = told[name]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": identifier, **generated}


def known_keys(path: Sequence[str | int], whole: dict[str, Any]) -> list[str]:
    """The keys that a mapping may have, by a file's JSON Schema."""
    node, definitions = whole, whole.get("$defs", {})
    for step in path:
        node = (node.get("properties") or {}).get(step) or node.get("additionalProperties") or node.get("items") or {}
        node = next((option for option in node.get("anyOf", ()) if "$ref" in option), node)
        if "$ref" in node:
            node = definitions[node["$ref"].rpartition("/")[2]]
    return list(node.get("properties") or ())


class _Loader(yaml.SafeLoader):
    """YAML in which a time is text and a key that comes twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _mistake(found: Mapping[str, Any], root: yaml.Node | None, whole: dict[str, Any]) -> Mistake:
    """One error of pydantic, in our words."""
    steps: list[str | int] = [step for step in found["loc"] if step != "[key]"]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
    value, kind, context = found["input"], found["type"], found.get("ctx") or {}
    if kind == "missing":
        message = "is missing" + ("; write version: 1" if path == "version" else "")
    elif kind == "extra_forbidden":
        message = _unknown(str(steps[-1]), known_keys(steps[:-1], whole))
    elif kind == "literal_error":
        message = f"is {_shown(value)}; must be {context['expected']}"
    elif kind == "value_error":
        message = str(context["error"])
    elif kind in ("model_type", "dict_type", "model_attributes_type"):
        message = f"is {_shown(value)}; must be a mapping"
    elif kind == "list_type":
        message = f"is {_shown(value)}; must be a list"
    else:
        message = f"is {_shown(value)}; {found['msg'].removeprefix('Input ')}"
    return Mistake(path, message, _line(root, steps))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


def _unknown(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return "is not known" + (f"; did you mean {near[0]}?" if near else f"; allowed here: {', '.join(known)}")


def _line(node: yaml.Node | None, steps: Sequence[str | int]) -> int:
    """The line of what a path leads to, or of the last step on it that is there."""
    line = node.start_mark.line + 1 if node else 0
    for step in steps:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(step)]
            if not found:
                break
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            break
    return line
