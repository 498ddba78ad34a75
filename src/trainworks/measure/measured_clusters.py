"""Cluster of a measured run, from the informal text of a table row."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from trainworks.catalog.catalog import accelerator, has, link, reference_node
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Accelerator, Node
from trainworks.catalog.names import without_remark
from trainworks.errors import UsageError
from trainworks.measure.tables import Row, text_of, whole_of

_MAKERS = re.compile(r"\b(nvidia|amd|intel|google|aws|tesla|instinct|geforce)\b", re.IGNORECASE)
_KINDS = (
    ("Omni-Path", r"omni-?path|\bopa\b"),
    ("EFA", r"\befa\b"),
    ("RoCE", r"\broce"),
    ("InfiniBand", r"\bib\b|infiniband|\b(?:edr|hdr|ndr|xdr)\d*\b"),
    ("Slingshot", r"slingshot"),
    ("TCP", r"\btcp|ethernet|gbe\b"),
)
_GENERATIONS = ("hdr100", "hdr200", "ndr200", "ndr400", "edr", "hdr", "ndr", "xdr")
"""InfiniBand generations under the catalogue's names; the longer ones first."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([GgTt])(?:(B(?=/|ps))|[Bb])?(?:it)?(?:/s|ps|[eE]\b|\b)")
_WATTS = re.compile(r"\b(\d{3,4})\s*W\b")


def read_accelerator(row: Row) -> Accelerator:
    """The accelerator of a row; a maker's name before it and a remark in brackets do not matter, but for its power.

    A known part with another size of memory is that part with that memory.

    Raises:
        UsageError: the cell is empty or names none of the catalogue; the hint has the nearest.
    """
    name = text_of(row, "gpu")
    if name.lower() in ("", "none"):
        raise UsageError("gpu is empty")
    plain = without_remark(name)
    spellings = (name, plain, _MAKERS.sub("", plain).strip() or name)
    known = next((each for each in spellings if has("accelerators", each)), None)
    watts = _WATTS.search(name)
    limit = f" at {watts[1]} W" if watts else ""
    variants = (re.fullmatch(r"(?P<part>.+?)[\s-]*(?P<gigabytes>\d+)\s*GB\b.*", each) for each in spellings[1:])
    variant = next((each for each in variants if each and has("accelerators", each["part"])), None)
    if known is None and variant is not None:
        return accelerator(variant["part"] + limit).model_copy(
            update={"memory_bytes": int(variant["gigabytes"]) * 2**30, "usable_bytes": None}
        )
    part = accelerator(known + limit if known and " at " not in known else known or spellings[-1])
    is_bridged = part.bridge is not None and "bridge" in text_of(row, "intra_node_net").lower()
    return accelerator(f"{part.name} with NVLink bridge") if is_bridged else part


def remarks_left_out(rows: Iterable[Row]) -> list[str]:
    """Notes on the names of accelerators that were read without their remarks in brackets, each name once."""
    notes: dict[str, None] = {}
    for row in rows:
        name = text_of(row, "gpu")
        try:
            part = read_accelerator(row).name if without_remark(name) != name else name
        except UsageError:  # the row is refused with this reason
            continue
        if part != name:
            kept = ", but for the power" if _WATTS.search(name) else ""
            notes[f"`{name}` is read as `{part}`: remarks in brackets are left out{kept}"] = None
    return list(notes)


def read_cluster(row: Row, *, num_accelerators: int) -> ClusterDescription:
    """Cluster of a row; missing parts are as in the accelerator's reference node.

    A node with another number of accelerators than the reference node has interfaces in proportion. The row has `gpu`,
    `gpus_per_node`, `intra_node_net` and `inter_node_net`, each possibly empty but the first. A last node that the
    accelerators of the run do not fill makes all of them smaller.

    Raises:
        UsageError: an unknown accelerator, or one for which no node is known.
    """
    device = read_accelerator(row)
    node = reference_node(device.name)
    written = whole_of(row, "gpus_per_node") or node.accelerators
    num_nodes = math.ceil(num_accelerators / min(written, num_accelerators))
    per_node = math.ceil(num_accelerators / num_nodes)
    inside = text_of(row, "intra_node_net")
    domain = node.scale_up_domain if node.scale_up_domain > node.accelerators else max(written, per_node)
    if group := re.search(r"nvl\s*(\d+)", inside, re.IGNORECASE):  # `NVL72`
        domain = max(int(group[1]), per_node)
    network, printed_bytes_per_s = _network(text_of(row, "inter_node_net"), node, per_node)
    return ClusterDescription(
        name=f"{num_accelerators}x {device.name}",
        accelerator=device,
        num_nodes=num_nodes,
        accelerators_per_node=per_node,
        scale_up_domain=domain,
        scale_up_bytes_per_s=_scale_up_bytes_per_s(inside, device),
        node_bytes_per_s=printed_bytes_per_s or node.nics * node.nic_bytes_per_s * written / node.accelerators,
        network=network,
        in_network_reduction="sharp" in text_of(row, "inter_node_net").lower(),
        scale_up_reduction=node.scale_up_reduction,
    )


def _scale_up_bytes_per_s(inside: str, device: Accelerator) -> float:
    """Rate of the link, one direction; tables print both, and may print less than the part's own."""
    if "pcie" in inside.lower() and "nvlink" not in inside.lower():
        return 0.0
    printed = re.search(r"nvlink\d?\s+(\d+(?:\.\d+)?)\s*GB/s", inside, re.IGNORECASE)
    return min(device.scale_up_bytes_per_s, float(printed[1]) * 1e9 / 2) if printed else device.scale_up_bytes_per_s


def _network(text: str, node: Node, per_node: int) -> tuple[str, float | None]:
    """Kind of the fabric and bytes per second of all interfaces of a node, one direction; None where not printed.

    A rate without a count is of the whole node, a bare generation (`HDR`) of each of the reference node's interfaces.

    >>> from trainworks.catalog.catalog import node
    >>> _network("8x HDR200 IB per node", node("DGX A100 80GB"), 8)
    ('InfiniBand', 200000000000.0)
    """
    lower = text.lower()
    kind = next((name for name, words in _KINDS if re.search(words, lower)), node.network)
    rate, generation = _RATE.search(text), re.search(r"(?:\b|(?<=\dx))(" + "|".join(_GENERATIONS) + r")\b", lower)
    if rate:
        port = float(rate[1]) * (1e12 if rate[2] in "Tt" else 1e9) * (8 if rate[3] else 1) / 8
    elif generation:
        port = link(generation[1]).bytes_per_s
    else:
        return kind, None
    count = re.search(r"(\d+)\s*[x\u00d7*]", lower, re.IGNORECASE)
    each = per_node if re.search(r"(?:per|/)\s*(?:gpu|accelerator)", lower) else 1 if rate else max(1, node.nics)
    return kind, (int(count[1]) if count else each) * port
