"""``punctual policy``: check a policy, show the one in force, say what another one would change and for whom."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from scheduler.apiserver import ApiServer
    from scheduler.in_force import Found
    from scheduler.policy import Policy

app = typer.Typer(no_args_is_help=True, help="Check, show and compare policies (docs/policy.md).")

BAD_INPUT, USAGE, CHANGES = 1, 2, 3
"""Exit codes."""


class Shown(StrEnum):
    """Ways to print a policy."""

    YAML = "yaml"
    JSON = "json"


class Told(StrEnum):
    """Ways to print what was found."""

    TEXT = "text"
    JSON = "json"


class Form(StrEnum):
    """Ways to print the schema."""

    JSON = "json"
    MARKDOWN = "markdown"


File = Annotated[Path, typer.Argument(metavar="FILE", help='A policy; "-" for the standard input.')]
Kubeconfig = Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", envvar="POD_NAMESPACE", help="Namespace of the controller.")
]
NAMESPACE = "punctual-system"


@app.command()
def check(
    file: File,
    output: Annotated[Told, typer.Option("--output", "-o", help="How to print it.")] = Told.TEXT,
) -> None:
    """Check a policy, without a cluster.

    Tells every mistake with its line, its path and what is allowed.

    Exit codes: 0 it can be used; 1 it cannot; 2 wrong usage.
    """
    from scheduler.policy import BadPolicy, read_policy
    from scheduler.policy_keeper import digest, told

    text = _text(file)
    try:
        policy = read_policy(text)
    except BadPolicy as error:
        if output is Told.JSON:
            mistakes = [{"path": m.path, "line": m.line, "message": m.message} for m in error.mistakes]
            typer.echo(json.dumps({"valid": False, "mistakes": mistakes}, indent=2))
        else:
            for mistake in error.mistakes:
                line = f":{mistake.line}" if mistake.line else ""
                typer.echo(f"{file}{line}: {mistake.path + ': ' if mistake.path else ''}{mistake.message}", err=True)
        raise typer.Exit(BAD_INPUT) from None
    if output is Told.JSON:
        typer.echo(json.dumps({"valid": True, "digest": digest(policy), "mistakes": []}, indent=2))
    else:
        typer.echo(f"{file}: ok ({told(policy)}; digest {digest(policy)})")


@app.command()
def show(
    file: Annotated[Path | None, typer.Option("--policy", metavar="FILE", help="Show this one, with defaults.")] = None,
    output: Annotated[Shown, typer.Option("--output", "-o", help="How to print it.")] = Shown.YAML,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print the policy in force, with all defaults filled in.

    Reads what the controller of the cluster has written down; where no
    controller has run yet, what it would go by.

    Exit codes: 0 shown; 1 it cannot be read; 2 wrong usage, or no cluster configured.
    """
    from scheduler.policy_keeper import digest

    if file is not None:
        policy, where = _read(file), str(file)
        remarks: tuple[str, ...] = ()
    else:
        found = _find(_connect(kubeconfig, context), namespace)
        policy, where, remarks = found.policy, found.where, found.remarks
    for remark in remarks:
        typer.echo(f"remark: {remark}", err=True)
    if output is Shown.JSON:
        data = {"source": where, "digest": digest(policy), "remarks": list(remarks), "policy": policy.as_data()}
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        typer.echo(f"# {where}; digest {digest(policy)}")
        typer.echo(_yaml(policy.as_data()), nl=False)


@app.command()
def diff(
    file: File,
    other: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Compare with this one, not the one in force.")
    ] = None,
    output: Annotated[Told, typer.Option("--output", "-o", help="How to print it.")] = Told.TEXT,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 if anything changes.")] = False,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say in words what a policy would change, and whom that touches now.

    Compares it with the one in force, field by field, and looks at the work
    that waits in the cluster under both. Changes nothing. With --from two files
    are compared, without a cluster.

    \b
    punctual policy diff policy.yaml
    punctual policy diff new.yaml --from old.yaml

    Exit codes: 0 compared; 1 one of them cannot be read; 2 wrong usage, or no
    cluster configured; 3 with --exit-code, if anything changes.
    """
    from scheduler.policy_diff import changes, touches

    new = _read(file)
    if other is not None:
        old, where, touched = _read(other), str(other), []
    else:
        api = _connect(kubeconfig, context)
        found = _find(api, namespace)
        old, where = found.policy, found.where
        for remark in found.remarks:
            typer.echo(f"remark: {remark}", err=True)
        touched = touches(_look(api), old, new)
    changed = changes(old, new)
    if output is Told.JSON:
        data = {
            "from": where,
            "to": str(file),
            "changes": [change.as_data() for change in changed],
            "touches": [touch.as_data() for touch in touched],
        }
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    elif not changed:
        typer.echo(f"{file} says the same as {where}")
    else:
        for change in changed:
            typer.echo(str(change))
        if other is None:
            typer.echo("")
            for touch in touched:
                typer.echo(str(touch))
            if not touched:
                typer.echo("touches no work that is there now")
    if changed and exit_code:
        raise typer.Exit(CHANGES)


@app.command("schema")
def schema_(
    output: Annotated[Form, typer.Option("--output", "-o", help="JSON Schema, or a table.")] = Form.JSON,
) -> None:
    """Print the JSON Schema of a policy, for editors and other tools.

    \b
    punctual policy schema > policy.schema.json
      and in the first line of the policy:
    # yaml-language-server: $schema=policy.schema.json
    """
    from scheduler.policy import schema
    from scheduler.schema_docs import fields_table

    typer.echo(json.dumps(schema(), indent=2, ensure_ascii=False) if output is Form.JSON else fields_table(schema()))


def _text(file: Path) -> str:
    import sys

    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise _failed(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _failed(f"{file}: is no text in UTF-8") from None


def _read(file: Path) -> Policy:
    from scheduler.policy import BadPolicy, read_policy

    try:
        return read_policy(_text(file))
    except BadPolicy as error:
        raise _failed(f"{file}: {error}") from None


def _connect(kubeconfig: Path | None, context: str | None) -> ApiServer:
    from scheduler.apiserver import NoCluster, connect

    try:
        return connect(kubeconfig, context)
    except NoCluster as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE) from None


def _find(api: ApiServer, namespace: str) -> Found:
    from scheduler.apiserver import ApiError
    from scheduler.in_force import find_policy

    try:
        return find_policy(api, namespace)
    except ApiError as error:
        raise _failed(str(error)) from None


def _look(api: ApiServer) -> Any:
    import time

    from scheduler.apiserver import ApiError
    from scheduler.still import look

    try:
        return look(api, int(time.time() * 1000))
    except ApiError as error:
        raise _failed(str(error)) from None


def _yaml(data: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _failed(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(BAD_INPUT)
