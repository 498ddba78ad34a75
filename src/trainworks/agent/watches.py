"""What a supervisor watches while a job runs: whether it uses what it holds, and which rank holds it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from trainworks.config.engines import Idle
from trainworks.errors import EnvironmentProblem
from trainworks.files import size_of
from trainworks.host.clock import Clock
from trainworks.record.dev_environment import DevUse
from trainworks.record.events.job import BusyEvent, IdleEvent, StragglerEvent
from trainworks.record.events.log import read_lines_from
from trainworks.record.measured.step_anchor import AnchorSearch, StepAnchor, read_anchor, write_anchor
from trainworks.record.metrics import MetricsRow
from trainworks.record.resolved import Plan
from trainworks.record.run_dir import RunDir
from trainworks.record.usage import NodeUsage
from trainworks.recover.stragglers import INTERVALS, Straggler, find_straggler
from trainworks.units import format_duration

_LATE_S = 10.0
"""An agent may be so late on a busy machine, for a stretch of any length; else three times that length."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """A node that uses nothing, from one sample to the newest."""

    first: NodeUsage
    last: NodeUsage

    @property
    def seconds(self) -> float:
        """How long."""
        return self.last.monotonic_s - self.first.monotonic_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """How long a job has used nothing, and what little that was, on the node that used most."""

    seconds: float
    accelerator: float | None
    """Share of the time in which the busiest accelerator computed; None without accelerators."""
    cpu_cores: float
    io_bytes_per_s: float


def is_quiet(earlier: NodeUsage, later: NodeUsage, limits: Idle, *, on_accelerators: bool) -> bool:
    """Whether nothing was used between two samples."""
    seconds = later.monotonic_s - earlier.monotonic_s
    longest_s = limits.sample_every_s + max(3 * limits.sample_every_s, _LATE_S)
    watched = earlier.agent_pid == later.agent_pid and 0 < seconds <= longest_s
    if not watched or later.disk_waits != earlier.disk_waits:
        return False
    rates = [(_rate(earlier.cpu_s, later.cpu_s, seconds), limits.cpu)]
    rates.append((_rate(earlier.io_bytes, later.io_bytes, seconds), limits.io))
    rates.append((_rate(earlier.network_bytes, later.network_bytes, seconds), limits.network))
    if on_accelerators:
        rates.append((_rate(earlier.accelerator_s, later.accelerator_s, seconds), limits.accelerator))
    return all(rate is not None and rate <= limit for rate, limit in rates)


def quiet_after(before: Quiet | None, sample: NodeUsage, limits: Idle, *, on_accelerators: bool) -> Quiet:
    """How a node stands after one more sample; the same sample again changes nothing."""
    if before is None:
        return Quiet(sample, sample)
    if sample == before.last:
        return before
    goes_on = is_quiet(before.last, sample, limits, on_accelerators=on_accelerators)
    return Quiet(before.first if goes_on else sample, sample)


def idleness(nodes: Sequence[Quiet | None], *, at_most_s: float) -> Idleness:
    """How a job stands, of whose nodes those without a report are None.

    It is idle for `at_most_s`, the time since the job runs or made its last step.
    """
    known = [node for node in nodes if node is not None]
    seconds = min([node.seconds for node in known] + [at_most_s]) if len(known) == len(nodes) else 0.0
    used = [_mean(node) for node in known if node.seconds > 0]
    accelerators = [share for share, _, _ in used if share is not None]
    return Idleness(
        seconds=max(0.0, seconds),
        accelerator=max(accelerators, default=None),
        cpu_cores=max((cores for _, cores, _ in used), default=0.0),
        io_bytes_per_s=max((rate for _, _, rate in used), default=0.0),
    )


def _mean(node: Quiet) -> tuple[float | None, float, float]:
    first, last, seconds = node.first, node.last, node.seconds
    share = _rate(first.accelerator_s, last.accelerator_s, seconds)
    return share, (last.cpu_s - first.cpu_s) / seconds, _rate(first.io_bytes, last.io_bytes, seconds) or 0.0


def _rate(earlier: float | None, later: float | None, seconds: float) -> float | None:
    return None if earlier is None or later is None else (later - earlier) / seconds


_SILENT_FOR_S = 60.0
"""A node that writes nothing new for four samples and this long is unknown: shared files come late."""


class IdleWatch:
    """Reads what the nodes write, once per sample."""

    def __init__(self, run_dir: RunDir, limits: Idle, *, nodes: int, on_accelerators: bool, clock: Clock) -> None:
        self._run_dir = run_dir
        self._limits = limits
        self._on_accelerators = on_accelerators
        self._clock = clock
        self._nodes: list[Quiet | None] = [None] * nodes
        self._heard_at = [0.0] * nodes
        self._next_look = 0.0
        self._began_at: float | None = None
        self._metrics_bytes = 0
        self._dev_use = DevUse()
        self._called_idle: Idleness | None = None

    def forget(self) -> None:
        """The job does not run now; its use does not count."""
        self._nodes = [None] * len(self._nodes)
        self._began_at = self._called_idle = None

    def look(self) -> str | None:
        """Follow a job that runs; why it has to be stopped, once that is so."""
        now = self._clock.now()
        if self._began_at is not None and now < self._next_look:
            return None
        self._next_look = now + self._limits.sample_every_s
        self._take(now)
        assert self._began_at is not None
        found = idleness(self._known(now), at_most_s=now - self._began_at)
        self._say(found, now)
        if self._limits.stop_after == "never" or found.seconds < self._limits.stop_after:
            return None
        return f"it used nothing of what it holds for {format_duration(found.seconds)}"

    def _take(self, now: float) -> None:
        """The newest samples, and whether there was a step or a session, which their programs write down."""
        for node, before in enumerate(self._nodes):
            sample = self._run_dir.read_usage(node)
            if sample is not None and (before is None or sample != before.last):
                self._nodes[node] = quiet_after(before, sample, self._limits, on_accelerators=self._on_accelerators)
                self._heard_at[node] = now
        size = size_of(self._run_dir.metrics_file)
        dev_use = self._run_dir.read_dev_use()
        is_used = size != self._metrics_bytes or dev_use != self._dev_use or dev_use.open > 0
        if self._began_at is None or is_used:
            self._began_at, self._metrics_bytes, self._dev_use = now, size, dev_use

    def _known(self, now: float) -> list[Quiet | None]:
        silent_s = 4 * self._limits.sample_every_s + _SILENT_FOR_S
        return [
            node if now - heard <= silent_s else None for node, heard in zip(self._nodes, self._heard_at, strict=True)
        ]

    def _say(self, found: Idleness, now: float) -> None:
        """In events and status, when it begins and when it ends."""
        if found.seconds >= self._limits.first_s and self._called_idle is None:
            since = now - found.seconds
            self._run_dir.note(
                IdleEvent(
                    kind="idle",
                    since=since,
                    accelerator=found.accelerator,
                    cpu_cores=found.cpu_cores,
                    io_bytes_per_s=found.io_bytes_per_s,
                )
            )
            self._write_down(since)
        elif found.seconds < self._limits.first_s and self._called_idle is not None:
            self._run_dir.note(BusyEvent(kind="busy", idle_for_s=self._called_idle.seconds))
            self._write_down(None)
        self._called_idle = found if found.seconds >= self._limits.first_s else None

    def _write_down(self, since: float | None) -> None:
        self._run_dir.write_status(self._run_dir.read_status().model_copy(update={"idle_since": since}))


_LOOK_EVERY_S = 1.0


class StragglerWatch:
    """Names each straggler of an attempt once, with its node."""

    def __init__(self, run_dir: RunDir, ranks_per_node: int, clock: Clock) -> None:
        self._run_dir = run_dir
        self._ranks_per_node = ranks_per_node
        self._clock = clock
        self._read = size_of(run_dir.metrics_file)
        self._rows: deque[Any] = deque(maxlen=INTERVALS)
        """Last rows of the last intervals of this attempt."""
        self._attempt = 0
        self._named: set[int] = set()
        self._next_look = 0.0

    def look(self, anchored_s: float | None = None) -> Straggler | None:
        """A straggler that was not named yet; once a second there is something to do.

        Its cost is a share of the anchored step, where there is one.
        """
        if self._clock.now() < self._next_look:
            return None
        self._next_look = self._clock.now() + _LOOK_EVERY_S
        rows, self._read = read_lines_from(self._run_dir.metrics_file, self._read)
        for row in rows:
            if row["attempt"] != self._attempt:
                self._attempt = row["attempt"]
                self._rows.clear()
                self._named.clear()
            if "slowest" in row:
                self._rows.append(row)
        found = find_straggler(self._rows, self._ranks_per_node, anchored_s)
        if found is None or found.rank in self._named:
            return None
        self._named.add(found.rank)
        self._run_dir.note(
            StragglerEvent(
                kind="straggler",
                rank=found.rank,
                node=found.node,
                extra_s=found.extra_s,
                step_s=found.step_s,
                message=found.message,
            )
        )
        return found


class AnchorWatch:
    """Anchors the plan of a run on the first quiet steps of the run, once per layout.

    The record gets anchor.json, complete or not at all. A run that cannot write it goes without.
    """

    def __init__(self, run_dir: RunDir, clock: Clock) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._read = size_of(run_dir.metrics_file)
        self._search: AnchorSearch | None = None
        self._next_look = 0.0
        self._said = 0
        """Windows that were not quiet, when the record last said so."""
        self.step_s: float | None = None
        """The anchored step of the present layout; None without one."""

    def look(self, plan: Plan, *, is_last: bool = False) -> None:
        """Read the new steps of a run on the layout of `plan`; once a second there is something to do.

        The last look at a layout always records why an anchored step is missing.
        """
        if not is_last and self._clock.now() < self._next_look:
            return
        self._next_look = self._clock.now() + _LOOK_EVERY_S
        kept = read_anchor(self._run_dir.anchor_file)
        holds = kept is not None and kept.layout == plan.layout
        self.step_s = kept.found.step_s if holds and kept is not None and kept.found is not None else None
        if self.step_s is None:
            self._take(plan)
            self._write_down(plan, is_due=is_last or (kept is not None and not holds))
        else:  # a restart on the same layout keeps it, and what was read before another layout begins does not count
            self._read, self._search = size_of(self._run_dir.metrics_file), None

    def _take(self, plan: Plan) -> None:
        rows, self._read = read_lines_from(self._run_dir.metrics_file, self._read)
        for row in (each for each in cast(list[MetricsRow], rows) if each.get("num_steps", 1)):
            if self._search is None or self._search.attempt != row["attempt"]:
                self._said = 0
                every = plan.evaluation.every_steps if plan.evaluation else None
                self._search = AnchorSearch(row["attempt"], every)
            self._search.add(row)

    def _write_down(self, plan: Plan, *, is_due: bool) -> None:
        """The anchor, or why there is none: when that is due, and whenever the number of windows has doubled."""
        found, count = (self._search.found, self._search.num_windows) if self._search else (None, 0)
        if found is None and not is_due and count < max(1, 2 * self._said):
            return
        self._said = count
        reason = "" if found else self._search.reason if self._search else "the ranks have recorded no step"
        anchor = StepAnchor(layout=plan.layout, planned_s=plan.step_time.total_s, found=found, reason=reason)
        with suppress(OSError, EnvironmentProblem):
            write_anchor(self._run_dir.anchor_file, anchor)
            self.step_s = found.step_s if found else None
