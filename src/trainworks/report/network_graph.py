"""What a drawing of a network shows: boxes in rows, and bundles of cables between them.

Up to 32 nodes, and up to 16 switches of a tier, are boxes of their own. More are put together in 4 to 8 boxes of
neighbours, a whole number of sets or groups each where these can be shared out evenly, and a line between two boxes
stands for all cables between their devices.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainworks.plan.network.cables import Cable, cable_plan
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.groups import GroupNetwork
from trainworks.plan.network.support import SupportNetworks

_MOST_NODES, _MOST_SWITCHES = 32, 16
_BOXES = (8, 7, 6, 5, 4)
_ROWS = ("core", "spine", "leaf", "switch", "node", "storage", "storage spine")
_DEVICE = re.compile(r"(?:(?P<part>group|rail|plane)(?P<which>\d+)-)?(?P<tier>[a-z]+)(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Box:
    """One device, or several neighbours of a tier."""

    row: str
    index: int
    """Position from left to right, from 0."""
    devices: int
    label: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """All links between two boxes."""

    start: Box
    end: Box
    links: int
    rail: int | None = None
    """Where all of them are of one rail, or of one switch of a star."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Rows from top to bottom and what joins them."""

    rows: dict[str, list[Box]]
    bundles: list[Bundle]
    inside: dict[str, int]
    """Links of a row that join devices in the same box."""


def network_graph(design: NetworkDesign, support: SupportNetworks) -> Graph:
    """The compute fabric and the storage network; every node is on the management network, which needs no lines."""
    links = [*_compute_links(design), *_storage_links(design, support)]
    devices = _devices(link[:2] for link in links)
    boxes = {row: _boxes(row, names, design) for row, names in sorted(devices.items(), key=_row_order)}
    box_of = {name: box for row in boxes for name, box in zip(devices[row], _spread(boxes[row]), strict=True)}
    joined: Counter[tuple[Box, Box]] = Counter()
    rails: defaultdict[tuple[Box, Box], set[int | None]] = defaultdict(set)
    inside: Counter[str] = Counter()
    for start, end, rail in links:
        pair = box_of[start], box_of[end]
        if pair[0] == pair[1]:
            inside[pair[0].row] += 1
        else:
            joined[pair] += 1
            rails[pair].add(rail)
    bundles = [Bundle(*pair, links, _one_rail(rails[pair], design)) for pair, links in joined.items()]
    return Graph(boxes, bundles, dict(inside))


def _one_rail(rails: set[int | None], design: NetworkDesign) -> int | None:
    """The rail of a line; of a star, whose switches have several, the first."""
    own = sorted(rail for rail in rails if rail is not None)
    return own[0] if len(own) == 1 or (own and design.topology == "star" and design.copies > 1) else None


def _spread(boxes: list[Box]) -> Iterator[Box]:
    for box in boxes:
        yield from [box] * box.devices


def _row_order(item: tuple[str, list[str]]) -> int:
    return _ROWS.index(item[0])


_Link = tuple[str, str, int | None]
"""Two devices, and the rail of their link where it has one."""


def _compute_links(design: NetworkDesign) -> Iterator[_Link]:
    for cable in cable_plan(design):
        if not cable.from_device.startswith("spare"):
            yield cable.from_device, cable.to_device, _rail(design, cable)


def _rail(design: NetworkDesign, cable: Cable) -> int | None:
    """Rail of a NIC's cable, where leaves are by rail."""
    by_rail = design.topology in ("star", "rail-optimised", "rail-only", "multi-plane")
    if not by_rail or not cable.from_device.startswith("node"):
        return None
    nic = int(cable.from_port.removeprefix("nic").partition("/")[0]) - 1
    return nic // (design.nics // design.rails)


def _storage_links(design: NetworkDesign, support: SupportNetworks) -> Iterator[_Link]:
    leaves, spines = int(support.storage_leaves.value), int(support.storage_spines.value)
    pairs = leaves // 2
    for node in range(design.nodes):
        pair = node * pairs // design.nodes
        yield from ((f"node{node + 1}", f"storage{2 * pair + side + 1}", None) for side in range(2))
    for leaf in range(leaves if spines else 0):
        yield from ((f"storage{leaf + 1}", f"storagespine{link % spines + 1}", None) for link in range(16))


def _devices(pairs: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    """Names of each row, in order."""
    rows: defaultdict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        for name in pair:
            tier = _parts(name)[0]
            rows["storage spine" if tier == "storagespine" else tier].add(name)
    return {row: sorted(names, key=lambda name: _parts(name)[1:]) for row, names in rows.items()}


def _parts(name: str) -> tuple[str, int, int]:
    match = _DEVICE.fullmatch(name)
    assert match is not None
    return match["tier"], int(match["which"] or 0), int(match["number"])


def _boxes(row: str, names: list[str], design: NetworkDesign) -> list[Box]:
    size = _size(row, len(names), design)
    starts = range(0, len(names), size)
    return [
        Box(row, index, len(names[start : start + size]), _label(row, names[start : start + size], design))
        for index, start in enumerate(starts)
    ]


def _size(row: str, count: int, design: NetworkDesign) -> int:
    """Devices in a box."""
    if count <= {"node": _MOST_NODES, "storage spine": _BOXES[0]}.get(row, _MOST_SWITCHES):
        return 1
    if row.startswith("storage"):
        return -(-count // _BOXES[0])
    fabric = design.fabric
    if isinstance(fabric, GroupNetwork) and row in ("node", "leaf", "switch", "spine"):
        together = -(-fabric.count // _BOXES[0])
        return -(-fabric.group_endpoints // design.nics) * together if row == "node" else together * fabric.members
    units = design.sets if design.sets > 1 else count
    boxes = next((number for number in _BOXES if units % number == 0), _BOXES[0])
    return -(-count // boxes)


def _label(row: str, names: list[str], design: NetworkDesign) -> str:
    if len(names) > 1:
        noun = {"node": "nodes", "switch": "switches", "storage": "leaf"}.get(row, row.removeprefix("storage "))
        return f"{len(names):,} {noun}"
    _, part, number = _parts(names[0])
    if design.topology == "rail-optimised" and row == "leaf":
        return f"{number}, rail {(number - 1) % design.rails + 1}"
    if design.topology == "star" and row == "switch" and design.copies > 1:
        together = -(-design.rails // design.copies)
        first, last = (number - 1) * together + 1, min(number * together, design.rails)
        return f"{number}, rail {first}" if first == last else f"{number}, rails {first} to {last}"
    return f"{part}.{number}" if part else f"{number}"
