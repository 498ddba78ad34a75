"""How long one decision of the local scheduler takes, over how many queued jobs.

    python benchmarks/scheduling_decision.py

64 nodes of 8 accelerators in 8 racks, about 100 running jobs, and a queue of 100, 1,000 and 10,000 jobs whose head
waits, so that every job behind it is looked at. `mixed` draws shapes as users write them; in `distinct` no two jobs ask
for the same memory, so that nothing learnt of one shape helps with the next; `open` leaves out every time limit. The
peer is sorting the same queue by priority, which any scheduler has to do.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

from trainworks.queueing.decide import decide
from trainworks.queueing.snapshot import GangShape, NodeInfo, QueuedJob, RunningJob, Snapshot

NODES = 64
GOAL_MS = 50.0
"""For 10,000 queued jobs."""


def main() -> None:
    """Print the figures, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    rows = [
        measure(kind, queued, wanted.rounds) for kind in ("mixed", "distinct", "open") for queued in (100, 1000, 10_000)
    ]
    if wanted.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{NODES} nodes, processor time, median of {wanted.rounds} (least); goal {GOAL_MS:.0f} ms at 10,000 queued")
    for row in rows:
        print(
            f"{row['kind']:9}{row['queued']:7,} queued {row['ms']:7.1f} ms ({row['least_ms']:.1f})"
            f"  {row['ratio']:5.1f} times sorting  {row['running']:3} run, {row['starts']:2} start"
        )


def measure(kind: str, queued: int, rounds: int) -> dict[str, object]:
    """Decide so often on a fresh snapshot, and sort its queue in the same round."""
    times, ratios = [], []
    for seed in range(rounds):
        snapshot = busy_cluster(kind, queued, seed)
        started = time.process_time()
        decision = decide(snapshot)
        between = time.process_time()
        sorted(snapshot.waiting, key=lambda job: (-job.priority, job.submitted_at, job.job_id))
        times.append((between - started) * 1e3)
        ratios.append((between - started) / (time.process_time() - between))
    return {
        "kind": kind,
        "queued": queued,
        "ms": statistics.median(times),
        "least_ms": min(times),
        "ratio": statistics.median(ratios),
        "running": len(snapshot.running),
        "starts": len(decision.starts),
    }


def busy_cluster(kind: str, queued: int, seed: int) -> Snapshot:
    """A full cluster, on which the scheduler itself started the running jobs."""
    random_ = random.Random(seed)
    nodes = tuple(
        NodeInfo(
            name=f"node-{number:02}",
            cores=128,
            accelerators=8,
            accelerator="A100",
            memory_bytes=10**12,
            rack=f"rack-{number // 8}",
        )
        for number in range(NODES)
    )
    first = [waiting(random_, "mixed", number) for number in range(400)]
    starts = decide(Snapshot(now=0.0, nodes=nodes, waiting=tuple(first))).starts
    running = tuple(
        RunningJob(
            job_id=start.job_id,
            shape=first[start.job_id].shape,
            nodes=start.nodes,
            priority=first[start.job_id].priority,
            started_at=-random_.uniform(0, 3600.0),
            time_limit_s=None if kind == "open" else 3600.0 * random_.randint(2, 48),
            preemptible=random_.random() < 0.3,
            grace_s=60.0,
        )
        for start in starts
    )
    queue = tuple(waiting(random_, kind, 1000 + number) for number in range(queued))
    return Snapshot(now=0.0, nodes=nodes, waiting=queue, running=running)


def waiting(random_: random.Random, kind: str, job_id: int) -> QueuedJob:
    """A job of one node or several whole ones; one in ten needs no accelerator."""
    count = random_.choice((1,) * 16 + (2, 2, 4, 8))
    accelerators = 8 if count > 1 else random_.choice((0, 1, 1, 1, 2, 2, 4, 4, 8, 8))
    memory = accelerators * 10**11 if accelerators else 10**10
    shape = GangShape(
        nodes_min=max(1, count - random_.choice((0, 0, 0, 1))),
        nodes_max=count,
        cores_per_node=float(random_.choice((8, 12, 16)) * max(1, accelerators)),
        accelerators_per_node=accelerators,
        accelerator=random_.choice((None, "A100")),
        memory_per_node_bytes=memory - (random_.randrange(10**9) if kind == "distinct" else 0),
        exclude=frozenset(random_.sample(["node-07", "node-21"], k=random_.choice((0, 0, 0, 1)))),
        same_rack=1 < count < 8 and random_.random() < 0.2,
    )
    limit = None if kind == "open" else 1800.0 * random_.randint(1, 96)
    return QueuedJob(
        job_id=job_id,
        shape=shape,
        priority=random_.choice((20, 50, 50, 50, 70)),
        submitted_at=-random_.uniform(0, 86400.0),
        time_limit_s=limit,
    )


if __name__ == "__main__":
    main()
