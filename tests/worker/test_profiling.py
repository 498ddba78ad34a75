"""A window of steps is recorded on the ranks that were named, without changing what is computed."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.worker.harness import events
from trainworks.record.profile import ProfileRequest, read_summaries, trace_file, write_request


def profiled(run, first=10, last=12):
    return run.run_dir.profile(first, last)


@pytest.mark.parametrize("layout", [{"dp_replicate": 2}, {"dp_shard": 2}], ids=["replicas", "shards"])
def test_the_steps_of_the_run_file_leave_a_trace_that_opens(new_run, layout):
    run = new_run(profile="10:12", layout=layout)
    assert run.train() == [0, 0]
    trace = json.loads(gzip.decompress(trace_file(profiled(run), 0).read_bytes()))
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert sum(name == "Optimizer.step#AdamW.step" for name in names) == 3
    assert not run.run_dir.profile_request_file.exists()
    assert [event["folder"] for event in events(run, "profile")] == ["profiles/steps-10-12"]


def test_where_the_time_went_adds_up_to_the_window(new_run):
    run = new_run(profile="10:12")
    run.train()
    (summary,) = read_summaries(profiled(run))
    assert sum(summary.shares().values()) == pytest.approx(1)
    assert min(summary.shares().values()) > 0
    assert any(operator.name == "aten::mm" for operator in summary.operators)


def test_a_request_that_waits_for_the_run_is_taken_before_the_first_step(new_run):
    run = new_run()
    write_request(run.run_dir, ProfileRequest(first_step=1, last_step=2, ranks=(0, 1)))
    assert run.train() == [0, 0]
    assert [summary.rank for summary in read_summaries(profiled(run, 1, 2))] == [0, 1]


def test_a_request_is_taken_while_the_run_goes_on(new_run):
    run = new_run(workload__train_for="300 steps", checkpoint__every="100 steps")

    def ask():
        if run.step_is_recorded(3)():
            write_request(run.run_dir, ProfileRequest(first_step=280, last_step=281, ranks=(1,)))
            return True
        return False

    run.train(until=ask, kill=0, before=270)
    assert [summary.rank for summary in read_summaries(profiled(run, 280, 281))] == [1]


def test_steps_that_are_past_are_refused_with_the_reason(new_run):
    run = new_run()
    run.train(until=run.a_checkpoint_is_complete)
    write_request(run.run_dir, ProfileRequest(first_step=2, last_step=3))
    assert run.train() == [0, 0]
    assert events(run, "profile_refused")[0]["message"].startswith("step 2 is past: the ranks are at step ")
    assert not run.run_dir.profile_request_file.exists()


def test_a_window_that_the_run_does_not_finish_is_refused(new_run):
    run = new_run()
    write_request(run.run_dir, ProfileRequest(first_step=1, last_step=20))
    run.run_dir.stop_file.touch()
    assert run.train() == [0, 0]
    assert events(run, "profile_refused")[0]["message"] == "the run ended before its last step"


def test_recording_does_not_change_the_curve(new_run, undisturbed):
    recorded = new_run(profile="5:9")
    assert recorded.train() == [0, 0]
    assert recorded.curve() == undisturbed().curve()


def test_a_window_beyond_the_last_step_is_refused(new_run):
    run = new_run()
    write_request(run.run_dir, ProfileRequest(first_step=20, last_step=30))
    assert run.train() == [0, 0]
    assert events(run, "profile_refused")[0]["message"] == "step 30 is beyond the last step, 24"
