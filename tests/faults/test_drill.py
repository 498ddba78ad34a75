"""`trainworks drill`: faults from outside, and a table of what became of them."""

from __future__ import annotations

import json
import os
from importlib import import_module

import pytest

from tests.worker.object_store import s3_server
from trainworks.measure.drill.drill_fault import IN_RUNS_OF_THEIR_OWN, DrillFault

TWO_NODES = {"cluster": {"engine": "local", "nodes": 2, "processes_per_node": 1}}
SHORT = TWO_NODES | {"workload__train_for": "240 steps", "checkpoint__every": "20 steps"}
LONG = TWO_NODES | {"workload__train_for": "1200 steps", "checkpoint__every": "20 steps"}
IN_ONE_RUN = [fault for fault in DrillFault if fault not in IN_RUNS_OF_THEIR_OWN]


def drilled(program, *arguments: str) -> dict:
    code, stdout, stderr = program.run("drill", "run.yaml", "--json", *arguments)
    assert code == 0, stdout + stderr
    return json.loads(stdout)


def test_a_soak_of_seconds_trains_every_step_once_and_measures_its_goodput(program, write_run_file):
    often = {"checkpoint__every": "5 steps"}  # two of them precede each fault, on a slow machine, too
    write_run_file(program.folder, **SHORT | often)
    report = drilled(program, "--for", "24s", "--fault", "kill-rank", "--fault", "truncate-shard")
    soak = report["soak"]
    assert report["checks"] == {"steps_missing": 0, "steps_twice": 0}
    assert soak["faults"] == len(report["outcomes"]) == len(soak["usage"]) > 0
    assert all(each["back_s"] > 0 for each in report["outcomes"])
    assert 0 < soak["goodput"]["work_s"] < soak["goodput"]["wall_s"]
    assert 0 < soak["goodput"]["low"] <= soak["goodput"]["high"] < 1
    program.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_a_run_survives_every_fault(program, write_run_file):
    write_run_file(program.folder, **LONG)
    report = drilled(program, *(f"--fault={fault}" for fault in IN_ONE_RUN))
    found = {each["fault"]: each for each in report["outcomes"]}
    assert set(found) == set(IN_ONE_RUN)
    assert not [each for each in found.values() if "ended before" in each["skipped"]]
    assert found["kill-rank"]["decision"] == "restart in place"
    assert found["flip-bit"]["decision"] == "restart in place, roll back one checkpoint"
    assert found["flip-bit"]["steps_lost"] >= 20, "at least from one checkpoint to the next"
    assert {each["loss_difference"] for each in found.values() if not each["skipped"]} == {0.0}
    program.assert_nothing_left()


@pytest.mark.lane("test-all")
def test_a_run_survives_a_full_disk_and_its_copies_arrive_in_a_failing_store_and_are_deleted(program, write_run_file):
    with s3_server():
        program.env |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        write_run_file(program.folder, **SHORT, checkpoint__copies=["s3://bucket/drill"])
        found = drilled(program, "--fault", "fail-store", "--fault", "full-disk")["outcomes"]
        assert {each["fault"] for each in found} == {"fail-store", "full-disk"}
        assert {(each["skipped"], each["problem"], each["loss_difference"]) for each in found} == {("", "", 0.0)}
        assert import_module("s3fs").S3FileSystem().find("bucket/drill") == []
    program.assert_nothing_left()


def test_an_unknown_fault_is_refused(program, write_run_file):
    write_run_file(program.folder, **SHORT)
    code, _, stderr = program.run("drill", "run.yaml", "--fault", "kill-the-cat")
    assert code == 2
    assert "`kill-the-cat` is not a fault" in stderr
