"""Bring a stack onto its nodes batch by batch, without a job noticing: drain, apply, check, resume."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from trainworks.config.stack import Stack
from trainworks.deploy.fabric.network import leaves_of
from trainworks.deploy.playbook import Answer, HostCounts, PlaybookRun, TaskResult

REASON = "trainworks deploy"
"""Reason of a drain; an apply that was interrupted finds its nodes again by it."""
CHECK = "/usr/local/sbin/check-node.sh"
"""Checks a node that has no prolog, since it has no Slurm."""
HEALTH = (
    "{ if command -v trainworks > /dev/null; then trainworks health --as prolog; "
    f"elif [ -e {CHECK} ]; then {CHECK}; else /etc/slurm/prolog.sh; fi; }} 2>&1 "
    "| sed 's/^print //'; (exit ${PIPESTATUS[0]})"
)
"""Checks a node, and prints a line for each failure: with Trainworks where it is installed, else with a script."""
_COMPUTES = (
    '[ -n "$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2> /dev/null; '
    'ls /sys/class/kfd/kfd/proc 2> /dev/null)" ]'
)
"""Whether a process computes on a GPU of NVIDIA or of AMD."""
_JOIN_S = 180
ASLEEP = "~%#"
"""What Slurm puts behind the state of a node that it has stopped to save power, stops, or starts; sinfo(1)."""
_ENDED = ("drained", "draining", "down")


@dataclass(frozen=True, slots=True)
class Batch:
    """Hosts that change together."""

    hosts: tuple[str, ...]
    computes: bool
    """They are compute nodes, which are drained before, and checked and resumed after."""


@dataclass(frozen=True, slots=True)
class BatchStep:
    """Something that happened to hosts of a batch."""

    hosts: tuple[str, ...]
    step: str  # woken, unchanged, drained, free, applied, healthy, joined, resumed, or failed
    detail: str = ""


class RolloutNodes(Protocol):
    """How the nodes are reached."""

    def apply(self, hosts: Collection[str], *, dry_run: bool) -> PlaybookRun:
        """Run the playbook on these hosts."""

    def command(self, hosts: Collection[str], command: str) -> Mapping[str, Answer]:
        """Run a command of bash as root on these hosts."""


def batches(stack: Stack, size: int | None, hosts: Collection[str] | None = None) -> list[Batch]:
    """Hosts of a stack, or these alone, in the order in which they change: servers together, then compute nodes, `size`
    at a time; those of one rack, under one set of leaf switches, when None.

    Without Slurm, a server that computes, too, is a batch of its own before the other compute nodes.
    """
    wanted = [name for group in stack.nodes for name in group.names if hosts is None or name in hosts]
    servers = {name for group in stack.nodes if set(group.roles) != {"compute"} for name in group.names}
    chosen = [tuple(name for name in rack if name in wanted and name not in servers) for rack in leaves_of(stack)]
    if size is not None:
        nodes = [name for rack in chosen for name in rack]
        chosen = [tuple(nodes[start : start + size]) for start in range(0, len(nodes), size)]
    both = servers.intersection(stack.hosts("compute")) if stack.slurm is None else set()
    first = tuple(name for name in wanted if name in servers - both)
    chosen = [(name,) for name in wanted if name in both] + chosen
    return [Batch(first, False)] * bool(first) + [Batch(rack, True) for rack in chosen if rack]


@dataclass(frozen=True, slots=True)
class Rollout:
    """Applies a stack to one batch after the other, and stops at the first that fails.

    Compute nodes of a running Slurm are asked first what would change: where nothing would, no node is drained. Nodes
    of a failed batch stay drained, and so do nodes that were drained for another reason.
    """

    controller: str
    nodes: RolloutNodes
    on_step: Callable[[BatchStep], None]
    wait_s: int
    """Longest time to wait for the jobs of a batch."""

    def run(self, order: Iterable[Batch]) -> PlaybookRun:
        """Results of all batches that were started."""
        results: list[TaskResult] = []
        counts: list[HostCounts] = []
        for batch in order:
            done = self._batch(batch)
            results += done.results
            counts += done.hosts
            if done.failed:
                failed = f"{','.join(_failed_names(done))}: a task failed, or the host did not answer"
                return PlaybookRun(tuple(results), tuple(counts), done.stopped or failed)
        return PlaybookRun(tuple(results), tuple(counts))

    def _batch(self, batch: Batch) -> PlaybookRun:
        known = self.states(batch.hosts) if batch.computes else {}
        if problem := self.wake(known):
            return PlaybookRun((), (), problem)
        if any(name in known for name in batch.hosts):
            preview = self.nodes.apply(batch.hosts, dry_run=True)
            if not preview.changed and not preview.failed:
                self._say(batch.hosts, "unchanged")
                return preview
        ours = [name for name in batch.hosts if name in known and is_ours(*known[name])]
        # meanwhile Slurm may have stopped idle ones to save power
        if problem := self.drain(ours) or self.wake(self.states(ours) if ours else {}):
            return PlaybookRun((), (), problem)
        done = self.nodes.apply(batch.hosts, dry_run=False)
        if done.failed:
            self._say(_failed_names(done), "failed", "a task failed")
            return done
        self._say(batch.hosts, "applied")
        if batch.computes:
            return replace(done, stopped=self.check(batch.hosts) or self.resume(ours))
        return done

    def states(self, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """State and reason of each of these nodes that answers Slurm; empty on a new cluster, where Slurm does not."""
        answer = self._ask("sinfo --noheader --Node --format='%N|%T|%E'")
        lines = answer.output.splitlines() if answer.exit_code == 0 else []
        rows = [line.split("|", 2) for line in lines]
        return {name: (state, reason) for name, state, reason in rows if name in names and not state.endswith("*")}

    def wake(self, states: Mapping[str, tuple[str, str]]) -> str:
        """Start the nodes that Slurm has stopped to save power, and wait until they answer; what is wrong, if not.

        One that is still on its way down starts after that. A node that misses its time to start is down for Slurm.
        """
        names = [name for name, (state, _) in states.items() if state.endswith(tuple(ASLEEP))]
        if not names:
            return ""
        # once for each that is off: Slurm calls its program anew for one that starts already
        off = "awk '$2 ~ /~/ {print $1}' <<< \"$states\" | paste -sd,"
        waiting = (
            f"while states=$(sinfo --noheader --Node --nodes={','.join(names)} --format='%N %T' | sort -u); "
            f'grep -q "[{ASLEEP}]" <<< "$states"; do off=$({off}); '
            '[ -z "$off" ] || scontrol update NodeName="$off" State=POWER_UP > /dev/null 2>&1; sleep 5; done'
        )
        if self._ask(f"timeout {self.wait_s} bash -c {shlex.quote(waiting)}").exit_code != 0:
            problem = f"Slurm has not started them after {self.wait_s} s"
            self._say(names, "failed", problem)
            return f"{','.join(names)}: {problem}"
        self._say(names, "woken")
        return ""

    def drain(self, names: Sequence[str]) -> str:
        """Drain nodes and wait for their jobs; what is wrong, if it is."""
        if not names:
            return ""
        self._update(names, f"State=DRAIN Reason={shlex.quote(REASON)}")
        busy = f'[ -z "$(squeue --noheader --nodelist={",".join(names)})" ]'
        waiting = self._ask(f"timeout {self.wait_s} bash -c {shlex.quote(f'until {busy}; do sleep 2; done')}")
        if waiting.exit_code == 0:
            self._say(names, "drained")
            return ""
        self._update(names, "State=RESUME")
        problem = f"jobs were still running after {self.wait_s} s, and their nodes take jobs again"
        self._say(names, "failed", problem)
        return f"{','.join(names)}: {problem}"

    def check(self, names: Sequence[str]) -> str:
        """Check the health of nodes; what is wrong, if it is."""
        answers = self.nodes.command(names, HEALTH)
        bad = {name: answers[name].output.strip() for name in names if answers[name].exit_code != 0}
        for name, output in bad.items():
            self._say([name], "failed", "; ".join(output.splitlines()) or "its check printed nothing")
        if not bad:
            self._say(names, "healthy")
        return "; ".join(f"{name}: {' '.join(output.split())}" for name, output in bad.items())

    def resume(self, names: Sequence[str]) -> str:
        """Let jobs start on nodes again; what is wrong, if it is."""
        if names:
            answer = self._update(names, "State=RESUME")
            if answer.exit_code != 0:
                return f"{','.join(names)}: {answer.output.strip()}"
            self._say(names, "resumed")
        return ""

    def give_up(self, names: Sequence[str]) -> None:
        """Queue the jobs of machines that are gone again, and let none start on what gets their names."""
        if names:
            self._update(names, f"State=DOWN Reason={shlex.quote(REASON)}")
            self._update(names, f"State=DRAIN Reason={shlex.quote(REASON)}")
            self._say(names, "drained", "their machines do not answer")

    def joined(self, names: Sequence[str]) -> str:
        """Wait until new nodes answer the scheduler; what is wrong, if they do not."""
        answering = (
            f"sinfo --noheader --Node --nodes={','.join(names)} --format=%N,%T | sort -u | grep -cvE ',unk|,down|[*]'"
        )
        waiting = f'until [ "$({answering})" = {len(names)} ]; do sleep 2; done'
        answer = self._ask(f"timeout {_JOIN_S} bash -c {shlex.quote(waiting)}")
        if answer.exit_code != 0:
            return f"{','.join(names)}: slurmctld has no answer of slurmd after {_JOIN_S} s"
        self._say(names, "joined")
        return ""

    def _update(self, names: Sequence[str], change: str) -> Answer:
        return self._ask(f"scontrol update NodeName={','.join(names)} {change} 2>&1")

    def _ask(self, command: str) -> Answer:
        return self.nodes.command([self.controller], command)[self.controller]

    def _say(self, names: Sequence[str], step: str, detail: str = "") -> None:
        self.on_step(BatchStep(tuple(names), step, detail))


@dataclass(frozen=True, slots=True)
class UnscheduledRollout(Rollout):
    """Applies a stack without Slurm: a node is free while no process computes on its GPUs; no queue holds runs back."""

    def states(self, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Each of these nodes that has what an apply left there."""
        answers = self.nodes.command(names, f"test -e {CHECK}") if names else {}
        return {name: ("idle", "none") for name in names if answers[name].exit_code == 0}

    def drain(self, names: Sequence[str]) -> str:
        """Wait until nothing computes on these nodes; what is wrong, if something still does."""
        waiting = f"timeout {self.wait_s} bash -c {shlex.quote(f'while {_COMPUTES}; do sleep 2; done')}"
        answers = self.nodes.command(names, waiting) if names else {}
        free = [name for name in names if answers[name].exit_code == 0]
        busy = [name for name in names if answers[name].exit_code not in (0, None)]
        problem = f"programs were still computing on GPUs after {self.wait_s} s"
        for each, step in ((busy, "failed"), ([] if busy else free, "free")):
            if each:
                self._say(each, step, problem if step == "failed" else "")
        return f"{','.join(busy)}: {problem}" if busy else ""

    def resume(self, names: Sequence[str]) -> str:
        """Nothing: no queue held them back."""
        return ""

    def give_up(self, names: Sequence[str]) -> None:
        """Nothing: no queue has jobs on machines that are gone."""

    def joined(self, names: Sequence[str]) -> str:
        """Nothing: no scheduler waits for them."""
        return ""


def rollout_of(stack: Stack, nodes: RolloutNodes, on_step: Callable[[BatchStep], None], wait_s: int) -> Rollout:
    """How a stack comes onto its nodes, with Slurm or without it."""
    if stack.slurm is None:
        return UnscheduledRollout("", nodes, on_step, wait_s)
    return Rollout(next(iter(stack.hosts("controller"))), nodes, on_step, wait_s)


def is_ours(state: str, reason: str) -> bool:
    """Whether a node with this state and reason is drained and resumed by an apply.

    >>> is_ours("idle", "none"), is_ours("drained", "Xid 79"), is_ours("drained", "trainworks deploy")
    (True, False, True)
    """
    ended = state.rstrip("~#!%$@^-+").startswith(_ENDED)
    return reason == REASON or not ended


def _failed_names(done: PlaybookRun) -> list[str]:
    return [host.host for host in done.hosts if host.failed or host.unreachable]
