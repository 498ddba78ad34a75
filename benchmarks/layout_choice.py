"""The layout that `auto` chooses against the fastest of those that this machine can train, measured.

Each job is planned with every layout of its table tuned (`trainworks plan --tune`), and the chosen degrees with every
other micro-batch. The first of the table is the choice of `auto`; the fastest of the first three that of `--tune 3`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALL = 99
GOAL = 1.05
GPT2 = {"architecture": "gpt2"}


@dataclass(frozen=True, slots=True)
class Job:
    """One workload and its number of ranks."""

    name: str
    model: dict[str, Any]
    ranks: int = 2
    sequence_length: int = 256
    global_batch: int = 16
    precision: str = "fp32"

    def run_file(self, **layout: object) -> dict[str, Any]:
        """The run file of this job; the layout is left to the planner where none is given."""
        data = {"source": "python-stdlib", "sequence_length": self.sequence_length, "vocabulary": 4096}
        return {
            "name": "choice",
            "workload": {
                "task": "causal-lm",
                "model": self.model,
                "data": data,
                "precision": self.precision,
                "global_batch": self.global_batch,
                "train_for": "20 steps",
            },
            "cluster": {"engine": "local", "processes_per_node": self.ranks},
            **({"layout": layout} if layout else {}),
        }


SMALL = {"layers": 4, "hidden": 256, "heads": 8}
JOBS = (
    Job("4 layers of 256", SMALL),
    Job("the same, four ranks", SMALL, ranks=4),
    Job("the same, one rank", SMALL, ranks=1),
    Job("the same, bf16", SMALL, precision="bf16"),
    Job("the same, GPT-2", {**SMALL, **GPT2}),
    Job("8 layers of 128", {"layers": 8, "hidden": 128, "heads": 4}),
    Job("2 layers of 768", {"layers": 2, "hidden": 768, "heads": 12}, global_batch=8),
    Job("1,024 tokens", SMALL, sequence_length=1024, global_batch=4),
    Job("batch of 64", {"layers": 2, "hidden": 128, "heads": 4}, sequence_length=128, global_batch=64),
    Job("batch of 2", {"layers": 6, "hidden": 384, "heads": 6}, global_batch=2),
)


def main() -> int:
    """Measure, print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every layout and its time")
    parser.add_argument("--job", action="append", type=int, help="number of a job; all when left out")
    options = parser.parse_args()
    chosen = [JOBS[index] for index in options.job] if options.job else JOBS
    results = []
    for job in chosen:
        tried = tried_layouts(job)
        results.append({"job": job.name, "layouts": tried})
        print(text(job, tried), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for what, length in (("auto", 1), ("--tune 3", 3)):
        ratios = [ratio(each["layouts"], length) for each in results]
        near = sum(found <= GOAL for found in ratios)
        print(f"{what}: within {GOAL - 1:.0%} of the fastest in {near} of {len(ratios)} jobs, worst {max(ratios):.3f}")
    return 0


def tried_layouts(job: Job) -> list[dict[str, Any]]:
    """Layouts of the planner's table in its order, then other micro-batches of the first; with measured times."""
    with tempfile.TemporaryDirectory(prefix="layout-choice-") as folder:
        table = tuned(job.run_file(), Path(folder))
        for layout in other_micro_batches(table[0]["layout"]):
            table += tuned(job.run_file(**layout), Path(folder))
    return [row for row in table if row["measured_s"]]


def other_micro_batches(layout: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The degrees of a layout with every other micro-batch that divides the sequences of a rank."""
    per_rank = layout["micro_batch"] * layout["grad_accum_steps"]
    degrees = {key: layout[key] for key in ("dp_replicate", "dp_shard", "tp", "cp", "pp") if layout[key] > 1}
    degrees |= {"zero": layout["zero"]} if layout["dp_shard"] > 1 else {}
    for micro_batch in range(1, per_rank + 1):
        if per_rank % micro_batch == 0 and micro_batch != layout["micro_batch"]:
            yield {**degrees, "micro_batch": micro_batch, "recompute": layout["recompute"]}


def tuned(run_file: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The planner's table for a run file, each layout trained for a few steps; of a written layout its own row."""
    path = folder / "run.yaml"
    path.write_text(json.dumps(run_file), encoding="utf-8")  # JSON is YAML
    options = ["--json", "--without-learning", "--tune", str(1 if "layout" in run_file else ALL)]
    command = [sys.executable, "-P", "-m", "trainworks", "plan", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=dict(os.environ))
    if done.returncode:
        raise SystemExit(done.stderr)
    rows: list[dict[str, Any]] = json.loads(done.stdout)["compared"]
    return rows[:1] if "layout" in run_file else rows


def ratio(tried: list[dict[str, Any]], length: int) -> float:
    """Measured time of the fastest of the first layouts over that of the fastest of all."""
    times = [row["measured_s"] for row in tried]
    return float(min(times[:length]) / min(times))


def text(job: Job, tried: list[dict[str, Any]]) -> str:
    """Every layout of a job, with its predicted and its measured time."""
    lines = [f"{job.name}, {job.ranks} ranks: auto {ratio(tried, 1):.3f}, --tune 3 {ratio(tried, 3):.3f}"]
    for row in tried:
        layout = {key: value for key, value in row["layout"].items() if value not in (1, False, None, "none", 25)}
        lines.append(f"  {1e3 * row['step_s']:8.1f} ms predicted {1e3 * row['measured_s']:8.1f} ms  {layout}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
