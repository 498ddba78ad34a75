"""From a run file and a goal to a proposal: every kind of node planned, priced and run through its failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from trainworks.api.cluster_plan import ClusterPlan
from trainworks.api.run_failures import failures_of, written_interval
from trainworks.api.size_plans import Plans, smallest
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.facts import Offer, Processor
from trainworks.config.run_file import RunFile, Workload
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.cost.owning import own
from trainworks.plan.cost.renting import CONTRACTS, Contract, contracts, rent
from trainworks.plan.reliability.goodput import Expected, Failures, expected, spares_needed
from trainworks.plan.reliability.scenario import Outcome, scenario_of, spread_of
from trainworks.plan.reliability.simulation import simulate
from trainworks.plan.sizing.candidates import Candidate, Skipped, candidates, node_counts
from trainworks.plan.sizing.proposal import Alternative, Wish
from trainworks.plan.trace import Traced, computed, fact
from trainworks.units import HOUR_S

__all__ = ["Asked", "Reliability", "Sized", "may_meet", "mean_run_time_s", "size_up", "workload_of"]

_TRIALS = 500
_MOST_EVENTS = 1_000
"""Events of one simulated run; hundreds of candidates are simulated."""
_MORE = 3
"""Numbers of nodes that are tried of each kind, from the smallest that may meet the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a proposal is asked for."""

    run_file: RunFile
    wish: Wish
    offers: tuple[Offer, ...]
    only: frozenset[str] = frozenset()
    nodes: tuple[Candidate, ...] = ()
    """Described ones, instead of the catalogue's."""
    processor: Processor | None = None
    """Of the nodes; the catalogue's where left out."""
    contracts: frozenset[str]
    """`on-demand`, `reserved`, `spot`, `own`."""
    hours_per_year: float
    """For which a cluster of one's own trains."""
    largest: int
    """Nodes."""
    given: Mapping[str, float]
    """Numbers that replace assumptions."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Reliability:
    """How one size of a cluster fares, without a price."""

    plan: ClusterPlan
    work: Traced
    failures: Failures
    spares: Traced
    mean: Expected
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Sized:
    """Everything that was tried."""

    alternatives: list[Alternative]
    skipped: list[Skipped]
    runs: dict[tuple[str, int], Reliability]
    """By name of the node and number of nodes."""


def workload_of(run_file: RunFile) -> Workload:
    """The workload of a run file.

    Raises:
        UsageError: it has a command instead.
    """
    if run_file.workload is None:
        raise UsageError("a command of your own cannot be sized; only a `workload` can")
    return run_file.workload


def size_up(asked: Asked, plans: Plans, progress: Callable[[float, str], None]) -> Sized:
    """Try every kind of node at the smallest number that meets the wish, and at a few more.

    Args:
        asked: the run and what it has to meet.
        plans: of the same run file.
        progress: is told the share of nodes that are done, and what is being done.

    Raises:
        EnvironmentProblem: no kind of node trains this workload in time.
    """
    precision = workload_of(asked.run_file).precision
    found, skipped = candidates(load_catalog(), asked.offers, precision=precision, only=asked.only)
    found, skipped = ([*asked.nodes], []) if asked.nodes else (found, skipped)
    sized = Sized([], skipped, {})
    for index, candidate in enumerate(found):
        progress(index / len(found), f"planning {candidate.node}")
        if reason := _try_out(candidate, asked, plans, sized):
            sized.skipped.append(Skipped(candidate.node, reason))
    if not sized.alternatives:
        raise _nothing(sized.skipped)
    return sized


def _nothing(skipped: Sequence[Skipped]) -> EnvironmentProblem:
    told = Counter(item.reason for item in skipped).most_common(3)
    counted = "; ".join(f"{count} of them: {reason}" for reason, count in told)
    return EnvironmentProblem(
        f"no kind of node trains this workload in time ({counted or 'none is offered'})",
        hint="allow more nodes with `--largest`, a later `--deadline`, or other nodes with `--only`",
    )


def _try_out(candidate: Candidate, asked: Asked, plans: Plans, sized: Sized) -> str:
    """Add the candidate's alternatives; why there are none, or nothing."""
    owned = candidate.for_sale and "own" in asked.contracts
    if not owned and not candidate.offers:
        return "it can be bought, and not rented"
    largest = candidate.largest or asked.largest
    too_few = _too_few(candidate, asked, plans.flops)

    def meets(count: int) -> bool:
        if count <= too_few:
            return False
        plan = plans.on(candidate.cluster_text(count))
        return plan is not None and may_meet(plan, asked)

    least = smallest(largest, meets)
    if least is None:
        return _why_not(candidate, largest, plans)
    if not owned and not candidate.offers_of(least):
        return "several are needed, and no offer says what network joins them"
    tried = [count for count in node_counts(largest) if count >= least]
    for count in tried[: _MORE if asked.wish.deadline_s else _MORE + 2]:
        _add_alternatives(candidate, count, asked, plans, sized)
    return ""


def _too_few(candidate: Candidate, asked: Asked, flops: float | None) -> int:
    """Nodes that miss the deadline even if every accelerator ran at its peak; 0 where that is not known."""
    if asked.wish.deadline_s is None or flops is None:
        return 0
    part = load_catalog().accelerators[candidate.base.accelerator]
    peak = part.peak_flops_per_s[workload_of(asked.run_file).precision] * candidate.base.accelerators
    return int(flops / (peak * asked.wish.deadline_s))


def _why_not(candidate: Candidate, largest: int, plans: Plans) -> str:
    if candidate.largest == 1:
        return "one node is too few, and no offer says what network joins several"
    if plans.on(candidate.cluster_text(largest)) is not None:
        return f"{largest:,} nodes would take too long"
    return plans.why_not(candidate.cluster_text(largest)).splitlines()[0]


def may_meet(plan: ClusterPlan, asked: Asked, *, share: float = 1.0) -> bool:
    """Whether the mean run, failures included, is done within that share of the time to the deadline."""
    if asked.wish.deadline_s is None:
        return True
    return mean_run_time_s(plan, asked) <= share * asked.wish.deadline_s


def mean_run_time_s(plan: ClusterPlan, asked: Asked) -> float:
    """Of a run with its failures; infinite where it fails too often to get on."""
    try:
        return _mean(plan, asked)[-1].run_time.value
    except UsageError:
        return math.inf


def _mean(plan: ClusterPlan, asked: Asked, **given: float | None) -> tuple[Traced, Failures, Traced, Expected]:
    work, failures = plan.work, failures_of(plan, asked.run_file, **given)
    spares = spares_needed(failures, limit=assumed("time without nodes"))
    interval = written_interval(plan, asked.run_file)
    mean = expected(failures, work=work, spares=spares, shortest=work.inputs["step_time"], interval=interval)
    return work, failures, spares, mean


def _reliability_of(plan: ClusterPlan, asked: Asked, **given: float | None) -> Reliability:
    """The simulated finish of a plan, with the spares that it needs; `given` are arguments of `planned_failures`."""
    work, failures, spares, mean = _mean(plan, asked, **given)
    best = plan.best[0]
    scenario = scenario_of(
        failures,
        work_s=work.value,
        interval_s=mean.interval.value,
        work_spread=spread_of(best.low_s, best.high_s),
        spares=round(spares.value),
    )
    outcome = simulate(scenario, trials=_TRIALS, seed=asked.seed, most_events=_MOST_EVENTS)
    return Reliability(plan, work, failures, spares, mean, outcome)


def _add_alternatives(candidate: Candidate, count: int, asked: Asked, plans: Plans, sized: Sized) -> None:
    """Add the cheapest of each kind of contract, and the owned one; what fails is skipped with its reason."""
    plan = plans.on(candidate.cluster_text(count))
    if plan is None:
        return
    try:
        run = _reliability_of(plan, asked)
    except UsageError as error:
        sized.skipped.append(Skipped(f"{count:,} x {candidate.node}", error.message))
        return
    sized.runs[candidate.node, count] = run
    for contract, build in _contracts(candidate, count, run, asked).items():
        try:
            sized.alternatives.append(build())
        except UsageError as error:
            sized.skipped.append(Skipped(f"{count:,} x {candidate.node}, {contract}", error.message))


def _contracts(
    candidate: Candidate, count: int, run: Reliability, asked: Asked
) -> dict[str, Callable[[], Alternative]]:
    """By the name of each contract that was asked for and is offered, what prices and simulates it."""
    found: dict[str, Callable[[], Alternative]] = {}
    for contract in CONTRACTS:
        selling = [offer for offer in candidate.offers_of(count) if contract in contracts(offer)]
        if contract in asked.contracts and selling:
            found[contract] = partial(_rented, candidate, count, contract, selling, run, asked)
    if candidate.for_sale and "own" in asked.contracts:
        found["own"] = partial(_owned, candidate, count, run, asked)
    return found


def _rented(
    candidate: Candidate, count: int, contract: Contract, selling: Sequence[Offer], run: Reliability, asked: Asked
) -> Alternative:
    paid, life_s, wasted = run, None, None
    if contract == "spot":
        life_s = assumed("spot life", asked.given.get("spot life")).value
        paid = _on_spot(run, asked, life_s=life_s)
        share = 1 - _held(run.outcome) / _held(paid.outcome)
        wasted = computed("spot waste", max(0.0, share), "", by=f"simulation of {_TRIALS} runs, beside those on demand")
    hours = _hours(run.outcome)  # a spot price has the waste in it
    accelerators = count * candidate.base.accelerators
    priced_as = partial(rent, contract=contract, num_accelerators=accelerators, hours=hours, given=asked.given)
    priced = [(priced_as(offer, wasted=wasted), offer) for offer in selling]
    cost, offer = min(priced, key=lambda pair: pair[0].value)
    interval_s = paid.mean.interval.value
    return Alternative(candidate, count, 0, contract, offer.name, cost, paid.outcome, interval_s, life_s)


def _on_spot(run: Reliability, asked: Asked, *, life_s: float) -> Reliability:
    """The same run on capacity that is taken away; a node that fails is replaced as it is on demand.

    The time from a preemption to the next step is a wait for capacity and the restart that every failure needs.
    """
    restart_s = assumed("spot restart", asked.given.get("spot restart")).value
    wait_s = max(0.0, restart_s - run.failures.restart.value)
    return _reliability_of(run.plan, asked, capacity_life_s=life_s, capacity_wait_s=wait_s)


def _held(outcome: Outcome) -> float:
    """Time for which the median run holds its nodes."""
    return float(np.median(outcome.held_s))


def _hours(outcome: Outcome) -> Traced:
    low, mid, high = (outcome.quantile_s(share) / HOUR_S for share in (0.1, 0.5, 0.9))
    return computed("hours", mid, "h", by=f"simulation of {_TRIALS} runs with their failures", low=low, high=high)


def _owned(candidate: Candidate, count: int, run: Reliability, asked: Asked) -> Alternative:
    """A share of one's own cluster, spares included, for the hours of the run."""
    cluster = run.plan.job.cluster
    spares = round(run.spares.value)
    bought = cluster.model_copy(update={"num_nodes": count + spares})
    yearly = fact("hours per year", asked.hours_per_year, "h/year", source=GIVEN)
    owning = own(bought, hours_per_year=yearly, given=asked.given)
    accelerators = fact("accelerators bought", bought.num_accelerators, "", source="with spares")
    hours = _hours(run.outcome)
    cost = (owning.per_accelerator_hour * accelerators * hours).named(
        f"{candidate.node}, own", "USD", per_accelerator_hour=owning.per_accelerator_hour, accelerators=accelerators
    )
    return Alternative(candidate, count, spares, "own", "bought", cost, run.outcome, run.mean.interval.value)
