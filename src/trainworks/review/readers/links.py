"""Network links that a text names, and how many adapters of them it gives to a node."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainworks.catalog.catalog import link
from trainworks.catalog.facts import Link

WORD_START, WORD_END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
r"""Ends of a Latin word; `\b` sees none between a letter and a Chinese character."""
LINK = re.compile(rf"{WORD_START}(HDR100|HDR200|EDR|HDR|NDR200|NDR400|NDR|XDR){WORD_END}")
_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "four": 4, "eight": 8,
    "单": 1, "一": 1, "两": 2, "四": 4, "八": 8,
}  # fmt: skip
_MAKER = r"(?:(?:NVIDIA|Mellanox|InfiniBand|ConnectX-?\d)\s+)*"
_COUNTED = re.compile(
    rf"(?<![\w.])(\d{{1,2}}|an?|one|single|two|four|eight|[单一两四八])\s*(?:[x\u00d7*]|张|块|个|口|条)?\s*{_MAKER}{LINK.pattern}"
    r"(?!\s*(?:switch|(?:\w+\s)?(?:per|for each|to a) GPU|交换))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Adapters of a node in a text."""

    link: Link
    count: int | None
    """None if the text does not say it."""

    def count_for(self, gpus: int) -> int:
        """Adapters of a node with that many GPUs: those of the text, else one to a GPU."""
        return self.count or gpus

    def __str__(self) -> str:
        return f"{self.count}x {self.link.name} per node" if self.count else f"one {self.link.name} per GPU"


def ports_in(text: str) -> NodePorts | None:
    """The adapters that a text gives to a node, the most if it gives several; else the fastest link that it names."""
    counted = [(link(found[2].upper()), _number(found[1])) for found in _COUNTED.finditer(text)]
    if counted:
        fastest, count = max(counted, key=lambda one: one[0].bytes_per_s * one[1])
        return NodePorts(fastest, count)
    named = [link(name) for name in set(LINK.findall(text))]
    return NodePorts(max(named, key=lambda one: one.bytes_per_s), None) if named else None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else _NUMBERS[text.lower()]
