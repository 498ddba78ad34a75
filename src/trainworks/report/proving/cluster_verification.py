"""What the nodes of a cluster run, against its stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from trainworks.deploy.verification import ClusterVerification, NodeVerdict
from trainworks.report.rendering.document import Document, Section, Styled, Table, Text, left
from trainworks.report.rendering.renderer import build_document, to_json


@build_document.register
def document(cluster: ClusterVerification) -> Document:
    """What is not as the stack says, then every check with its hosts."""
    failed = [verdict for verdict in cluster.verdicts if verdict.outcome == "fail"]
    warned = [verdict for verdict in cluster.verdicts if verdict.outcome == "warn"]
    hosts = {verdict.host for verdict in cluster.verdicts}
    summary = f"{len(hosts)} hosts: {len(cluster.verdicts)} checks, {len(failed)} fail, {len(warned)} warn"
    rows: list[list[str | Styled]] = []
    for check in dict.fromkeys(verdict.check for verdict in cluster.verdicts):
        verdicts = [verdict for verdict in cluster.verdicts if verdict.check == check]
        worst = max((verdict.outcome for verdict in verdicts), key=("pass", "warn", "fail").index)
        rows.append([check, _styled(worst), ", ".join(verdict.host for verdict in verdicts)])
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


def _styled(outcome: str) -> Styled:
    return Styled(outcome, "bad" if outcome == "fail" else "warning" if outcome == "warn" else "good")


@to_json.register
def _(cluster: ClusterVerification) -> Mapping[str, object]:
    return {
        "cluster": cluster.cluster,
        "failed": cluster.failed,
        "verdicts": [asdict(verdict) for verdict in cluster.verdicts],
    }
