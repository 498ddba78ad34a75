"""Words of a description of a cluster: its counts, the NICs of a node, and what it says of the switches."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import NamedTuple

from trainworks.catalog.facts import Accelerator, Node
from trainworks.config.limits import check_limit
from trainworks.config.spec import Frozen
from trainworks.errors import QuantityError, UsageError
from trainworks.numerals import with_digits
from trainworks.units import format_bytes, parse_bandwidth

FORMS = (
    "`4x p4d.24xlarge`",
    "`16 nodes of DGX H100`",
    "`64x H100-SXM-80GB`",
    "`4 nodes of 8x A100-SXM-80GB over 8x HDR`",
)
UNNAMED = "unnamed"
_SHARP = re.compile(r",?\s+(?:and\s+)?with\s+SHARP\b", re.IGNORECASE)
_RATIO = re.compile(
    r",?\s+(?:(?:and|at|with|an?|of|oversubscribed|oversubscription|tapered|taper)\s+)*(?P<down>\d+(?:\.\d+)?):(?P<up>\d+(?:\.\d+)?)(?![\w.])"
    r"(?:\s+(?:oversubscribed|oversubscription|tapered|taper))?",
    re.IGNORECASE,
)
_LARGEST_RATIO = 64.0
COUNTED = re.compile(
    r"(?P<count>\d[\d_]*)\s*(?:(?:[x\u00d7张块颗片个]|卡机?)\s*|\s(?=[a-z]))(?P<what>.+)", re.IGNORECASE
)
COUNTERS = {
    "node": r"台(?:服务器|机器|节点)?|个?节点",
    "rack": r"个?机柜|柜",
    "card": r"[张块颗片卡]",
}
"""Patterns of the Chinese counters, by the English unit that they stand for."""
_GUESSES = {
    r"(?<![台\d])(?<!台\s)\d+\s*[张块颗片卡]机": (
        "may be one machine with so many accelerators, or so many machines",
        "both numbers, `2台8卡H100`",
    ),
    "[双四]路": ("counts the CPU sockets of a node", "its accelerators, `2台8卡H100`"),
    r"[几数上近]\s*[十百千万亿]": ("is not a certain number", "the number, `64张H800`"),
}
"""Patterns of Chinese that a cluster could be guessed from, with the reason and what to write instead."""
_NODES_WITHOUT_OF = re.compile(r"(?P<nodes>\d[\d_]*\s*nodes?)\s+(?!of\s)(?P<rest>.+)", re.IGNORECASE)

NIC_NOTE = "a NIC of "
"""Begins a note on the bandwidth of a NIC."""


class Switching(NamedTuple):
    """What a description says of the switches."""

    reduces: bool = False
    oversubscription: float = 1.0

    def __str__(self) -> str:
        ratio = f" at {_ratio(self.oversubscription)}" if self.oversubscription > 1 else ""
        return f"{ratio}{' with SHARP' if self.reduces else ''}"


def _ratio(value: float) -> str:
    """`4:1` and `2.5:1`; a fraction such as `4:3` where a decimal would not give the value back."""
    down, up = Fraction(value).limit_denominator(64).as_integer_ratio()
    if float(f"{value:g}") != value and down / up == value:
        return f"{down}:{up}"
    return f"{repr(value).removesuffix('.0')}:1"


AS_USUAL = Switching()


def read_count(text: str, digits: str | None, name: str) -> int:
    """A count of a description, 1 where it has none.

    Raises:
        UsageError: it is 0 or above its limit.
    """
    count = 1 if digits is None else int(digits)
    if count < 1:
        raise unreadable(text, f"the count must be at least 1, got {count}")
    return check_limit(name, count)


def unreadable(text: str, why: str) -> UsageError:
    """The error of a text that describes no cluster, with its forms."""
    if match := _NODES_WITHOUT_OF.fullmatch(text.strip()):
        corrected = f"{match['nodes']} of {match['rest']}"
        return UsageError(f"`{text}` does not describe a cluster: `of` is missing", hint=f"did you mean `{corrected}`?")
    return UsageError(f"`{text}` does not describe a cluster: {why}", hint=f"write it like {', '.join(FORMS)}")


def name_of(num_nodes: int, node_name: str, fabric: NodeFabric | None, switching: Switching = AS_USUAL) -> str:
    """A description of nodes, of the NICs that replace theirs, and of the switches."""
    nodes = "1 node" if num_nodes == 1 else f"{num_nodes} nodes"
    return f"{nodes} of {node_name}{f' over {fabric}' if fabric else ''}{switching}"


def read_digits(text: str) -> str:
    """The description with its Chinese numbers in digits.

    Raises:
        UsageError: it counts something that may be meant in two ways, such as 10卡机.

    >>> read_digits("２台八卡 H100"), read_digits("1.6万张 H800")
    ('2台8卡 H100', '16000张 H800')
    """
    written = with_digits(text)
    for pattern, (why, instead) in _GUESSES.items():
        if found := re.search(pattern, written):
            raise UsageError(f"`{text}` does not describe a cluster: `{found[0]}` {why}", hint=f"write {instead}")
    return written


def unit_of(match: re.Match[str]) -> str:
    """What the count of a description counts, `node`, `rack` or `card` for one; empty where it does not say."""
    counter = next((unit for unit in COUNTERS if match[unit]), "")
    return counter or (match["unit"] or "").lower().rstrip("s")


def is_bandwidth(text: str) -> bool:
    """Whether a text is a rate such as `200 Gb/s`."""
    try:
        return parse_bandwidth(text) > 0
    except QuantityError:
        return False


def without_switching(text: str) -> tuple[str, Switching]:
    """The text without what it says of the switches.

    Raises:
        UsageError: the oversubscription is below 1 or above the limit.
    """
    hardware = _SHARP.sub("", text)
    ratio = _RATIO.search(hardware)
    oversubscription = float(ratio["down"]) / (float(ratio["up"]) or math.inf) if ratio else 1.0
    if not 1 <= oversubscription <= _LARGEST_RATIO:
        raise unreadable(
            text, f"the oversubscription has to be from 1:1 to {_LARGEST_RATIO:g}:1, links down to links up of a leaf"
        )
    return _RATIO.sub("", hardware, count=1).strip(), Switching(hardware != text, oversubscription)


class NodeFabric(Frozen):
    """The NICs of one node."""

    nics: int
    port: str
    """One NIC in a description: `HDR`, `RoCE 400`, `200 Gb/s`."""
    bytes_per_s: float
    """Bandwidth of one NIC, one direction."""
    network: str

    def __str__(self) -> str:
        return f"{self.nics}x {self.port}"

    def is_of(self, node: Node) -> bool:
        """True if the catalogue's node has these NICs itself; a reference node stands for many, whose NICs differ."""
        own = (node.nics, node.nic_bytes_per_s, node.network)
        return node.kind != "reference" and own == (self.nics, self.bytes_per_s, self.network)


def check_network(name: str, num_nodes: int, base: Node) -> None:
    """Refuse several nodes without a known bandwidth between them.

    Raises:
        UsageError: names the cluster.
    """
    if num_nodes > 1 and not base.nics:
        raise UsageError(
            f"`{name}` has {num_nodes} nodes, and no bandwidth between nodes of {base.name} is published",
            hint=f"add it: `{num_nodes} nodes of {base.accelerators}x {base.accelerator} over 8x 200 Gb/s`",
        )


def nic_bytes_per_s(base: Node, part: Accelerator) -> tuple[float, list[str]]:
    """Bandwidth of one NIC, at most that of its slot."""
    slot = base.nic_slot_bytes_per_s or part.host_bytes_per_s
    if base.nic_bytes_per_s <= slot:
        return base.nic_bytes_per_s, []
    rates = f"{format_bytes(base.nic_bytes_per_s)}/s counts with the {format_bytes(slot)}/s of its PCIe slot"
    return slot, [f"{NIC_NOTE}{rates}"]
