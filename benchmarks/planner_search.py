"""How fast the planner searches: layouts per second on one core, and the whole space of GPT-3 175B on 1,024 GPUs.

    python benchmarks/planner_search.py

The peers' figures were measured on a machine of two such cores: Calculon (caa4b11) prices 164 to 258 layouts per second
in its search, SimuMax (4dcaae5) 5 to 25. Neither is on PyPI, so they are not run here; the ratio that this run forms
itself is against the same planner asked for one layout at a time. A run file that names no program has each layout
priced under every program that may train it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import statistics
import time
from dataclasses import replace

import numpy as np

from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.models import preset
from trainworks.plan.layouts import Layouts
from trainworks.plan.programs import Shown, planned_programs
from trainworks.plan.search import search
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.plan.software import Software, planned_software
from trainworks.plan.space import Space
from trainworks.plan.step_time import TrainingJob

CALCULON_LAYOUTS_PER_S = (164, 258)
CALCULON_HOURS = 12.6
"""For its 11.7 million layouts of the same model and number of GPUs, at 258 per second."""


def main() -> None:
    """Print the figures, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    figures = measure(wanted.rounds)
    if wanted.json:
        print(json.dumps(figures, indent=2))
        return
    for name, of in figures.items():
        print(f"{name}, {of['programs']} program(s): {of['layouts']:,} layouts in {of['seconds']:.2f} s (median)")
        print(f"  speed          {of['layouts_per_s']:,.0f} layouts/s on one core; goal 300,000")
        print(f"  one at a time  {of['single_per_s']:,.0f} layouts/s: arrays are {of['ratio']:,.0f} times faster")
    low, high = CALCULON_LAYOUTS_PER_S
    print(f"Calculon: {low} to {high} layouts/s, about {CALCULON_HOURS} h for its 11.7 million layouts")


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Figures of a job whose program the run file names, and of one that it leaves open."""
    cluster, unnamed = parse_cluster("128 nodes of DGX A100 80GB"), planned_software(None, compiled=None)
    named = TrainingJob(shape_of_hf_config(preset("gpt3-175b")), 2048, "bf16", cluster, Software())
    shown = Shown.of(named.shape, "bf16", cluster.accelerator, {}, model="gpt3-175b")
    open_job = replace(named, software=unnamed, programs=planned_programs(unnamed, shown))
    return {name: measure_job(job, rounds) for name, job in (("named", named), ("unnamed", open_job))}


def measure_job(job: TrainingJob, rounds: int) -> dict[str, float]:
    """Search the whole space so often, and price single layouts in the same run."""
    seconds, singles = [], []
    for _ in range(rounds):
        started = time.process_time()
        found = search(Space(job, 1024, 1536, {}))
        seconds.append(time.process_time() - started)
        singles.append(single_per_s(job))
    per_s = found.evaluated / statistics.median(seconds)
    return {
        "programs": max(1, len(job.programs)),
        "layouts": found.evaluated,
        "seconds": statistics.median(seconds),
        "layouts_per_s": per_s,
        "single_per_s": statistics.median(singles),
        "ratio": per_s / statistics.median(singles),
    }


def single_per_s(job: TrainingJob, count: int = 200) -> float:
    """Layouts per second when each is priced alone."""
    space = Space(job, 1024, 1536, {"tp": 8, "pp": 8, "cp": 1, "ep": 1})
    layouts = Layouts.concatenate(list(space.layouts(lambda *_: None)))
    chosen = np.random.default_rng(7).integers(len(layouts), size=count)
    started = time.process_time()
    for index in chosen:
        job.step_times(layouts.take(np.array([index])))
    return count / (time.process_time() - started)


if __name__ == "__main__":
    main()
