"""The health of a node: verdicts, as a table, as JSON, and in the words of Slurm and node-problem-detector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainworks.measure.health.check import CheckResult
from trainworks.measure.health.node_health import NodeHealth
from trainworks.report.rendering.document import Document, Row, Section, Style, Styled, Table, Text, left
from trainworks.report.rendering.printable import printable

_STYLES: dict[str, Style] = {"failed": "bad", "warning": "warning", "unknown": "warning", "ok": "good"}
_LONGEST_NPD_BYTES = 80
"""max_output_length of node-problem-detector, which cuts the rest."""


def document(health: NodeHealth) -> Document:
    """What is wrong and what to do, then what is right, then what the node does not have."""
    counts = {verdict: len(health.with_verdict(verdict)) for verdict in ("failed", "warning", "unknown", "ok")}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count or verdict == "failed")
    about = [Text(f"node     {health.node}"), Text(f"checks   {summary}, in {health.seconds:.2f} s")]
    if health.expected:
        about.insert(1, Text(f"expected {health.expected}"))
    wrong = [*health.failed, *health.with_verdict("warning")]
    right, absent = health.with_verdict("ok"), [*health.with_verdict("unknown"), *health.with_verdict("not applicable")]
    return Document(
        f"Health of {health.node}",
        "health",
        [
            Section("", about),
            Section("Found", [_table(wrong)] if wrong else [Text("nothing wrong", style="good")]),
            Section("Passed", [Table(left("check", "figure", "limit", wrap=True), [_passed(each) for each in right])]),
            Section("Not checked", [Table(left("reason", "checks", wrap=True), _by_reason(absent))] if absent else []),
        ],
        badge=Styled("failed", "bad") if health.failed else None,
    )


def to_json(health: NodeHealth) -> dict[str, Any]:
    """Every verdict with its source, and the facts that the nodes of a fleet share."""
    return {
        "node": health.node,
        "expected": health.expected,
        "verdict": "failed" if health.failed else "warning" if health.with_verdict("warning") else "ok",
        "seconds": round(health.seconds, 3),
        "checks": [asdict(result) for result in health.results],
        "facts": dict(health.facts),
    }


def answer_lines(health: NodeHealth, reader: str) -> list[str]:
    """What `--as` prints for a reader: `prolog`, `npd`, or `healthcheck`, which reads nothing."""
    if reader == "npd":
        return [npd_line(health)]
    return prolog_lines(health) if reader == "prolog" else []


def prolog_lines(health: NodeHealth) -> list[str]:
    """Lines for a Slurm prolog; a TaskProlog shows the job what follows `print`."""
    return [f"print trainworks health: {printable(result.complaint)}" for result in health.failed]


def drain_reason(health: NodeHealth) -> str:
    """The reason that Slurm keeps with a drained node."""
    return "trainworks: " + "; ".join(" ".join(printable(result.complaint).split()) for result in health.failed)


def npd_line(health: NodeHealth) -> str:
    """One line of at most 80 bytes for node-problem-detector.

    Source: https://github.com/kubernetes/node-problem-detector/blob/master/docs/custom_plugin_monitor.md
    """
    if not health.failed:
        return f"{len(health.with_verdict('ok'))} health checks passed"
    first, *others = health.failed
    more = f" +{len(others)} checks" if others else ""
    line = " ".join(printable(first.complaint).split()).encode()
    return line[: _LONGEST_NPD_BYTES - len(more)].decode(errors="ignore") + more


def _table(results: Sequence[CheckResult]) -> Table:
    rows = [
        Row(
            [
                Styled(result.verdict, _STYLES[result.verdict]),
                result.check,
                result.complaint.partition(": ")[2],
                result.limit,
                result.action,
            ]
        )
        for result in results
    ]
    return Table(left("verdict", "check", "found", "limit", "action", wrap=True), rows)


def _passed(result: CheckResult) -> list[str]:
    return [result.check, result.figure, result.limit]


def _by_reason(results: Sequence[CheckResult]) -> list[list[str]]:
    reasons = dict.fromkeys(result.figure for result in results)
    return [[reason, ", ".join(each.check for each in results if each.figure == reason)] for reason in reasons]
