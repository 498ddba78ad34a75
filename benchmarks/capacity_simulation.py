"""How fast traces of jobs are replayed, and how far a replayed queue is from the theory of queues.

    python benchmarks/capacity_simulation.py
    python benchmarks/capacity_simulation.py --spare     the table of docs/concepts/capacity.md; five minutes

Prints the time of one policy on 100,000 jobs at three loads, that of a grid of policies on 2,000 jobs, and the mean
wait of Poisson jobs over what the Erlang C formula gives (M/M/c), with its standard error over eight samples.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainworks.plan.capacity.answer import capacity_for
from trainworks.plan.capacity.jobs import JobTrace, TraceJob, trace_of
from trainworks.plan.capacity.policy import Elastic, Policy, Spot
from trainworks.plan.capacity.policy_comparison import CapacityLimits, CapacityPrices, point_of, policies
from trainworks.plan.capacity.simulation import replay
from trainworks.plan.capacity.teams import parse_teams, sampled_jobs
from trainworks.plan.trace import fact

NODES, SIZE = 64, 8
SIZES, SHARES = (1, 2, 4, 8, 16, 32, 64), (0.3, 0.1, 0.1, 0.3, 0.1, 0.07, 0.03)
"""Accelerators of a job, and how many jobs have so many: most are small."""


def main() -> int:
    """Measure and print; the exit code."""
    if "--spare" in sys.argv[1:]:
        print_spare()
        return 0
    print(f"one policy, 100,000 jobs, {NODES} nodes of {SIZE}")
    for load in (0.8, 0.9, 1.1):
        trace = sampled(100_000, load)
        fixed = Policy(node_accelerators=SIZE, fixed_nodes=NODES)
        half = replace(
            fixed, fixed_nodes=NODES // 2, on_demand=Elastic(max_nodes=200), spot=Spot(max_nodes=50), backlog_s=3600.0
        )
        times = [seconds(lambda policy=policy, trace=trace: replay(trace, policy)) for policy in (fixed, half)]
        print(f"  load {load:.0%}: all fixed {times[0]:.1f} s, half of it elastic {times[1]:.1f} s")
    print(f"grid of policies, 2,000 jobs: {grid_text(sampled(2000, 0.8))}")
    print("mean wait over Erlang C, 8 x 50,000 jobs")
    for servers, load in ((1, 0.6), (4, 0.8), (16, 0.9)):
        ratios = [erlang_ratio(servers, load, seed) for seed in range(8)]
        error = np.std(ratios, ddof=1) / math.sqrt(len(ratios))
        print(f"  {servers:2} servers, load {load:.0%}: {np.mean(ratios):.3f} +- {error:.3f}")
    return 0


def print_spare() -> None:
    """Spare over the mean load that the example teams need, each submitting more and more; range of three samples."""
    example = Path(__file__).parent.parent / "examples" / "capacity" / "teams.yaml"
    base = parse_teams(example.read_text(encoding="utf-8"), name=example.name)
    for times in (1, 2, 4, 8, 16):
        more = {
            name: team.model_copy(update={"jobs_per_week": team.jobs_per_week * times})
            for name, team in base.teams.items()
        }
        teams = base.model_copy(update={"weeks": 8, "teams": more})
        traces = [trace_of(sampled_jobs(teams, seed=seed)) for seed in (1, 2, 3)]
        for wait_h in (1, 4, 24):
            answers = [capacity_for(trace, node_accelerators=SIZE, wait_s=3600.0 * wait_h) for trace in traces]
            loads = [answer.load.mean.value for answer in answers]
            spares = [answer.spare_share.value for answer in answers]
            text = f"wait {wait_h:2} h, mean load {min(loads):.0f} to {max(loads):.0f} accelerators"
            print(f"{text}: spare {min(spares):.0%} to {max(spares):.0%}", flush=True)


def seconds(work: object) -> float:
    started = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - started


def sampled(jobs: int, load: float) -> JobTrace:
    """Jobs that come evenly, at that share of all fixed nodes."""
    rng = np.random.default_rng(1)
    sizes = rng.choice(SIZES, jobs, p=SHARES)
    lengths = rng.lognormal(math.log(7200.0), 1.2, jobs)
    span_s = float(np.dot(sizes, lengths)) / (NODES * SIZE * load)
    submitted, preemptible = rng.uniform(0, span_s, jobs), rng.random(jobs) < 0.5
    return trace_of(
        [
            TraceJob(float(at), int(size), float(length), preemptible=bool(may))
            for at, size, length, may in zip(submitted, sizes, lengths, preemptible, strict=True)
        ]
    )


def grid_text(trace: JobTrace) -> str:
    prices = CapacityPrices(**{name: fact(name, 1.0, "USD/h", source="any") for name in ("fixed", "spot", "on_demand")})
    limits = CapacityLimits(node_accelerators=SIZE, on_demand=Elastic(max_nodes=200), spot=Spot(max_nodes=200))
    started = time.perf_counter()
    answer = capacity_for(trace, node_accelerators=SIZE, wait_s=3600.0)
    found = time.perf_counter()
    points = [point_of(trace, policy, prices) for policy in policies(trace, limits, answer)]
    return f"smallest capacity {found - started:.1f} s, {len(points)} policies {time.perf_counter() - found:.1f} s"


def erlang_ratio(servers: int, load: float, seed: int) -> float:
    rng, jobs = np.random.default_rng(seed), 50_000
    submitted, lengths = np.cumsum(rng.exponential(1 / (servers * load), jobs)), rng.exponential(1, jobs)
    trace = trace_of([TraceJob(float(at), 1, float(length)) for at, length in zip(submitted, lengths, strict=True)])
    waits = replay(trace, Policy(node_accelerators=1, fixed_nodes=servers)).wait_s
    offered = servers * load
    all_busy = offered**servers / math.factorial(servers) / (1 - load)
    idle = sum(offered**count / math.factorial(count) for count in range(servers))
    return float(np.mean(waits)) / (all_busy / (idle + all_busy) / (servers - offered))


if __name__ == "__main__":
    sys.exit(main())
