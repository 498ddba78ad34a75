"""The pods of a job as its supervisor sees them."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

from trainworks.backends.kubernetes.call import patiently
from trainworks.backends.kubernetes.pod import Pod
from trainworks.host import process
from trainworks.host.clock import Clock

__all__ = ["Met", "PodHosts", "dismiss", "meet"]

_DAY_S = 24 * 3600.0
_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """All pods, in their order."""

    addresses: tuple[str, ...]
    nodes: tuple[str, ...]


def meet(pod: Pod, clock: Clock) -> Met:
    """Wait until all pods answer; Kubernetes starts them one after the other, and may pull an image for each.

    Raises:
        EnvironmentProblem: somebody else listens at a pod's address.
    """
    addresses, nodes = [pod.address], [pod.node]
    for index in range(1, pod.num_nodes):
        connection = None
        while connection is None:
            connection = patiently(pod.name_of(index), pod.token, _DAY_S, clock)
        connection.send({"hello": pod.index})
        said = connection.receive() or {}
        connection.close()
        addresses.append(str(said.get("address") or pod.name_of(index)))
        nodes.append(str(said.get("node") or pod.name_of(index)))
    return Met(addresses=tuple(addresses), nodes=tuple(nodes))


def dismiss(pod: Pod, met: Met, clock: Clock, *, patience_s: float = 0.0) -> None:
    """Let the other pods end in good order, so that how the job ended is what the first pod says.

    Args:
        pod: the first.
        met: all of them.
        clock: waits between two tries.
        patience_s: for one that does not answer at once: a job that has succeeded needs every pod's good end.
    """

    def dismiss_one(address: str) -> None:
        connection = patiently(address, pod.token, patience_s, clock)
        if connection is not None:
            connection.send({"over": True})
            connection.receive()
            connection.close()

    with ThreadPoolExecutor(_AT_ONCE) as threads:  # one that is gone without a word is waited for
        list(threads.map(dismiss_one, met.addresses[1:]))


@final
class PodHosts:
    """Where the agents run: the first pod's here, the others' behind a process that stands for each.

    Args:
        met: the pods.
        secrets: where the job's Secret is mounted.
    """

    are_here = False

    def __init__(self, met: Met, secrets: Path) -> None:
        self._met = met
        self._secrets = secrets

    @property
    def addresses(self) -> Sequence[str]:
        """Of the pods, in their order."""
        return self._met.addresses

    def command(self, node: int, command: list[str]) -> list[str]:
        """The command itself in the first pod; else the process that has another pod run the same module."""
        if node == 0:
            return command
        module = command[command.index("-m") + 1 :]
        address = self._met.addresses[node]
        return process.python_module("trainworks.backends.kubernetes.call", str(self._secrets), address, *module)

    def ask_to_stop(self, agents: Iterable[process.Child]) -> None:
        """SIGTERM, which travels."""
        for agent in agents:
            agent.signal_group(signal.SIGTERM)
