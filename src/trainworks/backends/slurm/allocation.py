"""Nodes allocated to a Slurm job as its batch script sees them, how its agents start there, and how it lost them.

An `srun` that waits for a slurmstepd that is gone is ended. For the output of its task, srun keeps a connection to the
slurmstepd of its node until the step has ended. If that slurmstepd is killed, or its node starts again before slurmctld
counts it as down, the connection closes and nothing else happens: neither srun nor slurmctld ends the step (observed
with Slurm 22.05).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import psutil

from trainworks.agent.allocation import Allocation, signs_of_life
from trainworks.agent.node_agents import OwnProcesses
from trainworks.backends.slurm.client import SlurmClient
from trainworks.backends.slurm.states import ENDING, cause_of_the_kill, expand
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.jobs.state import Cause
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.run_dir import RunDir

_FOUND_OUT_S = 300.0
"""Time in which a slurmctld that has come back finds jobs that it does not know, or misses those that it knows."""
PATIENCE_S = 300.0
"""Longest time for which a job waits for a slurmctld that is away."""


def allocation(env: Mapping[str, str], client: SlurmClient, clock: Clock) -> Allocation:
    """Read the allocation from the variables of a batch script, and its addresses from Slurm.

    The clock waits for a slurmctld that is away: the names of nodes need not be known to the network, and no agent can
    start without it.

    Raises:
        EnvironmentProblem: this is not a batch script of Slurm.
        UnreachableError: slurmctld does not answer for `PATIENCE_S`.
    """
    try:
        groups, job, here = het_groups(env), env["SLURM_JOB_ID"], env.get("SLURMD_NODENAME")
    except KeyError as missing:
        raise EnvironmentProblem(f"{missing} is not set", hint="this runs in a job of Slurm: submit the run") from None
    if here in groups[0]:
        groups[0].sort(key=lambda name: name != here)
    nodes = [name for group in groups for name in group]
    listed = ",".join(dict.fromkeys(nodes))
    said = client.call_patiently(PATIENCE_S, clock, "scontrol", "--oneliner", "show", "nodes", listed)
    # such as `16(x2),8`, of the job or of each component
    parts = [f"_HET_GROUP_{group}" for group in range(len(groups))] if len(groups) > 1 else [""]
    said_cores = [env.get(f"SLURM_JOB_CPUS_PER_NODE{part}", "") for part in parts]
    shares = re.findall(r"(\d+)(?:\(x(\d+)\))?", ",".join(said_cores))
    found = (re.search(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", line) for line in said.splitlines())
    addresses = {match[1]: match[2] for match in found if match}
    return Allocation(
        job=job,
        nodes=tuple(nodes),
        addresses=tuple(addresses.get(node, node) for node in nodes),
        turn=int(env.get("SLURM_RESTART_COUNT") or 0),
        cores_per_node=int(env.get("SLURM_CPUS_ON_NODE") or 1),
        accelerators_per_node=int(env.get("SLURM_GPUS_ON_NODE") or 0),
        cores=tuple(int(cores) for cores, count in shares for _ in range(int(count or 1))),
    )


def het_groups(env: Mapping[str, str]) -> list[list[str]]:
    """Nodes of each component of a heterogeneous job, as its batch script sees them; of another job, all as one.

    Raises:
        KeyError: this is not a batch script of Slurm.
    """
    count = int(env.get("SLURM_HET_SIZE") or 1)
    lists = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(count)]
    return [list(expand(env[name])) for name in (lists if count > 1 else ["SLURM_JOB_NODELIST"])]


@dataclass(frozen=True, slots=True)
class StepCommand:
    """Command that starts an agent: options of srun, and the start of Python."""

    options: tuple[str, ...]
    python: tuple[str, ...]
    is_container: bool = False


@final
class StepHosts(OwnProcesses):
    """Nodes of a Slurm job; every agent is a step of its own."""

    are_here = False
    can_be_replaced = True

    def __init__(
        self, got: Allocation, step: StepCommand, client: SlurmClient, groups: Sequence[Sequence[str]] = ()
    ) -> None:
        self._got = got
        self._step = step
        self._client = client
        numbers = [group for group, names in enumerate(groups) for _ in names]
        self._component = [[f"--het-group={group}"] if len(groups) > 1 else [] for group in numbers]

    @property
    def addresses(self) -> Sequence[str]:
        """Addresses of the nodes, in their order."""
        return self._got.addresses

    def command(self, node: int, command: list[str]) -> list[str]:
        """`srun` of one task on one node, which shares the resources of the job there with earlier steps."""
        arguments = command[command.index("-m") + 1 :]
        return [
            "srun",
            *(self._component[node] if self._component else []),
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={self._got.nodes[node]}",
            "--overlap",
            "--mem=0",
            f"--cpus-per-task={self._got.cores_of(node)}",
            "--kill-on-bad-exit=1",
            "--input=none",
            f"--job-name=node-{node}",
            *self._step.options,
            *self._step.python,
            *process.python_module("trainworks.backends.slurm.node", *arguments)[1:],
        ]

    def killed_by(self, exit_code: int) -> int | None:
        """Signal of an agent that was killed alone: `srun` ends with 128 + signal, and Slurm still runs the job.

        When Slurm ends or requeues a job, because of a lost node or for another job, it changes the job's state before
        it kills the processes. The signals by which Slurm asks for an end do not count. Neither do real-time signals:
        an `srun` that could not start its task ends with the last byte of Slurm's error, 167 for an expired credential.
        """
        number = exit_code - 128
        if number not in signal.valid_signals() or number >= signal.SIGRTMIN or number in ENDING:
            return None
        with contextlib.suppress(TrainworksError):
            said = self._client.call("squeue", *state_query(self._got.job))
            return number if {state for state, _, _ in turn_states(said)} == {"RUNNING"} else None
        return None

    def lost_part(self, exit_code: int, log: Path) -> Cause:
        """The step, if its `srun` was killed or Slurm says that the step was cancelled: `scancel 7.1`."""
        said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        steps = re.findall(r"Terminating StepId=(\S+)", said)
        is_cancelled = bool(steps) and f"*** STEP {steps[-1]} ON " in said
        return Cause.STEP_LOST if exit_code < 0 or is_cancelled else Cause.AGENT_LOST

    def kill(self, agent: process.Child) -> None:
        """Kill its `srun` alone: the second process of srun, in the same group, then ends the step."""
        process.kill(agent.pid)

    def ask_to_stop(self, agents: Iterable[process.Child]) -> None:
        """SIGURG to all processes of all steps: Slurm cannot tell an agent from its ranks, and they do not mind it."""
        with contextlib.suppress(TrainworksError):  # the agents that are gone need no signal
            self._client.call("scancel", "--signal=URG", self._got.job)


def state_query(job: str) -> tuple[str, ...]:
    """Arguments of `squeue` that print a line for `turn_states`."""
    return ("--noheader", "--states=all", f"--jobs={job}", "--Format=State:20,PreemptTime:24,EndTime:24")


def turn_states(said: str) -> list[tuple[str, str, str]]:
    """State of a job, when it was preempted, and when it ends, as `state_query` prints them.

    A heterogeneous job has one of each for every component.
    """
    rows = [[*line.split(), "", ""] for line in said.splitlines() if line.strip()]
    return [(state, preempted_at, ends_at) for state, preempted_at, ends_at, *_ in rows]


def ending_of_turn(run_dir: RunDir, job: str, controller_started_at: float = math.nan) -> tuple[Cause, float]:
    """Cause and time of the last allocation's end.

    slurmstepd may have written it. Otherwise the job was lost by a slurmctld that came back during the allocation, or
    shortly after its last sign of life; else a node was lost. `controller_started_at` is NaN if the start of slurmctld
    is not known.
    """
    launches = of_kind(read_events(run_dir.events_file), SubmittedEvent)
    since = float(launches[-1].get("started_at") or launches[-1]["t"]) if launches else 0.0
    lived_until = signs_of_life(run_dir)
    crashed = math.floor(since) <= controller_started_at and lived_until <= controller_started_at + _FOUND_OUT_S
    lost = Cause.SCHEDULER_LOST if crashed else Cause.NODE_LOST
    return cause_of_the_kill(log_of(run_dir), job, since) or (lost, lived_until)


def log_of(run_dir: RunDir) -> str:
    """Output of the batch script, into which slurmstepd writes why it killed the script."""
    with contextlib.suppress(OSError):
        return run_dir.supervisor_log.read_text(encoding="utf-8", errors="replace")
    return ""


_LOOK_S = 5.0
LONGEST_PROLOG_S = 3600.0
_NO_LIMIT = 65_534
"""Slurm's NO_VAL16, which stands for a limit that is not set."""
GRACE_S = 30.0
"""Longest time from the close of its connection to the end of an srun, which waits for the epilog of its task."""


@final
class StepWatch:
    """Finds processes of srun that have lost their connection for good.

    `first_s` is the longest time until the first connection of an srun; see `first_connection_s`.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._alone_since: dict[int, float] = {}
        self._met: set[int] = set()
        """Processes that have been seen with a connection."""

    def take(self, connected: Mapping[int, bool], now: float) -> list[int]:
        """Processes of srun without a connection for `GRACE_S`; for longer if none has been seen yet.

        `connected` tells by process id whether an srun that runs has a connection.
        """
        self._met = {pid for pid, is_connected in connected.items() if is_connected or pid in self._met}
        self._alone_since = {
            pid: self._alone_since.get(pid, now) for pid, is_connected in connected.items() if not is_connected
        }
        return [
            pid
            for pid, since in self._alone_since.items()
            if now - since >= (GRACE_S if pid in self._met else self._first_s)
        ]


def first_connection_s(config: str) -> float:
    """Longest time from the start of an srun to its first connection, in seconds.

    A slurmstepd connects once the prolog of its node has ended, which Slurm lets run for `PrologEpilogTimeout`. A
    prolog without that limit gets an hour: an srun that waits for a slurmstepd that is gone would wait for ever. In
    `config`, the text of `scontrol show config`, several prologs are numbered (`Prolog[0]`).
    """
    settings = dict(re.findall(r"^(Prolog(?:\[\d+\])?|PrologEpilogTimeout) *= *(.*?) *$", config, re.MULTILINE))
    if all(value in ("", "(null)") for name, value in settings.items() if name != "PrologEpilogTimeout"):
        return PATIENCE_S
    limit = settings.get("PrologEpilogTimeout", "")
    return PATIENCE_S + (int(limit) if limit.isdecimal() and int(limit) < _NO_LIMIT else LONGEST_PROLOG_S)


def start_step_watch(client: SlurmClient, clock: Clock) -> None:
    """Watch the children of this process that are srun, in a thread, as long as it runs."""
    threading.Thread(target=_watch, args=(client, clock), daemon=True).start()


def _watch(client: SlurmClient, clock: Clock) -> None:
    first_s = PATIENCE_S
    with contextlib.suppress(TrainworksError):
        first_s = first_connection_s(client.call_patiently(PATIENCE_S, clock, "scontrol", "show", "config"))
    watch = StepWatch(first_s)
    while True:
        clock.sleep(_LOOK_S)
        with contextlib.suppress(psutil.Error, OSError):
            sruns = [child.pid for child in psutil.Process().children() if child.name() == "srun"]
            for pid in watch.take(connected(sruns), clock.now()) if sruns else ():
                sys.stderr.write(f"srun {pid} has lost its slurmstepd: it is ended, its step counts as lost\n")
                os.kill(pid, signal.SIGKILL)


def connected(pids: Iterable[int]) -> dict[int, bool]:
    """Whether each of these processes has an established TCP connection; those of other users cannot be seen."""
    found = {one.pid for one in psutil.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED}
    return {pid: pid in found for pid in pids}
