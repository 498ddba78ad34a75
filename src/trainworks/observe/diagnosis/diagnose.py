"""Order the causes of lost time by the seconds that they cost; what a run pays once comes last."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainworks.observe.diagnosis.lost_time import Diagnosis
from trainworks.observe.diagnosis.run_facts import RunFacts
from trainworks.observe.diagnosis.slow_steps import SLOW_STEP_CAUSES
from trainworks.observe.diagnosis.stops import STOP_CAUSES

_WORTH = 0.01
"""Share of the held time from which a cause is listed."""


def diagnose(facts: RunFacts, *, state: str) -> Diagnosis:
    """Every cause of lost time in the record of a run, the costliest first.

    What a run pays once, its first start, does not count for the order: in a short run it would hide every cause that
    lasts.

    Args:
        facts: of the run.
        state: of the run, for the heading.
    """
    found = [
        cause for judge in (*SLOW_STEP_CAUSES, *STOP_CAUSES) if (cause := judge(facts)) is not None and cause.lost_s > 0
    ]
    found.sort(key=lambda cause: cause.once_s - cause.lost_s)
    least_s = _WORTH * facts.ledger.held_s
    return Diagnosis(
        run_id=facts.resolved.run_id,
        state=state,
        held_s=facts.ledger.held_s,
        runtime_goodput=facts.ledger.runtime_goodput,
        num_steps=int(facts.rows.num_steps.sum()),
        step_s=facts.median_of("step_s") if facts.steady else None,
        causes=tuple(cause for cause in found if cause.lost_s >= least_s),
        small_s=sum(cause.lost_s for cause in found if cause.lost_s < least_s),
        notes=tuple(_notes(facts)),
    )


def _notes(facts: RunFacts) -> Iterator[str]:
    processes = facts.resolved.processes
    if not facts.rows:
        yield "No step is recorded: only the start and failures can be judged"
    elif processes.world_size > 1 and np.isnan(facts.rows["slowest_rank"]).all():
        yield "The record has no times of single ranks: a slow rank shows as communication"
    if facts.plan is None:
        yield "The run has no plan: compute is not held against a prediction"
    elif facts.prices is None:
        yield "The ranks were not calibrated: other layouts are not priced"
    if facts.plan is not None and (facts.others_share or 0.0) > facts.resolved.planned_others_share:
        share = f"{facts.others_share:.0%} of the cores of a node"
        yield f"Other programs used {share}, more than the plan allows for: all times include waits for them"
    if processes.nodes > 1 and processes.backend == "nccl" and facts.nccl.network is None:
        yield "The logs do not say which network NCCL uses: set NCCL_DEBUG=INFO in `envs`"
