"""Precision of a workload: chosen if the run file sets none, refused if the machine does not support it."""

from __future__ import annotations

from typing import Literal

from trainworks.config.source import Source
from trainworks.errors import MissingExtraError, UsageError
from trainworks.record.environment import HostFacts

_NEEDS = {"tf32": ((8, 0), "Ampere"), "fp8": ((8, 9), "Ada or Hopper")}
"""Least compute capability whose tensor cores have the format (NVIDIA, CUDA C++ Programming Guide, "Compute
Capabilities"), and what it is called."""


def default_precision(host: HostFacts, device: str) -> Literal["bf16", "fp32"]:
    """bf16, or fp32 on a processor that only emulates it."""
    return "bf16" if device != "cpu" or "bf16" in host.processor_formats else "fp32"


def check_precision(precision: str, host: HostFacts, source: Source | None) -> None:
    """Refuse a precision that the accelerators here have no arithmetic for.

    Raises:
        UsageError: with the run file's line.
        MissingExtraError: fp8 without torchao.
    """
    text = _problem(precision, host)
    if text is not None:
        place = source.place(("workload", "precision")) if source else None
        raise UsageError(text, place=place, hint=f"train in {'fp32' if precision == 'tf32' else 'bf16'}")
    if precision == "fp8" and "torchao" not in host.packages:
        raise MissingExtraError("torchao", "fp8")


def _problem(precision: str, host: HostFacts) -> str | None:
    if precision == "fp4":
        return "precision fp4 can be planned, not trained, by this version"
    if precision not in _NEEDS:
        return None
    (major, minor), name = _NEEDS[precision]
    what = (
        f"precision {precision} is arithmetic of NVIDIA tensor cores from compute capability {major}.{minor} ({name})"
    )
    if not host.accelerators:
        return f"{what}, and this machine has no accelerator"
    weakest = min(host.accelerators, key=lambda facts: facts.compute_capability or (0, 0))
    if (weakest.compute_capability or (0, 0)) >= (major, minor):
        return None
    has = ".".join(map(str, weakest.compute_capability)) if weakest.compute_capability else "an unknown one"
    return f"{what}; accelerator {weakest.index} ({weakest.name}) has {has}"
