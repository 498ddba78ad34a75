"""What the nodes of a cluster run, against its stack."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trainworks.deploy.verification import ClusterVerification, NodeVerdict
from trainworks.report.rendering.document import Document, Section, Styled, Table, Text, left


def document(cluster: ClusterVerification) -> Document:
    """What is not as the stack says, then every check with its hosts."""
    failed = [verdict for verdict in cluster.verdicts if verdict.outcome == "fail"]
    warned = [verdict for verdict in cluster.verdicts if verdict.outcome == "warn"]
    hosts = {verdict.host for verdict in cluster.verdicts}
    summary = f"{len(hosts)} hosts: {len(cluster.verdicts)} checks, {len(failed)} fail, {len(warned)} warn"
    checks = list(dict.fromkeys(verdict.check for verdict in cluster.verdicts))
    rows = [_row(cluster, check) for check in checks]
    return Document(
        f"Cluster {cluster.cluster}",
        "deploy verify",
        [
            Section("", [Text(summary)]),
            Section("Not as the stack says", [_differences([*failed, *warned])] if failed or warned else []),
            Section("Checks", [Table(left("check", "verdict", "hosts", wrap=True), rows)]),
        ],
    )


def _differences(verdicts: list[NodeVerdict]) -> Table:
    rows: list[list[str | Styled]] = [
        [each.host, each.check, _styled(each.outcome), each.found, each.expected] for each in verdicts
    ]
    return Table(left("host", "check", "verdict", "found", "stack", wrap=True), rows)


def _row(cluster: ClusterVerification, check: str) -> list[str | Styled]:
    verdicts = [verdict for verdict in cluster.verdicts if verdict.check == check]
    worst = max((verdict.outcome for verdict in verdicts), key=("pass", "warn", "fail").index)
    return [check, _styled(worst), ", ".join(verdict.host for verdict in verdicts)]


def _styled(outcome: str) -> Styled:
    return Styled(outcome, "bad" if outcome == "fail" else "warning" if outcome == "warn" else "good")


def to_json(cluster: ClusterVerification) -> dict[str, Any]:
    """Every verdict."""
    return {
        "cluster": cluster.cluster,
        "failed": cluster.failed,
        "verdicts": [asdict(verdict) for verdict in cluster.verdicts],
    }
