"""Memory and step time that the plan of a run on this machine predicts, against what its ranks measure.

A small model is trained under one layout after the other by `trainworks run`; calibration, plan and measurement are
those of the run's own record. Memory is the largest peak of a rank beyond that of a run with next to no model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from trainworks.config.layout import MESH_AXES
from trainworks.plan.run.pricing import pricing
from trainworks.record.memory import MemoryTerms
from trainworks.record.metric_columns import read_columns
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.step_time import StepTimeTerms
from trainworks.units import format_bytes, format_duration

DOCUMENT = Path(__file__).parents[1] / "docs/reference/local-accuracy.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end -->\n"
STEPS, FEW_STEPS = 60, 4
"""The heap grows for some fifty steps; runs in bf16 have few, which take 10 s each on a CPU without its units."""
GOAL = 0.15

MODEL = {"layers": 4, "hidden": 256, "heads": 8, "tie_embeddings": False}
EXPERTS = {
    "model_type": "mixtral", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 512, "num_local_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 4096, "max_position_embeddings": 256, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "hidden_act": "silu", "initializer_range": 0.02,
}  # fmt: skip
NOTHING = {"layers": 1, "hidden": 32, "heads": 4}
"""A model that needs next to no memory: what its ranks have is the program itself."""
NO_EXPERTS = {
    **EXPERTS, "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 32, "num_local_experts": 2,
}  # fmt: skip
"""The same with experts: their ranks import `transformers`, as those of any model in its format do."""
WORKLOADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "replicas": ({"dp_replicate": 2}, {}),
    "shards (zero 3)": ({"dp_shard": 2}, {}),
    "shards, zero 1, accumulation 2": ({"dp_shard": 2, "zero": 1, "micro_batch": 2}, {}),
    "shards, bf16": ({"dp_shard": 2}, {"precision": "bf16"}),
    "replicas, bf16": ({"dp_replicate": 2}, {"precision": "bf16"}),
    "tensor": ({"tp": 2}, {}),
    "tensor, whole sequences": ({"tp": 2, "sequence_parallel": False}, {}),
    "context": ({"cp": 2}, {}),
    "pipeline 1F1B": ({"pp": 2, "micro_batch": 2}, {}),
    "pipeline, interleave 2": ({"pp": 2, "micro_batch": 2, "interleave": 2}, {}),
    "pipeline, zero bubble": ({"pp": 2, "micro_batch": 2, "zero_bubble": True}, {}),
    "experts": ({"dp_shard": 2, "ep": 2}, {"experts": True}),
    "experts on every rank": ({"dp_shard": 2}, {"experts": True}),
    "one rank": ({}, {}),
    "one rank, accumulation 4": ({"micro_batch": 2}, {}),
    "one rank, recompute full": ({"recompute": "full"}, {}),
    "one rank, recompute selective": ({"recompute": "selective"}, {}),
    "one rank, a checkpoint every step": ({}, {"checkpoint": 1}),
    "tensor and pipeline": ({"tp": 2, "pp": 2, "micro_batch": 2}, {}),
    "shards and tensor": ({"dp_shard": 2, "tp": 2}, {}),
    "replicas of shards": ({"dp_replicate": 2, "dp_shard": 2}, {}),
    "shards, dropout": ({"dp_shard": 2}, {"model": {**MODEL, "architecture": "gpt2", "dropout": 0.1}}),
    "context, dropout": ({"cp": 2}, {"model": {**MODEL, "architecture": "gpt2", "dropout": 0.1}}),
    "replicas, wide model": ({"dp_replicate": 2}, {"model": {**MODEL, "layers": 2, "hidden": 512}}),
    "one rank, gpt2": ({}, {"model": {**MODEL, "architecture": "gpt2"}}),
    "one rank, 1,024 tokens": ({"micro_batch": 1}, {"sequence_length": 1024}),
}
"""Layout, and what is other than usual in the workload; a step has 2,048 tokens, in sequences of 256."""
TOKENS_PER_STEP = 2048


@dataclass(frozen=True, slots=True)
class Case:
    """One layout: what was predicted and what was measured."""

    name: str
    ranks: int
    checkpoints: bool
    memory: MemoryTerms
    step_time: StepTimeTerms
    peak_bytes: int
    program_bytes: int
    """Peak of a run of as many ranks without a model."""
    step_s: float
    """The fastest step: what other programs on the same cores add is not the layout's."""

    @property
    def predicted_bytes(self) -> int:
        """Beyond the program itself, and beyond the copy of a checkpoint where none is written on the way."""
        copy = 0 if self.checkpoints else self.memory.checkpoint_bytes
        return self.memory.total_bytes - self.memory.baseline_bytes - copy

    @property
    def measured_bytes(self) -> int:
        """Beyond the program itself."""
        return self.peak_bytes - self.program_bytes


def main() -> int:
    """Run what is asked for, print and write; the exit code."""
    options = parse_options()
    if options.read:
        records = json.loads(options.read.read_text())
    else:
        with tempfile.TemporaryDirectory(prefix="local-accuracy-") as folder:
            records = measure_all([name for name in WORKLOADS if options.only in name], Path(folder), options.json)
    cases = [case_of(record) for record in records]
    alike = [case_of({**record, "resolved": _with_fastest_calibration(record, records)}) for record in records]
    table = "\n".join([*rows(cases), "", *summary(cases, alike)]) + "\n"
    print(table)
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + table + END + rest.partition(END)[2])
    return 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="layouts whose name has this in it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--read", type=Path, metavar="FILE", help="predict anew what an earlier --json has measured")
    parser.add_argument("--write", action="store_true", help=f"write the table to docs/reference/{DOCUMENT.name}")
    return parser.parse_args()


def measure_all(names: Sequence[str], folder: Path, to: Path | None) -> list[dict[str, Any]]:
    """Train every one of them; a run that fails is an error, not a gap in the table."""
    words = random.Random(0)
    (folder / "text").mkdir()
    vocabulary = ["".join(words.choices("abcdefghijklmnopqrst", k=words.randint(2, 9))) for _ in range(6000)]
    (folder / "text/words.txt").write_text(" ".join(words.choices(vocabulary, k=60_000)))
    for model, config in (("experts", EXPERTS), ("no experts", NO_EXPERTS)):
        (folder / model).mkdir()
        (folder / model / "config.json").write_text(json.dumps(config))
    records: list[dict[str, Any]] = []
    empty: dict[tuple[int, str], int] = {}
    for name in names:
        layout, changes = WORKLOADS[name]
        ranks = math.prod(layout.get(axis, 1) for axis in MESH_AXES)
        small = {"hf": str(folder / "no experts")} if changes.get("experts") else NOTHING
        program = (ranks, json.dumps(small))
        if program not in empty:
            nothing = measure(f"{ranks} ranks", {"dp_replicate": ranks, "micro_batch": 1}, {"model": small}, folder)
            case = case_of({**nothing, "program_bytes": 0})
            empty[program] = case.peak_bytes - case.predicted_bytes
            print(f"{ranks} ranks without a model: {format_bytes(empty[program])}", file=sys.stderr, flush=True)
        records.append({**measure(name, layout, changes, folder), "program_bytes": empty[program]})
        print("\n".join(rows([case_of(records[-1])])[2:]), file=sys.stderr, flush=True)
        if to is not None:
            to.write_text(json.dumps(records, indent=1) + "\n")
    return records


def measure(name: str, layout: dict[str, Any], changes: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One run of the program, its record reduced to what `case_of` needs."""
    ranks = math.prod(layout.get(axis, 1) for axis in MESH_AXES)
    model = {"hf": str(folder / "experts")} if changes.get("experts") else changes.get("model", MODEL)
    length = changes.get("sequence_length", 256)
    steps = FEW_STEPS if changes.get("precision") == "bf16" else STEPS
    workload = {
        "task": "causal-lm",
        "model": model,
        "data": {"source": str(folder / "text"), "vocabulary": 4096, "sequence_length": length},
        "precision": changes.get("precision", "fp32"),
        "global_batch": TOKENS_PER_STEP // length,
        "train_for": f"{steps} steps",
    }
    content = {
        "name": "local-accuracy",
        "workload": workload,
        "cluster": {"engine": "local", "processes_per_node": ranks},
        "layout": layout,
        "checkpoint": {"every": f"{changes.get('checkpoint', 10 * STEPS)} steps", "to": str(folder / "runs")},
        "recover": {"max_restarts": 0},
    }
    run_file = folder / "run.yaml"
    run_file.write_text(json.dumps(content))  # JSON is YAML
    before = set((folder / "runs").glob("*"))
    command = [sys.executable, "-m", "trainworks", "run", str(run_file)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}  # calibrations of this hour alone
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    (made,) = set((folder / "runs").glob("*")) - before
    run_dir = RunDir(made)
    recorded = read_columns(run_dir.metrics_file).steps()
    steps = recorded.where(~recorded.is_lost())
    return {
        "name": name,
        "resolved": json.loads((made / "resolved.json").read_text()),
        "peak_bytes": int(np.nanmax(steps["memory_peak_bytes"])),
        "step_s": (steps["step_s"] - steps["checkpoint_s"]).tolist(),
    }


def case_of(record: dict[str, Any]) -> Case:
    """The prediction from the calibration of the run, by the present formulas."""
    run = ResolvedRun.model_validate(record["resolved"])
    assert run.plan and run.calibration and run.run_file.workload
    workload = run.run_file.workload
    price = pricing(workload, run.plan.model, run.processes, run.calibration)(run.plan.layout)
    return Case(
        name=record["name"],
        ranks=run.plan.layout.world_size,
        checkpoints=run.plan.checkpoint_every_steps == 1,
        memory=price.memory,
        step_time=price.step_time,
        peak_bytes=record["peak_bytes"],
        program_bytes=record["program_bytes"],
        step_s=min(record["step_s"]),
    )


def rows(cases: Sequence[Case]) -> list[str]:
    """One line per layout."""
    lines = [
        "| layout | ranks | memory predicted | measured | error | step predicted | measured | error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        memory = f"{format_bytes(case.predicted_bytes)} | {format_bytes(case.measured_bytes)}"
        seconds = case.step_time.total_s
        time = f"{format_duration(seconds)} | {format_duration(case.step_s)}"
        of_memory, of_time = case.predicted_bytes / case.measured_bytes - 1, seconds / case.step_s - 1
        lines.append(f"| {case.name} | {case.ranks} | {memory} | {of_memory:+.0%} | {time} | {of_time:+.0%} |")
    return lines


def _with_fastest_calibration(record: dict[str, Any], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The resolved run with the calibration that had the machine most to itself among those of as many ranks at the
    same precision: layouts can be compared only by the same rates.
    """

    def rates(each: dict[str, Any]) -> dict[str, Any]:
        measured: dict[str, Any] = each["resolved"]["calibration"]
        return measured

    own = rates(record)
    same = [rates(each) for each in records if all(rates(each)[key] == own[key] for key in ("num_ranks", "precision"))]
    fastest = max(same, key=lambda calibration: calibration["gemms"][0]["flops_per_s"])
    return {**record["resolved"], "calibration": fastest}


def summary(cases: Sequence[Case], alike: Sequence[Case]) -> list[str]:
    """How far off, and how often the faster of two layouts is the one that was predicted.

    Args:
        cases: as they were planned.
        alike: the same, planned from the same rates.
    """
    errors = [case.predicted_bytes / case.measured_bytes - 1 for case in cases]
    of_time = [case.step_time.total_s / case.step_s - 1 for case in cases]
    good = sum(abs(error) <= GOAL for error in errors)
    pairs = [
        (a, b)
        for i, a in enumerate(alike)
        for b in alike[i + 1 :]
        if a.ranks == b.ranks and abs(a.step_s / b.step_s - 1) > GOAL
    ]
    right = sum((a.step_s < b.step_s) == (a.step_time.total_s < b.step_time.total_s) for a, b in pairs)
    return [
        f"- Memory: {good} of {len(cases)} within {GOAL:.0%}; median error {median(map(abs, errors)):.0%}, "
        f"largest {max(errors, key=abs):+.0%}.",
        f"- Step time: median error {median(map(abs, of_time)):.0%}, largest {max(of_time, key=abs):+.0%}.",
        f"- Of {len(pairs)} pairs of layouts of as many ranks whose measured steps differ by more than {GOAL:.0%}, the "
        f"faster one is predicted as such in {right}, from the same calibration for both.",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
