"""One turn of a job on hosts: its supervisor is a process of this machine, its agents run there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import final

from pydantic import BaseModel

from trainworks.agent.allocation import Allocation, unhealthy_nodes
from trainworks.agent.launch import run_mark, take_environment
from trainworks.agent.node_agents import OwnProcesses, nodes_of
from trainworks.agent.supervisor import Supervisor
from trainworks.agent.turn import ClusterTurn
from trainworks.backends.ssh import link
from trainworks.backends.ssh.node import HOST, TURN
from trainworks.config.engines import Ssh
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.jobs.state import Cause, JobState
from trainworks.record.environment import HostFacts
from trainworks.record.events.log import read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir
from trainworks.record.status import End, RunStatus
from trainworks.recover.restarts import earlier_turns

NODES = "TRAINWORKS_SSH_NODES"
"""Variable of the planner: nodes of its job, and cores and accelerators of each."""


class HostShare(BaseModel):
    """A host of a job, and the share of it that the job holds."""

    name: str
    address: str
    facts: HostFacts
    cores: float
    devices: tuple[int, ...]
    keeper: tuple[int, float]
    """The process there that holds the share; its end is that of everything which the job started on the host."""

    @property
    def usable_cores(self) -> int:
        """Cores for the threads of the ranks: the part of the host that goes with its accelerators, if that is more."""
        of_devices = self.facts.num_cores * len(self.devices) // max(1, len(self.facts.accelerators))
        return max(1, int(self.cores), of_devices)


class TurnOrder(BaseModel):
    """What a supervisor is told of its turn."""

    run_dir: str
    job: str
    turn: str
    """Name of the turn, which marks its processes on all hosts."""
    hosts: tuple[HostShare, ...]

    def marks(self, host: str) -> dict[str, str]:
        """Variables of all processes of this turn on a host."""
        return run_mark(RunDir(Path(self.run_dir))) | {TURN: self.turn, HOST: host}

    @property
    def share(self) -> tuple[int, int, int]:
        """Number of nodes, and what each of them has at least: cores and accelerators."""
        devices = min(len(host.devices) for host in self.hosts)
        return len(self.hosts), min(host.usable_cores for host in self.hosts), devices


@final
class SshHosts(OwnProcesses):
    """Hosts of a job; a process of this machine stands for each command there, and ends as it does."""

    are_here = False
    can_be_replaced = True

    def __init__(self, order: TurnOrder, options: Ssh) -> None:
        self.addresses: Sequence[str] = [host.address for host in order.hosts]
        self._order = order
        self._options = options

    def command(self, node: int, command: list[str]) -> list[str]:
        """The link that runs a command on a host."""
        program = (self._options.python if command[0] == sys.executable else None) or command[0]
        return self._link(node, command=[program, *command[1:]])

    def _link(self, node: int, **what: object) -> list[str]:
        host = self._order.hosts[node]
        env = {NODES: json.dumps(self._order.share)}
        if host.devices:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, host.devices))
        marks = self._order.marks(host.name)
        message = {"run_dir": self._order.run_dir, "env": env, "keeper": host.keeper, "marks": marks, **what}
        order = link.Order(host.name, link.on_host(self._options, host.name, "run"), message)
        return process.python_module(link.__name__, "run", orders_text([order]))

    def free_ports(self, wanted: Sequence[int]) -> list[int]:
        """Ask the first host."""
        answer = process.run(self._link(0, address=self.addresses[0], ports=wanted))
        if answer.exit_code != 0:
            said = answer.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
            hint = "give an address of the host in `cluster.ssh.addresses`, or another `cluster.rendezvous_port`"
            raise EnvironmentProblem(f"{self._order.hosts[0].name} has no port for the ranks: {said[0]}", hint=hint)
        found: list[int] = json.loads(answer.stdout)["ports"]
        return found


def orders_text(orders: Sequence[link.Order]) -> str:
    """Orders for the program of `link`."""
    return json.dumps([list(asdict(order).values()) for order in orders])


@final
class SshTurn(ClusterTurn):
    """One turn of a job; `control` is the open file that holds the shares of its hosts."""

    engine = "ssh"
    exit_code_if_held = ExitCode.ENVIRONMENT

    def __init__(self, order: TurnOrder, control: int) -> None:
        super().__init__(RunDir(Path(order.run_dir)), SystemClock())
        self._order = order
        self._control = control

    def run(self, lock: int) -> int:
        """Run the job under the lock of its run, to its end or to its next turn."""
        return self._supervised(lock, is_next=earlier_turns(read_events(self.run_dir.events_file)) > 0)

    def last_end(self, last: RunStatus) -> End | None:
        """The dispatcher has judged the turn before this one."""
        return None

    def supervisor(self, lock: int) -> Supervisor:
        """Build the supervisor for the hosts; its agents hold the shares open, too."""
        num_nodes, cores, accelerators = self._order.share
        got = Allocation(
            job=self._order.job,
            nodes=tuple(host.name for host in self._order.hosts),
            addresses=tuple(host.address for host in self._order.hosts),
            cores_per_node=cores,
            accelerators_per_node=accelerators,
        )
        hosts = SshHosts(self._order, self.run_dir.read_resolved().run_file.cluster.ssh)
        resolved = self.begin(got, partial(hosts.command, 0), host=self._order.hosts[0].facts)
        resolved = resolved.on_nodes(num_nodes) if resolved.is_workload else resolved
        nodes = nodes_of(self.run_dir, resolved, (lock, self._control), hosts)
        return Supervisor(self.run_dir, resolved, nodes, self.clock, hosts)

    def taken(self) -> End | None:
        """The dispatcher knows why it asked for the end."""
        return None

    def next_end(self, end: End) -> End | None:
        """Also on other hosts after some that failed their check, while enough of them are left."""
        if end.cause != Cause.NODE_UNHEALTHY:
            return super().next_end(end)
        run_file = self.run_dir.read_resolved().run_file
        unfit = {*unhealthy_nodes(read_events(self.run_dir.events_file)), *run_file.job.exclude}
        fewest = run_file.job.min_nodes or run_file.nodes
        if sum(host not in unfit for host in run_file.cluster.ssh.hosts) < fewest:
            return None
        return End(JobState.QUEUED, end.cause, f"{end.message}; the job waits for other hosts")

    def requeue(self, end: End) -> int:
        """The status says it to the dispatcher."""
        return 0

    def finish(self, end: End) -> int:
        """The status says it to the dispatcher."""
        return 0 if end.state == JobState.SUCCEEDED else 1

    def _hear(self, number: int) -> None:
        self.heard.append(number)


def supervise_on_hosts(text: str, handles: Sequence[int]) -> int:
    """Supervise a job with the environment that it was submitted with; `text` is its `TurnOrder`."""
    order = TurnOrder.model_validate_json(text)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # that of this machine
    take_environment(RunDir(Path(order.run_dir)), {})
    process.adopt_orphans()
    lock, control = handles
    return SshTurn(order, control).run(lock)
