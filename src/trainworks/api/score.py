"""Compare the planner's predictions with measurements."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trainworks.api.inputs import Progress, no_progress
from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import ArgumentError, UsageError
from trainworks.host.folders import FINISHED_RUNS, data_folder
from trainworks.measure.measured_clusters import remarks_left_out
from trainworks.measure.scoring import TABLES, ScoreReport, excess_notes
from trainworks.measure.tables import read_table
from trainworks.plan.cluster.learning import RateInUse, rates_in_use
from trainworks.plan.score import AccuracyReport
from trainworks.record.measured.finished_run import finished_in, read_finished
from trainworks.record.measured.measurement import ClusterMeasurement, cluster_key
from trainworks.record.measured.measurement_store import read_measurements
from trainworks.record.measured.past_run import FinishedRun


def score(
    table: Path | str,
    *,
    memory: bool = False,
    collectives: bool = False,
    without_learning: bool = False,
    progress: Progress = no_progress,
) -> ScoreReport:
    """Predict every row of a table of measurements, and score the predictions.

    Rows of a kind of cluster that was measured are predicted as it is planned, with what was learned of it.

    Args:
        table: CSV file with a measurement per row; any cell may be empty.
        memory: the table is of memory that runs used or lacked.
        collectives: the table is of timed collectives.
        without_learning: leave out what stored measurements taught.
        progress: called with the share of the rows that are predicted.

    Raises:
        UsageError: the table cannot be read, or is said to be of two kinds.

    >>> report = score("benchmarks/data/collectives.csv", collectives=True)
    >>> report.table, len(report.refusals)
    ('collectives', 0)
    """
    if memory and collectives:
        raise UsageError("`--memory` and `--collectives` are two tables", hint="score them one after the other")
    name = "memory" if memory else "collectives" if collectives else "runs"
    rows = read_table(Path(table), TABLES[name].columns)
    measured: dict[str, list[RateInUse]] = {}

    def learned(cluster: ClusterDescription) -> list[ClusterMeasurement]:
        stored = [] if without_learning else read_measurements(data_folder("clusters"), cluster)
        if stored and cluster_key(cluster) not in measured:
            measured[cluster_key(cluster)] = rates_in_use(stored, cluster)
        return stored

    results = []
    for index, row in enumerate(rows):
        progress(index / len(rows), "predicting")
        results.append(TABLES[name].predict(row, learned=learned))
    of_rates = [f"{kind}: {rate.text}" for kind, rates in measured.items() for rate in rates]
    notes = [*of_rates, *remarks_left_out(rows), *(excess_notes(results) if name == "runs" else [])]
    return ScoreReport(name, results, TABLES[name].score(results), notes, measured)


def accuracy(machine: str | None = None, *, sources: Iterable[Path | str] = ()) -> AccuracyReport:
    """Compare the predicted and the measured step time of every finished run, of this user or of a team.

    A run is remembered when it finishes, with the prediction that it started with. Plans of the same kind of machine
    learn from it.

    Args:
        machine: one kind of machine, as the report names it; all when left out.
        sources: of a team: folders of runs, whose records are read, and stores of finished runs
            (`finished-runs.jsonl` in the data folder of each user). A run that several have counts once. The store of
            this user when left out.

    Raises:
        UsageError: a source does not exist.

    >>> accuracy("a machine that no run was on").runs
    []
    """
    places = [Path(source) for source in sources]
    if not places:
        return AccuracyReport(read_finished(data_folder(FINISHED_RUNS), machine))
    found: dict[str, FinishedRun] = {}
    for place in places:
        if not place.exists():
            hint = f"name a folder of runs, or a `{FINISHED_RUNS}`"
            raise ArgumentError(f"`{place}` does not exist", argument="sources", hint=hint)
        for run in finished_in(place) if place.is_dir() else read_finished(place):
            found[run.run] = run
    runs = sorted(found.values(), key=lambda run: run.finished_at)
    return AccuracyReport([run for run in runs if machine in (None, run.machine)], tuple(map(str, places)))
