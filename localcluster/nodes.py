"""Nodes that kwok pretends."""

from __future__ import annotations

from typing import Any

GPU = "nvidia.com/gpu"


def fake_nodes(count: int, gpus: int) -> list[dict[str, Any]]:
    """Nodes ``fake-0`` …, each with so many GPUs; the first half labelled ``gpu-kind=a``, the others ``b``."""
    return [_node(f"fake-{i}", gpus, "a" if i < count / 2 else "b") for i in range(count)]


def _node(name: str, gpus: int, kind: str) -> dict[str, Any]:
    room = {"cpu": "256", "memory": "2Ti", "pods": "500", GPU: str(gpus)}
    labels = {"type": "kwok", "kubernetes.io/hostname": name, "gpu-kind": kind}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": room, "capacity": room}}
