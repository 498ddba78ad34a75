"""The report as one HTML page that needs nothing else: no request, no script, plots as inline SVG."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from pathlib import Path

from trainworks.files import write_atomic
from trainworks.report.attempts import Attempt, Failure
from trainworks.report.comparison import Comparison, Difference
from trainworks.report.ledger import Ledger
from trainworks.report.line_plots import Mark, Segment, line_plot, stacked_bar
from trainworks.report.out_of_memory import OutOfMemory, finding, remedy_lines
from trainworks.report.profile import render_profiles
from trainworks.report.style import html_page
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

__all__ = ["render_page", "write_page"]

FAR = 0.25
STATE_CLASSES = {"FAILED": "bad", "LOST": "bad", "STOPPED": "paused"}


def write_page(report: Report, path: Path) -> None:
    """Write the page, atomically.

    Raises:
        DiskFullError: no space left; an older page is untouched.
    """
    write_atomic(path, render_page(report))


def render_page(report: Report) -> str:
    """The whole page; every text that the run or its user wrote is escaped. Sections without content are left out."""
    sections = [
        _header(report),
        _out_of_memory(report.out_of_memory) if report.out_of_memory else "",
        _loss(report),
        _comparison(report.comparison) if report.comparison else "",
        _memory(report.comparison) if report.comparison else "",
        _throughput(report),
        _ledger(report.ledger) if report.ledger else "",
        _attempts(report),
        _checkpoints(report),
        _faults(report),
        render_profiles(report.profiles),
        _sample(report),
        _environment(report),
        _footer(report),
    ]
    body = "\n".join(section for section in sections if section)
    return html_page(report.run_id, "report", body)


def _header(report: Report) -> str:
    state_class = STATE_CLASSES.get(report.state, "")
    title = f'<h1>{escape(report.run_id)}</h1><span class="state {state_class}">{escape(report.state)}</span>'
    lines = [f'<div class="title">{title}</div>']
    if report.training:
        trained = report.training
        about = f"{trained.model}. {trained.layout}, {trained.precision}. {trained.data}."
        lines.append(f'<p class="about">{escape(about)}</p>')
    if report.command:
        lines.append(f"<pre>$ {escape(' '.join(report.command))}</pre>")
    if sentence := headline(report):
        lines.append(f'<p class="headline">{escape(sentence)}.</p>')
    lines += [f'<p class="about">{escape(text)}</p>' for text in (report.message, report.hint) if text]
    figures = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd><dd>{escape(remark)}</dd></div>"
        for label, value, remark in key_figures(report)
    )
    return f'<header>{"".join(lines)}<dl class="figures">{figures}</dl></header>'


def _out_of_memory(failure: OutOfMemory) -> str:
    rows = "".join(
        f"<tr><td>{escape(term.name)}</td><td>{format_amount(term.planned_bytes, 'bytes')}</td>"
        f"<td>{format_amount(term.measured_bytes, 'bytes')}</td></tr>"
        for term in failure.terms
    )
    remedies = escape("\n".join(remedy_lines(failure)))
    cheapest = f'<p class="soft">The cheapest remedies, as predicted:</p><pre>{remedies}</pre>' if remedies else ""
    return (
        f'<section><h2>Out of memory</h2><p class="soft">{escape(finding(failure))}.</p><div class="scroll"><table>'
        f"<thead><tr><th></th><th>planned</th><th>measured</th></tr></thead><tbody>{rows}</tbody></table></div>"
        f"{cheapest}</section>"
    )


def _loss(report: Report) -> str:
    if not report.curves or not report.training:
        return ""
    plot = line_plot(report.curves.loss, title="Loss", marks=_marks(report))
    lowest = report.training.loss_lowest
    text = f"Lowest {lowest.loss:.3f} at step {lowest.step:,}." if lowest else "No finite loss was recorded."
    unit = {"tokens": "Nats per token", "images": "Nats per image"}.get(report.training.unit, "As the task has it")
    return _plot_section("Loss", f"{unit}, over optimizer steps. {text}", plot, _key(report))


def _throughput(report: Report) -> str:
    if not report.curves or not report.comparison or not report.training:
        return ""
    unit = report.training.unit.capitalize()
    planned = report.comparison.tokens_per_s.planned
    reference = (f"planned {format_count(planned)}", planned) if planned else None
    plot = line_plot(
        report.curves.tokens_per_s,
        title=f"{unit} per second",
        marks=_marks(report),
        reference=reference,
        from_zero=True,
    )
    return _plot_section("Throughput", f"{unit} per second of the whole job, over optimizer steps.", plot, _key(report))


def _plot_section(title: str, text: str, plot: str, key: str) -> str:
    if not plot:
        return ""
    figure = f'<figure><div class="frame">{plot}</div><figcaption>{key}</figcaption></figure>'
    return f'<section><h2>{title}</h2><p class="soft">{escape(text)}</p>{figure}</section>'


def _marks(report: Report) -> list[Mark]:
    restarts = [
        Mark(attempt.resumed_from_step, "restart", f"attempt {attempt.number}: {attempt_text(attempt, has_steps=True)}")
        for attempt in report.attempts[1:]
    ]
    restarts += [
        Mark(fault.rolled_back_to, "restart", fault.text) for fault in report.faults if fault.rolled_back_to is not None
    ]
    saved = [Mark(step, "checkpoint", f"checkpoint after step {step}") for step in report.checkpoints.steps]
    return [*saved, *restarts]


def _key(report: Report) -> str:
    entries = [("", "effective steps", True)]
    entries.append(("lost-key", "lost work", bool(report.training and report.training.lost_steps)))
    rolled_back = any(fault.rolled_back_to is not None for fault in report.faults)
    entries.append(("restart-key", "restart", len(report.attempts) > 1 or rolled_back))
    entries.append(("checkpoint-key", "checkpoint", bool(report.checkpoints.steps)))
    return "".join(f'<span><i class="key {css}"></i>{name}</span>' for css, name, present in entries if present)


def _comparison(comparison: Comparison) -> str:
    rows = "".join(_comparison_row(item, is_term=is_term) for item, is_term in comparison_rows(comparison))
    heads = "".join(f"<th>{head}</th>" for head in ("", "planned", "measured", "difference"))
    also = "".join(f'<p class="note">Also: {escape(finding)}.</p>' for finding in comparison.findings[1:])
    return (
        '<section><h2>Planned and measured</h2><p class="soft">One optimizer step, by term.</p>'
        f'{_step_bars(comparison)}<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f'{also}<p class="note">{escape(basis_text(comparison))}</p></section>'
    )


def _comparison_row(item: Difference, *, is_term: bool) -> str:
    far = ' class="far"' if item.relative is not None and abs(item.relative) >= FAR else ""
    swatch = _swatch(item.name) if is_term else ""
    return (
        f'<tr class="{"term" if is_term else "whole"}"><td>{swatch}{escape(item.name)}</td>'
        f"<td>{format_amount(item.planned, item.unit)}</td><td>{format_amount(item.measured, item.unit)}</td>"
        f"<td{far}>{format_relative(item.relative)}</td></tr>"
    )


def _step_bars(comparison: Comparison) -> str:
    terms = comparison.step_time_terms
    planned = [Segment(term.name, term.planned or 0.0, format_duration(term.planned or 0.0)) for term in terms]
    measured = [Segment(term.name, term.measured or 0.0, format_duration(term.measured or 0.0)) for term in terms]
    return _bars([("planned", planned), ("measured", measured)], "s")


def _memory(comparison: Comparison) -> str:
    terms = comparison.memory_terms
    planned = [Segment(term.name, term.planned or 0.0, format_bytes(term.planned or 0.0)) for term in terms]
    peak = comparison.memory.measured
    measured = [] if peak is None else [Segment("peak", peak, format_bytes(peak))]
    names = "".join(f"<span>{_swatch(term.name)}{escape(term.name)}</span>" for term in terms if term.planned)
    return (
        '<section><h2>Memory</h2><p class="soft">Fullest rank at its peak. The plan knows the terms; '
        f"the measurement is one number.</p>{_bars([('planned', planned), ('measured', measured)], 'bytes')}"
        f"<figure><figcaption>{names}</figcaption></figure></section>"
    )


def _bars(bars: list[tuple[str, list[Segment]]], unit: str) -> str:
    """Bars below each other on one scale, each with its name and total."""
    totals = [sum(segment.value for segment in segments) for _, segments in bars]
    whole = max(totals)
    rows = []
    for (name, segments), total in zip(bars, totals, strict=True):
        text = format_amount(total if segments and total else None, unit)
        bar = stacked_bar(segments, whole=whole, title=f"{name} {text}")
        rows.append(f"<span>{name}</span><b>{text}</b>{bar}")
    return f'<div class="bars">{"".join(rows)}</div>'


def _ledger(ledger: Ledger) -> str:
    whole = ledger.wall_clock_s
    spent = ledger.by_category()
    bar = stacked_bar(
        [Segment(name, seconds, format_duration(seconds)) for name, seconds in spent.items()],
        whole=whole,
        title="Wall clock by category",
    )
    rows = "".join(_ledger_row(name, seconds, whole) for name, seconds in spent.items())
    total = f'<td>wall clock</td><td>{format_duration(whole)}</td><td></td><td class="wide"></td>'
    table = f'<table><tbody>{rows}<tr class="whole">{total}</tr></tbody></table>'
    note = "Runtime goodput = (compute + communication + optimizer + data of effective steps) / (wall clock - idle)"
    return (
        "<section><h2>Where the time went</h2>"
        f'<p class="soft">{escape(note)} = {format_percent(ledger.runtime_goodput)}.</p>'
        f'<div class="scroll">{bar}</div><div class="scroll">{table}</div></section>'
    )


def _ledger_row(name: str, seconds: float, whole: float) -> str:
    share = format_percent(seconds / whole if whole > 0 else 0.0)
    meaning = f'<td class="text soft wide">{CATEGORY_MEANINGS[name]}</td>'
    return f"<tr><td>{_swatch(name)}{name}</td><td>{format_duration(seconds)}</td><td>{share}</td>{meaning}</tr>"


def _attempts(report: Report) -> str:
    if not report.attempts and not report.failures:
        return ""
    entries = "".join(_attempt(report, attempt) for attempt in report.attempts)
    outside = "".join(_failure(failure) for failure in failures_of(report, None))
    return f"<section><h2>Attempts</h2>{entries}{outside}</section>"


def _attempt(report: Report, attempt: Attempt) -> str:
    again = f", launch {attempt.launch}" if attempt.launch > 1 else ""
    failures = failures_of(report, attempt)
    first = "".join(_failure(failure) for failure in failures[:1])
    rest = "".join(_failure(failure) for failure in failures[1:])
    if rest:
        rest = f"<details><summary>{len(failures) - 1} more failed after it</summary>{rest}</details>"
    done = attempt_text(attempt, has_steps=report.training is not None)
    return f'<div class="attempt"><p>Attempt {attempt.number}{again}: {done}.</p>{first}{rest}</div>'


def _failure(failure: Failure) -> str:
    place = f'<span class="soft">({escape(failure_place(failure))})</span>'
    lines = [f'<p><span class="alarm">Failed: {escape(failure.cause)}</span> {place}</p>']
    if failure.message:
        lines.append(f"<p>{escape(failure.message)}</p>")
    if failure.traceback:
        lines.append(f"<details><summary>traceback</summary><pre>{escape(failure.traceback)}</pre></details>")
    return "".join(lines)


def _checkpoints(report: Report) -> str:
    saved = report.checkpoints
    if not saved.steps and not saved.failed_steps and not saved.damaged:
        return ""
    rows = [
        ("written", f"{len(saved.steps)}" + (f", the last after step {saved.steps[-1]:,}" if saved.steps else "")),
        ("failed", ", ".join(f"after step {step:,}" for step in saved.failed_steps) or "none"),
        ("size", format_amount(saved.size_bytes, "bytes")),
        ("stalled the steps", f"{format_duration(saved.stall_s)} in all"),
        ("time to write", format_amount(saved.write_s, "s")),
    ]
    damaged = "".join(f"<p>{escape(damage)}</p>" for damage in saved.damaged)
    return f"<section><h2>Checkpoints</h2>{_facts(rows)}{damaged}</section>"


def _faults(report: Report) -> str:
    scaled = report.training.loss_scale_steps if report.training else 0
    if not report.faults and not scaled:
        return ""
    lines = "".join(f"<li>{escape(fault.text)}</li>" for fault in report.faults)
    note = f'<p class="soft">{escape(loss_scale_text(scaled))}.</p>' if scaled else ""
    return f"<section><h2>Skipped steps</h2>{f'<ul>{lines}</ul>' if lines else ''}{note}</section>"


def _sample(report: Report) -> str:
    if report.sample is None:
        return ""
    sample = report.sample
    text = f'<span class="soft">{escape(sample.prompt)}</span>{escape(sample.text)}'
    return (
        f'<section><h2>Sample</h2><p class="soft">Written after step {sample.step:,}; the prompt is grey.</p>'
        f"<pre>{text}</pre></section>"
    )


def _environment(report: Report) -> str:
    host, processes = report.host, report.processes
    accelerators = ", ".join(f"{item.name} ({format_bytes(item.memory_bytes)})" for item in host.accelerators)
    rows = [
        ("ranks", processes_text(report)),
        ("device", f"{processes.device}, {processes.backend}"),
        ("accelerators", accelerators or "none"),
        ("host", host.hostname),
        ("processor", f"{host.processor}, {host.num_cores} cores"),
        ("memory", format_bytes(host.memory_bytes)),
        ("operating system", host.operating_system),
        ("Python", host.python),
        *sorted(host.packages.items()),
    ]
    return f"<section><h2>Environment</h2>{_facts(rows)}</section>"


def _facts(rows: list[tuple[str, str]]) -> str:
    cells = (f'<td class="soft">{escape(name)}</td><td class="text">{escape(value)}</td>' for name, value in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="scroll"><table class="facts"><tbody>{body}</tbody></table></div>'


def _footer(report: Report) -> str:
    return (
        f'<footer class="soft">Started {_date(report.started_at)}, report of {_date(report.generated_at)}, '
        f"trainworks {escape(report.trainworks)}. Every number is from the run's own record.</footer>"
    )


def _date(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _swatch(name: str) -> str:
    return f'<i class="swatch fill-{escape(name)}"></i>'
