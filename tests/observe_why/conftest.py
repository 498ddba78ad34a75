"""Synthetic runs whose healthy steps take exactly the planned time, so that only the planted fault loses time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import WORKLOAD, RunWriter, make_plan
from trainworks.api.observing.why import Diagnosis, diagnosis_of
from trainworks.api.run_handle import Run
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.run_file import RunFile
from trainworks.plan.run.plan import make_plan as plan_run
from trainworks.record.calibration import Calibration, GemmRate
from trainworks.record.metrics import CallbackTimes, MetricsRow, SlowestRank


def calibration(num_ranks: int, *, small_products: float = 1.0) -> Calibration:
    """Round rates; products of a micro-batch of 1 run at `small_products` times the rate of the others."""
    rates = {256: 4e10 * small_products, 2048: 4e10}
    gemms = tuple(GemmRate(m=m, n=n, k=256, flops_per_s=rate) for m, rate in rates.items() for n in (256, 704, 4096))
    return Calibration(
        device="cpu",
        precision="fp32",
        num_ranks=num_ranks,
        threads_per_rank=1,
        gemms=gemms,
        attention_flops_per_s=4e10,
        memory_bytes_per_s=1e10,
        optimizer_params_per_s=1e9,
        op_overhead_s=1e-5,
        all_reduce_latency_s=1e-4,
        all_reduce_bytes_per_s=2e9,
        baseline_bytes=300_000_000,
        seconds=1.0,
    )


class PlannedRun(RunWriter):
    """A run with a plan by the planner; `healthy` are the terms of a step as planned."""

    def __init__(
        self,
        root: Path,
        layout: dict[str, Any],
        *,
        nodes: int = 1,
        ranks: int = 2,
        small_products: float = 1.0,
        **workload: Any,
    ) -> None:
        super().__init__(root, make_plan(), None)
        self.slowest: SlowestRank | None = None
        self.callbacks: CallbackTimes | None = None
        resolved = self.run_dir.read_resolved()
        run_file = RunFile.model_validate({"name": "stdlib-lm", "workload": WORKLOAD | workload, "layout": layout})
        written = Layout.model_validate(layout)
        assert isinstance(written.micro_batch, int)
        resolved_layout = resolve_layout(written, world_size=ranks, global_batch=32, micro_batch=written.micro_batch)
        processes = resolved.processes.model_copy(update={"nodes": nodes, "processes_per_node": ranks // nodes})
        measured = calibration(ranks, small_products=small_products)
        plan = plan_run(run_file, make_plan().model, resolved_layout, processes, measured, steps=300)
        self.run_dir.write_resolved(
            resolved.model_copy(
                update={"run_file": run_file, "plan": plan, "processes": processes, "calibration": measured}
            )
        )
        self.plan = plan
        self.healthy = plan.step_time.groups

    def train(self, num_steps: int, **terms: float) -> PlannedRun:
        """Healthy steps, with some terms replaced."""
        self.steps(num_steps, **{**self.healthy.model_dump(), "other_s": 0.0, **terms})
        return self

    def diagnose(self) -> Diagnosis:
        """The diagnosis of the run as it ended."""
        self.finish()
        return diagnosis_of(Run(self.run_dir))

    def _row(self, terms: dict[str, float]) -> MetricsRow:
        row = super()._row(terms)
        if self.slowest is not None:
            row["slowest"] = self.slowest
        if self.callbacks is not None and self.step % 10 == 0:
            row["callbacks"] = self.callbacks
        return row


Planned = Callable[..., PlannedRun]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """A function that plans the next run; by default two replicas with a micro-batch of 8, launched."""

    def start(start_s: float = 0.1, *, layout: dict[str, Any] | None = None, **options: Any) -> PlannedRun:
        run = PlannedRun(tmp_path, layout or {"dp_replicate": 2, "micro_batch": 8}, **options)
        run.launch(start_s=start_s)
        return run

    return start


def write_guide_runs(root: Path) -> None:
    """The two runs of the guide: one with a slow rank and a checkpoint every four steps, and the same without."""
    layout = {"dp_replicate": 2, "micro_batch": 8}
    slow = PlannedRun(root, layout)
    slow.launch(start_s=9.0)
    slow.slowest = SlowestRank(rank=1, extra_s=2.4, extra_data_s=0.3)
    work = slow.healthy
    terms = {
        "data_s": work.data_s + 0.15,
        "compute_s": work.compute_s + 1.05,
        "communication_s": work.communication_s + 1.2,
    }
    for _ in range(25):
        slow.train(3, **terms)
        slow.train(1, checkpoint_s=1.5, **terms).checkpoint()
    slow.finish()
    slow.run_dir.rank_log(0).write_text("2026-11-23 10:00:01 INFO step 1\n", encoding="utf-8")
    late = "2026-11-23 10:00:07 WARNING /data answers after 310 ms\n"
    slow.run_dir.rank_log(1).write_text(f"2026-11-23 10:00:02 INFO step 1\n{late}", encoding="utf-8")
    healthy = PlannedRun(root, layout)
    healthy.launch(start_s=9.0)
    healthy.train(100).checkpoint().finish()
