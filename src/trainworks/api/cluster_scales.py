"""The described cluster in other sizes: which of them meets a goal, and how surely; from which on a job fits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from trainworks.api.cluster_layout import fixed_at
from trainworks.config.limits import LIMITS
from trainworks.config.run_file import Goal
from trainworks.errors import UsageError
from trainworks.plan.prediction import Prediction, predictions
from trainworks.plan.pricing import AnyJob
from trainworks.plan.search import Fixed, SearchResult, search
from trainworks.plan.uncertainty import Belief
from trainworks.units import HOUR_S, format_duration

__all__ = [
    "LARGEST_SCALE",
    "Chance",
    "Run",
    "Scale",
    "chance",
    "faster_with_fewer",
    "goal_in_words",
    "scales",
    "search_layouts",
    "smallest_fit",
]

Chance = Literal["unlikely", "about even", "likely"]
"""Of meeting a goal: the 80 % interval misses it, has it inside, or meets it."""

_CHANCES: tuple[Chance, ...] = ("unlikely", "about even", "likely")
_ROUND = (1, 3, 5, 7, 9, 15)
"""Times a power of two: counts among which batches divide."""
_NEAR, _NEAREST = 0.75, 3
LARGEST_SCALE = 8
"""Times the described cluster, where that one misses the goal."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is asked of every size of the cluster."""

    job: AnyJob
    global_batch: int
    steps: int
    fixed: Fixed
    goal: Goal
    price_usd: float | None
    belief: Belief
    all_sizes: bool = False
    """Whether smaller clusters are of interest without a goal, too."""

    @property
    def has_goal(self) -> bool:
        """Whether a deadline or a budget was given."""
        return self.goal.deadline is not None or self.goal.budget is not None


@dataclass(frozen=True, slots=True)
class Scale:
    """The best layout on so many nodes, and what the whole run takes there."""

    num_nodes: int
    best: Prediction
    run_time_s: float
    cost_usd: float | None
    meets_goal: bool
    """By the predicted time, in the middle of its interval."""
    chance: Chance


def search_layouts(job: AnyJob, global_batch: int, fixed: Fixed, *, keep: int, belief: Belief) -> SearchResult:
    """Offloading is a last resort: it is searched where it was asked for, or where nothing fits without."""
    without = dict.fromkeys(("offload", "offload_optimizer"), 0) | dict(fixed)
    world_size = job.cluster.num_accelerators
    result = search(job, world_size=world_size, global_batch=global_batch, fixed=without, keep=keep, belief=belief)
    if result.fitting or without == fixed:
        return result
    return search(job, world_size=world_size, global_batch=global_batch, fixed=fixed, keep=keep, belief=belief)


def scales(run: Run) -> list[Scale]:
    """The cluster, its parts, and with a goal its multiples; those that nothing beats in time and size."""
    if not run.has_goal and not run.all_sizes:
        return []
    found: list[Scale] = []
    own = run.job.cluster.num_nodes
    for num_nodes in _node_counts(own):
        scale = _scale(run, num_nodes)
        if scale and (not found or scale.run_time_s < found[-1].run_time_s):
            found.append(scale)
        if num_nodes >= own and (not run.has_goal or (found and found[-1].chance == "likely")):
            break
    return found


def smallest_fit(run: Run) -> int | None:
    """The smallest number of nodes above the described one on which a layout fits; None where there is none near."""
    larger = (count for count in _node_counts(run.job.cluster.num_nodes) if count > run.job.cluster.num_nodes)
    return next((count for count in larger if _searched(run, count)), None)


def faster_with_fewer(run: Run, step_time_s: float) -> Scale | None:
    """A somewhat smaller number of nodes whose step is shorter, because a batch divides among them, or None."""
    all_nodes = run.job.cluster.num_nodes
    round_counts = {odd << shift for odd in _ROUND for shift in range(all_nodes.bit_length())}
    near = sorted((count for count in round_counts if _NEAR * all_nodes <= count < all_nodes), reverse=True)
    tried = (_scale(run, count) for count in near[:_NEAREST])
    return next((scale for scale in tried if scale is not None and scale.best.step_time_s < step_time_s), None)


def _searched(run: Run, num_nodes: int) -> tuple[AnyJob, SearchResult] | None:
    if num_nodes * run.job.cluster.accelerators_per_node > LIMITS["accelerators"].most:
        return None
    job = replace(run.job, cluster=run.job.cluster.model_copy(update={"num_nodes": num_nodes}))
    fixed = fixed_at(run.fixed, job.cluster.num_accelerators)
    if fixed is None:
        return None
    try:
        result = search_layouts(job, run.global_batch, fixed, keep=1, belief=run.belief)
    except UsageError:  # more layouts than one search prices: this size is left out
        return None
    return (job, result) if result.fitting else None


def _scale(run: Run, num_nodes: int) -> Scale | None:
    searched = _searched(run, num_nodes)
    if searched is None:
        return None
    job, result = searched
    batch = run.global_batch
    best = predictions(job, result.layouts, result.times, result.memories, global_batch=batch, belief=run.belief)[0]
    num_accelerators, run_time_s = job.cluster.num_accelerators, run.steps * best.step_time_s
    hours = run_time_s / HOUR_S * num_accelerators
    return Scale(
        num_nodes=num_nodes,
        best=best,
        run_time_s=run_time_s,
        cost_usd=None if run.price_usd is None else hours * run.price_usd,
        meets_goal=run_time_s <= _limit_s(run, num_accelerators),
        chance=chance(run, best, num_accelerators),
    )


def chance(run: Run, best: Prediction, num_accelerators: int) -> Chance:
    """Whether the 80 % interval of the whole run is within deadline and budget, around them, or beyond."""
    limit_s = _limit_s(run, num_accelerators)
    if run.steps * best.high_s <= limit_s:
        return "likely"
    return "unlikely" if run.steps * best.low_s > limit_s else "about even"


def _limit_s(run: Run, num_accelerators: int) -> float:
    """The longest run that meets the deadline and, at the price of so many accelerators, the budget."""
    limits = [float("inf")] if run.goal.deadline is None else [run.goal.deadline]
    if run.goal.budget is not None and run.price_usd is not None:
        limits.append(run.goal.budget / run.price_usd / num_accelerators * HOUR_S)
    return min(limits)


def goal_in_words(run: Run, own: Chance, found: list[Scale]) -> str:
    """`30d: unlikely on 32 nodes; about even on 96; likely on 128`."""
    goals = [] if run.goal.deadline is None else [re.sub(r" 0[hms]$", "", format_duration(run.goal.deadline))]
    goals += [] if run.goal.budget is None else [f"{run.goal.budget:,.0f} USD"]
    num_nodes = run.job.cluster.num_nodes
    parts = [f"{own} on {_nodes(num_nodes)}"]
    for name in _CHANCES[max(1, _CHANCES.index(own)) :]:
        smallest = min((scale.num_nodes for scale in found if scale.chance == name), default=num_nodes)
        if smallest != num_nodes and (smallest < num_nodes or name != own):
            parts.append(f"{name} on {smallest:,}{' already' if name == own else ''}")
    if own != "likely" and not any(scale.chance == "likely" for scale in found):
        parts.append(f"likely on none up to {LARGEST_SCALE * num_nodes:,}")
    return f"{' and '.join(goals)}: {'; '.join(parts)}"


def _nodes(count: int) -> str:
    return f"{count:,} node{'s' if count > 1 else ''}"


def _node_counts(num_nodes: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 ... and the whole cluster, ascending; up to several times the cluster."""
    counts = {num_nodes, 1} | {base << shift for base in (2, 3) for shift in range(20)}
    return iter(sorted(count for count in counts if count <= LARGEST_SCALE * num_nodes))
