"""Networks of groups that are all connected to each other: dragonfly and dragonfly+.

Symbols: R ports of a switch, p endpoints of a switch that has any, a switches of a group that have endpoints, s spines
of a group, h links to other groups of each switch that has them, g groups.

    dragonfly    all a switches of a group are connected: p = h = floor((R + 1) / 4), a = 2 p, a h links leave a group
    dragonfly+   a leaves and s = a spines, each pair connected: a = s = p = h = R / 2, s h links leave a group

As many links as fit evenly join each pair of groups, H = floor(a h / (g - 1)), so that g - 1 <= a h. With a taper t,
only a p / t links leave a group. Sources: Kim et al. 2008 (balance a = 2 p = 2 h), Shpiner et al. 2017 (dragonfly+).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupNetwork:
    """Equal groups of switches."""

    ports: int
    """R, of a switch."""
    count: int
    """g, at least two."""
    members: int
    """a, switches of a group that have endpoints."""
    down: int
    """p, endpoints of each of them."""
    spines: int
    """s, of a group; 0 in a dragonfly."""
    pair_links: int
    """H, between each pair of groups."""

    @property
    def group_endpoints(self) -> int:
        """Endpoints that a group holds."""
        return self.members * self.down

    @property
    def local_links(self) -> int:
        """Links between switches of the same group, in all groups: a s, or a (a - 1) / 2 without spines."""
        each = self.members * self.spines if self.spines else self.members * (self.members - 1) // 2
        return self.count * each

    @property
    def global_links(self) -> int:
        """Links between groups: H g (g - 1) / 2."""
        return self.pair_links * self.count * (self.count - 1) // 2

    @property
    def hops(self) -> int:
        """Switches on the longest of the shortest paths: two in each of two groups."""
        return 4


def _sizes(ports: int, *, plus: bool, taper: float) -> tuple[int, int, int, int]:
    """p, a, s and the links that leave a group."""
    half = ports // 2
    down = half if plus else (ports + 1) // 4
    members, spines = (half, half) if plus else (2 * down, 0)
    return down, members, spines, int(members * down / taper + 1e-9)


def most_groups(ports: int, *, plus: bool, taper: float) -> tuple[int, int]:
    """The largest g, and the endpoints of a group.

    >>> most_groups(64, plus=False, taper=1.0)
    (513, 512)
    """
    down, members, _, leaving = _sizes(ports, plus=plus, taper=taper)
    return leaving + 1, members * down


def groups(ports: int, endpoints: int, *, plus: bool, taper: float) -> GroupNetwork | None:
    """The fewest groups that hold the endpoints; None where one would do, or where there cannot be so many."""
    down, members, spines, leaving = _sizes(ports, plus=plus, taper=taper)
    count = -(-endpoints // (members * down)) if down else 0
    pair = leaving // (count - 1) if count > 1 else 0
    return GroupNetwork(ports, count, members, down, spines, pair) if pair else None
