"""W&B in its offline mode: real files of the real client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.observe_trackers.conftest import RecordedRun
from trainworks.config.track import Track, WeightsAndBiases
from trainworks.jobs.state import JobState
from trainworks.observe.trackers.feed import Feed
from trainworks.observe.trackers.registry import tracker_opener

pytest.importorskip("wandb")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the client's own


def feed_of(run: RecordedRun) -> Feed:
    options = Track(wandb=WeightsAndBiases(mode="offline"))
    return Feed(
        run.run_dir, "wandb", tracker_opener("wandb", options, Path(run.resolved.working_folder)), lambda: run.state
    )


def history(folder: Path) -> tuple[str, list[dict[str, object]]]:
    """Run id and rows of the history in the file of an offline session, by W&B's own reader."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (file,) = folder.glob("*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    run_id, rows = "", []
    while (data := store.scan_data()) is not None:
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
