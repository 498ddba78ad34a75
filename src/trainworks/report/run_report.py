"""The report of a run as a document: planned and measured, where the time went, attempts, checkpoints, environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from trainworks.record.ledger import Ledger
from trainworks.report import wording
from trainworks.report.held_out import evaluation_blocks, figure_blocks, held_out_key, held_out_lines
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import (
    FULL_BLOCK,
    Block,
    Cell,
    Column,
    Details,
    Document,
    Fact,
    Facts,
    Preformatted,
    Row,
    Section,
    Style,
    Styled,
    Table,
    Text,
    right,
)
from trainworks.report.rendering.plots import Bar, Bars, Chart, Curve, Mark, Rule, Segment, ShadedRange
from trainworks.report.rendering.renderer import build_document, model_json, to_json
from trainworks.report.runs.attempts import Failure, ReportedAttempt
from trainworks.report.runs.comparison import Comparison, Difference
from trainworks.report.runs.curves import Line, Point
from trainworks.report.runs.outcome import OutOfMemory, finding, remedy_lines
from trainworks.report.runs.part import format_amount, format_percent, format_relative
from trainworks.report.runs.products import ProfiledRank
from trainworks.report.runs.summary import Report
from trainworks.units import format_bytes, format_count, format_duration

_BAR_WIDTH = 24
_MAX_WIDTH = 80
_MAX_SAMPLE_LINES = 20
_MAX_FAULTS = 10
_TOP_OPERATORS = 10
_CLOSE, _FAR = 0.05, 0.25
"""Relative differences from the plan below which, and above which, a figure is coloured."""
_STATE_STYLES: Mapping[str, Style] = {"FAILED": "bad", "LOST": "bad", "STOPPED": "warning"}


to_json.register(Report, model_json)


@build_document.register
def document(report: Report) -> Document:
    """The whole report; sections without content are left out."""
    is_said = report.verdict.unless and report.verdict.signal == "stop"  # a failure ends its verdict with its hint
    texts = [report.message, f"hint: {report.hint}" if report.hint and not is_said else None]
    sections = [
        Section("", _heading(report)),
        Section("", [Text(text) for text in texts if text]),
        Section("", [Facts([Fact(*figure) for figure in wording.key_figures(report)], figures=True)]),
        Section("Out of memory", _out_of_memory(report.out_of_memory) if report.out_of_memory else []),
        Section("Loss", _loss(report), only="page"),
        Section("Evaluation", evaluation_blocks(report.evaluations, report.curves) if report.evaluations else []),
        Section("Figures", figure_blocks(report.curves.figures) if report.curves else []),
        Section("Planned and measured", _comparison(report.comparison) if report.comparison else []),
        Section("Memory", _memory(report.comparison) if report.comparison else [], only="page"),
        Section("Throughput", _throughput(report), only="page"),
        Section("Where the time went", _ledger(report.ledger) if report.ledger else []),
        Section("Attempts", _attempts(report)),
        Section("Checkpoints", _checkpoints(report)),
        Section("Skipped steps", [*_faults(report)]),
        Section("Profile", [block for profile in report.profiles for block in _profile(profile)]),
        Section(f"Sample after step {report.sample.step}" if report.sample else "", [*_sample(report)]),
        Section("Environment", [_environment(report)]),
    ]
    return Document(
        report.run_id,
        "report",
        sections,
        badge=Styled(report.state, _STATE_STYLES.get(report.state, "good")),
        shows_title=True,
        max_width=_MAX_WIDTH,
        footer=f"Started {_date(report.started_at)}, report of {_date(report.generated_at)}, trainworks "
        f"{report.trainworks}. Every number is from the run's own record.",
        verdict=report.verdict,
    )


def brief(report: Report, record: str, command: str) -> Document:
    """The end of a run in at most ten lines of 80 columns: a verdict, what was planned and measured, and the record."""
    steps = next(
        (f", {f'{done} {of}'.strip()} steps" for name, done, of in wording.key_figures(report) if name == "steps"), ""
    )
    ended = f"{report.run_id}  {report.state} after {format_duration(report.wall_clock_s)}{steps}"
    figures = [Fact(*figure) for figure in wording.brief_figures(report)]
    rest = Text(f"record: {record}, page: report.html; more: {command}", only="text")
    blocks = [Text(ended, "bold"), Text(report.verdict.sentence), Facts(figures, figures=True), rest]
    return Document(report.run_id, "report", [Section("", blocks)], max_width=_MAX_WIDTH)


def _date(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _heading(report: Report) -> list[Block]:
    blocks: list[Block] = []
    if report.training and report.training.model:
        training = report.training
        blocks += [Text(training.model), Text(f"{training.layout}, {training.precision}; {training.data}")]
    if report.command:
        blocks.append(Preformatted(f"$ {' '.join(report.command)}"))
    return blocks


def _out_of_memory(failure: OutOfMemory) -> list[Block]:
    rows = [
        [term.name, format_amount(term.planned_bytes, "bytes"), format_amount(term.measured_bytes, "bytes")]
        for term in failure.terms
    ]
    blocks: list[Block] = [
        Text(f"{finding(failure)}."),
        Table([Column(""), *right("planned", "measured")], rows, ruled=True),
    ]
    if remedies := remedy_lines(failure):
        blocks += [
            Text("The cheapest remedies, as predicted:"),
            Preformatted("\n".join(f"  {each}" for each in remedies)),
        ]
    return blocks


def _loss(report: Report) -> list[Block]:
    if not report.curves or not report.training:
        return []
    lowest = report.training.loss_lowest
    text = f"Lowest {lowest.loss:.3f} at step {lowest.step:,}." if lowest else "No finite loss was recorded."
    by_unit = {"tokens": "Nats per token", "images": "Nats per image", "": f"From {report.training.source}"}
    unit = by_unit.get(report.training.unit, "In the unit of the task")
    curves, share = report.curves, "Share that the model had right before each optimizer step."
    sets = {name: points for name, points in curves.held_out.items() if name.endswith("/loss")}
    held_out = sets or ({"held-out loss": curves.eval_loss} if curves.eval_loss else {})
    right = {"held-out accuracy": curves.eval_accuracy} if curves.eval_accuracy else {}
    return [
        *_step_chart(
            report, "Loss", f"{unit}, over optimizer steps. {text}", curves.loss, held_out=held_out, metric="loss"
        ),
        *_step_chart(report, "Accuracy", share, curves.accuracy, floor=0.0, held_out=right, metric="accuracy"),
    ]


def _throughput(report: Report) -> list[Block]:
    if not report.curves or not report.comparison or not report.training:
        return []
    unit = report.training.unit.capitalize()
    planned, interval = report.comparison.tokens_per_s.planned, report.comparison.tokens_per_s_interval
    return _step_chart(
        report,
        f"{unit} per second",
        f"{unit} per second of the whole job, over optimizer steps.",
        report.curves.tokens_per_s,
        rules=[Rule("y", planned, f"planned {format_count(planned)}")] if planned else [],
        bands=[ShadedRange(*interval, "80 % interval of the plan")] if interval else [],
        floor=0.0,
        metric="tokens_per_s",
    )


def _step_chart(
    report: Report,
    title: str,
    text: str,
    lines: Sequence[Line],
    *,
    rules: Sequence[Rule] = (),
    bands: Sequence[ShadedRange] = (),
    floor: float | None = None,
    held_out: Mapping[str, Sequence[Point]] | None = None,
    metric: str = "",
) -> list[Block]:
    """A chart over the steps, with its restarts and checkpoints; nothing without a point."""
    steps = [step for points in (*(line.points for line in lines), *(held_out or {}).values()) for step, _ in points]
    if not steps:
        return []
    evaluated = [*held_out_lines(held_out or {})]
    values = [value for line in lines for _, value in line.points]
    values += [value for curve, _ in evaluated for _, value in curve.points]
    values += [rule.value for rule in rules] + ([] if floor is None else [floor])
    values += [end for band in bands for end in (band.low, band.high)]
    chart = Chart(
        f"{title}, steps {min(steps)} to {max(steps)}",
        x=build_axis(min(steps) if min(steps) > 1 else 0, max(steps), num_ticks=7, whole=True),
        y=build_axis(min(values), max(values)),
        x_unit="steps",
        curves=[
            *(Curve("lost-line" if line.lost else "line", line.points) for line in lines),
            *(curve for curve, _ in evaluated),
        ],
        dots=[dot for _, dots in evaluated for dot in dots],
        rules=rules,
        bands=bands,
        marks=_marks(report),
        names=[
            *_key(report),
            *(held_out_key(place, name) for place, name in enumerate(held_out or ())),
            *(("key interval-key", band.title) for band in bands),
        ],
        metric=metric,
    )
    return [Text(text, "dim"), chart]


def _marks(report: Report) -> list[Mark]:
    restarts = [
        Mark(
            attempt.resumed_from_step or attempt.first_step or 0,
            "restart",
            f"attempt {attempt.number}: {wording.attempt_text(attempt, has_steps=True)}",
        )
        for attempt in report.attempts[1:]
    ]
    rollbacks = [
        Mark(fault.rolled_back_to, "restart", fault.text) for fault in report.faults if fault.rolled_back_to is not None
    ]
    saves = [Mark(step, "checkpoint", f"checkpoint after step {step}") for step in report.checkpoints.steps]
    return [*saves, *restarts, *rollbacks]


def _key(report: Report) -> list[tuple[str, str]]:
    rolled_back = any(fault.rolled_back_to is not None for fault in report.faults)
    entries = [
        ("key", "effective steps", True),
        ("key lost-key", "lost work", bool(report.training and report.training.lost_steps)),
        ("key restart-key", "restart", len(report.attempts) > 1 or rolled_back),
        ("key checkpoint-key", "checkpoint", bool(report.checkpoints.steps)),
    ]
    return [(css, name) for css, name, is_present in entries if is_present]


def _comparison(comparison: Comparison) -> list[Block]:
    terms = comparison.step_time_terms
    bars = [
        wording.amount_bar("planned", {term.name: term.planned for term in terms}, "s"),
        wording.amount_bar("measured", {term.name: term.measured for term in terms}, "s"),
    ]
    rows = [_difference(item, is_term=is_term) for item, is_term in wording.comparison_rows(comparison)]
    return [
        Text("One optimizer step, by term.", "dim", only="page"),
        Bars(bars, has_key=False, is_compact=True),
        Table([Column(""), *right("planned", "measured", "difference")], rows, ruled=True),
        *(Text(f"Also: {each}.") for each in comparison.findings[1:]),
        Text(wording.basis_text(comparison), "dim"),
    ]


def _difference(item: Difference, *, is_term: bool) -> Row:
    far = abs(item.relative or 0.0)
    style: Style = "" if far < _CLOSE else "bad" if far >= _FAR else "warning"
    cells: list[Cell] = [
        Styled(item.name, "" if is_term else "bold", swatch=item.name if is_term else ""),
        format_amount(item.planned, item.unit),
        format_amount(item.measured, item.unit),
        Styled(format_relative(item.relative), style),
    ]
    return Row(cells, is_term=is_term)


def _memory(comparison: Comparison) -> list[Block]:
    peak = {} if comparison.memory.measured is None else {"peak": comparison.memory.measured}
    planned = {term.name: term.planned for term in comparison.memory_terms}
    text = "Fullest rank at its peak. The plan knows the terms; the measurement is one number."
    bars = [wording.amount_bar("planned", planned, "bytes"), wording.amount_bar("measured", peak, "bytes")]
    return [Text(text, "dim"), Bars(bars, is_compact=True)]


def _ledger(ledger: Ledger) -> list[Block]:
    whole = ledger.wall_clock_s
    rows: list[Row] = []
    for category, seconds in ledger.by_category().items():
        share = seconds / whole if whole > 0 else 0.0
        bar = FULL_BLOCK * round(share * _BAR_WIDTH)
        amounts = [format_duration(seconds), format_percent(share), bar]
        rows.append(
            Row([Styled(category, swatch=category), *amounts, Styled(wording.CATEGORY_MEANINGS[category], "dim")])
        )
    rows.append(Row([Styled("wall clock", "bold"), Styled(format_duration(whole), "bold"), "", "", ""]))
    columns = [Column("category"), *right("time", "share"), Column("", only="text"), Column("meaning", wrap=True)]
    formula = "(compute + communication + optimizer + data) / (wall clock - idle)"
    goodput = f"runtime goodput {format_percent(ledger.runtime_goodput)} = {formula}"
    parts = [Segment(name, spent, format_duration(spent)) for name, spent in ledger.by_category().items()]
    return [
        Bars([Bar("", "", parts)], whole=whole, has_key=False),
        Table(columns, rows, has_header=False),
        Text(goodput, "dim"),
    ]


def _attempts(report: Report) -> list[Block]:
    blocks: list[Block] = []
    for attempt in report.attempts:
        again = f" (launch {attempt.launch})" if attempt.launch > 1 else ""
        blocks.append(
            Text(f"{attempt.number}{again}: {wording.attempt_text(attempt, has_steps=report.training is not None)}")
        )
        blocks += _failures(report, attempt)
    blocks += _failures(report, None)
    return blocks or [Text("no attempt was recorded" if report.command else "the ranks never met")]


def _failures(report: Report, attempt: ReportedAttempt | None) -> list[Block]:
    """The first failure in full; a terminal counts the ranks that failed after it, and a page folds them away."""
    failures = wording.failures_of(report, attempt)
    blocks = [block for failure in failures[:1] for block in _failure(failure)]
    if later := failures[1:]:
        text = f"and {len(later)} more after it"
        blocks.append(Text(text, "dim", indent=3, only="text"))
        blocks.append(Details(text, [block for failure in later for block in _failure(failure)], only="page"))
    return blocks


def _failure(failure: Failure) -> Iterator[Block]:
    yield Text([Styled(f"failed: {failure.cause}", "bad"), f" ({wording.failure_place(failure)})"], indent=3)
    if failure.message:
        yield Text(failure.message, indent=3)
    if failure.traceback:
        yield Details("traceback", [Preformatted(failure.traceback)], only="page")


def _checkpoints(report: Report) -> list[Block]:
    saved = report.checkpoints
    if not saved.steps and not saved.failed_steps and not saved.damaged:
        return []
    parts = [f"{len(saved.steps):,} written"]
    parts += [f"last after step {saved.steps[-1]:,}"] if saved.steps else []
    parts += [] if saved.size_bytes is None else [format_bytes(saved.size_bytes)]
    parts += [] if saved.write_s is None else [f"written in {format_duration(saved.write_s)}"]
    parts.append(f"stalled the steps for {format_duration(saved.stall_s)} in all")
    blocks: list[Block] = [Text(", ".join(parts))]
    if saved.failed_steps:
        blocks.append(Text(f"failed after step {', '.join(map(str, saved.failed_steps))}", "bad"))
    return [*blocks, *(Text(damage, "bad") for damage in saved.damaged)]


def _faults(report: Report) -> Iterator[Block]:
    """All of them on a page, the last ones on a terminal."""
    earlier = max(0, len(report.faults) - _MAX_FAULTS)
    if earlier:
        yield Text(f"({earlier} earlier ones)", "dim", only="text")
    for index, fault in enumerate(report.faults):
        yield Text(fault.text, "warning", only="page" if index < earlier else None)
    if report.training and report.training.loss_scale_steps:
        yield Text(wording.loss_scale_text(report.training.loss_scale_steps), "dim")


def _profile(profile: ProfiledRank) -> Iterator[Block]:
    """Shares of a rank, its top operators, and where its trace is."""
    summary = profile.summary
    shares = ", ".join(f"{name} {format_percent(share)}" for name, share in summary.shares().items())
    window = f"steps {summary.first_step} to {summary.last_step}, rank {summary.rank}"
    yield Text(f"{window}: {shares}")
    yield Text(Styled(profile.trace, "dim", href=profile.trace), indent=3)
    parts = {name: share * summary.window_s for name, share in summary.shares().items()}
    segments = [Segment(name, seconds, format_duration(seconds)) for name, seconds in parts.items()]
    yield Bars([Bar("", "", segments)], whole=summary.window_s)
    rows = [[item.name, f"{item.calls:,}", format_duration(item.self_s)] for item in summary.operators[:_TOP_OPERATORS]]
    yield Table([Column("operator", wrap=True), *right("calls", "own time")], rows, only="page")
    note = (
        "Compute and optimizer go before communication, which counts where it is exposed. Idle is Python and waiting. "
        "Open the trace at ui.perfetto.dev."
    )
    yield Text(note, "dim", only="page")


def _sample(report: Report) -> Iterator[Block]:
    if report.sample is None:
        return
    sample = report.sample
    lines = (sample.prompt + sample.text).splitlines()
    yield Preformatted("\n".join(lines[:_MAX_SAMPLE_LINES]), only="text")
    if (more := len(lines) - _MAX_SAMPLE_LINES) > 0:
        yield Text(f"({more} more lines)", "dim", only="text")
    yield Text("The prompt is grey.", "dim", only="page")
    yield Preformatted([Styled(sample.prompt, "dim"), sample.text], only="page")


def _environment(report: Report) -> Facts:
    host = report.host
    names = sorted({f"{item.name} ({format_bytes(item.memory_bytes)})" for item in host.accelerators})
    machine = f"{host.hostname}: {host.processor}, {host.num_cores} cores, {format_bytes(host.memory_bytes)}"
    system = f"{host.operating_system}, Python {host.python}, trainworks {report.trainworks}"
    facts = {  # without what nodes that ranks never began on have not reported
        "ranks": f"{wording.processes_text(report)}, {report.processes.device}, {report.processes.backend}",
        "host": machine if host.python else "",
        "accelerators": f"{format_count(len(host.accelerators))} x {', '.join(names)}" if names else "",
        "system": system if host.python else "",
        "packages": ", ".join(f"{name} {version}" for name, version in sorted(host.packages.items())),
    }
    return Facts.from_mapping(facts)
