"""Bad input and bad luck: one clear error, the right exit code, no traceback, no process left."""

from __future__ import annotations

import pytest

from trainworks.host.network import listen
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.run_dir import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]


def assert_one_clear_error(stderr: str) -> None:
    assert "Traceback" not in stderr
    assert stderr.count("error: ") == 1


def test_a_missing_run_file(program):
    code, _, stderr = program.ask("run", "nowhere.yaml")
    assert (code, stderr) == (2, "error: run file `nowhere.yaml` not found\n")


@pytest.mark.lane("test")
def test_a_wrong_unit_is_named_with_its_line(program, write_run_file):
    code, _, stderr = program.run("run", write_run_file(program.folder, goal={"deadline": "3 parsecs"}))
    assert code == 2
    assert "unknown unit `parsecs`" in stderr and "goal.deadline" in stderr
    assert_one_clear_error(stderr)


def test_a_layout_that_does_not_multiply_to_the_world_size(program, write_run_file):
    code, _, stderr = program.ask("run", write_run_file(program.folder, layout={"dp_shard": 4}))
    assert code == 2
    assert "= 4, world size is 2" in stderr and "hint: set `dp_shard: 2`" in stderr
    assert_one_clear_error(stderr)


def test_a_layout_that_cannot_cut_the_model(program, write_run_file):
    code, _, stderr = program.ask("run", write_run_file(program.folder, layout={"dp_shard": 2, "ep": 2}))
    assert code == 2
    assert "ep (2) spreads experts, and this model has none" in stderr
    assert_one_clear_error(stderr)


def test_a_model_that_does_not_fit(program, write_run_file):
    model = {"layers": 100, "hidden": 8192, "heads": 64}
    code, _, stderr = program.ask("run", write_run_file(program.folder, workload__model=model))
    assert code == 3
    assert "the model does not fit" in stderr
    assert_one_clear_error(stderr)


def test_data_that_does_not_exist(program, write_run_file):
    data = {"source": "nothing/*.txt", "sequence_length": 32}
    code, _, stderr = program.run("run", write_run_file(program.folder, workload__data=data))
    assert code == 2
    assert "data source `nothing/*.txt` names no files" in stderr
    assert_one_clear_error(stderr)
    program.assert_nothing_left()


def test_a_port_in_use(program, write_run_file):
    with listen() as taken:
        port = taken.getsockname()[1]
        cluster = {"engine": "local", "processes_per_node": 2, "rendezvous_port": port}
        code, _, stderr = program.run("run", write_run_file(program.folder, cluster=cluster))
    assert code == 3
    assert f"cannot listen on 127.0.0.1:{port}" in stderr
    assert_one_clear_error(stderr)
    program.assert_nothing_left()


@pytest.mark.root
@pytest.mark.lane("test")
def test_a_disk_that_fills_up_keeps_the_last_checkpoint(program, write_run_file, small_disk):
    disk = small_disk("4m")
    model = {"layers": 2, "hidden": 64, "heads": 4}
    changes = {"workload__model": model, "checkpoint": {"every": "20 steps", "keep": 9, "to": str(disk)}}
    code, _, stderr = program.run("run", write_run_file(program.folder, **changes))
    run_dir = next(disk.iterdir())
    assert code == 3
    assert "no space left on device" in stderr and "hint:" in stderr
    assert_one_clear_error(stderr)
    assert complete_checkpoints(RunDir(run_dir))
    program.assert_nothing_left()


@pytest.mark.root
def test_a_disk_that_is_too_small_for_one_checkpoint_is_refused(program, write_run_file, small_disk):
    disk = small_disk("1m")
    changes = {"workload__model": {"layers": 4, "hidden": 128, "heads": 4}, "checkpoint": {"to": str(disk)}}
    code, _, stderr = program.run("run", write_run_file(program.folder, **changes))
    assert code == 3
    assert "one checkpoint takes" in stderr
    assert list(disk.iterdir()) == []


@pytest.mark.root
@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_full_disk_gets_no_run(program, small_disk, verb):
    disk = small_disk("1m")
    (disk / "full").write_bytes(bytes(2**20))
    code, _, stderr = program.run(verb, "--runs", str(disk / "runs"), "--", "true")
    assert code == 3
    assert "no space left on device" in stderr.lower()
    assert_one_clear_error(stderr)
    assert list((disk / "runs").iterdir()) == []


def test_resuming_a_finished_run_is_refused(program, write_run_file):
    program.run("run", write_run_file(program.folder, workload__train_for="3 steps"))
    code, _, stderr = program.run("resume")
    hint = "train it longer with `--train-for`, which counts from its first step"
    assert (code, stderr) == (2, f"error: run tiny-1 has finished: there is nothing to resume\n\nhint: {hint}\n")


def test_an_unknown_run(program):
    code, _, stderr = program.ask("report", "nobody")
    assert code == 2
    assert "no run `nobody`" in stderr
