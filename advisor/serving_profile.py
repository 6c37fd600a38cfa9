"""The requests of a load test: one JSON object a line, with the answer that is expected.

A line is either a conversation for an OpenAI-compatible server (``messages``, or ``prompt`` for a single one), or a
body for any HTTP server (``body``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from scheduler.schema_file import BadFile, Mistake, Part

CHAT_PATH = "/v1/chat/completions"
Path = Annotated[str, StringConstraints(pattern=r"^/")]


class ProfileLine(Part):
    """One request."""

    id: str | int | None = None
    """Its name in what is kept; left out: its line."""
    expected: Any = None
    """What the judge compares the answer with."""
    prompt: str | None = None
    """Of a chat: the only message, from the user."""
    messages: list[dict[str, Any]] | None = None
    """Of a chat: all messages."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Of a chat: what else goes into its body (`max_tokens`, `temperature`, `model` …)."""
    body: Any = None
    """Of plain HTTP: what is sent, as JSON; text is sent as it is."""
    path: Path | None = None
    """Where to, after the target's URL; left out: `/v1/chat/completions` for a chat, nothing for plain HTTP."""
    method: Literal["GET", "POST", "PUT"] = "POST"
    """Of plain HTTP."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        given = [name for name in ("prompt", "messages", "body") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"has {given[0]} and {given[1]}; write one of them")
        if not given and self.method != "GET":
            raise ValueError("has no request; write prompt, messages or body")
        if self.messages is not None and not self.messages:
            raise ValueError("messages is empty")
        if self.parameters and "body" in given:
            raise ValueError("parameters are for a chat; write them into body")
        return self


@dataclass(frozen=True)
class Request:
    """One request, ready to be sent."""

    id: str
    chat: bool
    """Whether its answer is a stream of an OpenAI-compatible server."""
    method: str
    path: str
    """After the target's URL."""
    payload: bytes
    content_type: str
    expected: Any
    told: Any
    """What a judge is shown of it."""


@dataclass(frozen=True)
class Profile:
    """All requests of a load test."""

    requests: Sequence[Request]

    @property
    def chats(self) -> bool:
        """Whether any of them is for an OpenAI-compatible server."""
        return any(request.chat for request in self.requests)


def read_profile(text: str, *, model: str | None = None, judged: bool = False) -> Profile:
    """A profile from JSON lines; empty lines are nothing.

    Parameters
    ----------
    model
        Asked for in chats that do not name one.
    judged
        Whether each request must say what is expected.

    Raises
    ------
    BadFile
        With every mistake and its line.
    """
    mistakes: list[Mistake] = []
    requests: list[Request] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            read = ProfileLine.model_validate(json.loads(line))
        except (json.JSONDecodeError, RecursionError) as error:
            mistakes.append(Mistake("", f"is no JSON: {error}", number))
        except ValidationError as error:
            mistakes += [_mistake(found, number) for found in error.errors()]
        else:
            if judged and read.expected is None:
                mistakes.append(Mistake("expected", "is missing, and the judge compares with it", number))
            requests.append(_request(read, number, model))
    if not requests and not mistakes:
        mistakes.append(Mistake("", 'has no requests; a line is, say, {"prompt": "2+2?", "expected": "4"}', 0))
    unnamed = [request.id for request in requests if request.chat and b'"model"' not in request.payload]
    if unnamed and not mistakes:
        mistakes.append(Mistake("", "chats need a model: --model NAME, or parameters: {model: NAME} in each line", 0))
    if mistakes:
        raise BadFile(mistakes)
    return Profile(tuple(requests))


def _request(read: ProfileLine, number: int, model: str | None) -> Request:
    name = str(number if read.id is None else read.id)
    messages = [{"role": "user", "content": read.prompt}] if read.prompt is not None else read.messages
    if messages is None:
        plain = isinstance(read.body, str)
        payload = b"" if read.body is None else (read.body if plain else json.dumps(read.body)).encode()
        kind = "text/plain; charset=utf-8" if plain else "application/json"
        return Request(name, False, read.method, read.path or "", payload, kind, read.expected, read.body)
    named = {"model": model} if model else {}
    body = {**named, "messages": messages, **read.parameters, "stream": True}
    payload = json.dumps(body).encode()
    return Request(name, True, "POST", read.path or CHAT_PATH, payload, "application/json", read.expected, messages)


def _mistake(found: Any, line: int) -> Mistake:
    path = ".".join(str(step) for step in found["loc"])
    if found["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in ProfileLine.model_fields.items()]
        return Mistake(path, f"is not known; allowed here: {', '.join(known)}", line)
    if found["type"] == "value_error":
        return Mistake(path, str(found["ctx"]["error"]), line)
    if found["type"] in ("model_type", "model_attributes_type"):
        return Mistake(path, "must be a JSON object", line)
    return Mistake(path, found["msg"].removeprefix("Input "), line)
