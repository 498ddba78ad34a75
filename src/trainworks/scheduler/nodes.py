"""The node agents of one local job: processes that start and watch the ranks of one node each."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import final

from trainworks.files import write_atomic
from trainworks.host import process
from trainworks.host.network import LOOPBACK, listen
from trainworks.job.environment import accelerators_per_node, agent_environment
from trainworks.job.frameworks import deepspeed_hostfile, mpi_hostfile, ports_needed
from trainworks.job.request import JobRequest
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir
from trainworks.scheduler import command_agent
from trainworks.scheduler.launch import run_mark

__all__ = ["CommandNodes", "Nodes", "TrainingNodes"]


class Nodes(abc.ABC):
    """All node agents of a job; each is the head of its own process group, and a failure domain.

    Args:
        run_dir: of the run.
        request: the job.
        inherited: file descriptors that every agent keeps open: the run's lock is free only when all are gone.
    """

    def __init__(self, run_dir: RunDir, request: JobRequest, inherited: Sequence[int] = ()) -> None:
        self._run_dir = run_dir
        self._request = request
        self._inherited = inherited
        self._agents: dict[int, process.Child] = {}
        self._noted: set[int] = set()

    @abc.abstractmethod
    def restartable(self, exit_code: int) -> bool:
        """Whether starting a node again that ended with this code can help."""

    @abc.abstractmethod
    def restart(self, node: int) -> None:
        """Start a lost node again, and whatever has to start again with it."""

    @abc.abstractmethod
    def ask_to_stop(self) -> None:
        """Ask all ranks for a clean end; returns at once."""

    @abc.abstractmethod
    def _agent(self, node: int) -> process.Child:
        """Start that node's agent."""

    def start_all(self) -> None:
        """Start every node's agent."""
        for node in range(self._request.processes.nodes):
            self._start(node)

    def _start(self, node: int) -> None:
        self._noted.discard(node)
        self._agents[node] = self._agent(node)

    def _devices(self, node: int) -> dict[str, str]:
        """This node's share of the accelerators, where several nodes stand on one machine."""
        processes = self._request.processes
        asked = processes.accelerators_per_node
        if processes.device != "cuda" or (processes.nodes == 1 and not asked):
            return {}
        count = accelerators_per_node(processes)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(processes.nodes * count)))
        return {"CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[node * count : (node + 1) * count])}

    def wait(self, timeout_s: float) -> None:
        """Until an agent ends, or the time is over."""
        running = [agent for agent in self._agents.values() if agent.exit_code() is None]
        process.wait_any(running, timeout_s)

    def any_running(self) -> bool:
        """Whether an agent runs, or has ended badly and was not looked at yet."""
        return any(agent.exit_code() is None for agent in self._agents.values()) or bool(self._newly_lost())

    def lost(self) -> Iterator[tuple[int, int]]:
        """Node and exit code of every agent that ended badly, once; one started again meanwhile is not lost."""
        while newly := self._newly_lost():
            self._noted.add(newly[0][0])
            yield newly[0]

    def _newly_lost(self) -> list[tuple[int, int]]:
        codes = [(node, agent.exit_code()) for node, agent in self._agents.items() if node not in self._noted]
        return [(node, code) for node, code in codes if code]

    def exit_codes(self) -> list[int]:
        """Exit codes of all agents that have ended, in order of the nodes."""
        return [code for agent in self._agents.values() if (code := agent.exit_code()) is not None]

    def kill_all(self) -> None:
        """End all agents and all that they started, at once."""
        process.end_descendants(0)


@final
class TrainingNodes(Nodes):
    """Agents of the trainer. They meet at a store whose listening socket the supervisor owns for the whole job."""

    def __init__(self, run_dir: RunDir, request: JobRequest, inherited: Sequence[int] = ()) -> None:
        super().__init__(run_dir, request, inherited)
        self._listener: socket.socket = listen(request.rendezvous_port)

    def restartable(self, exit_code: int) -> bool:
        """An agent that was killed, or that lost contact; a rank's own failure was dealt with by its agent."""
        return exit_code < 0 or exit_code == ExitCode.PEER_LOST

    def restart(self, node: int) -> None:
        """Start that node alone; the others wait for it where they are."""
        self._start(node)

    def ask_to_stop(self) -> None:
        """Rank 0 looks for this file once per logging interval, and all ranks stop at the same step."""
        self._run_dir.stop_file.touch()

    def _agent(self, node: int) -> process.Child:
        """A new interpreter: it imports torch, which does not go on in a copy of a process."""
        port = self._listener.getsockname()[1]
        arguments = [str(self._run_dir.path), str(node), str(os.getpid()), str(self._request.max_restarts), str(port)]
        file_descriptors = list(self._inherited)
        if node == 0:
            arguments.append(str(self._listener.fileno()))
            file_descriptors.append(self._listener.fileno())
        return process.spawn(
            process.python_module("trainworks.worker.agent", *arguments),
            log=self._run_dir.node_log(node),
            env=os.environ | agent_environment(self._request.processes) | self._devices(node) | run_mark(self._run_dir),
            pass_fds=file_descriptors,
        )


@final
class CommandNodes(Nodes):
    """Agents of a command of the user's own; its ranks know nothing of restarts, so all start again together."""

    def __init__(self, run_dir: RunDir, request: JobRequest, inherited: Sequence[int] = ()) -> None:
        super().__init__(run_dir, request, inherited)
        self._attempt = 1
        self._ports = self._free_ports()
        self._write_hostfile()

    def restartable(self, exit_code: int) -> bool:
        """Any failure: nobody but the user knows better, who said how often."""
        return True

    def restart(self, node: int) -> None:
        """End all nodes and start them all again, at other ports."""
        process.end_descendants(5.0)
        self._attempt += 1
        self._ports = self._free_ports()
        self.start_all()

    def ask_to_stop(self) -> None:
        """SIGTERM to every agent, which passes it on to its ranks."""
        for agent in self._agents.values():
            agent.signal_group(signal.SIGTERM)

    def _agent(self, node: int) -> process.Child:
        """A copy of this process, which keeps the run's lock with everything else that is open."""
        ports = ",".join(map(str, self._ports))
        arguments = (str(self._run_dir.path), str(node), str(os.getpid()), ports, str(self._attempt))
        return process.fork(
            lambda: command_agent.main(*arguments), log=self._run_dir.node_log(node), env=self._devices(node)
        )

    def _free_ports(self) -> list[int]:
        """Ports that are free now, all at once; the ranks bind them, so they cannot be held until then."""
        wanted = [self._request.rendezvous_port, *[0] * (self._ports_needed() - 1)]
        with contextlib.ExitStack() as listeners:
            return [listeners.enter_context(listen(port)).getsockname()[1] for port in wanted]

    def _ports_needed(self) -> int:
        return ports_needed(self._request.framework, self._request.processes)

    def _write_hostfile(self) -> None:
        processes = self._request.processes
        if self._request.framework == "mpi":
            write_atomic(self._run_dir.hostfile, mpi_hostfile(processes, [LOOPBACK] * processes.nodes))
        elif self._request.framework == "deepspeed":
            write_atomic(self._run_dir.hostfile, deepspeed_hostfile(processes))
