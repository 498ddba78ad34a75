"""Time from SIGKILL of a rank to the next finished step, in parts: Trainworks over `torchrun --max-restarts`.

    python benchmarks/recovery.py --rounds 5

Two ranks of a tiny model on one node, a checkpoint every 20 steps. The contenders take turns; each run is killed once,
after two checkpoints. The peer is a bare loop that imports torch alone, so it starts as fast as torchrun allows. The
steps that are lost are those of this run, and of another with checkpoints in memory after every step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from contenders import PEERS_FOLDER, provenance, torchrun

from trainworks.agent.enter import newest_pids
from trainworks.host.clock import SystemClock
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drilled_run import DrilledRun
from trainworks.measure.drill.outcome import Injection, outcome
from trainworks.measure.drill.place import OnThisMachine

STEPS, EVERY, KILL_AT = 100_000, 20, 60
PEER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without the second one, torchrun's restarted ranks find the addresses of dead ones and fail: pytorch#135712."""
PARTS = ("noticed", "decided and met", "process started", "joined, built, loaded", "first step")
RUN_FILE = {
    "name": "recovery",
    "workload": {
        "task": "causal-lm",
        "model": {"architecture": "llama", "layers": 2, "hidden": 64, "heads": 4},
        "data": {"source": "python-stdlib", "sequence_length": 64, "vocabulary": 512},
        "precision": "fp32",
        "global_batch": 8,
        "train_for": f"{STEPS} steps",
    },
    "cluster": {"engine": "local", "processes_per_node": 2},
    "layout": {"dp_replicate": 2, "micro_batch": 4},
}


def wait(until: Callable[[], Any], timeout_s: float = 300.0) -> Any:
    """Wait for something of another process."""
    deadline = time.time() + timeout_s
    while not (found := until()):
        if time.time() > deadline:
            raise TimeoutError
        time.sleep(0.005)
    return found


def of_trainworks(folder: Path, **checkpoint: Any) -> tuple[dict[str, float], int]:
    """Parts of one recovery, and the steps that it lost, from the record of the run."""
    folder.mkdir()
    run_file = RUN_FILE | {"checkpoint": {"every": f"{EVERY} steps", **checkpoint}}
    (folder / "run.yaml").write_text(json.dumps(run_file))
    run = DrilledRun(
        folder / "run.yaml", name="recovery", runs=folder, clock=SystemClock(), place=OnThisMachine(SystemClock())
    )
    run.start()
    try:
        wait(lambda: run.run_dir.metrics_file.exists() and run.last_step() >= KILL_AT)
        killed_at, written = time.time(), run.last_step()
        os.kill(newest_pids(run.run_dir)[1], signal.SIGKILL)
        first = wait(lambda: next((row for row in run.rows() if row["attempt"] > 1), None))
        killed = Injection(DrillFault.KILL_RANK, killed_at, written)
        lost = outcome(killed, first["t"] + 1, run.events(), run.rows(), {}).steps_lost
        at = {event["kind"]: event["t"] for event in run.events() if event["t"] > killed_at}
        noticed = min(event["t"] for event in run.events() if event["kind"] == "failure")
        started = max(run.run_dir.rank_starts(rank)[-1][1] for rank in (0, 1))
    finally:
        run.end()
    marks = [killed_at, noticed, at["ranks_started"], started, at["attempt"], first["t"]]
    return {part: after - before for part, (before, after) in zip(PARTS, pairwise(marks), strict=True)}, lost


def of_torchrun(folder: Path) -> float:
    """Seconds of one recovery."""
    folder.mkdir()
    script = PEERS_FOLDER / "restart_peer.py"
    command = torchrun(script, str(folder), str(STEPS), str(EVERY))
    command.insert(command.index("--standalone"), "--max-restarts=3")
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | PEER_ENVIRONMENT)
    try:
        steps = folder / "steps-1.txt"
        wait(lambda: steps.exists() and len(steps.read_text().splitlines()) >= KILL_AT)
        pid = steps.read_text().splitlines()[-1].split()[2]
        killed_at = time.time()
        os.kill(int(pid), signal.SIGKILL)
        rows = wait(lambda: [line.split() for line in steps.read_text().splitlines() if not line.endswith(pid)])
        return float(rows[0][1]) - killed_at
    finally:
        process.terminate()
        process.wait()
        log.close()


def main() -> None:
    """Print a table; with `--json FILE` write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ours: list[dict[str, float]] = []
    lost: dict[str, list[int]] = {"disk": [], "memory": []}
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number in range(options.rounds):
            parts, on_disk = of_trainworks(Path(folder) / f"trainworks-{number}")
            ours.append(parts)
            lost["disk"].append(on_disk)
            lost["memory"].append(of_trainworks(Path(folder) / f"memory-{number}", memory_every=1)[1])
            theirs.append(of_torchrun(Path(folder) / f"torchrun-{number}"))
            ratio = sum(ours[-1].values()) / theirs[-1]
            sys.stderr.write(f"round {number}: {sum(ours[-1].values()):.2f} s, {theirs[-1]:.2f} s, {ratio:.2f}\n")
    ratios = sorted(sum(parts.values()) / peer for parts, peer in zip(ours, theirs, strict=True))
    figures = {
        "trainworks_s": median(sum(parts.values()) for parts in ours),
        "torchrun_s": median(theirs),
        "ratio": median(ratios),
        "ratios": ratios,
        "parts_s": {part: median(parts[part] for parts in ours) for part in PARTS},
        "steps_lost": lost,
        "load": os.getloadavg()[0],
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if options.json:
        options.json.write_text(json.dumps({"provenance": provenance(), **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
