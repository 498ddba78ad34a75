"""An alert as data: expression, threshold, what to do, a case in which it fires and one in which it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template
from typing import Any, Literal

from trainworks.config.source import read_package_data
from trainworks.config.spec import Frozen

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
ALERTS = (*RUN_ALERTS, *_alerts("nodes"))
