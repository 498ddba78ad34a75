"""The node agents of one job: processes that start and watch the ranks of one node each."""

from __future__ import annotations

import abc
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, final

from trainworks.agent.accelerators import HeldAccelerators
from trainworks.agent.environments.containers import end_containers
from trainworks.agent.environments.start import agent_module
from trainworks.agent.launch import run_mark
from trainworks.host import process
from trainworks.host.forking import Spare
from trainworks.host.network import LOOPBACK, free_ports, listen
from trainworks.jobs.environment import accelerators_per_node, agent_environment, default_environment
from trainworks.jobs.state import Cause
from trainworks.record.events.job import AgentLostEvent, FailureEvent
from trainworks.record.events.log import read_events
from trainworks.record.exit_code import LINK_LOST, ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.failures import explains_exit
from trainworks.system import LinuxSignal

NODE_LEAVES = LinuxSignal.SIGUSR1
"""Tells the supervisor that its cluster ends one of the other nodes, so that all ranks have to end."""


class Hosts(Protocol):
    """Where the nodes of a job stand, and how to start something there."""

    are_here: bool
    """Whether agents are children of this process, which inherit its sockets and share its accelerators."""
    can_be_replaced: bool
    """Whether the backend gives the job other nodes if it leaves with `Cause.NODE_UNHEALTHY`."""
    gets_new_pods: bool
    """Whether the backend gives the job new pods, and accelerators with them, if it leaves with `Cause.GPU_FAULT`."""
    accelerators: HeldAccelerators | None
    """Those of the nodes, where the backend takes single ones out of service; None elsewhere, and without any."""

    @property
    def addresses(self) -> Sequence[str]:
        """Addresses of the nodes, in their order; the ranks meet at the first one."""

    def command(self, node: int, command: list[str]) -> list[str]:
        """An argument vector for this machine that runs `command` on a node, and ends as it does; see `killed_by`."""

    def killed_by(self, exit_code: int) -> int | None:
        """Signal that an exit code of `command` may stand for, while the job has its nodes; None if it is the agent's.

        Where agents are processes of another program, it exits with 128 + signal if a signal has ended one.
        """

    def lost_part(self, exit_code: int, log: Path) -> Cause:
        """What was lost with a process of `command` that ended so and printed `log`: an agent, or its step."""

    def ask_to_stop(self, agents: Iterable[process.Child]) -> None:
        """Ask all agents, started by `command`, for a clean end."""

    def kill(self, agent: process.Child) -> None:
        """End an agent, started by `command`, at once, and all that it has started."""

    def free_ports(self, wanted: Sequence[int]) -> list[int]:
        """Ports of the first node that are free now, all at once; a wanted port of 0 is any."""


class OwnProcesses:
    """Hosts whose agents, or processes that stand for them, are started by the supervisor itself."""

    can_be_replaced = gets_new_pods = False
    accelerators: HeldAccelerators | None = None

    def killed_by(self, exit_code: int) -> int | None:
        """None: they end by the signals of the agents."""
        return None

    def lost_part(self, exit_code: int, log: Path) -> Cause:
        """The agent."""
        return Cause.AGENT_LOST

    def ask_to_stop(self, agents: Iterable[process.Child]) -> None:
        """SIGTERM."""
        for agent in agents:
            agent.signal_group(signal.SIGTERM)

    def kill(self, agent: process.Child) -> None:
        """SIGKILL to its process group."""
        agent.signal_group(signal.SIGKILL)

    def free_ports(self: Hosts, wanted: Sequence[int]) -> list[int]:
        """Those of this machine, on which the first node stands."""
        return free_ports(self.addresses[0], wanted)


@final
class ThisMachine(OwnProcesses):
    """All nodes of a local job."""

    are_here = True

    def __init__(self, nodes: int, accelerators: HeldAccelerators | None = None) -> None:
        self.addresses: Sequence[str] = [LOOPBACK] * nodes
        self.accelerators = accelerators

    def command(self, node: int, command: list[str]) -> list[str]:
        """The command itself."""
        return command


@final
class SomeHosts:
    """Some nodes of a job, numbered anew; `places` are their numbers among all."""

    def __init__(self, hosts: Hosts, places: Sequence[int]) -> None:
        self._hosts = hosts
        self._places = places
        self.addresses: Sequence[str] = [hosts.addresses[place] for place in places]
        self.are_here, self.can_be_replaced = hosts.are_here, hosts.can_be_replaced
        self.gets_new_pods = hosts.gets_new_pods
        self.killed_by, self.ask_to_stop, self.free_ports = hosts.killed_by, hosts.ask_to_stop, hosts.free_ports
        self.lost_part, self.kill, self.accelerators = hosts.lost_part, hosts.kill, hosts.accelerators

    def command(self, node: int, command: list[str]) -> list[str]:
        """Command for the node at this place."""
        return self._hosts.command(self._places[node], command)


class Nodes(abc.ABC):
    """All node agents of a job; each is the head of its own process group, and a failure domain.

    Every agent keeps the `inherited` file descriptors open: the run's lock, and its claim on this machine, end only
    when all agents are gone. Nodes stand on this machine where `hosts` is None. A `spare` waits there for the order of
    the first agent of a command, as `run_agent` takes it.
    """

    def __init__(
        self,
        run_dir: RunDir,
        resolved: ResolvedRun,
        inherited: Sequence[int] = (),
        hosts: Hosts | None = None,
        spare: Spare | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._resolved = resolved
        self._all = resolved.processes.nodes
        self._all_hosts = self._hosts = hosts or ThisMachine(self._all)
        self._places: Sequence[int] = range(self._all)
        self._inherited = inherited
        self._agents: dict[int, process.Child] = {}
        self._noted: set[int] = set()
        self._spare = spare
        self._prepare()

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Choose where the ranks meet."""

    @abc.abstractmethod
    def restartable(self, exit_code: int) -> bool:
        """Whether starting a node again that ended with this code can help."""

    @abc.abstractmethod
    def restart(self, node: int) -> None:
        """Start a lost node again, and the nodes that have to start again with it."""

    @abc.abstractmethod
    def ask_to_stop(self) -> None:
        """Ask all ranks for a clean end; returns at once."""

    def advance(self, now: float) -> None:
        """Start and end what waits for others, where nodes differ; the supervisor calls it at each of its looks."""
        return

    def restart_role(self, node: int, *, at: float) -> None:
        """Start the role of a node again, alone, at a time; only nodes with roles are asked to."""
        raise NotImplementedError

    @abc.abstractmethod
    def _agent(self, node: int) -> process.Child:
        """Start that node's agent."""

    def start_all(self) -> None:
        """Start every node's agent."""
        for node in range(self._resolved.processes.nodes):
            self._start(node)

    def resize(self, resolved: ResolvedRun, places: Sequence[int]) -> None:
        """Start the job on some of its nodes, or on all again; no agent runs now.

        `resolved` is the run on that many nodes, and `places` are their numbers among all of the job.
        """
        self._resolved, self._places = resolved, places
        self._hosts = SomeHosts(self._all_hosts, places)
        self._agents.clear()
        self._noted.clear()
        self.start_all()

    def keep(self, handle: int) -> None:
        """Let the agents that start from now on keep another open file of the job."""
        self._inherited = (*self._inherited, handle)

    def _start(self, node: int) -> None:
        self._noted.discard(node)
        self._agents[node] = self._agent(node)

    def _devices(self, node: int) -> dict[str, str]:
        """This node's share of the accelerators, where several nodes stand on one machine."""
        if not self._hosts.are_here:
            return {}
        processes = self._resolved.processes
        asked = processes.accelerators_per_node
        if not processes.roles and (processes.device != "cuda" or (self._all == 1 and not asked)):
            return {}
        group, place = processes.group_of(node), self._places[node]
        count = accelerators_per_node(group.processes)
        first, every = group.first_accelerator + (place - group.first_node) * count, range(processes.num_accelerators)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, every))
        return {"CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[first : first + count])}

    def wait(self, timeout_s: float) -> None:
        """Until an agent ends, or the time is over."""
        process.wait_any([agent for agent in self._agents.values() if agent.exit_code() is None], timeout_s)

    def _parent(self) -> str:
        """Process id that an agent ends with; 0 if another machine starts it."""
        return str(os.getpid()) if self._hosts.are_here else "0"

    def any_running(self) -> bool:
        """Whether an agent runs, or has ended badly and was not looked at yet."""
        return any(agent.exit_code() is None for agent in self._agents.values()) or bool(self._newly_lost())

    def lost(self) -> Iterator[tuple[int, int]]:
        """Node and exit code of every agent that ended badly, once; one started again meanwhile is not lost.

        The exit code is negative if a signal ended the agent.
        """
        while newly := self._newly_lost():
            node, exit_code = newly[0]
            self._noted.add(node)
            yield node, self._code_of_agent(node, exit_code)

    def _code_of_agent(self, node: int, exit_code: int) -> int:
        if exit_code <= 128 or explains_exit(read_events(self._run_dir.events_file), node, exit_code):
            return exit_code
        number = self._hosts.killed_by(exit_code)
        return exit_code if number is None else -number

    def _newly_lost(self) -> list[tuple[int, int]]:
        codes = [(node, agent.exit_code()) for node, agent in self._agents.items() if node not in self._noted]
        return [(node, code) for node, code in codes if code]

    def exit_codes(self) -> list[int]:
        """Exit codes of all agents that have ended, in order of the nodes."""
        return [code for agent in self._agents.values() if (code := agent.exit_code()) is not None]

    def loses_node(self, exit_code: int) -> bool:
        """Whether an agent that ended with this code stood on another machine, to which the connection is lost."""
        return exit_code == LINK_LOST and not self._hosts.are_here

    def lost_part(self, node: int, exit_code: int) -> Cause:
        """What was lost with the agent of a node, as `lost` gives it: the agent alone, its step or the whole node."""
        if self.loses_node(exit_code):
            return Cause.NODE_LOST
        return self._hosts.lost_part(self._agents[node].exit_code() or 0, self._run_dir.node_log(node))

    def end_containers(self) -> None:
        """End what is left in containers of ended agents, on this machine."""
        if self._resolved.run_file.cluster.local.container is not None and self._hosts.are_here:
            end_containers(run_mark(self._run_dir))

    def kill_all(self) -> None:
        """End all agents and all that they started, at once."""
        process.end_descendants(0)


def note_lost(
    run_dir: RunDir, node: int, exit_code: int, part: Cause = Cause.AGENT_LOST, role: str | None = None
) -> None:
    """Record the loss of an agent, of its step or of its whole node; one that was killed cannot have written why."""
    if exit_code < 0:
        name = process.signal_name(-exit_code)
        message = _HOW_LOST[part].format(name) + (f" (role `{role}`)" if role else "")
        event = FailureEvent(
            kind="failure", rank=None, node=node, cause=part, exit_code=exit_code, signal=name, message=message
        )
        run_dir.note(event | {"role": role} if role else event)
    run_dir.note(AgentLostEvent(kind="agent_lost", node=node, exit_code=exit_code))


_HOW_LOST = {
    Cause.AGENT_LOST: "the node agent was killed by {}",
    Cause.STEP_LOST: "the step of the node agent was ended by {}",
    Cause.NODE_LOST: "the connection to the node was lost",
}


@final
class TrainingNodes(Nodes):
    """Agents of the trainer. They meet at a store on the first node.

    Its listening socket is the supervisor's for the whole job where the agents are here; else the first agent's.
    """

    def _prepare(self) -> None:
        if self._spare is not None:  # its agents are new interpreters
            self._spare.dismiss()
        port, first = self._resolved.run_file.cluster.rendezvous_port, self._hosts.addresses[0]
        self._listener = listen(port, first) if self._hosts.are_here else None
        free = self._listener.getsockname()[1] if self._listener else self._hosts.free_ports([port])[0]
        self._store = f"{first}:{free}"

    def restartable(self, exit_code: int) -> bool:
        """An agent that was killed, or that lost contact; a rank's own failure was dealt with by its agent."""
        return (exit_code < 0 and not self.loses_node(exit_code)) or exit_code == ExitCode.PEER_LOST

    def restart(self, node: int) -> None:
        """Start that node alone; the others wait for it where they are."""
        self._start(node)

    def ask_to_stop(self) -> None:
        """Rank 0 looks for this file once per logging interval, and all ranks stop at the same step."""
        self._run_dir.stop_file.touch()

    def _agent(self, node: int) -> process.Child:
        """A new interpreter, here or on another machine: it imports torch, and cannot be a copy of this process."""
        own, nodes = self._hosts.addresses[node], str(self._resolved.processes.nodes)
        arguments = [str(self._run_dir.path), str(node), nodes, self._parent(), own, self._store]
        file_descriptors = list(self._inherited)
        if self._listener is not None and node == 0:
            arguments.append(str(self._listener.fileno()))
            file_descriptors.append(self._listener.fileno())
        env = agent_environment(self._resolved.processes) | self._devices(node) | run_mark(self._run_dir)
        return process.spawn(
            self._hosts.command(
                node, agent_module(self._run_dir, self._resolved, node, "trainworks.worker.agent", *arguments)
            ),
            log=self._run_dir.node_log(node),
            env=default_environment(self._resolved.processes) | os.environ | env,
            pass_fds=file_descriptors,
        )
