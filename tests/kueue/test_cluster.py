"""The local cluster itself."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.kueue


def test_admits(team: Any, wait_until: Any) -> None:
    """A released Job is admitted, runs for as long as its annotation says, and finishes."""
    team.job("one", gpus=2, run_for=1)
    wait_until(lambda: team.condition("one", "QuotaReserved").get("reason") == "AdmissionGated", "a gated Workload")
    team.release("one")
    wait_until(lambda: team.finished("one"), "the end of the Job")
