"""The Outcomes service: records verdicts for callers who do not speak Kubernetes (``proto/outcomes.proto``).

It has no rights of its own. Each call brings a bearer token, and all that is done on the cluster is done with that: the
apiserver says who it is, whether they hold the verb ``verify``, and writes their name. The rules are those of
:mod:`advisor.outcomes_say`, which ``punctual outcome`` goes by too. Tokens are kept nowhere, and never logged.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

import grpc

from advisor.api import outcomes_pb2 as pb
from advisor.api import outcomes_pb2_grpc as rpc
from advisor.outcomes_say import KINDS, CannotJudge, MayNot, NotEnded, NotThere, Said, check_reason, find, say
from scheduler.apiserver import FORBIDDEN, NOT_FOUND, ApiError, ApiServer
from scheduler.ledger_entry import Verdict

log = logging.getLogger(__name__)

UNAUTHORIZED = 401

LONGEST_NAME = 253
"""Characters of a name, by Kubernetes."""

LONGEST = 700
"""Characters of a message."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_VERDICTS = {pb.VERIFIED: Verdict.VERIFIED, pb.REJECTED: Verdict.REJECTED}
_CODES: dict[type[CannotJudge], grpc.StatusCode] = {
    NotThere: grpc.StatusCode.NOT_FOUND,
    NotEnded: grpc.StatusCode.FAILED_PRECONDITION,
    MayNot: grpc.StatusCode.PERMISSION_DENIED,
}
_STATUSES = {
    UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    400: grpc.StatusCode.INVALID_ARGUMENT,
    409: grpc.StatusCode.ABORTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
}


class Refused(Exception):
    """A call that records nothing."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Service(rpc.OutcomesServicer):
    """The Outcomes service.

    Parameters
    ----------
    cluster
        The apiserver; whose rights it is configured with does not matter, they are not used.
    clock
        Milliseconds since the Unix epoch.
    """

    def __init__(self, cluster: ApiServer, clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._cluster, self._clock = cluster, clock

    def Record(self, request: pb.RecordRequest, context: grpc.ServicerContext) -> pb.RecordResponse:
        """Record a verdict, as the caller."""
        try:
            return self._record(request, context)
        except Refused as refused:
            code, message = refused.code, str(refused)
        except CannotJudge as error:
            code, message = _CODES.get(type(error), grpc.StatusCode.FAILED_PRECONDITION), str(error)
        except ApiError as error:
            code, message = _STATUSES.get(error.status, grpc.StatusCode.UNAVAILABLE), str(error)
        except Exception:
            told = uuid.uuid4().hex[:8]
            log.exception("a call failed", extra={"id": told})
            code, message = grpc.StatusCode.INTERNAL, f"this is a bug; the log has more under {told}"
        log.info("refused", extra={"work": f"{request.namespace}/{request.name}", "code": code.name, "why": message})
        context.abort(code, message[:LONGEST])
        raise AssertionError("abort raises")

    def _record(self, request: pb.RecordRequest, context: grpc.ServicerContext) -> pb.RecordResponse:
        kind, reason = _check(request), request.reason.strip()
        api = self._cluster.with_token(_token(context))
        try:
            work = find(api, kind, request.namespace, request.name, self._clock())
            uid = str(work.item["metadata"]["uid"])
            if request.uid and request.uid != uid:
                raise Refused(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"uid: {kind} {request.namespace}/{request.name} is another object by now, {uid}",
                )
            done = say(api, work, _VERDICTS[request.verdict], reason, dry_run=request.dry_run)
        finally:
            api.close()
        news = done.said is Said.RECORDED
        if news and not request.dry_run:
            told = {"work": f"{request.namespace}/{request.name}", "kind": kind, "by": done.by}
            log.info("recorded", extra={**told, "verdict": str(_VERDICTS[request.verdict])})
        return pb.RecordResponse(recorded=news, by=done.by, uid=uid)


def _check(request: pb.RecordRequest) -> str:
    """The kind; what makes no sense is refused."""
    wrong = ""
    for field, text in (("namespace", request.namespace), ("name", request.name)):
        if len(text) > LONGEST_NAME or not _NAME.fullmatch(text):
            wrong = wrong or f"{field}: {text[:80]!r} is no name of Kubernetes"
    kind = KINDS.get(request.kind.lower() or "job", "")
    if not kind:
        wrong = wrong or f"kind: {request.kind[:80]} is not judged: there are {', '.join(KINDS.values())}"
    if request.verdict not in _VERDICTS:
        wrong = wrong or "verdict: say VERIFIED or REJECTED"
    if told := check_reason(request.reason):
        wrong = wrong or f"reason: {told}"
    if wrong:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, wrong)
    return kind


def _token(context: grpc.ServicerContext) -> str:
    """The caller's bearer token."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
    raise Refused(
        grpc.StatusCode.UNAUTHENTICATED,
        'no token: send the metadata "authorization: Bearer TOKEN" with one that the cluster takes',
    )
