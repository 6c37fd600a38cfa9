"""Why Kueue does not admit a request, in Kueue's own words."""

from __future__ import annotations

from solver.choose import Choice, Queues, Shapes
from solver.quota import Int64s, QuotaTree, available

_DECIMAL = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def explain(
    tree: QuotaTree, queues: Queues, shapes: Shapes, usage: Int64s, queue: int, shape: int, choice: Choice
) -> list[list[str]]:
    """What stands against each pod set, up to the one at which Kueue gives up; nothing against those that fit.

    ``choice`` is what :func:`solver.choose.choose` left behind for the same request and use, when it did not fit. Kueue
    writes ``couldn't assign flavors to pod set NAME: `` and the reasons, sorted and joined by ``, ``. Of the resources
    that stand against one flavor it may leave some out (it stops at the first that rules the flavor out, in no order).
    It also tells node affinity from taints, which a request shape does not. With no use at all, these are the reasons
    why a request never fits.
    """
    assumed: dict[int, int] = {}
    told: list[list[str]] = []
    for row, pod_set in enumerate(range(shapes.first[shape], shapes.first[shape + 1])):
        pods = int(choice.pods[row])
        asked: dict[int, dict[int, int]] = {}
        for k in range(shapes.request_first[pod_set], shapes.request_first[pod_set + 1]):
            resource, amount = int(shapes.resource[k]), int(shapes.amount[k]) * pods
            group = int(queues.group[queue, resource])
            if group < 0 and amount and resource != queues.free:
                return [*told, [f"resource {tree.resources[resource]} unavailable in ClusterQueue"]]
            if group >= 0:
                asked.setdefault(group, {})[resource] = amount
        reasons: list[str] = []
        for group, request in asked.items():
            against = _against(tree, queues, shapes, usage, queue, group, pod_set, request, assumed)
            chosen = int(choice.flavor[row, group - queues.first[queue]])
            if chosen < 0:
                return [*told, sorted(reason for reasons in against.values() for reason in reasons)]
            if not choice.fits[row, group - queues.first[queue]]:
                reasons += [reason for reasons in against.values() for reason in reasons]
        for group, request in asked.items():
            for resource, amount in request.items():
                cell = tree.cell(int(choice.flavor[row, group - queues.first[queue]]), resource)
                assumed[cell] = assumed.get(cell, 0) + amount
        told.append(sorted(reasons))
    return told


def quantity(resource: str, value: int) -> str:
    """An amount in Kueue's units as Kubernetes writes it: ``1500m`` of cpu, ``2Gi`` of memory, ``3`` of others."""
    if (resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")) and value % 1024 == 0:
        return _scaled(value, 1024, _BINARY)
    return _scaled(value, 1000, _DECIMAL if resource == "cpu" else _DECIMAL[1:])


def _scaled(value: int, base: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while value and value % base == 0 and step + 1 < len(suffixes):
        value, step = value // base, step + 1
    return f"{value}{suffixes[step] if value else ''}"


def _against(
    tree: QuotaTree,
    queues: Queues,
    shapes: Shapes,
    usage: Int64s,
    queue: int,
    group: int,
    pod_set: int,
    request: dict[int, int],
    assumed: dict[int, int],
) -> dict[int, list[str]]:
    """What stands against each flavor of a group."""
    node = int(queues.node[queue])
    found: dict[int, list[str]] = {}
    for flavor in queues.flavor[queues.flavor_first[group] : queues.flavor_first[group + 1]].tolist():
        if shapes.excluded[pod_set, flavor]:
            found[flavor] = [f"flavor {tree.flavors[flavor]} is ruled out by node affinity or an untolerated taint"]
            continue
        found[flavor] = []
        for resource, amount in request.items():
            cell, name = tree.cell(flavor, resource), tree.resources[resource]
            taken, most = assumed.get(cell, 0), int(queues.potential[node, cell])
            free = max(0, available(tree.arrays, usage, node, cell))
            if taken + amount > most:
                found[flavor].append(
                    f"insufficient quota for {tree.cell_name(cell)}, previously considered podsets requests "
                    f"({quantity(name, taken)}) + current podset request ({quantity(name, amount)}) > "
                    f"maximum capacity ({quantity(name, most)})"
                )
            elif taken + amount > free:
                more = quantity(name, taken + amount - free)
                found[flavor].append(f"insufficient unused quota for {tree.cell_name(cell)}, {more} more needed")
    return found
