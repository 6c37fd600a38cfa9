"""``punctual compile``: compile all kernels now, so that nothing waits for it later."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import typer

FAILED = 1
"""Exit code."""

TOLD_EVERY = 10.0
"""Seconds between two lines of progress."""


def compile() -> None:
    """Compile the kernels of planner and controller, once on a machine.

    They are compiled for this very processor and kept in numba's cache
    (beside the installed files, or where NUMBA_CACHE_DIR says). Without this,
    the first start of "punctual solver", "punctual controller" and "punctual
    demo" does it, and takes up to a minute longer. When all is there already
    it takes a few seconds, and changes nothing.
    """
    began = time.monotonic()
    # Two processes: numba compiles one kernel at a time in each.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        left = {pool.submit(_planner), pool.submit(_controller)}
        while left:
            done, left = wait(left, TOLD_EVERY)
            for part in done:
                _check(part.exception())
            if left:
                typer.echo(f"compiling kernels, once on this machine: {time.monotonic() - began:.0f} s", err=True)
    typer.echo(f"all kernels are compiled ({time.monotonic() - began:.0f} s)")


def _check(error: BaseException | None) -> None:
    if error is None:
        return
    what = "a compiling process was killed: out of memory?" if isinstance(error, BrokenProcessPool) else str(error)
    typer.echo(f"punctual: {what}", err=True)
    raise typer.Exit(FAILED)


def _planner() -> None:
    from solver.planner import warm_up, warm_up_repair

    warm_up()
    warm_up_repair()


def _controller() -> None:
    from scheduler.warmup import warm_up

    warm_up()
