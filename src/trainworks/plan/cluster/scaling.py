"""What fits on a cluster of one kind of node, what does not, and on how many nodes: which sizes meet the goal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

from trainworks.catalog.exchange import DOLLAR, Exchange, usd_of
from trainworks.config.data import Evaluation
from trainworks.config.limits import LIMITS
from trainworks.config.recovery import Goal
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.cluster.layout import fixed_at
from trainworks.plan.job import AnyJob
from trainworks.plan.prediction import Prediction, predictions
from trainworks.plan.run.steps import planned_evaluation
from trainworks.plan.search import TIGHT_SHARE, Rejection, SearchResult, limit_bytes, search, search_layouts
from trainworks.plan.space import Fixed, Space
from trainworks.plan.uncertainty import Belief
from trainworks.record.resolved import PlannedEvaluation
from trainworks.units import HOUR_S, format_count, format_duration, format_gib

LIKELY = 0.9
"""Chance of meeting a goal that the slow end of the 80 % interval just meets; a plan looks for it."""
_UNITS = {"meshes": "mesh"}
_ROUND = (1, 3, 5, 7, 9, 15)
"""Odd factors of node counts among which batches divide well."""
_NEAR, _NEAREST = 0.75, 3
TABLE_LENGTH = 10
"""Families of layouts that a plan lists, and among which the proposed one is chosen."""
_LARGEST_SCALE = 8
"""Largest multiple of the described cluster to plan, where that one misses the goal."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The job to plan for every size of the cluster, and the goal to meet."""

    job: AnyJob
    global_batch: int
    steps: int
    fixed: Fixed
    goal: Goal
    price_usd: float | None
    belief: Belief
    """What is known of the cluster; the job has its slowdowns."""
    exchange: Exchange = DOLLAR
    """Currency of the answer: that of the budget, else that of the price in the run file."""
    all_sizes: bool = False
    """Whether to plan smaller clusters without a goal, too."""
    advise: bool = True
    """Whether to look further: at unusual layouts and more nodes where nothing fits, at fewer where the batch divides
    badly."""

    evaluation: Evaluation | None = None
    """Evaluations during training; their time adds to that of the steps."""
    selection: float = 0.0
    """Share that an earlier search, whose layout is fixed here, adds to the step time."""

    def evaluations(self, best: Prediction) -> PlannedEvaluation | None:
        """Number and cost of the evaluations in a layout; None without any, and of all of data that are not counted."""
        return planned_evaluation(
            self.evaluation,
            best.step_time,
            global_batch=self.global_batch,
            layout=best.layout,
            num_steps=self.steps,
            held_out_samples=None,
        )

    def run_time_s(self, best: Prediction, step_time_s: float) -> float:
        """Time of all steps and evaluations, which take as long in proportion to a step as predicted."""
        planned = self.evaluations(best)
        return step_time_s * (self.steps + (planned.total_s / best.step_time_s if planned else 0.0))

    def predictions(self, job: AnyJob, result: SearchResult) -> list[Prediction]:
        """Every layout that a search kept for the job, or for the same job on another number of nodes."""
        return predictions(
            job,
            result.layouts,
            result.memories,
            global_batch=self.global_batch,
            belief=self.belief,
            selection=self.selection,
            families=result.families[:TABLE_LENGTH],
        )

    @property
    def has_goal(self) -> bool:
        """Whether a deadline or a budget was given."""
        return self.goal.deadline is not None or self.goal.budget is not None


@dataclass(frozen=True, slots=True)
class Scale:
    """The best layout on a number of nodes, with the time and cost of the whole run."""

    num_nodes: int
    best: Prediction
    run_time_s: float
    cost_usd: float | None
    meets_goal: bool
    """Judged by the predicted time, the middle of its interval."""
    chance: float
    """Chance of meeting the goal, by the interval of the step time."""


def scales(request: PlanRequest) -> list[Scale]:
    """The cluster, its parts, and with a goal its multiples; those that none beats in both time and size."""
    if not request.has_goal and not request.all_sizes:
        return []
    rows: list[Scale] = []
    described = request.job.cluster.num_nodes
    for num_nodes in _node_counts(described):
        scale = _scale(request, num_nodes)
        if scale and (not rows or scale.run_time_s < rows[-1].run_time_s):
            rows.append(scale)
        if num_nodes >= described and (not request.has_goal or (rows and rows[-1].chance >= LIKELY)):
            break
    return rows


def faster_with_fewer(request: PlanRequest, step_time_s: float) -> Scale | None:
    """A somewhat smaller number of nodes whose step is shorter, because a batch divides among them, or None."""
    all_nodes = request.job.cluster.num_nodes
    round_counts = {odd << shift for odd in _ROUND for shift in range(all_nodes.bit_length())}
    near = sorted((count for count in round_counts if _NEAR * all_nodes <= count < all_nodes), reverse=True)
    tried = (_scale(request, count) for count in near[:_NEAREST])
    return next((scale for scale in tried if scale is not None and scale.best.step_time_s < step_time_s), None)


def _searched(request: PlanRequest, num_nodes: int) -> tuple[AnyJob, SearchResult] | None:
    if num_nodes * request.job.cluster.accelerators_per_node > LIMITS["accelerators"].most:
        return None
    job = replace(request.job, cluster=request.job.cluster.model_copy(update={"num_nodes": num_nodes}))
    fixed = fixed_at(request.fixed, job.cluster.num_accelerators)
    if fixed is None:
        return None
    try:
        result = search_layouts(job, request.global_batch, fixed, keep=TABLE_LENGTH)
    except UsageError:  # more layouts than one search prices: this size is left out
        return None
    return (job, result) if result.fitting else None


def _scale(request: PlanRequest, num_nodes: int) -> Scale | None:
    searched = _searched(request, num_nodes)
    if searched is None:
        return None
    job, result = searched
    best = request.predictions(job, result)[0]
    num_accelerators, run_time_s = job.cluster.num_accelerators, request.run_time_s(best, best.step_time_s)
    hours = run_time_s / HOUR_S * num_accelerators
    return Scale(
        num_nodes=num_nodes,
        best=best,
        run_time_s=run_time_s,
        cost_usd=None if request.price_usd is None else hours * request.price_usd,
        meets_goal=run_time_s <= _limit_s(request, num_accelerators),
        chance=goal_chance(request, best, num_accelerators),
    )


def goal_chance(request: PlanRequest, best: Prediction, num_accelerators: int) -> float:
    """Chance that the whole run keeps deadline and budget; 1 without either.

    The logarithm of the time is taken as normal on each side of the prediction, with the ends of the 80 % interval as
    its first and its last tenth.
    """
    limit_s = _limit_s(request, num_accelerators)
    low_s, mid_s, high_s = (request.run_time_s(best, at) for at in (best.low_s, best.step_time_s, best.high_s))
    end_s = low_s if limit_s < mid_s else high_s
    if end_s == mid_s or math.isinf(limit_s):
        return 1.0 if limit_s >= mid_s else 0.0
    last_tenth = NormalDist().inv_cdf(LIKELY)
    return NormalDist().cdf(last_tenth * math.log(limit_s / mid_s) / abs(math.log(end_s / mid_s)))


def _limit_s(request: PlanRequest, num_accelerators: int) -> float:
    """The longest run that meets the deadline and, at the price of so many accelerators, the budget."""
    limits = [float("inf")] if request.goal.deadline is None else [request.goal.deadline]
    if request.goal.budget is not None and request.price_usd is not None:
        limits.append(usd_of(request.goal.budget) / request.price_usd / num_accelerators * HOUR_S)
    return min(limits)


def describe_goal(request: PlanRequest, chance: float, rows: list[Scale]) -> str:
    """`30d: met with a chance of 4 % on 32 nodes; 55 % on 96; 93 % on 128`."""
    goals = [] if request.goal.deadline is None else [re.sub(r" 0[hms]$", "", format_duration(request.goal.deadline))]
    budget = request.goal.budget
    goals += [] if budget is None else [f"{budget.amount:,.0f} {budget.currency}"]
    num_nodes = request.job.cluster.num_nodes
    parts = [f"met with a chance of {format_chance(chance)} on {num_nodes:,} node{'s' if num_nodes > 1 else ''}"]
    for least in (0.5, LIKELY):
        first = next((row for row in rows if row.chance >= least), None)
        if first is None or first.num_nodes == num_nodes or (first.num_nodes > num_nodes and chance >= least):
            continue
        already = " already" if first.num_nodes < num_nodes else ""
        parts.append(f"{format_chance(first.chance)} on {first.num_nodes:,}{already}")
    if max([chance, *(row.chance for row in rows)]) < LIKELY:
        parts.append(f"{format_chance(LIKELY)} on none up to {_LARGEST_SCALE * num_nodes:,}")
    return f"{' and '.join(goals)}: {'; '.join(dict.fromkeys(parts))}"


def format_chance(chance: float) -> str:
    """`88 %`, rounded down so that 90 % is at least that; at the ends `under 1 %` and `over 99 %`."""
    if chance < 0.01:
        return "under 1 %"
    return "over 99 %" if chance > 0.99 else f"{math.floor(100 * chance + 1e-9)} %"


def _node_counts(num_nodes: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 ... and the whole cluster, ascending; up to several times the cluster."""
    counts = {num_nodes, 1} | {base << shift for base in (2, 3) for shift in range(20)}
    return iter(sorted(count for count in counts if count <= _LARGEST_SCALE * num_nodes))


def is_tight(job: AnyJob, prediction: Prediction) -> bool:
    """Whether a layout that fits is within 3 % of the limit."""
    return prediction.memory.total_bytes > TIGHT_SHARE * limit_bytes(job)


def describe_rejection(rejection: Rejection) -> str:
    """`24.6k layouts`, `1 mesh`."""
    unit = rejection.unit
    return f"{format_count(rejection.count)} {_UNITS.get(unit, unit.rstrip('s')) if rejection.count == 1 else unit}"


def does_not_fit(request: PlanRequest, result: SearchResult) -> EnvironmentProblem:
    """The error of a job that fits in no layout: every reason, and with advice the nearest layout and what to do."""
    job, count = request.job, request.job.cluster.num_accelerators
    capacity = format_gib(job.cluster.accelerator.memory_bytes)
    lines = [f"no layout fits {'1 accelerator' if count == 1 else f'{count:,} accelerators'} of {capacity}"]
    lines += [f"  {describe_rejection(rejection)}: {rejection.reason}" for rejection in result.rejections]
    if not request.advise:
        return EnvironmentProblem("\n".join(lines))
    least = _least_memory(request, result)
    stage = f" on stage {least.stage}" if least.layout.pp > 1 else ""
    nearest = f"nearest: {format_gib(least.memory.total_bytes)}{stage} with {least.layout.describe()}"
    described = job.cluster.num_nodes
    larger = (count for count in _node_counts(described) if count > described)
    nodes = next((count for count in larger if _searched(request, count)), None)
    step = (
        f"{nodes:,} nodes of this kind are the fewest on which it fits"
        if nodes
        else f"nor does it fit on up to {_LARGEST_SCALE * described:,} nodes of this kind: "
        f"{'leave more of the layout open, or ' if request.fixed else ''}reduce `sequence_length` or `micro_batch`"
    )
    return EnvironmentProblem("\n".join(lines), hint=f"{nearest}\n      {step}")


def offloading_note(request: PlanRequest, best: Prediction) -> str | None:
    """Memory that would not fit without offloading, where the search chose to offload; None otherwise."""
    parts = {"offload": "activations", "offload_optimizer": "optimizer"}
    used = {"offload": best.layout.offload_activations, "offload_optimizer": best.layout.offload_optimizer}
    unasked = [name for name in parts if used[name] is True and not request.fixed.get(name)]
    if not unasked:
        return None
    job, fixed = request.job, dict(request.fixed) | dict.fromkeys(parts, 0)
    space = Space(job, job.cluster.num_accelerators, request.global_batch, fixed)
    without = _least_memory(request, search(space, keep=1))
    what = " and ".join(f"the {parts[name]}" for name in unasked)
    needed, capacity = (
        format_gib(size) for size in (without.memory.total_bytes, request.job.cluster.accelerator.memory_bytes)
    )
    whose = "this layout does not fit" if request.fixed else "no layout fits"
    return f"{whose} without offloading {what}: {needed} of {capacity}"


def _least_memory(request: PlanRequest, result: SearchResult) -> Prediction:
    job, layouts = request.job, result.nearest
    memories = job.memories(layouts)
    return predictions(job, layouts, memories, global_batch=request.global_batch, belief=request.belief)[0]
