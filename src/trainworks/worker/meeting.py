"""Where the node agents of a job meet: a rendezvous of torch's elastic agent for nodes that are known and numbered."""

from __future__ import annotations

from typing import final

import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from trainworks.host.clock import Clock, SystemClock

_FIRST = 0
_JOIN_S = 600.0
"""Longest time for which a node waits for the others."""
_LOOKS_PER_S = 100
"""Looks into the store by all nodes together while they wait for each other; a node looks once a second at least."""
_QUESTIONS_PER_S = 1000
"""The same while their ranks run."""


@final
class KnownNodes(RendezvousHandler):
    """Meets the agents of all nodes, anew after each failure; `node` is the number of this one, reached at `address`.

    torch's own handler keeps all nodes in one value of the store. Each of them replaces it as a whole to join, and as a
    sign of life. Here each node sets a key of its own, and the first one, which serves the store, says when all are
    there. A node that comes anew opens the next round, which the others see.
    """

    def __init__(
        self, run_id: str, store: dist.Store, node: int, nodes: int, address: str, *, clock: Clock | None = None
    ) -> None:
        self._run_id = run_id
        self._store = dist.PrefixStore(f"meeting/{run_id}", store)
        self._node = node
        self._nodes = nodes
        self._address = address
        self._clock = clock or SystemClock()
        self._met = 0
        self._asked_at = 0.0

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all nodes; the rank of each is its number.

        Raises:
            RendezvousTimeoutError: one has not come within ten minutes.
        """
        meeting = self._open()
        self._store.set(f"{meeting}/{self._node}", "")
        pause_s = min(1.0, self._nodes / _LOOKS_PER_S)
        deadline = self._clock.now() + _JOIN_S
        while not self._is_complete(meeting):
            if self._clock.now() > deadline:
                raise RendezvousTimeoutError
            self._clock.sleep(pause_s)
        self._met = meeting
        store = dist.PrefixStore(f"round/{meeting}", self._store)
        ranks = RendezvousStoreInfo.build(self._node, store, self._address)
        return RendezvousInfo(store, self._node, self._nodes, ranks)

    def num_nodes_waiting(self) -> int:
        """Whether a node waits for this one to meet again."""
        now = self._clock.now()
        if now - self._asked_at < self._nodes / _QUESTIONS_PER_S:
            return 0
        self._asked_at = now
        return int(int(self._store.get("round")) > self._met)

    def get_backend(self) -> str:
        """Name for logs."""
        return "known-nodes"

    def get_run_id(self) -> str:
        """The run."""
        return self._run_id

    def is_closed(self) -> bool:
        """False: the supervisor ends agents."""
        return False

    def set_closed(self) -> None:
        """Nothing; see `is_closed`."""

    def shutdown(self) -> bool:
        """Nothing is open."""
        return True

    def _open(self) -> int:
        """The round that this node joins: the next one, if it has met in this one or comes after it."""
        latest = int(self._store.compare_set("round", "", "1"))
        if latest == self._met or self._store.check([f"{latest}/all"]):
            latest = int(self._store.compare_set("round", str(latest), str(latest + 1)))
        return latest

    def _is_complete(self, meeting: int) -> bool:
        if self._node != _FIRST:
            return bool(self._store.check([f"{meeting}/all"]))
        if not self._store.check([f"{meeting}/{node}" for node in range(self._nodes)]):
            return False
        self._store.set(f"{meeting}/all", "")
        return True
