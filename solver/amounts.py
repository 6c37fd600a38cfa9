"""Amounts of resources, for whoever needs no kernels: this imports nothing."""

MAX_AMOUNT = 1 << 52
"""Largest amount of a resource that is accepted: sums over a whole tree stay far from the edge of int64."""
