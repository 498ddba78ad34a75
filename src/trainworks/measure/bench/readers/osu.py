"""OSU micro-benchmarks: `osu_bw`, `osu_bibw`, `osu_latency`, and collectives. Its MB are 10^6 bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainworks.catalog.bounds import Operation
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import OutputReader, ToolOutput

_TITLE = re.compile(r"# OSU MPI(?P<device>-\w+)? (?:(?P<test>.+) )?(?P<kind>Latency|Bandwidth) Test v(?P<version>\S+)")
_COLLECTIVES: Mapping[str, Operation] = {
    "Allreduce": "all_reduce",
    "Allgather": "all_gather",
    "Reduce_scatter": "reduce_scatter",
    "All-to-All": "all_to_all",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_ROW = re.compile(r"\s*([1-9]\d*)\s+([\d.]+)(?:\s+[\d.]+)*\s*")


def _read(output: ToolOutput) -> list[Measurement]:
    found: list[Measurement] = []
    title: re.Match[str] | None = None
    for number, line in output.numbered():
        if line.startswith("# OSU MPI"):
            title = _TITLE.match(line)
            if title is None or title["test"] not in (None, "Bi-Directional", *_COLLECTIVES):
                raise output.error(
                    f"`{line[2:]}` has no verdict", number, hint="give osu_bw, osu_latency, osu_allreduce"
                )
        elif title and (row := _ROW.fullmatch(line)):
            found.append(_measurement(output, title, float(row[1]), float(row[2])))
    if not found:
        raise output.truncated("its first result")
    return found


def _measurement(output: ToolOutput, title: re.Match[str], size_bytes: float, printed: float) -> Measurement:
    conditions: dict[str, str | float] = {"bytes": size_bytes, "transport": "mpi"}
    conditions["device"] = "accelerator" if title["device"] else "cpu"
    tool = f"OSU micro-benchmarks {title['version']}"
    if title["kind"] == "Bandwidth":
        both = {"direction": "both"} if title["test"] else {}
        return Measurement(Quantity.LINK_BANDWIDTH, printed * 1e6, output.name, tool, conditions | both)
    if title["test"] is None:
        return Measurement(Quantity.LINK_LATENCY, printed * 1e-6, output.name, tool, conditions)
    operation = {"operation": _COLLECTIVES[title["test"]]}
    rate = size_bytes / (printed * 1e-6) if printed else 0.0
    return Measurement(Quantity.ALGORITHM_BANDWIDTH, rate, output.name, tool, conditions | operation)


READER = OutputReader("OSU micro-benchmarks", r"^# OSU MPI", _read)
