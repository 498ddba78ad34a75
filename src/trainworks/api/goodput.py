"""From a job and what is wished of it to a forecast: formulas first, then the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainworks.api.goodput_job import Asked
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.reliability.defaults import fleet_of, planned_failures
from trainworks.plan.reliability.goodput import Expected, Failures, expected, save_in_time, spares_needed, waiting_share
from trainworks.plan.reliability.scenario import (
    Outcome,
    Scenario,
    elastic_replicas,
    nodes_per_replica,
    scenario_of,
)
from trainworks.plan.reliability.simulation import simulate
from trainworks.plan.trace import Traced, computed, fact
from trainworks.report.progress_bar import waiting
from trainworks.units import format_duration

__all__ = ["Forecast", "Wishes", "forecast"]

_MOST_WAITING = 0.9
"""Share of the time; a job that waits longer takes years to simulate, and nobody runs it."""
_MOST_ROWS = 7
_FEW = 5.0
"""Failures below which a run has not seen its average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the command line says; None is left to the run file or the catalogue. Times in seconds."""

    deadline_s: float | None
    spares: int | None
    node_mttf_s: float | None
    save_s: float | None
    write_s: float | None
    every_s: float | None
    detect_s: float | None
    restart_s: float | None
    repair_s: float | None
    fewest_nodes: int | None
    slow_mttf_s: float | None
    slow_speed: float
    slow_found_s: float
    capacity_life_s: float | None
    notice_s: float | None
    capacity_wait_s: float | None
    queue_s: float
    trials: int
    seed: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Everything that `trainworks goodput` says."""

    asked: Asked
    wishes: Wishes
    failures: Failures
    expected: Expected
    needed: Traced
    """Spares."""
    spares: int
    """That the figures below are for."""
    outcome: Outcome
    by_spares: dict[int, Outcome]
    deadline_s: float | None
    figures: tuple[Traced, ...]
    """Everything that can be explained."""
    notes: tuple[str, ...]


def forecast(asked: Asked, wishes: Wishes) -> Forecast:
    """The expectation by formulas, and the simulation with several numbers of spares."""
    every = asked.every_s if wishes.every_s is None else wishes.every_s
    interval = None if every is None else fact("checkpoint interval", every, "s", source=GIVEN)
    failures = save_in_time(_failures(asked, wishes), interval)
    needed = spares_needed(failures, limit=assumed("time without nodes"))
    chosen = round(needed.value) if wishes.spares is None else wishes.spares
    if chosen > asked.cluster.num_nodes:
        raise UsageError(
            f"{chosen} spares are more than the {asked.cluster.num_nodes} nodes of the job", place="--spares"
        )
    source = "as many as are needed" if wishes.spares is None else GIVEN
    mean = expected(
        failures,
        work=asked.work,
        spares=fact("spares", chosen, "", source=source),
        shortest=asked.shortest,
        interval=interval,
        queue=fact("queue", wishes.queue_s, "s", source=GIVEN if wishes.queue_s else "none asked for"),
    )
    scenario = _scenario(asked, wishes, failures, mean)
    outcomes = _simulated(scenario, sorted({chosen, *_rows(needed)}), wishes)
    deadline_s = asked.deadline_s if wishes.deadline_s is None else wishes.deadline_s
    outcome = outcomes[chosen]
    return Forecast(
        asked=asked,
        wishes=wishes,
        failures=failures,
        expected=mean,
        needed=needed,
        spares=chosen,
        outcome=outcome,
        by_spares=outcomes,
        deadline_s=deadline_s,
        figures=(*_expected_figures(mean), needed, *_simulated_figures(outcome, mean, wishes, deadline_s)),
        notes=(*asked.notes, *_what_is_left_out(asked, wishes, failures, mean), *_in_vain(scenario, wishes)),
    )


def _failures(asked: Asked, wishes: Wishes) -> Failures:
    return planned_failures(
        asked.cluster,
        asked.checkpoint,
        replicas=asked.replicas,
        step=asked.step,
        stall_s=wishes.save_s,
        write_s=wishes.write_s,
        capacity_life_s=wishes.capacity_life_s,
        notice_s=wishes.notice_s,
        capacity_wait_s=wishes.capacity_wait_s,
        node_mttf_s=asked.node_mttf_s if wishes.node_mttf_s is None else wishes.node_mttf_s,
        detection_s=wishes.detect_s,
        restart_s=wishes.restart_s,
        repair_s=wishes.repair_s,
    )


def _scenario(asked: Asked, wishes: Wishes, failures: Failures, mean: Expected) -> Scenario:
    replicas, fewest = _replicas(asked, wishes)
    scenario = scenario_of(
        failures,
        work_s=asked.work.value,
        interval_s=mean.interval.value,
        work_spread=asked.work_spread,
        replicas=replicas,
        min_replicas=fewest,
        queue_s=wishes.queue_s,
    )
    if wishes.slow_mttf_s is not None:
        scenario = replace(
            scenario,
            slow_mttf_s=wishes.slow_mttf_s,
            slow_speed=wishes.slow_speed,
            slow_found_s=wishes.slow_found_s,
        )
    return scenario


def _replicas(asked: Asked, wishes: Wishes) -> tuple[int, int]:
    """All replicas, and the fewest; one that cannot leave where the job is not elastic."""
    nodes, fewest = asked.cluster.num_nodes, wishes.fewest_nodes
    if fewest is None:
        return 1, 1
    if fewest > nodes:
        raise UsageError(f"{fewest} nodes are more than the {nodes} of the job", place="--elastic")
    each = nodes_per_replica(asked.accelerators_per_replica, asked.cluster.accelerators_per_node)
    return elastic_replicas(nodes, each, fewest)


def _in_vain(scenario: Scenario, wishes: Wishes) -> list[str]:
    """Whether an elastic job has no replica that it can go without."""
    if wishes.fewest_nodes is None or scenario.min_replicas < scenario.replicas:
        return []
    left = scenario.num_nodes - scenario.replica_nodes
    return [f"--elastic changes nothing: without one replica {left} nodes are left"]


def _rows(needed: Traced) -> list[int]:
    """0, 1, 2, 4 ... and what is needed, without those with which the job hardly runs; of many only the last ones."""
    most = round(needed.value)
    powers = [0, *(1 << bit for bit in range(most.bit_length())), most]
    load = needed.inputs["load"].value
    return [count for count in powers if waiting_share(load, count) <= _MOST_WAITING][-_MOST_ROWS:] or [most]


def _simulated(scenario: Scenario, rows: Sequence[int], wishes: Wishes) -> dict[int, Outcome]:
    outcomes = {}
    with waiting("simulating") as report:
        for index, spares in enumerate(rows):

            def told(share: float, index: int = index) -> None:
                report((index + share) / len(rows))

            one = replace(scenario, spares=spares)
            outcomes[spares] = simulate(one, trials=wishes.trials, seed=wishes.seed, progress=told)
    return outcomes


def _expected_figures(mean: Expected) -> tuple[Traced, ...]:
    return (
        mean.job_mttf,
        mean.interval,
        mean.runtime_goodput,
        mean.run_time,
        mean.ettr,
        mean.failures,
        mean.preemptions,
    )


def _simulated_figures(
    outcome: Outcome, mean: Expected, wishes: Wishes, deadline_s: float | None
) -> tuple[Traced, ...]:
    """What the simulation found, with what went into it."""
    by = f"simulation of {wishes.trials:,} runs, seed {wishes.seed}"
    values = {f"p{share}": outcome.quantile_s(share / 100) for share in (10, 50, 90)}
    low, high = values["p10"], values["p90"]
    found = [computed(f"finish {name}", value, "s", by=by, run_time=mean.run_time) for name, value in values.items()]
    found[1] = replace(found[1], low=low, high=high)
    found.append(computed("simulated goodput", outcome.runtime_goodput, "", by=by, run_time=mean.run_time))
    found.append(computed("simulated ETTR", outcome.ettr, "", by=by, run_time=mean.run_time))
    if deadline_s is not None:
        limit = fact("deadline", deadline_s, "s", source=GIVEN)
        found.append(computed("chance", outcome.chance(deadline_s), "", by=by, deadline=limit, run_time=mean.run_time))
    return tuple(found)


def _what_is_left_out(asked: Asked, wishes: Wishes, failures: Failures, mean: Expected) -> list[str]:
    notes = []
    if mean.failures.value < _FEW:
        notes.append(
            "so few failures are expected that the expected figures, of a long run, may mislead; trust the finish"
        )
    given = asked.node_mttf_s is not None or wishes.node_mttf_s is not None
    part = asked.cluster.accelerator
    if not given and fleet_of(part) is None:
        notes.append(f"nobody has published how often nodes with {part.name} fail: give `--node-mttf`")
    if failures.write.value > mean.interval.value:
        notes.append(
            f"a checkpoint every {format_duration(mean.interval.value)} takes {format_duration(failures.write.value)} "
            "to write: each save waits for the one before"
        )
    if asked.checkpoint is None and None in (wishes.save_s, wishes.write_s):
        notes.append("how long a save takes is assumed: no model is named, and `--save` or `--write` is not given")
    left_out = [
        name for name, value in (("stragglers", wishes.slow_mttf_s), ("elasticity", wishes.fewest_nodes)) if value
    ]
    if left_out:
        notes.append(f"the expected figures know nothing of {' and '.join(left_out)}; the simulated ones do")
    if asked.work_spread:
        low, high = asked.work.inputs["step_time"].low or 0.0, asked.work.inputs["step_time"].high or 0.0
        notes.append(f"the step time is sampled, too: {format_duration(low)} to {format_duration(high)} with 80 %")
    return notes
