"""Time from launch to the end of the first training step: `trainworks run` over a bare torchrun, same model.

Warm: the text is tokenized and the machine calibrated, by an earlier run of the same run file. Cold: the first run
ever, with an empty TRAINWORKS_CACHE. The operating system's file cache is warm in both. The two contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

from contenders import (
    MODELS,
    PEERS,
    ContenderError,
    PeerConfig,
    Workspace,
    first_step_end_t,
    metrics_rows,
    provenance,
    run_peer,
    trainworks,
)


@dataclass(slots=True)
class StartupTimes:
    """Seconds from launch to the end of the first step."""

    cold_s: float | None = None
    warm_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    not_measured: str | None = None
    """Why Trainworks has no numbers."""

    @property
    def ratios(self) -> list[float]:
        """Trainworks over bare, round by round; below 1 Trainworks is faster."""
        return [ours / theirs for ours, theirs in zip(self.warm_s, self.bare_s, strict=False)]


def main() -> int:
    """Measure, print, write; the exit code."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        times = measure(options.model, options.rounds, Workspace(Path(folder)))
    print(text(options.model, times))
    if options.json:
        content = {**provenance(), "model": options.model, **asdict(times), "ratios": times.ratios}
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    return int(times.not_measured is not None)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--rounds", type=int, default=5, help="times that each contender starts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single time")
    return parser.parse_args()


def measure(model: str, rounds: int, workspace: Workspace) -> StartupTimes:
    """One unmeasured bare run, one cold run of Trainworks, then the rounds."""
    config = replace(MODELS[model], steps=2, stop_after_first_step=True)
    config = replace(config, data_file=str(workspace.token_file(config)))
    workspace.text_file(config)
    times = StartupTimes()
    bare_startup_s(config, workspace)
    times.cold_s = _trainworks_or_reason(times, config, workspace)
    for _ in range(rounds):
        if (ours_s := _trainworks_or_reason(times, config, workspace)) is not None:
            times.warm_s.append(ours_s)
        times.bare_s.append(bare_startup_s(config, workspace))
    return times


def bare_startup_s(config: PeerConfig, workspace: Workspace) -> float:
    """Launch to first step of the bare loop."""
    launched_t = time.time()
    return first_step_end_t(run_peer(PEERS["bare"], config, workspace)) - launched_t


def trainworks_startup_s(config: PeerConfig, workspace: Workspace) -> float:
    """Launch to first step of `trainworks run`, a run of two steps."""
    launched_t = time.time()
    rows = metrics_rows(trainworks(config, workspace))
    if not rows:
        raise ContenderError("trainworks logged no step")
    return first_step_end_t(rows[0]) - launched_t


def _trainworks_or_reason(times: StartupTimes, config: PeerConfig, workspace: Workspace) -> float | None:
    if times.not_measured:
        return None
    try:
        return trainworks_startup_s(config, workspace)
    except ContenderError as error:
        times.not_measured = str(error)
        times.warm_s.clear()
        print(f"NOT MEASURED: trainworks: {error}", file=sys.stderr)
        return None


def text(model: str, times: StartupTimes) -> str:
    """What was measured."""
    lines = [f"{model}: launch to the end of the first step", f"  bare torchrun     {_seconds(times.bare_s)}"]
    if times.not_measured:
        return "\n".join([*lines, f"  trainworks        NOT MEASURED: {times.not_measured.splitlines()[0]}"])
    lines += [
        f"  trainworks, warm  {_seconds(times.warm_s)}",
        f"  trainworks, cold  {times.cold_s:.2f} s (first run ever, n=1)",
        f"  trainworks / bare {median(times.ratios):.3f} ({min(times.ratios):.3f}..{max(times.ratios):.3f})",
    ]
    return "\n".join(lines)


def _seconds(times_s: list[float]) -> str:
    return f"{median(times_s):.2f} s ({min(times_s):.2f}..{max(times_s):.2f})"


if __name__ == "__main__":
    sys.exit(main())
