"""What a benchmark measures: written by `trainworks bench`, read by the program on every node and by its workers."""

from __future__ import annotations

from typing import Literal

from trainworks.config.spec import Spec

BenchKind = Literal["compute", "memory", "network", "collectives", "storage", "mpi"]


class BenchSetting(Spec):
    """Environment variables under which the ranks are measured, next to the ranks without them."""

    name: str = "default"
    env: dict[str, str] = {}


class BenchRequest(Spec):
    """Kinds of measurements of a benchmark, and their size."""

    kinds: tuple[BenchKind, ...]
    full: bool = False
    """Sizes for acceptance instead of about a minute."""
    paths: tuple[str, ...] = ()
    """Folders whose storage is measured."""
    settings: tuple[BenchSetting, ...] = (BenchSetting(),)
    done: tuple[str, ...] = ()
    """Parts that an earlier attempt has measured."""

    def wants(self, kind: BenchKind, part: str) -> bool:
        """Whether a part has still to be measured."""
        return kind in self.kinds and part not in self.done
