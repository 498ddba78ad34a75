"""Largest counts that an input may have: ten times what is published, or more.

A larger count is a typing error, and planning it could take unbounded time and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import Field

from trainworks.errors import UsageError


class Limit(NamedTuple):
    """The largest value of a count and the published value it derives from."""

    most: int
    reason: str


LIMITS: Mapping[str, Limit] = {
    "accelerators": Limit(10_000_000, "the largest announced clusters have one million accelerators"),
    "nodes": Limit(10_000_000, "the largest announced clusters have one million accelerators"),
    "accelerators per node": Limit(1_024, "the largest published nodes have 16"),
    "NICs per node": Limit(1_024, "the largest published nodes have 32"),
    "processes_per_node": Limit(4_096, "a rank needs an accelerator or a core of its own"),
    "layers": Limit(10_000, "the deepest published model has 1,000"),
    "hidden": Limit(1_000_000, "the widest published model has 25,600"),
    "heads": Limit(100_000, "the widest published model has 160"),
    "feed_forward": Limit(10_000_000, "the widest published model has 102,400"),
    "experts": Limit(10_000_000, "the most published are one million"),
    "vocabulary": Limit(10_000_000, "the largest published has 262,144 entries"),
    "sequence_length": Limit(100_000_000, "the longest published is 10 million tokens"),
    "image_size": Limit(65_536, "the largest published is about 4,000"),
    "global_batch": Limit(10**9, "the largest published is one million samples"),
    "micro_batch": Limit(10**9, "the largest published global batch is one million samples"),
    "steps": Limit(10**11, "the longest published runs take some millions"),
    "tokens": Limit(10**16, "the longest published runs take 40 trillion"),
    "epochs": Limit(10**6, "published runs take some hundreds"),
    "size_bytes": Limit(2**50, "the largest published messages have some gigabytes"),
}
"""Limits by the name of the count in a run file or a table."""

_ALIASES = {
    "kv_heads": "heads",
    "experts_per_token": "experts",
    "ffn": "feed_forward",
    "vocab": "vocabulary",
    "seq_len": "sequence_length",
    "num_nodes": "nodes",
    "min_nodes": "nodes",
    "gpus_per_node": "accelerators per node",
    "interleave": "layers",
    "stage_layers": "layers",
    "recompute_layers": "layers",
    **dict.fromkeys(("num_gpus", "gpus", "dp", "dp_replicate", "dp_shard", "tp", "pp", "cp", "ep"), "accelerators"),
}
"""Other names of the same counts."""


def up_to(name: str, *, least: int = 1, **field: Any) -> Any:
    """A pydantic field for the count of that name."""
    return Field(ge=least, le=LIMITS[_ALIASES.get(name, name)].most, **field)


def above_limit(name: str, value: int, *, called: str | None = None) -> str | None:
    """Message if a count is too large; None if it is within its limit or has none.

    >>> above_limit("kv_heads", 10**6)
    'kv_heads is 1,000,000, above the limit of 100,000: the widest published model has 160'
    """
    limit = LIMITS.get(_ALIASES.get(name, name))
    if limit is None or value <= limit.most:
        return None
    shown = f"{value:,}" if value < 10**15 else f"{value:.3g}" if value < 10**300 else "a number of over 300 digits"
    return f"{called or name} is {shown}, above the limit of {limit.most:,}: {limit.reason}"


def check_limit(name: str, value: int, *, called: str | None = None) -> int:
    """Return the value if it is within the limit of its name.

    Args:
        name: of the limit.
        value: of the count.
        called: the name in the input, if it differs.

    Raises:
        UsageError: it is above the limit.
    """
    if (problem := above_limit(name, value, called=called)) is not None:
        raise UsageError(problem, hint="check the number of digits")
    return value
