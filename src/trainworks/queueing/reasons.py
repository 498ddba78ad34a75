"""Why waiting jobs wait, with numbers, and whether an empty cluster has room for a gang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from trainworks.errors import InfeasibleError
from trainworks.queueing.fair_share import why_behind
from trainworks.queueing.placement import FreeResources, Gang, NodeIndex, fits, place
from trainworks.queueing.snapshot import GangShape, NodeInfo, QueuedJob
from trainworks.units import format_bytes

_MOST_NODES = 3
"""Nodes that a sentence names one by one."""


def short_text(shape: GangShape, gang: Gang, resources: FreeResources) -> str:
    """Sentence for a gang whose resources are in use; of roles, for the first one whose are."""
    if gang.roles:
        for role, alone in zip(shape.roles, gang.roles, strict=True):
            if not place(alone, resources.free):
                return short_text(role, alone, resources)
        return f"{needs_text(shape)}; too few nodes have that free at once"
    able = [index for index in gang.candidates if fits(gang.need, resources.free[index])]
    if gang.racks is None:
        return f"{needs_text(shape)}; {_have(len(able), 'node')} that free"
    most = max(Counter(gang.racks[index] for index in able).values(), default=0)
    return f"{needs_text(shape)}; {_have(most, 'node')} that free in the emptiest rack"


def unavailable_text(shape: GangShape, everywhere: NodeIndex) -> str:
    """Sentence for a gang with too few nodes in service and not excluded; of roles, for the first one that has."""
    if shape.roles:
        in_service = NodeIndex(node for node in everywhere.nodes if node.in_service)
        for role in shape.roles:
            if not in_service.gang(role).candidates:
                return unavailable_text(role, everywhere)
        return f"{needs_text(shape)}; too few nodes for all of that can be taken"
    alone = everywhere.gang(replace(shape, nodes_min=1, exclude=frozenset()))
    able = [everywhere.nodes[index] for index in alone.candidates]
    missing = [f"{node.name} {why}" for node in able if (why := _why_not(node, shape))]
    more = len(missing) - _MOST_NODES
    named = missing[:_MOST_NODES] + ([f"{more} more"] if more > 0 else [])
    text = f"{needs_text(shape)}; {_have(len(able) - len(missing), 'node')} that and can be taken"
    return f"{text}: {joined(named)}" if named else text


def _why_not(node: NodeInfo, shape: GangShape) -> str | None:
    if node.name in shape.exclude:
        return "is excluded"
    if node.down is not None:
        return f"is down ({node.down})"
    return f"is drained ({node.drained})" if node.drained is not None else None


def explain_precedence(job: QueuedJob, first: QueuedJob) -> str:
    """Sentence for a job that waits because another one goes first, for its fair share if that is why."""
    behind = f"behind {first.label} (priority {first.priority})"
    because = why_behind(job.rank, first.rank) if job.priority == first.priority else ""
    return f"{behind}: {because}" if because else behind


def leaving_text(jobs: Sequence[int], *, preempted: bool) -> str:
    """Sentence for a gang that waits for ending jobs."""
    names = f"{'jobs' if len(jobs) > 1 else 'job'} {joined([str(job) for job in jobs])}"
    have = "have" if len(jobs) > 1 else "has"
    return f"{names}, preempted for it, {have} not gone yet" if preempted else f"{names} {have} not ended yet"


def _have(count: int, noun: str) -> str:
    return f"{count_of(count, noun)} {'have' if count > 1 else 'has'}"


def needs_text(shape: GangShape) -> str:
    """Needs of a gang per node and its number of nodes.

    >>> needs_text(Shape(nodes_min=2, nodes_max=2, cores_per_node=8, accelerators_per_node=4, accelerator="A100",
    ...                  memory_per_node_bytes=0))
    'needs 4 A100 and 8 cores on each of 2 nodes'
    """
    return f"needs {', and '.join(map(_share_on_nodes, shape.groups))}"


def _share_on_nodes(shape: GangShape) -> str:
    each = "" if shape.nodes_min == 1 else "each of "
    rack = " of one rack" if shape.same_rack and shape.nodes_min > 1 else ""
    share = share_text(shape)
    return f"{share + ' on ' + each if share else ''}{count_of(shape.nodes_min, 'node')}{rack}"


def count_of(count: int, noun: str) -> str:
    """A number with its noun: `1 node`, `2 nodes`, `no node`."""
    return f"{count or 'no'} {noun}{'s' if count > 1 else ''}"


def joined(words: Sequence[str]) -> str:
    """Comma-separated parts with a final `and`: `a, b and c`."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def share_text(shape: GangShape) -> str:
    """Share a gang takes of each node: `4 A100 and 8 cores`; empty for nothing."""
    return amounts_text(
        shape.accelerators_per_node, shape.accelerator, shape.cores_per_node, shape.memory_per_node_bytes
    )


def amounts_text(accelerators: int, kind: str | None, cores: float, memory_bytes: int) -> str:
    """Accelerators, cores and memory, those that are not zero."""
    texts = []
    if accelerators:
        texts.append(f"{accelerators} {kind}" if kind else count_of(accelerators, "accelerator"))
    if cores:
        texts.append(f"{cores:g} {'core' if cores == 1 else 'cores'}")
    if memory_bytes:
        texts.append(f"{format_bytes(memory_bytes)} of memory")
    return joined(texts)


def check_feasible(shape: GangShape, nodes: Iterable[NodeInfo]) -> None:
    """Refuse a gang that could not run on these nodes even if all of them were in service and empty.

    Raises:
        InfeasibleError: with what is there, and what would fit.
    """
    known = sorted((node for node in nodes if node.name not in shape.exclude), key=lambda node: node.name)
    if NodeIndex(known).gang(shape).candidates:
        return
    if shape.roles:
        for role in shape.roles:
            check_feasible(role, known)
        hint = "give roles fewer nodes, or smaller ones"
        raise InfeasibleError(f"the job {needs_text(shape)}; {_there_are(len(known))} for all of them", hint=hint)
    raise _too_large(shape, known)


def _too_large(shape: GangShape, known: Sequence[NodeInfo]) -> InfeasibleError:
    smaller = shrink_to_fit(shape, known)
    if smaller is None:
        excluded = f" but the {len(shape.exclude)} excluded" if shape.exclude else ""
        hint = "exclude fewer nodes" if shape.exclude else "add a node"
        return InfeasibleError(f"{_gang_text(shape)}; the cluster has no node{excluded}", hint=hint)
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
    return InfeasibleError(f"{_gang_text(shape)}; {_describe_nodes(shape, known)}", hint=", ".join(changes))


def shrink_to_fit(shape: GangShape, nodes: Sequence[NodeInfo]) -> GangShape | None:
    """The shape, made as little smaller as needed: first on fewer nodes, then with less of each; None without nodes."""
    nodes = [node for node in nodes if node.name not in shape.exclude]
    of_kind = [node for node in nodes if shape.accelerator in (None, node.accelerator)]
    if not nodes:
        return None
    if not of_kind:
        most = max(nodes, key=lambda node: (node.accelerators, node.cores, node.memory_bytes))
        return shrink_to_fit(replace(shape, accelerator=most.accelerator), nodes)
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
            min(node.memory_bytes // 10**8 * 10**8, shape.memory_per_node_bytes),
        )

    accelerators, cores, memory = max(map(common, nodes))
    return replace(shape, accelerators_per_node=accelerators, cores_per_node=cores, memory_per_node_bytes=memory)


def _gang_text(shape: GangShape) -> str:
    share = share_text(shape)
    each = " each" if shape.nodes_min > 1 else ""
    rack = " in one rack" if shape.same_rack and shape.nodes_min > 1 else ""
    return f"{count_of(shape.nodes_min, 'node')}{rack}{' of ' + share + each if share else ''}"


def _describe_nodes(shape: GangShape, nodes: Sequence[NodeInfo]) -> str:
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
