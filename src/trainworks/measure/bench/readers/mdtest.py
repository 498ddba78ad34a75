"""mdtest: operations on files and folders a second, the mean of the iterations."""

from __future__ import annotations

import re

from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import OutputReader, ToolOutput

_ROW = re.compile(r"\s+((?:Directory|File|Tree) \w+)\s*:?\s+(\d[\d.]*(?:\s+\d[\d.]*)+)\s*")
_MEAN, _MEAN_OF_ITERATIONS = 2, 5
"""Columns of the mean: max, min, mean; or those for each rank and then for each iteration."""


def _read(output: ToolOutput) -> list[Measurement]:
    summary = output.line_of(r"^SUMMARY rate")
    if summary is None or (output.find("^-- started at") and not output.find("^-- finished at")):
        raise output.truncated("its summary")
    path = output.find(r"(?:^Path\s*:|\s-d)\s+(\S+)")
    subject = path[1] if path else output.name
    column = _MEAN_OF_ITERATIONS if output.find("per Iteration") else _MEAN
    found = []
    for line in output.lines[summary:]:
        if row := _ROW.fullmatch(line):
            rate = float(row[2].split()[column])
            conditions = {"operation": row[1].lower()}
            found.append(Measurement(Quantity.METADATA_OPERATIONS, rate, subject, "mdtest", conditions))
    if not found:
        raise output.truncated("the first row of its summary")
    return found


READER = OutputReader("mdtest", r"^SUMMARY rate|^-- started at .* --$|^mdtest-[\d.]+", _read)
