"""One planner: a run on ranks at hand and a described cluster are priced by the same code, term for term."""

from __future__ import annotations

import ast
from dataclasses import fields, replace

import pytest

from tests.architecture.source import modules
from tests.plan.shapes import calibration, shape, workload
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.run_file import RunFile
from trainworks.plan.degrees import layouts_of
from trainworks.plan.job import StepTimes
from trainworks.plan.run.plan import make_plan
from trainworks.plan.run.pricing import run_job
from trainworks.plan.software import worker_software
from trainworks.plan.step_time import TrainingJob
from trainworks.record.processes import Processes
from trainworks.record.step_time import StepTimeGroups, StepTimeTerms

MEASURED = calibration(num_ranks=4, all_reduce_latency_s=1e-3, op_overhead_s=2e-5)
RUN = RunFile.model_validate({"name": "demo", "workload": workload(precision="fp32").model_dump()})
READERS = {
    "trainworks.plan.rates": "the rates themselves",
    "trainworks.plan.cluster.learning": "a benchmark as a measurement of a described cluster",
    "trainworks.plan.run.plan": "the size of DDP's buckets, the stall of a checkpoint, and the peak of the MFU",
}
"""Modules of the planner that read a measured rate, and for what."""
RATES = {
    "gemms",
    "attention_flops_per_s",
    "memory_bytes_per_s",
    "optimizer_params_per_s",
    "op_overhead_s",
    "all_reduce_latency_s",
    "all_reduce_bytes_per_s",
}


@pytest.mark.parametrize(
    "written",
    [
        {"dp_replicate": 4},
        {"dp_shard": 2, "tp": 2},
        {"pp": 2, "dp_shard": 2},
        {"cp": 2, "dp_shard": 2, "recompute": "full"},
        {"dp_shard": 4, "zero": 1},
    ],
    ids=str,
)
def test_a_described_cluster_of_the_measured_ranks_gives_the_plan_of_the_run(written: dict[str, object]) -> None:
    layout = resolve_layout(Layout.model_validate(written), world_size=4, global_batch=32, micro_batch=2)
    ranks = Processes(nodes=1, processes_per_node=4, threads_per_process=1, device="cpu")
    planned = make_plan(RUN, shape(), layout, ranks, MEASURED, steps=10).step_time
    cluster = run_job(workload(), shape(), ranks, memory_per_rank_bytes=10**10).cluster
    job = TrainingJob(shape(), 128, "fp32", cluster, worker_software("cpu"), calibration=MEASURED)
    layouts = layouts_of([layout])
    described = job.step_times(layouts)
    assert planned.model_dump() == {term.name: float(getattr(described, term.name)[0]) for term in fields(described)}


def test_a_plan_and_its_record_name_the_same_terms() -> None:
    assert [term.name for term in fields(StepTimes)] == list(StepTimeTerms.model_fields)


def test_the_groups_of_a_worker_have_every_term_once() -> None:
    powers = StepTimeTerms(**{name: 2.0**index for index, name in enumerate(StepTimeTerms.model_fields)})
    assert powers.groups.total_s == powers.total_s


def test_the_groups_of_an_older_plan_are_read_as_they_are() -> None:
    older = {"compute_s": 3.0, "communication_s": 2.0, "optimizer_s": 1.0, "data_s": 0.5}
    layout = resolve_layout(Layout(), world_size=1, global_batch=32, micro_batch=2)
    ranks = Processes(nodes=1, processes_per_node=1, threads_per_process=1, device="cpu")
    plan = make_plan(RUN, shape(), layout, ranks, MEASURED, steps=10)
    again = type(plan).model_validate({**plan.model_dump(), "step_time": older})
    assert again.step_time == StepTimeGroups(**older)


def test_measured_rates_replace_those_of_the_catalogue() -> None:
    ranks = Processes(nodes=1, processes_per_node=4, threads_per_process=1, device="cpu")
    job = run_job(workload(), shape(), ranks, calibration=MEASURED)
    layouts = layouts_of([resolve_layout(Layout(tp=4), world_size=4, global_batch=32, micro_batch=2)])
    slower = replace(job, calibration=MEASURED.model_copy(update={"all_reduce_latency_s": 1.0}))
    assert slower.step_times(layouts).tp_s > 100 * job.step_times(layouts).tp_s


def test_a_measured_rate_becomes_a_time_in_one_place() -> None:
    """No second formula for a term: of the planner, only these modules read the rates of a calibration."""
    readers = {
        name
        for name, tree in modules().items()
        if name.startswith("trainworks.plan.")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in RATES
        and isinstance(node.value, ast.Name)
        and node.value.id in ("calibration", "benchmark")
    }
    assert readers == set(READERS)
