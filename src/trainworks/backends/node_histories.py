"""How often the hardware of each node has failed under earlier jobs, and which nodes a job should avoid."""

from __future__ import annotations

import stat
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from trainworks.backends.backend import Backend, NodeStatus
from trainworks.backends.store_place import is_there_a_store, store_url
from trainworks.catalog.catalog import accelerator
from trainworks.catalog.prices import known_accelerator
from trainworks.errors import UsageError
from trainworks.host.users import this_host
from trainworks.jobs.job_row import Attempt
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.store import JobStore, open_store
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.record.events.log import read_events
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover import node_history

_LOCAL = "local"
_WITH_HISTORY = (_LOCAL, "slurm")
"""Backends whose jobs record the names of their nodes."""
_IN_SERVICE = ("free", "mixed", "taken")


def with_history(backend: Backend) -> list[NodeStatus]:
    """Nodes of a backend with their histories; jobs of the same kind of backend count, by the names of the nodes.

    A failure counts for a node that the record names, or for the only node of an attempt. A node is unknown where the
    record names no node of the cluster: on Kubernetes it names pods.
    """
    listed = backend.nodes()
    if not is_there_a_store():
        return listed
    now = time.time()
    uses = _uses(open_store(store_url()), backend.name, now)
    return [
        replace(node, history=uses[node.name].history(node.accelerator, now)) if node.name in uses else node
        for node in listed
    ]


def history_of_machine(name: str, accelerator_name: str | None) -> node_history.NodeHistory | None:
    """History of the machine that this process runs on, under its own queue and as a node of Slurm.

    `name` is that of the machine as a node of Slurm.

    Returns:
        None if the job store remembers no job of this machine; there has to be a store.

    Raises:
        EnvironmentProblem: the job store cannot be read.
    """
    now, store = time.time(), open_store(store_url())
    uses = list(_uses(store, _LOCAL, now).values())  # its parts, where `$TRAINWORKS_NODES` splits it
    uses += [use for node, use in _uses(store, "slurm", now, only=name).items() if node == name]
    whole = _Use([one for use in uses for one in use.failed], [span for use in uses for span in use.held])
    return whole.history(accelerator_name, now) if uses else None


def check_has_histories(backend: Backend) -> None:
    """Refuse `job.avoid_failing_nodes` where nodes have no history.

    Raises:
        UsageError: jobs of this backend do not record the names of their nodes.
    """
    if backend.name not in _WITH_HISTORY:
        hint = "leave it out, and name the nodes in `job.exclude`"
        raise UsageError(f"{backend.name} does not support `job.avoid_failing_nodes`", hint=hint)


def avoid_failing_nodes(
    resolved: ResolvedRun, spec: JobSpec, backend: Backend, *, notify: Callable[[str], None]
) -> ResolvedRun:
    """Add nodes with a bad history to `job.exclude`, the worst first, so that enough others are left.

    Of every kind of accelerator the largest number of nodes that the job may get is left, counted over the nodes that
    take jobs and that it could use. `notify` receives the name and history of each node that is avoided.
    """
    job = resolved.run_file.job
    scores: defaultdict[str | None, dict[str, float]] = defaultdict(dict)
    histories: dict[str, node_history.NodeHistory] = {}
    for node in with_history(backend):
        is_usable = any(node.could_hold(group.node) for group in spec.groups)
        if node.state in _IN_SERVICE and node.name not in job.exclude and is_usable:
            scores[node.accelerator][node.name] = node.history.score if node.history else 1.0
            histories |= {node.name: node.history} if node.history else {}
    avoided = [name for kind in scores.values() for name in node_history.nodes_to_avoid(kind, needed=spec.max_nodes)]
    for name in avoided:
        found = histories[name]
        notify(f"the job avoids {name}: {found.failures} hardware failures, score {found.score:.1f}")
    job = job.model_copy(update={"exclude": (*job.exclude, *avoided)})
    return resolved.model_copy(update={"run_file": resolved.run_file.model_copy(update={"job": job})})


@dataclass(slots=True)
class _Use:
    """What jobs have seen of one node."""

    failed: list[node_history.NodeFailure] = field(default_factory=list)
    held: list[tuple[float, float]] = field(default_factory=list)

    def history(self, accelerator_name: str | None, now: float) -> node_history.NodeHistory:
        kind = known_accelerator(accelerator_name) if accelerator_name else None
        mttf = usual_node_mttf(accelerator(kind) if kind else None)
        return node_history.node_history(self.failed, self.held, now=now, node_mttf_s=mttf.value)


def _uses(store: JobStore, engine: str, now: float, only: str | None = None) -> dict[str, _Use]:
    """What the remembered attempts of an engine have seen of each node, or of the only one asked for, by its name."""
    host = this_host() if engine == _LOCAL else None
    uses: defaultdict[str, _Use] = defaultdict(_Use)
    for run_dir, attempt in store.attempts_since(now - node_history.REMEMBERED_S, engine=engine, host=host):
        end = now if attempt.ended_at is None else attempt.ended_at
        names = [one.node for one in attempt.placement]
        if only is not None and only not in names:
            continue  # opens no record
        for name in set(names):
            uses[name].held.append((attempt.started_at, end))
        for failure in _failures(attempt, end, RunDir(Path(run_dir))):
            if len(set(names)) == 1:
                uses[names[0]].failed.append(failure)
            elif 0 <= failure.node < len(names):
                uses[names[failure.node]].failed.append(failure)
    return dict(uses)


def _failures(attempt: Attempt, end: float, run_dir: RunDir) -> Sequence[node_history.NodeFailure]:
    """Failures of an attempt's nodes; its cause counts for its only node if its record names none."""
    if not attempt.placement:
        return []
    recorded = [one for one in _recorded_failures(run_dir) if attempt.started_at <= one.at <= end]
    if not recorded and len(attempt.placement) == 1 and attempt.end.cause in node_history.HARDWARE_CAUSES:
        return [node_history.NodeFailure(end, 0, attempt.end.cause)]
    return recorded


def _recorded_failures(run_dir: RunDir) -> Sequence[node_history.NodeFailure]:
    """Failures in the events of a run; none where this user cannot read them, or they are not as Trainworks writes."""
    try:
        state = run_dir.events_file.stat()
        if not stat.S_ISREG(state.st_mode):  # a pipe of another user would never end
            return []
        return _read_failures(run_dir.events_file, state.st_mtime_ns, state.st_size)
    except (OSError, KeyError, TypeError, ValueError, IndexError):
        return []


@lru_cache(maxsize=10_000)
def _read_failures(events_file: Path, _changed_at: int, _size: int) -> tuple[node_history.NodeFailure, ...]:
    """Read once for each state of the file: a page of nodes is shown every few seconds."""
    return tuple(node_history.hardware_failures(read_events(events_file)))
