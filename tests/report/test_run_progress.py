"""Following a run through its record."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.fakes import LAUNCH_AT, metrics_row
from trainworks.agent.current_state import current_state
from trainworks.host import process
from trainworks.jobs.state import JobState
from trainworks.record.events.log import append_event
from trainworks.record.metrics import append_metrics
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.report.live import CellView, LineView
from trainworks.report.runs.run_progress import RunFollower


@pytest.fixture
def follower(run_dir: RunDir) -> RunFollower:
    """Follows an empty run."""
    return RunFollower(run_dir)


def supervised(state: str, *, ago_s: float = 0.0) -> RunStatus:
    """A status by this process, or by one that had its number before."""
    pid, started_at = process.identity()
    return RunStatus(state=state, supervisor_pid=pid, supervisor_started_at=started_at - ago_s)


@pytest.mark.parametrize("state", ["STARTING", "RUNNING", "RECOVERING"])
def test_a_run_whose_supervisor_is_gone_is_lost(state: str) -> None:
    assert current_state(supervised(state)) == state
    assert current_state(supervised(state, ago_s=60)) is JobState.LOST


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_a_final_state_needs_no_supervisor(state: str) -> None:
    assert current_state(supervised(state, ago_s=60)) == state


def test_a_state_of_another_version_is_unknown() -> None:
    assert current_state(RunStatus(state="COMPLETING")) is JobState.UNKNOWN


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PREEMPTED])
def test_a_run_in_a_queue_is_not_lost_however_long_it_waits(state: JobState) -> None:
    assert current_state(RunStatus(state=state, updated_at=LAUNCH_AT)) is state


def test_a_run_whose_supervisor_never_came_is_lost() -> None:
    assert current_state(RunStatus(state="CREATED", updated_at=LAUNCH_AT)) is JobState.LOST


def test_an_empty_run_was_created_and_has_no_figures(follower: RunFollower) -> None:
    progress = follower.look()
    assert progress.state is JobState.CREATED
    assert (progress.latest, progress.step_s, progress.tokens_per_s, progress.eta_s(300)) == (None, None, None, None)


def test_an_event_is_new_once(run_dir: RunDir, follower: RunFollower) -> None:
    append_event(run_dir.events_file, {"kind": "stopped", "step": 7})
    assert [len(follower.look().new_events) for _ in range(2)] == [1, 0]


def test_a_row_is_new_once(run_dir: RunDir, follower: RunFollower) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(1), metrics_row(2)])
    first = follower.look()
    append_metrics(run_dir.metrics_file, [metrics_row(3)])
    second, third = follower.look(), follower.look()
    assert [[row["step"] for row in each.new_rows] for each in (first, second, third)] == [[1, 2], [3], []]


def test_a_snapshot_stays_as_it_was_taken(run_dir: RunDir, follower: RunFollower) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(1, figures={"reward": 1.0})])
    first = follower.look()
    append_metrics(run_dir.metrics_file, [metrics_row(2, figures={"reward": 2.0})])
    follower.look()
    assert first.latest is not None
    assert (first.latest["step"], first.figures) == (1, {"reward": 1.0})
    assert repr(first).startswith("<Progress: CREATED, step 1, loss ")


def test_a_cell_shows_the_last_figures_and_events_at_one_place(run_dir: RunDir, follower: RunFollower) -> None:
    places: list[str] = []

    class Place:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            places[-1] = data["text/plain"]

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Place:
        places.append(data["text/plain"])
        return Place()

    with CellView(display, "lm-1", 300) as view:
        assert places == ["lm-1"]
        append_event(run_dir.events_file, {"kind": "attempt", "attempt": 2, "resumed_from_step": 7})
        append_metrics(run_dir.metrics_file, [metrics_row(step) for step in range(8, 10)])
        view.show(follower.look(), LAUNCH_AT)
        view.show(follower.look(), LAUNCH_AT + 0.1)
    (shown,) = places
    first, last = shown.splitlines()
    assert first == "attempt 2: resumed from step 7"
    assert last.startswith("lm-1 CREATED | step 9/300 | loss ")


def test_speed_and_time_to_go_follow_from_the_recent_steps(run_dir: RunDir, follower: RunFollower) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(step) for step in range(1, 21)])
    progress = follower.look()
    assert progress.step_s == pytest.approx(0.1)
    assert progress.tokens_per_s == pytest.approx(10_000)
    assert progress.eta_s(300) == pytest.approx(28)


def test_a_run_that_is_done_has_no_time_to_go(run_dir: RunDir, follower: RunFollower) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(301)])
    assert follower.look().eta_s(300) == 0


def test_recent_are_the_last_50_steps_or_5_seconds(run_dir: RunDir, follower: RunFollower) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(step) for step in range(1, 101)])
    assert [row["step"] for row in follower.look().recent] == list(range(51, 101))
    append_metrics(run_dir.metrics_file, [metrics_row(101, t=LAUNCH_AT + 14.9)])
    assert [row["step"] for row in follower.look().recent] == [99, 100, 101]


def test_a_new_attempt_forgets_the_pace_of_the_old(run_dir: RunDir, follower: RunFollower) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(step) for step in range(1, 11)])
    append_metrics(run_dir.metrics_file, [metrics_row(8, attempt=2, step_s=0.5)])
    assert follower.look().step_s == 0.5


def test_looking_twice_is_looking_once(run_dir: RunDir, follower: RunFollower) -> None:
    for step in range(1, 11):
        append_metrics(run_dir.metrics_file, [metrics_row(step)])
        followed = follower.look()
    assert followed.recent == RunFollower(run_dir).look().recent


def test_the_largest_memory_is_kept_from_interval_to_interval(run_dir: RunDir, follower: RunFollower) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(1, memory_peak_bytes=10**9), metrics_row(2)])
    assert follower.look().memory_peak_bytes == 10**9


def test_the_newest_checkpoint_is_known(run_dir: RunDir, follower: RunFollower) -> None:
    for step in (50, 100):
        append_event(run_dir.events_file, {"kind": "checkpoint", "step": step, "t": LAUNCH_AT + step})
    assert (follower.look().checkpoint_step, follower.look().checkpoint_at) == (100, LAUNCH_AT + 100)


def test_the_newest_checkpoint_is_one_that_is_not_damaged(run_dir: RunDir, follower: RunFollower) -> None:
    for step in (50, 100):
        append_event(run_dir.events_file, {"kind": "checkpoint", "step": step, "t": LAUNCH_AT + step})
    append_event(run_dir.events_file, {"kind": "checkpoint_damaged", "step": 100})
    assert (follower.look().checkpoint_step, list(follower.look().damaged_checkpoints)) == (50, [100])
    append_event(run_dir.events_file, {"kind": "checkpoint", "step": 100, "t": LAUNCH_AT + 200})
    assert (follower.look().checkpoint_step, follower.look().damaged_checkpoints) == (100, {})


def test_tokenizing_is_shown_until_the_data_is_ready(run_dir: RunDir, follower: RunFollower) -> None:
    append_event(run_dir.events_file, {"kind": "data_progress", "done_bytes": 0, "total_bytes": 40_000_000})
    console = Console(file=io.StringIO(), width=120)
    view = LineView(console, 300)
    view.show(follower.look(), LAUNCH_AT)
    append_event(run_dir.events_file, {"kind": "data_progress", "done_bytes": 10_000_000, "total_bytes": 40_000_000})
    for at in (LAUNCH_AT, LAUNCH_AT + 1.0):
        view.show(follower.look(), at)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "tokenizing 40.0 MB of text; later runs find its tokens in the cache",
        "tokenized 10.0 MB of 40.0 MB",
    ]
    append_event(
        run_dir.events_file,
        {"kind": "data_ready", "folder": "x", "num_tokens": 1, "fingerprint": "", "seconds": 1, "cached": False},
    )
    assert follower.look().data_total_bytes == 0
