"""nvbandwidth: copies between host and devices, and between devices, as text or JSON; in one direction, GB are 10^9."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import OutputReader, ToolOutput

_HOST = re.compile(r"(?:host_to_device|device_to_host)_memcpy_(?:ce|sm)")
_PAIR = re.compile(r"device_to_device_memcpy_(?:read|write)_(?:ce|sm)")
"""Test cases of one copy at a time; the others load several links at once."""
_ROW = re.compile(r"\s*\d+((?:\s+(?:N/A|\d+\.\d+))+)\s*")


def _read_text(output: ToolOutput) -> list[Measurement]:
    found: list[Measurement] = []
    case, row = "", 0
    for line in output.lines:
        if running := re.match(r"Running (\w+)\.", line):
            case, row = running[1], 0
        elif case and (values := _ROW.fullmatch(line)):
            found += _of_row(output, case, row, values[1].split())
            row += 1
        elif line.startswith(f"SUM {case}"):
            case = ""
    if case:
        raise output.truncated(f"the sum of `{case}`")
    return _checked(output, found)


def _read_json(output: ToolOutput) -> list[Measurement]:
    cases = (output.data or {})["nvbandwidth"].get("testcases", ())
    found = [
        one
        for case in cases
        for row, values in enumerate(case.get("bandwidth_matrix", ()))
        for one in _of_row(output, case["name"], row, values)
    ]
    return _checked(output, found)


def _checked(output: ToolOutput, found: list[Measurement]) -> list[Measurement]:
    if not found:
        raise output.error(
            "no copy of a single link",
            hint="run `nvbandwidth -t host_to_device_memcpy_ce device_to_device_memcpy_read_ce`",
        )
    return found


def _of_row(output: ToolOutput, case: str, row: int, values: Sequence[str | float]) -> Iterator[Measurement]:
    device = output.find(r"Device \d+: ([^(\n\"]*[^(\s\"])")
    version = output.find(r"nvbandwidth Version\W+(v[\d.]+)")
    tool = f"nvbandwidth {version[1]}" if version else "nvbandwidth"
    conditions: dict[str, str | float] = {"operation": case}
    if device:
        conditions["device"] = device[1]
    for column, value in enumerate(values):
        if value == "N/A" or float(value) == 0:
            continue
        if _HOST.fullmatch(case):
            yield Measurement(Quantity.HOST_LINK, float(value) * 1e9, f"gpu{column}", tool, conditions)
        elif _PAIR.fullmatch(case):
            of = conditions | {"transport": "scale-up"}
            name = f"gpu{row} <-> gpu{column}"
            yield Measurement(Quantity.LINK_BANDWIDTH, float(value) * 1e9, name, tool, of)


JSON_READER = OutputReader("nvbandwidth", "nvbandwidth", _read_json)
TEXT_READER = OutputReader("nvbandwidth", r"^nvbandwidth Version|^memcpy [CS][EM] [CG]PU\(row\)", _read_text)
