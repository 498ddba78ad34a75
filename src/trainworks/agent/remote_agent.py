"""Node agents on other machines, for clusters without a way to start a process on a node of a job.

Every node except the first runs an `AgentServer`. The supervisor on the first node starts one proxy process per remote
agent, `python -m trainworks.agent.remote_agent SECRETS ADDRESS MODULE ARGUMENT...`: it has the server start the module,
forwards SIGTERM, and exits as the agent does. To the supervisor, a lost connection looks like a lost node.

The two nodes talk over a channel of JSON messages, after a mutual handshake. Both sides prove that they know the token
of the job; the token itself is never sent. Messages are neither encrypted nor signed: they are as safe as the cluster
network, over which the ranks communicate as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, final

from trainworks.agent.allocation import Allocation
from trainworks.agent.log_echo import LogEcho
from trainworks.agent.node_agents import NODE_LEAVES, OwnProcesses
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.files import closing_handle
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.network import listen
from trainworks.jobs.environment import FORWARDED_VARIABLES
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir

_LOG = logging.getLogger(__name__)

Message = dict[str, Any]
_Side = Literal["asks", "answers"]

_HANDSHAKE_S = 10.0
_RETRY_S = 0.5
_LARGEST_MESSAGE = 1 << 20
_LENGTH = struct.Struct("!I")
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 3, socket.TCP_KEEPCNT: 3}
"""A peer that disappears is noticed after 10 s of silence and three unanswered probes."""


@final
class Channel:
    """Sends and receives JSON objects, each with its length in front, so that nothing is read ahead of `poll`."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        peer.settimeout(_HANDSHAKE_S)

    def fileno(self) -> int:
        """File descriptor for `poll` and `select`: readable once `receive` has a message, or the end of them."""
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Send a message; False if the peer is gone."""
        data = json.dumps(message).encode()
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            return False
        return True

    def receive(self) -> Message | None:
        """Receive the next message; None once the peer or the network is gone."""
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
            message = json.loads(self._read(length)) if length <= _LARGEST_MESSAGE else None
        except (OSError, ValueError, RecursionError):  # also from a stranger before the handshake
            return None
        return message if isinstance(message, dict) else None

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            if not (chunk := self._socket.recv(length - len(data))):
                raise ConnectionError("the peer has closed the connection")
            data += chunk
        return data

    def authenticate(self, token: str, side: _Side) -> bool:
        """Exchange proofs of the token: hashes over the other side's random number.

        The connecting side proves it first, so that a stranger who connects learns nothing.
        """
        nonce = secrets.token_hex(32)
        self.send({"nonce": nonce})
        other_nonce = str((self.receive() or {}).get("nonce"))
        other: _Side = "answers" if side == "asks" else "asks"
        if side == "asks":
            self.send({"proof": _proof(token, side, other_nonce)})
        proof = str((self.receive() or {}).get("proof"))
        if other_nonce == nonce or not hmac.compare_digest(proof.encode(), _proof(token, other, nonce).encode()):
            return False
        if side == "answers":
            self.send({"proof": _proof(token, side, other_nonce)})
        self._socket.settimeout(None)
        return True

    def close(self) -> None:
        """Close the connection; the peer receives the end of messages."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _proof(token: str, side: _Side, nonce: str) -> str:
    return hmac.new(token.encode(), f"{side}:{nonce}".encode(), hashlib.sha256).hexdigest()


def connect(host: str, port: int, token: str) -> Channel:
    """Connect to a node of the job.

    Raises:
        OSError: the node does not listen yet, or DNS does not know its name yet.
        EnvironmentProblem: the peer does not know the token.
    """
    return _authenticated(socket.create_connection((host, port), timeout=_HANDSHAKE_S), token, "asks")


def connect_when_ready(host: str, port: int, token: str, patience_s: float, clock: Clock) -> Channel | None:
    """Connect to a node once it listens; None after `patience_s`.

    Raises:
        EnvironmentProblem: the peer does not know the token.
    """
    deadline = clock.now() + patience_s
    while True:
        try:
            return connect(host, port, token)
        except OSError as error:
            _LOG.debug("%s:%d does not answer: %s", host, port, error)
            if clock.now() > deadline:
                return None
            clock.sleep(_RETRY_S)


def accept(peer: socket.socket, token: str) -> Channel:
    """Accept a node that has connected.

    Raises:
        EnvironmentProblem: the peer does not know the token.
    """
    return _authenticated(peer, token, "answers")


def _authenticated(peer: socket.socket, token: str, side: _Side) -> Channel:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        peer.setsockopt(socket.IPPROTO_TCP, option, value)
    address, channel = peer.getpeername()[0], Channel(peer)
    if not channel.authenticate(token, side):
        channel.close()
        raise EnvironmentProblem(f"`{address}` does not belong to this job")
    return channel


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
_DAY_S = 24 * 3600.0
_DISMISS_THREADS = 64


@final
class AgentServer:
    """Starts agents for the supervisor, one at a time, and reports how they end.

    The run directory is on a file system that all nodes share. `node` is the index of this node, and `name` and
    `address` those of its machine.
    """

    def __init__(self, run_dir: RunDir, *, node: int, name: str, address: str, token: str) -> None:
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
        """The cluster ends this node: ranks continue until the supervisor has stopped all of them."""
        self._terminated = True
        _schedule(_NODE_LEAVES_S, self._leaving.set)
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
                    reported = channel.send({"leaving": True})
        return code


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

    Proxies forward SIGTERM, and end by the signals of their agents.
    """

    are_here = False

    def __init__(self, nodes: Allocation, secrets: Path) -> None:
        self.addresses: Sequence[str] = nodes.addresses
        self._secrets = secrets

    def command(self, node: int, command: list[str]) -> list[str]:
        """Command of the agent on the first node; elsewhere, command of the proxy that starts the same module."""
        if node == 0:
            return command
        module = command[command.index("-m") + 1 :]
        return process.python_module("trainworks.agent.remote_agent", str(self._secrets), self.addresses[node], *module)


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
        os.kill(os.getppid(), NODE_LEAVES)
    if not isinstance(code := message.get("exit"), int):
        return None
    if code < 0:
        process.end_by_signal(-code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
