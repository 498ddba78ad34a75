"""An alert as data: expression, threshold, what to do, a case in which it fires and one in which it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

AlertSeverity = Literal["critical", "warning"]
_PAGE = "reference/alerts.html"
_LABEL = re.compile(r"{{ \$labels\.(\w+) }}")


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Series of a unit test, one value a minute in promtool's notation, and when the alert is looked for."""

    at: str
    series: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the alert that fires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
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
        page = f"{_PAGE}#{self.name.lower()}"
        return page if docs is None else f"{docs.rstrip('/')}/{page}"


def with_labels(text: str, labels: Mapping[str, str]) -> str:
    """A text with the values of the labels that it names."""
    return _LABEL.sub(lambda match: labels[match[1]], text)


ASSUMED = "assumption of Trainworks"
"""Source of a threshold that was read nowhere."""
