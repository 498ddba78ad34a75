"""Fat trees: how many switches of each tier, and how many links between the tiers.

Symbols: R ports of a switch, L leaves, d links down from the fullest leaf, u links up from each, t = d / u the taper,
P pods, s spines of a pod, C cores that one place in the pods shares.

    star       L = 1, u = 0
    two tiers  s = the smallest divisor of u with s >= L u / R, so that every leaf has u / s links to every spine
    three      pods of m = ceil(L / P) leaves, the last of what is left; s = the smallest divisor of u with
               m u / s <= R / 2 links down from a spine, and as many up; C = ceil(L u / (s R)); P s spines, s C cores.
               A spine's links to its C cores may differ by one

Leaves that are not full may have more links up than they need: among u with d / u <= t the one with the fewest switches
is taken, then the one with the fewest links. Source of the divisor rule: NVIDIA's reference designs, which it
reproduces (16 -> 18 and 32 -> 36 spines at u = 72).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class TreeNetwork:
    """One fat tree of equal switches."""

    ports: int
    """R, of a switch."""
    leaves: int
    """L"""
    down: int
    """d, links to endpoints of the fullest leaf."""
    up: int = 0
    """u, links to spines of each leaf; 0 in a star."""
    pods: int = 1
    """P; 1 without cores."""
    pod_spines: int = 0
    """s"""
    place_cores: int = 0
    """C; spines with the same place in their pods share them; 0 where there are two tiers."""

    @property
    def spines(self) -> int:
        """Spines of all pods."""
        return self.pods * self.pod_spines

    @property
    def cores(self) -> int:
        """Cores of all places."""
        return self.pod_spines * self.place_cores

    @property
    def switches(self) -> int:
        """Switches of all tiers."""
        return self.leaves + self.spines + self.cores

    @property
    def leaf_spine_links(self) -> int:
        """L u."""
        return self.leaves * self.up

    @property
    def pod_leaves(self) -> int:
        """m, leaves of each pod; the last may have fewer."""
        return -(-self.leaves // self.pods)

    def spine_up(self, pod: int) -> int:
        """Links to cores of each spine of a pod, counted from 0: as many as it has to leaves."""
        leaves = min(self.pod_leaves, self.leaves - pod * self.pod_leaves)
        return leaves * self.up // self.pod_spines if self.cores else 0

    @property
    def hops(self) -> int:
        """Switches on the longest path: leaf, spine, core, spine, leaf."""
        return 5 if self.cores else 3 if self.up else 1


def leaf_ports(ports: int, taper: float) -> tuple[int, int]:
    """Ports down and up of a full leaf: the most down that are at most t times those up.

    No port up is left where the taper is larger than R - 1.

    >>> leaf_ports(64, 1.0), leaf_ports(64, 2.0), leaf_ports(80, 44 / 36)
    ((32, 32), (42, 21), (44, 36))
    """
    fewest = int(ports / (1.0 + taper) + 1e-9)
    down, up = max((min(int(taper * up + 1e-9), ports - up), -up) for up in (fewest, fewest + 1))
    return (down, -up) if fewest else (0, 0)


def most_leaves(ports: int, tiers: int) -> int:
    """The largest L: R with two tiers, R pods of R / 2 leaves with three."""
    return {1: 1, 2: ports, 3: ports * (ports // 2)}[tiers]


@cache
def smallest_divisor(number: int, least: int) -> int | None:
    """The smallest divisor of `number` that is at least `least`; None where that is more than the number.

    >>> smallest_divisor(72, 16), smallest_divisor(32, 12)
    (18, 16)
    """
    return next((value for value in range(max(1, least), number + 1) if number % value == 0), None)


def star(ports: int, endpoints: int) -> TreeNetwork:
    """One switch."""
    return TreeNetwork(ports=ports, leaves=1, down=endpoints)


def tree(
    ports: int, leaves: int, down: int, *, taper: float, tiers: int, pod_leaves: int | None = None
) -> TreeNetwork | None:
    """The tree of two or three tiers with the fewest switches, then links, then pods; None where none is possible.

    Args:
        ports: R.
        leaves: L.
        down: d, of the fullest leaf.
        taper: t, at most.
        tiers: 2 or 3.
        pod_leaves: of three tiers, the leaves of a pod, which then have as many links up as they need; the pods with
            the fewest switches when left out.
    """
    fewest_up = max(1, math.ceil(down / taper - 1e-9))
    if tiers == 3 and pod_leaves is not None:
        trees = list(_three_tiers(ports, leaves, down, fewest_up, [pod_leaves]))
    else:
        build = _two_tiers if tiers == 2 else _three_tiers
        trees = [built for up in range(fewest_up, ports - down + 1) for built in build(ports, leaves, down, up)]
    return min(trees, key=lambda each: (each.switches, each.leaf_spine_links, each.pods), default=None)


def _two_tiers(ports: int, leaves: int, down: int, up: int) -> Iterator[TreeNetwork]:
    spines = smallest_divisor(up, -(-leaves * up // ports))
    if spines is not None:
        yield TreeNetwork(ports=ports, leaves=leaves, down=down, up=up, pod_spines=spines)


def _three_tiers(
    ports: int, leaves: int, down: int, up: int, sizes: Iterable[int] | None = None
) -> Iterator[TreeNetwork]:
    half = ports // 2
    for size in sizes or range(1, min(half, leaves) + 1):
        pods = -(-leaves // size)
        spines = smallest_divisor(up, -(-size * up // half))
        if spines is None or pods < 2 or size > -(-leaves // pods):
            continue
        cores = -(-leaves * up // (spines * ports))
        if cores <= size * up // spines:
            yield TreeNetwork(ports, leaves, down, up, pods, spines, cores)
