"""How often `trainworks why` names a planted slowness first, and whether mending it gains what was predicted.

Real runs of two ranks, each slowed down in one way: from outside (a stopped process, a killed rank, the run file), from
inside (`slow_runs/sitecustomize.py`), or by code as users write it (`slow_runs/slow_parts.py`). A run counts as right
if what `why` would mend first is what was planted. `--mend` runs those of other kinds again without it, and compares.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
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

import trainworks
from trainworks.api.observing.why import Diagnosis
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
    base: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the workload that the mended run has as well."""
    around: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the run file that the mended run has as well."""
    mending: Mapping[str, str] = field(default_factory=dict)
    """Variables of the mended run."""

    @property
    def mended(self) -> Planted:
        """The same run without what is planted."""
        return Planted(self.name, "", base=self.base, around=self.around)


def throttle_rank_1(run_dir: RunDir, ended: threading.Event) -> None:
    """Take half of its time from rank 1, 30 ms at a time."""
    (pid, *_) = wait_for_pids(run_dir, ended)[1:] or [None]
    while pid is not None and not ended.is_set():
        for number in (signal.SIGSTOP, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(0.03)


def crowd_rank_1(run_dir: RunDir, ended: threading.Event) -> None:
    """Give each rank a core of its own, and that of rank 1 to a busy program as well."""
    pids = wait_for_pids(run_dir, ended)
    for core, pid in enumerate(pids):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {core})
    busy = [sys.executable, "-c", "import os\nos.sched_setaffinity(0, {1})\nwhile True: pass"]
    program = subprocess.Popen(busy) if pids else None
    ended.wait()
    if program is not None:
        program.kill()
        program.wait()


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


_PARTS = "slow_parts"


def _with_callback(name: str, cause: str, of: str, train_for: str = "100 steps") -> Planted:
    return Planted(name, cause, workload={"callbacks": [f"{_PARTS}:{of}"]}, base={"train_for": train_for})


_LARGER = {"architecture": "llama", "layers": 6, "hidden": 192, "heads": 4}
OF_OTHER_KINDS = (
    _with_callback("callback that asks a server", "callbacks", "Sleeps"),
    _with_callback("callback of one rank", "callbacks", "SleepsOnRank1"),
    _with_callback("tracker that waits for the disk", "callbacks", "Tracks"),
    Planted(
        "evaluations too often",
        "evaluation",
        workload={"eval": {"split": 0.1, "every": "2 steps", "steps": 20}},
        base={"train_for": "60 steps"},
    ),
    Planted(
        "tokenizer in the step",
        "data",
        base={"task": "module", "model": {"module": f"{_PARTS}.py"}, "data": None, "global_batch": 16},
        mending={"TOKENIZED": "1"},
    ),
    Planted(
        "needless recomputation",
        "recompute",
        changes={"layout": {"dp_replicate": 2, "micro_batch": 4, "recompute": "full"}},
        base={"model": _LARGER, "train_for": "60 steps"},
    ),
    _with_callback("search for NaN left on", "slow_compute", "FindsAnomalies", "300 steps"),
    _with_callback("garbage collector in the steps", "slow_compute", "Collects"),
    _with_callback("thread beside the training", "slow_compute", "Computes", "300 steps"),
    Planted(
        "rank on a crowded core",
        "straggler",
        outside=crowd_rank_1,
        base={"global_batch": 64, "train_for": "120 steps"},
    ),
    Planted(
        "slow node of two",
        "straggler",
        "compute:1:0.3:1",
        around={"cluster": {"nodes": 2, "processes_per_node": 1}},
    ),
    Planted(
        "checkpoints to a slow disk",
        "checkpoints",
        "write:all:5:1",
        changes={"checkpoint": {"every": "5 steps", "keep": 2}},
    ),
    Planted("name server that does not answer", "start", "connect:all:30:1"),
    Planted("slow imports", "start", "import:all:30:1"),
    Planted("record on a slow disk", "other", "log:all:2:1", base={"train_for": "300 steps"}),
    Planted(
        "tiny global batch",
        "small_batches",
        changes={"layout": {"dp_replicate": 2, "micro_batch": 1}},
        workload={"global_batch": 2, "train_for": "400 steps"},
    ),
)
"""Slownesses of other kinds than those above, after which the causes were written."""


def run_file(planted: Planted, corpus: Path) -> dict[str, Any]:
    """A small model on two ranks, with what is planted."""
    workload = {
        "task": "causal-lm",
        "model": {"architecture": "llama", "layers": 2, "hidden": 128, "heads": 4},
        "data": {"source": str(corpus), "sequence_length": 64, "vocabulary": 400},
        "precision": "fp32",
        "global_batch": 8,
        "train_for": "100 steps",
        **planted.base,
        **planted.workload,
    }
    layout = {"dp_replicate": 2, "micro_batch": 4}
    fixed = {"layout": layout, "checkpoint": {"every": "50 steps"}, "cluster": {"processes_per_node": 2}}
    written = {key: value for key, value in workload.items() if value is not None}
    return {"name": "planted", "workload": written, **fixed, **planted.around, **planted.changes}


def diagnosed(planted: Planted, corpus: Path, cache: Path, variables: Mapping[str, str] | None = None) -> Diagnosis:
    """What `why` says of a run with what is planted; `variables` are those of its environment."""
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as name:
        folder = Path(name)
        (folder / "run.yaml").write_text(yaml.safe_dump(run_file(planted, corpus)), encoding="utf-8")
        shutil.copy(_INSIDE / f"{_PARTS}.py", folder)
        own = {"TRAINWORKS_CACHE": str(cache), "TRAINWORKS_DATA": str(folder / "data"), **(variables or {})}
        paths = [str(_INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
        inside = {"TRAINWORKS_SLOW": planted.inside, "PYTHONPATH": os.pathsep.join(paths)} if planted.inside else {}
        command = [sys.executable, "-m", "trainworks", "run", "--no-review", "run.yaml"]
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
        return trainworks.why(str(_run_dir(folder).path))


def _run_dir(folder: Path) -> RunDir:
    return RunDir(folder / "runs" / "planted-1")


def write_corpus(folder: Path) -> Path:
    """Text enough for every run."""
    folder.mkdir()
    words = [f"{syllable}{number}" for number in range(40) for syllable in ("ba", "do", "ki", "lu", "me")]
    text = " ".join(words[(7 * index * index + index) % len(words)] for index in range(200_000))
    for number in range(50):  # documents, some of which an evaluation holds out
        part = text[number * len(text) // 50 : (number + 1) * len(text) // 50]
        (folder / f"text-{number}.txt").write_text(part, encoding="utf-8")
    return folder


def gain(planted: Diagnosis, mended: Diagnosis) -> tuple[float, float]:
    """Seconds that mending the first cause was predicted to gain, and those that it did.

    Of a slow start they are those of the starts, of anything else those of the time after it.
    """
    first = planted.first
    if first is None:
        return 0.0, 0.0
    starts = [each.start.lost_s if each.start else 0.0 for each in (planted, mended)]
    if first is planted.start:
        return first.mendable_s, starts[0] - starts[1]
    return first.mendable_s, (planted.held_s - starts[0]) - (mended.held_s - starts[1])


def answer(planted: Planted, corpus: Path, cache: Path, *, mend: bool) -> dict[str, Any]:
    """One line about a run in `said`, whether the right cause comes first in `right`, and the diagnoses."""
    found = diagnosed(planted, corpus, cache)
    first = found.first
    start = [f"start {found.start.mendable_s:.1f} s"] if found.start else []
    causes = [f"{each.name} {each.mendable_s:.1f} s" for each in found.causes[:4]]
    result: dict[str, Any] = {
        "right": first is not None and first.name == planted.cause,
        "said": f"first {first.name if first else 'none'}: {', '.join([*causes, *start])}",
        "planted": found.to_json(),
    }
    if mend and planted in OF_OTHER_KINDS:
        mended = diagnosed(planted.mended, corpus, cache, planted.mending)
        predicted_s, got_s = gain(found, mended)
        result["said"] += f"; gain {predicted_s:.1f} s predicted, {got_s:.1f} s got"
        result |= {"mended": mended.to_json(), "predicted_s": predicted_s, "got_s": got_s}
    return result


def main() -> int:
    """Plant, diagnose, print; the exit code is 1 below nine right answers of ten."""
    every = {each.name: each for each in (*PLANTED, *OF_OTHER_KINDS)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(every), help="these slownesses")
    parser.add_argument("--other-kinds", action="store_true", help="those of other kinds alone")
    parser.add_argument("--mend", action="store_true", help="run those again without it, and compare the gain")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every diagnosis")
    options = parser.parse_args()
    chosen = [every[name] for name in options.only] if options.only else list(every.values())
    chosen = [*OF_OTHER_KINDS] if options.other_kinds else chosen
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as name:
        corpus, cache = write_corpus(Path(name) / "text"), Path(name) / "cache"
        for planted in chosen:
            result = results[planted.name] = answer(planted, corpus, cache, mend=options.mend)
            print(f"{'right' if result['right'] else 'WRONG':<6} {planted.name:<34} {result['said']}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    right = sum(result["right"] for result in results.values())
    print(f"{right} of {len(chosen)} planted slownesses are named first")
    return int(right < _GOAL * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
