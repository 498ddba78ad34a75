"""`python -m trainworks.cli.plan_worker RUN_DIR`: plan a workload on the first of the nodes that it got.

What the run file leaves open is decided with what these nodes have, and measured on all of them.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from trainworks.agent.remote_agent import RemoteHosts
from trainworks.api.resolve import resolve
from trainworks.backends.kubernetes.pod import pod_of, wait_for_pods
from trainworks.backends.kubernetes.render import SECRETS
from trainworks.backends.slurm.allocation import Step, StepHosts, allocation
from trainworks.backends.slurm.client import SlurmClient
from trainworks.cli.plan_view import print_plan
from trainworks.errors import TrainworksError
from trainworks.host.clock import SystemClock
from trainworks.host.probe import probe_host
from trainworks.measure.calibrate import Machines
from trainworks.record.environment import AcceleratorFacts, HostFacts
from trainworks.record.run_dir import RunDir
from trainworks.report.console import SafeConsole

__all__ = ["main", "nodes_as_one"]


def main(run_folder: str) -> int:
    """Write the plan into the resolved run, and print it into the log."""
    run_dir = RunDir(Path(run_folder))
    before = run_dir.read_resolved()
    got = _nodes()
    try:
        resolved = resolve(
            before.run_file,
            None,
            run_id=before.run_id,
            runs=run_dir.path.parent,
            host=nodes_as_one(probe_host(run_dir.path), got),
            machines=got.machines,
        )
    except TrainworksError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    kept = {"created_at": before.created_at, "working_folder": before.working_folder}
    run_dir.write_resolved(resolved.model_copy(update=kept))
    print_plan(resolved, SafeConsole(width=120))
    return 0


@dataclass(frozen=True, slots=True)
class Got:
    """What a backend gave to the job."""

    nodes: int
    cores_per_node: int
    accelerators_per_node: int
    machines: Machines | None
    """How to start something on all of them; None where this one has to speak for all."""


def _nodes() -> Got:
    """Of the backend in whose job this runs; within a container of Slurm there is no `srun`."""
    if "TRAINWORKS_PODS" in os.environ:
        pod = pod_of(os.environ, Path(SECRETS))
        machines = RemoteHosts(wait_for_pods(pod, SystemClock()), Path(SECRETS)) if pod.num_nodes > 1 else None
        return Got(pod.num_nodes, pod.cores, pod.accelerators, machines)
    got = allocation(os.environ, SlurmClient())
    alone = len(got.nodes) == 1 or shutil.which("srun") is None
    steps = None if alone else StepHosts(got, Step((), (sys.executable,)), SlurmClient())
    return Got(len(got.nodes), got.cores_per_node, got.accelerators_per_node, steps)


def nodes_as_one(first: HostFacts, got: Got) -> HostFacts:
    """All nodes as one machine: as many times what the job has of the first one."""
    own = first.accelerators[: got.accelerators_per_node]
    repeated = [device.model_copy(update={"index": at}) for at, device in enumerate(own * got.nodes)]
    return first.model_copy(
        update={
            "num_cores": min(got.cores_per_node, first.num_cores) * got.nodes,
            "memory_bytes": first.memory_bytes * got.nodes,
            "accelerators": tuple[AcceleratorFacts, ...](repeated),
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
