"""Checkpoints in the memory of two nodes: what they cost per step, and the steps that the loss of a node costs.

    python benchmarks/memory_checkpoints.py --rounds 3

Two nodes of one rank on this machine, 0.9 M parameters in fp32. Three runs take turns: without checkpoints in memory,
with one after every step, and the same while the agent and the shared memory of the second node are taken away in the
middle. Lost steps are those that were recorded before the loss and done again after it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from contenders import provenance

from trainworks.host.clock import SystemClock
from trainworks.measure.drill.drilled_run import DrilledRun, OnThisMachine
from trainworks.recover.memory_checkpoints import memory_folder

STEPS, KILL_AT, TIMEOUT_S = 60, 30, 300.0
RUN_FILE: dict[str, Any] = {
    "name": "memory",
    "workload": {
        "task": "causal-lm",
        "model": {"architecture": "llama", "layers": 4, "hidden": 128, "heads": 4},
        "data": {"source": "python-stdlib", "sequence_length": 128, "vocabulary": 512},
        "precision": "fp32",
        "global_batch": 16,
        "train_for": f"{STEPS} steps",
    },
    "cluster": {"engine": "local", "nodes": 2, "processes_per_node": 1},
    "layout": {"dp_replicate": 2, "micro_batch": 8},
}


def train(folder: Path, *, memory_every: int | None, lose_node: bool = False) -> DrilledRun:
    """Run to the end."""
    folder.mkdir()
    checkpoint = {"every": f"{STEPS} steps"} | ({"memory_every": memory_every} if memory_every else {})
    (folder / "run.yaml").write_text(json.dumps(RUN_FILE | {"checkpoint": checkpoint}))
    clock = SystemClock()
    run = DrilledRun(folder / "run.yaml", name="memory", runs=folder, clock=clock, place=OnThisMachine(clock))
    run.start()
    try:
        if lose_node:
            run.wait(lambda: run.run_dir.metrics_file.exists() and run.last_step() >= KILL_AT, TIMEOUT_S)
            started = [event for event in run.events() if event["kind"] == "agent_started" and event["node"] == 1]
            os.kill(started[-1]["writer"], signal.SIGKILL)
            shutil.rmtree(memory_folder(run.run_dir) / "node-1")
        run.wait(lambda: run.has_ended, TIMEOUT_S)
    finally:
        run.end()
    return run


def step_s(run: DrilledRun) -> float:
    """Median time of a step, without the first ones."""
    times = [row["t"] for row in run.rows()]
    return median(after - before for before, after in pairwise(times[10:]))


def lost_steps(run: DrilledRun) -> int:
    """Steps that were done again."""
    last = max(row["step"] for row in run.rows() if row["attempt"] == 1)
    return last - next(event["resumed_from_step"] for event in run.events() if event.get("attempt") == 2)


def losses(run: DrilledRun) -> dict[int, float]:
    """Loss of each step; of one that was repeated, the later."""
    return {row["step"]: row["loss"] for row in run.rows()}


def main() -> None:
    """Print the figures; with `--json FILE` also write them there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        for number in range(options.rounds):
            started = time.monotonic()
            plain = train(Path(name) / f"plain-{number}", memory_every=None)
            saving = train(Path(name) / f"memory-{number}", memory_every=1)
            hurt = train(Path(name) / f"hurt-{number}", memory_every=1, lose_node=True)
            found.append(
                {
                    "plain_step_s": step_s(plain),
                    "memory_step_s": step_s(saving),
                    "lost_steps": lost_steps(hurt),
                    "identical": losses(hurt) == losses(plain) and len(losses(hurt)) == STEPS,
                    "took_s": time.monotonic() - started,
                    "load": os.getloadavg()[0],
                }
            )
            sys.stderr.write(f"{found[-1]}\n")
    if options.json:
        options.json.write_text(json.dumps({"provenance": provenance(), "rounds": found}, indent=2) + "\n")
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
