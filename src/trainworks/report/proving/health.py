"""The health of a node, also for Slurm and node-problem-detector; of a fleet; repairs; and the page of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

from trainworks.backends.backend import NodeStatus
from trainworks.host.machine_load import MachineLoad
from trainworks.measure.health.check import CheckResult
from trainworks.measure.health.node_health import FleetHealth, NodeHealth
from trainworks.recover.repairs import RepairEvent
from trainworks.report.overview import cluster_picture, machine_blocks, nodes_document, nodes_summary
from trainworks.report.rendering.document import Details, Document, Row, Section, Style, Styled, Table, Text, left
from trainworks.report.rendering.plots import Drawing
from trainworks.report.rendering.printable import printable
from trainworks.report.rendering.renderer import build_document, to_json

_STYLES: dict[str, Style] = {"failed": "bad", "warning": "warning", "unknown": "warning", "ok": "good"}
_STYLES_OF_STEPS: dict[str, Style] = {"back": "good", "out": "bad", "failed": "warning"}
_KEY = (
    "A cell is an accelerator, filled while a job holds it. A dashed node takes no jobs; "
    "`failed 2x` counts failures under earlier ones."
)
_LONGEST_NPD_BYTES = 80
"""max_output_length of node-problem-detector, which cuts the rest."""


@build_document.register
def document(health: NodeHealth) -> Document:
    """What is wrong and what to do, then what is right, then what the node does not have."""
    counts = {verdict: len(health.with_verdict(verdict)) for verdict in ("failed", "warning", "unknown", "ok")}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count or verdict == "failed")
    about = [Text(f"node     {health.node}"), Text(f"checks   {summary}, in {health.seconds:.2f} s")]
    if health.expected:
        about.insert(1, Text(f"expected {health.expected}"))
    wrong = [*health.failed, *health.with_verdict("warning")]
    passed = [[each.check, each.figure, each.limit] for each in health.with_verdict("ok")]
    absent: dict[str, list[str]] = {}
    for each in (*health.with_verdict("unknown"), *health.with_verdict("not applicable")):
        absent.setdefault(each.figure, []).append(each.check)
    reasons = [[reason, ", ".join(checks)] for reason, checks in absent.items()]
    return Document(
        f"Health of {health.node}",
        "health",
        [
            Section("", about),
            Section("Found", [_table(wrong)] if wrong else [Text("nothing wrong", style="good")]),
            Section("Passed", [Table(left("check", "figure", "limit", wrap=True), passed)]),
            Section("Not checked", [Table(left("reason", "checks", wrap=True), reasons)] if absent else []),
        ],
        badge=Styled("failed", "bad") if health.failed else None,
    )


@to_json.register
def _(health: NodeHealth) -> Mapping[str, object]:
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


@build_document.register
def fleet_document(fleet: FleetHealth) -> Document:
    """Failing nodes, those that failed often under earlier jobs, then the odd ones out."""
    failing, odd = fleet.failing, fleet.odd
    summary = f"{len(fleet.nodes)} nodes: {len(failing)} fail, {len({n for each in odd for n in each.nodes})} differ"
    failed = [[node.name, complaint] for node in failing for complaint in node.failed]
    worn = [[node.name, node.history] for node in fleet.nodes if node.history]
    differing = [
        [each.fact, each.value or "not reported", each.usual or "no value in most nodes", ", ".join(each.nodes)]
        for each in odd
    ]
    return Document(
        "Health of a fleet",
        "health",
        [
            Section("", [Text(summary)]),
            Section("Failing", [Table(left("node", "found", wrap=True), failed)] if failed else []),
            Section("Failed under earlier jobs", [Table(left("node", "found", wrap=True), worn)] if worn else []),
            Section(
                "Odd ones out",
                [Table(left("fact", "value", "most nodes", "nodes", wrap=True), differing)] if differing else [],
            ),
        ],
    )


@to_json.register
def _(fleet: FleetHealth) -> Mapping[str, object]:
    """Nodes with what failed now and under earlier jobs, and the facts in which nodes differ."""
    return {
        "nodes": [
            {"node": node.name, "failed": list(node.failed), "history": node.history, "facts": dict(node.facts)}
            for node in fleet.nodes
        ],
        "odd": [
            {"fact": each.fact, "usual": each.usual, "value": each.value, "nodes": list(each.nodes)}
            for each in fleet.odd
        ],
    }


def nodes_page(nodes: Sequence[NodeStatus], load: MachineLoad, health: NodeHealth) -> Document:
    """Nodes of the queue, then load and health of this machine; checks without a finding are folded away."""
    queue, picture = nodes_document(nodes), cluster_picture(nodes)
    drawing = [] if picture is None else [Section("", [Text(_KEY, "dim"), Drawing(picture)])]
    about, found, *others = document(health).sections
    rest = [Details(section.title, section.blocks) for section in others if section.blocks]
    return replace(
        queue,
        about=nodes_summary(nodes),
        sections=[
            *drawing,
            *queue.sections,
            Section(f"Load of {health.node}", machine_blocks(load)),
            Section(f"Health of {health.node}", [*about.blocks[1:], *found.blocks, *rest]),
        ],
    )


def repairs_document(events: Sequence[RepairEvent]) -> Document:
    """A line for each step of the plan, the result or the record of repairs."""
    rows: list[list[str | Styled]] = [
        [_time(each), each.node, Styled(each.step, _STYLES_OF_STEPS.get(each.step, "")), each.detail] for each in events
    ]
    table = Table(left("time (UTC)", "node", "step", "detail", wrap=True), rows) if rows else Text("no repairs", "dim")
    return Document("Repairs", "repair", [Section("", [table])])


def repair_line(event: RepairEvent) -> str:
    """A step of a repair in one line."""
    return f"{_time(event)}  {event.node}  {event.step}" + f": {event.detail}" * bool(event.detail)


def _time(event: RepairEvent) -> str:
    return f"{datetime.fromtimestamp(event.t, UTC):%Y-%m-%d %H:%M:%S}"
