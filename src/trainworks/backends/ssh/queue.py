"""The queue of some hosts: `python -m trainworks.backends.ssh.queue LOCK`, a dispatcher as that of this machine.

One process per list of hosts and user, started by a submission, and gone when no job is left. Over a connection to
every host it hears what that has, and what jobs of other queues and users hold of it. A host that is silent takes no
jobs.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from pydantic import BaseModel

from trainworks.agent.accelerators import HeldAccelerators
from trainworks.agent.allocation import Allocation, unhealthy_nodes
from trainworks.agent.command_nodes import nodes_of
from trainworks.agent.launch import run_mark, take_environment
from trainworks.agent.node_agents import OwnProcesses
from trainworks.agent.supervisor import Supervisor
from trainworks.agent.turn import ClusterTurn
from trainworks.backends.local.dispatcher import Dispatcher
from trainworks.backends.local.dispatcher_process import serve_queue
from trainworks.backends.local.launcher import Launcher
from trainworks.backends.local.machine import LocalNode
from trainworks.backends.local.quotas import QueuePolicy
from trainworks.backends.ssh import link
from trainworks.backends.ssh.hosts import OPTIONS, HostFact, HostWatch
from trainworks.backends.ssh.node import HOST, NODES, TURN, KeepAnswer, KeepOrder, Lines, PortsAnswer, RunOrder
from trainworks.backends.store_place import store_url
from trainworks.config.engines import Ssh
from trainworks.errors import EnvironmentProblem, NodeLostError, TrainworksError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.ledger import Claim, Share, claim_key
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.jobs.state import Cause, JobState
from trainworks.jobs.store import JobStore
from trainworks.record.environment import HostFacts
from trainworks.record.events.log import read_events
from trainworks.record.exit_code import End, ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import earlier_turns

_RETRY_S = 2.0
_CLAIMS_WITHIN_S = 30.0


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
    """What the dispatcher says to a supervisor of its turn."""

    run_dir: str
    job: str
    turn: str
    """Name of the turn, which marks its processes on all hosts."""
    hosts: tuple[HostShare, ...]
    store_url: str
    """The job store of the queue."""

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

    def __init__(self, order: TurnOrder, options: Ssh, *, has_roles: bool = False) -> None:
        self.addresses: Sequence[str] = [host.address for host in order.hosts]
        self._order = order
        self._options = options
        names = [[f"{host.name}:{device}" for device in host.devices] for host in order.hosts]
        self.accelerators = HeldAccelerators(order.store_url, names, is_queued=True) if any(names) else None
        self._has_roles = has_roles
        """Whether a host sees the accelerators alone that it requested, which may be none."""

    def command(self, node: int, command: list[str]) -> list[str]:
        """The link that runs a command on a host."""
        program = (self._options.python if command[0] == sys.executable else None) or command[0]
        return self._link(node, command=[program, *command[1:]])

    def _link(self, node: int, **what: Any) -> list[str]:
        host = self._order.hosts[node]
        env = {NODES: json.dumps(self._order.share)}
        if host.devices or self._has_roles:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, host.devices))
        marks = self._order.marks(host.name)
        message = RunOrder(
            run_dir=self._order.run_dir, env=env, keeper=host.keeper, marks=marks, **what
        ).model_dump_json()
        order = link.Order(host.name, link.on_host(self._options, host.name, "run"), message)
        return process.python_module(link.__name__, "run", orders_text([order]))

    def free_ports(self, wanted: Sequence[int]) -> list[int]:
        """Ask the first host.

        Raises:
            NodeLostError: the connection to it was lost.
            EnvironmentProblem: it has no such port.
        """
        answer = process.run(self._link(0, address=self.addresses[0], ports=wanted))
        if answer.exit_code < 0:  # of the process that stands for it
            raise NodeLostError(f"the connection to {self._order.hosts[0].name} was lost before the ranks started")
        if answer.exit_code != 0:
            said = answer.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
            hint = "give an address of the host in `cluster.ssh.addresses`, or another `cluster.rendezvous_port`"
            raise EnvironmentProblem(f"{self._order.hosts[0].name} has no port for the ranks: {said[0]}", hint=hint)
        return PortsAnswer.model_validate_json(answer.stdout.strip().splitlines()[-1]).ports


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
            cores=tuple(host.usable_cores for host in self._order.hosts),
        )
        run_file = self.run_dir.read_resolved().run_file
        hosts = SshHosts(self._order, run_file.cluster.ssh, has_roles=bool(run_file.roles))
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


@final
class SshLauncher(Launcher):
    """Starts supervisors of jobs whose shares of their hosts are held over connections to these."""

    def __init__(self, clock: Clock, own_fds: Iterable[int], watches: Mapping[str, HostWatch], options: Ssh) -> None:
        super().__init__(clock, own_fds, begin=lambda: supervise_on_hosts)
        self._watches = watches
        self._options = options
        self._orders: dict[int, TurnOrder] = {}
        self._problems: dict[int, EnvironmentProblem] = {}
        self._not_before: dict[int, float] = {}

    def facts(self) -> list[HostFact]:
        """What each host has said last."""
        return [HostFact(watch.host, watch.said, watch.reason) for watch in self._watches.values()]

    def elsewhere(self, ours: Iterable[JobRow]) -> frozenset[Claim]:
        """Claims in the ledgers of all hosts of jobs other than `ours`."""
        self._ours = {claim_key(job.run_dir) for job in ours}
        return frozenset(claim for held in self.foreign().values() for claim in held)

    def foreign(self) -> dict[str, frozenset[Claim]]:
        """The same for each host."""
        return {host.name: self._foreign_claims(host.claims) for host in self.facts()}

    def held(
        self, elsewhere: Iterable[Claim], machine: Sequence[LocalNode], taken: Sequence[Placement]
    ) -> list[Placement]:
        """What claims in the ledger of each host take of it."""
        foreign = self.foreign()
        return [held for host in self.facts() for held in host.held(foreign[host.name])]

    def claim(self, job: JobRow, placement: Sequence[Placement], known: frozenset[Claim]) -> bool:
        """Hold the job's share of every host; False if one does not answer, or others hold a part of it by now."""
        if self._clock.now() < self._not_before.get(job.id, 0.0):
            return False
        try:
            run_dir = self._run_dir(job)
            created_at = run_dir.read_resolved().created_at
        except (TrainworksError, OSError):
            return True  # its launch says what is wrong with the run directory
        facts = {host.name: (host.facts, host.address) for host in self.facts() if host.facts}
        order = TurnOrder(
            run_dir=str(run_dir.path), job=str(job.id), turn=secrets.token_hex(8), hosts=(), store_url=store_url()
        )
        orders = []
        for one in placement:
            share = Share(
                run=job.run_id, key=claim_key(job.run_dir), cores=one.cores, devices=one.devices, team=job.team
            )
            marks = order.marks(one.node)
            message = KeepOrder(run_dir=order.run_dir, created_at=created_at, marks=marks, share=share)
            command = link.on_host(self._options, one.node, "keep")
            orders.append(link.Order(one.node, command, message.model_dump_json()))
        here, there = socket.socketpair()
        with there:
            words = process.python_module(link.__name__, "keep", orders_text(orders))
            process.spawn_on(there, words, errors=run_dir.supervisor_log)
        keepers = self._keepers(job, here, [one.node for one in placement])
        if keepers is None:
            here.close()
            self._not_before[job.id] = self._clock.now() + _RETRY_S
            return job.id in self._problems  # which its launch reports
        hosts = [
            HostShare(
                name=one.node,
                address=self._options.addresses.get(one.node) or facts[one.node][1],
                facts=facts[one.node][0],
                cores=one.cores,
                devices=one.devices,
                keeper=keepers[one.node],
            )
            for one in placement
        ]
        self._orders[job.id] = order.model_copy(update={"hosts": tuple(hosts)})
        self._claims[job.id] = here.detach()
        self._ours.add(claim_key(job.run_dir))
        return True

    def _keepers(
        self, job: JobRow, control: socket.socket, hosts: Sequence[str]
    ) -> dict[str, tuple[int, float]] | None:
        """The processes that hold the shares; None if one of them does not hold it, or does not say so in time."""
        lines, found = Lines(control.fileno()), dict[str, tuple[int, float]]()
        deadline = self._clock.now() + _CLAIMS_WITHIN_S
        while len(found) < len(hosts):
            ready = select.select([lines], [], [], max(0.0, deadline - self._clock.now()))[0]
            heard = lines.read() if ready else None
            for answer in map(KeepAnswer.model_validate_json, heard or []):
                if answer.keeper is not None:
                    found[answer.host] = answer.keeper
                    continue
                if answer.refused is not None:
                    why = f"`{answer.host}` cannot run the job: {answer.refused}"
                    hint = "let all hosts see the folder of the runs under one path: with NFS, or sshfs"
                    self._problems[job.id] = EnvironmentProblem(why, hint=hint)
                return None
            if heard is None:
                for host in set(hosts) - found.keys():
                    self._watches[host].lose(self._clock.now())
                return None
        return found

    def _resolved(self, job: JobRow, run_dir: RunDir) -> ResolvedRun:
        return run_dir.read_resolved()  # the turn puts its nodes into it, and an edit its values

    def order(self, job: JobRow, run_dir: RunDir, resolved: ResolvedRun) -> str:
        """The turn, whose hosts hold their shares already."""
        if (problem := self._problems.pop(job.id, None)) is not None:
            raise problem
        run_dir.write_status(RunStatus(state=JobState.CREATED, updated_at=self._clock.now()))
        return self._orders.pop(job.id).model_dump_json()


@final
class SshDispatcher(Dispatcher):
    """Takes the queue of some hosts forward; a host that does not answer takes no jobs."""

    def __init__(self, store: JobStore, launcher: SshLauncher, watches: Iterable[HostWatch], clock: Clock) -> None:
        self._there = launcher
        self._watches = list(watches)
        super().__init__(
            store, [host.node for host in launcher.facts()], launcher, clock, engine="ssh", policy=QueuePolicy
        )

    def look(self) -> None:
        """Hear the hosts first."""
        for watch in self._watches:
            watch.look(self._clock.now())
        self._machine = [host.node for host in self._there.facts()]
        if all(watch.is_known for watch in self._watches):  # else a job would start on fewer hosts than it can have
            super().look()

    def _conclude(self, job: JobRow) -> None:
        """Let a job that waits again do without hosts that failed its check, and a workload with the plan for fewer."""
        super()._conclude(job)
        row = self._store.get(job.id)
        if row is None or not row.state.waits:
            return
        unfit = set(unhealthy_nodes(self._launcher.events(job))) - set(row.spec.exclude)
        with suppress(TrainworksError, OSError):
            resolved = RunDir(Path(row.run_dir)).read_resolved()
            fewest = row.spec.min_nodes
            while resolved.fewer_nodes(fewest - 1) is not None:
                fewest -= 1
            spec = replace(row.spec, exclude=(*row.spec.exclude, *sorted(unfit)), min_nodes=fewest)
            if spec != row.spec:
                self._store.change(row.id, spec=spec)


def main(starting: int) -> int:
    """The dispatcher of the hosts whose options are beside the store."""
    folder = Path(store_url().removeprefix("sqlite:///")).parent
    options = Ssh.model_validate_json((folder / OPTIONS).read_bytes())
    watches = {
        host: HostWatch(options, host, folder / f"host-{number}.log") for number, host in enumerate(options.hosts)
    }

    def queue(store: JobStore, clock: Clock, own_fds: Sequence[int]) -> tuple[Dispatcher, Launcher]:
        launcher = SshLauncher(clock, own_fds, watches, options)
        return SshDispatcher(store, launcher, watches.values(), clock), launcher

    return serve_queue(starting, queue)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
