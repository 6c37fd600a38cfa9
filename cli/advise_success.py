"""``punctual advise success``: check what is written about success, and print its schema."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from advisor.success import Success
    from scheduler.schema_file import BadFile

app = typer.Typer(no_args_is_help=True, help="Check success.yaml: what counts as success (docs/success.md).")

BAD_INPUT = 1
"""Exit code."""


class Told(StrEnum):
    """Ways to print what was found."""

    TEXT = "text"
    JSON = "json"


class Form(StrEnum):
    """Ways to print the schema."""

    JSON = "json"
    MARKDOWN = "markdown"


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help='Success metrics; "-" for the standard input.')],
    output: Annotated[Told, typer.Option("--output", "-o", help="How to print it.")] = Told.TEXT,
) -> None:
    """Check success metrics.

    Tells every mistake with its line, its path and what is allowed. With -o json
    also what the file says, all defaults filled in.

    Exit codes: 0 they can be used; 1 they cannot; 2 wrong usage.
    """
    from advisor.success import BadSuccess, read_success

    try:
        success = read_success(text_of(file))
    except BadSuccess as error:
        if output is Told.JSON:
            mistakes = [{"path": m.path, "line": m.line, "message": m.message} for m in error.mistakes]
            typer.echo(json.dumps({"valid": False, "mistakes": mistakes}, indent=2))
        else:
            tell(file, error)
        raise typer.Exit(BAD_INPUT) from None
    if output is Told.JSON:
        typer.echo(json.dumps({"valid": True, "mistakes": [], "success": success.as_data()}, indent=2))
    else:
        typer.echo(f"{file}: ok ({_count(len(success.tasks), 'task')}, {_count(len(success.services), 'service')})")


@app.command()
def schema(
    output: Annotated[Form, typer.Option("--output", "-o", help="JSON Schema, or a table.")] = Form.JSON,
) -> None:
    """Print the JSON Schema of success metrics, for editors and other tools.

    \b
    punctual advise success schema > success.schema.json
      and in the first line of success.yaml:
    # yaml-language-server: $schema=success.schema.json
    """
    from advisor.success import schema
    from scheduler.schema_docs import fields_table

    typer.echo(json.dumps(schema(), indent=2, ensure_ascii=False) if output is Form.JSON else fields_table(schema()))


def success_of(file: Path) -> Success:
    """The success metrics of a file; ends the command, with every mistake told, if they cannot be read."""
    from advisor.success import BadSuccess, read_success

    try:
        return read_success(text_of(file))
    except BadSuccess as error:
        tell(file, error)
        raise typer.Exit(BAD_INPUT) from None


def text_of(file: Path) -> str:
    """The text of a file, or of the standard input for "-"; ends the command if there is none."""
    import sys

    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        reason = "is no text in UTF-8"
    typer.echo(f"error: {file}: cannot be read: {reason}", err=True)
    raise typer.Exit(BAD_INPUT)


def tell(file: Path, error: BadFile) -> None:
    """Print every mistake of a file, on the standard error."""
    for mistake in error.mistakes:
        line = f":{mistake.line}" if mistake.line else ""
        typer.echo(f"{file}{line}: {mistake.path + ': ' if mistake.path else ''}{mistake.message}", err=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
