"""Forecast failures, checkpoints, spares and the finish of a run."""

from __future__ import annotations

from trainworks.api.inputs import (
    Progress,
    Quantity,
    RunInput,
    check_settings,
    cluster_argument,
    described_run,
    no_progress,
    seconds,
    share,
)
from trainworks.api.planning.described import plan_cluster
from trainworks.config.load import NO_SETTINGS, Settings
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import ArgumentError, UsageError
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.reliability.forecast import GoodputForecast, GoodputJob, GoodputOptions, forecast
from trainworks.plan.reliability.scenario import spread_of
from trainworks.plan.sizing.finish import interval_s
from trainworks.plan.storage.demand import checkpoint_of
from trainworks.plan.trace import fact
from trainworks.units import format_duration

_SHORTEST_S = 60.0


def goodput(
    run: RunInput | None = None,
    *,
    settings: Settings = NO_SETTINGS,
    on: str | None = None,
    work: Quantity | None = None,
    deadline: Quantity | None = None,
    spares: int | None = None,
    node_mttf: Quantity | None = None,
    save: Quantity | None = None,
    save_write: Quantity | None = None,
    every: Quantity | None = None,
    detect: Quantity | None = None,
    restart: Quantity | None = None,
    repair: Quantity | None = None,
    elastic: int | None = None,
    slow: Quantity | None = None,
    slow_speed: Quantity = 0.94,
    slow_found: Quantity = "1d",
    spot: Quantity | None = None,
    spot_notice: Quantity = 0.0,
    spot_wait: Quantity = 0.0,
    queue: Quantity = 0.0,
    trials: int = 1000,
    seed: int = 1,
    progress: Progress = no_progress,
) -> GoodputForecast:
    """Forecast the goodput and the finish of a run: formulas for the mean, a simulation for the spread.

    Args:
        run: a run file, or its path; `on` and `work` without one.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.
        on: description of a cluster, which replaces that of the run file.
        work: time on all nodes, without failures.
        deadline: for the chance of meeting it.
        spares: nodes in reserve; as many as are needed when left out.
        node_mttf: mean time between failures of one node; that of a published fleet when left out.
        save: time a checkpoint stops the training; from its size when left out.
        save_write: time from then until the checkpoint can be restored; 0 for a synchronous save.
        every: interval between checkpoints; the optimal one when left out.
        detect: time until a failure is detected.
        restart: time from detection until training resumes.
        repair: time until a failed node is a spare.
        elastic: least nodes an elastic job continues on.
        slow: mean time until a node becomes a straggler.
        slow_speed: speed of a job that has a straggler, as a share.
        slow_found: time until a straggler is replaced.
        spot: mean life of preemptible capacity.
        spot_notice: warning before a preemption.
        spot_wait: mean wait for new capacity.
        queue: wait before the first start.
        trials: simulated runs.
        seed: of the simulation.
        progress: called with the share of the work that is done.

    Raises:
        UsageError: an argument is not valid, or the run has no described cluster.
        EnvironmentProblem: no layout fits.

    >>> forecast = goodput(on="64x H100", work="30d", trials=50)
    >>> forecast.spares, forecast.outcome.runtime_goodput > 0.9
    (1, True)
    """
    options = GoodputOptions(
        deadline_s=seconds("deadline", deadline),
        spares=spares,
        node_mttf_s=seconds("node_mttf", node_mttf),
        save_s=seconds("save", save, zero=True),
        write_s=seconds("save_write", save_write, zero=True),
        every_s=seconds("every", every),
        detect_s=seconds("detect", detect, zero=True),
        restart_s=seconds("restart", restart, zero=True),
        repair_s=seconds("repair", repair, zero=True),
        fewest_nodes=elastic,
        slow_mttf_s=seconds("slow", slow),
        slow_speed=share("slow_speed", slow_speed) or 0.0,
        slow_found_s=seconds("slow_found", slow_found) or 0.0,
        capacity_life_s=seconds("spot", spot),
        notice_s=seconds("spot_notice", spot_notice, zero=True),
        capacity_wait_s=seconds("spot_wait", spot_wait, zero=True),
        queue_s=seconds("queue", queue, zero=True) or 0.0,
        trials=trials,
        seed=seed,
    )
    check_settings(run, settings)
    return forecast(_job(run, on, work, settings), options, progress)


def _job(run: RunInput | None, on: str | None, work: Quantity | None, settings: Settings) -> GoodputJob:
    if run is not None:
        if work is not None:
            raise ArgumentError("the work of a run file is planned; `--work` needs a cluster alone", argument="work")
        return _planned_job(*described_run(run, on, task="failures are forecast", settings=settings))
    work_s = seconds("work", work)
    if on is None or work_s is None:
        raise UsageError(
            "a run file is missing, or `--on CLUSTER` and `--work TIME`",
            hint='trainworks goodput --on "2048 nodes of DGX H100" --work 54d',
        )
    cluster = cluster_argument(on)
    return GoodputJob(
        title=f"{format_duration(work_s)} of work",
        cluster=cluster,
        work=fact("work", work_s, "s", source=GIVEN),
        work_spread=0.0,
        checkpoint=None,
        shortest=fact("shortest interval", _SHORTEST_S, "s", source="a choice of this command"),
        notes=cluster.notes,
    )


def _planned_job(run_file: RunFile, source: Source | None) -> GoodputJob:
    plan = plan_cluster(run_file, source)
    best, layout, work = plan.best[0], plan.best[0].layout, plan.work
    return GoodputJob(
        title=run_file.name,
        cluster=plan.job.cluster,
        work=work,
        work_spread=spread_of(best.low_s, best.high_s),
        checkpoint=checkpoint_of(plan.job, best),
        shortest=work.inputs["step_time"],
        step=work.inputs["step_time"],
        replicas=layout.dp_replicate,
        accelerators_per_replica=layout.tp * layout.pp * layout.cp,
        every_s=interval_s(run_file, best.step_time_s),
        node_mttf_s=run_file.recover.node_mttf,
        deadline_s=run_file.goal.deadline,
        notes=tuple(plan.notes),
    )
