"""Check the catalogue by recomputing its figures from each other.

Each rule checks one fact and yields findings with the value, the limit and the probable cause. A row may explain a
finding (`explained` in the data); an explanation without a finding is a finding itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainworks.catalog.accelerator_rules import ACCELERATOR_CHECKS
from trainworks.catalog.catalog import Catalog
from trainworks.catalog.market_rules import MARKET_CHECKS, TERM_CHECKS
from trainworks.catalog.node_rules import NODE_CHECKS
from trainworks.catalog.rows import KINDS, Kind
from trainworks.catalog.software import SOFTWARE_CHECKS

CHECKS = {**ACCELERATOR_CHECKS, **NODE_CHECKS, **MARKET_CHECKS, **TERM_CHECKS, **SOFTWARE_CHECKS}
RULES = (*(rule for checks in CHECKS.values() for rule in checks), "stale-explanation")
"""Names of all rules, for findings and for `explained` in the data."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A figure that contradicts others."""

    kind: Kind
    row: str
    rule: str
    value: str
    limit: str
    meaning: str
    explained: str | None = None


def lint(catalog: Catalog) -> list[LintFinding]:
    """Check all facts; findings include explained ones, in the order of the catalogue."""
    findings = [
        LintFinding(kind, name, rule, *problem)
        for kind in KINDS
        for name, fact in getattr(catalog, kind).items()
        for rule, check in CHECKS[kind].items()
        for problem in check(fact, catalog)
    ]
    explained = [replace(found, explained=catalog.explained.get(found.row, {}).get(found.rule)) for found in findings]
    return [*explained, *_stale_explanations(catalog, explained)]


def _stale_explanations(catalog: Catalog, findings: list[LintFinding]) -> Iterator[LintFinding]:
    found = {(finding.row, finding.rule) for finding in findings}
    for row, rules in catalog.explained.items():
        for rule, why in rules.items():
            if (row, rule) not in found:
                kind: Kind = "accelerators" if row in catalog.accelerators else "nodes"
                meaning = "the figures no longer give the finding that it explains"
                yield LintFinding(kind, row, "stale-explanation", f"`{rule}`: {why}", "a finding of that rule", meaning)
