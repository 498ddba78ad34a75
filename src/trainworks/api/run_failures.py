"""How a planned run fails and saves: the same figures for every command."""

from __future__ import annotations

from trainworks.api.arguments import interval_of, node_mttf_of
from trainworks.api.cluster_plan import ClusterPlan
from trainworks.config.run_file import RunFile
from trainworks.plan.reliability.defaults import planned_failures
from trainworks.plan.reliability.goodput import Failures, save_in_time
from trainworks.plan.storage.run import checkpoint_of
from trainworks.plan.trace import Traced, fact

__all__ = ["failures_of", "written_interval"]


def failures_of(plan: ClusterPlan, run_file: RunFile, **given: float | None) -> Failures:
    """Failures and checkpoints of the best layout; `given` are arguments of `planned_failures`."""
    best = plan.best[0]
    failures = planned_failures(
        plan.job.cluster,
        checkpoint_of(plan.job, best),
        replicas=best.layout.dp_replicate,
        step=plan.work.inputs["step_time"],
        node_mttf_s=node_mttf_of(run_file),
        **given,
    )
    return save_in_time(failures, written_interval(plan, run_file))


def written_interval(plan: ClusterPlan, run_file: RunFile) -> Traced | None:
    """The checkpoint interval that the run file asks for; None where it is left to the planner."""
    every = interval_of(run_file, plan.best[0].step_time_s)
    source = "checkpoint.every of the run file"
    return None if every is None else fact("checkpoint interval", every, "s", source=source)
