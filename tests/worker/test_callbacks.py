"""Callbacks: the user's classes are called at the right steps on every rank, and blamed by file and line."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.worker.harness import TinyRun, events, make_run, write_corpus
from trainworks.errors import UsageError
from trainworks.record.events.log import append_event
from trainworks.record.exit_code import ExitCode
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.metrics import STEP_PARTS
from trainworks.report.runs.summary import build_report
from trainworks.worker.callbacks import Callbacks, load_callbacks
from trainworks.worker.checkpoint.state import CallbackStates, loadable

WATCH = """
import json
import time
from pathlib import Path

class Watch:
    def __init__(self):
        self.rows = []

    def on_step(self, state):
        self.rows.append(["step", state.step, round(state.loss.item(), 9), state.lr])
        time.sleep(0.2 * (state.rank == 1))

    def on_eval(self, state, result):
        self.rows.append(["eval", state.step, result["loss"]])

    def on_checkpoint(self, state, folder):
        assert (folder / "manifest.json").is_file()
        self.rows.append(["checkpoint", folder.name])

    def on_end(self, state):
        self.rows.append(["end", state.step, sum(p.numel() for part in state.parts for p in part.parameters())])
        Path(__file__).with_name(f"rows-{state.rank}-of-{state.world_size}.json").write_text(json.dumps(self.rows))
"""
ASKS = """
import json
import time
from pathlib import Path

class Asks:
    def on_step(self, state):
        asked = json.loads(Path(__file__).with_name("asked.json").read_text())
        if state.rank == 1 and str(state.step) in asked:
            getattr(state, asked[str(state.step)])()

    def on_end(self, state):
        while Path(__file__).with_name("hold").exists():
            time.sleep(0.01)
"""
COUNTS = """
import json
from pathlib import Path

import torch

class Counts:
    def __init__(self):
        self.steps, self.losses = [], torch.zeros(())

    def on_step(self, state):
        self.steps.append(state.step)
        self.losses += state.loss.detach()

    def on_end(self, state):
        counted = [self.steps, self.losses.item()]
        Path(__file__).with_name(f"counted-{state.rank}.json").write_text(json.dumps(counted))

    def state_dict(self):
        return {"steps": self.steps, "losses": self.losses}

    def load_state_dict(self, state):
        self.steps, self.losses = state["steps"], state["losses"]
"""
FAILS = """
class Fails:
    def on_step(self, state):
        if state.step == 2:
            raise ValueError("no value at step 2")
"""


@pytest.fixture
def with_callback(tmp_path):
    """A function: a tiny run that calls a class of this source."""
    corpus = write_corpus(tmp_path / "corpus")

    def make(source: str, name: str, **changes: object) -> TinyRun:
        (tmp_path / "runs" / "mine").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / "mine" / "watching.py").write_text(source)
        changes = {"workload__callbacks": [f"mine.watching:{name}"], "workload__train_for": "6 steps"} | changes
        run = make_run(tmp_path / "runs", corpus, tmp_path / "cache", **changes)
        append_event(run.run_dir.events_file, {"kind": "data_ready", "folder": str(run.data_folder)})
        return run

    return make


def test_every_rank_calls_back_and_the_record_has_the_time_of_the_slowest(with_callback, tmp_path):
    changes = {"workload__eval": {"split": 0.3, "every": "3 steps", "steps": 1}, "checkpoint__every": "4 steps"}
    run = with_callback(WATCH, "Watch", **changes, layout={"dp_shard": 2})
    assert run.train() == [0, 0]
    seen = [json.loads((tmp_path / "runs" / "mine" / f"rows-{rank}-of-2.json").read_text()) for rank in (0, 1)]
    losses = [[row[2] for row in rows if row[0] == "step"] for rows in seen]
    assert [sum(each) / 2 for each in zip(*losses, strict=True)] == pytest.approx([row["loss"] for row in run.rows()])
    evaluated = [(row["step"], row["evaluation"]["loss"]) for row in run.rows() if "evaluation" in row]
    for rows in seen:
        assert [row[1] for row in rows if row[0] == "step"] == [1, 2, 3, 4, 5, 6]
        assert [tuple(row[1:]) for row in rows if row[0] == "eval"] == evaluated
        assert rows[-1][:2] == ["end", 6]
    saved = [run.run_dir.checkpoint(each["step"]).name for each in events(run, "checkpoint")]
    assert [row[1] for row in seen[0] if row[0] == "checkpoint"] == saved
    assert len(saved) >= 2
    assert not [row for row in seen[1] if row[0] == "checkpoint"]  # rank 0 completes them
    assert all(row["callback_s"] >= 0.2 / 2 for row in run.rows()), "the mean over the ranks"
    slowest = [row["callbacks"] for row in run.rows() if "callbacks" in row]
    assert {(each["rank"], each["longest"]) for each in slowest} == {(1, 0)}
    assert all(each["total_s"] == each["longest_s"] >= 0.2 for each in slowest)
    assert all(
        sum(row[part] for part in STEP_PARTS if part in row) == pytest.approx(row["step_s"]) for row in run.rows()
    )
    (finished,) = events(run, "finished")
    assert len(finished["callbacks_s"]) == 1


def test_an_exception_ends_the_run_with_its_file_and_line(with_callback):
    run = with_callback(FAILS, "Fails")
    assert ExitCode.USER_ERROR in run.train()
    failure = next(event for event in events(run, "failure") if event["cause"] == "user_error")
    assert failure["message"].endswith("watching.py:5: ValueError: no value at step 2")


@pytest.fixture
def asking(with_callback, tmp_path):
    """A function: a run of 24 steps on two ranks, of which rank 1 asks for this after these steps."""

    def make(changes: dict[str, object] | None = None, **asked: str) -> TinyRun:
        evaluation = {"split": 0.3, "every": "24 steps", "steps": 1}
        of_run = {"workload__train_for": "24 steps", "workload__eval": evaluation, "layout": {"dp_shard": 2}}
        run = with_callback(ASKS, "Asks", **of_run | (changes or {}))
        ask(tmp_path, **asked)
        return run

    return make


def ask(folder, **asked):
    steps = {step.removeprefix("step"): what for step, what in asked.items()}
    (folder / "runs" / "mine" / "asked.json").write_text(json.dumps(steps))


def test_one_rank_asks_and_all_ranks_save_evaluate_and_stop(asking):
    run = asking(step2="save", step12="evaluate", step15="stop")
    log_every = run.run_dir.read_resolved().plan.log_every_steps
    agreed = {step: -(-step // log_every) * log_every for step in (2, 12, 15)}
    assert run.train() == [0, 0]
    assert [event["step"] for event in events(run, "callback_stop")] == [agreed[15]]
    saved = {event["step"] for event in events(run, "checkpoint")}
    assert {agreed[2] + 1, agreed[15]} <= saved
    assert [row["step"] for row in run.rows() if "evaluation" in row] == [agreed[12] + 1]
    assert run.rows()[-1]["step"] == agreed[15] < 24
    (end,) = events(run, "finished")
    assert (end["step"], end["asked"]) == (agreed[15], True)
    report = build_report(run.run_dir, time.time())
    assert report.training is not None and report.training.ended_by_callback


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_an_agreed_stop_survives_a_kill_and_needs_no_second_wish(asking, tmp_path, has_checkpoint):
    run = asking(step15="stop")
    (hold := tmp_path / "runs" / "mine" / "hold").touch()
    stop = lambda: [event["step"] for event in events(run, "callback_stop")]  # noqa: E731
    assert run.train(until=lambda: bool(stop()) and run.run_dir.checkpoint(stop()[0]) in complete(run)) != [0, 0]
    assert not events(run, "finished")
    hold.unlink()
    ask(tmp_path)  # nothing
    before = run.curve()
    if not has_checkpoint:
        shutil.rmtree(run.run_dir.checkpoint(stop()[0]))
    assert run.train() == [0, 0]
    (end,) = events(run, "finished")
    assert end["step"] == run.rows()[-1]["step"] == stop()[0] < 24
    assert run.curve() == before


def test_a_longer_run_goes_on_behind_the_stop_of_a_callback(asking, tmp_path):
    run = asking(step3="stop")
    assert run.train() == [0, 0]
    append_event(run.run_dir.events_file, {"kind": "changed", "changes": []})
    ask(tmp_path)
    assert run.train() == [0, 0]
    assert [event["step"] for event in events(run, "finished")][-1] == 24


def test_an_evaluation_without_held_out_data_is_refused_in_the_line_that_asks(with_callback, tmp_path):
    run = with_callback(ASKS, "Asks", layout={"dp_shard": 2})
    ask(tmp_path, step1="evaluate")
    assert ExitCode.USER_ERROR in run.train()
    failure = next(event for event in events(run, "failure") if event["cause"] == "user_error")
    assert failure["message"].endswith("watching.py:10: the run has no held-out data to evaluate on")


def counted(folder, rank):
    return json.loads((folder / "runs" / "mine" / f"counted-{rank}.json").read_text())


def test_a_state_of_a_callback_is_that_of_the_checkpoint(with_callback, tmp_path):
    changes = {"checkpoint__every": "4 steps", "workload__train_for": "12 steps", "layout": {"dp_shard": 2}}
    assert with_callback(COUNTS, "Counts", **changes).train() == [0, 0]
    undisturbed = [counted(tmp_path, rank) for rank in (0, 1)]
    assert undisturbed[0][0] == list(range(1, 13)) and undisturbed[0] != undisturbed[1]
    run = with_callback(COUNTS, "Counts", **changes)
    assert run.train(until=run.a_checkpoint_is_complete, before=10) != [0, 0]
    assert run.train() == [0, 0]
    assert events(run, "attempt")[-1]["resumed_from_step"] in (4, 8)
    assert [counted(tmp_path, rank) for rank in (0, 1)] == undisturbed


def test_a_wish_before_a_checkpoint_survives_the_failure_after_it(asking):
    run = asking(step4="evaluate", changes={"checkpoint__every": "4 steps", "workload__train_for": "8 steps"})
    assert run.train(until=run.a_checkpoint_is_complete, before=5) != [0, 0]
    assert run.train() == [0, 0]
    assert events(run, "attempt")[-1]["resumed_from_step"] == 4
    assert [row["step"] for row in run.rows() if "evaluation" in row] == [6, 8]


def test_other_ranks_take_the_callbacks_of_the_first_one_and_old_checkpoints_have_none() -> None:
    class Counter:
        def __init__(self, count: int) -> None:
            self.count = count

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    saved = CallbackStates(Callbacks([Counter(7)]), rank=0).state_dict()
    counter, state = Counter(0), dict[str, object](random=1)
    state["callbacks"] = CallbackStates(callbacks := Callbacks([counter]), rank=3)
    assert loadable(state, ["random.rank-0"], same_ranks=True) == {"random": 1}
    (name, taken), *others = loadable(state, ["callbacks.rank-0"], same_ranks=False).items()
    assert (name, others) == ("callbacks", [])
    taken.load_state_dict(saved)
    callbacks.restore()
    assert counter.count == 7


def complete(run):
    return [folder for _, folder in complete_checkpoints(run.run_dir)]


def test_a_checkpoint_before_an_exception_is_valid_and_resumes_as_if_nothing_had_happened(with_callback, tmp_path):
    changes = {"checkpoint__every": "2 steps", "layout": {"dp_shard": 2}, "workload__train_for": "8 steps"}
    fails = FAILS.replace("state.step == 2", "state.rank == 1 and state.step == 5")
    run = with_callback(fails, "Fails", **changes)
    assert ExitCode.USER_ERROR in run.train()
    assert max(manifest.step for manifest, _ in complete_checkpoints(run.run_dir)) in (2, 4)
    (tmp_path / "runs" / "mine" / "watching.py").write_text(fails.replace("raise ValueError", "pass;(lambda x: 0)"))
    assert run.train() == [0, 0]
    assert {each["resumed_from_step"] for each in events(run, "attempt")[1:]} <= {2, 4}
    undisturbed = with_callback(FAILS.replace("state.step == 2", "False"), "Fails", **changes)
    assert undisturbed.train() == [0, 0]
    assert run.curve() == undisturbed.curve()


@pytest.mark.parametrize(
    ("source", "name", "message", "hint"),
    [
        ("class A:\n    on_stepp = print", "A", "no callback has a `on_stepp`", "on_step"),
        ("class A: pass", "A", "`A` has no method of a callback", "on_checkpoint"),
        ("class Watch:\n    on_end = print", "Wach", "has no class `Wach`", "Watch"),
        ("import not_there_at_all", "A", "No module named 'not_there_at_all'", "pip install"),
        ("class A:\n    on_end = state_dict = print", "A", "has a state and no `load_state_dict`", "load_state_dict"),
        ("1 / 0", "A", "ZeroDivisionError: division by zero", None),
        ("class A(:", "A", "SyntaxError", None),
    ],
)
def test_a_broken_callback_is_refused_at_the_start(tmp_path, monkeypatch, source, name, message, hint):
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"broken_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source)
    with pytest.raises(UsageError, match=message) as refused:
        load_callbacks([f"{module}:{name}"], tmp_path)
    assert refused.value.place is not None and f"{module}.py:1" in refused.value.place
    assert hint is None or hint in str(refused.value.hint)


def test_a_module_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError, match="module `nowhere` not found"):
        load_callbacks(["nowhere.at.all:A"], tmp_path)
