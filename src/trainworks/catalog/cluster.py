"""A cluster in one line of text, as in `cluster:` of a run file and in `--on`.

    4x p4d.24xlarge                               nodes or instances of the catalogue
    16 nodes of DGX H100
    4x GB200 NVL72, 4 racks of GB200 NVL72        systems of several nodes
    64x H100-SXM-80GB                             accelerators, in their reference nodes
    4 nodes of 8x A100-SXM-80GB over 8x HDR       accelerators and NICs of a node
    3 nodes of 8x H100 over 4x 200 Gb/s           a NIC without a name

    64张H800, 2台8卡H100, 1.6万张H800             the same with Chinese numbers and counters

The `x` behind a count may be left out. `over` may follow any of them and replaces the NICs of a node: a network without
a count (`over HDR`) is that of every NIC of the node; a bandwidth (`over 200 Gb/s`, `over 100GbE`) or TCP without a
count is that of the whole node. `with SHARP` counts on switches that reduce. `at 4:1`, or `4:1` alone, is the
oversubscription of the leaves: four links down for each link up.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from trainworks.catalog.catalog import (
    accelerator,
    explain_term,
    has,
    network_link,
    node,
    reference_node,
    system,
)
from trainworks.catalog.cluster_words import (
    AS_USUAL,
    COUNTED,
    COUNTERS,
    NIC_NOTE,
    UNNAMED,
    NodeFabric,
    Switching,
    check_network,
    is_bandwidth,
    name_of,
    nic_bytes_per_s,
    read_count,
    read_digits,
    unit_of,
    unreadable,
    without_switching,
)
from trainworks.catalog.facts import Accelerator, Node
from trainworks.catalog.names import without_remark
from trainworks.config.limits import check_limit
from trainworks.config.spec import Frozen
from trainworks.errors import UsageError
from trainworks.units import byte_rate_note, parse_bandwidth

_NODE_WORDS = ("node", "server", "machine", "host")
_LONGEST = 200
"""Longest description, in characters."""
_DEVICES = re.compile(r"(?:\s+(?:gpus?|cards?|accelerators?)|\s*(?:显卡|加速卡|卡))$", re.IGNORECASE)

_TEXT = re.compile(
    r"(?:(?P<count>\d[\d_]*)\s*(?:[x\u00d7]\s*|(?P<unit>nodes?|servers?|machines?|hosts?|racks?|pods?|systems?)\s+of\s+|"
    + "|".join(rf"(?P<{unit}>{pattern})的?\s*" for unit, pattern in COUNTERS.items())
    + r"|\s(?=[a-z])))?(?P<what>.+?)"
    r"(?:\s+over\s+(?P<over>.+?))?",
    re.IGNORECASE,
)


class ClusterDescription(Frozen):
    """Hardware of a cluster, as a planner needs it. Bandwidths are one direction."""

    name: str
    """The text it was read from, or one that describes it."""
    accelerator: Accelerator
    num_nodes: int
    accelerators_per_node: int
    scale_up_domain: int
    """Accelerators of this cluster that reach each other over the scale-up link."""
    scale_up_bytes_per_s: float
    """Into the scale-up domain, per accelerator; 0 where there is only PCIe."""
    node_bytes_per_s: float
    """Into the network, all NICs of a node together; 0 where one node needs none."""
    network: str
    in_network_reduction: bool = False
    """The plan may use switches that reduce (SHARP)."""
    oversubscription: float = 1.0
    """Links down to links up of the leaves."""
    spread_share: float = 1.0
    """Part of its NICs that each node has while ranks are spread over all leaves: one part in the oversubscription, or
    that of a designed network."""
    scale_up_reduction: bool = False
    """The scale-up switches reduce (NVLS)."""
    nics: int = 0
    node: Node | None = None
    """One node of it, with the NICs of `fabric`; None for a cluster that was not read from a description."""
    node_name: str = ""
    """One node in a description, without its network: `DGX H100`, `8x A100-SXM-80GB`."""
    fabric: NodeFabric | None = None
    """The NICs that replace those of the catalogue's node; None where the node keeps its own."""
    topology: str = "auto"
    switch: str | None = None
    spare_slots: int = 0
    """With the two above, what a stack file says of its network, and words leave open."""
    notes: tuple[str, ...] = ()
    """Each assumption and each capped bandwidth, in a sentence."""

    @property
    def num_accelerators(self) -> int:
        """Number of accelerators in all nodes."""
        return self.num_nodes * self.accelerators_per_node

    def with_nodes(self, num_nodes: int) -> ClusterDescription:
        """The same cluster with another number of nodes.

        Raises:
            UsageError: more accelerators than the limit, or several nodes and no bandwidth between them is known.

        >>> racks = parse_cluster("GB200 NVL72").with_nodes(2)
        >>> racks.name, racks.num_accelerators, racks.scale_up_domain
        ('2 nodes of GB200 NVL72 tray', 8, 8)
        """
        name = name_of(num_nodes, self.node_name, self.fabric, self._switching)
        accelerators = check_limit("accelerators", num_nodes * self.accelerators_per_node)
        if self.node is None:
            return self.model_copy(update={"num_nodes": num_nodes})
        check_network(name, num_nodes, self.node)
        domain = min(self.node.scale_up_domain, accelerators)
        return self.model_copy(update={"name": name, "num_nodes": num_nodes, "scale_up_domain": domain})

    def part(self, num_nodes: int, accelerators_per_node: int) -> ClusterDescription:
        """Some of the nodes, and some of the accelerators of each; errors as of `with_nodes`.

        >>> [parse_cluster("16 nodes of DGX H100").part(2, count).name for count in (4, 8)]
        ['2 nodes of 4x H100-SXM-80GB', '2 nodes of DGX H100']
        """
        some = self if num_nodes == self.num_nodes else self.with_nodes(num_nodes)
        node, name = some.node, f"{accelerators_per_node}x {self.accelerator.name}"
        if node is None or accelerators_per_node == self.accelerators_per_node:
            return some
        domain = accelerators_per_node if node.scale_up_domain == node.accelerators else node.scale_up_domain
        update = {"name": name, "accelerators": accelerators_per_node, "scale_up_domain": domain}
        named = _NamedNode(node.model_copy(update=update), name, some._notes_without_nics())
        switching = self._switching
        smaller = _describe(name_of(num_nodes, name, self.fabric, switching), num_nodes, named, self.fabric, switching)
        wiring = {"topology": self.topology, "switch": self.switch, "spare_slots": self.spare_slots}
        return smaller.model_copy(update=wiring)

    @property
    def _switching(self) -> Switching:
        return Switching(self.in_network_reduction, self.oversubscription)

    def _notes_without_nics(self) -> list[str]:
        return [note for note in self.notes if not note.startswith(NIC_NOTE)]

    def with_fabric(self, fabric: NodeFabric) -> ClusterDescription:
        """The same nodes with other NICs.

        >>> parse_cluster("4x p4d.24xlarge").with_fabric(fabric_of(8, "HDR")).name
        '4 nodes of p4d.24xlarge over 8x HDR'
        """
        if self.node is None:
            raise ValueError(f"the nodes of `{self.name}` are not known")
        return _describe(
            name_of(self.num_nodes, self.node_name, fabric, self._switching),
            self.num_nodes,
            _NamedNode(self.node, self.node_name, self._notes_without_nics()),
            fabric,
            self._switching,
        )

    def with_switching(self, switching: Switching) -> ClusterDescription:
        """The same nodes behind other switches.

        >>> parse_cluster("16x DGX H100").with_switching(Switching(oversubscription=2.0)).name
        '16 nodes of DGX H100 at 2:1'
        """
        if switching == self._switching:
            return self
        update = {
            "name": name_of(self.num_nodes, self.node_name, self.fabric, switching),
            "in_network_reduction": switching.reduces,
            "oversubscription": switching.oversubscription,
            "spread_share": 1 / switching.oversubscription,
        }
        return self.model_copy(update=update)

    def same_hardware(self) -> str:
        """A key that two clusters share if they differ only in name."""
        return self.model_dump_json(exclude={"name", "node", "node_name", "fabric", "notes"})


class _NamedNode(NamedTuple):
    """A node, its name in a description and its assumptions."""

    node: Node
    name: str
    notes: list[str]


def cluster_of_nodes(node: Node, num_nodes: int = 1, *, node_name: str | None = None) -> ClusterDescription:
    """A cluster of one kind of node, which its name calls `node_name`, or as the node itself where left out.

    Raises:
        UsageError: more accelerators than the limit, or several nodes and no bandwidth between them is known.

    >>> cluster_of_nodes(node("DGX H100"), 16).name
    '16 nodes of DGX H100'
    """
    named = _NamedNode(node, node_name or node.name, [])
    return _describe(name_of(num_nodes, named.name, None), num_nodes, named, None)


def cluster_of_accelerators(part: Accelerator, count: int) -> ClusterDescription:
    """Accelerators in their reference nodes: one that may be partly empty, or several full ones.

    Raises:
        UsageError: no node of the accelerator is known, or several nodes would not be full.

    >>> cluster_of_accelerators(accelerator("H100"), 64).num_nodes
    8
    """
    num_nodes, named = _fill(count, part)
    return _describe(f"{count}x {part.name}", num_nodes, named, None)


@lru_cache(maxsize=1024)
def parse_cluster(text: str) -> ClusterDescription:
    """Read a one-line description of a cluster; a text is read once, and gives the same object again.

    A NIC that is faster than its PCIe slot counts with the slot's bandwidth, and a note says so.

    Raises:
        UsageError: the text has none of the forms, a name is unknown, a count is above its limit, accelerators do not
            fill whole nodes, SHARP is on a network without it, or the bandwidth between several nodes is not known.

    >>> cluster = parse_cluster("4 nodes of 8x A100-SXM-80GB over 8x HDR")
    >>> cluster.num_accelerators, cluster.node_bytes_per_s
    (32, 200000000000.0)
    """
    if len(text) > _LONGEST:
        raise unreadable(f"{text[:40]}...", f"it has {len(text)} characters, more than {_LONGEST}")
    hardware, switching = without_switching(read_digits(text))
    match = _TEXT.fullmatch(hardware)
    if match is None:
        raise unreadable(text, "it is empty")
    count = read_count(text, match["count"], "accelerators")
    what, remarks = _strip_remarks(match["what"].strip())
    num_nodes, named = _nodes(text, count, what, unit=unit_of(match))
    named.notes[:0] = remarks
    fabric = None
    if match["over"]:
        fabric, notes = read_fabric(match["over"].strip(), named.node, text)
        named.notes.extend(notes)
    network = (fabric or named.node).network
    if switching.reduces and network not in ("InfiniBand", UNNAMED):
        raise unreadable(text, f"SHARP is of InfiniBand switches, and its network is {network}")
    return _describe(text.strip(), num_nodes, named, fabric, switching)


def _strip_remarks(what: str) -> tuple[str, list[str]]:
    """A name without remarks in brackets, which a note repeats, and without `GPUs` behind an accelerator."""
    plain = without_remark(what)
    notes = [] if plain == what else [f"`{what}` is read as `{plain}`: remarks in brackets are left out"]
    shorter = _DEVICES.sub("", plain)
    counted = COUNTED.fullmatch(shorter)
    return (shorter if has("accelerators", counted["what"] if counted else shorter) else plain), notes


def _nodes(text: str, count: int, what: str, *, unit: str) -> tuple[int, _NamedNode]:
    """Number and kind of the nodes of a system, a node, `8x ACCELERATOR` or an accelerator, counted in this unit."""
    if has("systems", what):
        return _nodes_of_systems(text, count, what, unit)
    if unit == "card" and has("nodes", what):
        raise UsageError(
            f"`{text}` counts accelerators, and {what} is a node", hint=f"write `{count}台 {what}` for so many"
        )
    if unit not in ("", "card", *_NODE_WORDS):
        raise UsageError(
            f"`{what}` is not sold as a {unit}", hint=f"count its nodes: `N nodes of {what}`; a `GB200 NVL72` is a rack"
        )
    if has("nodes", what):
        return count, _NamedNode(node(what), what, [])
    if counted := COUNTED.fullmatch(what):
        part, each = accelerator(counted["what"]), read_count(text, counted["count"], "accelerators per node")
        return count, _NamedNode(node_of_accelerators(part, each), f"{each}x {part.name}", [])
    if not has("accelerators", what):
        raise explain_term(what) or unreadable(text, _unknown(what))
    part = accelerator(what)
    return (count, _reference(part)) if unit in _NODE_WORDS else _fill(count, part)


def _nodes_of_systems(text: str, count: int, what: str, unit: str) -> tuple[int, _NamedNode]:
    """All nodes of several systems; a text that counts nodes of a system is ambiguous."""
    kind = system(what)
    if unit in _NODE_WORDS and kind.nodes > 1:
        raise UsageError(
            f"`{text}` counts nodes, and one {kind.name} is a {kind.form} of {kind.nodes} nodes",
            hint=f"write `{count}x {kind.name}` for {count} of them, or `{count} nodes of {kind.node}`",
        )
    base = node(kind.node)
    each = f"{kind.nodes} nodes of {base.accelerators} accelerators"
    note = f"{kind.name}: a {kind.form} of {each}, {kind.nodes * base.accelerators} in all"
    return count * kind.nodes, _NamedNode(base, base.name, [note])


def _unknown(what: str) -> str:
    try:
        node(what)
    except UsageError as nearest_node:
        try:
            accelerator(what)
        except UsageError as nearest_accelerator:
            near = [(error.hint or "").partition(";")[0] for error in (nearest_accelerator, nearest_node)]
            return f"`{what}` is neither an accelerator ({near[0]}) nor a node or instance ({near[1]}) of the catalogue"
    return f"`{what}` is known"


def _fill(count: int, part: Accelerator) -> tuple[int, _NamedNode]:
    base = reference_node(part.name)
    if count < base.accelerators:
        return 1, _NamedNode(node_of_accelerators(part, count), f"{count}x {part.name}", [])
    if count % base.accelerators:
        low = count // base.accelerators * base.accelerators
        raise UsageError(
            f"{count} accelerators do not fill whole nodes: {base.name} has {base.accelerators}",
            hint=f"write `{low}x {part.name}` or `{low + base.accelerators}x {part.name}`, or say how many a node has: "
            f"`N nodes of Mx {part.name}`",
        )
    return count // base.accelerators, _reference(part)


def _reference(part: Accelerator) -> _NamedNode:
    base = reference_node(part.name)
    note = f"nodes of {base.accelerators} accelerators, as in {base.name}"
    return _NamedNode(base, f"{base.accelerators}x {part.name}", [note])


def node_of_accelerators(part: Accelerator, count: int) -> Node:
    """A node with `count` of an accelerator, otherwise like the reference node where one is known."""
    base = reference_node(part.name) if part.reference_node else None
    domain = part.scale_up_group or (count if part.scale_up_bytes_per_s else 1)
    if base is not None and (count == base.accelerators or base.scale_up_domain > base.accelerators):
        domain = base.scale_up_domain
    update = {"accelerator": part.name, "accelerators": count, "scale_up_domain": domain}
    if base is not None and count == base.accelerators:
        return base.model_copy(update=update)
    name = {"name": f"{count}x {part.name}"}
    bare = {"nics": 0, "nic_bytes_per_s": 0.0, "network": "not published"}
    return base.model_copy(update=update | name) if base else Node.model_validate(bare | update | name)


def _describe(
    name: str,
    num_nodes: int,
    named: _NamedNode,
    fabric: NodeFabric | None,
    switching: Switching = AS_USUAL,
) -> ClusterDescription:
    base = named.node
    if fabric is not None:
        nics = {"nics": fabric.nics, "nic_bytes_per_s": fabric.bytes_per_s, "network": fabric.network}
        base = base.model_copy(update=nics)
    part = accelerator(base.accelerator)
    check_limit("accelerators", num_nodes * base.accelerators)
    check_network(name, num_nodes, base)
    nic, capped = nic_bytes_per_s(base, part)
    return ClusterDescription(
        name=name,
        accelerator=part,
        num_nodes=num_nodes,
        accelerators_per_node=base.accelerators,
        scale_up_domain=min(base.scale_up_domain, num_nodes * base.accelerators),
        scale_up_bytes_per_s=part.scale_up_bytes_per_s if base.scale_up_domain > 1 else 0.0,
        node_bytes_per_s=base.nics * nic,
        network=base.network,
        in_network_reduction=switching.reduces,
        oversubscription=switching.oversubscription,
        spread_share=1 / switching.oversubscription,
        scale_up_reduction=base.scale_up_reduction,
        nics=base.nics,
        node=base,
        node_name=named.name,
        fabric=fabric,
        notes=(*named.notes, *capped),
    )


def read_fabric(over: str, base: Node, text: str) -> tuple[NodeFabric, list[str]]:
    """The NICs in `8x HDR`, `HDR` or `4x 200 Gb/s`, as many as the node `base` has where no number is written, and the
    assumptions behind them. Errors quote `text`, the whole description.

    Raises:
        UsageError: they name no network, or no possible number.
    """
    counted = None if is_bandwidth(over) else COUNTED.fullmatch(over)
    port_name = counted["what"] if counted else over
    nics, notes, port = 1, [], fabric_of(1, port_name, text)
    if counted:
        nics = read_count(text, counted["count"], "NICs per node")
    elif base.nics > 1 and port.network not in (UNNAMED, "TCP") and not re.search(r"\d\s*G", port_name, re.IGNORECASE):
        nics = base.nics
        notes.append(f"{port_name} on each of the {nics} NICs of a node; `1x {port_name}` is one")
    if port.network == UNNAMED and (note := byte_rate_note(port_name)):
        notes.append(note)
    return port.model_copy(update={"nics": nics}), notes


def fabric_of(nics: int, port: str, text: str | None = None) -> NodeFabric:
    """NICs by the name that a description gives them; `text` is the description, for errors.

    Raises:
        UsageError: the name is neither a link of the catalogue nor a rate.
    """
    found = network_link(port)
    if found is not None:
        return NodeFabric(nics=nics, port=port, bytes_per_s=found.bytes_per_s, network=found.network)
    if is_bandwidth(port):
        return NodeFabric(nics=nics, port=port, bytes_per_s=parse_bandwidth(port), network=UNNAMED)
    known = "`HDR`, `NDR`, `RoCE 400` or `200 Gb/s`"
    why = f"`{port}` is not a network; write {known} after `over`, with a count"
    raise explain_term(port) or unreadable(text or port, why)
