"""Lines that a benchmark prints: one JSON object per finished part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainworks import __version__

TOOL = f"trainworks {__version__}, torch {torch.__version__}"


def figure(quantity: str, value: float, subject: str, **conditions: str | float) -> dict[str, Any]:
    """A figure with the keys of `measure.bench.measurement.Measurement`."""
    return {"quantity": quantity, "value": value, "subject": subject, "tool": TOOL, "conditions": conditions}


def program_output(
    text: str, subject: str, version: str = "", *, conditions: Mapping[str, str | float]
) -> dict[str, Any]:
    """What another program printed in the place of a figure; the program of the node reads it.

    Args:
        text: the whole output.
        subject: what was measured.
        version: of the program, where its output does not have it.
        conditions: added to those of the output.
    """
    return {"output": text, "subject": subject, "version": version, "conditions": dict(conditions)}


def print_nodes(names: Sequence[str]) -> None:
    """Print the names of all nodes, before the first part between them."""
    print(json.dumps({"nodes": list(names)}), flush=True)  # noqa: T201


def print_end() -> None:
    """Print that nothing is missing: a program that is killed does not."""
    print(json.dumps({"end": True}), flush=True)  # noqa: T201


def print_part(part: str, figures: Sequence[dict[str, Any]] = (), skipped: str = "") -> None:
    """Print a finished part; `skipped` says why it has no figures."""
    print(json.dumps({"part": part, "figures": list(figures), "skipped": skipped}), flush=True)  # noqa: T201
