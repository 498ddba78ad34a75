"""Lines that a benchmark prints: one JSON object per finished part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypedDict

import torch

from trainworks import __version__

TOOL = f"trainworks {__version__}, torch {torch.__version__}"


Conditions = Mapping[str, str | float]


class BenchFigure(TypedDict):
    """A figure with the keys of `measure.bench.measurement.Measurement`."""

    quantity: str
    value: float
    subject: str
    tool: str
    conditions: Conditions


class ProgramText(TypedDict):
    """What another program printed in the place of a figure; the program of the node reads it."""

    output: str
    subject: str
    version: str
    """Empty where the output has it."""
    conditions: Conditions
    """Added to those of the output."""


def figure(quantity: str, value: float, subject: str, **conditions: str | float) -> BenchFigure:
    """A figure that this program measured."""
    return {"quantity": quantity, "value": value, "subject": subject, "tool": TOOL, "conditions": conditions}


def print_nodes(names: Sequence[str]) -> None:
    """Print the names of all nodes, before the first part between them."""
    print(json.dumps({"nodes": list(names)}), flush=True)  # noqa: T201


def print_end() -> None:
    """Print that nothing is missing: a program that is killed does not."""
    print(json.dumps({"end": True}), flush=True)  # noqa: T201


def print_part(part: str, figures: Sequence[BenchFigure | ProgramText] = (), skipped: str = "") -> None:
    """Print a finished part; `skipped` says why it has no figures."""
    print(json.dumps({"part": part, "figures": list(figures), "skipped": skipped}), flush=True)  # noqa: T201
