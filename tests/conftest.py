"""Options of the tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--oracle-seed``: other random cases for the tests that ask the real Kueue."""
    parser.addoption("--oracle-seed", default="1", help="seed of the random cases that the real Kueue is asked about")
