"""The one exception that callers of this package see."""

from __future__ import annotations


class LocalClusterError(Exception):
    """Something about the local cluster failed. The message says what, where to look, and what to do."""
