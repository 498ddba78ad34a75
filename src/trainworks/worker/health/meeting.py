"""What the node agents of a job ask of the store on the first node: where they meet, and what they tell each other.

Both cost a few requests of each node, so that a thousand nodes need no other way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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


@final
class StoreExchange:
    """What nodes tell each other about silent ranks; `node` is the number of this one, and 0 judges.

    Every node looks at one key, twice a second. Only while a rank is overdue does each hand over what it sees; the
    first node reads that, judges, and tells the node of the culprit. A look of N nodes costs N requests, and 3 N during
    a hang; if each asked for what all others see, it would be their square.

    While the store is unreachable, which the rendezvous detects, no node asks or tells.
    """

    def __init__(self, store: dist.Store, node: int, nodes: int) -> None:
        self._store = store
        self._node = node
        self._nodes = nodes
        self._round = self._ask = ""
        self._is_open = False
        self._asked = 0

    def begin(self, group: str) -> None:
        """Start a new round: what was said of earlier ranks does not count."""
        self._round, self._ask, self._is_open = group, "", False
        if self._node == _FIRST:
            with _unless_unreachable():
                self._store.set(self._key("ask"), "")

    def is_asked(self, *, is_urgent: bool) -> bool:
        """Whether a rank of any node is overdue; `is_urgent` says that one of this node is."""
        with _unless_unreachable():
            self._is_open = self._is_open or self._store.check([self._key("ask")])
            if not self._is_open:
                return False
            self._ask = self._store.get(self._key("ask")).decode()
            if is_urgent and not self._ask:
                self._asked += 1
                self._ask = f"{self._node}.{self._asked}"
                self._store.set(self._key("ask"), self._ask)
            return bool(self._ask)
        return False

    def gather(self, own: str) -> list[str]:
        """Hand over this node's text. The node that judges gets those of all nodes, in their order, once all have come;
        the others get none.
        """
        with _unless_unreachable():
            self._store.set(self._key(f"seen/{self._node}"), f"{self._ask}\n{own}")
            keys = [self._key(f"seen/{node}") for node in range(self._nodes)]
            if self._node == _FIRST and self._store.check(keys):
                texts = [text.decode().partition("\n") for text in self._store.multi_get(keys)]
                return [text for ask, _, text in texts if ask == self._ask]
        return []

    def tell(self, node: int, verdict: str) -> None:
        """Tell a node that one of its ranks is the culprit."""
        with _unless_unreachable():
            self._store.set(self._key(f"verdict/{node}"), verdict)

    def told(self) -> str | None:
        """The verdict about a rank of this node, if there is one."""
        key = self._key(f"verdict/{self._node}")
        with _unless_unreachable():
            return self._store.get(key).decode() if self._store.check([key]) else None
        return None

    def rest(self) -> None:
        """No rank is overdue any more: the nodes stop handing over what they see."""
        with _unless_unreachable():
            self._store.set(self._key("ask"), "")

    def _key(self, name: str) -> str:
        return f"hang/{self._round}/{name}"


@contextlib.contextmanager
def _unless_unreachable() -> Iterator[None]:
    with contextlib.suppress(dist.DistError, RuntimeError):
        yield
