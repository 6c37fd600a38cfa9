"""Kubernetes quantities (``500m``, ``16Gi``, ``1e3``) as the integers Kueue calculates with.

Kueue keeps cpu in millicores and every other resource in its base unit, fractions rounded up (``ResourceValue`` in its
``pkg/resources/requests.go``). The grammar is that of ``k8s.io/apimachinery/pkg/api/resource``.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

CPU = "cpu"

MAX_VALUE = (1 << 63) - 1
"""What a larger quantity counts as, as in Kubernetes."""

_QUANTITY = re.compile(r"([+-]?)(?=[0-9]|\.[0-9])([0-9]*)(?:\.([0-9]*))?(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]?))")
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LONGEST = 64
_FARTHEST = 60  # powers of ten; anything beyond is capped or rounded up to one anyway


def amount(resource: str, quantity: str | int | float) -> int:
    """A quantity of a resource in Kueue's unit: millicores of cpu, base units of anything else, rounded up.

    Raises
    ------
    ValueError
        If it is not a quantity.
    """
    return in_units(resource, parse(quantity))


def in_units(resource: str, value: Fraction) -> int:
    """An exact amount in Kueue's unit, rounded away from zero, capped at 2⁶³ − 1."""
    scaled = value * 1000 if resource == CPU else value
    magnitude = min(MAX_VALUE, -(-abs(scaled) // 1))
    return -magnitude if scaled < 0 else magnitude


def parse(quantity: str | int | float) -> Fraction:
    """The exact value of a quantity.

    Raises
    ------
    ValueError
        If it is not a quantity.
    """
    return _parse(quantity if isinstance(quantity, str) else repr(quantity))


def int32(number: str | int | float) -> int:
    """A plain number of the Kubernetes API (a count, a priority).

    Raises
    ------
    ValueError
        If it is none, or has more than 32 bits.
    """
    value = int(number)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{number} has more than 32 bits")
    return value


@lru_cache(maxsize=65_536)
def _parse(text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"{text[:_LONGEST]!r} is not a quantity (examples: 4, 500m, 16Gi)")
    sign, whole, fraction, exponent, suffix = match.groups()
    value = Fraction(int(whole + (fraction or "") or "0"), 10 ** len(fraction or ""))
    if suffix in _BINARY:
        value *= 1 << _BINARY[suffix]
    else:
        power = int(exponent[1:]) if exponent else _DECIMAL[suffix]
        value *= Fraction(10) ** max(-_FARTHEST, min(_FARTHEST, power))
    return -value if sign == "-" else value
