"""nccl-tests and rccl-tests: `all_reduce_perf` and its siblings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trainworks.catalog.bounds import Operation
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


def _read(output: ToolOutput) -> list[Measurement]:
    """The rows of all tests in an output, one after the other."""
    tests, start = [], 0
    for number, line in output.numbered():
        if re.search(r"Avg bus bandwidth\s*:", line):
            tests.append("\n" * start + "\n".join(output.lines[start:number]))  # keeps the numbers of the lines
            start = number
    rest = "\n" * start + "\n".join(output.lines[start:])
    if not tests or any(_rows(ToolOutput(output.name, rest))):
        tests.append(rest)
    return [each for test in tests for each in _read_test(ToolOutput(output.name, test))]


def _read_test(output: ToolOutput) -> list[Measurement]:
    ranks = [found for line in output.lines if (found := _RANK.match(line))]
    _check_joined(output, [int(found[1]) for found in ranks])
    conditions: dict[str, str | float] = {}
    if ranks:
        conditions = {"ranks": len(ranks), "nodes": len({found[2] for found in ranks})}
        conditions |= {"device": ranks[0][3]} if ranks[0][3] else {}
    rows = list(_rows(output))
    if not rows:
        raise output.truncated("its first result")
    if not output.find(r"Avg bus bandwidth\s*:"):
        raise output.truncated("`Avg bus bandwidth`")
    operation = _operation(output, rows[-1])
    version = output.find(r"^# nccl-tests version ([\d.]+)")
    tool = f"{operation} of nccl-tests {version[1] if version else ''}".rstrip()
    hosts = ", ".join(dict.fromkeys(found[2] for found in ranks)) or output.name
    return [
        Measurement(
            Quantity.BUS_BANDWIDTH,
            row["busbw"] * 1e9,
            hosts,
            tool,
            {"operation": operation, "bytes": row["size"], **_time(row), **conditions},
        )
        for row in rows
        if row["size"]
    ]


def _time(row: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a call, which the printed bandwidth has with more digits than the printed time."""
    return {"seconds": row["size"] / (row["algbw"] * 1e9)} if row["algbw"] else {}


def _check_joined(output: ToolOutput, ranks: list[int]) -> None:
    """Refuse the output of programs that each measured alone."""
    if ranks.count(0) > 1:
        raise output.error(
            f"{ranks.count(0)} programs have a rank 0: they measured alone, and not together",
            output.line_of(r"Rank\s+0\b"),
            hint="build nccl-tests with `MPI=1`, and start it with the MPI it was built with",
        )


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
            sums = float("sum" in words)
            yield {"size": float(words[0]), "busbw": max(bus), "algbw": max(algorithm), "sums": sums}


def _operation(output: ToolOutput, row: Mapping[str, float]) -> Operation:
    """The collective by the name of the program, else by what it computes and the factor of its bandwidths."""
    if found := output.find(rf"\b({'|'.join(_NAMES)})_perf"):
        return _NAMES[found[1]]
    if row["busbw"] > row["algbw"]:
        return "all_reduce"
    return "reduce_scatter" if row["sums"] else "all_gather"


READER = OutputReader("nccl-tests", r"#?\s*size\s+count\s+type\s.*\balgbw\s+busbw", _read)
