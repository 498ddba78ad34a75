"""Time from SIGKILL of a rank to the next finished step: Trainworks over `torchrun --max-restarts` and torchft.

    pip install torchft-nightly
    python benchmarks/recovery.py --rounds 5

Two ranks of a tiny model on one node, a checkpoint every 20 steps. The contenders take turns; each run is killed once,
after two checkpoints. torchrun's peer is a bare loop that imports torch alone, so it starts as fast as torchrun allows.
torchft has two times, because its groups go on without a dead one: to the next step of the survivor, and to the first
step with the killed group. It is measured with the lighthouse of its README, and with one that calls a group dead after
0.5 s. The steps that are lost are those of this run, and of another with checkpoints in memory after every step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from contenders import PEERS_FOLDER, RANKS, provenance, torchrun

from trainworks.agent.enter import newest_pids
from trainworks.host.clock import SystemClock
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drilled_run import DrilledRun, OnThisMachine
from trainworks.measure.drill.outcome import Injection, outcome

STEPS, EVERY, KILL_AT = 100_000, 20, 60
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it, torchrun's restarted ranks find the addresses of dead ones and fail: pytorch#135712."""
LIGHTHOUSE = {"min_replicas": 1, "quorum_tick_ms": 100, "join_timeout_ms": 10_000}
"""As torchft's README starts it; a group is dead when its heartbeat of 0.1 s is missing for 5 s, the default."""
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


@contextmanager
def restarting(script: str, folder: Path, *arguments: str, ranks: int = RANKS, **environment: str) -> Iterator[None]:
    """A peer under `torchrun --max-restarts`, ended with the block."""
    command = torchrun(PEERS_FOLDER / script, str(folder), str(STEPS), *arguments, ranks=ranks)
    command.insert(command.index("--standalone"), "--max-restarts=3")
    with (folder / "log").open("a") as log:
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        process = subprocess.Popen(command, stdout=log, stderr=log, env=variables)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


class Attempt(NamedTuple):
    """One line of a peer: a step that it finished, or tried to; only torchft's have a status."""

    step: str
    t: float
    pid: int
    status: str = ""


def attempts(folder: Path, rank: int) -> list[Attempt]:
    """Of a rank, or of a group of torchft, across its restarts."""
    file = folder / f"steps-{rank}.txt"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [Attempt(step, float(t), int(pid), *status) for step, t, pid, *status in lines]


def first(folder: Path, rank: int, fits: Callable[[Attempt], bool]) -> Attempt:
    """Wait for an attempt like this."""
    return wait(lambda: next((attempt for attempt in attempts(folder, rank) if fits(attempt)), None))


def of_torchrun(folder: Path) -> dict[str, float]:
    """Seconds of one recovery."""
    folder.mkdir()
    with restarting("restart_peer.py", folder, str(EVERY), **OWN_STORE):
        wait(lambda: len(attempts(folder, 1)) >= KILL_AT)
        pid, killed_at = attempts(folder, 1)[-1].pid, time.time()
        os.kill(pid, signal.SIGKILL)
        return {"next step": first(folder, 1, lambda attempt: attempt.pid != pid).t - killed_at}


def of_torchft(folder: Path, **lighthouse: int) -> dict[str, float]:
    """Seconds until the surviving group finishes a step without the killed one, and until that takes part again.

    Raises:
        RuntimeError: the surviving group failed too, as it does with torchft 0.2.0.
    """
    folder.mkdir()
    coordination = importlib.import_module("torchft.coordination")
    server = coordination.LighthouseServer(bind="[::]:0", **LIGHTHOUSE | lighthouse)
    group = partial(restarting, "torchft_loop.py", folder, ranks=1, TORCHFT_LIGHTHOUSE=server.address())
    try:
        with group(REPLICA_GROUP_ID="0"), group(REPLICA_GROUP_ID="1"):
            wait(lambda: sum(attempt.status == "2" for attempt in attempts(folder, 1)) >= KILL_AT)
            survivor, killed = attempts(folder, 0)[-1].pid, attempts(folder, 1)[-1].pid
            killed_at = time.time()
            os.kill(killed, signal.SIGKILL)
            alone = first(folder, 0, lambda made: made.t > killed_at and (made.status == "1" or made.pid != survivor))
            if alone.pid != survivor:
                raise RuntimeError("the surviving group of torchft failed; try `pip install torchft-nightly`")
            back = first(folder, 1, lambda attempt: attempt.pid != killed and attempt.status == "2")
    finally:
        server.shutdown()
    return {"next step of the survivor": alone.t - killed_at, "next step with both": back.t - killed_at}


PEERS = {
    "torchrun": of_torchrun,
    "torchft": of_torchft,
    "torchft, dead after 0.5 s": partial(of_torchft, heartbeat_timeout_ms=500),
}


def main() -> int:
    """Print the figures as JSON, or write them with `--json FILE`; the exit code is 1 if a peer is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers = {name: peer for name, peer in PEERS.items() if name == "torchrun" or find_spec("torchft")}
    ours: list[dict[str, float]] = []
    lost: dict[str, list[int]] = {"disk": [], "memory": []}
    theirs: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number in range(options.rounds):
            parts, on_disk = of_trainworks(Path(folder) / f"trainworks-{number}")
            ours.append(parts)
            lost["disk"].append(on_disk)
            lost["memory"].append(of_trainworks(Path(folder) / f"memory-{number}", memory_every=1)[1])
            for name, peer in peers.items():
                theirs[name].append(peer(Path(folder) / f"{name}-{number}"))
            print(f"round {number}: trainworks {sum(parts.values()):.2f} s", file=sys.stderr)
            for name, rounds in theirs.items():
                print(f"  {name}: {rounds[-1]}", file=sys.stderr)
    ours_s = [sum(parts.values()) for parts in ours]
    figures = {
        "trainworks_s": median(ours_s),
        "parts_s": {part: median(parts[part] for parts in ours) for part in PARTS},
        "peers": {name: over(ours_s, rounds) for name, rounds in theirs.items()},
        "steps_lost": lost,
        "load": os.getloadavg()[0],
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps({"provenance": provenance(), **figures}, indent=2) + "\n")
    if len(peers) < len(PEERS):
        print("NOT MEASURED: torchft: pip install torchft-nightly", file=sys.stderr)
    return int(len(peers) < len(PEERS))


def over(ours_s: list[float], theirs: list[dict[str, float]]) -> dict[str, Any]:
    """For every time of a peer: median seconds, and our time over it by round, sorted."""
    rows = {what: [times[what] for times in theirs] for what in theirs[0]}
    return {
        what: {"s": median(times), "ratios": sorted(own / time for own, time in zip(ours_s, times, strict=True))}
        for what, times in rows.items()
    }


if __name__ == "__main__":
    sys.exit(main())
