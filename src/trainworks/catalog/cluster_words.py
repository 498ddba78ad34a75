"""Words of a description of a cluster: its counts, and what it says of the switches."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from trainworks.config.limits import check_limit
from trainworks.errors import QuantityError, UsageError
from trainworks.units import parse_bandwidth

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
COUNTED = re.compile(r"(?P<count>\d[\d_]*)\s*(?:[x\u00d7]\s*|\s(?=[a-z]))(?P<what>.+)", re.IGNORECASE)
_NODES_WITHOUT_OF = re.compile(r"(?P<nodes>\d[\d_]*\s*nodes?)\s+(?!of\s)(?P<rest>.+)", re.IGNORECASE)


class Switching(NamedTuple):
    """What a description says of the switches."""

    reduces: bool = False
    oversubscription: float = 1.0

    def __str__(self) -> str:
        ratio = f" at {self.oversubscription:g}:1" if self.oversubscription > 1 else ""
        return f"{ratio}{' with SHARP' if self.reduces else ''}"


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


def name_of(num_nodes: int, node_name: str, fabric: object, switching: Switching = AS_USUAL) -> str:
    """A description of nodes, of the NICs that replace theirs, and of the switches."""
    nodes = "1 node" if num_nodes == 1 else f"{num_nodes} nodes"
    return f"{nodes} of {node_name}{f' over {fabric}' if fabric else ''}{switching}"


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
