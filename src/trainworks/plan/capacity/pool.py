"""Nodes of one class and what is free on them.

A job that needs less than a node shares one with others: it goes where the fewest accelerators stay free (best fit).
A larger job takes whole nodes, the last one too if it fills a part of it only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

__all__ = ["Need", "Pool", "need_of"]

Need = tuple[int, int]
"""Nodes, and accelerators on each of them."""


def need_of(accelerators: int, node_accelerators: int) -> Need:
    """Nodes and accelerators of each that a job takes.

    >>> need_of(4, 8), need_of(12, 8)
    ((1, 4), (2, 8))
    """
    if accelerators < node_accelerators:
        return 1, accelerators
    return -(-accelerators // node_accelerators), node_accelerators


class Pool:
    """Free accelerators by node, and nodes by free accelerators."""

    def __init__(self, node_accelerators: int, nodes: Iterable[int] = ()) -> None:
        self.node_accelerators = node_accelerators
        self.free: dict[int, int] = {}
        self.free_accelerators = 0
        self._nodes_by_free: list[dict[int, None]] = [{} for _ in range(node_accelerators + 1)]
        for node in nodes:
            self.add(node)

    def add(self, node: int) -> None:
        """An empty node joins."""
        self.free[node] = self.node_accelerators
        self.free_accelerators += self.node_accelerators
        self._nodes_by_free[self.node_accelerators][node] = None

    def remove(self, node: int) -> None:
        """An empty node leaves."""
        del self._nodes_by_free[self.free.pop(node)][node]
        self.free_accelerators -= self.node_accelerators

    @property
    def num_empty(self) -> int:
        """Nodes without any job."""
        return len(self._nodes_by_free[self.node_accelerators])

    def is_empty(self, node: int) -> bool:
        """True if the node is here and has no job."""
        return self.free.get(node) == self.node_accelerators

    def find(self, need: Need, avoid: Collection[int] = ()) -> list[int]:
        """Nodes that a job could have now, none of those to avoid; an empty list if there are not enough."""
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
        """A job begins on nodes that `find` named."""
        self._change(nodes, -each)

    def give_back(self, nodes: Iterable[int], each: int) -> None:
        """A job has left."""
        self._change(nodes, each)

    def _change(self, nodes: Iterable[int], accelerators: int) -> None:
        for node in nodes:
            before = self.free[node]
            del self._nodes_by_free[before][node]
            self.free[node] = before + accelerators
            self._nodes_by_free[before + accelerators][node] = None
            self.free_accelerators += accelerators

    def reservation(self, need: Need, ends: Iterable[tuple[float, Iterable[int], int]]) -> tuple[float, set[int]]:
        """Latest start of a job if nothing else started, and its nodes then.

        If more nodes become free than the job needs, it gets the latest; backfill can use the others.

        Args:
            need: of the job, which does not fit now and would fit into an empty pool.
            ends: end, nodes and accelerators per node of every running job.
        """
        count, each = need
        free = dict(self.free)
        ready = [node for node, accelerators in free.items() if accelerators >= each]
        for end_s, nodes, given in sorted(ends, key=lambda run: run[0]):
            for node in nodes:
                if free[node] < each <= free[node] + given:
                    ready.append(node)
                free[node] += given
            if len(ready) >= count:
                return end_s, set(ready[-count:])
        raise ValueError(f"{count} nodes do not fit into {len(free)}")
