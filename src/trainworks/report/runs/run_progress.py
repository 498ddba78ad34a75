"""Follow a run through its record: the state, the latest steps, and when it will be done."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import cast

from trainworks.agent.current_state import current_state, current_status
from trainworks.config.recovery import Goal
from trainworks.jobs.state import JobState, parse_state
from trainworks.record.events.log import Event, read_events_from, read_lines_from
from trainworks.record.events.training import CheckpointDamagedEvent, CheckpointEvent
from trainworks.record.manifest import describe_damage
from trainworks.record.measured.step_anchor import AnchoredStep, read_anchor
from trainworks.record.metrics import EvaluationResult, MetricsRow, SlowestRank, named_figures
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

_RECENT_STEPS = 50
_RECENT_S = 5.0


@dataclass(slots=True, repr=False)
class Progress:
    """A snapshot. Figures are None until the first step has been recorded."""

    state: JobState
    status: RunStatus
    latest: MetricsRow | None = None
    recent: list[MetricsRow] = field(default_factory=list)
    """The last steps of the current attempt: up to 50, from about the last 5 seconds."""
    new_rows: list[MetricsRow] = field(default_factory=list)
    """Rows of the metrics since the snapshot before."""
    new_events: list[Event] = field(default_factory=list)
    """Events since the snapshot before."""
    evaluation: tuple[int, EvaluationResult] | None = None
    """Step and result of the last evaluation."""
    figures: dict[str, float] = field(default_factory=dict)
    """Last values of what a command says beside its loss, by name."""
    launched_at: float | None = None
    """Time of the first launch."""
    relaunched_at: float | None = None
    """Time of the last launch."""
    slowest: SlowestRank | None = None
    """The rank that the others waited for in the last logging interval of this attempt."""
    anchored: AnchoredStep | None = None
    """The step of the plan, anchored on the first quiet ones."""
    memory_peak_bytes: int | None = None
    checkpoint_step: int | None = None
    """Step of the newest checkpoint that is not known to be damaged."""
    checkpoint_at: float | None = None
    damaged_checkpoints: dict[int, CheckpointDamagedEvent] = field(default_factory=dict)
    """The `checkpoint_damaged` event of every step that was not saved again since."""
    data_done_bytes: int = 0
    is_printed: bool = False
    """Whether the steps were read from what the ranks print."""
    data_total_bytes: int = 0
    """0 unless the data is being prepared now."""

    def __repr__(self) -> str:
        facts = [str(self.state)]
        if self.latest is not None:
            facts.append(f"step {self.latest['step']:,}")
            facts += [f"loss {self.latest['loss']:.4f}"] if "loss" in self.latest else []
        return f"<Progress: {', '.join(facts)}>"

    @property
    def damage(self) -> list[str]:
        """What is wrong with each damaged checkpoint."""
        return [describe_damage(event) for event in self.damaged_checkpoints.values()]

    @property
    def step_s(self) -> float | None:
        """Mean duration of the recent steps."""
        return sum(row["step_s"] for row in self.recent) / len(self.recent) if self.recent else None

    @property
    def tokens_per_s(self) -> float | None:
        """Throughput over the recent steps; None where their tokens are not known."""
        counted = [row for row in self.recent if "tokens" in row]
        seconds = sum(row["step_s"] for row in counted)
        return sum(row["tokens"] for row in counted) / seconds if seconds else None

    def deadline_at(self, goal: Goal) -> float | None:
        """Latest acceptable time of the last step: `goal.deadline` after the first launch, also of a resumed run."""
        return None if self.launched_at is None or goal.deadline is None else self.launched_at + goal.deadline

    def eta_s(self, num_steps: int) -> float | None:
        """Time to the last step at the recent pace."""
        if self.step_s is None or self.latest is None:
            return None
        return max(0, num_steps - self.latest["step"]) * self.step_s

    def anchored_eta_s(self, num_steps: int) -> float | None:
        """Time to the last step by the anchored step, without evaluations and saves; None without one."""
        if self.anchored is None or self.latest is None:
            return None
        return max(0, num_steps - self.latest["step"]) * self.anchored.step_s


class RunFollower:
    """Reads what a run has added to its record since the last look."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._events_offset = self._metrics_offset = 0
        self._recent: deque[MetricsRow] = deque(maxlen=_RECENT_STEPS)
        self._progress = Progress(JobState.CREATED, RunStatus(state="CREATED"))
        self._saved_at: dict[int, float] = {}
        self._anchor_changed_ns = 0

    def look(self, *, since: float = 0.0) -> Progress:
        """The run as it stands now, with the rows and events since the last look. Those before `since`, of an earlier
        launch, are left out.
        """
        progress = self._progress
        # The status first: whatever was written before a final state is then read below.
        progress.status = current_status(self._run_dir.read_status())
        progress.state = parse_state(progress.status.state)
        events, self._events_offset = read_events_from(self._run_dir.events_file, self._events_offset)
        for event in events:
            self._take(event)
        progress.new_events = [event for event in events if event["t"] >= since]
        self._take_rows(since)
        self._take_anchor()
        figures, damaged = dict(progress.figures), dict(progress.damaged_checkpoints)
        return replace(progress, figures=figures, damaged_checkpoints=damaged)  # a later look does not change it

    def _take(self, event: Event) -> None:
        progress = self._progress
        if event["kind"] in ("checkpoint", "checkpoint_damaged"):
            self._take_checkpoint(event)
        elif event["kind"] == "submitted":
            progress.relaunched_at = event["t"]
            progress.launched_at = event["t"] if progress.launched_at is None else progress.launched_at
        elif event["kind"] == "data_progress":
            progress.data_done_bytes, progress.data_total_bytes = event["done_bytes"], event["total_bytes"]
        elif event["kind"] == "metrics_source":
            progress.is_printed = event["source"].startswith("rank-")
        elif event["kind"] == "data_ready":
            progress.data_total_bytes = 0

    def _take_checkpoint(self, event: CheckpointEvent | CheckpointDamagedEvent) -> None:
        step, progress = event["step"], self._progress
        self._saved_at.pop(step, None)
        progress.damaged_checkpoints.pop(step, None)
        if event["kind"] == "checkpoint":
            self._saved_at[step] = event["t"]
        else:
            progress.damaged_checkpoints[step] = event
        progress.checkpoint_step, progress.checkpoint_at = next(reversed(self._saved_at.items()), (None, None))

    def _take_anchor(self) -> None:
        with suppress(OSError):  # no window was full yet, or a record of an older version
            changed_ns = self._run_dir.anchor_file.stat().st_mtime_ns
            if changed_ns != self._anchor_changed_ns:
                anchor = read_anchor(self._run_dir.anchor_file)
                self._anchor_changed_ns, self._progress.anchored = changed_ns, anchor.found if anchor else None

    def _take_rows(self, since: float) -> None:
        lines, self._metrics_offset = read_lines_from(self._run_dir.metrics_file, self._metrics_offset)
        rows = cast(list[MetricsRow], lines)
        self._progress.new_rows = [row for row in rows if row["t"] >= since]
        for row in rows:
            if self._recent and self._recent[-1]["attempt"] != row["attempt"]:
                self._recent.clear()
                self._progress.slowest = None
            if row.get("num_steps") != 0:
                self._recent.append(row)
            self._progress.slowest = row.get("slowest", self._progress.slowest)
            self._progress.figures |= named_figures(row)
            if "evaluation" in row:
                self._progress.evaluation = row["step"], row["evaluation"]
            self._progress.memory_peak_bytes = row.get("memory_peak_bytes", self._progress.memory_peak_bytes)
        if self._recent and self._recent[-1]["t"] >= since:
            latest = self._recent[-1]
            self._progress.latest = latest
            self._progress.recent = [row for row in self._recent if latest["t"] - row["t"] <= _RECENT_S]


def state_of(run_dir: RunDir) -> JobState:
    """State of a run; see `current_state`."""
    return current_state(run_dir.read_status())
