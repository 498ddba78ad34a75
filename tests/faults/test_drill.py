"""`trainworks drill`: faults from outside, and a table of what became of them."""

from __future__ import annotations

import json

import pytest

TWO_NODES = {"cluster": {"engine": "local", "nodes": 2, "processes_per_node": 1}}
SHORT = TWO_NODES | {"workload__train_for": "240 steps", "checkpoint__every": "20 steps"}
LONG = TWO_NODES | {"workload__train_for": "1200 steps", "checkpoint__every": "20 steps"}


def drilled(program, *arguments: str) -> dict:
    code, stdout, stderr = program.run("drill", "run.yaml", "--json", *arguments)
    assert code == 0, stdout + stderr
    return json.loads(stdout)


def test_a_run_survives_a_killed_rank_and_a_damaged_checkpoint(program, write_run_file):
    write_run_file(program.folder, **SHORT)
    report = drilled(program, "--fault", "kill-rank", "--fault", "flip-bit", "--seed", "7")
    found = {each["fault"]: each for each in report["outcomes"]}
    assert found["kill-rank"]["decision"] == "restart in place"
    assert found["flip-bit"]["decision"] == "restart in place, roll back one checkpoint"
    assert found["flip-bit"]["steps_lost"] > found["kill-rank"]["steps_lost"]
    assert [each["loss_difference"] for each in report["outcomes"]] == [0.0, 0.0]
    program.assert_nothing_left()


@pytest.mark.slow
def test_a_run_survives_every_fault(program, write_run_file):
    write_run_file(program.folder, **LONG)
    report = drilled(program)
    assert [each["fault"] for each in report["outcomes"] if not each["skipped"]] != []
    assert {each["loss_difference"] for each in report["outcomes"] if not each["skipped"]} == {0.0}
    program.assert_nothing_left()


def test_an_unknown_fault_is_refused(program, write_run_file):
    write_run_file(program.folder, **SHORT)
    code, _, stderr = program.run("drill", "run.yaml", "--fault", "kill-the-cat")
    assert code == 2
    assert "`kill-the-cat` is not a fault" in stderr
