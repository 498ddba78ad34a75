"""Alerts of runs. Thresholds are metrics of the plan, so one rule holds for every run.

Like is compared with like: the exporter gives what the plan has beside what was measured, at the pace of the run.

Aggregation by run makes one alert where the exporters of several nodes see the same run.
"""

from __future__ import annotations

from trainworks.observe.monitoring.alert import ASSUMED, AlertCase, AlertRule

_RUN = {"run": "demo-1"}
_RUNNING = 'and on (run, instance) trainworks_run_state{state="RUNNING"} == 1'
_UNDISTURBED = (
    "unless on (run, instance)"
    " (avg_over_time(trainworks_run_other_load_ratio[10m]) > trainworks_run_planned_other_load_ratio)"
)
"""No verdict on the pace of a run while other programs use cores that its plan counts on."""
_IS_RUNNING = {'trainworks_run_state{run="demo-1",state="RUNNING"}': "1+0x300"}


def _of_run(**values: str) -> dict[str, str]:
    """Series of a running run, by the end of the name."""
    return _IS_RUNNING | {f'trainworks_run_{name}{{run="demo-1"}}': value for name, value in values.items()}


_SLOW_STEPS = {
    "training_step_seconds": "1.3+0x30",
    "planned_step_high_seconds": "1.2+0x30",
    "planned_other_load_ratio": "0.1+0x30",
}


RUN_ALERTS = (
    AlertRule(
        name="RunFailed",
        expr='max by (run) (trainworks_run_state{state=~"FAILED|LOST"}) == 1',
        summary="Run {{ $labels.run }} has failed.",
        threshold="the state that the supervisor wrote, or LOST if it wrote none",
        action="read `trainworks status RUN`; `trainworks resume RUN` continues from the newest checkpoint",
        severity="critical",
        fires=AlertCase("1m", {'trainworks_run_state{run="demo-1",state="FAILED"}': "1+0x5"}, _RUN),
        quiet=AlertCase("1m", {'trainworks_run_state{run="demo-1",state="SUCCEEDED"}': "1+0x5"}),
    ),
    AlertRule(
        name="RunStalled",
        expr="max by (run) (time() - trainworks_run_last_step_timestamp_seconds"
        f" > 60 + 5 * trainworks_run_planned_log_interval_seconds {_RUNNING})",
        summary="Run {{ $labels.run }} records no steps.",
        threshold=f"a minute and five planned logging intervals without a step ({ASSUMED})",
        action="look at the last lines of `trainworks logs RUN` and at the health of its nodes",
        severity="critical",
        lasts="1m",
        fires=AlertCase(
            "30m", _of_run(last_step_timestamp_seconds="60+0x60", planned_log_interval_seconds="30+0x60"), _RUN
        ),
        quiet=AlertCase("30m", _of_run(last_step_timestamp_seconds="0+60x60", planned_log_interval_seconds="30+0x60")),
    ),
    AlertRule(
        name="RunCheckpointOverdue",
        expr="max by (run) (time() - trainworks_run_unsaved_since_timestamp_seconds"
        f" > 2 * trainworks_run_planned_checkpoint_interval_seconds {_RUNNING})",
        summary="Run {{ $labels.run }} has not saved for twice its checkpoint interval.",
        threshold="twice the interval of the plan",
        action="look for `checkpoint_failed` in events.jsonl, and at the space and speed of the storage",
        severity="critical",
        lasts="2m",
        fires=AlertCase(
            "25m",
            _of_run(unsaved_since_timestamp_seconds="0+0x60", planned_checkpoint_interval_seconds="600+0x60"),
            _RUN,
        ),
        quiet=AlertCase(
            "19m", _of_run(unsaved_since_timestamp_seconds="0+0x60", planned_checkpoint_interval_seconds="600+0x60")
        ),
    ),
    AlertRule(
        name="RunCheckpointFailed",
        expr="max by (run) (increase(trainworks_run_checkpoint_failures_total[1h])) > 0",
        summary="A checkpoint of run {{ $labels.run }} failed.",
        threshold="one failed checkpoint within an hour",
        action="read the message of `checkpoint_failed` in events.jsonl; free or repair the storage",
        severity="warning",
        fires=AlertCase("10m", _of_run(checkpoint_failures_total="0 0 0 1+0x20"), _RUN),
        quiet=AlertCase("10m", _of_run(checkpoint_failures_total="1+0x20")),
    ),
    AlertRule(
        name="RunFailsRepeatedly",
        expr="max by (run) (increase(trainworks_run_failures_total[1h])) >= 3",
        summary="The ranks of run {{ $labels.run }} failed three times within an hour.",
        threshold=f"three failures within an hour ({ASSUMED})",
        action="read the failures in `trainworks report RUN`; drain the node if they have one in common",
        severity="critical",
        fires=AlertCase("30m", _of_run(failures_total="0+0.2x30"), _RUN),
        quiet=AlertCase("30m", _of_run(failures_total="0 0 1+0x30")),
    ),
    AlertRule(
        name="RunStepAbovePlan",
        expr="max by (run) (trainworks_run_training_step_seconds > trainworks_run_planned_step_high_seconds"
        f" {_RUNNING} {_UNDISTURBED})",
        summary="Steps of run {{ $labels.run }} take longer than the plan's interval.",
        threshold="the upper end of the plan's 80 % interval, for the parts of a step that the plan has; "
        "no verdict while other programs use more of the cores than the plan allows for",
        action="`trainworks why RUN` names the costliest cause; `trainworks report RUN` has the parts of the step",
        severity="warning",
        lasts="10m",
        fires=AlertCase("20m", _of_run(**_SLOW_STEPS, other_load_ratio="0.05+0x30"), _RUN),
        quiet=AlertCase("20m", _of_run(**_SLOW_STEPS, other_load_ratio="0.5+0x30")),
    ),
    AlertRule(
        name="RunStraggler",
        expr="max by (run) (trainworks_run_slowest_rank_extra_seconds > 0.1 * trainworks_run_step_seconds"
        f" and changes(trainworks_run_slowest_rank[10m]) == 0 {_RUNNING})",
        summary="The other ranks of run {{ $labels.run }} wait for one rank.",
        threshold=f"the same rank for 20 minutes, a tenth of a step behind the median of the others ({ASSUMED})",
        action="`trainworks why RUN` names the rank and its node; check that node with `trainworks health`",
        severity="warning",
        lasts="10m",
        fires=AlertCase(
            "30m",
            _of_run(step_seconds="1+0x60", slowest_rank="5+0x60", slowest_rank_extra_seconds="0.2+0x60"),
            _RUN,
        ),
        quiet=AlertCase(
            "30m", _of_run(step_seconds="1+0x60", slowest_rank="0+1x60", slowest_rank_extra_seconds="0.2+0x60")
        ),
    ),
    AlertRule(
        name="RunGoodputBelowPlan",
        expr="max by (run) (trainworks_run_goodput_ratio < 0.9 * trainworks_run_planned_goodput_ratio"
        f" {_RUNNING} {_UNDISTURBED})",
        summary="Run {{ $labels.run }} loses more time than planned.",
        threshold="nine tenths of the goodput that it would have by now without restarts, lost steps, gaps, and saves "
        f"beyond the plan ({ASSUMED})",
        action="`trainworks why RUN` names the costliest cause: restarts, lost steps, checkpoints, callbacks",
        severity="warning",
        lasts="30m",
        fires=AlertCase("40m", _of_run(goodput_ratio="0.8+0x50", planned_goodput_ratio="0.95+0x50"), _RUN),
        quiet=AlertCase("40m", _of_run(goodput_ratio="0.9+0x50", planned_goodput_ratio="0.95+0x50")),
    ),
    AlertRule(
        name="RunLossNotFinite",
        expr="count by (run) (trainworks_run_loss != trainworks_run_loss or abs(trainworks_run_loss) == Inf) > 0",
        summary="The loss of run {{ $labels.run }} is not a finite number.",
        threshold="NaN or infinity",
        action="see the guide on loss spikes; `trainworks report RUN` names the skipped steps",
        severity="critical",
        lasts="2m",
        fires=AlertCase("10m", _of_run(loss="2.5 2.4 2.3 2.2 2.1 2 NaN NaN Inf Inf Inf"), _RUN),
        quiet=AlertCase("10m", _of_run(loss="2.5 2.4 2.3+0x20")),
    ),
    AlertRule(
        name="RunDeadlineInDanger",
        expr="max by (run) (trainworks_run_expected_finish_timestamp_seconds"
        f" > trainworks_run_deadline_timestamp_seconds {_RUNNING})",
        summary="Run {{ $labels.run }} will miss its deadline at the present pace.",
        threshold="`goal.deadline` of the run file",
        action="`trainworks plan` says how many nodes the deadline needs; `trainworks resume` runs on more",
        severity="warning",
        lasts="10m",
        fires=AlertCase(
            "20m", _of_run(expected_finish_timestamp_seconds="9000+0x30", deadline_timestamp_seconds="7200+0x30"), _RUN
        ),
        quiet=AlertCase(
            "20m", _of_run(expected_finish_timestamp_seconds="7000+0x30", deadline_timestamp_seconds="7200+0x30")
        ),
    ),
    AlertRule(
        name="RunBudgetExceeded",
        expr="max by (run) (trainworks_run_cost_usd > trainworks_run_budget_usd)",
        summary="Run {{ $labels.run }} has cost more than its budget.",
        threshold="`goal.budget` of the run file",
        action="stop the run with `trainworks stop RUN`, which saves a checkpoint, or raise the budget",
        severity="warning",
        fires=AlertCase("5m", _of_run(cost_usd="90+5x20", budget_usd="100+0x20"), _RUN),
        quiet=AlertCase("5m", _of_run(cost_usd="90+1x20", budget_usd="100+0x20")),
    ),
)
