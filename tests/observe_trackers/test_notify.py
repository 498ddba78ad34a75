"""Messages about a run reach a real webhook once, say what to do, and contain no secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.fakes import LAUNCH_AT, FakeClock
from tests.observe_trackers.conftest import RecordedRun
from trainworks.api.observing.notify import Messenger
from trainworks.api.observing.watched_runs import WatchedRun
from trainworks.config.notify import Notifications, public_name
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem
from trainworks.files import append_text
from trainworks.jobs.state import JobState
from trainworks.observe.following import follow
from trainworks.observe.notify import Outbox, RunLook, RunMessage, apprise_delivery, danger_message, waiting_message
from trainworks.record.events.log import append_event, read_events
from trainworks.report.runs.run_progress import state_of

pytest.importorskip("apprise")
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # apprise imports it


class Webhook:
    """A web server that keeps what is posted to it."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.answer = 200
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.answer == 200:
                    hook.posts.append(json.loads(body) | {"path": self.path})
                self.send_response(hook.answer)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_port}"
        self.patient_url = f"{self.url}?cto=240&rto=240"
        """For a sender in another process: after its usual four seconds it sends a message again."""

    @property
    def titles(self) -> list[str]:
        return [post["title"] for post in self.posts]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    Thread(target=hook.server.serve_forever, daemon=True).start()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()


def messenger(run: RecordedRun, *urls: str, clock: FakeClock | None = None, **options: Any) -> Messenger:
    notify = Notifications.model_validate({"to": urls, **options})
    deliver = apprise_delivery(notify, {"HOOK_TOKEN": "s3cret-token"}, {"hunter22"})
    state = partial(state_of, run.run_dir)
    return Messenger(run.run_dir, notify, deliver, state, clock or FakeClock())


def test_the_end_of_a_run_is_told_once(recorded: RecordedRun, webhook: Webhook) -> None:
    recorded.enter(JobState.SUCCEEDED)
    messenger(recorded, webhook.url).send()
    messenger(recorded, webhook.url).send()
    assert len(webhook.posts) == 1
    assert webhook.titles[0].startswith("demo-1 finished")
    assert "step 20 of 300, loss 1.2" in webhook.posts[0]["message"]
    assert webhook.posts[0]["type"] == "success"


def test_a_failure_says_why_and_what_to_do(recorded: RecordedRun, webhook: Webhook) -> None:
    why = {"cause": "gpu_fault", "message": "XID 79: GPU fell off the bus"}
    append_event(recorded.run_dir.events_file, {"kind": "failure", "rank": 3, "node": 0, **why})
    recorded.enter(JobState.FAILED, **why, hint="replace GPU 3")
    messenger(recorded, webhook.url).send()
    (post,) = webhook.posts
    assert post["title"] == "demo-1 failed"
    assert "XID 79" in post["message"]
    assert "rank-3.log" in post["message"]
    assert "replace GPU 3" in post["message"]
    assert post["type"] == "failure"


def test_a_stopped_run_is_no_failure(recorded: RecordedRun, webhook: Webhook) -> None:
    recorded.enter(JobState.STOPPED)
    messenger(recorded, webhook.url).send()
    assert webhook.titles[0].startswith("demo-1 was stopped")


def test_a_run_whose_supervisor_is_gone_has_failed(recorded: RecordedRun, webhook: Webhook) -> None:
    status = recorded.run_dir.read_status()
    recorded.run_dir.write_status(status.model_copy(update={"supervisor_started_at": 1.0}))
    messenger(recorded, webhook.url).send()
    (post,) = webhook.posts
    assert "its supervisor is gone" in post["message"]


def test_a_recovery_names_the_cause_and_the_step_it_continues_from(recorded: RecordedRun, webhook: Webhook) -> None:
    recorded.enter(JobState.RECOVERING, cause="node_lost", message="node 1 does not answer")
    recorded.train(11, 20)
    messenger(recorded, webhook.url).send()
    (post,) = webhook.posts
    assert post["title"].startswith("demo-1 recovered after")
    assert "a node was lost: node 1 does not answer" in post["message"]
    assert "checkpoint of step 10" in post["message"]


def test_recoveries_in_a_row_are_counted_and_not_sent(recorded: RecordedRun, webhook: Webhook) -> None:
    for _ in range(4):
        recorded.enter(JobState.RECOVERING, cause="node_lost", message="gone")
        recorded.train(11, 20)
    recorded.enter(JobState.FAILED, cause="node_lost", message="no restart is left")
    messenger(recorded, webhook.url).send()
    assert [title.split(" after")[0] for title in webhook.titles] == ["demo-1 recovered", "demo-1 failed"]


def test_only_the_chosen_occasions_are_told(recorded: RecordedRun, webhook: Webhook) -> None:
    recorded.enter(JobState.RECOVERING, cause="node_lost", message="gone")
    recorded.train(11, 20)
    recorded.enter(JobState.SUCCEEDED)
    messenger(recorded, webhook.url, when=["failed"]).send()
    assert webhook.posts == []


def test_a_resumed_run_tells_its_second_end(recorded: RecordedRun, webhook: Webhook) -> None:
    recorded.enter(JobState.FAILED, cause="oom", message="out of memory")
    messenger(recorded, webhook.url).send()
    append_event(
        recorded.run_dir.events_file, {"kind": "submitted", "nodes": 1, "processes_per_node": 1, "restarts": 0}
    )
    recorded.train(21, 30)
    recorded.enter(JobState.SUCCEEDED)
    messenger(recorded, webhook.url).send()
    assert [title.split(" after")[0] for title in webhook.titles] == ["demo-1 failed", "demo-1 finished"]


def test_a_message_waits_for_a_recipient_that_is_down(recorded: RecordedRun, webhook: Webhook) -> None:
    recorded.enter(JobState.SUCCEEDED)
    webhook.answer = 503
    sender = messenger(recorded, webhook.url)
    with pytest.raises(EnvironmentProblem, match=r"`json://\.\.\.` did not take the message"):
        sender.send()
    webhook.answer = 200
    messenger(recorded, webhook.url).send()
    assert len(webhook.posts) == 1


def test_a_recipient_that_is_down_costs_the_others_nothing(recorded: RecordedRun, webhook: Webhook) -> None:
    recorded.enter(JobState.SUCCEEDED)
    sender = messenger(recorded, "json://127.0.0.1:1/closed", webhook.url)
    assert not follow(sender, lambda: recorded.state, FakeClock())
    assert len(webhook.posts) == 1
    assert sender.box.pending[0].to == (0,)


def test_a_token_comes_from_the_environment_and_stays_out_of_messages_and_errors(
    recorded: RecordedRun, webhook: Webhook
) -> None:
    recorded.enter(JobState.FAILED, cause="user_error", message="401 for s3cret-token of hunter22")
    url = webhook.url + "/${HOOK_TOKEN}"
    messenger(recorded, url).send()
    assert webhook.posts[0]["path"] == "/s3cret-token"
    assert "401 for *** of ***" in webhook.posts[0]["message"]
    webhook.answer = 500
    recorded.enter(JobState.SUCCEEDED)
    append_event(
        recorded.run_dir.events_file, {"kind": "submitted", "nodes": 1, "processes_per_node": 1, "restarts": 0}
    )
    with pytest.raises(EnvironmentProblem) as failed:
        messenger(recorded, url).send()
    assert "s3cret" not in failed.value.message
    kept = recorded.run_dir.observer_file("notify").read_text()
    assert "s3cret" not in kept.replace("401 for s3cret-token of hunter22", "")


def look(**changes: Any) -> RunLook:
    known: dict[str, Any] = {
        "run": "demo-1",
        "state": JobState.RUNNING,
        "updated_at": LAUNCH_AT,
        "cause": "",
        "step": 100,
        "num_steps": 300,
        "loss": 2.0,
        "deadline_at": None,
        "eta_s": 7200.0,
        "anchored_eta_s": None,
        "failure": "",
        "num_accelerators": 8,
        "held_s": 3600.0,
    }
    return RunLook(**(known | changes))


def run_file(**sections: Any) -> RunFile:
    return RunFile.model_validate({"name": "demo", "run": "true"} | sections)


def test_a_run_in_danger_says_how_late_it_will_be() -> None:
    message = danger_message(run_file(), look(deadline_at=LAUNCH_AT + 7200), LAUNCH_AT + 3600)
    assert message is not None
    assert message.title == "demo-1 will miss its deadline"
    assert "at the recent pace the last step comes 1h 0m too late" in message.body


@pytest.mark.parametrize(("eta_s", "when"), [(3000.0, "10m 0s before the deadline"), (4200.0, "10m 0s too late")])
def test_it_also_says_when_a_run_as_fast_as_at_first_would_be_done(eta_s: float, when: str) -> None:
    slower = look(deadline_at=LAUNCH_AT + 7200, anchored_eta_s=eta_s)
    message = danger_message(run_file(), slower, LAUNCH_AT + 3600)
    assert message is not None
    assert f"at the pace of its first quiet steps it would come {when}" in message.body


@pytest.mark.parametrize("changes", [{"eta_s": 3599.0}, {"step": 5}, {"eta_s": None}, {"state": JobState.RECOVERING}])
def test_a_run_that_meets_its_deadline_or_has_no_pace_yet_is_in_no_danger(changes: dict[str, Any]) -> None:
    in_time = look(**{"deadline_at": LAUNCH_AT + 7200} | changes)
    assert danger_message(run_file(), in_time, LAUNCH_AT + 3600) is None


def test_a_budget_is_forecast_by_the_price_of_an_accelerator_hour() -> None:
    priced = {"engine": "slurm", "usd_per_accelerator_hour": 2.0}
    message = danger_message(run_file(goal={"budget": "40 USD"}, cluster=priced), look(), LAUNCH_AT + 3600)
    assert message is not None
    assert "it costs 48.0 USD at the recent pace, and the budget is 40.0 USD" in message.body


def test_a_budget_counts_all_launches_and_not_the_time_between_them(runs: Path, webhook: Webhook) -> None:
    priced = {"engine": "local", "usd_per_accelerator_hour": 3600.0}
    run = RecordedRun(runs, goal={"budget": "300 USD"}, cluster=priced)
    launch_at = read_events(run.run_dir.events_file)[0]["t"]
    for kind, seconds in (("stopped", 200), ("submitted", 5000)):
        event = {"t": launch_at + seconds, "kind": kind, "restarts": 0}
        append_text(run.run_dir.events_file, json.dumps(event) + "\n")
    run.train(1, 300)
    sender = messenger(run, webhook.url, clock=FakeClock(launch_at + 5050))
    sender.send()
    assert sender._look().held_s == pytest.approx(250)
    assert webhook.titles == []
    messenger(run, webhook.url, clock=FakeClock(launch_at + 5101)).send()
    assert webhook.titles == ["demo-1 will miss its budget"]


def test_danger_is_told_once_per_launch(runs: Path, webhook: Webhook) -> None:
    run = RecordedRun(runs, goal={"deadline": "10s"})
    run.train(1, 20)
    launch_at = read_events(run.run_dir.events_file)[0]["t"]
    for seconds in (1.0, 2.0):
        messenger(run, webhook.url, clock=FakeClock(launch_at + seconds)).send()
    assert webhook.titles == ["demo-1 will miss its deadline"]


def test_a_resume_does_not_move_the_deadline_of_messages_and_metrics(runs: Path, webhook: Webhook) -> None:
    run = RecordedRun(runs, goal={"deadline": "1h"})
    launch_at = read_events(run.run_dir.events_file)[0]["t"]
    run.train(1, 20)
    resumed = json.dumps({"t": launch_at + 3600, "kind": "submitted", "nodes": 1, "restarts": 0})
    append_text(run.run_dir.events_file, resumed + "\n")
    run.train(21, 40)
    clock = FakeClock(launch_at + 3700)
    messenger(run, webhook.url, clock=clock).send()
    assert webhook.titles == ["demo-1 will miss its deadline"]
    assert WatchedRun(run.run_dir, clock).facts("demo-1").deadline_at == launch_at + 3600


def test_a_long_wait_names_its_reason() -> None:
    message = waiting_message("demo-1", 3700.0, "8 accelerators are free, it needs 16")
    assert message.title == "demo-1 has waited for 1h 1m"
    assert "8 accelerators are free" in message.body


def test_a_message_is_cut_to_what_every_chat_takes() -> None:
    options = Notifications.model_validate({"to": ["json://host"]})
    message = RunMessage(occasion="failed", title="x", body="y" * 9000)
    assert len(Outbox().with_message(message, options, 0.0).pending[0].body) == 1500


def test_a_public_name_hides_everything_but_the_scheme() -> None:
    assert public_name("json://user@host:80/path?token=1") == "json://..."
