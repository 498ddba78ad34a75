"""What a tracker that hangs, refuses or has a full disk costs a run: its step time, and its losses to the last bit.

    python benchmarks/tracker_overhead.py --json result.json

A run keeps all cores busy. The process that feeds its tracker is stopped (SIGSTOP) and continued (SIGCONT) in turns of
some seconds. A ratio is that of the median steps of two turns that follow each other, so a slow minute of the machine
hits both; the median of the ratios is printed with its standard error. Needs root, to mount a disk that can be filled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median, stdev
from typing import Any

import psutil
from contenders import MODELS, RANKS, PeerConfig, Workspace, metrics_rows, provenance, run_file_content, trainworks

WARMUP_STEPS = 100
FEEDER = "trainworks.api.observing.track"


def main() -> int:
    """Measure, print, write; exit code 1 if a tracker changed a loss."""
    options = parse_options()
    config = replace(MODELS["tiny"], steps=options.steps + WARMUP_STEPS)
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tracker-overhead-") as folder, trackers(Path(folder)) as found:
        workspace = Workspace(Path(folder))
        alone = losses_of(metrics_rows(trainworks(config, workspace)))
        is_same = {}
        for name, track in found.items():
            rows, turns = tracked_run(config, workspace, track, options.turn)
            ratios[name] = ratios_of(rows[WARMUP_STEPS:], turns)
            is_same[name] = losses_of(rows) == alone
            print(table_row(name, ratios[name], is_same[name]), flush=True)
    if options.json:
        content = {**provenance(), "ranks": RANKS, "ratios": ratios, "same_losses": is_same}
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    return int(not all(is_same.values()))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6000, help="timed steps per run")
    parser.add_argument("--turn", type=float, default=1.0, metavar="SECONDS", help="length of a turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every ratio")
    return parser.parse_args()


@contextlib.contextmanager
def trackers(folder: Path) -> Iterator[dict[str, Any]]:
    """Settings of `track:` by what is wrong with the tracker."""
    with silent_port() as silent, closed_port() as closed, full_disk(folder / "full") as full:
        yield {
            "healthy": {"tensorboard": {}},
            "hangs": {"mlflow": {"uri": f"http://127.0.0.1:{silent}"}},
            "refuses": {"mlflow": {"uri": f"http://127.0.0.1:{closed}"}},
            "full disk": {"tensorboard": {"folder": str(full)}},
        }


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port where the kernel takes connections, and no program ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections: it is bound, and nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """A disk of 64 KiB without a free byte."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    try:
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"\0" * 4096)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def tracked_run(
    config: PeerConfig, workspace: Workspace, track: Any, turn_s: float
) -> tuple[list[dict[str, Any]], list[float]]:
    """The rows of a run with a tracker, and the times at which its feeder was stopped, continued, stopped, ..."""
    run_file = workspace.folder / "tracked.yaml"
    run_file.write_text(json.dumps(run_file_content(config, workspace) | {"track": track}))  # JSON is YAML
    before = set(workspace.runs.glob("*"))
    process = subprocess.Popen(
        [sys.executable, "-m", "trainworks", "run", str(run_file)],
        cwd=workspace.folder, env=workspace.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    feeder, turns = wait_for_feeder(process), list[float]()
    while feeder is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(feeder, signal.SIGCONT if len(turns) % 2 else signal.SIGSTOP)
        turns.append(time.time())
        time.sleep(turn_s)
    if feeder is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(feeder, signal.SIGCONT)
    if process.wait():
        raise SystemExit(f"the run with {track} failed with exit code {process.returncode}")
    (made,) = set(workspace.runs.glob("*")) - before
    return metrics_rows(made), turns


def wait_for_feeder(process: subprocess.Popen[bytes]) -> int | None:
    """Process id of the feeder; None if the run ended before."""
    while process.poll() is None:
        for each in psutil.process_iter(["cmdline"]):
            if FEEDER in (each.info["cmdline"] or ()):
                return int(each.pid)
        time.sleep(0.05)
    return None


def ratios_of(rows: list[dict[str, Any]], turns: list[float]) -> list[float]:
    """Median step of a turn without the feeder over that of the next turn with it."""
    steps: list[list[float]] = [[] for _ in turns]
    for row in rows:
        number = sum(turn <= row["t"] - row["step_s"] for turn in turns) - 1
        if 0 <= number < len(turns) - 1 and row["t"] < turns[number + 1]:
            steps[number].append(row["step_s"])
    pairs = zip(steps[::2], steps[1::2], strict=False)
    return [median(without) / median(beside) for without, beside in pairs if without and beside]


def losses_of(rows: list[dict[str, Any]]) -> list[float]:
    """The loss of each step."""
    return [row["loss"] for row in rows]


def table_row(name: str, ratios: list[float], is_same: bool) -> str:
    """What was measured of one tracker, as text."""
    error = 1.2533 * stdev(ratios) / math.sqrt(len(ratios))  # of a median of normal values
    losses = "the same losses" if is_same else "OTHER LOSSES"
    return f"{name:<10} step without / with: {median(ratios):.4f} +- {error:.4f} of {len(ratios)} pairs; {losses}"


if __name__ == "__main__":
    raise SystemExit(main())
