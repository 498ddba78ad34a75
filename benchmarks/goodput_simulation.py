"""How right and how fast the simulation of failures is: against published goodput, Daly's formula and Erlang's.

    python benchmarks/goodput_simulation.py            prints the figures
    python benchmarks/goodput_simulation.py --write    and writes the table of docs/concepts/failures.md

Inputs that a source does not give are the defaults of the catalogue. The exit code is 0 whether goals are met or not.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainworks.catalog.catalog import accelerator
from trainworks.plan.assumptions import assumed
from trainworks.plan.reliability.defaults import Failures, usual_failures
from trainworks.plan.reliability.goodput import ExpectedRun, expected, spares_needed, waiting_share
from trainworks.plan.reliability.scenario import SimulationOutcome, scenario_of
from trainworks.plan.reliability.simulation import simulate
from trainworks.plan.trace import fact
from trainworks.units import format_duration

__all__ = ["Compared", "compare", "main", "published_rows"]

DATA = Path(__file__).parent / "data" / "goodput.csv"
PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "failures.md"
BEGIN, END = "<!-- written by benchmarks/goodput_simulation.py -->", "<!-- end -->"
GOAL = 0.03
DAY_S = 86400.0
TRIALS = 200


@dataclass(frozen=True)
class Compared:
    """A published run and what the simulation says of it."""

    row: dict[str, str]
    simulated: float
    formula: float
    ends: tuple[float, ...] = ()
    """At the ends of a published range of restarts."""

    @property
    def published(self) -> float:
        """A share of time."""
        return float(self.row["published"])

    @property
    def bound(self) -> bool:
        """Whether the source says `more than`."""
        return self.row["bound"] == "yes"

    @property
    def error(self) -> float:
        """Simulated less published; 0 where a bound is kept."""
        error = self.simulated - self.published
        return min(0.0, error) if self.bound else error


def published_rows() -> list[dict[str, str]]:
    """All rows of the table, those that cannot be compared last."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def compare(row: dict[str, str]) -> Compared:
    """Simulate one published run for thirty days of work, and at the ends of what is published of its restarts."""
    found = _compare(row)
    ends = tuple(_compare(row | {"restart_s": end}).simulated for end in row["restart_ends_s"].split())
    return replace(found, ends=ends)


def _compare(row: dict[str, str]) -> Compared:
    failures, work = _failures(row), fact("work", 30 * DAY_S, "s", source="a month")
    mean = _expected(failures, row, work.value)
    replicas = int(row["replicas"] or 1)
    outcome = simulate(
        scenario_of(
            failures,
            work_s=work.value,
            interval_s=mean.interval.value,
            replicas=replicas,
            min_replicas=1,
            rejoin_s=float(row["rejoin_s"]) if row["rejoin_s"] else None,
        ),
        trials=TRIALS,
    )
    return Compared(row, outcome.ettr if row["metric"] == "ettr" else outcome.runtime_goodput, mean.ettr.value)


def _failures(row: dict[str, str]) -> Failures:
    nodes = int(row["num_nodes"])

    def given(column: str, assumption: str) -> float:
        return float(row[column]) if row[column] else assumed(assumption).value

    def seconds(name: str, value: float) -> object:
        return fact(name, value, "s", source=row["source"])

    return Failures(
        num_nodes=fact("nodes", nodes, "", source=row["source"]),
        node_mttf=seconds("node MTTF", float(row["job_mttf_s"]) * nodes),
        save=seconds("save stall", given("save_s", "checkpoint stall")),
        detect=seconds("failure detection", given("detect_s", "failure detection")),
        restart=seconds("restart", given("restart_s", "restart")),
        repair=seconds("node repair", float(row["repair_s"] or 0)),  # enough spares, unless it is said
    )


def _expected(failures: Failures, row: dict[str, str], work_s: float) -> ExpectedRun:
    interval = fact("interval", float(row["interval_s"]), "s", source=row["source"]) if row["interval_s"] else None
    none = fact("spares", 0, "", source="none needed")
    shortest = fact("shortest interval", 1.0, "s", source="a step")
    work = fact("work", work_s, "s", source="a month")
    return expected(failures, work=work, spares=none, shortest=shortest, interval=interval)


def table(compared: Sequence[Compared], rows: Sequence[dict[str, str]]) -> str:
    """The part of the page that this benchmark writes."""
    return "\n".join([*_table(compared), "", *_not_compared(rows), "", *_spares()])


def _spares() -> Iterator[str]:
    """How many spares jobs of several sizes need."""
    part = accelerator("H100")
    repairs_s = (3600.0, DAY_S, 7 * DAY_S)
    yield "| nodes with 8 H100 | " + " | ".join(f"repair {format_duration(repair)}" for repair in repairs_s) + " |"
    yield "|---|---|---|---|"
    for nodes in (8, 64, 512, 2048, 12_500):
        cells = []
        for repair_s in repairs_s:
            failures = usual_failures(part, nodes, save=assumed("checkpoint stall"), repair_s=repair_s)
            needed = spares_needed(failures, limit=assumed("time without nodes")).value
            cells.append(f"{needed:.0f} ({100 * needed / nodes:.1f} %)")
        yield f"| {nodes:,} | {' | '.join(cells)} |"


def _table(compared: Sequence[Compared]) -> Iterator[str]:
    yield "| run | published | simulated | error | inputs published | assumed |"
    yield "|---|---|---|---|---|---|"
    for found in compared:
        row = found.row
        more = "> " if found.bound else ""
        error = "kept" if found.bound and not found.error else f"{100 * found.error:+.1f}"
        ends = f" ({' to '.join(f'{100 * end:.1f}' for end in found.ends)})" if found.ends else ""
        cells = [row["run"], f"{more}{100 * found.published:.0f} %", f"{100 * found.simulated:.1f} %{ends}", error]
        yield f"| {' | '.join([*cells, row['published_inputs'], row['assumed_inputs']])} |"
    exact = [found for found in compared if not found.bound]
    met = sum(abs(found.error) <= GOAL for found in exact)
    kept = sum(not found.error for found in compared if found.bound)
    yield ""
    yield (
        f"Of {len(exact)} runs with a figure {met} are within 3 points; the median error is "
        f"{100 * statistics.median(abs(found.error) for found in exact):.1f} points. "
        f"{kept} of {len(compared) - len(exact)} bounds are kept."
    )


def _not_compared(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    yield "| not compared | published | why |"
    yield "|---|---|---|"
    for row in rows:
        figure = f"{100 * float(row['published']):.1f} % {row['metric']}" if row["published"] else row["metric"]
        yield f"| {row['run']} | {figure} | {row['reason']} |"


def speed() -> tuple[float, SimulationOutcome]:
    """Seconds for 54 days on 2,048 nodes at the failure rate of Llama 3, 200 times, on one core."""
    row = next(row for row in published_rows() if row["id"] == "llama3")
    failures = _failures(row | {"save_s": "", "repair_s": str(DAY_S)})
    mean = _expected(failures, row, 54 * DAY_S)
    scenario = scenario_of(failures, work_s=54 * DAY_S, interval_s=mean.interval.value, spares=16)
    started = time.perf_counter()
    outcome = simulate(scenario, trials=TRIALS)
    return time.perf_counter() - started, outcome


def _against_formulas() -> Iterator[str]:
    """Where the assumptions of Daly and Erlang hold, the simulation has to agree with them."""
    row = next(row for row in published_rows() if row["id"] == "llama3")
    for save, repair, spares in ((60.0, 0.0, 0), (60.0, DAY_S, 8), (300.0, 0.0, 0)):
        failures = _failures(row | {"save_s": str(save), "repair_s": str(repair)})
        work = 200 * DAY_S
        mean = _expected(failures, row, work)
        load = failures.repair.value / float(row["job_mttf_s"])
        formula = mean.runtime_goodput.value / (1 - mean.waiting.value) * (1 - waiting_share(load, spares))
        scenario = scenario_of(failures, work_s=work, interval_s=mean.interval.value, spares=spares)
        found = simulate(scenario, trials=TRIALS).runtime_goodput
        what = f"save {save:.0f} s, repair {repair / 3600:.0f} h, {spares} spares"
        yield f"{what:38} formula {100 * formula:.3f} %, simulation {100 * found:.3f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print everything; with `--write`, write the table, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the table of docs/concepts/{PAGE.name}")
    options = parser.parse_args(arguments)
    rows = published_rows()
    compared = [compare(row) for row in rows if not row["reason"]]
    text = table(compared, [row for row in rows if row["reason"]])
    print(text)
    print()
    print("\n".join(_against_formulas()))
    seconds, outcome = speed()
    count = outcome.failures.mean()
    print(f"\n{TRIALS} runs of 54 days on 16,384 accelerators: {seconds:.2f} s, {count:.0f} failures each")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
