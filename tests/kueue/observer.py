"""The observer of a local cluster, where the tests look for it."""

from localcluster.observer import Entry, Observer, Run

__all__ = ["Entry", "Observer", "Run"]
