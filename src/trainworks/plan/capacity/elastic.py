"""A pool whose nodes are ordered, billed, and given back or taken back."""

from __future__ import annotations

from trainworks.plan.capacity.policy import Elastic
from trainworks.queueing.node_pool import NodePool, PoolNeed


class ElasticPool(NodePool):
    """Nodes that come and go. Jobs can be assigned to an ordered node before it is ready."""

    def __init__(self, node_accelerators: int, terms: Elastic) -> None:
        super().__init__(node_accelerators)
        self.terms = terms
        self.paid_s = 0.0
        """Paid time of all nodes that have left."""
        self.most_nodes = 0
        self.ready_s: dict[int, float] = {}
        self._ordered_s: dict[int, float] = {}
        self._idle_since_s: dict[int, float] = {}
        self._num_ordered = 0

    @property
    def room(self) -> int:
        """Nodes that can still be ordered."""
        return self.terms.max_nodes - len(self.free)

    def missing(self, need: PoolNeed) -> int:
        """Nodes to order for a job that `find` has no place for."""
        count, each = need
        return count - self.num_empty if each == self.node_accelerators else 1

    def order(self, count: int, now_s: float) -> list[int]:
        """New nodes, paid from now on."""
        nodes = list(range(self._num_ordered, self._num_ordered + count))
        self._num_ordered += count
        for node in nodes:
            self.add(node)
            self._ordered_s[node] = now_s
            self.ready_s[node] = now_s + self.terms.start_latency_s
        self.most_nodes = max(self.most_nodes, len(self.free))
        return nodes

    def idle_until_s(self, node: int, now_s: float) -> float:
        """Time at which a node that became empty now is returned if no job takes it."""
        self._idle_since_s[node] = now_s
        return max(now_s + self.terms.idle_timeout_s, self._ordered_s[node] + self.terms.min_billing_s)

    def is_idle_since(self, node: int, since_s: float) -> bool:
        """True if the node is still here and has been empty since then."""
        return self.is_empty(node) and self._idle_since_s[node] == since_s

    def leave(self, node: int, now_s: float) -> None:
        """An empty node is given back or taken back, and its bill is paid."""
        self.paid_s += max(now_s - self._ordered_s.pop(node), self.terms.min_billing_s)
        self.remove(node)
        del self.ready_s[node]
        self._idle_since_s.pop(node, None)
