"""Event files are read by TensorBoard's own readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.observe_trackers.conftest import RecordedRun
from trainworks.api.observing.track import track as track_run
from trainworks.api.observing.track import tracker_opener
from trainworks.config.track import TensorBoard, Track
from trainworks.jobs.state import JobState
from trainworks.observe.trackers.event_file import crc32c
from trainworks.observe.trackers.feed import Feed

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def feed_of(run: RecordedRun, options: Track | None = None) -> Feed:
    opener = tracker_opener("tensorboard", options or Track(), Path(run.resolved.working_folder))
    return Feed(run.run_dir, "tensorboard", opener, lambda: run.state)


def curve(run: RecordedRun, tag: str = "train/loss") -> list[tuple[int, float]]:
    """Steps and values as TensorBoard shows them."""
    events = accumulator.EventAccumulator(str(run.run_dir.path / "observe" / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def event_file(run: RecordedRun) -> Path:
    (file,) = (run.run_dir.path / "observe" / "tensorboard").glob("*tfevents*")
    return file


def test_the_checksum_is_that_of_the_standard() -> None:
    zeros, ones = crc32c(bytes(32)), crc32c(b"\xff" * 32)  # RFC 3720, appendix B.4
    assert (zeros, ones) == (0x8A9136AA, 0x62A8AB43)


def test_tensorboard_reads_every_step(recorded: RecordedRun) -> None:
    feed_of(recorded).send()
    assert curve(recorded) == [(step, pytest.approx(4.0 / step + 1)) for step in range(1, 21)]


def test_parameters_and_lineage_are_shown(recorded: RecordedRun) -> None:
    feed_of(recorded).send()
    events = accumulator.EventAccumulator(str(recorded.run_dir.path / "observe" / "tensorboard"))
    events.Reload()
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    assert hparams["global_batch"].number_value == 32
    (text,) = events.Tensors("run")
    assert b"| trainworks.data | f00d |" in text.tensor_proto.string_val[0]


def test_steps_that_a_restart_repeats_replace_the_lost_ones(recorded: RecordedRun) -> None:
    feed_of(recorded).send()
    recorded.train(11, 25)
    feed_of(recorded).send()
    steps = curve(recorded)
    assert [step for step, _ in steps] == list(range(1, 26))
    assert dict(steps)[11] == pytest.approx(4.0 / 11 + 2)


def test_a_restart_within_one_look_is_seen(recorded: RecordedRun) -> None:
    recorded.train(11, 25)
    feed_of(recorded).send()
    assert [step for step, _ in curve(recorded)] == list(range(1, 26))


def test_what_a_killed_process_wrote_beyond_its_cursor_is_written_once(recorded: RecordedRun) -> None:
    feed_of(recorded).send()
    with event_file(recorded).open("ab") as file:
        file.write(b"half a record")
    recorded.train(21, 30)
    feed_of(recorded).send()
    assert [step for step, _ in curve(recorded)] == list(range(1, 31))


def test_a_resumed_run_continues_its_file(recorded: RecordedRun) -> None:
    recorded.enter(JobState.FAILED, cause="node_lost", message="gone")
    feed_of(recorded).send()
    recorded.train(21, 30)
    recorded.enter(JobState.SUCCEEDED)
    feed_of(recorded).send()
    assert event_file(recorded).stat().st_size > 0
    assert [step for step, _ in curve(recorded)] == list(range(1, 31))


def test_a_loss_that_is_not_a_number_is_kept(recorded: RecordedRun) -> None:
    recorded.train(21, 21, grad_norm=float("nan"))
    feed_of(recorded).send()
    assert str(curve(recorded, "train/grad_norm")[-1][1]) == "nan"


def test_a_folder_of_the_run_file_holds_the_files_of_all_runs(recorded: RecordedRun, runs: Path) -> None:
    feed = feed_of(recorded, Track(tensorboard=TensorBoard(folder="boards")))
    feed.send()
    assert feed.sent.place == str(runs / "boards" / recorded.run_dir.run_id)


def test_two_folders_get_the_whole_run_each(runs: Path) -> None:
    run = RecordedRun(runs, track={"tensorboard": {"folder": "first"}})
    run.train(1, 20)
    for folder in ("first", "second", "first"):
        track = Track.model_validate({"tensorboard": {"folder": folder}})
        run_file = run.resolved.run_file.model_copy(update={"track": track})
        run.run_dir.write_resolved(run.resolved.model_copy(update={"run_file": run_file}))
        (content,) = track_run(str(run.run_dir.path)).trackers
        assert Path(content.place).parent.name == folder
        assert content.num_points == 20
    assert content.new_points == 0
