"""Tables of memory that runs used, or ran out of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainworks.measure.measured_runs import COLUMNS, MeasuredRun, num_accelerators, read_run
from trainworks.measure.tables import Row, text_of, whole_of

MEMORY_COLUMNS = (*COLUMNS, "outcome")

_SHARES_BF16_STATES = re.compile(r"deepspeed", re.IGNORECASE)
"""DeepSpeed's bf16 optimizer shares its states among replicas with ZeRO 0 too (deepspeed.runtime.bf16_optimizer)."""


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """One row that can be predicted."""

    run: MeasuredRun
    out_of_memory: bool
    """True if it did not fit; then it has no figure."""


def read_memory(row: Row) -> MeasuredMemory:
    """Run of a row, and whether it fitted.

    Without a global batch, assumes as many micro-batches as pipeline stages: more do not change the memory.

    Raises:
        UsageError: the row lacks something that has no default.
    """
    filled = row if text_of(row, "global_batch") else {**row, "global_batch": str(_least_batch(row))}
    if _SHARES_BF16_STATES.search(text_of(row, "source") + text_of(row, "notes")) and "bf16" in text_of(
        row, "precision"
    ):
        filled = {**filled, "zero_stage": "1"} if text_of(row, "zero_stage") == "0" else filled
    run = read_run(filled)
    return MeasuredMemory(run, out_of_memory=_ran_out(text_of(row, "outcome")))


def _least_batch(row: Row) -> int:
    """A micro-batch on each rank for every pipeline stage; an empty dp is what the other axes leave of the world."""
    tp, pp, cp, micro = (whole_of(row, name) or 1 for name in ("tp", "pp", "cp", "micro_batch"))
    dp = whole_of(row, "dp") or max(1, num_accelerators(row) // (tp * pp * cp))
    return dp * pp * micro


def _ran_out(outcome: str) -> bool:
    lower = outcome.lower()
    return "oom" in lower or "out of memory" in lower
