"""Placement on equal nodes with one resource, in constant time: `placement.py` for the replay of long traces.

A job that needs less than a node shares one with others: it goes where the fewest accelerators stay free (best fit).
A larger job takes complete nodes, even if it fills only a part of the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from operator import itemgetter

from trainworks.queueing.backfill import earliest_fit

PoolNeed = tuple[int, int]
"""Nodes, and accelerators on each of them."""


def pool_need(accelerators: int, node_accelerators: int) -> PoolNeed:
    """Nodes that a job takes, and accelerators of each.

    >>> pool_need(4, 8), pool_need(12, 8)
    ((1, 4), (2, 8))
    """
    if accelerators < node_accelerators:
        return 1, accelerators
    return -(-accelerators // node_accelerators), node_accelerators


class NodePool:
    """Free accelerators by node, and nodes by free accelerators."""

    def __init__(self, node_accelerators: int, nodes: Iterable[int] = ()) -> None:
        self.node_accelerators = node_accelerators
        self.free: dict[int, int] = {}
        self.free_accelerators = 0
        self._nodes_by_free: list[dict[int, None]] = [{} for _ in range(node_accelerators + 1)]
        for node in nodes:
            self.add(node)

    def add(self, node: int) -> None:
        """Add an empty node."""
        self.free[node] = self.node_accelerators
        self.free_accelerators += self.node_accelerators
        self._nodes_by_free[self.node_accelerators][node] = None

    def remove(self, node: int) -> None:
        """Remove an empty node."""
        del self._nodes_by_free[self.free.pop(node)][node]
        self.free_accelerators -= self.node_accelerators

    @property
    def num_empty(self) -> int:
        """Number of nodes without a job."""
        return len(self._nodes_by_free[self.node_accelerators])

    def is_empty(self, node: int) -> bool:
        """True if the node is here and has no job."""
        return self.free.get(node) == self.node_accelerators

    def find(self, need: PoolNeed, avoid: Collection[int] = ()) -> list[int]:
        """Nodes for a job now, without those to avoid; empty if there are too few."""
        count, each = need
        if count * each > self.free_accelerators:
            return []
        for nodes in self._nodes_by_free[each:]:
            if len(nodes) >= count:
                chosen = list(islice((node for node in nodes if node not in avoid) if avoid else nodes, count))
                if len(chosen) == count:
                    return chosen
        return []

    def take(self, nodes: Iterable[int], each: int) -> None:
        """Start a job on nodes from `find`."""
        self._change(nodes, -each)

    def give_back(self, nodes: Iterable[int], each: int) -> None:
        """Free the nodes of a job."""
        self._change(nodes, each)

    def _change(self, nodes: Iterable[int], accelerators: int) -> None:
        for node in nodes:
            before = self.free[node]
            del self._nodes_by_free[before][node]
            self.free[node] = before + accelerators
            self._nodes_by_free[before + accelerators][node] = None
            self.free_accelerators += accelerators

    def reservation(self, need: PoolNeed, ends: Iterable[tuple[float, Iterable[int], int]]) -> tuple[float, set[int]]:
        """Latest start of a job if nothing else started, and its nodes then.

        If more nodes become free than the job needs, it gets the latest, and of those that are free now the ones that
        `find` takes first: a short job starts on these, and backfill can use the others. The job does not fit now, and
        would fit into an empty pool. `ends` has end, nodes and accelerators per node of every running job.
        """
        count, each = need
        free = dict(self.free)
        ready = [node for nodes in self._nodes_by_free[each:] for node in nodes][::-1]

        def release(run: tuple[float, Iterable[int], int]) -> None:
            for node in run[1]:
                if free[node] < each <= free[node] + run[2]:
                    ready.append(node)
                free[node] += run[2]

        earliest = earliest_fit(
            ends, end=itemgetter(0), release=release, fit=lambda: ready[-count:] if len(ready) >= count else []
        )
        if earliest is None:
            raise ValueError(f"{count} nodes do not fit into {len(free)}")
        return earliest[0], set(earliest[1])
