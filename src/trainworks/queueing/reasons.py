"""Sentences that explain why a job waits, with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from trainworks.queueing.fair_share import why_behind
from trainworks.queueing.placement import FreeResources, Gang, NodeIndex, fits
from trainworks.queueing.snapshot import GangShape, NodeInfo, QueuedJob
from trainworks.units import format_bytes

_MOST_NODES = 3
"""Nodes that a sentence names one by one."""


def short_text(shape: GangShape, gang: Gang, resources: FreeResources) -> str:
    """Sentence for a gang whose resources are in use."""
    able = [index for index in gang.candidates if fits(gang.need, resources.free[index])]
    if gang.racks is None:
        return f"{needs_text(shape)}; {_have(len(able), 'node')} that free"
    most = max(Counter(gang.racks[index] for index in able).values(), default=0)
    return f"{needs_text(shape)}; {_have(most, 'node')} that free in the emptiest rack"


def unavailable_text(shape: GangShape, everywhere: NodeIndex) -> str:
    """Sentence for a gang with too few nodes in service and not excluded."""
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
    if not node.alive:
        return "is down"
    return f"is drained ({node.drained})" if node.drained is not None else None


def behind_text(job: QueuedJob, first: QueuedJob) -> str:
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
    each = "" if shape.nodes_min == 1 else "each of "
    rack = " of one rack" if shape.same_rack and shape.nodes_min > 1 else ""
    share = share_text(shape)
    return f"needs {share + ' on ' + each if share else ''}{count_of(shape.nodes_min, 'node')}{rack}"


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
