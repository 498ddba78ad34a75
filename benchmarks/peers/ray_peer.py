"""A gang of four on Ray: a placement group of four cores and a task in each, from a driver that is running already.

`PYTHON_WITH_RAY ray_peer.py RANKS`: every line of stdin is a folder, in which every rank writes down when it began; the
answer is when the gang was submitted.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=1)
def begin(folder: str, rank: int) -> None:
    """One rank."""
    began = time.time()
    Path(folder, f"begin-{rank}").write_text(f"{began}\n")


def main(ranks: int) -> None:
    """Serve folders until stdin is closed."""
    ray.init(num_cpus=ranks, include_dashboard=False, log_to_driver=False, logging_level="error")
    sys.stdout.write("READY\n")
    sys.stdout.flush()
    for line in sys.stdin:
        submitted = time.time()
        group = placement_group([{"CPU": 1}] * ranks, strategy="PACK")
        at = [PlacementGroupSchedulingStrategy(group, rank) for rank in range(ranks)]
        ray.get([begin.options(scheduling_strategy=at[rank]).remote(line.strip(), rank) for rank in range(ranks)])
        remove_placement_group(group)
        sys.stdout.write(f"{submitted}\n")
        sys.stdout.flush()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
