"""What a benchmark measures: written by `trainworks bench`, read by the program on every node and by its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from trainworks.config.spec import Spec
from trainworks.errors import ArgumentError

BenchKind = Literal["compute", "memory", "network", "collectives", "storage", "mpi"]


class BenchSetting(Spec):
    """Environment variables under which the ranks are measured, next to the ranks without them."""

    name: str = "default"
    env: Mapping[str, str] = Field(default_factory=dict)


class BenchRequest(Spec):
    """Kinds of measurements of a benchmark, and their size."""

    kinds: tuple[BenchKind, ...]
    full: bool = False
    """Sizes for acceptance instead of about a minute."""
    built_in: bool = False
    """Measure with the programs of Trainworks alone, and no other that is installed."""
    paths: tuple[str, ...] = ()
    """Folders whose storage is measured."""
    settings: tuple[BenchSetting, ...] = (BenchSetting(),)
    prints_record: bool = False
    """Print the record: the run directory of a node is gone with its job."""
    done: tuple[str, ...] = ()
    """Parts that an earlier attempt has measured."""
    group: tuple[str, ...] = ()
    """Nodes of that attempt; transfers between others are measured anew."""

    def wants(self, kind: BenchKind, part: str) -> bool:
        """Whether a part has still to be measured."""
        return kind in self.kinds and part not in self.done


def parse_setting(text: str) -> list[BenchSetting]:
    """Settings to compare: `NCCL_ALGO=Ring,Tree` are two.

    Raises:
        ArgumentError: the text is not a variable with values.
    """
    name, equals, values = text.partition("=")
    if not equals or not name.isidentifier() or not all(values.split(",")):
        hint = "write the values after an equals sign: `NCCL_ALGO=Ring,Tree`"
        raise ArgumentError(f"`{text}` is not a variable with values", argument="settings", hint=hint)
    return [BenchSetting(name=f"{name}={value}", env={name: value}) for value in values.split(",")]


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of nodes in their order, with `/INDEX` where several have the same, as two pods on one machine.

    >>> unique_names(["a", "b", "a"])
    ('a/0', 'b', 'a/2')
    """
    return tuple(f"{name}/{index}" if names.count(name) > 1 else name for index, name in enumerate(names))
