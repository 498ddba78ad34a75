"""What node agents tell each other about silent ranks, through the rendezvous store.

Every node looks at one key, twice a second. Only while a rank is overdue does each hand over what it sees; the first
node, which serves the store anyway, reads that, judges, and tells the node of the culprit. A look of N nodes costs N
requests, and 3 N during a hang; if each asked for what all others see, it would be their square.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist

_JUDGE = 0


class StoreExchange:
    """One node's part in it; `node` is its number, and 0 judges.

    While the store is unreachable, which the rendezvous detects, nothing is asked and nothing is told.
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
        if self._node == _JUDGE:
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
            if self._node == _JUDGE and self._store.check(keys):
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
