"""Kubernetes quantities become Kueue's integers exactly."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from scheduler.quantity import MAX_VALUE, amount

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]


@pytest.mark.parametrize(
    ("resource", "quantity", "value"),
    [
        ("cpu", "500m", 500),
        ("cpu", "1.5", 1500),
        ("cpu", "100k", 100_000_000),
        ("cpu", "1u", 1),
        ("memory", "16Gi", 16 << 30),
        ("memory", "1500m", 2),
        ("memory", "1e3", 1000),
        ("memory", "1E", 10**18),
        ("memory", "1E3", 1000),
        ("memory", "1Ei", 1 << 60),
        ("memory", "100Ei", MAX_VALUE),
        ("nvidia.com/gpu", 4, 4),
        ("nvidia.com/gpu", 0.5, 1),
        ("nvidia.com/gpu", "-1500m", -2),
        ("memory", "+.5Ki", 512),
        ("memory", "5.", 5),
        ("memory", "1e999999999", MAX_VALUE),
        ("memory", "1e-999999999", 1),
    ],
)
def test_amounts(resource: str, quantity: str | int | float, value: int) -> None:
    """cpu counts in millicores, the rest in base units, fractions rounded away from zero."""
    assert amount(resource, quantity) == value


@pytest.mark.parametrize(
    "text", ["", ".", "m", "1 Gi", "1gi", "1K", "1e", "1e1.5", "1__0", "inf", "٣", "0x10", "1" * 100]
)
def test_no_quantities(text: str) -> None:
    """What Kubernetes would not take is refused."""
    with pytest.raises(ValueError, match="is not a quantity"):
        amount("memory", text)


@given(
    st.decimals(min_value=0, max_value=10**6, places=3, allow_nan=False).map(lambda d: format(d, "f")),
    st.sampled_from(SUFFIXES),
    st.sampled_from(["cpu", "memory"]),
)
def test_same_as_the_kubernetes_client(number: str, suffix: str, resource: str) -> None:
    """The value is the one that the Kubernetes client reads."""
    exact = parse_quantity(number + suffix) * (1000 if resource == "cpu" else 1)
    assert amount(resource, number + suffix) == min(math.ceil(exact), MAX_VALUE)
