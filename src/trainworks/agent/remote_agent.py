"""Node agents on other machines, for clusters without a way to start a process on a node of a job.

Every node except the first runs an `AgentServer`. The supervisor on the first node starts one proxy process per remote
agent, `python -m trainworks.agent.remote_agent SECRETS ADDRESS MODULE ARGUMENT...`: it has the server start the module,
forwards SIGTERM, and exits as the agent does. To the supervisor, a lost connection looks like a lost node.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

from trainworks.agent.channel import Channel, accept, connect_when_ready
from trainworks.agent.log_echo import LogEcho
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.network import listen
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir

AGENT_PORT = 23_456
"""Port of the agent server on every node except the first."""
TOKEN_FILE = "token"  # noqa: S105  # the name of a file
"""File in the secrets folder with the token of the job."""
FORWARDED_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS", "TRAINWORKS_RUN_DIR")
"""Variables of the supervisor that a remote agent gets; all others are those of its own node."""

_TERMINATED = 128 + signal.SIGTERM
_END_GRACE_S = 5.0
_NODE_LEAVES_S = 3.0
"""Delay of the `leaving` message. If the whole job ends, the first node gets its own SIGTERM within this time, and a
second one would end the job at once."""
_LAST_ORDERS_S = 5.0
"""Time for further orders of the supervisor after the agent has ended, if the node has to leave."""
_CONNECT_S = 15.0
"""Time to reach a node that has answered before; after that it counts as lost."""
_DAY_S = 24 * 3600.0
_DISMISS_THREADS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddresses:
    """Addresses and names of all nodes of a job, in order."""

    addresses: tuple[str, ...]
    names: tuple[str, ...]


@final
class AgentServer:
    """Starts agents for the supervisor, one at a time, and reports how they end.

    Args:
        run_dir: of the run, on a file system that all nodes share.
        node: index of this node.
        name: name of the machine.
        address: address to listen on.
        token: token of the job.
        port: port to listen on.
    """

    def __init__(
        self, run_dir: RunDir, *, node: int, name: str, address: str, token: str, port: int = AGENT_PORT
    ) -> None:
        self._run_dir = run_dir
        self._node = node
        self._greeting = {"address": address, "name": name}
        self._token = token
        self._server = listen(port, address)
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
        """The cluster ends this node: ranks continue until the supervisor has stopped all of them."""
        self._terminated = True
        _after(_NODE_LEAVES_S, self._leaving.set)
        if not self._agent_lock.locked():
            self._finish(_TERMINATED)

    def _finish(self, code: int) -> None:
        self._exit_code = code
        self._finished.send(b".")

    def _serve(self, peer: socket.socket) -> None:
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
        channel.send({"exit": code})
        if self._terminated:
            _after(_LAST_ORDERS_S, lambda: self._finish(_TERMINATED))

    def _watch(self, channel: Channel, agent: process.Child) -> int | None:
        """Wait for the agent and return its exit code; None if the supervisor is gone."""
        poll = select.poll()
        handle = os.pidfd_open(agent.pid)
        poll.register(handle, select.POLLIN)
        poll.register(channel.fileno(), select.POLLIN)
        reported = False
        try:
            while (code := agent.exit_code()) is None:
                if channel.fileno() in [number for number, _ in poll.poll(500)]:
                    if (message := channel.receive()) is None:
                        return None
                    if isinstance(number := message.get("signal"), int):
                        agent.signal_group(signal.Signals(number))
                if self._leaving.is_set() and not reported:
                    reported = channel.send({"leaving": True})
        finally:
            os.close(handle)
        return code


def _after(seconds: float, action: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def wait_for_nodes(first: NodeAddresses, hosts: Iterable[str], token: str, clock: Clock) -> NodeAddresses:
    """Wait until the servers of all nodes answer; a cluster may start its nodes one after the other.

    Args:
        first: address and name of the first node, which is this one.
        hosts: DNS names of the others, in order.
        token: token of the job.
        clock: waits between two attempts.

    Raises:
        EnvironmentProblem: a peer does not know the token.
    """
    addresses, names = [*first.addresses], [*first.names]
    for host in hosts:
        channel = None
        while channel is None:
            channel = connect_when_ready(host, AGENT_PORT, token, _DAY_S, clock)
        channel.send({"hello": 0})
        greeting = channel.receive() or {}
        channel.close()
        addresses.append(str(greeting.get("address") or host))
        names.append(str(greeting.get("name") or host))
    return NodeAddresses(addresses=tuple(addresses), names=tuple(names))


def dismiss(addresses: Sequence[str], token: str, clock: Clock, *, patience_s: float = 0.0) -> None:
    """Let servers exit with code 0, so that the first node alone decides how the job ended.

    Args:
        addresses: of the servers.
        token: token of the job.
        clock: waits between two attempts.
        patience_s: time for a server that does not answer at once.
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
class RemoteHosts:
    """Starts agents: on the first node as children of this process, on the others through a proxy process."""

    are_here = False
    can_be_replaced = False

    def __init__(self, nodes: NodeAddresses, secrets: Path) -> None:
        self.addresses: Sequence[str] = nodes.addresses
        self._secrets = secrets

    def command(self, node: int, command: list[str]) -> list[str]:
        """Command of the agent on the first node; elsewhere, command of the proxy that starts the same module."""
        if node == 0:
            return command
        module = command[command.index("-m") + 1 :]
        return process.python_module("trainworks.agent.remote_agent", str(self._secrets), self.addresses[node], *module)

    def killed_by(self, exit_code: int) -> int | None:
        """None: proxies end by the signals of their agents."""
        return None

    def ask_to_stop(self, agents: Iterable[process.Child]) -> None:
        """Send SIGTERM; proxies forward it."""
        for agent in agents:
            agent.signal_group(signal.SIGTERM)


def main(secrets: str, address: str, *command: str) -> int:
    """Start an agent on another node, and exit as it does."""
    token = (Path(secrets) / TOKEN_FILE).read_text(encoding="utf-8")
    signals, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # the wake-up socket reports it
    try:
        channel = connect_when_ready(address, AGENT_PORT, token, _CONNECT_S, SystemClock())
    except EnvironmentProblem as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.ENVIRONMENT
    env = {name: os.environ[name] for name in FORWARDED_VARIABLES if name in os.environ}
    if channel is None or not channel.send({"start": list(command), "env": env}):
        return ExitCode.PEER_LOST
    while True:
        ready, _, _ = select.select([channel.fileno(), signals.fileno()], [], [])
        if signals.fileno() in ready:
            for number in signals.recv(64):
                channel.send({"signal": number})
        if channel.fileno() in ready and (code := _handle(channel)) is not None:
            return code


def _handle(channel: Channel) -> int | None:
    """Handle one message of the server; returns the exit code once the agent or the connection has ended."""
    message = channel.receive()
    if message is None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a signal while Python exits would hide the loss
        sys.stderr.write("lost the connection to this node\n")
        return ExitCode.PEER_LOST
    if message.get("leaving"):
        os.kill(os.getppid(), signal.SIGHUP)  # asks the supervisor for a clean end of all ranks
    if not isinstance(code := message.get("exit"), int):
        return None
    if code < 0:
        process.end_by_signal(-code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
