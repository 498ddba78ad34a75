"""Descriptions of faulty optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainworks.record.events.training import RollbackEvent, SkippedEvent

FAULTS = {"nonfinite": "not finite", "spike": "a spike"}
"""Reasons of a `skipped` or `rollback` event, in words."""


def describe_values(loss: float, grad_norm: float, losses: Sequence[float] = ()) -> str:
    """Values of a step, and the first four ranks whose loss is not finite.

    >>> describe_values(math.nan, math.nan, (5.25, math.inf))
    'loss nan, gradient norm nan (loss of rank 1: inf)'
    """
    bad = [f"rank {rank}: {value:.4g}" for rank, value in enumerate(losses) if not math.isfinite(value)]
    where = f" (loss of {', '.join(bad[:4])}{', ...' if len(bad) > 4 else ''})" if bad else ""
    return f"loss {loss:.4g}, gradient norm {grad_norm:.4g}{where}"


def describe_fault(event: SkippedEvent | RollbackEvent) -> str:
    """A `skipped` or `rollback` event in one line.

    >>> fault = {"step": 13, "reason": "spike", "loss": 9.31, "grad_norm": 41.2, "losses": [9.2, 9.4]}
    >>> describe_fault({"kind": "skipped", **fault})
    'step 13 is a spike and was skipped: loss 9.31, gradient norm 41.2'
    >>> describe_fault({"kind": "rollback", "to_step": 8, "batches_left_out": 5, **fault})
    'step 13 is a spike: back to step 8, and on without the last 5 batches'
    """
    what = f"step {event['step']:,} is {FAULTS.get(event['reason'], event['reason'])}"
    if event["kind"] == "rollback":
        left_out = event["batches_left_out"]
        batches = "batch" if left_out == 1 else f"{left_out:,} batches"
        return f"{what}: back to step {event['to_step']:,}, and on without the last {batches}"
    return f"{what} and was skipped: {describe_values(event['loss'], event['grad_norm'], event['losses'])}"
