"""A pod that waits for the first one: it starts that node's agents, one after the other, and says how they ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import final

from trainworks.backends.kubernetes.echo import Echo
from trainworks.backends.kubernetes.pod import Pod
from trainworks.backends.kubernetes.render import PORT
from trainworks.backends.kubernetes.wire import Connection, Message, accept
from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.host.network import listen
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir

__all__ = ["Follower"]

_TERMINATED = 128 + signal.SIGTERM
_END_GRACE_S = 5.0
_LEAVING_IS_TOLD_AFTER_S = 3.0
"""Where the whole job ends, the first pod hears of it from Kubernetes, and a second word would hurry it."""
_LEAVES_AFTER_S = 5.0
"""When its agent has ended, and the first pod has nothing more to say."""


@final
class Follower:
    """Answers the first pod.

    Args:
        pod: this one.
        run_dir: of the run, where the volume is mounted.
        port: to listen on.
    """

    def __init__(self, pod: Pod, run_dir: RunDir, port: int = PORT) -> None:
        self._pod = pod
        self._run_dir = run_dir
        self._server = listen(port, pod.address)
        self._one_agent = threading.Lock()
        self._asked_to_end = False
        self._leaving = threading.Event()
        self._over, self._end = socket.socketpair()
        self._exit_code = int(ExitCode.PEER_LOST)

    def run(self) -> int:
        """Until the first pod says that the job is over, or Kubernetes ends this one."""
        signal.signal(signal.SIGTERM, self._hear)
        while True:
            ready, _, _ = select.select([self._server, self._over], [], [])
            if self._over in ready:
                return self._exit_code
            peer, _ = self._server.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _hear(self, number: int, frame: object) -> None:
        """Kubernetes wants this pod to end: its ranks go on until the first pod has brought all of them to an end."""
        self._asked_to_end = True
        _later(_LEAVING_IS_TOLD_AFTER_S, self._leaving.set)
        if not self._one_agent.locked():
            self._finish(_TERMINATED)

    def _finish(self, code: int) -> None:
        self._exit_code = code
        self._end.send(b".")

    def _serve(self, peer: socket.socket) -> None:
        try:
            connection = accept(peer, self._pod.token)
        except (TrainworksError, OSError) as refused:
            sys.stderr.write(f"{refused}\n")
            return
        try:
            self._answer(connection, connection.receive() or {})
        finally:
            connection.close()

    def _answer(self, connection: Connection, message: Message) -> None:
        match message:
            case {"hello": _}:
                connection.send({"address": self._pod.address, "node": self._pod.node})
            case {"start": [str(module), *arguments], "env": dict(env)}:
                with self._one_agent:
                    self._run_agent(connection, [module, *map(str, arguments)], env)
            case {"over": _}:
                connection.send({"over": True})
                self._finish(0)

    def _run_agent(self, connection: Connection, module: Sequence[str], env: dict[str, str]) -> None:
        log = self._run_dir.node_log(self._pod.index)
        with Echo(self._run_dir, self._pod.index):
            agent = process.spawn(process.python_module(*module), log=log, env=os.environ | env)
            code = self._watch(connection, agent)
            if code is None:
                process.end_descendants(_END_GRACE_S)
        connection.send({"exit": code})
        if self._asked_to_end:
            _later(_LEAVES_AFTER_S, lambda: self._finish(_TERMINATED))

    def _watch(self, connection: Connection, agent: process.Child) -> int | None:
        """The agent's exit code; None if whoever asked for it is gone."""
        poll = select.poll()
        handle = os.pidfd_open(agent.pid)
        poll.register(handle, select.POLLIN)
        poll.register(connection.fileno(), select.POLLIN)
        told = False
        try:
            while (code := agent.exit_code()) is None:
                ready = [number for number, _ in poll.poll(500)]
                if connection.fileno() in ready and not self._obey(connection, agent):
                    return None
                if self._leaving.is_set() and not told:
                    told = connection.send({"leaving": True})
        finally:
            os.close(handle)
        return code

    def _obey(self, connection: Connection, agent: process.Child) -> bool:
        """Pass signals on; False at the end of the connection."""
        for message in connection.received():
            if message is None:
                return False
            if isinstance(number := message.get("signal"), int):
                agent.signal_group(signal.Signals(number))
        return True


def _later(seconds: float, work: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()
