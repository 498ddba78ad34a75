"""Feasibility of a gang on an empty cluster, and the nearest gang that fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trainworks.errors import InfeasibleError
from trainworks.queueing.placement import NodeIndex, place
from trainworks.queueing.reasons import amounts_text, count_of, joined, share_text
from trainworks.queueing.snapshot import GangShape, NodeInfo


def check_feasible(shape: GangShape, nodes: Iterable[NodeInfo]) -> None:
    """Refuse a gang that could not run on these nodes even if all of them were in service and empty.

    Raises:
        InfeasibleError: with what is there, and what would fit.
    """
    known = sorted((node for node in nodes if node.name not in shape.exclude), key=lambda node: node.name)
    if NodeIndex(known).gang(shape).candidates:
        return
    smaller = what_fits(shape, known)
    if smaller is None:
        excluded = f" but the {len(shape.exclude)} excluded" if shape.exclude else ""
        hint = "exclude fewer nodes" if shape.exclude else "add a node"
        raise InfeasibleError(f"{_gang_text(shape)}; the cluster has no node{excluded}", hint=hint)
    raise InfeasibleError(f"{_gang_text(shape)}; {_what_is_there(shape, known)}", hint=_changes(shape, smaller))


def what_fits(shape: GangShape, nodes: Sequence[NodeInfo]) -> GangShape | None:
    """The shape, made as little smaller as needed: first on fewer nodes, then with less of each; None without nodes."""
    nodes = [node for node in nodes if node.name not in shape.exclude]
    of_kind = [node for node in nodes if shape.accelerator in (None, node.accelerator)]
    if not nodes:
        return None
    if not of_kind:
        most = max(nodes, key=lambda node: (node.accelerators, node.cores, node.memory_bytes))
        return what_fits(replace(shape, accelerator=most.accelerator), nodes)
    node_index = NodeIndex(of_kind)
    if not node_index.gang(replace(shape, nodes_min=1)).candidates:
        shape = _clipped(shape, of_kind)
    count = len(place(node_index.gang(replace(shape, nodes_min=1)), node_index.sizes, most=shape.nodes_min))
    return replace(shape, nodes_min=count, nodes_max=max(count, min(shape.nodes_max, len(of_kind))))


def _clipped(shape: GangShape, nodes: Sequence[NodeInfo]) -> GangShape:
    """The shape limited per node to the best of these nodes."""

    def common(node: NodeInfo) -> tuple[int, float, int]:
        return (
            min(node.accelerators, shape.accelerators_per_node),
            min(node.cores, shape.cores_per_node),
            min(_whole_tenths(node.memory_bytes), shape.memory_per_node_bytes),
        )

    accelerators, cores, memory = max(map(common, nodes))
    return replace(shape, accelerators_per_node=accelerators, cores_per_node=cores, memory_per_node_bytes=memory)


def _whole_tenths(num_bytes: int) -> int:
    """Rounded down to 0.1 GB, which is how a hint writes it."""
    return num_bytes // 10**8 * 10**8


def _gang_text(shape: GangShape) -> str:
    share = share_text(shape)
    each = " each" if shape.nodes_min > 1 else ""
    rack = " in one rack" if shape.same_rack and shape.nodes_min > 1 else ""
    return f"{count_of(shape.nodes_min, 'node')}{rack}{' of ' + share + each if share else ''}"


def _what_is_there(shape: GangShape, nodes: Sequence[NodeInfo]) -> str:
    kinds = sorted({node.accelerator for node in nodes if node.accelerator})
    of_kind = [node for node in nodes if shape.accelerator in (None, node.accelerator)]
    if not of_kind:
        return f"no node has {shape.accelerator}, but {joined(kinds) or 'no accelerators'}"
    able = [node for node in of_kind if NodeIndex([node]).gang(replace(shape, nodes_min=1)).candidates]
    if len(able) >= shape.nodes_min:
        return "no rack has as many"
    if len(able) == len(of_kind):
        return f"{_there_are(len(able))} like that"
    if able:
        return f"{len(able)} of {count_of(len(of_kind), 'node')} {'is' if len(able) == 1 else 'are'} like that"
    return f"{_there_are(len(of_kind))} with {_most(shape, of_kind)}"


def _there_are(count: int) -> str:
    return f"there {'is' if count == 1 else 'are'} {count_of(count, 'node')}"


def _most(shape: GangShape, nodes: Sequence[NodeInfo]) -> str:
    """Largest amounts of the requested resources on any of the nodes."""
    accelerators = max(node.accelerators for node in nodes)
    text = amounts_text(
        accelerators if shape.accelerators_per_node else 0,
        shape.accelerator,
        max(node.cores for node in nodes) if shape.cores_per_node else 0,
        max(node.memory_bytes for node in nodes) if shape.memory_per_node_bytes else 0,
    )
    if shape.accelerators_per_node and not accelerators:
        return "no accelerators"
    return text if len(set(NodeIndex(nodes).sizes)) == 1 else f"up to {text}"


def _changes(shape: GangShape, smaller: GangShape) -> str:
    """The keys of a run file that turn one shape into the other."""
    changes = []
    if smaller.nodes_min != shape.nodes_min:
        changes.append(f"`num_nodes: {smaller.nodes_min}`")
    count, kind = smaller.accelerators_per_node, smaller.accelerator
    if (count, kind) != (shape.accelerators_per_node, shape.accelerator):
        text = f"`accelerators: {f'{kind}:' if kind else ''}{count}`"
        changes.append(text if count else "leave out `accelerators`")
    if smaller.cores_per_node != shape.cores_per_node:
        changes.append(f"`cpus: {smaller.cores_per_node:g}`")
    if smaller.memory_per_node_bytes != shape.memory_per_node_bytes:
        changes.append(f"`memory: {smaller.memory_per_node_bytes / 1e9:g}`")
    return ", ".join(changes)
