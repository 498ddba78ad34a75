"""A cluster in one line of text, as `cluster:` of a run file and `--on` of the command line take it.

    4x p4d.24xlarge                               nodes or instances of the catalogue
    16 nodes of DGX H100
    4x GB200 NVL72, 4 racks of GB200 NVL72        systems of several nodes
    64x H100-SXM-80GB                             accelerators, in their reference nodes
    4 nodes of 8x A100-SXM-80GB over 8x HDR       everything said: accelerators and NICs of a node
    3 nodes of 8x H100 over 4x 200 Gb/s           a NIC that has no name

The `x` behind a count may be left out. `over` may follow any of them and replaces the NICs of a node: a network without
a count (`over HDR`) is that of every NIC that the node has; a bandwidth (`over 200 Gb/s`, `over 100GbE`) or TCP without
one is that of the whole node. `with SHARP` at the end counts on switches that add up.
"""

from __future__ import annotations

import re

from trainworks.catalog.catalog import (
    accelerator,
    explain_term,
    has,
    link,
    node,
    reference_node,
    system,
    without_remark,
)
from trainworks.catalog.facts import Accelerator, Link, Node
from trainworks.config.limits import check_limit
from trainworks.config.quantities import Frozen
from trainworks.errors import QuantityError, UsageError
from trainworks.units import byte_rate_note, format_bytes, parse_bandwidth

__all__ = ["ClusterDescription", "parse_cluster"]

FORMS = (
    "`4x p4d.24xlarge`",
    "`16 nodes of DGX H100`",
    "`64x H100-SXM-80GB`",
    "`4 nodes of 8x A100-SXM-80GB over 8x HDR`",
)
UNNAMED = "unnamed"
_NODE_WORDS = ("node", "server", "machine", "host")
_LONGEST = 200
"""Characters of a description."""

_TEXT = re.compile(
    r"(?:(?P<count>\d[\d_]*)\s*(?:[x\u00d7]\s*|(?P<unit>nodes?|servers?|machines?|hosts?|racks?|pods?|systems?)\s+of\s+|\s(?=[a-z])))?(?P<what>.+?)"
    r"(?:\s+over\s+(?P<over>.+?))?(?P<sharp>\s+with\s+SHARP)?",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"(?P<count>\d[\d_]*)\s*(?:[x\u00d7]\s*|\s(?=[a-z]))(?P<what>.+)", re.IGNORECASE)
_DEVICES = re.compile(r"\s+(?:gpus?|cards?|accelerators?)$", re.IGNORECASE)
_IB = re.compile(r"\b(?:infiniband|ib)\b", re.IGNORECASE)
_NODES_WITHOUT_OF = re.compile(r"(?P<nodes>\d[\d_]*\s*nodes?)\s+(?!of\s)(?P<rest>.+)", re.IGNORECASE)


class ClusterDescription(Frozen):
    """What a planner needs to know of a cluster. Bandwidths are one direction."""

    name: str
    """As it was written."""
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
    """Whether the plan may count on switches that add up (SHARP)."""
    scale_up_reduction: bool = False
    """Whether the scale-up switches add up (NVLS)."""
    nics: int = 0
    node: Node | None = None
    """One node of it, with the NICs that were asked for; None for a cluster that was not described in words."""
    notes: tuple[str, ...] = ()
    """What was assumed or capped, each in a sentence."""

    @property
    def num_accelerators(self) -> int:
        """In all nodes together."""
        return self.num_nodes * self.accelerators_per_node


def parse_cluster(text: str) -> ClusterDescription:
    """The cluster that a line of text describes.

    A NIC that is faster than its PCIe slot counts with the slot's bandwidth, and a note says so.

    Raises:
        UsageError: the text has none of the forms, a name is unknown, a count is above its limit, accelerators do not
            fill whole nodes, or several nodes were asked for and no bandwidth between them is known.

    >>> cluster = parse_cluster("4 nodes of 8x A100-SXM-80GB over 8x HDR")
    >>> cluster.num_accelerators, cluster.node_bytes_per_s
    (32, 200000000000.0)
    """
    if len(text) > _LONGEST:
        raise _unreadable(f"{text[:40]}...", f"it has {len(text)} characters, more than {_LONGEST}")
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise _unreadable(text, "it is empty")
    count = _count(text, match["count"], "accelerators")
    what, remarks = _named(match["what"].strip())
    num_nodes, base, notes = _nodes(text, count, what, unit=(match["unit"] or "").lower().rstrip("s"))
    if match["over"]:
        base, told = _with_nics(text, base, match["over"].strip())
        notes += told
    return _describe(text.strip(), num_nodes, base, remarks + notes, sharp=match["sharp"] is not None)


def _named(what: str) -> tuple[str, list[str]]:
    """A name without its remarks in brackets, which a note repeats, and without `GPUs` behind an accelerator."""
    plain = without_remark(what)
    notes = [] if plain == what else [f"`{what}` is read as `{plain}`: remarks in brackets are left out"]
    shorter = _DEVICES.sub("", plain)
    counted = _COUNTED.fullmatch(shorter)
    return (shorter if has("accelerators", counted["what"] if counted else shorter) else plain), notes


def _count(text: str, written: str | None, name: str) -> int:
    count = 1 if written is None else int(written)
    if count < 1:
        raise _unreadable(text, f"the count is {count}, and has to be at least 1")
    return check_limit(name, count)


def _unreadable(text: str, why: str) -> UsageError:
    if match := _NODES_WITHOUT_OF.fullmatch(text.strip()):
        corrected = f"{match['nodes']} of {match['rest']}"
        return UsageError(f"`{text}` describes no cluster: `of` is missing", hint=f"did you mean `{corrected}`?")
    return UsageError(f"`{text}` describes no cluster: {why}", hint=f"write it like {', '.join(FORMS)}")


def _nodes(text: str, count: int, what: str, *, unit: str) -> tuple[int, Node, list[str]]:
    """How many nodes of which kind: `what` is a system, a node, `8x ACCELERATOR` or an accelerator.

    `unit` is the word before `of`; it is empty where there is none.
    """
    if has("systems", what):
        return _nodes_of_systems(text, count, what, unit)
    if unit not in ("", *_NODE_WORDS):
        raise UsageError(
            f"`{what}` is not sold as a {unit}", hint=f"count its nodes: `N nodes of {what}`; a `GB200 NVL72` is a rack"
        )
    if has("nodes", what):
        return count, node(what), []
    if counted := _COUNTED.fullmatch(what):
        return (
            count,
            _node_of(accelerator(counted["what"]), _count(text, counted["count"], "accelerators per node")),
            [],
        )
    if not has("accelerators", what):
        raise explain_term(what) or _unreadable(text, _unknown(what))
    part = accelerator(what)
    if unit in _NODE_WORDS:
        base = reference_node(part.name)
        return count, base, [_assumed(base)]
    return _fill(text, count, part)


def _nodes_of_systems(text: str, count: int, what: str, unit: str) -> tuple[int, Node, list[str]]:
    """All nodes of several systems; a text that counts nodes of a system is ambiguous."""
    found = system(what)
    if unit in _NODE_WORDS and found.nodes > 1:
        raise UsageError(
            f"`{text}` counts nodes, and one {found.name} is a {found.form} of {found.nodes} nodes",
            hint=f"write `{count}x {found.name}` for {count} of them, or `{count} nodes of {found.node}`",
        )
    base = node(found.node)
    each = f"{found.nodes} nodes of {base.accelerators} accelerators"
    return (
        count * found.nodes,
        base,
        [f"{found.name}: a {found.form} of {each}, {found.nodes * base.accelerators} in all"],
    )


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


def _fill(text: str, count: int, part: Accelerator) -> tuple[int, Node, list[str]]:
    """Accelerators in reference nodes: one node that may stay partly empty, or several full ones."""
    base = reference_node(part.name)
    if count <= base.accelerators:
        return 1, _node_of(part, count), [_assumed(base)] if count == base.accelerators else []
    if count % base.accelerators:
        low = count // base.accelerators * base.accelerators
        raise UsageError(
            f"{count} accelerators do not fill whole nodes: {base.name} has {base.accelerators}",
            hint=f"write `{low}x {part.name}` or `{low + base.accelerators}x {part.name}`, or say how many a node has: "
            f"`N nodes of Mx {part.name}`",
        )
    return count // base.accelerators, base, [_assumed(base)]


def _assumed(base: Node) -> str:
    return f"nodes of {base.accelerators} accelerators, as in {base.name}"


def _node_of(part: Accelerator, count: int) -> Node:
    """A node with `count` of an accelerator, otherwise like the reference node where one is known."""
    base = reference_node(part.name) if part.reference_node else None
    domain = part.scale_up_group or (count if part.scale_up_bytes_per_s else 1)
    if base is not None and (count == base.accelerators or base.scale_up_domain > base.accelerators):
        domain = base.scale_up_domain
    own = {"accelerator": part.name, "accelerators": count, "scale_up_domain": domain}
    if base is not None:
        same = {} if count == base.accelerators else {"name": f"{count}x {part.name}"}
        return base.model_copy(update=own | same)
    return Node.model_validate(
        {"name": f"{count}x {part.name}", "nics": 0, "nic_bytes_per_s": 0.0, "network": "not published"} | own
    )


def _with_nics(text: str, base: Node, over: str) -> tuple[Node, list[str]]:
    """The node with other NICs: `8x HDR`, `HDR` or `4x 200 Gb/s`; and what was assumed."""
    counted = None if _is_bandwidth(over) else _COUNTED.fullmatch(over)
    written = counted["what"] if counted else over
    port = _port(text, written)
    nics, notes = 1, []
    if counted:
        nics = _count(text, counted["count"], "NICs per node")
    elif _is_of_each_nic(port, written) and base.nics > 1:
        nics = base.nics
        notes.append(f"{written} on each of the {nics} NICs of a node; `1x {written}` is one")
    if port.network == UNNAMED and (told := byte_rate_note(written)):
        notes.append(told)
    own = {"nics": nics, "nic_bytes_per_s": port.bytes_per_s, "network": port.network}
    return base.model_copy(update=own), notes


def _is_of_each_nic(port: Link, written: str) -> bool:
    """Whether a network without a count is that of every NIC: not of a bandwidth, as in `100GbE`, and not of TCP."""
    return port.network not in (UNNAMED, "TCP") and not re.search(r"\d\s*G", written, re.IGNORECASE)


def _is_bandwidth(written: str) -> bool:
    try:
        return parse_bandwidth(written) > 0
    except QuantityError:
        return False


def _port(text: str, written: str) -> Link:
    for name in (written, _IB.sub("", written).strip()):
        if has("links", name) and link(name).network not in ("scale-up", "host"):
            return link(name)
    if _is_bandwidth(written):
        return Link(name=written, bytes_per_s=parse_bandwidth(written), network=UNNAMED)
    known = "`HDR`, `NDR`, `RoCE 400` or `200 Gb/s`"
    why = f"`{written}` is no network; after `over` stands {known}, each with a count"
    raise explain_term(written) or _unreadable(text, why)


def _describe(text: str, num_nodes: int, base: Node, notes: list[str], *, sharp: bool) -> ClusterDescription:
    part = accelerator(base.accelerator)
    check_limit("accelerators", num_nodes * base.accelerators)
    if num_nodes > 1 and not base.nics:
        raise UsageError(
            f"`{text}` has {num_nodes} nodes, and no bandwidth between nodes of {base.name} is published",
            hint=f"say it: `{num_nodes} nodes of {base.accelerators}x {part.name} over 8x 200 Gb/s`",
        )
    nic, capped = _nic_bytes_per_s(base, part)
    return ClusterDescription(
        name=text,
        accelerator=part,
        num_nodes=num_nodes,
        accelerators_per_node=base.accelerators,
        scale_up_domain=min(base.scale_up_domain, num_nodes * base.accelerators),
        scale_up_bytes_per_s=part.scale_up_bytes_per_s if base.scale_up_domain > 1 else 0.0,
        node_bytes_per_s=base.nics * nic,
        network=base.network,
        in_network_reduction=sharp,
        scale_up_reduction=base.scale_up_reduction,
        nics=base.nics,
        node=base,
        notes=(*notes, *capped),
    )


def _nic_bytes_per_s(base: Node, part: Accelerator) -> tuple[float, list[str]]:
    """What one NIC can bring, at most what its slot takes."""
    slot = base.nic_slot_bytes_per_s or part.host_bytes_per_s
    if base.nic_bytes_per_s <= slot:
        return base.nic_bytes_per_s, []
    wasted = f"a NIC of {format_bytes(base.nic_bytes_per_s)}/s counts with the {format_bytes(slot)}/s of its PCIe slot"
    return slot, [wasted]
