"""What runs now, and where: live runs, nodes as a table and as a drawing below their switches, and a machine."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.etree.ElementTree import Element

from trainworks.backends.backend import NodeStatus
from trainworks.host.machine_load import AcceleratorLoad, MachineLoad
from trainworks.report.rendering.document import (
    Block,
    Cell,
    Column,
    Document,
    Section,
    Styled,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.report.rendering.svg import element, with_title
from trainworks.results import Result
from trainworks.units import format_bytes, format_count, format_duration

_QUIET_S = 60.0
"""Age of the last step from which it is coloured, at least; a slow run has a multiple of its step."""
_QUIET_STEPS = 20
_COLUMNS, _BOX, _GAP = 8, 112, 10
_HEAD, _HEIGHT = 26, 74
_WORD_AT = 65
"""Baseline of the state of a node in its box."""
_CELL, _CELLS = 11, 8
_MOST_CELLS = 16
"""Accelerators, or cores of a node without any, that are drawn one by one; of more the share is drawn."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run; figures are None before its first step."""

    run: str
    state: str
    step: int | None
    num_steps: int | None
    loss: float | None
    step_s: float | None
    """Mean of the recent steps."""
    planned_step_s: float | None
    anchored_step_s: float | None
    """Step time that the plan predicts once the first quiet steps of the run have corrected it."""
    tokens_per_s: float | None
    eta_s: float | None
    """At the recent pace."""
    last_step_age_s: float | None
    message: str | None

    @property
    def is_quiet(self) -> bool:
        """True for a running run whose last step is older than a minute and than twenty steps."""
        if self.state != "RUNNING" or self.last_step_age_s is None:
            return False
        return self.last_step_age_s > max(_QUIET_S, _QUIET_STEPS * (self.step_s or 0.0))


@dataclass(frozen=True, slots=True)
class Overview(Result):
    """What runs now, and where."""

    at: float
    """Seconds since the epoch."""
    runs: tuple[LiveRun, ...]
    nodes: tuple[NodeStatus, ...]
    machine: MachineLoad


to_json.register(Overview, dataclasses.asdict)


@build_document.register
def document(overview: Overview) -> Document:
    """Runs, then nodes, then this machine with its accelerators."""
    nodes = nodes_document(overview.nodes).sections[0].blocks if overview.nodes else []
    return Document(
        "Now",
        "overview",
        [
            Section("Runs", _runs(overview.runs)),
            Section("Nodes", nodes),
            Section("This machine", machine_blocks(overview.machine)),
        ],
    )


def _runs(runs: Sequence[LiveRun]) -> list[Block]:
    if not runs:
        return [Text("no run is waiting or running", "dim")]
    columns = [
        *left("run", "state"),
        *right("step", "loss", "step time", "planned", "anchored", "rate", "ETA", "last step"),
    ]
    return [Table([*columns, Column("message", wrap=True)], [_run(run) for run in runs])]


def _run(run: LiveRun) -> list[Cell]:
    of = f"/{run.num_steps:,}" if run.num_steps else ""
    age = "" if run.last_step_age_s is None else f"{format_duration(run.last_step_age_s)} ago"
    return [
        Styled(run.run, "bold"),
        run.state.lower(),
        "" if run.step is None else f"{run.step:,}{of}",
        "" if run.loss is None else f"{run.loss:.4f}",
        _duration(run.step_s),
        _duration(run.planned_step_s),
        _duration(run.anchored_step_s),
        "" if run.tokens_per_s is None else f"{format_count(run.tokens_per_s)}/s",
        _duration(run.eta_s),
        Styled(age, "bad" if run.is_quiet else ""),
        run.message or "",
    ]


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def nodes_document(nodes: Sequence[NodeStatus]) -> Document:
    """Free and used resources of every node, and its hardware failures under earlier jobs where some are remembered."""
    rows = []
    for node in nodes:
        held = f"{node.accelerators_taken} of {node.accelerators} {node.accelerator or ''}".strip()
        history = node.history
        rows.append(
            [
                node.name,
                node.state,
                f"{node.cores_taken:g} of {node.cores:g}",
                held if node.accelerators else "",
                ", ".join(node.jobs),
                "" if history is None else f"{history.failures}, score {history.score:.1f}",
                node.reason or "",
            ]
        )
    columns = left("node", "state", "cores", "accelerators", "jobs", "failures", "why", wrap=True)
    return Document("Nodes", "nodes", [Section("", [Table(columns, rows)])])


def machine_blocks(machine: MachineLoad) -> list[Block]:
    """Busy cores and used memory in a line, and a row per accelerator."""
    cores = f"{machine.cores_busy:.1f} of {machine.cores} cores busy"
    memory = f"{format_bytes(machine.memory_used_bytes)} of {format_bytes(machine.memory_bytes)} memory used"
    blocks: list[Block] = [Text(f"{cores}, {memory}")]
    if machine.accelerators:
        columns = [*left("accelerator"), *right("busy", "memory", "power", "temperature")]
        blocks.append(Table(columns, [_accelerator(each) for each in machine.accelerators]))
    return blocks


def _accelerator(load: AcceleratorLoad) -> list[str]:
    memory = "" if load.memory_used_bytes is None else format_bytes(load.memory_used_bytes)
    whole = "" if load.memory_bytes is None else f" of {format_bytes(load.memory_bytes)}"
    limit = " W" if load.power_limit_w is None else f" of {load.power_limit_w:.0f} W"
    return [
        f"{load.index} {load.name}",
        "" if load.busy_share is None else f"{load.busy_share:.0%}",
        f"{memory}{whole}",
        "" if load.power_w is None else f"{load.power_w:.0f}{limit}",
        "" if load.temperature_c is None else f"{load.temperature_c} C",
    ]


def nodes_summary(nodes: Sequence[NodeStatus]) -> str:
    """How many nodes are in service, drained and down, and how many accelerators are free, in one line.

    >>> nodes_summary([NodeStatus("a", "free", accelerators=8), NodeStatus("b", "drained", accelerators=8)])
    '2 nodes: 1 in service, 1 drained; 8 of 8 accelerators in service are free'
    """
    serving = [node for node in nodes if node.state in ("free", "mixed", "taken")]
    others = Counter(node.state for node in nodes if node not in serving)
    counts = [f"{len(serving)} in service", *(f"{count} {state}" for state, count in sorted(others.items()))]
    text = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}: {', '.join(counts)}"
    if whole := sum(node.accelerators for node in serving):
        free = whole - sum(node.accelerators_taken for node in serving)
        text += f"; {free:,} of {whole:,} accelerators in service are free"
    return text


def cluster_picture(nodes: Sequence[NodeStatus]) -> Element | None:
    """The picture: a switch over its nodes, and a cell per accelerator; None without nodes."""
    if not nodes:
        return None
    groups = groupby(sorted(nodes, key=lambda node: node.switch or ""), key=lambda node: node.switch)
    parts, top = list[Element](), 0
    for switch, members in groups:
        found = list(members)
        parts += _group(switch, found, top)
        rows = -(-len(found) // _COLUMNS)
        top += rows * (_HEIGHT + _GAP) + _GAP + (0 if switch is None else _HEAD + _GAP)
    width = min(_COLUMNS, max(len(nodes), 3)) * (_BOX + _GAP) - _GAP
    about = f"{len(nodes)} nodes: {', '.join(_words(node) for node in nodes[:64])}"
    size = f"0 0 {width} {top - 2 * _GAP}"
    return element("svg", *parts, css="cluster", viewBox=size, width=width, role="img", aria_label=about)


def _group(switch: str | None, nodes: Sequence[NodeStatus], top: int) -> Iterator[Element]:
    """A switch with a cable down each column of its nodes, and the nodes."""
    columns = min(_COLUMNS, len(nodes))
    first = top
    if switch is not None:
        first += _HEAD + _GAP
        for column in range(columns):
            x, below = column * (_BOX + _GAP) + _BOX / 2, (len(nodes) - 1 - column) // _COLUMNS
            yield element(
                "line", css="cable", x1=x, x2=x, y1=top + _HEAD / 2, y2=first + below * (_HEIGHT + _GAP) + _HEIGHT / 2
            )
        width = columns * (_BOX + _GAP) - _GAP
        yield element("rect", css="switch", x=0, y=top, width=width, height=_HEAD, rx=4)
        yield element("text", css="name", x=width / 2, y=top + 17, text_anchor="middle", text=switch)
    for index, node in enumerate(nodes):
        row, column = divmod(index, _COLUMNS)
        yield _node(node, column * (_BOX + _GAP), first + row * (_HEIGHT + _GAP))


def _node(node: NodeStatus, x: int, y: int) -> Element:
    css = {"draining": "node is-ill is-drained", "drained": "node is-ill is-drained"}
    css |= dict.fromkeys(("free", "mixed", "taken"), "node")
    box = element("rect", css=css.get(node.state, "node is-ill"), x=x, y=y, width=_BOX, height=_HEIGHT, rx=4)
    name = node.name if len(node.name) <= 15 else f"{node.name[:14]}…"
    label = element("text", css="name", x=x + 8, y=y + 17, text=name)
    failures = node.history.failures if node.history else 0
    state = f"{node.state}, failed {failures}x" if failures else node.state
    said = element("text", css="worn" if failures else "said", x=x + 8, y=y + _WORD_AT, text=state)
    return with_title(element("g", box, label, *_cells(node, x + 8, y + 26), said), _words(node))


def _cells(node: NodeStatus, x: int, y: int) -> Iterator[Element]:
    """A square per accelerator, the held ones first; of many, or of cores, a bar."""
    count, taken = node.accelerators, node.accelerators_taken
    if 0 < count <= _MOST_CELLS:
        for index in range(count):
            row, column = divmod(index, _CELLS)
            css = "held" if index < taken else "rest"
            step = _CELL + 1.5
            yield element("rect", css=css, x=x + column * step, y=y + row * step, width=_CELL, height=_CELL, rx=2)
        return
    share = taken / count if count else node.cores_taken / node.cores if node.cores else 0.0
    width = _BOX - 16
    yield element("rect", css="rest", x=x, y=y, width=width, height=_CELL, rx=2)
    yield element("rect", css="held", x=x, y=y, width=round(width * share, 1), height=_CELL, rx=2)


def _words(node: NodeStatus) -> str:
    """The node in words."""
    held = (
        f"{node.accelerators_taken} of {node.accelerators} {node.accelerator or 'accelerators'}"
        if node.accelerators
        else f"{node.cores_taken:g} of {node.cores:g} cores"
    )
    why = f", {node.reason}" if node.reason else ""
    if node.history and node.history.failures:
        why += f", failed {node.history.failures} times under earlier jobs"
    return f"{node.name} {node.state}, {held} held{why}"
