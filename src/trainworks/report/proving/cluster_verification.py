"""What the nodes of a cluster run, against its stack; and the acceptance of the cluster, with a benchmark of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from trainworks.deploy.upgrade import UpgradePlan
from trainworks.deploy.verification import ClusterVerification, NodeVerdict
from trainworks.measure.bench.bench_report import BenchReport
from trainworks.measure.bench.verdict import BenchVerdict
from trainworks.report.rendering.document import Document, Section, Styled, Table, Text, left
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.results import Result, ResultVerdict
from trainworks.units import format_counted


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
        verdict=cluster.verdict,
    )


@build_document.register
def _upgrade(plan: UpgradePlan) -> Document:
    """A row for each step and part, in the order of an upgrade."""
    rows: list[list[str | Styled]] = [
        [str(number), ", ".join(step.batch.hosts), part, found, wanted, step.way_back]
        for number, step in enumerate(plan.steps, 1)
        for part, (found, wanted) in step.parts.items()
    ]
    table = Table(left("step", "hosts", "part", "found", "stack", "way back", wrap=True), rows)
    content = table if rows else Text("every host has what the stack says")
    return Document(f"Upgrade of {plan.cluster}", "deploy upgrade", [Section("", [content])])


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


@to_json.register
def _(plan: UpgradePlan) -> Mapping[str, object]:
    return asdict(plan)


@dataclass(frozen=True, slots=True)
class Acceptance(Result):
    """What was found, and what it was held against; its JSON is the record to sign."""

    created_at: float
    """Seconds since the epoch."""
    trainworks: str
    """Version that judged."""
    stack_sha256: str
    run_file_sha256: str
    verification: ClusterVerification
    nodes: tuple[str, ...]
    """Compute nodes of the stack."""
    bench: BenchReport | None = None
    """None where nodes are not as the stack says, which ends an acceptance."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Compute nodes that the benchmark did not measure completely."""
        records = self.bench.records if self.bench else ()
        measured = {record.name for record in records if record.is_complete}
        return tuple(name for name in self.nodes if name not in measured)

    @property
    def verdict(self) -> ResultVerdict:
        """Accept the cluster, repair what is wrong first, or measure what is missing."""
        checked = self.verification.verdict
        if self.verification.failed or self.bench is None:
            return checked
        bench = self.bench.verdict
        if self.missing:
            return ResultVerdict("Measure the other nodes", f"{', '.join(self.missing)} did not measure", signal="stop")
        if self.outcome == "accepted":
            figure = f"{format_counted(len(self.nodes), 'node')} are as the stack says, {bench.figure}"
            return ResultVerdict("Accept the cluster", figure, bench.unless, bench.signal)
        signal: Literal["check", "stop"] = "check" if self.outcome == "no verdict" else "stop"
        if bench.signal == "go":  # what was found is good, and a part is not measured, or not judged
            parts = "; ".join(f"{part}, {reason}" for part, reason, _ in self.bench.unmeasured)
            return ResultVerdict("Measure what is missing", parts or "training has no verdict", signal=signal)
        return replace(bench, signal=signal)

    @property
    def outcome(self) -> str:
        """`accepted` if nodes, benchmark and training are; `no verdict` where other programs used the nodes meanwhile.

        A part that was not measured, or a training that did not end with a verdict, accepts nothing.
        """
        bench = self.bench
        if bench is None or self.verification.failed or self.missing or bench.unmeasured or not bench.is_accepted:
            return "not accepted"
        training = bench.training.verdict if bench.training else BenchVerdict.NO_EXPECTATION
        if BenchVerdict.BUSY in (training, *(each.verdict for each in bench.judged)):
            return "no verdict"
        return "accepted" if training in (BenchVerdict.PASS, BenchVerdict.WEAK) else "not accepted"


@build_document.register
def acceptance_document(found: Acceptance) -> Document:
    """The verdict, then the documents of its parts."""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.created_at))
    about = [
        Text(f"outcome   {found.outcome}", style="good" if found.outcome == "accepted" else "bad"),
        Text(f"at        {at}, by trainworks {found.trainworks}"),
        Text(f"stack     sha256 {found.stack_sha256}"),
        Text(f"run file  sha256 {found.run_file_sha256}"),
    ]
    if found.bench is None:
        about.append(Text("not measured: nodes are not as the stack says", style="bad"))
    else:
        lines = [", ".join(found.missing)] * bool(found.missing)
        lines += [f"{part} of {', '.join(names)}: {reason}" for part, reason, names in found.bench.unmeasured]
        about += [Text(f"not measured: {line}", style="bad") for line in lines]
    parts = [build_document(found.verification)] + ([build_document(found.bench)] if found.bench else [])
    sections = [Section("", about), *(section for part in parts for section in part.sections)]
    badge = None if found.outcome == "accepted" else Styled(found.outcome, "bad")
    title = f"Acceptance of {found.verification.cluster}"
    return Document(title, "deploy verify --bench", sections, badge=badge, verdict=found.verdict)


@to_json.register
def _(found: Acceptance) -> Mapping[str, object]:
    return {
        "outcome": found.outcome,
        "created_at": found.created_at,
        "trainworks": found.trainworks,
        "stack_sha256": found.stack_sha256,
        "run_file_sha256": found.run_file_sha256,
        "missing": found.missing,
        "unmeasured": [list(each) for each in found.bench.unmeasured] if found.bench else [],
        "verification": to_json(found.verification),
        "bench": to_json(found.bench) if found.bench else None,
    }
