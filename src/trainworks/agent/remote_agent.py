"""Node agents on other machines, for clusters without a way to start a process on a node of a job.

Every node except the first runs an `AgentServer`. The supervisor on the first node starts one proxy process per remote
agent, `python -m trainworks.agent.remote_agent SECRETS ADDRESS MODULE ARGUMENT...`: it has the server start the module,
forwards SIGTERM, and exits as the agent does. To the supervisor, a lost connection looks like a lost node.

A cluster may replace a node while the others run on. When it ends such a node, the agent there ends, too. Its proxy
ends with `NODE_RETURNS` when the connection is lost, and the next proxy waits for the new node.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import final

from trainworks.agent.allocation import Allocation
from trainworks.agent.channel import Channel, accept, connect_when_ready
from trainworks.agent.log_echo import LogEcho
from trainworks.agent.node_agents import NODE_LEAVES, OwnProcesses
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.files import closing_handle
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.network import listen
from trainworks.jobs.environment import FORWARDED_VARIABLES
from trainworks.jobs.state import Cause
from trainworks.record.exit_code import NODE_RETURNS, ExitCode
from trainworks.record.run_dir import RunDir

AGENT_PORT = 23_456
"""Port of the agent server on every node except the first."""
TOKEN_FILE = "token"  # noqa: S105  # the name of a file
"""File in the secrets folder with the token of the job."""

_TERMINATED = 128 + signal.SIGTERM
_END_GRACE_S = 5.0
_NODE_LEAVES_S = 3.0
"""Delay of the `leaving` message. If the whole job ends, the first node gets its own SIGTERM within this time, and a
second one would end the job at once."""
_LAST_ORDERS_S = 5.0
"""Time for further orders of the supervisor after the agent has ended, if the node has to leave."""
_CONNECT_S = 15.0
"""Time to reach a node that has answered before; after that it counts as lost."""
_RETURN_S = 1800.0
"""Time for another node to stand at the address of one that its cluster replaces."""
_LOOK_S = 2.0
RETURNS = "--returns"
"""Option of a proxy: the cluster replaces this node alone."""
_DAY_S = 24 * 3600.0
_DISMISS_THREADS = 64


@final
class AgentServer:
    """Starts agents for the supervisor, one at a time, and reports how they end.

    The run directory is on a file system that all nodes share. `node` is the index of this node, and `name` and
    `address` those of its machine. With `returns` the cluster replaces this node alone: if it has to leave, its agent
    ends and the others run on.
    """

    def __init__(
        self, run_dir: RunDir, *, node: int, name: str, address: str, token: str, returns: bool = False
    ) -> None:
        self._returns = returns
        self._run_dir = run_dir
        self._node = node
        self._greeting = {"address": address, "name": name}
        self._token = token
        self._server = listen(AGENT_PORT, address)
        self._agent_lock = threading.Lock()
        self._terminated = False
        self._leaving = threading.Event()
        self._done, self._finished = socket.socketpair()
        self._exit_code = int(ExitCode.PEER_LOST)

    def run(self) -> int:
        """Serve until the supervisor says that the job is over, or the cluster ends this node."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        while True:
            ready, _, _ = select.select([self._server, self._done], [], [])
            if self._done in ready:
                return self._exit_code
            peer, _ = self._server.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _on_terminate(self, number: int, frame: object) -> None:
        """The cluster ends this node: ranks continue until the supervisor has stopped all of them.

        If the supervisor does not, the whole job is not about to end; a node that returns then ends its own agent.
        """
        self._terminated = True
        _schedule(_NODE_LEAVES_S, self._leaving.set)
        if not self._agent_lock.locked():
            self._finish(_TERMINATED)

    def _finish(self, code: int) -> None:
        self._exit_code = code
        self._finished.send(b".")

    def _serve(self, peer: socket.socket) -> None:
        if self._has_left:
            peer.close()  # the proxy tries again, at the next node of this address
            return
        try:
            channel = accept(peer, self._token)
        except (TrainworksError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            return
        try:
            match channel.receive():
                case {"hello": _}:
                    channel.send(self._greeting)
                case {"start": [str(module), *arguments], "env": dict(env)}:
                    with self._agent_lock:
                        self._run_agent(channel, [module, *map(str, arguments)], env)
                case {"over": _}:
                    channel.send({"over": True})
                    self._finish(0)
        finally:
            channel.close()

    def _run_agent(self, channel: Channel, module: Sequence[str], env: dict[str, str]) -> None:
        log = self._run_dir.node_log(self._node)
        with LogEcho(self._run_dir, self._node):
            agent = process.spawn(process.python_module(*module), log=log, env=os.environ | env)
            code = self._watch(channel, agent)
            if code is None:
                process.end_descendants(_END_GRACE_S)
        if self._has_left:
            self._finish(_TERMINATED)
            return
        channel.send({"exit": code})
        if self._terminated:
            _schedule(_LAST_ORDERS_S, lambda: self._finish(_TERMINATED))

    def _watch(self, channel: Channel, agent: process.Child) -> int | None:
        """Wait for the agent and return its exit code; None if the supervisor is gone."""
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        reported = False
        with closing_handle(os.pidfd_open(agent.pid)) as handle:
            poll.register(handle, select.POLLIN)
            while (code := agent.exit_code()) is None:
                if channel.fileno() in [number for number, _ in poll.poll(500)]:
                    if (message := channel.receive()) is None:
                        return None
                    if isinstance(number := message.get("signal"), int):
                        agent.signal_group(signal.Signals(number))
                if self._leaving.is_set() and not reported:
                    if self._returns:
                        agent.signal_group(signal.SIGTERM)
                    reported = self._returns or channel.send({"leaving": True})
        return code

    @property
    def _has_left(self) -> bool:
        """Whether another node takes the place of this one."""
        return self._returns and self._leaving.is_set()


def _schedule(seconds: float, action: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def greeting_of(host: str, token: str, clock: Clock) -> tuple[str, str]:
    """Name and address of a node, once its server answers; `host` is its DNS name.

    Raises:
        EnvironmentProblem: the server does not know the token.
    """
    while (channel := connect_when_ready(host, AGENT_PORT, token, _DAY_S, clock)) is None:
        pass
    channel.send({"hello": 0})
    greeting = channel.receive() or {}
    channel.close()
    return str(greeting.get("name") or host), str(greeting.get("address") or host)


def dismiss(addresses: Sequence[str], token: str, clock: Clock, *, patience_s: float = 0.0) -> None:
    """Let servers exit with code 0, so that the first node alone decides how the job ended.

    A server that does not answer at once gets `patience_s`.
    """

    def dismiss_one(address: str) -> None:
        channel = connect_when_ready(address, AGENT_PORT, token, patience_s, clock)
        if channel is not None:
            channel.send({"over": True})
            channel.receive()
            channel.close()

    with ThreadPoolExecutor(_DISMISS_THREADS) as threads:
        list(threads.map(dismiss_one, addresses))


@final
class RemoteHosts(OwnProcesses):
    """Starts agents: on the first node as children of this process, on the others through a proxy process.

    Proxies forward SIGTERM, and end by the signals of their agents. The cluster replaces each of the nodes `returning`
    alone, under its address; with `gets_new_pods` it replaces all, if the job leaves them.
    """

    are_here = False

    def __init__(
        self, nodes: Allocation, secrets: Path, returning: Collection[int] = (), *, gets_new_pods: bool = False
    ) -> None:
        self.addresses: Sequence[str] = nodes.addresses
        self.gets_new_pods = gets_new_pods
        self._secrets = secrets
        self._returning = returning

    def command(self, node: int, command: list[str]) -> list[str]:
        """Command of the agent on the first node; elsewhere, command of the proxy that starts the same module."""
        if node == 0:
            return command
        words = [self.addresses[node], *([RETURNS] if node in self._returning else [])]
        words += command[command.index("-m") + 1 :]
        return process.python_module("trainworks.agent.remote_agent", str(self._secrets), *words)

    def lost_part(self, exit_code: int, log: Path) -> Cause:
        """The node where it returns; else the agent."""
        return Cause.NODE_LOST if exit_code == NODE_RETURNS else super().lost_part(exit_code, log)


def main(secrets: str, address: str, *command: str) -> int:
    """Start an agent on another node, and exit as it does; by the signal of `NODE_RETURNS` if that node is replaced."""
    returns = command[0] == RETURNS
    token = (Path(secrets) / TOKEN_FILE).read_text(encoding="utf-8")
    signals, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # the wake-up socket reports it
    try:
        channel = _connect(address, token, _RETURN_S if returns else _CONNECT_S, signals)
    except EnvironmentProblem as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.ENVIRONMENT
    env = {name: os.environ[name] for name in FORWARDED_VARIABLES if name in os.environ}
    if channel is None:
        return ExitCode.PEER_LOST
    if not channel.send({"start": list(command[returns:]), "env": env}):
        return _lost(returns)
    while True:
        ready, _, _ = select.select([channel.fileno(), signals.fileno()], [], [])
        if signals.fileno() in ready:
            for number in signals.recv(64):
                channel.send({"signal": number})
        if channel.fileno() in ready and (code := _handle(channel, returns)) is not None:
            return code


def _connect(address: str, token: str, patience_s: float, signals: socket.socket) -> Channel | None:
    """Connect to the server of a node; None after `patience_s`, or soon after a signal."""
    clock = SystemClock()
    deadline, channel = clock.now() + patience_s, None
    while channel is None and clock.now() < deadline and not select.select([signals], [], [], 0)[0]:
        channel = connect_when_ready(address, AGENT_PORT, token, _LOOK_S, clock)
    return channel


def _lost(returns: bool) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a signal while Python exits would hide the loss
    sys.stderr.write("lost the connection to this node\n")
    if returns:
        process.end_by_signal(-NODE_RETURNS)
    return ExitCode.PEER_LOST


def _handle(channel: Channel, returns: bool = False) -> int | None:
    """Handle one message of the server; returns the exit code once the agent or the connection has ended."""
    message = channel.receive()
    if message is None:
        return _lost(returns)
    if message.get("leaving"):
        os.kill(os.getppid(), NODE_LEAVES)
    if not isinstance(code := message.get("exit"), int):
        return None
    if code < 0:
        process.end_by_signal(-code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
