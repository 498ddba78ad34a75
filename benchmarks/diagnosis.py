"""How often `trainworks why` names a planted slowness first: real runs of two ranks, each slowed down in one way.

A slowness is planted from outside (a stopped process, a killed rank, the run file) or from inside
(`slow_runs/sitecustomize.py`). A run counts as right if the first cause is the planted one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainworks.record.events.log import read_events
from trainworks.record.metric_columns import read_columns
from trainworks.record.run_dir import RunDir

_INSIDE = Path(__file__).parent / "slow_runs"
_GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Planted:
    """One slowness, and the cause that should come first."""

    name: str
    cause: str
    inside: str = ""
    """Value of TRAINWORKS_SLOW."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the run file."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    outside: Callable[[RunDir, threading.Event], None] | None = None
    """Hurts the run from outside until the event is set."""


def throttle_rank_1(run_dir: RunDir, ended: threading.Event) -> None:
    """Take half of its time from rank 1, 30 ms at a time."""
    (pid, *_) = wait_for_pids(run_dir, ended)[1:] or [None]
    while pid is not None and not ended.is_set():
        for number in (signal.SIGSTOP, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(0.03)


def kill_rank_1(run_dir: RunDir, ended: threading.Event) -> None:
    """Kill rank 1 in each of the first 16 attempts, after five recorded steps."""
    for attempt in range(1, 17):
        pids = wait_for_pids(run_dir, ended, attempt=attempt)
        while not ended.is_set() and _num_steps(run_dir, attempt) < 5:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(pids[1], signal.SIGKILL)


def _num_steps(run_dir: RunDir, attempt: int) -> int:
    return int((read_columns(run_dir.metrics_file).steps()["attempt"] == attempt).sum())


def wait_for_pids(run_dir: RunDir, ended: threading.Event, *, attempt: int = 1) -> list[int]:
    """Process ids of the ranks of an attempt, once they have met; empty if the run ended before."""
    while not ended.is_set():
        for event in read_events(run_dir.events_file):
            if event["kind"] == "attempt" and event["attempt"] == attempt:
                return list(event["pids"])
        time.sleep(0.1)
    return []


PLANTED = (
    Planted("slow disk", "data", "data:all:0.3:1"),
    Planted("slow disk of one rank", "straggler", "data:1:0.3:1"),
    Planted("slow rank", "straggler", "compute:1:0.3:1"),
    Planted(
        "one throttled core",
        "straggler",
        outside=throttle_rank_1,
        workload={"global_batch": 64, "train_for": "120 steps"},
    ),
    Planted("slow compute", "slow_compute", "compute:all:0.3:1"),
    Planted("clocks that fall", "throttling", "compute:all:0.5:50"),
    Planted("slow network", "communication", "network:all:0.03:1", {"layout": {"dp_shard": 2, "micro_batch": 4}}),
    Planted(
        "tiny micro-batches",
        "small_batches",
        changes={"layout": {"dp_replicate": 2, "micro_batch": 1}},
        workload={"global_batch": 128, "train_for": "80 steps"},
    ),
    Planted(
        "frequent checkpoints",
        "checkpoints",
        changes={"checkpoint": {"every": "1 steps", "keep": 2}},
        workload={"train_for": "500 steps"},  # longer than the start, which costs any run some seconds
    ),
    Planted("late start", "start", "start:all:25:1"),
    Planted(
        "restarts",
        "restarts",
        changes={"recover": {"max_restarts": 20}, "checkpoint": {"every": "2 steps", "keep": 2}},
        workload={"global_batch": 64, "train_for": "120 steps"},
        outside=kill_rank_1,
    ),
)


def run_file(planted: Planted, corpus: Path) -> dict[str, Any]:
    """A small model on two ranks, with what is planted."""
    workload = {
        "task": "causal-lm",
        "model": {"architecture": "llama", "layers": 2, "hidden": 128, "heads": 4},
        "data": {"source": str(corpus), "sequence_length": 64, "vocabulary": 400},
        "precision": "fp32",
        "global_batch": 8,
        "train_for": "100 steps",
        **planted.workload,
    }
    layout = {"dp_replicate": 2, "micro_batch": 4}
    fixed = {"layout": layout, "checkpoint": {"every": "50 steps"}, "cluster": {"processes_per_node": 2}}
    return {"name": "planted", "workload": workload, **fixed, **planted.changes}


def diagnosed(planted: Planted, corpus: Path, cache: Path) -> list[dict[str, Any]]:
    """The causes that `why` finds in a run with what is planted."""
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as name:
        folder = Path(name)
        (folder / "run.yaml").write_text(yaml.safe_dump(run_file(planted, corpus)), encoding="utf-8")
        own = {"TRAINWORKS_CACHE": str(cache), "TRAINWORKS_DATA": str(folder / "data")}
        inside = {"TRAINWORKS_SLOW": planted.inside, "PYTHONPATH": str(_INSIDE)} if planted.inside else {}
        program = [sys.executable, "-m", "trainworks"]
        command = [*program, "run", "--no-review", "run.yaml"]
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **own, **inside}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        ended = threading.Event()
        hurting = threading.Thread(target=planted.outside or (lambda *_: None), args=(_run_dir(folder), ended))
        hurting.start()
        printed, _ = process.communicate()
        ended.set()
        hurting.join()
        if process.returncode:
            raise SystemExit(f"the run `{planted.name}` failed:\n{printed.decode()}")
        asked = subprocess.run(
            [*program, "why", "--json"], cwd=folder, env={**os.environ, **own}, stdout=subprocess.PIPE, check=True
        )
        return list(json.loads(asked.stdout)["causes"])


def _run_dir(folder: Path) -> RunDir:
    return RunDir(folder / "runs" / "planted-1")


def write_corpus(folder: Path) -> Path:
    """Text enough for every run."""
    folder.mkdir()
    words = [f"{syllable}{number}" for number in range(40) for syllable in ("ba", "do", "ki", "lu", "me")]
    text = " ".join(words[(7 * index * index + index) % len(words)] for index in range(200_000))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return folder


def main() -> int:
    """Plant, diagnose, print; the exit code is 1 below nine right answers of ten."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[each.name for each in PLANTED], help="these slownesses")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every cause")
    options = parser.parse_args()
    chosen = [each for each in PLANTED if not options.only or each.name in options.only]
    results: dict[str, Any] = {}
    right = 0
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as name:
        corpus = write_corpus(Path(name) / "text")
        for planted in chosen:
            causes = diagnosed(planted, corpus, Path(name) / "cache")
            found = [f"{cause['name']} {cause['lost_s']:.1f} s" for cause in causes]
            is_right = bool(causes) and causes[0]["name"] == planted.cause
            right += is_right
            results[planted.name] = causes
            print(f"{'right' if is_right else 'WRONG':<6} {planted.name:<24} {', '.join(found[:4])}", flush=True)
    print(f"{right} of {len(chosen)} planted slownesses are named first")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return int(right < _GOAL * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
