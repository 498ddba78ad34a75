"""Jobs of the store, one job in detail, and the resources that a job requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainworks.host.users import this_host
from trainworks.jobs.job_row import Attempt, JobRow
from trainworks.jobs.state import Cause, JobState, parse_cause
from trainworks.record.run_dir import RunDir
from trainworks.recover.restarts import Life
from trainworks.report.rendering.document import (
    Block,
    Cell,
    Document,
    Facts,
    Preformatted,
    Section,
    Style,
    Styled,
    Table,
    left,
)
from trainworks.system import user_id
from trainworks.units import Money, format_bytes, format_duration

if TYPE_CHECKING:
    from trainworks.record.resolved import KeptCode


from trainworks.jobs.job_spec import JobSpec, NodeResources

STATE_STYLES: dict[JobState, Style] = {
    JobState.RUNNING: "good",
    JobState.RECOVERING: "warning",
    JobState.PREEMPTED: "warning",
    JobState.STOPPED: "warning",
    JobState.FAILED: "bad",
    JobState.LOST: "bad",
}
_StatesOfArrays = Mapping[str, Mapping[JobState, int]]
_COLUMNS = ("job", "run", "engine", "state", "why", "starts", "nodes", "prio", "time")


def list_document(
    jobs: Sequence[JobRow],
    now: float,
    *,
    address: str = "",
    arrays: _StatesOfArrays = MappingProxyType({}),
    costs: Mapping[int, Money] = MappingProxyType({}),
) -> Document:
    """A row per job; with owner and submission if jobs of several users or machines are listed; team or cost if known.

    `address` is that of a run's page, with `{}` for the number of its job; without links by default. `arrays` counts
    the jobs by state of each array whose jobs share the line of the one that is listed. `costs` are so far, of
    each job that has a price; that of a line of an array is the sum of its jobs.
    """
    of_several = any(job.uid != user_id() or _is_elsewhere(job) for job in jobs)
    teams = [job.team for job in jobs]
    owners = [owner_text(job) for job in jobs]
    submitted = [f"{format_duration(max(0.0, now - job.submitted_at))} ago" for job in jobs]
    more = {
        **({"owner": owners, "submitted": submitted} if of_several else {}),
        **({"team": teams} if any(teams) else {}),
        **({"cost so far": [costs[job.id].text if job.id in costs else "" for job in jobs]} if costs else {}),
    }
    columns = left(*_COLUMNS, *more, wrap=True)
    lines = [
        _array_row(job, arrays[job.spec.array or ""], now)
        if job.spec.array in arrays
        else [job_cells(job, now, address)[name] for name in _COLUMNS]
        for job in jobs
    ]
    rows = [[*line, *rest] for line, *rest in zip(lines, *more.values(), strict=True)]
    return Document("Jobs", "jobs", [Section("", [Table(columns, rows)])])


def _is_elsewhere(job: JobRow) -> bool:
    return job.host not in (None, this_host())


def owner_text(job: JobRow) -> str:
    """The owner, with the machine of a job whose queue is elsewhere."""
    return f"{job.owner} on {job.host}" if _is_elsewhere(job) else job.owner


def job_cells(job: JobRow, now: float, address: str) -> dict[str, Cell]:
    """What a line of a list shows of a job, by column; `address` is that of `list_document`."""
    reachable = "" if job.reachable else " (not reached)"
    starts = format_duration(max(0.0, job.starts_at - now)) if job.starts_at else ""
    return {
        "job": str(job.id),
        "run": Styled(job.run_id, href=address.format(job.id)),
        "engine": f"{job.engine} {job.handle or ''}".strip(),
        "state": Styled(f"{job.state}{reachable}{_idle(job, now)}", STATE_STYLES.get(job.state, "")),
        "why": ": ".join(part for part in (job.reason, job.detail) if part) or job.end.cause or "",
        "starts": f"in {starts}" if starts else f"{job.position}." if job.position else "",
        "nodes": _nodes(job) or str(job.spec.max_nodes),
        "prio": str(job.priority),
        "time": _time(job, now),
    }


def _array_row(job: JobRow, states: Mapping[JobState, int], now: float) -> list[Cell]:
    """One line for all jobs of an array: how many are in which state, the live ones first."""
    worst = JobState.FAILED if states.get(JobState.FAILED) else JobState.LOST
    ordered = sorted(states, key=lambda state: (state.is_final, state.waits, state))
    text = ", ".join(f"{states[state]} {state}" for state in ordered)
    return [
        str(job.spec.array),
        f"{job.name}, {sum(states.values())} jobs",
        job.engine,
        Styled(text, STATE_STYLES[worst] if states.get(worst) else ""),
        "",
        "",
        str(job.spec.max_nodes),
        str(job.priority),
        f"since {format_duration(max(0.0, now - job.submitted_at))}",
    ]


def _nodes(job: JobRow | Attempt) -> str:
    return ",".join(place.node for place in job.placement)


def _idle(job: JobRow, now: float) -> str:
    """`, idle for 40m 0s` for a running job that uses nothing; empty for any other."""
    since = None
    if job.state is JobState.RUNNING:
        with suppress(PermissionError):  # another user's
            since = RunDir(Path(job.run_dir)).read_status().idle_since
    return f", idle for {format_duration(now - since)}" if since is not None else ""


def _time(job: JobRow, now: float) -> str:
    """How long the job has waited or run; empty for a job that ended without a start.

    The clocks of two machines may differ, so the start may lie in the future.
    """
    if job.state.waits:
        return f"{format_duration(max(0.0, now - job.submitted_at))} waiting"
    if job.started_at is None:
        return ""
    return format_duration(max(0.0, (job.ended_at or now) - job.started_at))


def detail_document(
    job: JobRow,
    attempts: Sequence[Attempt],
    *,
    price: Money | None,
    code: KeptCode | None,
    failure: Sequence[str],
    now: float,
    lives: Sequence[Life] = (),
) -> Document:
    """Request, state, cause, attempts and lives of one job; `lives` are shown if an attempt has more than one.

    `price` is that of an accelerator hour, if the run file has one. `code` is the copy of its code, if it runs
    in one. `failure` has lines about its first failure.
    """
    kept = {"code": _code(code)} if code else {}
    blocks: list[Block] = [Facts.from_mapping(_facts(job, now) | kept | _held(job, attempts, price, now))]
    if attempts:
        columns = left("attempt", "state", "cause", "nodes", "took", "message", wrap=True)
        rows = []
        for each in attempts:
            took = format_duration(each.ended_at - each.started_at) if each.ended_at else "running"
            about = [str(each.number), str(each.state), each.end.cause or "", _nodes(each)]
            rows.append([*about, took, each.end.message or ""])
        blocks.append(Table(columns, rows))
    if len(lives) > len({life.attempt for life in lives}):
        blocks.append(_lives_table(lives, job.submitted_at))
    if failure:
        blocks.append(Preformatted("\n".join(failure)))
    return Document(f"Job {job.id}", "job", [Section("", blocks)])


def _lives_table(lives: Sequence[Life], submitted_at: float) -> Table:
    """A row per life; `after` is the time since the job was submitted."""
    rows = []
    for number, life in enumerate(lives, start=1):
        after = format_duration(max(0.0, life.began_at - submitted_at))
        step = "" if life.resumed_from_step is None else f"{life.resumed_from_step:,}"
        about = [str(number), str(life.attempt), after, str(life.begin), life.cause or "", life.part or ""]
        rows.append([*about, step, life.message or ""])
    return Table(left("life", "attempt", "after", "began", "cause", "part", "from step", "message", wrap=True), rows)


def _facts(job: JobRow, now: float) -> dict[str, str]:
    facts = {
        "job": f"{job.id}, run {job.run_id} in {job.run_dir}",
        "state": f"{job.state}{'' if job.reachable else ', not reached now'}{_idle(job, now)}",
        "engine": f"{job.engine} {job.handle or ''}".strip() + (f": {job.raw}" if job.raw else ""),
        "requests": request_text(job.spec),
        "submitted": f"{format_duration(now - job.submitted_at)} ago by {job.owner}, priority {job.priority}",
    }
    if _is_elsewhere(job):
        facts["machine"] = f"{job.host}, whose queue starts the job"
    if job.state.waits:
        why = job.reason or "submitted; not evaluated by the queue yet"
        facts["waits"] = f"{why}: {job.detail}" if job.reason and job.detail else why
        if job.position:
            facts["position"] = str(job.position)
        facts["starts"] = f"in {format_duration(max(0.0, job.starts_at - now))}" if job.starts_at else "unknown"
    if job.spec.depends_on:
        facts["after"] = ", ".join(job.spec.depends_on)
    if job.placement:
        facts["runs on"] = _nodes(job)
    end = job.end
    if end.cause:
        facts["cause"] = f"{end.cause}: {(parse_cause(end.cause) or Cause.UNKNOWN).words}"
    return facts | ({"message": end.message} if end.message else {}) | ({"hint": end.hint} if end.hint else {})


def _code(code: KeptCode) -> str:
    """`12 files, 34 kB, sha256 0123456789ab, commit 89abcdef0123 with changes`."""
    commit, dash, _ = (code.commit or "").partition("-")
    origin = f"commit {commit[:12]}{' with changes' if dash else ''}" if commit else "not in a git repository"
    files = f"{code.num_files} file{'s' if code.num_files != 1 else ''}"
    return f"{files}, {format_bytes(code.num_bytes)}, sha256 {code.digest[:12]}, {origin}"


def _held(job: JobRow, attempts: Sequence[Attempt], price: Money | None, now: float) -> dict[str, str]:
    """Resources used so far, with their cost if the run file gives a price."""
    accelerator_hours = core_hours = 0.0
    for one in attempts:
        hours = max(0.0, (one.ended_at or now) - one.started_at) / 3600
        roles = job.spec.num_accelerators if job.spec.roles and one.placement else 0
        accelerator_hours += hours * (roles or job.spec.node.accelerators * len(one.placement))
        core_hours += hours * sum(place.cores for place in one.placement)
    if not accelerator_hours:
        return {"held": f"{core_hours:.3g} core hours"} if core_hours else {}
    cost = f", {accelerator_hours * price.amount:,.2f} {price.currency} at {price.amount:g} an hour" if price else ""
    return {"held": f"{accelerator_hours:.3g} accelerator hours{cost}"}


def facts(row: JobRow | Attempt) -> Mapping[str, object]:
    """All columns, for JSON; those of the end are among them."""
    columns = asdict(row)
    end = columns.pop("end")
    columns["ended_at"] = end.pop("at")
    return {**columns, **end}


def rebuilt_document(rows: Sequence[tuple[str, str | None, str | None]]) -> Document:
    """Runs that a rebuild added to the job store: id, state and note of each."""
    cells = [[run, state or "left out", note or ""] for run, state, note in rows]
    return Document("Job store", "jobs", [Section("", [Table(left("run", "state", "note", wrap=True), cells)])])


def request_text(spec: JobSpec) -> str:
    """`2 node(s) of 8 h100, at most 1h`; with roles, of each by its name."""
    least, most = spec.min_nodes, spec.max_nodes
    number = f"{most}" if least == most else f"{least} to {most}"
    groups = [f"{role.name} {role.nodes} node(s) of {_node_text(role.node)}" for role in spec.roles]
    limit = f", at most {format_duration(spec.time_limit_s)}" if spec.time_limit_s else ", no time limit"
    return "; ".join(groups or [f"{number} node(s) of {_node_text(spec.node)}"]) + limit


def _node_text(node: NodeResources) -> str:
    parts = [f"{node.cores:g} cores"] if node.cores else []
    parts += [f"{node.accelerators} {node.accelerator or 'accelerators'}"] if node.accelerators else []
    parts += [format_bytes(node.memory_bytes)] if node.memory_bytes else []
    return ", ".join(parts) or "anything"
