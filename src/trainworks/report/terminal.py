"""The report in a terminal: 80 columns, readable without colour."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainworks.report.attempts import Attempt, Failure
from trainworks.report.comparison import Comparison
from trainworks.report.ledger import Ledger
from trainworks.report.out_of_memory import OutOfMemory, finding, remedy_lines
from trainworks.report.summary import Report
from trainworks.report.wording import (
    CATEGORY_MEANINGS,
    attempt_text,
    basis_text,
    comparison_rows,
    failure_place,
    failures_of,
    format_amount,
    format_percent,
    format_relative,
    headline,
    key_figures,
    loss_scale_text,
    processes_text,
)
from trainworks.units import format_bytes, format_count, format_duration

__all__ = ["print_report", "render_report"]

BAR_WIDTH = 24
MAX_WIDTH = 80
MAX_SAMPLE_LINES = 20
MAX_FAULTS = 10
GOOD, BAD = 0.05, 0.25
STATE_STYLES = {"FAILED": "bold red", "LOST": "bold red", "STOPPED": "bold yellow"}


def print_report(report: Report, console: Console) -> None:
    """Print a report; colour, encoding and NO_COLOR are the console's affair."""
    console.print(render_report(report, ascii_only=console.options.ascii_only), width=min(console.width, MAX_WIDTH))


def render_report(report: Report, *, ascii_only: bool = False) -> RenderableType:
    """The whole report; sections without content are left out.

    Args:
        report: what to show.
        ascii_only: draw bars with `#`, for a terminal without block characters.
    """
    sections = [_header(report), _figures(report)]
    if report.out_of_memory:
        sections.append(_section("Out of memory", _out_of_memory(report.out_of_memory)))
    if report.comparison:
        sections.append(_section("Planned and measured", _comparison(report.comparison)))
    if report.ledger:
        sections.append(_section("Where the time went", _ledger(report.ledger, "#" if ascii_only else "\u2588")))
    sections.append(_section("Attempts", _attempts(report)))
    saved = report.checkpoints
    if saved.steps or saved.failed_steps or saved.damaged:
        sections.append(_section("Checkpoints", _checkpoints(report)))
    if report.faults or (report.training and report.training.loss_scale_steps):
        sections.append(_section("Skipped steps", _faults(report)))
    if report.profiles:
        sections.append(_section("Profile", _profiles(report)))
    if report.sample:
        sections.append(_section(f"Sample after step {report.sample.step}", _sample(report)))
    sections.append(_section("Environment", _environment(report)))
    return Group(*sections)


def _header(report: Report) -> RenderableType:
    title = Text(report.run_id, style="bold")
    title.append("  " + report.state, style=STATE_STYLES.get(report.state, "bold green"))
    lines = [title]
    if report.training:
        trained = report.training
        lines += [Text(trained.model), Text(f"{trained.layout}, {trained.precision}; {trained.data}")]
    if report.command:
        lines.append(Text("$ " + " ".join(report.command)))
    if sentence := headline(report):
        lines += [Text(), Text(sentence + ".", style="bold")]
    lines += [Text(text) for text in (report.message, report.hint and f"hint: {report.hint}") if text]
    return Group(*lines)


def _figures(report: Report) -> RenderableType:
    table = _plain_table()
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    for label, value, remark in key_figures(report):
        table.add_row(label, value, remark)
    return _section("", table)


def _comparison(comparison: Comparison) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    for heading in ("planned", "measured", "difference"):
        table.add_column(heading, justify="right")
    for item, is_term in comparison_rows(comparison):
        table.add_row(
            Text(("  " if is_term else "") + item.name, style="" if is_term else "bold"),
            format_amount(item.planned, item.unit),
            format_amount(item.measured, item.unit),
            Text(format_relative(item.relative), style=_difference_style(item.relative)),
        )
    others = [Text(f"Also: {finding}.") for finding in comparison.findings[1:]]
    return Group(table, *others, Text(basis_text(comparison), style="dim"))


def _difference_style(relative: float | None) -> str:
    if relative is None or abs(relative) < GOOD:
        return ""
    return "red" if abs(relative) >= BAD else "yellow"


def _out_of_memory(failure: OutOfMemory) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    for heading in ("planned", "measured"):
        table.add_column(heading, justify="right")
    for term in failure.terms:
        table.add_row(
            term.name, format_amount(term.planned_bytes, "bytes"), format_amount(term.measured_bytes, "bytes")
        )
    remedies = [Padding(Text(line), (0, 0, 0, 2)) for line in remedy_lines(failure)]
    intro = [Text("The cheapest remedies, as predicted:")] if remedies else []
    return Group(Text(finding(failure) + "."), table, *intro, *remedies)


def _ledger(ledger: Ledger, block: str) -> RenderableType:
    table = _plain_table()
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(width=BAR_WIDTH)
    table.add_column(style="dim")
    whole = ledger.wall_clock_s
    for category, seconds in ledger.by_category().items():
        share = seconds / whole if whole > 0 else 0.0
        bar = block * round(share * BAR_WIDTH)
        table.add_row(category, format_duration(seconds), format_percent(share), bar, CATEGORY_MEANINGS[category])
    table.add_row(Text("wall clock", style="bold"), Text(format_duration(whole), style="bold"))
    formula = "(compute + communication + optimizer + data) / (wall clock - idle)"
    goodput = f"runtime goodput {format_percent(ledger.runtime_goodput)} = {formula}"
    return Group(table, Text(goodput, style="dim"))


def _attempts(report: Report) -> RenderableType:
    lines: list[RenderableType] = []
    for attempt in report.attempts:
        again = f" (launch {attempt.launch})" if attempt.launch > 1 else ""
        lines.append(Text(f"{attempt.number}{again}  {attempt_text(attempt, has_steps=report.training is not None)}"))
        lines += _failures(report, attempt)
    lines += _failures(report, None)
    return Group(*lines) if lines else Text("the ranks never met")


def _failures(report: Report, attempt: Attempt | None) -> list[RenderableType]:
    """The first failure in full; the ranks that fell after it are counted."""
    failures = failures_of(report, attempt)
    shown: list[RenderableType] = [Padding(_failure(item), (0, 0, 0, 3)) for item in failures[:1]]
    if len(failures) > 1:
        shown.append(Text(f"   and {len(failures) - 1} more after it", style="dim"))
    return shown


def _failure(failure: Failure) -> Text:
    text = Text.assemble(("failed: " + failure.cause, "red"), f" ({failure_place(failure)})")
    return text.append("\n" + failure.message) if failure.message else text


def _checkpoints(report: Report) -> RenderableType:
    saved = report.checkpoints
    parts = [f"{len(saved.steps)} written"]
    if saved.steps:
        parts.append(f"last after step {saved.steps[-1]}")
    if saved.size_bytes is not None:
        parts.append(format_bytes(saved.size_bytes))
    if saved.write_s is not None:
        parts.append(f"written in {format_duration(saved.write_s)}")
    parts.append(f"stalled the steps for {format_duration(saved.stall_s)} in all")
    lines = [Text(", ".join(parts))]
    if saved.failed_steps:
        steps = ", ".join(str(step) for step in saved.failed_steps)
        lines.append(Text(f"failed after step {steps}", style="red"))
    lines += [Text(damage, style="red") for damage in saved.damaged]
    return Group(*lines)


def _faults(report: Report) -> RenderableType:
    """The last ones; the page has them all."""
    lines = [Text(fault.text, style="yellow") for fault in report.faults[-MAX_FAULTS:]]
    if (earlier := len(report.faults) - MAX_FAULTS) > 0:
        lines.insert(0, Text(f"({earlier} earlier ones)", style="dim"))
    if report.training and report.training.loss_scale_steps:
        lines.append(Text(loss_scale_text(report.training.loss_scale_steps), style="dim"))
    return Group(*lines)


def _profiles(report: Report) -> RenderableType:
    """Shares of each rank, and where its trace is."""
    lines = []
    for profiled in report.profiles:
        summary = profiled.summary
        shares = ", ".join(f"{name} {format_percent(share)}" for name, share in summary.shares().items())
        lines.append(Text(f"steps {summary.first_step} to {summary.last_step}, rank {summary.rank}: {shares}"))
        lines.append(Text(f"   {profiled.trace}", style="dim"))
    return Group(*lines)


def _sample(report: Report) -> RenderableType:
    if report.sample is None:
        return Text()
    lines = (report.sample.prompt + report.sample.text).splitlines()
    shown = "\n".join(lines[:MAX_SAMPLE_LINES])
    more = len(lines) - MAX_SAMPLE_LINES
    return Group(Text(shown), *([Text(f"({more} more lines)", style="dim")] if more > 0 else []))


def _environment(report: Report) -> RenderableType:
    host = report.host
    names = sorted({accelerator.name for accelerator in host.accelerators})
    packages = ", ".join(f"{name} {version}" for name, version in sorted(host.packages.items()))
    lines = [
        f"{processes_text(report)}, {report.processes.device}",
        f"{host.hostname}: {host.processor}, {host.num_cores} cores, {format_bytes(host.memory_bytes)}",
        *([f"{format_count(len(host.accelerators))} x {', '.join(names)}"] if names else []),
        f"{host.operating_system}, Python {host.python}, trainworks {report.trainworks}",
        packages,
    ]
    return Group(*(Text(line) for line in lines if line))


def _section(title: str, body: RenderableType) -> RenderableType:
    heading = [Text(title, style="bold underline")] if title else []
    return Group(Text(), *heading, body)


def _plain_table() -> Table:
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
