"""The feed sends each part of the record once, whatever happens to the tracker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.fakes import FakeClock
from tests.observe_trackers.conftest import RecordedRun
from trainworks.config.run_file import RunFile
from trainworks.jobs.state import JobState
from trainworks.observe.following import PATIENCE_S, SettledState, follow, secrets_of
from trainworks.observe.trackers.feed import Feed, parameters_of
from trainworks.observe.trackers.tracker import MetricPoint, TrackedRun, Tracker
from trainworks.record.events.log import append_event
from trainworks.record.manifest import Manifest, write_manifest
from trainworks.record.usage import NodeUsage


class MemoryTracker(Tracker):
    """Keeps what it gets in a list that outlives it, as a server does, and can be down."""

    name = "memory"

    def __init__(self, run: TrackedRun, state: Mapping[str, str | int], server: Server) -> None:
        super().__init__(run, state)
        self._server = server

    @property
    def place(self) -> str:
        return "memory"

    def open(self) -> None:
        self._server.call("open", self.state.get("id"))
        self.state = {"id": self._run.key}

    def send_parameters(self, parameters: Mapping[str, str | float], tags: Mapping[str, str]) -> None:
        self._server.call("parameters", dict(parameters), dict(tags))

    def send_points(self, points: Sequence[MetricPoint], *, repeated: bool) -> None:
        self._server.call("points", [point.step for point in points], repeated)
        self._server.values += [point.values for point in points]

    def send_artifact(self, path: Path, name: str) -> bool:
        self._server.call("artifact", name, path.read_text())
        return True

    def register(self, checkpoint: Path, step: int, lineage: Mapping[str, str]) -> bool:
        self._server.call("register", step, dict(lineage))
        return True

    def finish(self, state: str, t: float) -> None:
        self._server.call("finish", state)

    def close(self) -> None:
        self._server.call("close")


class Server:
    """What all trackers of a run have sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.values: list[Mapping[str, float]] = []
        self.is_down = False

    def call(self, *call: object) -> None:
        if self.is_down:
            raise ConnectionError("connection refused")
        self.calls.append(call)

    def got(self, kind: str) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.calls if call[0] == kind]

    @property
    def steps(self) -> list[int]:
        return [step for points in self.got("points") for step in points[0]]  # type: ignore[attr-defined]


@pytest.fixture
def server() -> Server:
    return Server()


def feed_of(run: RecordedRun, server: Server) -> Feed:
    return Feed(run.run_dir, "memory", lambda tracked, state: MemoryTracker(tracked, state, server), lambda: run.state)


def test_every_step_is_sent_once_over_several_processes(recorded: RecordedRun, server: Server) -> None:
    feed_of(recorded, server).send()
    recorded.train(21, 30)
    feed_of(recorded, server).send()
    assert server.steps == list(range(1, 31))


def test_a_line_that_is_still_written_is_left_for_the_next_look(recorded: RecordedRun, server: Server) -> None:
    feed = feed_of(recorded, server)
    text = recorded.run_dir.metrics_file.read_text()
    recorded.run_dir.metrics_file.write_text(text[:-10])
    feed.send()
    recorded.run_dir.metrics_file.write_text(text)
    feed.send()
    assert server.steps == list(range(1, 21))


def test_a_long_record_is_sent_in_parts(recorded: RecordedRun, server: Server) -> None:
    recorded.train(21, 3000)
    feed_of(recorded, server).send()
    assert server.steps == list(range(1, 3001))
    assert len(server.got("points")) > 2


def test_what_could_not_be_sent_is_sent_later(recorded: RecordedRun, server: Server) -> None:
    feed = feed_of(recorded, server)
    feed.send()
    server.is_down = True
    recorded.train(21, 30)
    with pytest.raises(ConnectionError):
        feed.send()
    server.is_down = False
    feed_of(recorded, server).send()
    assert server.steps == list(range(1, 31))


def test_a_tracker_that_is_down_is_tried_again_and_then_left(recorded: RecordedRun, server: Server) -> None:
    clock = FakeClock()
    server.is_down = True
    clock.after(200, lambda: recorded.enter(JobState.SUCCEEDED))
    feed = feed_of(recorded, server)
    assert not follow(feed, lambda: recorded.state, clock)
    assert feed.sent.problem == "ConnectionError: connection refused"
    assert clock.now() - FakeClock().now() >= 200 + PATIENCE_S


def test_the_end_is_sent_when_the_tracker_comes_back(recorded: RecordedRun, server: Server) -> None:
    clock = FakeClock()
    server.is_down = True
    clock.after(100, lambda: recorded.enter(JobState.SUCCEEDED))
    clock.after(120, lambda: setattr(server, "is_down", False))
    assert follow(feed_of(recorded, server), lambda: recorded.state, clock)
    assert server.got("finish") == [("SUCCEEDED",)]


def test_a_failure_that_a_queue_takes_back_at_once_is_not_reported(recorded: RecordedRun, server: Server) -> None:
    clock = FakeClock()
    recorded.enter(JobState.FAILED, cause="node_lost", message="gone")
    clock.after(1, lambda: recorded.enter(JobState.QUEUED))
    state = SettledState(lambda: recorded.state, clock)
    feed = Feed(recorded.run_dir, "memory", lambda tracked, known: MemoryTracker(tracked, known, server), state)
    assert follow(feed, state, clock)
    assert server.got("finish") == []


def test_a_failure_that_lasts_is_reported(recorded: RecordedRun, server: Server) -> None:
    clock = FakeClock()
    recorded.enter(JobState.FAILED, cause="node_lost", message="gone")
    state = SettledState(lambda: recorded.state, clock)
    feed = Feed(recorded.run_dir, "memory", lambda tracked, known: MemoryTracker(tracked, known, server), state)
    assert follow(feed, state, clock)
    assert server.got("finish") == [("FAILED",)]


def test_a_run_that_waits_again_stays_open(recorded: RecordedRun, server: Server) -> None:
    recorded.enter(JobState.QUEUED)
    assert follow(feed_of(recorded, server), lambda: recorded.state, FakeClock())
    assert server.got("finish") == []


def test_a_resumed_run_continues_the_run_of_its_tracker(recorded: RecordedRun, server: Server) -> None:
    recorded.enter(JobState.FAILED)
    feed_of(recorded, server).send()
    recorded.train(16, 25)
    recorded.enter(JobState.SUCCEEDED)
    feed_of(recorded, server).send()
    (first,), (second,) = server.got("open")
    assert first is None
    assert second is not None
    assert server.got("points")[-1] == (list(range(16, 26)), True)
    assert server.got("finish") == [("FAILED",), ("SUCCEEDED",)]


def test_a_run_that_was_sent_is_not_sent_again(recorded: RecordedRun, server: Server) -> None:
    recorded.enter(JobState.SUCCEEDED)
    feed_of(recorded, server).send()
    before = len(server.calls)
    feed_of(recorded, server).send()
    assert len(server.calls) == before


def test_parameters_are_sent_once_and_tags_when_they_change(recorded: RecordedRun, server: Server) -> None:
    feed_of(recorded, server).send()
    recorded.train(21, 30)
    feed_of(recorded, server).send()
    (first, tags), (second, later) = server.got("parameters")
    assert first["model.layers"] == 4  # type: ignore[index]
    assert second == {}
    assert tags | {"trainworks.attempts": "2"} == later  # type: ignore[operator]


def test_the_lineage_has_data_commit_and_program(recorded: RecordedRun, server: Server) -> None:
    feed_of(recorded, server).send()
    ((_, tags),) = server.got("parameters")
    assert {"trainworks.data": "f00d", "trainworks.commit": "0123abcd"}.items() <= tags.items()  # type: ignore[attr-defined]


def test_variables_and_recipients_of_messages_stay_here(runs: Path, server: Server) -> None:
    run = RecordedRun(runs, kind="command", envs={"HF_TOKEN": "hunter22"}, notify=["json://host/secret"])
    append_event(run.run_dir.events_file, {"kind": "failure", "detail": "401 for token hunter22"})
    run.enter(JobState.SUCCEEDED)
    feed_of(run, server).send()
    sent = json.dumps([call for call in server.calls if call[0] != "open"], default=str)
    assert "hunter22" not in sent
    assert "host/secret" not in sent
    assert "HF_TOKEN" in sent
    assert not any("envs" in name for name in parameters_of(run.resolved))


def test_secrets_are_found_whether_inherited_or_written_by_their_name_or_as_such() -> None:
    envs = {"HF_TOKEN": None, "DB_PASSWORD": "hunter22", "SALT": "pepper", "MODE": "public"}
    cluster = {"engine": "skypilot", "skypilot": {"secrets": ["SALT"]}}
    run_file = RunFile.model_validate({"name": "demo", "run": "true", "envs": envs, "cluster": cluster})
    assert secrets_of(run_file, {"HF_TOKEN": "swordfish", "HOME": "/root"}) == {"swordfish", "hunter22", "pepper"}


def test_the_newest_checkpoint_of_a_run_that_succeeded_is_registered(recorded: RecordedRun, server: Server) -> None:
    for step in (10, 20):
        folder = recorded.run_dir.checkpoint(step)
        folder.mkdir(parents=True)
        write_manifest(folder, manifest(step))
    recorded.enter(JobState.SUCCEEDED)
    feed_of(recorded, server).send()
    ((step, lineage),) = server.got("register")
    assert step == 20
    assert lineage["trainworks.data"] == "f00d"  # type: ignore[index]


def test_a_run_that_failed_registers_no_model(recorded: RecordedRun, server: Server) -> None:
    folder = recorded.run_dir.checkpoint(10)
    folder.mkdir(parents=True)
    write_manifest(folder, manifest(10))
    recorded.enter(JobState.FAILED)
    feed_of(recorded, server).send()
    assert server.got("register") == []


def test_the_use_of_nodes_is_sent_while_the_run_lives(recorded: RecordedRun, server: Server) -> None:
    feed = feed_of(recorded, server)
    recorded.run_dir.write_usage(0, usage(monotonic_s=10.0, cpu_s=5.0))
    feed.send()
    recorded.run_dir.write_usage(0, usage(monotonic_s=20.0, cpu_s=20.0))
    feed.send()
    assert server.values[-1]["system/node-0/cpu_cores"] == pytest.approx(1.5)
    assert "system/node-0/accelerator_share" not in server.values[-1]


def usage(*, monotonic_s: float, cpu_s: float) -> NodeUsage:
    return NodeUsage(
        agent_pid=1,
        monotonic_s=monotonic_s,
        cpu_s=cpu_s,
        io_bytes=0,
        network_bytes=None,
        disk_waits=0,
        accelerator_s=None,
    )


def manifest(step: int) -> Manifest:
    from tests.plan.shapes import layout

    return Manifest(
        step=step,
        attempt=1,
        created_at=0.0,
        layout=layout(),
        samples_consumed=0,
        data_fingerprint="f00d",
        torch="2.13.0",
        files={},
    )
