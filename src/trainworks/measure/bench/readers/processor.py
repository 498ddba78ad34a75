"""STREAM, HPL, and HPCC, which has both. STREAM's MB and HPCC's GB are decimal (stream.c: 1.0E-06 * bytes)."""

from __future__ import annotations

import re

from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import OutputReader, ToolOutput

_HPL = re.compile(r"W[RC]\w+\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+[\d.]+\s+([\d.]+(?:e[+-]\d+)?)\s*")


def _read_stream(output: ToolOutput) -> list[Measurement]:
    rates = re.findall(r"^\s*Triad:\s+([\d.]+)", output.text, re.MULTILINE)
    if not rates:
        raise output.truncated("the rate of the triad")
    if line := output.line_of("Failed Validation"):
        raise output.error("STREAM computed wrong values", line, hint="check the memory of the node")
    threads = output.find(r"Number of Threads counted = (\d+)")
    size = output.find(r"Array size = (\d+)")
    conditions: dict[str, str | float] = {"operation": "triad"}
    conditions |= {"threads": float(threads[1])} if threads else {}
    conditions |= {"elements": float(size[1])} if size else {}
    return [
        Measurement(Quantity.MEMORY_BANDWIDTH, float(rate) * 1e6, output.name, "STREAM", conditions) for rate in rates
    ]


def _read_hpl(output: ToolOutput) -> list[Measurement]:
    if (line := output.line_of(r"\.\.\. FAILED")) is not None:
        raise output.error("the solution of the linear system is wrong", line, hint="check processors and memory")
    found = [_of_hpl(output, row) for line in output.lines if (row := _HPL.fullmatch(line))]
    if not found or not output.find(r"End of Tests\."):
        raise output.truncated("`End of Tests.`")
    return found


def _of_hpl(output: ToolOutput, row: re.Match[str]) -> Measurement:
    conditions = {"n": float(row[1]), "block": float(row[2]), "ranks": float(row[3]) * float(row[4])}
    return Measurement(Quantity.HPL, float(row[5]) * 1e9, output.name, "HPL", conditions)


def _read_hpcc(output: ToolOutput) -> list[Measurement]:
    """HPL, and the triad of all ranks at once; the summary has it for one rank."""
    if not output.find("^End of Summary section"):
        raise output.truncated("`End of Summary section`")
    figures = dict(re.findall(r"^(\w+)=(\S+)$", output.text, re.MULTILINE))
    ranks = float(figures["CommWorldProcs"])
    tool = f"HPCC {figures['VersionMajor']}.{figures['VersionMinor']}.{figures['VersionMicro']}"
    triad = float(figures["StarSTREAM_Triad"]) * 1e9 * ranks
    latency = float(figures["MaxPingPongLatency_usec"]) * 1e-6
    rate = float(figures["MinPingPongBandwidth_GBytes"]) * 1e9
    pair: dict[str, str | float] = {"transport": "mpi", "device": "cpu"}
    memory: dict[str, str | float] = {
        "operation": "triad",
        "ranks": ranks,
        "elements": float(figures["STREAM_VectorSize"]),
    }
    return [
        Measurement(Quantity.HPL, float(figures["HPL_Tflops"]) * 1e12, output.name, tool, {"ranks": ranks}),
        Measurement(Quantity.MEMORY_BANDWIDTH, triad, output.name, tool, memory),
        Measurement(Quantity.LINK_LATENCY, latency, f"{output.name}, the slowest pair", tool, pair),
        Measurement(Quantity.LINK_BANDWIDTH, rate, f"{output.name}, the slowest pair", tool, pair),
    ]


STREAM_READER = OutputReader("STREAM", r"^\s*STREAM version", _read_stream)
HPL_READER = OutputReader("HPL", r"^HPLinpack \d", _read_hpl)
HPCC_READER = OutputReader(
    "HPCC", r"^Begin of Summary section|^This is the DARPA/DOE HPC Challenge", _read_hpcc, ("HPL",)
)
