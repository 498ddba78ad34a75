"""Nodes allocated to a Slurm job as its batch script sees them, how its agents start there, and how it lost them."""

from __future__ import annotations

import contextlib
import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from trainworks.agent.allocation import processes_on, signs_of_life
from trainworks.backends.slurm.client import SlurmClient
from trainworks.backends.slurm.states import ENDING, cause_of_the_kill, expand
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.jobs.state import Cause
from trainworks.record.events import Event, read_events
from trainworks.record.processes import Processes
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

_FOUND_OUT_S = 300.0
"""Time in which a slurmctld that has come back finds jobs that it does not know, or misses those that it knows."""
PATIENCE_S = 300.0
"""Longest time for which a job waits for a slurmctld that is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes of a job, the one that runs the batch script first."""

    job: str
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    restarts: int = 0
    """Number of times that Slurm has requeued the job."""
    cores_per_node: int = 1
    accelerators_per_node: int = 0


def allocation(env: Mapping[str, str], client: SlurmClient, clock: Clock) -> Allocation:
    """Read the allocation from the variables of a batch script, and its addresses from Slurm.

    Args:
        env: variables of the batch script.
        client: calls Slurm's programs.
        clock: waits for a slurmctld that is away: the names of nodes need not be known to the network, and no agent can
            start without it.

    Raises:
        EnvironmentProblem: this is not a batch script of Slurm.
        UnreachableError: slurmctld does not answer for `PATIENCE_S`.
    """
    try:
        nodes = list(expand(env["SLURM_JOB_NODELIST"]))
        job, here = env["SLURM_JOB_ID"], env.get("SLURMD_NODENAME")
    except KeyError as missing:
        raise EnvironmentProblem(f"{missing} is not set", hint="this runs in a job of Slurm: submit the run") from None
    if here in nodes:
        nodes.sort(key=lambda name: name != here)
    shown = ("--oneliner", "show", "nodes", ",".join(nodes))
    addresses = _addresses(client.call_patiently(PATIENCE_S, clock, "scontrol", *shown))
    return Allocation(
        job=job,
        nodes=tuple(nodes),
        addresses=tuple(addresses.get(node, node) for node in nodes),
        restarts=int(env.get("SLURM_RESTART_COUNT") or 0),
        cores_per_node=int(env.get("SLURM_CPUS_ON_NODE") or 1),
        accelerators_per_node=int(env.get("SLURM_GPUS_ON_NODE") or 0),
    )


def _addresses(said: str) -> dict[str, str]:
    found = (re.search(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", line) for line in said.splitlines())
    return {match[1]: match[2] for match in found if match}


def processes_in(resolved: ResolvedRun, got: Allocation) -> Processes:
    """The ranks of a run on the nodes that it got; see `processes_on`."""
    return processes_on(
        resolved,
        backend="Slurm",
        num_nodes=len(got.nodes),
        cores_per_node=got.cores_per_node,
        accelerators_per_node=got.accelerators_per_node,
    )


@dataclass(frozen=True, slots=True)
class StepCommand:
    """Command that starts an agent: options of srun, and the start of Python."""

    options: tuple[str, ...]
    python: tuple[str, ...]
    is_container: bool = False


@final
class StepHosts:
    """Nodes of a Slurm job; every agent is a step of its own."""

    are_here = False
    can_be_replaced = True

    def __init__(self, got: Allocation, step: StepCommand, client: SlurmClient) -> None:
        self._got = got
        self._step = step
        self._client = client

    @property
    def addresses(self) -> Sequence[str]:
        """Addresses of the nodes, in their order."""
        return self._got.addresses

    def command(self, node: int, command: list[str]) -> list[str]:
        """`srun` of one task on one node, which shares the resources of the job there with earlier steps."""
        arguments = command[command.index("-m") + 1 :]
        return [
            "srun",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={self._got.nodes[node]}",
            "--overlap",
            "--mem=0",
            f"--cpus-per-task={self._got.cores_per_node}",
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
        it kills the processes. The signals by which Slurm asks for an end do not count.
        """
        number = exit_code - 128
        if number not in signal.valid_signals() or number in ENDING:
            return None
        with contextlib.suppress(TrainworksError):
            return number if self._client.call("squeue", *state_query(self._got.job)).strip() == "RUNNING" else None
        return None

    def ask_to_stop(self, agents: Iterable[process.Child]) -> None:
        """SIGURG to all processes of all steps: Slurm cannot tell an agent from its ranks, and they do not mind it."""
        with contextlib.suppress(TrainworksError):  # the agents that are gone need no signal
            self._client.call("scancel", "--signal=URG", self._got.job)


def state_query(job: str) -> tuple[str, ...]:
    """Arguments of `squeue` that print the state of a job as one word."""
    return ("--noheader", "--states=all", f"--jobs={job}", "--Format=State:20")


def ending_of_turn(run_dir: RunDir, job: str, controller_started_at: float = math.nan) -> tuple[Cause, float]:
    """Cause and time of the last allocation's end.

    slurmstepd may have written it. Otherwise the job was lost by a slurmctld that came back during the allocation, or
    shortly after its last sign of life; else a node was lost.

    Args:
        run_dir: of the run.
        job: number of the job.
        controller_started_at: start of slurmctld; NaN if it is not known.
    """
    launches = [event for event in read_events(run_dir.events_file) if event["kind"] == "submitted"]
    since = float(launches[-1]["t"]) if launches else 0.0
    lived_until = signs_of_life(run_dir)
    crashed = math.floor(since) <= controller_started_at and lived_until <= controller_started_at + _FOUND_OUT_S
    lost = Cause.SCHEDULER_LOST if crashed else Cause.NODE_LOST
    return cause_of_the_kill(log_of(run_dir), job, since) or (lost, lived_until)


def unhealthy_nodes(events: Sequence[Event]) -> list[str]:
    """Names of the nodes that failed the check of a job, or that their cloud took back, since a user submitted it.

    One for each time.
    """
    found: list[str] = []
    names: Sequence[str] = ()
    places: Sequence[int] = ()
    for event in events:
        if event["kind"] == "submitted":
            names = event.get("hosts", ())
            places = range(len(names))
            found = found if event.get("restarts") else []
        elif event["kind"] == "resized":
            places = event["places"]
        elif event["kind"] == "nodes_unhealthy":
            found += [names[node] for node in event["nodes"]]
        elif event["kind"] == "notice_answered":
            found.append(names[places[event["node"]]])
    return found


def log_of(run_dir: RunDir) -> str:
    """Output of the batch script, into which slurmstepd writes why it killed the script."""
    with contextlib.suppress(OSError):
        return run_dir.supervisor_log.read_text(encoding="utf-8", errors="replace")
    return ""
