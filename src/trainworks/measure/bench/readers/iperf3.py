"""iperf3: its JSON and its text. Bits are 10^9 to the Gb, in both."""

from __future__ import annotations

import re

from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import OutputReader, ToolOutput

_RECEIVED = re.compile(r"\[\s*(SUM|\d+)\].*?\s([\d.]+) ([KMG]?)bits/sec\s.*receiver")
_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}


def _read_json(output: ToolOutput) -> list[Measurement]:
    data = output.data or {}
    if data.get("error"):
        raise output.error(f"iperf3 failed: {data['error']}", output.line_of('"error"'))
    end, start = data["end"], data["start"]
    received = end.get("sum_received") or end.get("sum")
    if not received:
        raise output.error("the result of the receiver is missing")
    subject = _subject([pair["remote_host"] for pair in start.get("connected", ())], output)
    conditions: dict[str, str | float] = {"transport": start["test_start"]["protocol"].lower()}
    conditions["streams"] = start["test_start"]["num_streams"]
    if "retransmits" in end.get("sum_sent", {}):
        conditions["retransmits"] = end["sum_sent"]["retransmits"]
    rate = received["bits_per_second"] / 8
    return [Measurement(Quantity.LINK_BANDWIDTH, rate, subject, str(start["version"]), conditions)]


def _subject(hosts: list[str], output: ToolOutput) -> str:
    return f"to {hosts[0]}" if hosts else output.name


def _read_text(output: ToolOutput) -> list[Measurement]:
    runs = [number for number, line in output.numbered() if line.startswith("Connecting to host")]
    if len(runs) > 1:
        raise output.error("a second run of iperf3 begins", runs[1], hint="give each run a file of its own")
    received = [found for line in output.lines if (found := _RECEIVED.search(line))]
    if not received:
        raise output.truncated("the line of the receiver")
    last = next((found for found in received if found[1] == "SUM"), received[-1])
    rate = float(last[2]) * _PREFIX[last[3]] / 8
    host = output.find(r"Connecting to host (\S+),")
    subject = _subject([host[1]] if host else [], output)
    return [Measurement(Quantity.LINK_BANDWIDTH, rate, subject, "iperf3", {"transport": "tcp"})]


JSON_READER = OutputReader("iperf3", "start", _read_json)
TEXT_READER = OutputReader("iperf3", r"^\[ ID\] Interval\s+Transfer\s+Bi", _read_text)
