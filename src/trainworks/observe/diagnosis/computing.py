"""Causes that make compute slower than it could be: small batches, recomputation, clocks, and other programs."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import numpy as np

from trainworks.observe.diagnosis.lost_time import LostTime
from trainworks.observe.diagnosis.run_facts import RunFacts
from trainworks.record.metric_columns import Floats
from trainworks.units import format_bytes, format_duration

_LARGER_BATCH_SAVES = 0.1
"""Least predicted saving for which another global batch, which changes the training, is worth considering."""
_WINDOWS = 24
"""Parts of a run whose medians are compared."""
_FEWEST_STEPS = 8
"""Steps of a window at least."""
_FEWEST_WINDOWS = 4
_SLOWER = 1.15
"""Ratio above which a window of steps is slow."""
_BEYOND_PLAN = 1.1
"""Ratio of measured to planned compute above which compute is slow."""


def lost_to_small_batches(facts: RunFacts) -> LostTime | None:
    """Time that larger matrix products, or fewer updates of the weights, would save, as the planner predicts."""
    if facts.prices is None or not facts.rows:
        return None
    return _small_micro_batch(facts) or _small_global_batch(facts)


def _small_micro_batch(facts: RunFacts) -> LostTime | None:
    assert facts.prices is not None
    better = facts.prices.larger_micro_batch()
    if better is None or better.compute_ratio >= 1:
        return None
    layout = facts.prices.layout
    lost_s = (1 - better.compute_ratio) * facts.expected_compute_s
    return LostTime(
        name="small_batches",
        title="The micro-batch is too small for fast matrix products",
        lost_s=lost_s,
        evidence=(
            f"{layout.grad_accum_steps} micro-batches of {_sequences(layout.micro_batch)} make a step",
            f"predicted compute with micro-batches of {better.layout.micro_batch}: {better.compute_ratio:.0%} of now",
        ),
        remedy="Use a larger micro-batch; the global batch stays the same.",
        setting=better.setting,
        saves_s=better.saves_s(facts.steps_s, of_s=lost_s),
    )


def _small_global_batch(facts: RunFacts) -> LostTime | None:
    assert facts.prices is not None
    compute_ratio, optimizer_ratio = facts.prices.larger_batch_ratios()
    compute_s, optimizer_s = facts.expected_compute_s, facts.ledger.optimizer_s
    lost_s = max(0.0, 1 - compute_ratio) * compute_s + (1 - optimizer_ratio) * optimizer_s
    if lost_s < _LARGER_BATCH_SAVES * facts.steps_s or facts.resolved.run_file.workload is None:
        return None
    batch = facts.resolved.run_file.workload.global_batch
    return LostTime(
        name="small_batches",
        title="Steps are too small: the weights are updated too often for the work between two updates",
        lost_s=lost_s,
        evidence=(
            f"a step of {_sequences(batch)} computes {format_duration(facts.median_of('compute_s'))} "
            f"and updates the weights in {format_duration(facts.median_of('optimizer_s'))}",
            f"predicted compute per token with {4 * batch:,} sequences a step: {compute_ratio:.0%} of now",
        ),
        remedy="Use a larger global batch if the optimization permits it, with a learning rate to match.",
        setting=f"workload: {{global_batch: {4 * batch}}}",
        saves_s=lost_s,
    )


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count:,} sequences"


def lost_to_recomputation(facts: RunFacts) -> LostTime | None:
    """Time that the backward pass computes activations again: the planned share of the measured compute."""
    terms, plan = facts.planned_terms, facts.plan
    if terms is None or plan is None or plan.layout.recompute == "none" or not facts.rows:
        return None
    lost_s = terms.recompute_s / (terms.groups.compute_s - terms.bubble_s) * facts.expected_compute_s
    if lost_s <= 0:
        return None
    lighter = [{"recompute": each} for each in ("none", "selective") if each != plan.layout.recompute]
    better = facts.prices.best_change(lighter) if facts.prices else None
    return LostTime(
        name="recompute",
        title="The backward pass computes activations again",
        lost_s=lost_s,
        evidence=(f"recompute is `{plan.layout.recompute}`; planned {format_duration(terms.recompute_s)} a step",),
        remedy="Keep the activations: they fit." if better else _memory_remedy(facts),
        setting=better.setting if better else None,
        saves_s=better.saves_s(facts.steps_s, of_s=lost_s) if better else None,
    )


def _memory_remedy(facts: RunFacts) -> str:
    if facts.prices is None:
        return "Keep the activations if the memory holds them."
    limit = format_bytes(facts.prices.limit_bytes)
    return f"Leave it: without recomputation a rank needs more than its {limit}, or is not faster."


def lost_to_throttling(facts: RunFacts) -> LostTime | None:
    """Time that the same compute took longer in some parts of the run than in the fastest quarter of it."""
    slow_s, ratio, first, last = _slow_windows(facts.usual_compute_s)
    if slow_s <= 0:
        return None
    begin, end = facts.steady["step"][[first, last]]
    return LostTime(
        name="throttling",
        title="Compute slowed down during the run",
        lost_s=min(slow_s, facts.shares.compute_s),
        evidence=(f"steps {begin:,.0f} to {end:,.0f} computed {ratio:.2f} times as long as the fastest part",),
        remedy="Look for throttled clocks (heat, power limit) and for other programs on the nodes at that time.",
        setting="trainworks health",
        saves_s=slow_s,
    )


def _slow_windows(values: Floats) -> tuple[float, float, int, int]:
    """Seconds beyond the base in slow windows, their ratio to it, and the first and last slow step.

    The base is the median of the window at the first quartile.
    """
    count = min(_WINDOWS, len(values) // _FEWEST_STEPS)
    if count < _FEWEST_WINDOWS:
        return 0.0, 1.0, 0, 0
    bounds = [index * len(values) // count for index in range(count + 1)]
    windows = [(begin, end, float(np.median(values[begin:end]))) for begin, end in pairwise(bounds)]
    base = sorted(seconds for _, _, seconds in windows)[count // 4]
    slow = [window for window in windows if window[2] > _SLOWER * base > 0]
    if not slow:
        return 0.0, 1.0, 0, 0
    lost_s = sum((seconds - base) * (end - begin) for begin, end, seconds in slow)
    return lost_s, median(seconds for _, _, seconds in slow) / base, slow[0][0], slow[-1][1] - 1


def lost_to_slow_compute(facts: RunFacts) -> LostTime | None:
    """Time that compute took beyond the plan in all parts of the run, slow ranks and slow parts left out."""
    terms, groups = facts.planned_terms, facts.planned
    if groups is None or not facts.rows:
        return None
    planned_s = groups.compute_s - (terms.bubble_s if terms else 0.0)
    throttled = lost_to_throttling(facts)
    taken_s = facts.shares.compute_s - (throttled.lost_s if throttled else 0.0)
    lost_s = taken_s - planned_s * len(facts.rows)
    if taken_s < _BEYOND_PLAN * planned_s * len(facts.rows) or not planned_s:
        return None
    return LostTime(
        name="slow_compute",
        title="Compute is slower than planned",
        lost_s=lost_s,
        evidence=(
            f"forward and backward: planned {format_duration(planned_s)} a step, "
            f"measured {format_duration(taken_s / len(facts.rows))}",
        ),
        remedy="Measure the machine again. If it has become slower, look for other programs and low clocks; "
        "if not, the plan is too optimistic for this model: profile some steps.",
        setting="trainworks bench compute",
        saves_s=lost_s,
    )
