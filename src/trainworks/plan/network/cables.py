"""Cable plan: the two device ports each cable joins, each port used once.

Links to endpoints take a switch's ports from the first on, links to the tier above from the last on. A split port is
`12/2`, its second link. The rows of one cable between switches that carries several links have the same number; so have
those of a NIC that is split over planes.

Racks form one row, 0.6 m wide; the switches of a set are in the middle of its nodes, spines and cores in the middle of
all. A cable takes 2 m at each end.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import combinations
from math import prod

from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.grids import GridNetwork
from trainworks.plan.network.groups import GroupNetwork
from trainworks.plan.network.trees import TreeNetwork

_LENGTHS_M = (1, 2, 3, 5, 10, 15, 20, 30, 50, 100, 150, 300, 500)
_RACK_M, _ENDS_M = 0.6, 4.0


@dataclass(frozen=True, slots=True)
class Cable:
    """One link."""

    tier: str
    """Tier as in `NetworkDesign.cables`."""
    cable: int
    """Number of the cable within its tier, from 1 on."""
    from_device: str
    from_port: str
    to_device: str
    to_port: str
    length_m: int | None
    """Next length that is sold; None without a rack layout."""


@dataclass(frozen=True, slots=True)
class _End:
    device: str
    port: str
    place: float
    """Node whose rack holds the device."""


class _Ports:
    def __init__(self, count: int, split: int) -> None:
        self._count, self._split = count, split
        self._first: Counter[str] = Counter()
        self._last: Counter[str] = Counter()

    def first(self, device: str, place: float) -> _End:
        self._first[device] += 1
        return self._end(device, self._first[device] - 1, place)

    def last(self, device: str, place: float) -> _End:
        self._last[device] += 1
        return self._end(device, self._count - self._last[device], place)

    def _end(self, device: str, index: int, place: float) -> _End:
        port, link = divmod(index, self._split)
        return _End(device, f"{port + 1}/{link + 1}" if self._split > 1 else f"{port + 1}", place)


_Link = tuple[str, int, _End, _End]
"""Tier, number of the cable, and both ends."""


def cable_plan(design: NetworkDesign, *, nodes_per_rack: int | None = None) -> Iterator[Cable]:
    """Every link of the network.

    Args:
        design: the network.
        nodes_per_rack: to say how long cables are.
    """
    fabric = design.fabric
    if isinstance(fabric, GridNetwork):
        links = _grid_links(fabric)
    elif isinstance(fabric, GroupNetwork):
        links = _group_links(design, fabric)
    else:
        links = _tree_links(design, fabric)
    for tier, number, start, end in links:
        length = None
        if nodes_per_rack is not None:
            racks = abs(int(start.place) // nodes_per_rack - int(end.place) // nodes_per_rack)
            needed = _ENDS_M + racks * _RACK_M if racks else _ENDS_M / 2
            length = next((length for length in _LENGTHS_M if length >= needed), _LENGTHS_M[-1])
        yield Cable(tier, number + 1, start.device, start.port, end.device, end.port, length)


def nodes_by_leaf(design: NetworkDesign) -> list[list[int]]:
    """Indices of the nodes by the leaf of their first NIC, as `cable_plan` attaches it; all together without leaves."""
    fabric = design.fabric
    found: dict[tuple[int, int], list[int]] = {}
    for node in range(design.nodes):
        if isinstance(fabric, TreeNetwork):
            leaf = next(_attached(design, fabric, node, 0))
        else:
            leaf = (0, node * design.nics // fabric.down if isinstance(fabric, GroupNetwork) else 0)
        found.setdefault(leaf, []).append(node)
    return list(found.values())


def cables_as_csv(design: NetworkDesign, *, nodes_per_rack: int | None = None) -> str:
    """The cable plan as a table with a head."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Cable)]
    table.writerow(names)
    table.writerows([getattr(row, name) for name in names] for row in cable_plan(design, nodes_per_rack=nodes_per_rack))
    return text.getvalue()


def _slots(design: NetworkDesign) -> Iterator[tuple[int, int, str]]:
    """Place, NIC and device of everything that has one."""
    for node in range(design.nodes):
        yield from ((node, nic, f"node{node + 1}") for nic in range(design.nics))
    each = design.spare_cables // max(1, design.spare_slots)
    for spare in range(design.spare_slots):
        yield from ((design.nodes + spare, nic, f"spare{spare + 1}") for nic in range(each))


# Fat trees


def _tree_links(design: NetworkDesign, fabric: TreeNetwork) -> Iterator[_Link]:
    ports = _Ports(fabric.ports, design.split)
    tier = "node-leaf" if fabric.up else "node-switch"
    for number, (slot, nic, device) in enumerate(_slots(design)):
        for plane, (copy, leaf) in enumerate(_attached(design, fabric, slot, nic)):
            nic_port = f"nic{nic + 1}" + (f"/{plane + 1}" if design.planes > 1 else "")
            name = _name(design, copy, "leaf" if fabric.up else "switch", leaf)
            yield tier, number, _End(device, nic_port, slot), ports.first(name, _leaf_place(design, leaf))
    for copy in range(design.copies):
        yield from _up_links(design, fabric, copy, ports)


def _attached(design: NetworkDesign, fabric: TreeNetwork, slot: int, nic: int) -> Iterator[tuple[int, int]]:
    """Copies of the network and their leaves that a NIC is joined to."""
    rail = nic // (design.nics // design.rails)
    slots = design.nodes_per_set
    if design.topology == "star":
        yield rail // -(-design.rails // design.copies), 0
    elif design.topology == "rail-only":
        yield rail, slot // slots
    elif design.topology in ("rail-optimised", "multi-plane"):
        yield from ((plane, design.leaf_of(slot // slots, rail)) for plane in range(design.planes))
    else:
        yield 0, (slot * design.nics + nic) // fabric.down


def _leaf_place(design: NetworkDesign, leaf: int) -> float:
    """The node in the middle of those that a leaf serves."""
    which = design.set_and_rail(leaf)[0] if design.topology in ("rail-optimised", "multi-plane") else leaf
    if design.set_nodes:
        return min((which + 0.5) * design.nodes_per_set, design.nodes)
    return (which + 0.5) * design.nodes / max(1, design.sets)


def _up_links(design: NetworkDesign, fabric: TreeNetwork, copy: int, ports: _Ports) -> Iterator[_Link]:
    split, middle = design.split, design.nodes / 2
    cables = -(-fabric.up // split)
    for leaf in range(fabric.leaves if fabric.up else 0):
        pod, first = leaf // fabric.pod_leaves, (copy * fabric.leaves + leaf) * cables
        name, place = _name(design, copy, "leaf", leaf), _leaf_place(design, leaf)
        for link in range(fabric.up):
            spine = pod * fabric.pod_spines + link // (fabric.up // fabric.pod_spines)
            end = ports.first(_name(design, copy, "spine", spine), middle)
            yield "leaf-spine", first + link // split, ports.last(name, place), end
    first = copy * design.cables.get("spine-core", 0) // design.copies
    for spine in range(fabric.spines if fabric.cores else 0):
        pod, place_in_pod = divmod(spine, fabric.pod_spines)
        links = fabric.spine_up(pod)
        for link in range(links):
            core = place_in_pod * fabric.place_cores + (pod * fabric.spine_up(0) + link) % fabric.place_cores
            start = ports.last(_name(design, copy, "spine", spine), middle)
            end = ports.first(_name(design, copy, "core", core), middle)
            yield "spine-core", first + link // split, start, end
        first += -(-links // split)


def _name(design: NetworkDesign, copy: int, tier: str, index: int) -> str:
    if design.topology == "star":
        return f"switch{copy + 1}"
    copies = {"rail-only": f"rail{copy + 1}-", "multi-plane": f"plane{copy + 1}-"}
    return f"{copies.get(design.topology, '')}{tier}{index + 1}"


# Groups


def _group_links(design: NetworkDesign, fabric: GroupNetwork) -> Iterator[_Link]:
    ports = _Ports(fabric.ports, design.split)
    tier, member = ("node-leaf", "leaf") if fabric.spines else ("node-switch", "switch")
    for number, (slot, nic, device) in enumerate(_slots(design)):
        switch = (slot * design.nics + nic) // fabric.down
        group, index = divmod(switch, fabric.members)
        name = f"group{group + 1}-{member}{index + 1}"
        yield tier, number, _End(device, f"nic{nic + 1}", slot), ports.first(name, _group_place(fabric, design, group))
    for number, (group, start, end) in enumerate(_local_pairs(fabric)):
        place = _group_place(fabric, design, group)
        yield "leaf-spine" if fabric.spines else "local", number, ports.first(start, place), ports.first(end, place)
    yield from _global_links(design, fabric, ports)


def _group_place(fabric: GroupNetwork, design: NetworkDesign, group: int) -> float:
    return (group + 0.5) * design.nodes / fabric.count


def _local_pairs(fabric: GroupNetwork) -> Iterator[tuple[int, str, str]]:
    for group in range(fabric.count):
        name = f"group{group + 1}"
        if fabric.spines:
            for leaf in range(fabric.members):
                yield from (
                    (group, f"{name}-leaf{leaf + 1}", f"{name}-spine{spine + 1}") for spine in range(fabric.spines)
                )
        else:
            for one, other in combinations(range(fabric.members), 2):
                yield group, f"{name}-switch{one + 1}", f"{name}-switch{other + 1}"


def _global_links(design: NetworkDesign, fabric: GroupNetwork, ports: _Ports) -> Iterator[_Link]:
    """Links of a group go out from its switches in turn."""
    leaving: Counter[int] = Counter()
    tier, count = ("spine", fabric.spines) if fabric.spines else ("switch", fabric.members)
    number = 0
    for pair in combinations(range(fabric.count), 2):
        for _ in range(fabric.pair_links):
            ends = []
            for group in pair:
                name = f"group{group + 1}-{tier}{leaving[group] % count + 1}"
                leaving[group] += 1
                ends.append(ports.last(name, _group_place(fabric, design, group)))
            yield "global", number, ends[0], ends[1]
            number += 1


# Grids


def _grid_links(fabric: GridNetwork) -> Iterator[_Link]:
    used: Counter[int] = Counter()
    number = 0
    for node in range(fabric.nodes):
        for axis, side in enumerate(fabric.sides):
            stride = prod(fabric.sides[axis + 1 :])
            place = node // stride % side
            following = node + ((place + 1) % side - place) * stride
            for _ in range(fabric.parallel):
                ends = []
                for each in (node, following):
                    used[each] += 1
                    ends.append(_End(f"node{each + 1}", f"nic{used[each]}", each))
                yield "node-node", number, ends[0], ends[1]
                number += 1
