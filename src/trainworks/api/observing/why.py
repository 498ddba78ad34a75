"""Diagnose a run: where its time was lost, why, and what would have saved it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trainworks.api.run_handle import Run, as_run
from trainworks.observe.diagnosis.diagnose import diagnose
from trainworks.observe.diagnosis.layout_prices import LayoutPrices
from trainworks.observe.diagnosis.lost_time import Diagnosis
from trainworks.observe.diagnosis.nccl import NcclTransport, read_transport
from trainworks.observe.diagnosis.run_facts import RunFacts
from trainworks.plan.run.layout import choose_layouts
from trainworks.plan.run.pricing import pricing, run_job
from trainworks.plan.run.processes import memory_per_rank
from trainworks.plan.search import limit_bytes
from trainworks.record.history import read_history
from trainworks.record.ledger import build_ledger
from trainworks.record.metric_columns import MetricColumns
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.usage import others_share

__all__ = ["Diagnosis", "diagnosis_of", "why"]

_MOST_NCCL_LINES = 20_000
"""Lines of a log in which NCCL is looked for; it prints how it connects the ranks before the first step."""
_MOST_LOGS = 16
"""Logs in which NCCL is looked for, those of the first ranks."""


def why(run: Run | str | None = None, *, folder: Path | str = "runs") -> Diagnosis:
    """Find the causes of lost time in a run, the costliest first, each with evidence and a remedy.

    Args:
        run: a run, or its id or path, or number of its job; the newest run of the folder when None.
        folder: folder of all runs.

    Raises:
        UnknownRunError: no such run.

    >>> import tempfile, trainworks
    >>> ended = trainworks.run(["true"], folder=tempfile.mkdtemp())
    >>> why(str(ended.path)).num_steps
    0
    """
    return diagnosis_of(as_run(run, folder))


def diagnosis_of(found: Run, metrics: MetricColumns | None = None) -> Diagnosis:
    """The diagnosis of a run, which may still be going.

    Args:
        found: the run.
        metrics: of the run, where they were read already.
    """
    resolved, run_dir, state = found.resolved, found.run_dir, found.state
    history = read_history(run_dir, created_at=resolved.created_at, now=time.time(), state=str(state), metrics=metrics)
    usages = {node: run_dir.read_usage(node) for node in range(resolved.processes.nodes)}
    facts = RunFacts(
        resolved=resolved,
        history=history,
        ledger=build_ledger(history),
        nccl=_transport(run_dir) if resolved.processes.nodes > 1 else NcclTransport(),
        prices=_prices(resolved),
        others_share=others_share({node: usage for node, usage in usages.items() if usage is not None}, {}),
    )
    return diagnose(facts, state=state)


def _transport(run_dir: RunDir) -> NcclTransport:
    """How NCCL connects the first ranks; each of them says it of its own channels alone."""
    logs = sorted(run_dir.logs.glob("rank-*.log"), key=lambda log: (len(log.name), log.name))[:_MOST_LOGS]
    found = read_transport(line for log in logs for line in _first_lines(log))
    return found if found.network is not None else NcclTransport()


def _first_lines(log: Path) -> Iterator[str]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        yield from islice(lines, _MOST_NCCL_LINES)


def _prices(resolved: ResolvedRun) -> LayoutPrices | None:
    """Prices of other layouts; None for a command, a measured model, and ranks without a calibration."""
    workload, plan, calibration = resolved.run_file.workload, resolved.plan, resolved.calibration
    if workload is None or plan is None or calibration is None or not plan.model.is_described:
        return None
    memory = memory_per_rank(resolved.host, resolved.processes)
    job = run_job(
        workload, plan.model, resolved.processes, memory_per_rank_bytes=memory, support=plan.support
    ).calibrated(calibration)
    return LayoutPrices(
        price=pricing(workload, plan.model, resolved.processes, calibration),
        workload=workload,
        shape=plan.model,
        layout=plan.layout,
        limit_bytes=limit_bytes(job),
        search=lambda: [one.layout for one in choose_layouts(job, None)],
        support=plan.support,
    )
