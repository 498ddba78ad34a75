"""Four hosts with an sshd each, on this machine."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil

from benchmarks.killed.queue import Queue, killed
from tests.backends.ssh_hosts import SshSite
from trainworks.backends.ssh import link, node
from trainworks.backends.ssh.backend import QUEUE
from trainworks.host import process

HOSTS = 4


@dataclass(frozen=True)
class Connection:
    """A client of ssh for a job, and the process that stands for what runs at its other end."""

    client: psutil.Process
    link: psutil.Process
    run_dir: str
    host: str


class SshQueue(Queue):
    """Hosts with one ledger each for three users, who have a queue of their own each.

    A host dies with everything that runs there, and comes back some seconds later.
    """

    patience_s, pause_s, most_kills_of_a_job = 3000.0, (0.05, 0.8), 6
    first_uid = 1  # ssh and sshd know users by their accounts: daemon, bin, sys
    shares: ClassVar = {
        "rank": 4,
        "agent": 4,
        "supervisor": 3,
        "dispatcher": 2,
        "link": 3,
        "ssh": 3,
        "session": 3,
        "program": 3,
        "host": 1,
    }

    def __init__(self, folder: Path, chance: random.Random, site: SshSite, mark: dict[str, str]) -> None:
        super().__init__(folder, chance, mark)
        self._site = site
        self._back_at: dict[str, float] = {}
        """Time at which a host that was killed is there again."""

    def keys(self, number: int) -> dict[str, Any]:
        """A core of one host, or of two for every fifth submission."""
        cluster = {"engine": "ssh", "hosts": self._site.names, "ssh": {"config": str(self._site.config)}}
        return {"resources": {"cpus": 1}, "cluster": cluster | {"nodes": 2 if number % 5 == 4 else 1}}

    def kill_one(self) -> None:
        """Kill a dispatcher, a host, or a process of a job on either side of its connections."""
        match self._draw():
            case "dispatcher":
                self._kill_dispatcher()
            case "host":
                self._kill_a_host()
            case "rank" | "agent" as role:
                self._kill_one_of(role, list(self._on_hosts(role)))
            case role:
                self._kill_one_of(role, [(pid, one.run_dir) for one in self._connections() for pid in _ends(role, one)])

    def mend(self, *, all_of_it: bool = False) -> None:
        """Turn hosts on again whose time has come, and let a user look at the queue."""
        for name in [name for name, at in self._back_at.items() if all_of_it or at <= time.monotonic()]:
            del self._back_at[name]
            self._site.start(name)
        self._look()

    def _kill_one_of(self, role: str, found: list[tuple[int, str]]) -> None:
        found = [(pid, run_dir) for pid, run_dir in found if not self._are_spared([run_dir])]
        for pid, run_dir in self._chance.sample(found, min(1, len(found))):
            if killed(pid):
                self._charge(role, {run_dir})

    def _kill_a_host(self) -> None:
        """Kill a host that runs a job; every job there loses it."""
        runs_of: dict[str, set[str]] = {}
        for one in self._connections():
            runs_of.setdefault(one.host, set()).add(one.run_dir)
        busy = sorted(runs_of.keys() - self._back_at.keys())
        name = self._chance.choice(busy) if busy else ""
        if busy and not self._are_spared(runs_of[name]):
            self._site.kill(name)
            self._charge("host", runs_of[name])
            self._back_at[name] = time.monotonic() + self._chance.uniform(0.0, 6.0)

    def _on_hosts(self, role: str) -> Iterator[tuple[int, str]]:
        """Ranks or agents of all jobs, and their run directories."""
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                env, words = one.environ(), one.cmdline()
                run_dir = env.get("TRAINWORKS_RUN_DIR", "")
                plays = env.get("RANK") == "0" if role == "rank" else "trainworks.agent.command_agent" in words
                if plays and node.HOST in env and run_dir.startswith(f"{self.folder}/"):
                    yield one.pid, run_dir

    def _connections(self) -> Iterator[Connection]:
        """Those of all jobs that there are now."""
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                words = one.cmdline()
                if link.__name__ in words and f"{self.folder}/" in words[-1]:
                    orders = {host: json.loads(message)["run_dir"] for host, _, message in json.loads(words[-1])}
                    for client in one.children():
                        host = next((word for word in client.cmdline() if word in orders), None)
                        if host is not None:
                            yield Connection(client, one, orders[host], host)


def _ends(role: str, connection: Connection) -> list[int]:
    """Processes of that role at the two ends of a connection: the link, its supervisor and the client here, sshd's
    session there, and the program that this has started."""
    with suppress(psutil.Error):
        match role:
            case "link":
                return [connection.link.pid]
            case "ssh":
                return [connection.client.pid]
            case "session":
                return [one.pid for one in _sessions(connection.client)]
            case "supervisor":  # a copy of the dispatcher; the link that keeps the shares is the dispatcher's own
                parent = connection.link.parent()
                is_one = parent is not None and QUEUE in parent.cmdline() and "run" in connection.link.cmdline()
                return [parent.pid] if parent is not None and is_one else []
            case _:
                below = {one for session in _sessions(connection.client) for one in session.children(recursive=True)}
                return [one.pid for one in below if one.name().startswith("python") and node.PROGRAM in one.cmdline()]
    return []


def _sessions(client: psutil.Process) -> list[psutil.Process]:
    """Processes of sshd that serve a client on this machine."""
    ports, found = {one.laddr.port for one in client.net_connections() if one.laddr}, []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            theirs = one.net_connections() if one.name().startswith("sshd") else []
            if any(there.raddr and there.raddr.port in ports for there in theirs):
                found.append(one)
    return found


@contextmanager
def ssh_queue(folder: Path, chance: random.Random) -> Iterator[SshQueue]:
    """New hosts for three users."""
    mark = {"TRAINWORKS_TRIAL": str(folder)}
    homes = {name: folder / f"home-{uid}" for uid, name in enumerate(("daemon", "bin", "sys"), SshQueue.first_uid)}
    site = SshSite(folder / "site", HOSTS, accounts=homes, mark=mark)
    queue = SshQueue(folder, chance, site, mark)
    try:
        yield queue
    finally:
        queue.end_looks()
        site.end()
        while left := process.processes_with(mark):  # one may have started another
            for one in left:
                killed(one.pid)
