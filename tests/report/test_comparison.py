"""Planned against measured: signs, medians, and the sentence that names the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.conftest import RunWriter, make_plan
from trainworks.catalog.catalog import accelerator
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.record.environment import AcceleratorFacts
from trainworks.record.measured.step_anchor import AnchoredStep, StepAnchor, write_anchor
from trainworks.record.resolved import PlannedLayout
from trainworks.record.usage import NodeUsage
from trainworks.report.runs.comparison import warmup_steps
from trainworks.report.runs.part import format_amount
from trainworks.report.wording import comparison_rows
from trainworks.units import Money

RunStart = Callable[..., Any]


@given(num_steps=st.integers(0, 10**6))
def test_the_warm_up_never_takes_all_steps(num_steps: int) -> None:
    assert 0 <= warmup_steps(num_steps) <= num_steps / 4


def test_a_longer_step_has_a_positive_difference(start_run: RunStart) -> None:
    comparison = start_run().launch().steps(40, communication_s=0.032, other_s=0.0).report().comparison
    assert comparison.step_time.measured == pytest.approx(0.12)
    assert comparison.step_time.relative == pytest.approx(0.2)


def test_slow_first_steps_do_not_move_the_medians(start_run: RunStart) -> None:
    comparison = start_run().launch().steps(5, compute_s=9.0).steps(3, compute_s=0.08).steps(12).report().comparison
    assert (comparison.num_warmup_steps, comparison.num_steps) == (5, 15)
    assert comparison.step_time_terms[0].measured == pytest.approx(0.08)


def test_lost_steps_do_not_enter_the_medians(start_run: RunStart) -> None:
    run = start_run().launch().steps(10, compute_s=5.0).fail().attempt(from_step=0).steps(10)
    assert run.report().comparison.step_time_terms[0].measured == pytest.approx(0.08)


def test_the_sentence_names_the_term_that_moved_furthest(start_run: RunStart) -> None:
    findings = start_run().launch().steps(40, communication_s=0.032, other_s=0.0).report().comparison.findings
    assert findings[0] == (
        "step time was 20 % longer than planned; most of it is communication: 12 ms planned, 32 ms measured"
    )


def test_a_step_of_twice_the_plan_is_named_as_a_multiple(start_run: RunStart) -> None:
    findings = start_run().launch().steps(40, compute_s=0.28).report().comparison.findings
    assert findings[0].startswith("step time was 3.2 times the plan; most of it is compute: 80 ms planned, 280 ms")


def test_a_shorter_step_is_explained_too(start_run: RunStart) -> None:
    findings = start_run().launch().steps(40, compute_s=0.04, communication_s=0.012).report().comparison.findings
    assert findings[0].startswith("step time was 39 % shorter than planned; most of it is compute")


def test_agreement_is_said_once(start_run: RunStart) -> None:
    run = start_run().launch().steps(40, communication_s=0.012, memory=1_000_000_000)
    assert run.report().comparison.findings == ("step time and memory peak agreed with the plan within 5 %",)


def test_a_long_run_names_what_made_it_long(start_run: RunStart) -> None:
    run = start_run().launch().steps(150, communication_s=0.012).fail().wait(60.0).attempt()
    findings = run.steps(150, communication_s=0.012).finish().report().comparison.findings
    assert findings[0].startswith("run time was 2.3 times the plan: 40 s planned")
    assert findings[0].endswith("most of it is restarts: 1m 0s")


def test_a_run_that_was_disturbed_for_a_while_names_its_slower_steps(start_run: RunStart) -> None:
    run = start_run().launch().steps(100).checkpoint().steps(50, compute_s=0.6).steps(150).finish()
    assert run.report().comparison.findings[0].endswith("most of it is slower steps: 31.4 s")


@pytest.mark.parametrize(
    ("what", "terms"), [("callbacks", {"callback_s": 0.2}), ("evaluations", {"evaluation": 2.0, "evaluation_s": 0.2})]
)
def test_a_run_that_callbacks_or_evaluations_made_long_names_them(
    start_run: RunStart, what: str, terms: dict[str, float]
) -> None:
    run = start_run().launch().steps(300, communication_s=0.012, **terms).finish()
    assert run.report().comparison.findings[0].endswith(f"most of it is {what}: 1m 0s")


def test_the_run_time_is_not_judged_before_the_run_is_complete(start_run: RunStart) -> None:
    assert start_run().launch().steps(299).report().comparison.run_time.measured is None


def test_idle_time_is_not_run_time(start_run: RunStart) -> None:
    run = start_run().launch().steps(150).event("stopped", step=150).wait(9000.0).launch().steps(150).finish()
    assert run.report().comparison.run_time.measured == pytest.approx(6.0 + 300 * 0.119, abs=1e-4)


def test_mfu_is_model_flops_over_the_peak_of_all_ranks(start_run: RunStart) -> None:
    comparison = start_run().launch().steps(40).report().comparison
    assert comparison.mfu.measured == pytest.approx(38e6 * (8192 / 0.119) / (2 * 8e12))


def test_without_a_known_peak_there_is_no_mfu(start_run: RunStart) -> None:
    comparison = start_run(peak_flops_per_s=None, peak_source="unknown device").launch().steps(40).report().comparison
    assert (comparison.mfu.planned, comparison.mfu.measured) == (None, None)
    assert comparison.peak_source == "unknown device"


def test_the_memory_peak_counts_lost_steps_too(start_run: RunStart) -> None:
    run = start_run().launch().steps(5, memory=2_000_000_000).fail().attempt(from_step=0).steps(5)
    assert run.report().comparison.memory.measured == 2_000_000_000


def test_checkpoints_are_compared_by_size_and_stall(start_run: RunStart) -> None:
    comparison = start_run().launch().steps(5).checkpoint().report().comparison
    assert comparison.checkpoint_size.relative == pytest.approx(0.2 / 71.0)
    assert comparison.checkpoint_stall.measured == pytest.approx(0.02)


def test_nothing_is_measured_before_the_first_step(start_run: RunStart) -> None:
    comparison = start_run().launch().report().comparison
    assert comparison.step_time.measured is None
    assert comparison.findings == ()


ONE_RANK = "one process, micro-batch 8, accumulation 4"


def test_only_steps_of_the_newest_layout_are_compared_with_its_plan(start_run: RunStart) -> None:
    run = start_run().launch(layout=ONE_RANK).steps(150, compute_s=5.0, memory=9 * 10**9).event("stopped", step=150)
    comparison = run.launch().steps(150, compute_s=0.08).finish().report().comparison
    assert comparison.step_time_terms[0].measured == pytest.approx(0.08)
    assert comparison.memory.measured == 900_000_000
    assert (comparison.num_steps, comparison.num_other_steps) == (145, 150)


OWN = make_plan().layout
WRITTEN = OWN.model_dump(mode="json")
READS_THE_SAME = OWN.model_copy(update={"grad_accum_steps": 2 * OWN.grad_accum_steps}).model_dump(mode="json")


@pytest.mark.parametrize(
    ("first", "newest", "others"),
    [
        pytest.param(WRITTEN, WRITTEN, 0, id="the layout of the plan"),
        pytest.param(READS_THE_SAME, WRITTEN, 150, id="a layout that reads the same"),
        pytest.param(ONE_RANK, ONE_RANK, 0, id="an older record, in other words than today's"),
        pytest.param(ONE_RANK, "two processes, micro-batch 8", 150, id="an older record with two layouts"),
        pytest.param(OWN.describe(), WRITTEN, 0, id="an older record that this version resumed"),
    ],
)
def test_attempts_are_told_apart_by_their_layouts(
    start_run: RunStart, first: object, newest: object, others: int
) -> None:
    run = start_run().launch(layout=first).steps(150).event("stopped", step=150).launch(layout=newest).steps(150)
    assert run.report().comparison.num_other_steps == others


def with_accelerators(run: RunWriter, *energies_j: float | None) -> RunWriter:
    """Two GPUs of 700 W, and what the agents of the nodes have measured."""
    resolved = run.run_dir.read_resolved()
    gpus = tuple(AcceleratorFacts(index=index, name="H100", memory_bytes=1, power_limit_w=700) for index in range(2))
    host = resolved.host.model_copy(update={"accelerators": gpus})
    processes = resolved.processes.model_copy(update={"device": "cuda"})
    run.run_dir.write_resolved(resolved.model_copy(update={"host": host, "processes": processes}))
    usage = {"agent_pid": 1, "monotonic_s": 1, "cpu_s": 1, "io_bytes": 1, "network_bytes": 1, "disk_waits": 0}
    for node, energy_j in enumerate(energies_j):
        run.run_dir.write_usage(node, NodeUsage.model_validate({**usage, "accelerator_s": 1, "energy_j": energy_j}))
    return run


def test_measured_energy_stands_beside_that_of_the_planned_work(start_run: RunStart) -> None:
    run = with_accelerators(start_run().launch().steps(300), 36_000.0)
    comparison = run.report().comparison
    computing_s, waiting_s, idle_s = 300 * 0.08, 300 * 0.02, 10
    watts_s = 2 * 700 * (0.87 * computing_s + 0.5 * waiting_s + 0.15 * idle_s)
    assert comparison.energy.planned == pytest.approx(watts_s / 3600)  # Wh
    assert comparison.energy.measured == pytest.approx(10)
    assert "energy of the accelerators: 10 Wh measured, 10 Wh planned (8 Wh to 12 Wh)" in comparison.findings[-1]
    assert comparison.findings[-1].endswith("; inside the range of the plan")


@pytest.mark.parametrize(("steps", "energy_j"), [(299, 36_000.0), (300, None)])
def test_energy_is_not_judged_before_the_run_is_complete_or_without_a_measurement(
    start_run: RunStart, steps: int, energy_j: float | None
) -> None:
    run = with_accelerators(start_run().launch().steps(steps), energy_j)
    assert run.report().comparison.energy.measured is None


def test_a_run_without_accelerators_has_no_row_for_energy(start_run: RunStart) -> None:
    comparison = start_run().launch().steps(300).report().comparison
    assert comparison.energy not in [difference for difference, _ in comparison_rows(comparison)]


def priced(run: RunWriter) -> RunWriter:
    """Two GPUs at two dollars an hour."""
    resolved = with_accelerators(run).run_dir.read_resolved()
    cluster = resolved.run_file.cluster.model_copy(update={"usd_per_accelerator_hour": 2.0})
    run_file = resolved.run_file.model_copy(update={"cluster": cluster})
    run.run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file}))
    return run


def test_the_bill_holds_the_held_time_and_restarts_against_the_plan(start_run: RunStart) -> None:
    run = priced(start_run().launch().event("ranks_started").steps(150).checkpoint().fail(cause="killed"))
    report = run.event("ranks_started").attempt(from_step=150).steps(150).report()
    cost, failures, ledger = report.comparison.cost, report.comparison.failures, report.ledger
    assert (failures.measured, failures.relative) == (1, None)
    assert failures.planned == pytest.approx(40 / usual_node_mttf(accelerator("H100-SXM-80GB")).value)
    assert cost.planned == pytest.approx(4 * 40 / 3600)  # 30 s of steps and 10 s around them
    assert cost.measured == pytest.approx(4 * ledger.held_s / 3600)


def test_failures_count_over_all_submissions(start_run: RunStart) -> None:
    """A restart, an end for good that a user resumed, and no stop."""
    run = start_run().launch().event("ranks_started").steps(100).fail(cause="killed").event("ranks_started")
    run.steps(50).status("FAILED").launch().event("ranks_started").steps(50).status("STOPPED").launch().steps(100)
    assert run.report().comparison.failures.measured == 2


def test_ranks_on_cpus_have_no_price(start_run: RunStart) -> None:
    resolved = priced(start_run().launch()).run_dir.read_resolved()
    on_cpus = resolved.processes.model_copy(update={"device": "cpu"})
    assert resolved.hour_price == Money(4.0, "USD")
    assert resolved.model_copy(update={"processes": on_cpus}).hour_price is None


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.004, "< 0.01"), (1.26, "1.3"), (123.4, "123"), (4160, "4,160")]
)
def test_a_count_reads_well(value: float, text: str) -> None:
    assert format_amount(value, "count") == text


@pytest.mark.parametrize("steps", [299, 300])
def test_only_a_complete_run_has_a_bill(start_run: RunStart, steps: int) -> None:
    comparison = priced(start_run().launch().steps(steps)).report().comparison
    assert (comparison.cost.measured is None, comparison.failures.measured is None) == (steps < 300,) * 2


def test_a_run_without_a_price_has_no_row_for_its_cost(start_run: RunStart) -> None:
    comparison = start_run().launch().steps(300).report().comparison
    rows = [difference for difference, _ in comparison_rows(comparison)]
    assert comparison.cost not in rows and comparison.failures in rows


def test_no_run_time_is_compared_where_two_layouts_trained_the_run(start_run: RunStart) -> None:
    run = start_run().launch(layout=ONE_RANK).steps(150).event("stopped", step=150).launch().steps(150).finish()
    assert run.report().comparison.run_time.measured is None


def tuned(*measured_s: float | None) -> tuple[PlannedLayout, ...]:
    """Layouts that were tried in this order, with micro-batches of 8, 4, 2."""
    layout = make_plan().layout
    return tuple(
        PlannedLayout(
            layout=layout.model_copy(update={"micro_batch": size}), step_s=0.1, memory_bytes=10**9, measured_s=value
        )
        for size, value in zip((8, 4, 2), measured_s, strict=False)
    )


def test_the_gain_of_tuning_is_reported(start_run: RunStart) -> None:
    findings = start_run(compared=tuned(0.1, 0.08, None)).launch().steps(40).report().comparison.findings
    assert findings[-1] == (
        "tuning: dp_shard 2, zero 3, micro-batch 4 was 20 % faster: 80 ms a step, 100 ms with the plan's first choice"
    )


def test_tuning_may_confirm_the_plan(start_run: RunStart) -> None:
    findings = start_run(compared=tuned(0.08, 0.1)).launch().steps(40).report().comparison.findings
    assert findings[-1] == "tuning: of 2 layouts the plan's first choice was the fastest"


ANCHORED = AnchoredStep(first_step=6, step=20, step_s=0.12, low_s=0.114, high_s=0.126, unrest=0.01)


def anchor(**changes: Any) -> StepAnchor:
    return StepAnchor(layout=make_plan().layout, planned_s=0.1, found=ANCHORED).model_copy(update=changes)


def test_both_predictions_stand_beside_the_measured_step_and_the_verdict_is_that_of_the_first(
    start_run: RunStart,
) -> None:
    run = start_run().launch().steps(20, communication_s=0.032).steps(20, communication_s=0.032)
    write_anchor(run.run_dir.anchor_file, anchor())
    compared = run.report().comparison
    assert (compared.anchor.planned_s, compared.anchor.anchored) == (pytest.approx(0.1), ANCHORED)
    assert (compared.anchor.measured_s, compared.anchor.slow_share) == (pytest.approx(0.12), 0.0)
    assert compared.anchor.text == (
        "planned 100 ms a step, anchored at step 20 on 120 ms (80 %: 114 ms to 126 ms), measured 120 ms since"
    )
    assert compared.findings[0].startswith("step time was 21 % longer than planned"), "an anchor excuses no wrong plan"
    assert compared.findings[-1] == compared.anchor.text


def test_a_late_slowdown_is_named_although_the_median_step_is_as_anchored(start_run: RunStart) -> None:
    run = start_run().launch().steps(90, communication_s=0.032).steps(30, communication_s=0.08)
    write_anchor(run.run_dir.anchor_file, anchor())
    compared = run.report().comparison.anchor
    assert (compared.measured_s, compared.slow_share) == (pytest.approx(0.12), 0.3)
    assert compared.text.endswith("since: 30% of these steps took longer than the interval")


def test_without_a_quiet_window_the_reason_stands_there(start_run: RunStart) -> None:
    run = start_run().launch().steps(40)
    write_anchor(run.run_dir.anchor_file, anchor(found=None, reason="2 windows without a quiet one"))
    compared = run.report().comparison
    assert compared.findings[-1] == "planned 100 ms a step, not anchored: 2 windows without a quiet one"
    assert (compared.anchor.anchored, compared.anchor.measured_s) == (None, None)


def test_an_anchor_of_another_layout_is_not_compared(start_run: RunStart) -> None:
    run = start_run().launch().steps(40)
    other = make_plan().layout.model_copy(update={"micro_batch": 4})
    write_anchor(run.run_dir.anchor_file, anchor(layout=other))
    assert run.report().comparison.anchor is None


def test_the_verdict_names_the_next_layout_and_never_the_planned_one_again(start_run: RunStart) -> None:
    first, *others = tuned(None, None, None)
    buckets = first.model_copy(update={"layout": first.layout.model_copy(update={"bucket_mib": 1})})
    for compared, near in (((first, buckets), ""), ((first, *others), "micro-batch 4 may be as fast")):
        verdict = start_run(compared=compared).launch().run_dir.read_resolved().verdict
        assert verdict is not None
        assert near in verdict.unless if near else not verdict.unless
