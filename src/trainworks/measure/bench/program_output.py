"""Parts that a program with torch printed: figures of its own, and what other programs printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainworks.errors import UsageError
from trainworks.measure.bench.measurement import Measurement
from trainworks.measure.bench.node_record import PART, BenchPart
from trainworks.measure.bench.readers.output import ToolOutput
from trainworks.measure.bench.readers.registry import read_output


def read_part(printed: Mapping[str, Any]) -> BenchPart:
    """A part as the worker prints it; without figures where the output of another program cannot be read."""
    items = printed["figures"]
    plain = PART.validate_python({"figures": [each for each in items if "output" not in each], "skipped": ""})
    try:
        read = [figure for each in items if "output" in each for figure in _read_output(each)]
    except UsageError as error:
        return BenchPart(skipped=error.message)
    return BenchPart((*read, *plain.figures), str(printed["skipped"]))


def _read_output(item: Mapping[str, Any]) -> list[Measurement]:
    """Figures of an output, of the subject and conditions that the rank knows."""
    return [
        replace(
            each,
            subject=item["subject"],
            tool=f"{each.tool} {item['version']}".strip(),
            conditions={**each.conditions, **item["conditions"]},
        )
        for each in read_output(ToolOutput(f"output of {item['subject']}", item["output"]))
    ]
