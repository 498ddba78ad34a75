"""Status of Slurm's nodes, from what `sinfo`, `squeue` and `scontrol` print, and what a job needs of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from trainworks.backends.backend import NodeState, NodeStatus
from trainworks.backends.slurm.client import SlurmRefusedError
from trainworks.backends.slurm.states import accelerators_in, expand, node_state
from trainworks.jobs.job_spec import JobSpec

AWAY: frozenset[NodeState] = frozenset({"down", "unknown"})
"""States of nodes that may come back by themselves."""
NODE_FORMAT = "NodeList:255|,StateComplete:80|,CPUsState:64|,Memory:24|,Gres:255|,GresUsed:255|,Reason:256"
"""Fields of `sinfo --Node --Format` that `node_statuses` reads."""
_LEAF = re.compile(r"SwitchName=(\S+) Level=0 .*?\bNodes=(\S+)")
"""A line of `scontrol show topology`."""


def able_nodes(spec: JobSpec, nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Nodes, present or away, with the cores, memory and accelerators that a job requests of one."""
    asked = spec.node
    return [
        node
        for node in nodes
        if node.cores >= (asked.cores or 0.0)
        and node.accelerators >= asked.accelerators
        and node.memory_bytes >= (asked.memory_bytes or 0)
        and asked.accelerator in (None, node.accelerator)
    ]


def kinds_of(nodes: Iterable[NodeStatus]) -> str | None:
    """How many nodes of which cores and accelerators there are, as a hint; None if there are none."""
    kinds = Counter((node.cores, node.accelerators, node.accelerator) for node in nodes)
    each = [
        f"{count} node(s) of {cores:g} cores" + (f" and {devices} {name or 'accelerators'}" if devices else "")
        for (cores, devices, name), count in kinds.items()
    ]
    return f"there are {', '.join(each)}" if each else None


def node_statuses(nodes: str, running: str, topology: Callable[[], str]) -> list[NodeStatus]:
    """Status of all nodes, in order of their names; a node in several partitions is listed once.

    Args:
        nodes: from sinfo, in `NODE_FORMAT`.
        running: from squeue, a line `JOB|NODES` for each job that holds nodes.
        topology: calls `scontrol show topology`, which fails where there is none.
    """
    rows = [[field.strip() for field in line.split("|", NODE_FORMAT.count("|"))] for line in nodes.splitlines()]
    jobs, switches = _jobs_by_node(running), _switch_by_node(topology)
    by_name = {row[0]: row for row in rows if len(row) > 1}
    return [_node_status(row, jobs, switches) for _, row in sorted(by_name.items())]


def _jobs_by_node(said: str) -> dict[str, list[str]]:
    """Jobs on each node, from a list of jobs and their nodes."""
    jobs: dict[str, list[str]] = {}
    for job, _, nodes in (line.partition("|") for line in said.splitlines()):
        for node in expand(nodes.strip()):
            jobs.setdefault(node, []).append(job.strip())
    return jobs


def _switch_by_node(topology: Callable[[], str]) -> dict[str, str]:
    """Leaf switch of every node that topology.conf names; empty without one."""
    try:
        return {node: switch for switch, nodes in _LEAF.findall(topology()) for node in expand(nodes)}
    except SlurmRefusedError:
        return {}


def _node_status(row: Sequence[str], jobs: Mapping[str, Sequence[str]], switches: Mapping[str, str]) -> NodeStatus:
    name, raw, cores, memory, gres, gres_used, reason = row
    taken, _, _, total = (float(part) for part in cores.split("/"))
    count, accelerator = accelerators_in(gres)
    return NodeStatus(
        name=name,
        state=node_state(raw),
        raw=raw,
        reason=reason if reason.lower() != "none" else None,
        cores=total,
        cores_taken=taken,
        accelerators=count,
        accelerators_taken=accelerators_in(gres_used)[0],
        accelerator=accelerator,
        memory_bytes=int(memory) * 2**20 if memory.isdecimal() else 0,
        jobs=tuple(jobs.get(name, ())),
        switch=switches.get(name),
    )
