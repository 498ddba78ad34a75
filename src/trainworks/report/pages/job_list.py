"""The list of jobs on a page: chosen columns in a chosen order, and cards of what runs now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainworks.jobs.job_row import JobRow
from trainworks.jobs.stored_jobs import ORDERS
from trainworks.queueing.reasons import count_of
from trainworks.report.jobs import job_cells, owner_text
from trainworks.report.overview import LiveRun
from trainworks.report.pages.run_tabs import date_text
from trainworks.report.rendering.document import Cell, Column, Document, Section, Style, Styled, Table, left
from trainworks.units import format_count, format_duration

COLUMNS: Mapping[str, str] = {
    "job": "job",
    "run": "run",
    "state": "state",
    "why": "why",
    "owner": "owner",
    "team": "team",
    "nodes": "nodes",
    "engine": "engine",
    "priority": "priority",
    "starts": "starts",
    "submitted": "submitted (UTC)",
    "started": "started (UTC)",
    "ended": "ended (UTC)",
    "time": "time",
}
"""Column of the list -> its heading."""
_SHORT = ("job", "priority", "submitted", "started", "ended", "time")
"""Columns whose cells stay on one line."""
DEFAULT_COLUMNS = ("job", "run", "state", "why", "owner", "nodes", "submitted", "time")


def known_columns(wanted: Sequence[str]) -> tuple[str, ...]:
    """The columns among `wanted`, in the order of the list; the default ones if none of them is known."""
    return tuple(name for name in COLUMNS if name in wanted) or DEFAULT_COLUMNS


def jobs_page(
    jobs: Sequence[JobRow],
    now: float,
    *,
    columns: Sequence[str],
    order: str,
    in_order: Callable[[str], str],
    address: str = "/runs/{}",
) -> Document:
    """A row per job, each with a checkbox that chooses it, by its number: the runs of two users may have one id.

    Args:
        jobs: in the order to show them.
        now: seconds since the epoch.
        columns: of `COLUMNS`.
        order: of the jobs, as `JobQuery.order`.
        in_order: address of the page with the jobs in another order.
        address: that of a run's page, with `{}` for the number of its job.
    """
    headings = []
    for name in columns:
        is_current = name == order.removeprefix("-")
        largest_first = is_current and order.startswith("-")
        headings.append(
            Column(
                COLUMNS[name],
                wrap=name not in _SHORT,
                href=in_order(name if largest_first else f"-{name}") if name in ORDERS else "",
                order="" if not is_current else "descending" if largest_first else "ascending",
            )
        )
    rows = []
    for job in jobs:
        cells = _cells(job, now, address)
        row = [cells[name] for name in columns]
        first = row[0] if isinstance(row[0], Styled) else Styled(row[0])
        rows.append(
            [Styled(first.text, first.style, href=first.href, choice=str(job.id), choice_name=job.run_id), *row[1:]]
        )
    return Document("Jobs", "jobs", [Section("", [Table(headings, rows)] if rows else [])])


def _cells(job: JobRow, now: float, address: str) -> Mapping[str, Cell]:
    times = {"submitted": job.submitted_at, "started": job.started_at, "ended": job.ended_at}
    cells = job_cells(job, now, address)
    return {
        **cells,
        "priority": cells["prio"],
        "owner": owner_text(job),
        "nodes": ", ".join(place.node for place in job.placement) or cells["nodes"],
        "team": job.team,
        **{name: "" if at is None else date_text(at)[:-3] for name, at in times.items()},
    }


def chosen_jobs(change: str, runs: Sequence[tuple[str, JobRow | str]], address: str = "/runs/{}") -> Document:
    """What would be stopped or resumed: a row per job, or per run that is in no queue.

    Args:
        change: `stop` or `resume`.
        runs: each as it was chosen, with its job; with its state where it has none.
        address: that of a run's page, with `{}` for its name.
    """
    rows: list[list[Cell]] = []
    for name, job in runs:
        if isinstance(job, str):
            rows.append(["", Styled(name, href=address.format(name)), job, "", ""])
            continue
        submitted = date_text(job.submitted_at)[:-3]
        run = Styled(job.run_id, href=address.format(job.id))
        rows.append([str(job.id), run, str(job.state), owner_text(job), submitted])
    table = Table(left("job", "run", "state", "owner", "submitted (UTC)", wrap=True), rows)
    return Document(f"{change.capitalize()} {count_of(len(rows), 'run')}?", "change", [Section("", [table])])


def changed_jobs(change: str, results: Sequence[tuple[str, str | None, str]], address: str = "/runs/{}") -> Document:
    """What became of each run that was to be stopped or resumed: its name, its run if it was changed, else why not."""
    done = {"stop": "asked to stop", "resume": "in its queue again"}[change]
    rows: list[list[Cell]] = [
        [
            Styled(run or name, href=address.format(name)),
            Styled(done, "good") if run else Styled(problem, "bad"),
        ]
        for name, run, problem in results
    ]
    num_done = sum(run is not None for _, run, _ in results)
    about = f"{num_done} of {count_of(len(rows), 'run')} {done}"
    return Document(
        change.capitalize(), "change", [Section("", [Table(left("run", "result", wrap=True), rows)])], about=about
    )


@dataclass(frozen=True, slots=True)
class RunCard:
    """A run that holds nodes now, in a few words."""

    run: str
    state: str
    style: Style
    share: float | None
    """Part of its steps that are done; None where their number is not known."""
    progress: str
    figures: str
    message: str


def run_cards(runs: Sequence[LiveRun]) -> list[RunCard]:
    """A card per live run, in their order."""
    return [_card(run) for run in runs]


def _card(run: LiveRun) -> RunCard:
    of = f" of {run.num_steps:,}" if run.num_steps else ""
    progress = "no step yet" if run.step is None else f"step {run.step:,}{of}"
    if run.eta_s is not None:
        progress += f", {format_duration(run.eta_s)} left"
    figures = [
        "" if run.loss is None else f"loss {run.loss:.4f}",
        "" if run.tokens_per_s is None else f"{format_count(run.tokens_per_s)}/s",
        "" if run.step_s is None else f"{format_duration(run.step_s)} a step",
    ]
    if run.planned_step_s is not None and run.step_s is not None:
        figures.append(f"{format_duration(run.planned_step_s)} planned")
    quiet = f"last step {format_duration(run.last_step_age_s)} ago" if run.is_quiet and run.last_step_age_s else ""
    style: Style = "bad" if quiet else "good" if run.state == "RUNNING" else "warning"
    share = min(1.0, run.step / run.num_steps) if run.step is not None and run.num_steps else None
    message = "; ".join(filter(None, (quiet, run.message)))
    return RunCard(run.run, run.state, style, share, progress, ", ".join(filter(None, figures)), message)
