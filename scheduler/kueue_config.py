"""Kueue's own configuration, as far as it says how requests are counted.

Kueue reads it once, when it starts, from a file that its installation mounts from a ConfigMap. We follow the ConfigMap:
after an edit we are ahead of Kueue until that has been restarted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from scheduler.pod import Counting, Transformation, read_amounts

_FILE = "controller_manager_config.yaml"


def read_counting(config_map: Mapping[str, Any]) -> Counting:
    """Read ``resources`` of the configuration in Kueue's ConfigMap.

    Raises
    ------
    ValueError
        If it is not what Kueue would start with.
    """
    text = (config_map.get("data") or {}).get(_FILE)
    if text is None:
        raise ValueError(f"{_FILE} is missing")
    try:
        configuration = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{_FILE} is not YAML: {' '.join(str(error).split())}") from None
    resources = _mapping(_mapping(configuration, _FILE).get("resources"), "resources")
    prefixes = _list(resources.get("excludeResourcePrefixes"), "resources.excludeResourcePrefixes")
    rules = _list(resources.get("transformations"), "resources.transformations")
    transformations = tuple(_transformation(rule, f"resources.transformations[{k}]") for k, rule in enumerate(rules))
    inputs = [rule.resource for rule in transformations]
    if twice := [name for name in inputs if inputs.count(name) > 1]:
        raise ValueError(f"resources.transformations has two rules for {twice[0]}")
    return Counting(tuple(str(prefix) for prefix in prefixes), transformations)


def _transformation(rule: Any, where: str) -> Transformation:
    rule = _mapping(rule, where)
    strategy = rule.get("strategy") or "Retain"
    if strategy not in ("Retain", "Replace"):
        raise ValueError(f"{where}.strategy is {strategy!r}, neither Retain nor Replace")
    return Transformation(
        resource=str(rule.get("input") or ""),
        replace=strategy == "Replace",
        times=str(rule.get("multiplyBy") or ""),
        outputs=read_amounts(_mapping(rule.get("outputs"), f"{where}.outputs")),
    )


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a mapping")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where} is not a list")
    return value
