"""Rules of Prometheus: alerts, recorded series, and unit tests of the alerts for `promtool test rules`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trainworks.jobs.formats.manifest import to_yaml
from trainworks.observe.monitoring.alert import AlertCase, AlertRule, with_labels
from trainworks.observe.monitoring.node_alerts import NODE_ALERTS
from trainworks.observe.monitoring.prometheus import OWNER
from trainworks.observe.monitoring.run_alerts import RUN_ALERTS

ALERTS = (*RUN_ALERTS, *NODE_ALERTS)
_TEAM_OF_RUN = (
    "{{ with printf \"last_over_time(trainworks_job_node_info{run='%s'}[1d])\" $labels.run | query }}"
    '{{ . | first | label "team" }}{{ end }}'
)
"""Template of a label: the team that the queue had of a run; a job that has failed is on no node any more."""
RECORDED = {
    "run:trainworks_step_slowdown:ratio": (
        "max by (run) (trainworks_run_training_step_seconds / trainworks_run_planned_step_seconds)",
        "Measured over planned time of a step, without what the plan does not have.",
    ),
    "run:trainworks_mfu:ratio": ("max by (run) (trainworks_run_mfu_ratio)", "Model FLOPs utilization."),
    "run:trainworks_deadline_slack:seconds": (
        "min by (run) (trainworks_run_deadline_timestamp_seconds - trainworks_run_expected_finish_timestamp_seconds)",
        "Time between the expected finish and the deadline; negative if it will be missed.",
    ),
    "node:trainworks_gpu_power:watts": (
        "sum by (node) (max by (node, UUID) (DCGM_FI_DEV_POWER_USAGE))",
        "Power draw of the GPUs of a node.",
    ),
    "run:trainworks_gpu_power:watts": (
        "sum by (run, team) (max by (run, team, node) (trainworks_job_node_info)"
        " * on (node) group_left () node:trainworks_gpu_power:watts)",
        "Power draw of the GPUs of all nodes on which a run holds a share; a shared node counts for each of its runs.",
    ),
    "run:trainworks_cost:usd": (
        "sum by (run, team) (max by (run) (trainworks_run_cost_usd)"
        " * on (run) group_right () max by (run, team) (trainworks_job_node_info))",
        "Price of the accelerators of a run so far, with the team that the queue knows.",
    ),
    "node:trainworks_gpu_sm_active:ratio": (
        "avg by (node) (max by (node, UUID) (DCGM_FI_PROF_SM_ACTIVE))",
        "Mean activity of the SMs of a node.",
    ),
}
"""Name of a recorded series -> expression, meaning."""


def alert_rules(of_zabbix: Collection[str] = (), docs: str | None = None) -> str:
    """The rule file of all alerts.

    Args:
        of_zabbix: names of the alerts that Zabbix tells people about.
        docs: address of the start page of the documentation.
    """
    return to_yaml({"groups": [{"name": "trainworks", "rules": [_rule(alert, of_zabbix, docs) for alert in ALERTS]}]})


def recording_rules() -> str:
    """The rule file of the recorded series, which dashboards read."""
    rules = [{"record": name, "expr": expr} for name, (expr, _) in RECORDED.items()]
    return to_yaml({"groups": [{"name": "trainworks-recorded", "rules": rules}]})


def alert_tests(rule_file: str, of_zabbix: Collection[str] = (), docs: str | None = None) -> str:
    """Two unit tests of each alert: one in which it fires with all its texts, and one in which it does not.

    Args:
        rule_file: name of the file of the alerts.
        of_zabbix: as for `alert_rules`.
        docs: as for `alert_rules`.
    """
    tests = [_test(alert, case, of_zabbix, docs) for alert in ALERTS for case in (alert.fires, alert.quiet)]
    return to_yaml({"rule_files": [rule_file], "evaluation_interval": "1m", "tests": tests})


def _labels(alert: AlertRule, of_zabbix: Collection[str]) -> dict[str, str]:
    """Labels of an alert beside those of its expression; that of the team is empty for a run that has none."""
    owner = {OWNER: "zabbix"} if alert.name in of_zabbix else {}
    return {"severity": alert.severity, **owner, **({"team": _TEAM_OF_RUN} if alert in RUN_ALERTS else {})}


def _rule(alert: AlertRule, of_zabbix: Collection[str], docs: str | None) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": _labels(alert, of_zabbix),
        "annotations": alert.annotations(docs),
    }


def _test(alert: AlertRule, case: AlertCase, of_zabbix: Collection[str], docs: str | None) -> dict[str, Any]:
    wanted: dict[str, Any] = {"eval_time": case.at, "alertname": alert.name}
    if case is alert.fires:
        labels = {name: text for name, text in _labels(alert, of_zabbix).items() if text != _TEAM_OF_RUN}
        labels |= case.labels
        texts = {name: with_labels(text, labels) for name, text in alert.annotations(docs).items()}
        wanted["exp_alerts"] = [{"exp_labels": labels, "exp_annotations": texts}]
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    return {"interval": "1m", "input_series": series, "alert_rule_test": [wanted]}
