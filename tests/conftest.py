"""Options and settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared and noisy, and the first call of a kernel compiles it: how long an example takes says nothing.
settings.register_profile("punctual", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("punctual")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--oracle-seed``: other random cases for the tests that ask the real Kueue."""
    parser.addoption("--oracle-seed", default="1", help="seed of the random cases that the real Kueue is asked about")
