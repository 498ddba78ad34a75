"""Readers of what measures a node's processors, memory and storage.

STREAM, HPL, and HPCC, which has both. STREAM's MB and HPCC's GB are decimal (stream.c: 1.0E-06 * bytes).
fio: its JSON, and its terse output of version 3, whose rates are in KiB/s (fio documentation, terse output).
mdtest: operations on files and folders a second, the mean of the iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import KIBIBYTE, OutputReader, ToolOutput

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
    found = []
    for row in filter(None, map(_HPL.fullmatch, output.lines)):
        conditions = {"n": float(row[1]), "block": float(row[2]), "ranks": float(row[3]) * float(row[4])}
        found.append(Measurement(Quantity.HPL, float(row[5]) * 1e9, output.name, "HPL", conditions))
    if not found or not output.find(r"End of Tests\."):
        raise output.truncated("`End of Tests.`")
    return found


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


_TERSE_FIELDS = 121
"""Fields of a terse line without disks."""
_TERSE_OFFSETS = {"read": 5, "write": 46}
"""Field of the KiB that were read or written; rate and operations a second follow."""
_QUANTITIES = {"read": Quantity.STORAGE_READ, "write": Quantity.STORAGE_WRITE}


def _read_fio_json(output: ToolOutput) -> list[Measurement]:
    data = output.data or {}
    found = [one for job in data["jobs"] for one in _of_fio_job(output, job, data)]
    if not found:
        raise output.error("no job has read or written anything", hint="look at the errors of the jobs")
    return found


def _of_fio_job(output: ToolOutput, job: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Measurement]:
    if job.get("error"):
        raise output.error(
            f"job `{job['jobname']}` failed with error {job['error']}", output.line_of(r'"error" : [1-9]')
        )
    options = {**data.get("global options", {}), **job.get("job options", {})}
    subject = str(options.get("filename") or options.get("directory") or job["jobname"])
    tool, job_name = str(data["fio version"]), str(job["jobname"])
    conditions = {name: str(options[key]) for name, key in _FIO_OPTIONS.items() if key in options}
    for direction, quantity in _QUANTITIES.items():
        part = job.get(direction, {})
        if part.get("io_bytes"):
            of = {"operation": direction, "job": job_name, **conditions}
            yield Measurement(quantity, float(part["bw_bytes"]), subject, tool, of)
            yield Measurement(Quantity.STORAGE_OPERATIONS, float(part["iops"]), subject, tool, of)


_FIO_OPTIONS = {"block": "bs", "pattern": "rw", "depth": "iodepth", "jobs": "numjobs", "engine": "ioengine"}


def _read_terse(output: ToolOutput) -> list[Measurement]:
    found = []
    for number, line in output.numbered():
        fields = line.split(";")
        if fields[0] != "3":
            continue
        if len(fields) < _TERSE_FIELDS:
            raise output.error(f"a terse line of {len(fields)} fields, of at least {_TERSE_FIELDS}", number)
        for direction, at in _TERSE_OFFSETS.items():
            if float(fields[at]):
                of = {"operation": direction, "job": fields[2]}
                rate = float(fields[at + 1]) * KIBIBYTE
                found.append(Measurement(_QUANTITIES[direction], rate, fields[2], fields[1], of))
                operations = float(fields[at + 2])
                found.append(Measurement(Quantity.STORAGE_OPERATIONS, operations, fields[2], fields[1], of))
    return found


FIO_JSON_READER = OutputReader("fio", "fio version", _read_fio_json)
FIO_TERSE_READER = OutputReader("fio", r"^3;fio-[\d.]+", _read_terse)


_MEAN, _MEAN_OF_ITERATIONS = 2, 5
"""Columns of the mean: max, min, mean; or those for each rank and then for each iteration."""


def _read_mdtest(output: ToolOutput) -> list[Measurement]:
    summary = output.line_of(r"^SUMMARY rate")
    if summary is None or (output.find("^-- started at") and not output.find("^-- finished at")):
        raise output.truncated("its summary")
    path = output.find(r"(?:^Path\s*:|\s-d)\s+(\S+)")
    subject = path[1] if path else output.name
    column = _MEAN_OF_ITERATIONS if output.find("per Iteration") else _MEAN
    found = []
    for line in output.lines[summary:]:
        if row := re.fullmatch(r"\s+((?:Directory|File|Tree) \w+)\s*:?\s+(\d[\d.]*(?:\s+\d[\d.]*)+)\s*", line):
            rate = float(row[2].split()[column])
            conditions = {"operation": row[1].lower()}
            found.append(Measurement(Quantity.METADATA_OPERATIONS, rate, subject, "mdtest", conditions))
    if not found:
        raise output.truncated("the first row of its summary")
    return found


MDTEST_READER = OutputReader("mdtest", r"^SUMMARY rate|^-- started at .* --$|^mdtest-[\d.]+", _read_mdtest)
