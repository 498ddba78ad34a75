"""fio: its JSON, and its terse output of version 3, whose rates are in KiB/s (fio documentation, terse output)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import KIBIBYTE, OutputReader, ToolOutput

_TERSE_FIELDS = 121
"""Fields of a terse line without disks."""
_TERSE_OFFSETS = {"read": 5, "write": 46}
"""Field of the KiB that were read or written; rate and operations a second follow."""
_QUANTITIES = {"read": Quantity.STORAGE_READ, "write": Quantity.STORAGE_WRITE}


def _read_json(output: ToolOutput) -> list[Measurement]:
    data = output.data or {}
    found = [one for job in data["jobs"] for one in _of_job(output, job, data)]
    if not found:
        raise output.error("no job has read or written anything", hint="look at the errors of the jobs")
    return found


def _of_job(output: ToolOutput, job: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Measurement]:
    if job.get("error"):
        raise output.error(
            f"job `{job['jobname']}` failed with error {job['error']}", output.line_of(r'"error" : [1-9]')
        )
    options = {**data.get("global options", {}), **job.get("job options", {})}
    subject = str(options.get("filename") or options.get("directory") or job["jobname"])
    tool, job_name = str(data["fio version"]), str(job["jobname"])
    conditions = {name: str(options[key]) for name, key in _OPTIONS.items() if key in options}
    for direction, quantity in _QUANTITIES.items():
        part = job.get(direction, {})
        if part.get("io_bytes"):
            of = {"operation": direction, "job": job_name, **conditions}
            yield Measurement(quantity, float(part["bw_bytes"]), subject, tool, of)
            yield Measurement(Quantity.STORAGE_OPERATIONS, float(part["iops"]), subject, tool, of)


_OPTIONS = {"block": "bs", "pattern": "rw", "depth": "iodepth", "jobs": "numjobs", "engine": "ioengine"}


def _read_terse(output: ToolOutput) -> list[Measurement]:
    return [one for number, line in output.numbered() for one in _of_line(output, number, line)]


def _of_line(output: ToolOutput, number: int, line: str) -> Iterator[Measurement]:
    fields = line.split(";")
    if fields[0] != "3":
        return
    if len(fields) < _TERSE_FIELDS:
        raise output.error(f"a terse line of {len(fields)} fields, of at least {_TERSE_FIELDS}", number)
    for direction, at in _TERSE_OFFSETS.items():
        if float(fields[at]):
            of = {"operation": direction, "job": fields[2]}
            yield Measurement(_QUANTITIES[direction], float(fields[at + 1]) * KIBIBYTE, fields[2], fields[1], of)
            yield Measurement(Quantity.STORAGE_OPERATIONS, float(fields[at + 2]), fields[2], fields[1], of)


JSON_READER = OutputReader("fio", "fio version", _read_json)
TERSE_READER = OutputReader("fio", r"^3;fio-[\d.]+", _read_terse)
