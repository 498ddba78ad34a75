"""Alerts as data, and the rules of Prometheus: alerts, recorded series, their tests for `promtool test rules`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from string import Template
from typing import Any, Literal

from trainworks.config.source import read_package_data
from trainworks.config.spec import Frozen
from trainworks.jobs.formats.manifest import to_yaml
from trainworks.observe.metrics.gpus import GPU_FAMILIES
from trainworks.observe.monitoring.dashboards import DASHBOARDS
from trainworks.observe.monitoring.prometheus import OWNER

AlertSeverity = Literal["critical", "warning"]
_LABEL = re.compile(r"{{ \$labels\.(\w+) }}")


class AlertCase(Frozen):
    """Series of a unit test, one value a minute in promtool's notation, and when the alert is looked for."""

    at: str
    series: Mapping[str, str]
    labels: Mapping[str, str] = {}
    """Labels of the alert that fires."""


class AlertRule(Frozen):
    """One alert."""

    name: str
    expr: str
    summary: str
    """Sentence for the person on duty; `{{ $labels.run }}` stands for a label."""
    threshold: str
    """Where the limit comes from."""
    action: str
    """Imperative."""
    severity: AlertSeverity
    lasts: str = "0m"
    """Time for which the expression must hold."""
    fires: AlertCase
    quiet: AlertCase

    def annotations(self, docs: str | None) -> dict[str, str]:
        """Texts of the alert; without an address of the documentation, `runbook_url` is relative to its start page."""
        return {"summary": self.summary, "action": self.action, "runbook_url": self.runbook_url(docs)}

    def runbook_url(self, docs: str | None) -> str:
        """Address of the alert in the documentation."""
        page = f"reference/alerts.html#{self.name.lower()}"
        return page if docs is None else f"{docs.rstrip('/')}/{page}"


def with_labels(text: str, labels: Mapping[str, str]) -> str:
    """A text with the values of the labels that it names."""
    return _LABEL.sub(lambda match: labels[match[1]], text)


_DATA = read_package_data(__package__, "alerts")


def _alerts(subject: str) -> tuple[AlertRule, ...]:
    rows: list[dict[str, Any]] = _DATA[subject]
    expressions = [Template(row["expr"]).substitute(_DATA["fragments"]) for row in rows]
    return tuple(AlertRule(**row | {"expr": expr}) for row, expr in zip(rows, expressions, strict=True))


RUN_ALERTS = _alerts("runs")
NODE_ALERTS = _alerts("nodes")
ALERTS = (*RUN_ALERTS, *NODE_ALERTS, *_alerts("queue"))


_TEAM_OF_RUN = (
    "{{ with printf \"last_over_time(trainworks_job_node_info{run='%s'}[1d])\" $labels.run | query }}"
    '{{ . | first | label "team" }}{{ end }}'
)
"""Template of a label: the team that the queue had of a run; a job that has failed is on no node any more."""
RECORDED: dict[str, tuple[str, str]] = {
    name: (row["expr"], row["meaning"]) for name, row in read_package_data(__package__, "recording").items()
}
"""Name of a recorded series -> expression, meaning."""


def alert_rules(of_zabbix: Collection[str] = (), docs: str | None = None, alerts: Sequence[AlertRule] = ALERTS) -> str:
    """The rule file of some alerts; Zabbix tells people about those of `of_zabbix`, and `docs` is the start page of the
    documentation.
    """
    return to_yaml({"groups": [{"name": "trainworks", "rules": [_rule(alert, of_zabbix, docs) for alert in alerts]}]})


def recording_rules() -> str:
    """The rule file of the recorded series, which dashboards read."""
    rules = [{"record": name, "expr": expr} for name, (expr, _) in RECORDED.items()]
    return to_yaml({"groups": [{"name": "trainworks-recorded", "rules": rules}]})


def alert_tests(
    rule_file: str,
    of_zabbix: Collection[str] = (),
    docs: str | None = None,
    alerts: Sequence[AlertRule] = ALERTS,
) -> str:
    """Two unit tests of each alert: one in which it fires with all its texts, and one in which it does not.

    The other arguments are those of `alert_rules`, which wrote `rule_file`.
    """
    tests = [_test(alert, case, of_zabbix, docs) for alert in alerts for case in (alert.fires, alert.quiet)]
    return to_yaml({"rule_files": [rule_file], "evaluation_interval": "1m", "tests": tests})


def _labels(alert: AlertRule, of_zabbix: Collection[str]) -> dict[str, str]:
    """Labels of an alert beside those of its expression; that of the team is empty for a run that has none."""
    owner = {OWNER: "zabbix"} if alert.name in of_zabbix else {}
    return {"severity": alert.severity, **owner, **({"team": _TEAM_OF_RUN} if alert in RUN_ALERTS else {})}


def _rule(alert: AlertRule, of_zabbix: Collection[str], docs: str | None) -> Mapping[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": _labels(alert, of_zabbix),
        "annotations": alert.annotations(docs),
    }


def _test(alert: AlertRule, case: AlertCase, of_zabbix: Collection[str], docs: str | None) -> Mapping[str, object]:
    wanted: dict[str, object] = {"eval_time": case.at, "alertname": alert.name}
    if case is alert.fires:
        labels = {name: text for name, text in _labels(alert, of_zabbix).items() if text != _TEAM_OF_RUN}
        labels |= case.labels
        texts = {name: with_labels(text, labels) for name, text in alert.annotations(docs).items()}
        wanted["exp_alerts"] = [{"exp_labels": labels, "exp_annotations": texts}]
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    return {"interval": "1m", "input_series": series, "alert_rule_test": [wanted]}


_DCGM = re.compile(r"\bDCGM_FI_\w+")


def dcgm_counters() -> str:
    """The file for its option `--collectors`: field, type of Prometheus, text.

    Source: https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv
    """
    panels = (panel for dashboard in DASHBOARDS for panel in dashboard.panels)
    queries = [expr for panel in panels for expr in panel.queries.values()]
    texts = [*queries, *(alert.expr for alert in ALERTS), *(expr for expr, _ in RECORDED.values())]
    wanted = set(_DCGM.findall(" ".join(texts)))
    read = [family for family in GPU_FAMILIES if family.name in wanted]
    rows = [f"{family.name}, {family.kind}, {family.help.replace(',', ';')}" for family in read]
    return "\n".join(["# Field, type, text: what the alerts and dashboards of Trainworks read", *rows]) + "\n"
