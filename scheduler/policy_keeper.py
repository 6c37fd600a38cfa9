"""Which policy is in force: the newest one that makes sense.

A policy that cannot be read changes nothing but a log line, an Event and a metric: the last good one goes on. One that
is taken away does not change anything either; back to the defaults is ``version: 1``.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable

from scheduler.cluster import Reference
from scheduler.metrics import Metrics
from scheduler.policy import BadPolicy, Policy, read_policy
from scheduler.policy_source import PolicySource, Written
from scheduler.schema_file import Mistake
from scheduler.settings import Settings

log = logging.getLogger(__name__)

DEFAULTS = "defaults"
"""Where the policy is from when nobody has written one."""

Tell = Callable[[Reference, str, str, str], None]
"""Writes an Event: target, kind, reason, message."""


class PolicyKeeper:
    """Follows a source of policies.

    Parameters
    ----------
    base
        What no policy says.
    tell
        Tells the object that has the policy what became of it.
    last
        The policy that was in force last, for a start beside one that cannot be read.

    Attributes
    ----------
    text
        The policy in force as it was written; None for the defaults.
    policy, settings
        The same, read.
    """

    def __init__(
        self,
        source: PolicySource,
        base: Settings | None = None,
        metrics: Metrics | None = None,
        tell: Tell = lambda *_: None,
        last: str | None = None,
    ) -> None:
        self._source = source
        self._base = base or Settings()
        self._metrics = metrics or Metrics()
        self._tell = tell
        self._seen: str | None = None
        self._valid = True
        self.text: str | None = None
        self.policy = Policy(version=1)
        self.where = DEFAULTS
        if last is not None:
            try:
                self.policy, self.text, self.where = read_policy(last), last, "the last one in force"
            except BadPolicy as error:  # of another version of ours
                log.warning("the policy that was in force cannot be read any more: %s", error)
        self.settings = self.policy.settings(self._base)
        self.look()

    def look(self) -> Settings:
        """What to go by now. Cheap when nothing has changed; the same object then."""
        written = self._source.look()
        if written.version != self._seen:
            first, self._seen = self._seen is None, written.version
            if written.text is None:
                self._missing(written, first)
            else:
                self._read(written, written.text, first)
            self._metrics.policy(digest(self.policy), self.where)
            self._metrics.policy_valid(self._valid)
        return self.settings

    def _missing(self, written: Written, first: bool) -> None:
        self._valid = self.text is None
        if self.text is not None:
            log.warning(
                "the policy is gone; the last one goes on (back to the defaults: version: 1)",
                extra={"where": written.where, "in_force": digest(self.policy)},
            )
        elif first:
            log.info("no policy is written: the defaults are in force", extra={"where": written.where})

    def _read(self, written: Written, text: str, first: bool) -> None:
        try:
            if written.problem:
                raise BadPolicy([Mistake("", written.problem, 0)])
            policy = read_policy(text)
        except BadPolicy as error:
            self._valid = False
            self._metrics.policy_read("refused")
            mistakes = [str(mistake) for mistake in error.mistakes]
            log.warning(
                "the policy cannot be read; the last good one goes on",
                extra={"where": written.where, "mistakes": mistakes, "in_force": digest(self.policy)},
            )
            if written.target:
                message = f"the last good policy ({digest(self.policy)}) goes on: {'; '.join(mistakes)}"
                self._tell(written.target, "Warning", "PolicyRefused", message)
            return
        self._metrics.policy_read("good")
        known, again = policy == self.policy, self._valid and not first
        self.policy, self.text, self.where, self._valid = policy, text, written.where, True
        if known and again:
            return  # only its wording has changed
        if not known:
            self.settings = policy.settings(self._base)
        log.info("policy in force", extra={"where": written.where, "digest": digest(policy), "policy": told(policy)})
        if written.target and not first:
            self._tell(
                written.target, "Normal", "PolicyInForce", f"policy {digest(policy)} is in force: {told(policy)}"
            )


def digest(policy: Policy) -> str:
    """Short name of what a policy says, however it is written."""
    return hashlib.sha256(json.dumps(policy.as_data(), sort_keys=True).encode()).hexdigest()[:12]


def told(policy: Policy) -> str:
    """A policy in a few words."""
    single = sorted(name for name, queue in policy.cluster_queues.items() if queue.mode not in (None, policy.mode))
    other = "enforce" if policy.mode == "observe" else "observe"
    return f"mode {policy.mode}" + (f" ({other} in {', '.join(single)})" if single else "")
