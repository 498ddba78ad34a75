"""Slows a real run down from inside: Python imports this module by itself if its folder is in PYTHONPATH.

TRAINWORKS_SLOW is `place:ranks:seconds:first_step`: the ranks (`all` or one number) sleep in every step from the first
one on, before they read a batch (`data`), after it (`compute`) or in the reduction of gradients of shards (`network`).
`start` sleeps once, before the data is opened, `connect` before the ranks meet, as where a name server does not answer,
and `import` while the worker is imported. `write` sleeps whenever a rank writes its part of a checkpoint, and `log`
whenever rank 0 writes to the record.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable
from typing import Any

HURT = {
    "data": ("trainworks.worker.data.reader", "BatchReader", "next_batch"),
    "compute": ("trainworks.worker.determinism", None, "seed_step"),
    "network": ("trainworks.worker.parallel.data_parallel", "_Noted", "__init__"),
    "start": ("trainworks.worker.data.tokens", "TokenDataset", "__init__"),
    "connect": ("trainworks.worker.mesh", None, "join_group"),
    "import": ("trainworks.worker.train", None, ""),
    "write": ("trainworks.worker.checkpoint.shards", "ShardWriter", "_write_items"),
    "log": ("trainworks.worker.telemetry", None, "append_metrics"),
}
PLACE, RANKS, SECONDS, FIRST = (os.environ.get("TRAINWORKS_SLOW") or ":::").split(":")


class _Loader(importlib.abc.Loader):
    """Runs the module as it is, then slows one of its functions down."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._real.exec_module(module)
        slow_down(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = _Loader(spec.loader)
        return spec


def slow_down(module: Any) -> None:
    """Put the sleep into the module: before its function, or into the collectives that `_Noted` is made of."""
    if PLACE == "import":
        time.sleep(float(SECONDS))
        return
    owner = getattr(module, OWNER) if OWNER else module
    healthy = getattr(owner, NAME)
    if PLACE != "network":
        setattr(owner, NAME, slowed(healthy))
        return

    def make(noted: Any, collective: Callable[..., Any], *arguments: Any) -> None:
        healthy(noted, slowed(collective), *arguments)

    setattr(owner, NAME, make)


def slowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function after a sleep, on the chosen ranks and from the chosen call on."""
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= int(FIRST) and RANKS in ("all", os.environ.get("RANK")):
            time.sleep(float(SECONDS))
        return function(*arguments, **options)

    return call


if PLACE:
    MODULE, OWNER, NAME = HURT[PLACE]
    sys.meta_path.insert(0, _Finder())
