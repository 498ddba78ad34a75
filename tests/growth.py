"""What a lane costs by file, and a warning where a run of it costs more than that.

`python -m tests.growth LANE` writes `tests/costs/LANE.csv` from the last run, which has to be a run of that whole lane.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from tests.lanes import Lane
from trainworks.files import write_atomic

ROOT = Path(__file__).parents[1]
TABLE = Path("build/test-seconds.csv")
"""From the root of the repository. A row is a test with its setup and teardown; the first test of a file or of a
cluster has the fixtures that the others share."""

COSTS = Path("tests/costs")
"""A table of each lane: processor seconds of each file. The files below `_SMALL_S` are one row."""

_SMALL_S = 1.0
_OTHERS = "others"
_GROWTH = 0.03


def warning(costs: Mapping[str, float], tests: Mapping[str, float]) -> str | None:
    """Say which files grew, where all tests of a run cost over 3 % more than `costs` on a machine of equal speed.

    The speed of a machine is the median ratio of the files that both know.
    """
    now = by_file(tests, rows=costs)
    speed = median(now[file] / costs[file] for file in costs.keys() & now.keys() if costs[file])
    grown = Counter({file: now.get(file, 0.0) / speed - costs.get(file, 0.0) for file in costs.keys() | now.keys()})
    share = sum(grown.values()) / sum(costs.values())
    if share <= _GROWTH:
        return None
    most = ", ".join(f"{file} {seconds:+.0f}" for file, seconds in grown.most_common(8))
    return f"WARNING: the tests cost {share:.0%} more than in {COSTS} ({most}). Make them cheaper, or run: make costs"


def by_file(tests: Mapping[str, float], rows: Mapping[str, float]) -> dict[str, float]:
    """Sums of the seconds of tests: the given rows, every file above a second, and the others together."""
    files: Counter[str] = Counter()
    for test, seconds in tests.items():
        files[test.partition("::")[0]] += seconds
    large = {file: seconds for file, seconds in files.items() if file in rows or seconds >= _SMALL_S}
    return large | {_OTHERS: sum(files.values()) - sum(large.values())}


def read_costs(root: Path, lane: Lane) -> dict[str, float]:
    """The costs of a lane, or nothing where it has no table."""
    path = _costs(root, lane)
    return {row["file"]: float(row["processor_s"]) for row in _rows(path)} if path.exists() else {}


def write_costs(root: Path, lane: Lane) -> None:
    """Make the table of costs from the table of the last run."""
    tests = {row["test"]: float(row["processor_s"]) for row in _rows(root / TABLE)}
    rows = sorted(by_file(tests, rows={}).items())
    path = _costs(root, lane)
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, "".join(["file,processor_s\n", *(f"{file},{seconds:.1f}\n" for file, seconds in rows)]))


def _costs(root: Path, lane: Lane) -> Path:
    return root / COSTS / f"{lane.value}.csv"


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


if __name__ == "__main__":
    write_costs(ROOT, Lane(sys.argv[1]))
