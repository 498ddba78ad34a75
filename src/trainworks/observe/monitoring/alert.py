"""An alert as data: expression, threshold, what to do, a case in which it fires and one in which it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

AlertSeverity = Literal["critical", "warning"]
_DOCS = "https://trainworks.example/docs/reference/alerts.html"
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

    @property
    def annotations(self) -> dict[str, str]:
        """Texts of the alert."""
        return {"summary": self.summary, "action": self.action, "runbook_url": f"{_DOCS}#{self.name.lower()}"}

    def annotations_with(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The texts of an alert with these labels."""
        return {name: with_labels(text, labels) for name, text in self.annotations.items()}


def with_labels(text: str, labels: Mapping[str, str]) -> str:
    """A text with the values of the labels that it names."""
    return _LABEL.sub(lambda match: labels[match[1]], text)


ASSUMED = "assumption of Trainworks"
"""Source of a threshold that was read nowhere."""
