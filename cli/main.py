"""``punctual``: the command line. Each command is a file of its own beside this one."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Deadline-aware admission for Kueue.")


def main() -> None:
    """Entry point of ``punctual`` and ``kubectl punctual``."""
    app()
