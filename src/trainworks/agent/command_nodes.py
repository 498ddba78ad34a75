"""The node agents of a command, or of several: those of each role start, restart and end together."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from trainworks.agent import command_agent
from trainworks.agent.launch import run_mark, take_environment
from trainworks.agent.node_agents import Hosts, Nodes, TrainingNodes
from trainworks.config.command import JobRole
from trainworks.files import write_atomic
from trainworks.host import forking, process
from trainworks.host.forking import Spare
from trainworks.jobs.environment import ROLE
from trainworks.jobs.frameworks import deepspeed_hostfile, mpi_hostfile, ports_needed
from trainworks.jobs.state import Cause
from trainworks.record.events.job import FailureEvent
from trainworks.record.events.log import read_events
from trainworks.record.processes import RoleNodes
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.failures import first_failure

_END_GRACE_S = 5.0
"""Grace of ranks that end because another one failed, and of agents that end their ranks."""
_KILLED_S = 1.0
"""Time in which what a killed agent has started on another machine ends, and gives its ports back."""
_ENDS_TOGETHER_S = 2.0
"""Time by which a role that does not decide may end before those that do: a server may end with its last client."""
_COMMAND = JobRole(run="")
"""The role of a command that is the whole job."""


@dataclass(eq=False, slots=True)
class _Group:
    """Nodes of one role, and its present attempt."""

    of: RoleNodes
    role: JobRole
    attempt: int = 0
    ports: list[int] = field(default_factory=list)
    """Ports where its ranks meet."""
    starts_at: float | None = None
    """Time from which it starts again; None while it does not wait for that."""
    ends_by: float = 0.0
    """Time until which agents of the attempt before may end."""


@final
class CommandNodes(Nodes):
    """Agents of commands of the user's own; their ranks know nothing of restarts, so a role starts again as a whole.

    A job without roles is one role. A role starts once those that it depends on have succeeded. When all deciding roles
    have succeeded, the others are asked to end.
    """

    def _prepare(self) -> None:
        roles = self._resolved.run_file.roles
        self._groups = [_Group(of, roles[of.role] if of.role else _COMMAND) for of in self._resolved.processes.groups()]
        self._now = 0.0
        self._is_ending = False
        """No role is to start any more."""
        self._kill_at: float | None = None
        """Time at which roles that do not decide are killed; None until all others have succeeded."""
        self._services: list[int] = []
        """A port of each node, where other roles find it; the same after a restart of its role alone."""
        self._seen_ended: dict[int, float] = {}
        """Times at which nodes of roles that do not decide were first seen to have ended."""
        self._early: set[int] = set()
        """Nodes that ended with success before they may."""

    def restartable(self, exit_code: int) -> bool:
        """Any failure of a rank: the user has set how often it may restart.

        An agent that ends without an account on another machine may have lost that machine.
        """
        has_account = self._hosts.are_here or first_failure(read_events(self._run_dir.events_file)) is not None
        return has_account and not self.loses_node(exit_code)

    def start_all(self) -> None:
        """Start the agents of all roles that wait for no other."""
        self._agents.clear()
        if self._resolved.processes.roles:
            self._services = self._hosts.free_ports([0] * self._all)
        for group in self._groups:
            group.starts_at = None
        self._start_ready()

    def restart(self, node: int) -> None:
        """End all nodes and start them all again, at other ports."""
        if not self._hosts.are_here:
            self._end_agents()
        process.end_descendants(_END_GRACE_S)
        self.end_containers()
        self.start_all()

    def _end_agents(self) -> None:
        """End all agents and what they started on other machines, which may outlive what stands for them here."""
        running = [agent for group in self._groups for agent in self._running(group)]
        for agent in running:
            agent.signal_group(signal.SIGTERM)
        left_s = _END_GRACE_S
        for agent in running:
            if agent.wait(left_s) is None:
                left_s = 0.0  # the others have had as long
                self._hosts.kill(agent)
        for agent in running:
            agent.wait()

    def restart_role(self, node: int, *, at: float) -> None:
        """Start the role of a node again at a time, once what is left of it has ended; the other roles run on."""
        group = next(group for group in self._groups if node in group.of.nodes)
        group.starts_at, group.ends_by = at, self._now + _END_GRACE_S
        self._noted.update(group.of.nodes)  # they are to end now
        for agent in self._running(group):
            agent.signal_group(signal.SIGTERM)

    def advance(self, now: float) -> None:
        """Start roles whose time has come, and end those that do not decide after the others."""
        self._now = now
        if self._kill_at is not None and now > self._kill_at:
            self.kill_all()
        if self._is_ending or not self._resolved.processes.roles:
            return
        for group in self._groups:
            self._start_again(group)
        self._start_ready()
        if all(self._has_succeeded(group) for group in self._groups if group.role.decides):
            self._is_ending = True
            self._kill_at = now + self._resolved.run_file.job.grace + _END_GRACE_S
            self._hosts.ask_to_stop([agent for group in self._groups for agent in self._running(group)])

    def ask_to_stop(self) -> None:
        """A signal to every agent, which passes SIGTERM on to its ranks; one that only starts looks for the file."""
        self._is_ending = True
        self._run_dir.stop_file.touch()
        self._hosts.ask_to_stop(self._agents.values())

    def any_running(self) -> bool:
        """Whether an agent runs, has ended badly and was not looked at yet, or is to start."""
        is_to_start = any(group.starts_at is not None or self._is_ready(group) for group in self._groups)
        return (is_to_start and not self._is_ending) or super().any_running()

    def lost(self) -> Iterator[tuple[int, int]]:
        """Also the nodes of servers that ended early, with code 1."""
        for node, exit_code in super().lost():
            if self._agents[node].exit_code() == 0:
                self._early.add(node)
                self._note_early(node)
            yield node, exit_code

    def exit_codes(self) -> list[int]:
        """Exit codes of all agents that have ended; that of success alone once all deciding roles have succeeded."""
        if self._kill_at is not None:
            return [0]
        codes = {node: agent.exit_code() for node, agent in self._agents.items()}
        return [code or int(node in self._early) for node, code in codes.items() if code is not None]

    def _newly_lost(self) -> list[tuple[int, int]]:
        if self._kill_at is not None:
            return []
        found = dict(super()._newly_lost())
        for group in self._groups:
            if group.role.decides:
                continue
            ended = [node for node in group.of.nodes if self._has_ended(node) and node not in self._noted]
            if not (group.role.may_end or self._is_ending):
                found |= {node: found.get(node, 1) for node in ended}
            for node in ended:  # the deciding roles may be about to succeed
                if self._now < self._seen_ended.setdefault(node, self._now) + _ENDS_TOGETHER_S:
                    found.pop(node, None)
        return sorted(found.items())

    def _has_ended(self, node: int) -> bool:
        return node in self._agents and self._agents[node].exit_code() is not None

    def _running(self, group: _Group) -> list[process.Child]:
        return [self._agents[node] for node in group.of.nodes if node in self._agents and not self._has_ended(node)]

    def _has_succeeded(self, group: _Group) -> bool:
        ended = all(node in self._agents and self._agents[node].exit_code() == 0 for node in group.of.nodes)
        return ended and group.starts_at is None

    def _is_ready(self, group: _Group) -> bool:
        """Whether a role has not started yet, and all that it depends on have succeeded."""
        needed = [other for other in self._groups if other.of.role in group.role.depends_on]
        return group.of.first_node not in self._agents and all(map(self._has_succeeded, needed))

    def _start_ready(self) -> None:
        for group in self._groups:
            if self._is_ready(group):
                self._start_group(group)

    def _start_again(self, group: _Group) -> None:
        """Start a role once its time has come, after the end of its agents and of ranks that a killed agent left."""
        if group.starts_at is None:
            return
        if running := self._running(group):
            for agent in running if self._now > group.ends_by else ():
                self._hosts.kill(agent)
                group.starts_at = max(group.starts_at, self._now + _KILLED_S)
        elif self._now >= group.starts_at:
            process.sweep(run_mark(self._run_dir) | {ROLE: str(group.of.role)})
            self._start_group(group)

    def _start_group(self, group: _Group) -> None:
        group.starts_at = None
        group.attempt += 1
        # free now, all at once; the ranks bind them, so they cannot be held until then
        needed = ports_needed(self._of(group).run_file.framework, group.of.processes)
        wanted = 0 if group.of.role else self._resolved.run_file.cluster.rendezvous_port
        group.ports = self._hosts.free_ports([wanted, *[0] * (needed - 1)])
        self._write_hostfile(group)
        for node in group.of.nodes:
            self._seen_ended.pop(node, None)
            self._early.discard(node)
            self._start(node)

    def _agent(self, node: int) -> process.Child:
        """Here a copy of this process, which keeps the run's lock with everything else that is open."""
        group = next(group for group in self._groups if node in group.of.nodes)
        ports, services = ",".join(map(str, group.ports)), ",".join(map(str, self._services))
        addresses, attempt = ",".join(self._hosts.addresses), str(group.attempt)
        arguments = (str(self._run_dir.path), str(node), self._parent(), ports, attempt, addresses, services)
        log = self._run_dir.node_log(node)
        if self._spare is not None and self._spare.waits():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # besides the variables of the user who submitted the job
            own = ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) | self._devices(node)
            return self._spare.order(json.dumps([arguments, own]), self._inherited, log=log)
        if self._hosts.are_here:
            return forking.fork(lambda: command_agent.main(*arguments), log=log, env=self._devices(node))
        command = process.python_module("trainworks.agent.command_agent", *arguments)
        return process.spawn(self._hosts.command(node, command), log=log, pass_fds=self._inherited)

    def _of(self, group: _Group) -> ResolvedRun:
        return self._resolved.on_node(group.of.first_node)

    def _write_hostfile(self, group: _Group) -> None:
        framework = self._of(group).run_file.framework
        if framework == "mpi":
            write_atomic(self._run_dir.hostfile(), mpi_hostfile(group.of.processes, self._hosts.addresses))
        elif framework == "deepspeed":
            write_atomic(self._run_dir.hostfile(group.of.role), deepspeed_hostfile(group.of.processes))

    def _note_early(self, node: int) -> None:
        """Record that a node of a server ended before the job."""
        group = self._resolved.processes.group_of(node)
        self._run_dir.note(
            FailureEvent(
                kind="failure",
                role=str(group.role),
                rank=None,
                node=node,
                cause=Cause.USER_ERROR,
                exit_code=1,
                message=f"the command of role `{group.role}` exited with code 0 before the roles that decide",
                hint=f"set `roles.{group.role}.may_end: true` if it may end so",
            )
        )


def nodes_of(
    run_dir: RunDir,
    resolved: ResolvedRun,
    inherited: Sequence[int],
    hosts: Hosts | None = None,
    spare: Spare | None = None,
) -> Nodes:
    """The node agents of a workload or of a command; see `Nodes`."""
    return (TrainingNodes if resolved.is_workload else CommandNodes)(run_dir, resolved, inherited, hosts, spare)


def run_agent(order: str, handles: Sequence[int]) -> int:
    """The agent of a node, in a copy that was made before the supervisor knew its job; `handles` stay open."""
    arguments, env = json.loads(order)
    take_environment(RunDir(Path(arguments[0])), env)
    return command_agent.main(*arguments)
