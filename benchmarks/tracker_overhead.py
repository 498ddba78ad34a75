"""What a tracker that hangs, refuses or has a full disk costs a run: its step time, and its losses to the last bit.

    python benchmarks/tracker_overhead.py --rounds 5 --json result.json

The same run, on as many ranks as there are cores, takes turns without a tracker, with a healthy one and with broken
ones. A ratio is formed within a round; the median of the rounds is printed with its range. Needs root, to mount a disk
that can be filled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from contenders import MODELS, RANKS, PeerConfig, Workspace, metrics_rows, provenance, trainworks

NONE = "none"
WARMUP_STEPS = 5


def main() -> int:
    """Measure, print, write; exit code 1 if a tracker changed a loss."""
    options = parse_options()
    config = replace(MODELS["compute"], steps=options.steps + WARMUP_STEPS)
    step_s: dict[str, list[float]] = {}
    losses: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="tracker-overhead-") as folder, trackers(Path(folder)) as found:
        workspace = Workspace(Path(folder))
        workspace.text_file(config)
        run_once(config, workspace, None)  # tokens and calibration are kept from here on
        for number in range(1, options.rounds + 1):
            for name, track in found.items():
                rows = run_once(config, workspace, track)
                step_s.setdefault(name, []).append(median(row["step_s"] for row in rows[WARMUP_STEPS:]))
                losses.setdefault(name, []).append([row["loss"] for row in rows])
                print(f"round {number}: {name}: {step_s[name][-1] * 1e3:.1f} ms per step", file=sys.stderr, flush=True)
    is_same = {name: all(each == losses[NONE][0] for each in of_name) for name, of_name in losses.items()}
    ratios = {name: [a / b for a, b in zip(step_s[NONE], each, strict=True)] for name, each in step_s.items()}
    print(table(step_s, ratios, is_same))
    if options.json:
        content = {**provenance(), "rounds": options.rounds, "step_s": step_s, "ratios": ratios, "same_losses": is_same}
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    return int(not all(is_same.values()))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that every tracker is tried")
    parser.add_argument("--steps", type=int, default=60, help="timed steps per run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every median")
    return parser.parse_args()


@contextlib.contextmanager
def trackers(folder: Path) -> Iterator[dict[str, Any]]:
    """Settings of `track:` by what is wrong with the tracker."""
    with silent_port() as silent, closed_port() as closed, full_disk(folder / "full") as full:
        yield {
            NONE: None,
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


def run_once(config: PeerConfig, workspace: Workspace, track: Any) -> list[dict[str, Any]]:
    """The rows of one run."""
    return metrics_rows(trainworks(config, workspace, {"track": track} if track else {}))


def table(step_s: dict[str, list[float]], ratios: dict[str, list[float]], is_same: dict[str, bool]) -> str:
    """What was measured, as text."""
    lines = [f"{RANKS} ranks", f"{'tracker':<12}{'ms/step':>9}   step without / with a tracker (min..max)   losses"]
    for name, of_rounds in ratios.items():
        ratio = f"{median(of_rounds):.3f} ({min(of_rounds):.3f}..{max(of_rounds):.3f})"
        same = "the same" if is_same[name] else "OTHERS"
        lines.append(f"{name:<12}{median(step_s[name]) * 1e3:>9.1f}   {ratio:<42} {same}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
