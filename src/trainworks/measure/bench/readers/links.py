"""Readers of transfers between two nodes, two devices, or a device and its host.

iperf3: its JSON and its text. Bits are 10^9 to the Gb, in both.
perftest: `ib_write_bw`, `ib_send_bw`, `ib_read_bw` and the tests of latency. Its MB are 2^20 bytes, its Gb 10^9 bits
(linux-rdma/perftest, issue 225: 11728 MB/s on a port of 100 Gb/s).
nvbandwidth: copies between host and devices, and between devices, as text or JSON; in one direction, GB are 10^9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import MEBIBYTE, OutputReader, ToolOutput

_RECEIVED = re.compile(r"\[\s*(SUM|\d+)\].*?\s([\d.]+) ([KMG]?)bits/sec\s.*receiver")
_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}


def _read_iperf3_json(output: ToolOutput) -> list[Measurement]:
    data = output.data or {}
    if data.get("error"):
        raise output.error(f"iperf3 failed: {data['error']}", output.line_of('"error"'))
    end, start = data["end"], data["start"]
    received = end.get("sum_received") or end.get("sum")
    if not received:
        raise output.error("the result of the receiver is missing")
    subject = _to_host([pair["remote_host"] for pair in start.get("connected", ())], output)
    conditions: dict[str, str | float] = {"transport": start["test_start"]["protocol"].lower()}
    conditions["streams"] = start["test_start"]["num_streams"]
    if "retransmits" in end.get("sum_sent", {}):
        conditions["retransmits"] = end["sum_sent"]["retransmits"]
    rate = received["bits_per_second"] / 8
    return [Measurement(Quantity.LINK_BANDWIDTH, rate, subject, str(start["version"]), conditions)]


def _to_host(hosts: list[str], output: ToolOutput) -> str:
    return f"to {hosts[0]}" if hosts else output.name


def _read_iperf3_text(output: ToolOutput) -> list[Measurement]:
    runs = [number for number, line in output.numbered() if line.startswith("Connecting to host")]
    if len(runs) > 1:
        raise output.error("a second run of iperf3 begins", runs[1], hint="give each run a file of its own")
    received = [found for line in output.lines if (found := _RECEIVED.search(line))]
    if not received:
        raise output.truncated("the line of the receiver")
    last = next((found for found in received if found[1] == "SUM"), received[-1])
    rate = float(last[2]) * _PREFIX[last[3]] / 8
    host = output.find(r"Connecting to host (\S+),")
    subject = _to_host([host[1]] if host else [], output)
    return [Measurement(Quantity.LINK_BANDWIDTH, rate, subject, "iperf3", {"transport": "tcp"})]


IPERF3_JSON_READER = OutputReader("iperf3", "start", _read_iperf3_json)
IPERF3_READER = OutputReader("iperf3", r"^\[ ID\] Interval\s+Transfer\s+Bi", _read_iperf3_text)


_UNITS = {"MB/sec": MEBIBYTE, "Gb/sec": 1e9 / 8}
_VERBS = {"RDMA_Write": "ib_write", "RDMA_Read": "ib_read", "Send": "ib_send", "Atomic": "ib_atomic"}


def _read_perftest(output: ToolOutput) -> list[Measurement]:
    found = list(_perftest_rows(output))
    if not found:
        raise output.truncated("its first result")
    return found


def _perftest_rows(output: ToolOutput) -> Iterator[Measurement]:
    tool, device, both, columns = "", output.name, False, ""
    for _, line in output.numbered():
        if title := re.match(r"\s*(RDMA_Write|RDMA_Read|Send|Atomic)\s.*?(BW|Latency) Test", line):
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


PERFTEST_READER = OutputReader(
    "perftest", r"^\s*(?:RDMA_Write|RDMA_Read|Send|Atomic) .*(?:BW|Latency) Test", _read_perftest
)


_PAIR = re.compile(r"device_to_device_memcpy_(?:read|write)_(?:ce|sm)")
"""Test cases of one copy at a time; the others load several links at once."""


def _read_nvbandwidth(output: ToolOutput) -> list[Measurement]:
    found: list[Measurement] = []
    case, row = "", 0
    for line in output.lines:
        if running := re.match(r"Running (\w+)\.", line):
            case, row = running[1], 0
        elif case and (values := re.fullmatch(r"\s*\d+((?:\s+(?:N/A|\d+\.\d+))+)\s*", line)):
            found += _copies(output, case, row, values[1].split())
            row += 1
        elif line.startswith(f"SUM {case}"):
            case = ""
    if case:
        raise output.truncated(f"the sum of `{case}`")
    return _checked_copies(output, found)


def _read_nvbandwidth_json(output: ToolOutput) -> list[Measurement]:
    found = [
        one
        for case in (output.data or {})["nvbandwidth"].get("testcases", ())
        for row, values in enumerate(case.get("bandwidth_matrix", ()))
        for one in _copies(output, case["name"], row, values)
    ]
    return _checked_copies(output, found)


def _checked_copies(output: ToolOutput, found: list[Measurement]) -> list[Measurement]:
    if not found:
        raise output.error(
            "no copy of a single link",
            hint="run `nvbandwidth -t host_to_device_memcpy_ce device_to_device_memcpy_read_ce`",
        )
    return found


def _copies(output: ToolOutput, case: str, row: int, values: Sequence[str | float]) -> Iterator[Measurement]:
    device = output.find(r"Device \d+: ([^(\n\"]*[^(\s\"])")
    version = output.find(r"nvbandwidth Version\W+(v[\d.]+)")
    tool = f"nvbandwidth {version[1]}" if version else "nvbandwidth"
    conditions: dict[str, str | float] = {"operation": case}
    if device:
        conditions["device"] = device[1]
    for column, value in enumerate(values):
        if value == "N/A" or float(value) == 0:
            continue
        if re.fullmatch(r"(?:host_to_device|device_to_host)_memcpy_(?:ce|sm)", case):
            yield Measurement(Quantity.HOST_LINK, float(value) * 1e9, f"gpu{column}", tool, conditions)
        elif _PAIR.fullmatch(case):
            of = conditions | {"transport": "scale-up"}
            yield Measurement(Quantity.LINK_BANDWIDTH, float(value) * 1e9, f"gpu{row} <-> gpu{column}", tool, of)


NVBANDWIDTH_JSON_READER = OutputReader("nvbandwidth", "nvbandwidth", _read_nvbandwidth_json)
NVBANDWIDTH_READER = OutputReader(
    "nvbandwidth", r"^nvbandwidth Version|^memcpy [CS][EM] [CG]PU\(row\)", _read_nvbandwidth
)
