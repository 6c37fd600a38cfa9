"""What is read of Kueue's own configuration."""

import re
from typing import Any

import pytest

from scheduler.kueue_config import read_counting
from scheduler.pod import Counting, Transformation


def config_map(resources: str) -> dict[str, Any]:
    return {"data": {"controller_manager_config.yaml": f"kind: Configuration\nnamespace: kueue-system\n{resources}"}}


def test_resources_are_read() -> None:
    """Prefixes and rules as Kueue has them; Retain is the strategy of a rule that names none."""
    text = """
resources:
  excludeResourcePrefixes: [example.com/net]
  transformations:
  - input: nvidia.com/mig-1g.5gb
    strategy: Replace
    outputs: {example.com/slices: 1, example.com/memory: 5Gi}
  - {input: cpu, multiplyBy: nvidia.com/gpu, outputs: {example.com/credits: 0.5}}
"""
    memory = ("example.com/memory", 5 << 30), ("example.com/slices", 1)
    assert read_counting(config_map(text)) == Counting(
        ("example.com/net",),
        (
            Transformation("nvidia.com/mig-1g.5gb", True, "", memory),
            Transformation("cpu", False, "nvidia.com/gpu", (("example.com/credits", 0.5),)),
        ),
    )


@pytest.mark.parametrize("text", ["", "resources: {}", "resources:", "resources: {transformations: }"])
def test_most_say_nothing(text: str) -> None:
    """Without resources, all counts as it is asked for."""
    assert read_counting(config_map(text)) == Counting()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("resources: [", "is not YAML"),
        ("resources: 7", "resources is not a mapping"),
        ("resources: {transformations: {input: cpu}}", "resources.transformations is not a list"),
        ("resources: {transformations: [7]}", "resources.transformations[0] is not a mapping"),
        ("resources: {transformations: [{input: a, strategy: Keep}]}", "transformations[0].strategy is 'Keep'"),
        ("resources: {transformations: [{input: a, outputs: {b: many}}]}", "'many' is not a quantity"),
        ("resources: {transformations: [{input: a, outputs: [b]}]}", "transformations[0].outputs is not a mapping"),
        ("resources: {transformations: [{input: a}, {input: a}]}", "has two rules for a"),
        ("resources: {excludeResourcePrefixes: net}", "excludeResourcePrefixes is not a list"),
    ],
)
def test_what_kueue_would_not_start_with(text: str, wrong: str) -> None:
    """A configuration that makes no sense is refused, with the field at fault."""
    with pytest.raises(ValueError, match=re.escape(wrong)):
        read_counting(config_map(text))


def test_a_config_map_without_configuration() -> None:
    """The key that Kueue reads has to be there."""
    with pytest.raises(ValueError, match=r"controller_manager_config.yaml is missing"):
        read_counting({"data": {"other.yaml": ""}})
