"""Plan a workload on the first node of its job: `python -m trainworks.api.node_plan RUN_DIR`.

The resolved run names this module; the node agent runs it. An error is written into the run directory as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trainworks.api.launching.resolve import resolve
from trainworks.backends.backend import AllocatedNodes
from trainworks.backends.registry import backend_class
from trainworks.errors import TrainworksError, problem_of_place
from trainworks.files import write_atomic
from trainworks.host.probe import probe_host
from trainworks.measure.ranks_environment import EnvironmentMachines
from trainworks.record.environment import AcceleratorFacts, HostFacts
from trainworks.record.run_dir import RunDir
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import print_document


def main(run_folder: str) -> int:
    """Write the plan into the resolved run, and print it into the log; returns the exit code."""
    run_dir = RunDir(Path(run_folder))
    before = run_dir.read_resolved()
    try:
        nodes = backend_class(before.run_file.cluster.engine).allocated_nodes()
        machines = nodes.machines
        if machines is not None and before.environment is not None:
            machines = EnvironmentMachines(machines, run_dir.path)
        resolved = resolve(
            before.run_file,
            None,
            run_id=before.run_id,
            runs=run_dir.path.parent,
            host=nodes_as_one(probe_host(run_dir.path), nodes),
            machines=machines,
            environment=before.environment,
        )
    except (TrainworksError, OSError) as error:  # a node may lack the home folder, say
        problem = error if isinstance(error, TrainworksError) else problem_of_place(error)
        write_atomic(run_dir.plan_error_file, json.dumps(problem.to_json()))
        return problem.exit_code
    run_dir.write_resolved(resolved.in_place_of(before).model_copy(update={"forecast": before.forecast}))
    print_document(build_document(resolved), SafeConsole(width=120))
    return 0


def nodes_as_one(first: HostFacts, nodes: AllocatedNodes) -> HostFacts:
    """All nodes as one machine: the job's share of the first node, times the number of nodes."""
    devices = first.accelerators[: nodes.accelerators_per_node]
    repeated = [device.model_copy(update={"index": at}) for at, device in enumerate(devices * nodes.nodes)]
    return first.model_copy(
        update={
            "num_cores": min(nodes.cores_per_node, first.num_cores) * nodes.nodes,
            "memory_bytes": first.memory_bytes * nodes.nodes,
            "accelerators": tuple[AcceleratorFacts, ...](repeated),
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
