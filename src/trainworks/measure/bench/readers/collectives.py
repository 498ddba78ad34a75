"""Readers of collectives.

nccl-tests and rccl-tests: `all_reduce_perf` and its siblings.
OSU micro-benchmarks: `osu_bw`, `osu_bibw`, `osu_latency`, and collectives. Its MB are 10^6 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainworks.catalog.bounds import Operation, bus_factor
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import OutputReader, ToolOutput

_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s.*?\son\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*\S)?")
_NAMES: Mapping[str, Operation] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send_recv",
}
_ADDING: tuple[Operation, ...] = ("all_reduce", "reduce_scatter", "reduce")
_MOVING: tuple[Operation, ...] = ("all_gather", "broadcast")
"""Collectives by whether they add up; others have the factors of these, and their program tells them apart."""
_COUNTS = (*range(1, 129), *(2**power for power in range(8, 18)))
"""Numbers of ranks whose factors differ in three digits."""
_DIGIT = 0.01
"""GB/s by which two printed bandwidths may be off."""
_FEW_DIGITS = 10.0
"""GB/s below which a bandwidth with two decimals has fewer digits than a time with four."""
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:")
_HEAD = re.compile(r"#\s*nThread\b|#\s*Using devices|#?\s*size\s+count\s+type\b")


def _read_tests(output: ToolOutput) -> list[Measurement]:
    """The rows of all tests; each ends with its average, or where the head of the next one follows its rows."""
    tests, start, has_rows = list[ToolOutput](), 0, False
    for number, line in output.numbered():
        if has_rows and (_HEAD.match(line) or _AVERAGE.search(line)):
            end = number if _AVERAGE.search(line) else number - 1
            tests.append(output.part(start, end))
            start, has_rows = end, False
        has_rows = has_rows or bool(re.match(r"\s*\d+\s+\d+\s+[a-z]", line))
    if has_rows or not start:
        tests.append(output.part(start, len(output.lines)))
    return [each for test in tests for each in _read_test(test)]


def _read_test(output: ToolOutput) -> list[Measurement]:
    ranks = [found for line in output.lines if (found := _RANK.match(line))]
    if (first := sum(int(found[1]) == 0 for found in ranks)) > 1:
        raise output.error(
            f"{first} programs have a rank 0: they measured alone, and not together",
            output.line_of(r"Rank\s+0\b"),
            hint="build nccl-tests with `MPI=1`, and start it with the MPI it was built with",
        )
    conditions: dict[str, str | float] = {}
    if ranks:
        conditions = {"ranks": len(ranks), "nodes": len({found[2] for found in ranks})}
        conditions |= {"device": ranks[0][3]} if ranks[0][3] else {}
    rows = list(_rows(output))
    if not rows:
        raise output.truncated("its first result")
    operation = _operation(output, rows, len(ranks))
    version = output.find(r"^# nccl-tests version ([\d.]+)")
    tool = f"{operation} of nccl-tests {version[1] if version else ''}".rstrip()
    hosts = ", ".join(dict.fromkeys(found[2] for found in ranks)) or output.name
    return [
        Measurement(
            Quantity.BUS_BANDWIDTH,
            row["busbw"] * 1e9,
            hosts,
            tool,
            {
                "operation": operation,
                "bytes": row["size"],
                **({"seconds": row["seconds"]} if row["seconds"] else {}),
                **conditions,
            },
        )
        for row in rows
        if row["size"]
    ]


def _rows(output: ToolOutput) -> Iterator[dict[str, float]]:
    """Rows as the header names their columns; of the results out of place and in place the better one."""
    columns: list[str] = []
    for number, line in output.numbered():
        words = line.lstrip("# ").split()
        if words[:3] == ["size", "count", "type"]:
            columns = words
        elif columns and len(words) == len(columns) and words[0].isdigit():
            wrong = [value for name, value in zip(columns, words, strict=True) if name in ("#wrong", "error")]
            if any(value.isdigit() and int(value) for value in wrong):
                raise output.error("the collective computed wrong values", number, hint="check the GPUs and the links")
            bus = [float(value) for name, value in zip(columns, words, strict=True) if name == "busbw"]
            algorithm = [float(value) for name, value in zip(columns, words, strict=True) if name == "algbw"]
            sums, size = float("sum" in words), float(words[0])
            taken = [float(value) for name, value in zip(columns, words, strict=True) if name == "time"]
            # of a large bandwidth more digits are printed than of the time, of a small one fewer
            is_slow = max(algorithm) < _FEW_DIGITS and len(taken) == len(algorithm)
            seconds = min(taken) * 1e-6 if is_slow else size / (max(algorithm) * 1e9) if max(algorithm) else 0.0
            figures = {"busbw": max(bus), "algbw": max(algorithm)}
            yield {"size": size, **figures, "seconds": seconds, "sums": sums, "line": number}


def _operation(output: ToolOutput, rows: Sequence[Mapping[str, float]], ranks: int) -> Operation:
    """The collective by the name of the program, else the one whose factor is nearest to that of the bandwidths."""
    found = output.find(rf"\b({'|'.join(_NAMES)})_perf")
    operations = (_NAMES[found[1]],) if found else _ADDING if rows[0]["sums"] else _MOVING
    for row in rows:
        if min(_misfit(row, each, _COUNTS) for each in operations) > 1:
            least, most = (ranks, ranks) if ranks > 1 else (2, _COUNTS[-1])
            factors = {each: (bus_factor(each, least), bus_factor(each, most)) for each in operations}
            gives = [f"{name} {low:.3g}" + f" to {high:.3g}" * (low != high) for name, (low, high) in factors.items()]
            ratio = row["busbw"] / row["algbw"] if row["algbw"] else math.inf
            raise output.error(
                f"busbw is {ratio:.3g} of algbw, and fits no collective: "
                f"{', '.join(gives)}{f' on {ranks} ranks' if ranks > 1 else ''}",
                int(row["line"]),
                hint="keep the columns as the program prints them",
            )
    clearest = max(rows, key=lambda row: row["algbw"])
    return min(operations, key=lambda each: _misfit(clearest, each, [ranks] if ranks else _COUNTS))


def _misfit(row: Mapping[str, float], operation: Operation, counts: Iterable[int]) -> float:
    """How far busbw and algbw are from a collective's factor at the best number of ranks; 1 is what rounding allows."""
    factors = {bus_factor(operation, ranks) for ranks in counts}
    bus, algorithm = row["busbw"], row["algbw"]
    return min(abs(bus - each * algorithm) / (0.02 * each * algorithm + _DIGIT * (1 + each)) for each in factors)


NCCL_TESTS_READER = OutputReader("nccl-tests", r"#?\s*size\s+count\s+type\s.*\balgbw\s+busbw", _read_tests)


_OSU_TITLE = re.compile(
    r"# OSU MPI(?P<device>-\w+)? (?:(?P<test>.+) )?(?P<kind>Latency|Bandwidth) Test v(?P<version>\S+)"
)
_OSU_NAMES: Mapping[str, Operation] = {
    "Allreduce": "all_reduce",
    "Allgather": "all_gather",
    "Reduce_scatter": "reduce_scatter",
    "All-to-All": "all_to_all",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}


def _read_osu(output: ToolOutput) -> list[Measurement]:
    found: list[Measurement] = []
    title: re.Match[str] | None = None
    for number, line in output.numbered():
        if line.startswith("# OSU MPI"):
            title = _OSU_TITLE.match(line)
            if title is None or title["test"] not in (None, "Bi-Directional", *_OSU_NAMES):
                raise output.error(
                    f"`{line[2:]}` has no verdict", number, hint="give osu_bw, osu_latency, osu_allreduce"
                )
        elif title and (row := re.fullmatch(r"\s*([1-9]\d*)\s+([\d.]+)(?:\s+[\d.]+)*\s*", line)):
            found.append(_osu_measurement(output, title, float(row[1]), float(row[2])))
    if not found:
        raise output.truncated("its first result")
    return found


def _osu_measurement(output: ToolOutput, title: re.Match[str], size_bytes: float, printed: float) -> Measurement:
    conditions: dict[str, str | float] = {"bytes": size_bytes, "transport": "mpi"}
    conditions["device"] = "accelerator" if title["device"] else "cpu"
    tool = f"OSU micro-benchmarks {title['version']}"
    if title["kind"] == "Bandwidth":
        both = {"direction": "both"} if title["test"] else {}
        return Measurement(Quantity.LINK_BANDWIDTH, printed * 1e6, output.name, tool, conditions | both)
    if title["test"] is None:
        return Measurement(Quantity.LINK_LATENCY, printed * 1e-6, output.name, tool, conditions)
    operation = {"operation": _OSU_NAMES[title["test"]]}
    rate = size_bytes / (printed * 1e-6) if printed else 0.0
    return Measurement(Quantity.ALGORITHM_BANDWIDTH, rate, output.name, tool, conditions | operation)


OSU_READER = OutputReader("OSU micro-benchmarks", r"^# OSU MPI", _read_osu)
