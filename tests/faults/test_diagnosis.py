"""`why` names what hurts a real run, and a run that becomes slower than its first quiet steps is named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.conftest import SHORT
from tests.faults.launcher import Program, finished, interrupt, wait_until
from tests.observe.prometheus import values
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.record.measured.step_anchor import StepAnchor, read_anchor

SLEEP_S = 0.2
"""What `straggle` sleeps before each batch."""


def test_a_rank_whose_data_is_late_is_named(program: Program, write_run_file: Callable[..., str]) -> None:
    program.hurt("straggle:1:0")
    code, _, stderr = program.run("run", write_run_file(program.folder, **SHORT))
    assert code == 0, stderr
    code, stdout, stderr = program.ask("why", "--json")
    assert code == 0, stderr
    causes = {cause["name"]: cause for cause in json.loads(stdout)["causes"]}
    assert causes["straggler"]["title"] == "Rank 1 is slower than the others"
    assert "disk" in causes["straggler"]["action"]
    assert causes["straggler"]["lost_s"] > 0.5 * 60 * SLEEP_S


def anchor_of(program: Program) -> StepAnchor | None:
    return read_anchor(program.run_dir.anchor_file)


def start_until_anchored(program: Program, run_file: str) -> tuple[subprocess.Popen[str], StepAnchor]:
    """A run that trains, and its anchor; on a busy machine the first windows may not be quiet."""

    def is_anchored() -> bool:
        anchor = anchor_of(program)
        return anchor is not None and anchor.found is not None

    running = program.start("run", run_file)
    wait_until(lambda: is_anchored() or running.poll() is not None)
    anchor = anchor_of(program)
    assert anchor is not None and anchor.found is not None, anchor
    return running, anchor


def answer(program: Program, *arguments: str) -> Any:
    code, stdout, stderr = program.ask(*arguments, "--json")
    assert code == 0, stderr
    return json.loads(stdout)


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_an_anchor_survives_a_kill_and_shows_that_a_run_becomes_slower(
    program: Program, write_run_file: Callable[..., str]
) -> None:
    program.hurt("slow:all:66")
    start_until_anchored(program, write_run_file(program.folder, **SHORT | {"workload__train_for": "90 steps"}))
    program.kill_all()  # SIGKILL to the supervisor, the agents and the ranks
    before = program.run_dir.anchor_file.read_bytes()
    code, _, stderr = program.run("resume")
    assert code == 0, stderr
    assert program.run_dir.anchor_file.read_bytes() == before
    compared = answer(program, "report")["comparison"]
    anchored, planned_s = compared["anchor"]["anchored"], compared["step_time"]["planned"]
    assert 20 <= anchored["step"] <= 66
    assert 0.36 < anchored["low_s"] < anchored["step_s"] < anchored["high_s"] < 0.8
    assert planned_s == compared["anchor"]["planned_s"] == program.run_dir.read_resolved().plan.step_time.total_s  # type: ignore[union-attr]
    assert compared["step_time"]["relative"] > 1, "the verdict on the plan is that of its first prediction"
    assert compared["anchor"]["slow_share"] >= 0.3
    assert compared["findings"][0].startswith("step time was ")
    assert any("took longer than the interval" in each for each in compared["findings"])
    diagnosis = answer(program, "why")
    assert (diagnosis["planned_step_s"], diagnosis["anchor"]["found"]) == (planned_s, anchored)
    text = NodeMetrics(["runs"], program.folder / "runs").text()
    found = {name.partition("{")[0]: value for name, value in values(text).items()}
    assert found["trainworks_run_training_step_seconds"] > found["trainworks_run_anchored_step_high_seconds"]
    assert found["trainworks_run_planned_step_seconds"] == pytest.approx(planned_s)


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_another_layout_is_anchored_anew(program: Program, write_run_file: Callable[..., str]) -> None:
    program.hurt("slow:all:1000")
    running, before = start_until_anchored(program, write_run_file(program.folder, **SHORT))
    interrupt(running)
    finished(running)
    code, _, stderr = program.run("resume", "--nproc", "1")
    assert code == 0, stderr
    after, plan = anchor_of(program), program.run_dir.read_resolved().plan
    assert before.found is not None and after is not None and plan is not None
    assert before.layout != after.layout == plan.layout
    assert after.planned_s == plan.step_time.total_s
    assert after.reason if after.found is None else after.found.first_step > before.found.step


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_a_run_whose_steps_jitter_says_why_it_has_no_anchor(
    program: Program, write_run_file: Callable[..., str]
) -> None:
    program.hurt("jitter:all:0")
    code, _, stderr = program.run("run", write_run_file(program.folder, **SHORT))
    assert code == 0, stderr
    anchor = anchor_of(program)
    assert anchor is not None and anchor.found is None
    assert "without a quiet one: at best steps " in anchor.reason
    assert f"not anchored: {anchor.reason}" in " ".join(answer(program, "report")["comparison"]["findings"])
