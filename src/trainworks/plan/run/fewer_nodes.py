"""Plans of a run for fewer of its nodes, on which it continues while others are missing."""

from __future__ import annotations

from contextlib import suppress

from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, LayoutError
from trainworks.plan.run.layout import choose_layouts, fastest
from trainworks.plan.run.plan import make_plan
from trainworks.plan.run.pricing import RunJob, run_job
from trainworks.record.calibration import Calibration
from trainworks.record.resolved import FewerNodes, Processes


def plan_fewer_nodes(
    run_file: RunFile, job: RunJob, processes: Processes, calibration: Calibration, *, memory_bytes: int, steps: int
) -> tuple[FewerNodes, ...]:
    """The best plan for each smaller number of nodes down to `job.min_nodes`; the global batch stays.

    Numbers without a layout that fits are left out. A layout of the run file is one for all nodes, so it is searched
    anew.

    Args:
        run_file: of the run.
        job: the workload on all nodes.
        processes: ranks on all nodes.
        calibration: of the machine.
        memory_bytes: of one rank.
        steps: optimizer steps.
    """
    found = []
    for count in range(run_file.job.min_nodes or processes.nodes, processes.nodes):
        ranks = processes.model_copy(update={"nodes": count})
        smaller = run_job(job.workload, job.shape, ranks, calibration=calibration, memory_per_rank_bytes=memory_bytes)
        with suppress(LayoutError, EnvironmentProblem):
            layout = fastest(choose_layouts(smaller, None)).layout
            plan = make_plan(run_file, job.shape, layout, ranks, calibration, steps=steps)
            found.append(FewerNodes(processes=ranks, plan=plan))
    return tuple(found)
