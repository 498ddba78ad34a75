"""Callbacks: the user's classes are called at the right steps on every rank, and blamed by file and line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.worker.harness import TinyRun, events, make_run, write_corpus
from trainworks.errors import UsageError
from trainworks.record.events.log import append_event
from trainworks.record.exit_code import ExitCode
from trainworks.record.metrics import STEP_PARTS
from trainworks.worker.callbacks import load_callbacks

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


@pytest.mark.parametrize(
    ("source", "name", "message", "hint"),
    [
        ("class A:\n    on_stepp = print", "A", "no callback has a `on_stepp`", "on_step"),
        ("class A: pass", "A", "`A` has no method of a callback", "on_checkpoint"),
        ("class Watch:\n    on_end = print", "Wach", "has no class `Wach`", "Watch"),
        ("import not_there_at_all", "A", "No module named 'not_there_at_all'", None),
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
