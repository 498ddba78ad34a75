"""Fills a new MLflow store: `python mlflow_data.py SQLITE_FILE RUNS POINTS`; prints experiment and run of the points.

It runs in MLflow's own environment. Runs and metrics go to the tables at once, because the API writes a few per second.
"""

from __future__ import annotations

import random
import sys

import sqlalchemy as sa
from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

OWNERS = ("ada", "grace", "edsger", "barbara", "alan")
NOW_MS = 1_780_000_000_000


def main() -> None:
    """Write runs that have ended, the last one with a loss at every step."""
    file, num_runs, num_points = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store = SqlAlchemyStore(f"sqlite:///{file}", file + ".artifacts")
    experiment = store.create_experiment("training")
    runs = [run(number, num_runs, experiment) for number in range(1, num_runs + 1)]
    last = runs[-1]["run_uuid"]
    random.seed(7)
    loss = [
        {"run_uuid": last, "key": "loss", "value": 8 / (1 + 0.01 * step) + random.random() * 0.1, "step": step,
         "timestamp": NOW_MS + step * 100, "is_nan": False}
        for step in range(1, num_points + 1)
    ]  # fmt: skip
    with store.engine.begin() as connection:
        connection.execute(sa.insert(SqlRun.__table__), runs)
        connection.execute(
            sa.insert(SqlParam.__table__),
            [{"run_uuid": run["run_uuid"], "key": "lr", "value": "0.001"} for run in runs],
        )
        connection.execute(sa.insert(SqlMetric.__table__), loss)
        connection.execute(sa.insert(SqlLatestMetric.__table__), loss[-1:])
    print(experiment, last)


def run(number: int, of: int, experiment: str) -> dict[str, object]:
    """Columns of one run."""
    start_ms = NOW_MS - (of - number) * 600_000
    return {
        "run_uuid": f"{number:032x}", "name": f"train-{number}", "source_type": "LOCAL", "source_name": "",
        "entry_point_name": "", "user_id": OWNERS[number % len(OWNERS)], "source_version": "",
        "lifecycle_stage": "active", "status": "FAILED" if number % 10 == 8 else "FINISHED", "start_time": start_ms,
        "end_time": start_ms + 4_940_000, "experiment_id": int(experiment), "artifact_uri": "",
    }  # fmt: skip


if __name__ == "__main__":
    main()
