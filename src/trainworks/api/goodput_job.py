"""The job whose failures are forecast: of a run file, or so much work on a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.api.arguments import interval_of, node_mttf_of
from trainworks.api.cluster_plan import plan_cluster
from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.load import Source
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.reliability.scenario import spread_of
from trainworks.plan.storage.run import checkpoint_of
from trainworks.plan.trace import Traced, fact
from trainworks.units import format_duration

__all__ = ["Asked", "ask", "ask_without_run_file"]

_SHORTEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The job without its failures."""

    title: str
    cluster: ClusterDescription
    work: Traced
    work_spread: float
    checkpoint: Traced | None
    """Size; None where no model is known."""
    shortest: Traced
    """Nobody saves more often."""
    step: Traced | None = None
    """Time of a step; None where no model is known."""
    replicas: int = 1
    """Copies of the model's state."""
    accelerators_per_replica: int = 1
    every_s: float | None = None
    node_mttf_s: float | None = None
    deadline_s: float | None = None
    notes: tuple[str, ...] = ()


def ask_without_run_file(cluster: ClusterDescription, work_s: float) -> Asked:
    """So much work on a cluster, of a model that nobody has named."""
    return Asked(
        title=f"{format_duration(work_s)} of work",
        cluster=cluster,
        work=fact("work", work_s, "s", source=GIVEN),
        work_spread=0.0,
        checkpoint=None,
        shortest=fact("shortest interval", _SHORTEST_S, "s", source="a choice of this command"),
        notes=cluster.notes,
    )


def ask(run_file: RunFile, source: Source | None) -> Asked:
    """The planned steps of a run file.

    Raises:
        UsageError: its cluster is this machine, or it cannot be planned.
    """
    if run_file.cluster.engine != "described":
        raise UsageError(
            "failures are forecast for a described cluster",
            place=source.place(("cluster",)) if source else None,
            hint='name one: `--on "16 nodes of DGX H100"`',
        )
    plan = plan_cluster(run_file, source)
    best, layout, work = plan.best[0], plan.best[0].layout, plan.work
    return Asked(
        title=run_file.name,
        cluster=plan.job.cluster,
        work=work,
        work_spread=spread_of(best.low_s, best.high_s),
        checkpoint=checkpoint_of(plan.job, best),
        shortest=work.inputs["step_time"],
        step=work.inputs["step_time"],
        replicas=layout.dp_replicate,
        accelerators_per_replica=layout.tp * layout.pp * layout.cp,
        every_s=interval_of(run_file, best.step_time_s),
        node_mttf_s=node_mttf_of(run_file),
        deadline_s=run_file.goal.deadline,
        notes=tuple(plan.notes),
    )
