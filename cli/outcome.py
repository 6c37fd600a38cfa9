"""``punctual outcome``: say whether the result of some work counts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.advise_source import FAILED, USAGE, Goals, bad_file, fail, text_of, waiting
from cli.ledger import object_of, reading
from scheduler.kinds import ROOT_KINDS

if TYPE_CHECKING:
    from advisor.outcomes_say import Said
    from scheduler.ledger_entry import Entry, Verdict

REJECTED = 3
"""Exit code: the judge has rejected it, and that is on record."""


class Word(StrEnum):
    """What may be said."""

    VERIFIED = "verified"
    REJECTED = "rejected"


class Told(StrEnum):
    """Ways to print what was done."""

    TEXT = "text"
    JSON = "json"


def _kind(text: str) -> str:
    from advisor.outcomes_say import KINDS

    if text.lower() not in KINDS:
        raise typer.BadParameter(f"{text} is not judged: there are {', '.join(KINDS.values())}")
    return KINDS[text.lower()]


def outcome(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the Job (or --kind).")],
    verdict: Annotated[Word | None, typer.Argument(help="What is to be said; with --judge it says it.")] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", "-r", metavar="TEXT", help="Why. It is kept beside the verdict.")
    ] = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="Let the judge of its task in success.yaml score it, by its threshold.")
    ] = False,
    success: Goals = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Its namespace.", show_default="the context's")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help=f"What NAME is: {', '.join(ROOT_KINDS)}, or a Workload that belongs to none of these.",
            parser=_kind,
            metavar="KIND",
        ),
    ] = "Job",
    ledger: Annotated[
        str | None,
        typer.Option(metavar="PATH|postgresql://…", help="Write to the ledger itself: for work whose object is gone."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask whether we may, and record nothing.")] = False,
    output: Annotated[Told, typer.Option("--output", "-o", help="How to print what was done.")] = Told.TEXT,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As kubectl's.", show_default="$KUBECONFIG, ~/.kube/config")
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")] = None,
) -> None:
    """Say whether the result of work that has ended counts.

    It is written on the work, by the name that the cluster knows us by, and the
    controller keeps it in the ledger with who and when. That takes the RBAC verb
    `verify` on the resource: who may edit a Job does not certify it. Saying the
    same again changes nothing; another verdict comes behind it and counts.

    \b
    punctual outcome train-28901 verified --reason "score 0.91" -n vision
    punctual outcome train-28901 --judge --success success.yaml -n vision

    Exit codes: 0 recorded, or said before; 1 it has not ended, we may not, or the
    judge has not judged; 2 wrong usage, or no cluster configured; 3 the judge has
    rejected it, and that is recorded.
    """
    if judge and verdict is not None:
        raise fail(f"say {verdict}, or let the judge say it (--judge), not both", USAGE)
    if not judge and verdict is None:
        raise fail(f'say verified or rejected, or let the judge say it (--judge): {name} verified --reason "…"', USAGE)
    if judge and success is None:
        raise fail("--judge: say where its task and judge are: --success success.yaml", USAGE)
    if verdict is not None or reason is not None:
        from advisor.outcomes_say import check_reason

        if wrong := check_reason(reason or ""):
            raise fail(f"--reason: {wrong}", USAGE)
    if ledger is not None:
        told = _in_ledger(ledger, name, namespace, verdict, reason, judge, success, dry_run)
    else:
        told = _on_cluster(name, namespace, kind, verdict, reason, judge, success, dry_run, kubeconfig, context)
    if output is Told.JSON:
        typer.echo(json.dumps(told, indent=2))
    else:
        done = {"recorded": "would be recorded" if dry_run else "recorded", "unchanged": "said before"}[told["done"]]
        typer.echo(f"{done}: {told['namespace']}/{told['name']} {told['verdict']}: {told['reason']}")
    if judge and told["verdict"] == Word.REJECTED:
        raise typer.Exit(REJECTED)


def _on_cluster(
    name: str,
    namespace: str | None,
    kind: str,
    word: Word | None,
    reason: str | None,
    judge: bool,
    success: Path | None,
    dry_run: bool,
    kubeconfig: Path | None,
    context: str | None,
) -> dict[str, Any]:
    from advisor.outcomes_say import find, say
    from scheduler.apiserver import connect

    with _errors_told():
        api = connect(kubeconfig, context)
        try:
            work = find(api, kind, namespace or api.namespace, name, time.time_ns() // 1_000_000)
            verdict, why, score = _verdict(work.entry, word, reason, success if judge else None)
            done = say(api, work, verdict, why, dry_run=dry_run).said
        finally:
            api.close()
    return _told(work.entry, done, verdict, why, score)


def _in_ledger(
    address: str,
    name: str,
    namespace: str | None,
    word: Word | None,
    reason: str | None,
    judge: bool,
    success: Path | None,
    dry_run: bool,
) -> dict[str, Any]:
    from advisor.outcomes_say import Said, find_in_ledger

    if namespace is None:
        raise fail("--ledger: say the namespace of the work (-n)", USAGE)
    with reading(address) as book, _errors_told():
        entry = find_in_ledger(book, namespace, name)
        verdict, why, score = _verdict(entry, word, reason, success if judge else None)
        news = True if dry_run else book.judge(entry.uid, verdict, why, time.time_ns() // 1_000_000)
    return _told(entry, Said.RECORDED if news else Said.UNCHANGED, verdict, why, score)


def _verdict(
    entry: Entry, word: Word | None, reason: str | None, success: Path | None
) -> tuple[Verdict, str, float | None]:
    """What to say and why, from the user or from the judge."""
    from advisor.outcomes_judge import judge_task
    from advisor.success import BadSuccess, read_success
    from scheduler.ledger_entry import Verdict

    if word is not None:
        return Verdict(word), (reason or "").strip(), None
    assert success is not None
    try:
        goals = read_success(text_of(success))
    except BadSuccess as error:
        raise bad_file(success, error) from None
    with waiting("the judge judges"):
        judged = judge_task(goals, entry, object_of(entry))
    return judged.verdict, f"{reason.strip()}: {judged.reason}" if reason else judged.reason, judged.score


def _told(entry: Entry, done: Said, verdict: Verdict, reason: str, score: float | None) -> dict[str, Any]:
    return {
        "namespace": entry.family.namespace,
        "name": entry.name,
        "uid": entry.uid,
        "verdict": str(verdict),
        "reason": reason,
        "score": score,
        "done": str(done),
    }


@contextmanager
def _errors_told() -> Iterator[None]:
    from advisor.outcomes_say import CannotJudge
    from advisor.serving_judge import JudgeFailed
    from scheduler.apiserver import ApiError, NoCluster

    try:
        yield
    except NoCluster as error:
        raise fail(str(error), USAGE) from None
    except (ApiError, CannotJudge) as error:
        raise fail(str(error), FAILED) from None
    except JudgeFailed as error:
        raise fail(f"{error}; nothing is recorded", FAILED) from None
    except LookupError:
        raise fail("the work was forgotten meanwhile; nothing is recorded", FAILED) from None
