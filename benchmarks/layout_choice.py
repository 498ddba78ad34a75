"""The layout that `auto` chooses against the fastest of those that this machine can train, measured.

Each job is planned, and every layout of the planner's table is trained for a few steps, then the chosen degrees with
every other micro-batch; all of them once per round, of which the fastest counts. The first of the table is the choice
of `auto`; the fastest of the first three is that of `--tune 3`. Rounds also show how far one measurement is off by
itself: the median ratio between the slowest and the fastest measurement of one layout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trainworks.api.launching.resolve import resolve
from trainworks.config.layout import Layout, ResolvedLayout, divisors, resolve_layout
from trainworks.config.run_file import RunFile
from trainworks.jobs.environment import agent_environment
from trainworks.measure.calibrate import TrialOutOfMemoryError, try_out
from trainworks.measure.worker_tasks import ask
from trainworks.record.resolved import ResolvedRun
from trainworks.record.trial import TrialRequest

ROUNDS = 2
GOAL = 1.05
GPT2 = {"architecture": "gpt2"}
SMALL = {"layers": 4, "hidden": 192, "heads": 6}


@dataclass(frozen=True, slots=True)
class Job:
    """One workload and its number of ranks."""

    name: str
    model: dict[str, Any]
    ranks: int = 2
    sequence_length: int = 256
    global_batch: int = 8
    precision: str = "fp32"

    def run_file(self) -> RunFile:
        """The run file of this job, whose layout is left to the planner."""
        data = {"source": "python-stdlib", "sequence_length": self.sequence_length, "vocabulary": 2048}
        workload = {
            "task": "causal-lm",
            "model": self.model,
            "data": data,
            "precision": self.precision,
            "global_batch": self.global_batch,
            "train_for": "20 steps",
        }
        cluster = {"engine": "local", "processes_per_node": self.ranks}
        return RunFile.model_validate({"name": "choice", "workload": workload, "cluster": cluster})


JOBS = (
    Job("4 layers of 192", SMALL),
    Job("the same, four ranks", SMALL, ranks=4),
    Job("the same, one rank", SMALL, ranks=1),
    Job("the same, bf16", SMALL, precision="bf16"),
    Job("the same, GPT-2", {**SMALL, **GPT2}),
    Job("8 layers of 128", {"layers": 8, "hidden": 128, "heads": 4}),
    Job("2 layers of 512", {"layers": 2, "hidden": 512, "heads": 8}, global_batch=4),
    Job("1,024 tokens", SMALL, sequence_length=1024, global_batch=2),
    Job("batch of 64", {"layers": 2, "hidden": 128, "heads": 4}, sequence_length=64, global_batch=64),
    Job("batch of 2", {"layers": 4, "hidden": 256, "heads": 4}, global_batch=2),
)


@dataclass(slots=True)
class Tried:
    """A layout and what its steps took."""

    layout: ResolvedLayout
    predicted_s: float | None
    """None beside the planner's table."""
    measured_s: list[float]

    def text(self) -> str:
        """One line."""
        predicted = "" if self.predicted_s is None else f"{1e3 * self.predicted_s:.0f} ms planned"
        measured = " ".join(f"{1e3 * each:.0f}" for each in self.measured_s)
        return f"  {predicted:>16}  {measured + ' ms':>16}  {self.layout.describe()}"


def main() -> int:
    """Measure, print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every layout and its times")
    parser.add_argument("--job", action="append", type=int, help="number of a job; all when left out")
    options = parser.parse_args()
    results: dict[str, list[Tried]] = {}
    for job in [JOBS[index] for index in options.job] if options.job else JOBS:
        results[job.name] = tried_layouts(job)
        print(text(job, results[job.name]), flush=True)
        if options.json:
            options.json.write_text(as_json(results), encoding="utf-8")
    print(summary([*results.values()]))
    return 0


def tried_layouts(job: Job) -> list[Tried]:
    """Layouts of the planner's table in its order, then other micro-batches of the first; those that fit."""
    run_file = job.run_file()
    assert run_file.workload is not None
    with tempfile.TemporaryDirectory(prefix="layout-choice-") as folder:
        resolved = resolve(run_file, None, run_id="choice-1", runs=Path(folder))
    assert resolved.plan is not None
    tried = [Tried(each.layout, each.step_s, []) for each in resolved.plan.compared]
    known = [each.layout for each in tried]
    tried += [Tried(layout, None, []) for layout in other_micro_batches(known[0], job) if layout not in known]
    data = str(ask("prepare", {"data": run_file.workload.data.model_dump(mode="json")})["folder"])
    for _ in range(ROUNDS):
        for each in tried:
            if (seconds := step_s(each.layout, resolved, data)) is not None:
                each.measured_s.append(seconds)
    return [each for each in tried if each.measured_s]


def other_micro_batches(layout: ResolvedLayout, job: Job) -> Iterator[ResolvedLayout]:
    """The degrees of a layout with every micro-batch that divides the sequences of a rank."""
    degrees = {name: getattr(layout, name) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "zero")}
    for size in divisors(job.global_batch // layout.dp):
        written = Layout(**degrees, recompute=layout.recompute, sequence_parallel=layout.sequence_parallel)
        yield resolve_layout(written, world_size=job.ranks, global_batch=job.global_batch, micro_batch=size)


def step_s(layout: ResolvedLayout, resolved: ResolvedRun, data_folder: str) -> float | None:
    """Median step of a few; None if the layout does not fit."""
    assert resolved.plan is not None and resolved.run_file.workload is not None
    request = TrialRequest(
        workload=resolved.run_file.workload,
        layout=layout,
        processes=resolved.processes,
        shape=resolved.plan.model,
        data_folder=data_folder,
    )
    environment = agent_environment(resolved.processes)
    with tempfile.TemporaryDirectory() as cache:
        try:
            trial = try_out(request, resolved.host, Path(cache), environment=environment, again=True)
        except TrialOutOfMemoryError:
            return None
    return trial.step_time.total_s


def ratio(tried: list[Tried], length: int) -> float:
    """Time of the fastest of the first layouts over that of the fastest of all."""
    times = [min(each.measured_s) for each in tried]
    return min(times[:length]) / min(times)


def text(job: Job, tried: list[Tried]) -> str:
    """Every layout of a job, with its planned and its measured times."""
    title = f"{job.name}, {job.ranks} ranks: auto {ratio(tried, 1):.3f}, --tune 3 {ratio(tried, 3):.3f}"
    return "\n".join([title, *(each.text() for each in tried)])


def summary(jobs: list[list[Tried]]) -> str:
    """The jobs in which a choice was near the fastest, and what one measurement is worth."""
    lines = []
    for what, length in (("auto", 1), ("--tune 3", 3)):
        ratios = [ratio(tried, length) for tried in jobs]
        near = sum(found <= GOAL for found in ratios)
        lines.append(
            f"{what}: within {GOAL - 1:.0%} of the fastest in {near} of {len(jobs)} jobs, worst {max(ratios):.2f}"
        )
    repeated = [max(each.measured_s) / min(each.measured_s) for tried in jobs for each in tried]
    return "\n".join([*lines, f"one layout measured again: median {median(repeated):.3f}, worst {max(repeated):.2f}"])


def as_json(results: dict[str, list[Tried]]) -> str:
    """All times."""
    content = {
        name: [
            {"layout": each.layout.describe(), "predicted_s": each.predicted_s, "measured_s": each.measured_s}
            for each in tried
        ]
        for name, tried in results.items()
    }
    return json.dumps(content, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
