"""perftest: `ib_write_bw`, `ib_send_bw`, `ib_read_bw` and the tests of latency.

Its MB are 2^20 bytes, its Gb 10^9 bits (linux-rdma/perftest, issue 225: 11728 MB/s on a port of 100 Gb/s).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import MEBIBYTE, OutputReader, ToolOutput

_TITLE = re.compile(r"\s*(RDMA_Write|RDMA_Read|Send|Atomic)\s.*?(BW|Latency) Test")
_UNITS = {"MB/sec": MEBIBYTE, "Gb/sec": 1e9 / 8}
_VERBS = {"RDMA_Write": "ib_write", "RDMA_Read": "ib_read", "Send": "ib_send", "Atomic": "ib_atomic"}


def _read(output: ToolOutput) -> list[Measurement]:
    found = list(_rows(output))
    if not found:
        raise output.truncated("its first result")
    return found


def _rows(output: ToolOutput) -> Iterator[Measurement]:
    tool, device, both, columns = "", output.name, False, ""
    for _, line in output.numbered():
        if title := _TITLE.match(line):
            tool = f"{_VERBS[title[1]]}_{'bw' if title[2] == 'BW' else 'lat'}"
            both = "Bidirectional" in line
        elif named := re.search(r"Device\s*:\s*(\S+)", line):
            device = named[1]
        elif line.lstrip().startswith("#bytes"):
            columns = line
        elif columns and re.match(r"\s*\d+\s+\d+\s+[\d.]+", line):
            numbers = [float(word) for word in line.split()]
            yield (
                _latency(numbers, columns, device, tool)
                if "usec" in columns
                else _rate(numbers, columns, device, tool, both=both)
            )


def _rate(numbers: list[float], columns: str, device: str, tool: str, *, both: bool) -> Measurement:
    unit = next((size for name, size in _UNITS.items() if f"average[{name}]" in columns), MEBIBYTE)
    conditions: dict[str, str | float] = {"bytes": numbers[0], "transport": "rdma"}
    conditions |= {"direction": "both"} if both else {}
    return Measurement(Quantity.LINK_BANDWIDTH, numbers[3] * unit, device, tool, conditions)


def _latency(numbers: list[float], columns: str, device: str, tool: str) -> Measurement:
    """The typical latency, which is the median; the mean where a test of a fixed duration has no other."""
    names = re.findall(r"#\w+|t_\w+|99\S*%", columns)
    at = names.index("t_typical") if "t_typical" in names else names.index("t_avg")
    conditions: dict[str, str | float] = {"bytes": numbers[0], "transport": "rdma"}
    return Measurement(Quantity.LINK_LATENCY, numbers[at] * 1e-6, device, tool, conditions)


READER = OutputReader("perftest", r"^\s*(?:RDMA_Write|RDMA_Read|Send|Atomic) .*(?:BW|Latency) Test", _read)
