"""Forecast failures, checkpoints and the finish of a job: formulas for the mean, a simulation for the spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import ArgumentError
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.reliability.defaults import Failures, fleet_of, planned_failures
from trainworks.plan.reliability.goodput import (
    ExpectedRun,
    expected,
    save_in_time,
    spares_needed,
    waiting_share,
)
from trainworks.plan.reliability.scenario import (
    Scenario,
    SimulationOutcome,
    elastic_replicas,
    nodes_per_replica,
    scenario_of,
)
from trainworks.plan.reliability.simulation import simulate
from trainworks.plan.trace import Traced, computed, fact
from trainworks.results import Result
from trainworks.units import format_duration

_LONGEST_WAIT = 0.9
"""Share of the time; simulating a job that waits longer takes too long to be useful."""
_MOST_ROWS = 7
_OF_FAILURES = (
    *("save_s", "write_s", "detect_s", "restart_s", "repair_s", "node_mttf_s"),
    *("capacity_life_s", "notice_s", "capacity_wait_s"),
)
"""Options that are arguments of `planned_failures`."""
_FEW = 5.0
"""Expected failures below which the mean says little about one run."""


@dataclass(frozen=True, slots=True)
class GoodputJob:
    """The job without its failures."""

    title: str
    cluster: ClusterDescription
    work: Traced
    work_spread: float
    checkpoint: Traced | None
    """Bytes of a checkpoint; None where no model is known."""
    shortest: Traced
    """Least interval between checkpoints."""
    step: Traced | None = None
    """Duration of a step; None where no model is known."""
    replicas: int = 1
    """Complete copies of the model's state in the job."""
    accelerators_per_replica: int = 1
    every_s: float | None = None
    node_mttf_s: float | None = None
    deadline_s: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputOptions:
    """Assumptions of a forecast; None leaves a value to the run file or the catalogue. Times in seconds."""

    deadline_s: float | None = None
    spares: int | None = None
    node_mttf_s: float | None = None
    """Mean time between failures of one node."""
    save_s: float | None = None
    """Time a checkpoint stops the training."""
    write_s: float | None = None
    """Time from then until the checkpoint can be restored."""
    every_s: float | None = None
    """Interval between checkpoints."""
    detect_s: float | None = None
    restart_s: float | None = None
    repair_s: float | None = None
    fewest_nodes: int | None = None
    """Least nodes an elastic job runs on; None where it needs all of them."""
    slow_mttf_s: float | None = None
    """Mean time until a node becomes a straggler."""
    slow_speed: float = 0.94
    slow_found_s: float = 86_400.0
    capacity_life_s: float | None = None
    """Mean life of preemptible capacity."""
    notice_s: float | None = 0.0
    capacity_wait_s: float | None = 0.0
    """Mean wait for new capacity."""
    queue_s: float = 0.0
    trials: int = 1000
    seed: int = 1


@dataclass(frozen=True, slots=True)
class GoodputForecast(Result):
    """Expected goodput and simulated finish of a job, with and without spares."""

    job: GoodputJob
    options: GoodputOptions
    failures: Failures
    expected: ExpectedRun
    needed: Traced
    """Spares that keep the time without nodes below its limit."""
    spares: int
    """Spares that the figures below count with."""
    outcome: SimulationOutcome
    by_spares: dict[int, SimulationOutcome]
    deadline_s: float | None
    figures: tuple[Traced, ...]
    """Everything that can be explained."""
    notes: tuple[str, ...]


def forecast(
    job: GoodputJob, options: GoodputOptions, progress: Callable[[float, str], None] = lambda share, text: None
) -> GoodputForecast:
    """The expectation by formulas, and the simulation with several numbers of spares."""
    every = job.every_s if options.every_s is None else options.every_s
    interval = None if every is None else fact("checkpoint interval", every, "s", source=GIVEN)
    failures = save_in_time(_failures(job, options), interval)
    needed = spares_needed(failures, limit=assumed("time without nodes"))
    chosen = round(needed.value) if options.spares is None else options.spares
    if chosen > job.cluster.num_nodes:
        raise ArgumentError(
            f"{chosen} spares are more than the {job.cluster.num_nodes} nodes of the job", argument="spares"
        )
    mean = expected(
        failures,
        work=job.work,
        spares=fact("spares", chosen, "", source="as many as are needed" if options.spares is None else GIVEN),
        shortest=job.shortest,
        interval=interval,
        queue=fact("queue", options.queue_s, "s", source=GIVEN if options.queue_s else "none asked for"),
    )
    scenario = _scenario(job, options, failures, mean)
    outcomes = _simulate(scenario, sorted({chosen, *_rows(needed)}), options, progress)
    deadline_s = job.deadline_s if options.deadline_s is None else options.deadline_s
    outcome = outcomes[chosen]
    return GoodputForecast(
        job=job,
        options=options,
        failures=failures,
        expected=mean,
        needed=needed,
        spares=chosen,
        outcome=outcome,
        by_spares=outcomes,
        deadline_s=deadline_s,
        figures=(
            *(mean.job_mttf, mean.interval, mean.runtime_goodput, mean.run_time, mean.ettr, mean.failures),
            mean.preemptions,
            needed,
            *_simulated_figures(outcome, mean, options, deadline_s),
        ),
        notes=(*job.notes, *_notes(job, options, failures, mean, scenario)),
    )


def _failures(job: GoodputJob, options: GoodputOptions) -> Failures:
    given: dict[str, float | None] = {name: getattr(options, name) for name in _OF_FAILURES}
    if options.node_mttf_s is None:
        given["node_mttf_s"] = job.node_mttf_s
    return planned_failures(job.cluster, job.checkpoint, replicas=job.replicas, step=job.step, **given)


def _scenario(job: GoodputJob, options: GoodputOptions, failures: Failures, mean: ExpectedRun) -> Scenario:
    replicas, fewest = _replicas(job, options)
    scenario = scenario_of(
        failures,
        work_s=job.work.value,
        interval_s=mean.interval.value,
        work_spread=job.work_spread,
        replicas=replicas,
        min_replicas=fewest,
        queue_s=options.queue_s,
    )
    if options.slow_mttf_s is not None:
        scenario = replace(
            scenario,
            slow_mttf_s=options.slow_mttf_s,
            slow_speed=options.slow_speed,
            slow_found_s=options.slow_found_s,
        )
    return scenario


def _replicas(job: GoodputJob, options: GoodputOptions) -> tuple[int, int]:
    """All replicas and the fewest; a job that is not elastic counts as one replica."""
    nodes, fewest = job.cluster.num_nodes, options.fewest_nodes
    if fewest is None:
        return 1, 1
    if fewest > nodes:
        raise ArgumentError(f"{fewest} nodes are more than the {nodes} of the job", argument="elastic")
    each = nodes_per_replica(job.accelerators_per_replica, job.cluster.accelerators_per_node)
    return elastic_replicas(nodes, each, fewest)


def _rows(needed: Traced) -> list[int]:
    """Numbers of spares to simulate: 0, 1, 2, 4 ... and those needed, without those with which the job hardly runs."""
    most = round(needed.value)
    powers = [0, *(1 << bit for bit in range(most.bit_length())), most]
    load = needed.inputs["load"].value
    return [count for count in powers if waiting_share(load, count) <= _LONGEST_WAIT][-_MOST_ROWS:] or [most]


def _simulate(
    scenario: Scenario, rows: Sequence[int], options: GoodputOptions, progress: Callable[[float, str], None]
) -> dict[int, SimulationOutcome]:
    def simulated(index: int, spares: int) -> SimulationOutcome:
        return simulate(
            replace(scenario, spares=spares),
            trials=options.trials,
            seed=options.seed,
            progress=lambda share: progress((index + share) / len(rows), "simulating"),
        )

    return {spares: simulated(index, spares) for index, spares in enumerate(rows)}


def _simulated_figures(
    outcome: SimulationOutcome, mean: ExpectedRun, options: GoodputOptions, deadline_s: float | None
) -> tuple[Traced, ...]:
    by = f"simulation of {options.trials:,} runs, seed {options.seed}"
    values = {f"p{share}": outcome.quantile_s(share / 100) for share in (10, 50, 90)}
    low, high = values["p10"], values["p90"]
    figures = [computed(f"finish {name}", value, "s", by=by, run_time=mean.run_time) for name, value in values.items()]
    figures[1] = replace(figures[1], low=low, high=high)
    figures.append(computed("simulated goodput", outcome.runtime_goodput, "", by=by, run_time=mean.run_time))
    figures.append(computed("simulated ETTR", outcome.ettr, "", by=by, run_time=mean.run_time))
    if deadline_s is not None:
        limit = fact("deadline", deadline_s, "s", source=GIVEN)
        figures.append(
            computed("chance", outcome.chance(deadline_s), "", by=by, deadline=limit, run_time=mean.run_time)
        )
    return tuple(figures)


def _notes(
    job: GoodputJob, options: GoodputOptions, failures: Failures, mean: ExpectedRun, scenario: Scenario
) -> list[str]:
    notes = []
    if mean.failures.value < _FEW:
        notes.append(
            "so few failures are expected that the expected figures, of a long run, may mislead; trust the finish"
        )
    given = job.node_mttf_s is not None or options.node_mttf_s is not None
    part = job.cluster.accelerator
    if not given and fleet_of(part) is None:
        notes.append(f"no published failure rate of nodes with {part.name}: set `--node-mttf`")
    if failures.write.value > mean.interval.value:
        notes.append(
            f"a checkpoint every {format_duration(mean.interval.value)} takes {format_duration(failures.write.value)} "
            "to write: each save waits for the one before"
        )
    if job.checkpoint is None and None in (options.save_s, options.write_s):
        notes.append("how long a save takes is assumed: no model is named, and `--save` or `--save-write` is not given")
    left_out = [
        name for name, value in (("stragglers", options.slow_mttf_s), ("elasticity", options.fewest_nodes)) if value
    ]
    if left_out:
        notes.append(f"the expected figures leave out {' and '.join(left_out)}; the simulated ones include them")
    if job.work_spread:
        low, high = job.work.inputs["step_time"].low or 0.0, job.work.inputs["step_time"].high or 0.0
        notes.append(f"the step time is sampled, too: {format_duration(low)} to {format_duration(high)} with 80 %")
    if options.fewest_nodes is not None and scenario.min_replicas == scenario.replicas:
        left = scenario.num_nodes - scenario.replica_nodes
        notes.append(f"--elastic changes nothing: without one replica {left} nodes are left")
    return notes
