"""W&B in its offline mode: real files of the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.observe_trackers.conftest import RecordedRun
from trainworks.api.observing.track import tracker_opener
from trainworks.config.track import Track, WeightsAndBiases
from trainworks.jobs.state import JobState
from trainworks.observe.trackers.feed import Feed

pytest.importorskip("wandb")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the client's own
_BLOCK_BYTES = 32 * 1024


def feed_of(run: RecordedRun) -> Feed:
    options = Track(wandb=WeightsAndBiases(mode="offline"))
    return Feed(
        run.run_dir, "wandb", tracker_opener("wandb", options, Path(run.resolved.working_folder)), lambda: run.state
    )


def records(data: bytes) -> Iterator[bytes]:
    """Records of a file in LevelDB's log format, after W&B's header of seven bytes."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            yield whole
            whole = b""


def history(folder: Path) -> tuple[str, list[dict[str, object]]]:
    """Run id and rows of the history in the file of an offline session, by W&B's own messages."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("*.wandb")
    run_id, rows = "", []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("run"):
            run_id = record.run.run_id
        elif record.HasField("history"):
            rows.append(
                {(item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
            )
    return run_id, rows


def test_every_step_is_in_the_file_and_a_resumed_run_has_the_same_id(recorded: RecordedRun) -> None:
    recorded.enter(JobState.FAILED)
    first = feed_of(recorded)
    first.send()
    recorded.train(16, 25)
    recorded.enter(JobState.SUCCEEDED)
    second = feed_of(recorded)
    second.send()
    (one, before), (two, after) = (history(Path(each.sent.place)) for each in (first, second))
    assert one == two != ""
    assert [row["step"] for row in before] == list(range(1, 21))
    assert [row["step"] for row in after] == list(range(16, 26))
    assert after[0]["train/loss"] == pytest.approx(4.0 / 16 + 2)
