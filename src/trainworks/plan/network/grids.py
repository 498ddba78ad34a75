"""Networks without switches: nodes in a ring or a torus, joined NIC to NIC.

Symbols: k_i nodes along axis i, D axes longer than one node, c = floor(NICs / 2 D) cables to each neighbour.

    cables      c D N, with the ones that close each ring
    bisection   2 c N / k for the longest k: the cut crosses each of its rings twice
    hops        the sum of floor(k_i / 2) NICs passed

An axis of two nodes has both its cables between the same two.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import isqrt, prod

_MOST_AXES = 3


@dataclass(frozen=True, slots=True)
class GridNetwork:
    """Nodes in a torus; in a ring where it has one axis."""

    sides: tuple[int, ...]
    """k_i, longest first, each more than one node."""
    parallel: int
    """c, cables between neighbours in each direction."""

    @property
    def nodes(self) -> int:
        """Number of all nodes."""
        return prod(self.sides)

    @property
    def used_nics(self) -> int:
        """NICs in use of each node: 2 c D."""
        return 2 * self.parallel * len(self.sides)

    @property
    def cables(self) -> int:
        """Cables between nodes."""
        return self.parallel * len(self.sides) * self.nodes

    @property
    def bisection_links(self) -> int:
        """Across the middle of the longest axis."""
        return 2 * self.parallel * self.nodes // self.sides[0]

    @property
    def hops(self) -> int:
        """Hops to the farthest node."""
        return sum(side // 2 for side in self.sides)

    @property
    def ring_steps(self) -> int:
        """Steps around all axes: k_i - 1 for each."""
        return sum(side - 1 for side in self.sides)


def grid(nodes: int, nics: int, *, axes: int = _MOST_AXES) -> GridNetwork | None:
    """The most cubic torus of at most that many axes that the NICs allow; None with less than two nodes or NICs.

    >>> grid(64, 6).sides, grid(64, 4).sides, grid(64, 2).sides
    ((4, 4, 4), (8, 8), (64,))
    """
    sides = _sides(nodes, min(axes, nics // 2)) if nodes > 1 and nics > 1 else ()
    return GridNetwork(sides, nics // (2 * len(sides))) if sides else None


def _sides(nodes: int, axes: int) -> tuple[int, ...]:
    """Factors of the nodes whose longest is shortest."""
    low = [value for value in range(1, isqrt(nodes) + 1) if nodes % value == 0]
    divisors = sorted({*low, *(nodes // value for value in low)})
    sides = [(*short, nodes // prod(short)) for short in product(divisors, repeat=axes - 1) if nodes % prod(short) == 0]
    shapes = [tuple(sorted((side for side in shape if side > 1), reverse=True)) for shape in sides]
    return min(shapes, key=lambda shape: (shape[0], shape))
