"""The commands that read a run: stdout is data, the exit code says how it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.fakes import LAUNCH_AT, metrics_row, processes, resolved_command
from tests.plan.shapes import calibration, layout, shape, workload
from tests.program import trainworks_program
from trainworks.config.run_file import RunFile
from trainworks.errors import RunFailedError
from trainworks.jobs.state import JobState
from trainworks.plan.run.plan import make_plan
from trainworks.record.events.log import append_event, read_events
from trainworks.record.manifest import Manifest, write_manifest
from trainworks.record.metrics import append_metrics
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import print_document
from trainworks.report.runs.outcome import failure_of


def planned(**sections) -> ResolvedRun:
    """A planned run on one rank."""
    run_file = RunFile.model_validate({"name": "demo", "workload": workload()} | sections)
    plan = make_plan(run_file, shape(), layout(micro_batch=8, accumulate=4), processes(), calibration(), steps=300)
    return resolved_command(run_file=run_file, plan=plan)


@pytest.fixture
def failed(tmp_path: Path) -> RunDir:
    """A run of 20 steps whose rank 1 ran out of memory."""
    run_dir = create_run_dir(tmp_path / "runs", "demo")
    run_dir.write_resolved(planned())
    append_metrics(run_dir.metrics_file, [metrics_row(step, memory_peak_bytes=10**9) for step in range(1, 21)])
    append_event(
        run_dir.events_file,
        {"kind": "failure", "t": LAUNCH_AT, "rank": 1, "node": 0, "cause": "oom", "message": "out of memory"},
    )
    run_dir.write_status(RunStatus(state="FAILED", cause="oom", message="out of memory", exit_code=1, updated_at=1.0))
    run_dir.rank_log(0).write_text("loss 4.0\n")
    run_dir.rank_log(1).write_text("loss 4.0\nMemoryError")
    return run_dir


def read(run_dir: RunDir, *arguments: str) -> str:
    """What a command prints about the runs of a folder."""
    done = trainworks_program(*arguments, folder=run_dir.path.parents[1])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def error_of(run_dir: RunDir, state: JobState) -> RunFailedError:
    """The error of a run that ended in this state."""
    error = failure_of(run_dir, state)
    assert error is not None
    return error


def test_a_plan_reads_like_this(golden, capsys: pytest.CaptureFixture[str]) -> None:
    for sections in ({}, {"checkpoint": {"every": "50 steps"}, "goal": {"deadline": "5s"}}):
        print_document(build_document(planned(**sections)), Console(width=100, no_color=True))
    lines = capsys.readouterr().out.splitlines()
    golden("plan.txt", "".join(f"{line.rstrip()}\n" for line in lines))


def test_a_status_names_damaged_checkpoints_until_they_are_saved_again(failed: RunDir) -> None:
    damage = {"folder": "x", "file": ".metadata", "problem": "missing", "fallback_step": 10}
    append_event(failed.events_file, {"kind": "checkpoint_damaged", "step": 20, **damage})
    assert "checkpoint of step 20 is damaged: .metadata: missing; resuming from step 10" in read(failed, "status")
    append_event(failed.events_file, {"kind": "checkpoint", "step": 20})
    assert "damaged" not in read(failed, "status")


def test_a_status_reads_like_this(failed: RunDir, golden) -> None:
    golden("status.txt", read(failed, "status"))


def test_a_status_as_json_has_the_same_figures(failed: RunDir) -> None:
    status = json.loads(read(failed, "status", "--json"))
    shown = {line.split()[0] for line in read(failed, "status").splitlines()}
    assert {name for name, value in status.items() if value is not None} == shown


def test_runs_are_listed_with_their_state(failed: RunDir) -> None:
    (row,) = json.loads(read(failed, "ls", "--json"))
    assert row == {"run": "demo-1", "state": "FAILED", "step": 20, "loss": 4.0, "updated_at": 1.0, "cause": "oom"}


def test_logs_of_all_ranks_carry_their_rank(failed: RunDir) -> None:
    assert read(failed, "logs") == "[rank-0] loss 4.0\n[rank-1] loss 4.0\n[rank-1] MemoryError\n"


def test_the_log_of_one_rank_is_printed_as_it_is(failed: RunDir) -> None:
    assert read(failed, "logs", "--rank", "1") == "loss 4.0\nMemoryError\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stop",), "run demo-1 is not running: FAILED"),
        (("logs", "--rank", "9"), "there is no log of rank 9 of demo-1"),
    ],
)
def test_what_a_run_cannot_do_is_a_usage_error(failed: RunDir, arguments: tuple[str, ...], message: str) -> None:
    done = trainworks_program(*arguments, folder=failed.path.parents[1])
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_run_that_has_finished_is_not_resumed(failed: RunDir) -> None:
    failed.write_status(RunStatus(state="SUCCEEDED"))
    done = trainworks_program("resume", folder=failed.path.parents[1])
    assert done.returncode == 2
    assert "run demo-1 has finished: there is nothing to resume" in done.stderr
    assert "train it longer with `--train-for`" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "data.source=x"), "`data.source` cannot change in a resumed run"),
        (("--set", "optimizer.lr"), "`optimizer.lr` is not a setting"),
        (("--set", "optimizer.lr=-1"), "`lr` must be greater than 0, got `-1`\n  --> --set workload.optimizer.lr"),
        (("--set", "guard.spikes=skip"), "unknown key `spikes`"),
        (("--set", "guard.window={"), "`{` is not a value of YAML"),
        (("--layout", "tq=2"), "unknown key `tq`"),
        (("--train-for", "40"), "write it like"),
    ],
)
def test_a_change_that_cannot_be_leaves_the_run_as_it_is(
    failed: RunDir, arguments: tuple[str, ...], message: str
) -> None:
    before = failed.resolved_file.read_text()
    done = trainworks_program("resume", *arguments, folder=failed.path.parents[1])
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert failed.resolved_file.read_text() == before
    assert [event["kind"] for event in read_events(failed.events_file)].count("changed") == 0


def test_a_failed_run_is_resumed_from_its_newest_checkpoint_that_is_not_damaged(failed: RunDir) -> None:
    failed.write_status(RunStatus(state="FAILED", cause="killed", message="killed by SIGKILL", updated_at=1.0))
    about = {"attempt": 1, "created_at": 1.0, "samples_consumed": 1, "data_fingerprint": "", "torch": "", "files": {}}
    for step in (10, 20):
        failed.checkpoint(step).mkdir()
        write_manifest(failed.checkpoint(step), Manifest(step=step, layout=layout(), **about))
    assert "the checkpoint of step 20 is complete" in (error_of(failed, JobState.FAILED).hint or "")
    append_event(failed.events_file, {"kind": "checkpoint_damaged", "step": 20})
    assert "the checkpoint of step 10 is complete" in (error_of(failed, JobState.FAILED).hint or "")


def test_a_failed_run_points_at_the_log_of_the_rank_that_failed(failed: RunDir) -> None:
    error = error_of(failed, JobState.FAILED)
    assert error.message == "run demo-1 failed: out of memory"
    assert error.place == f"{failed.rank_log(1)}  rank 1 on node 0"


def test_a_failed_run_ends_with_the_exit_code_of_its_ranks(failed: RunDir) -> None:
    failed.write_status(RunStatus(state="FAILED", exit_code=3))
    assert error_of(failed, JobState.FAILED).exit_code == 3


def test_a_lost_run_has_lost_its_supervisor(failed: RunDir) -> None:
    error = error_of(failed, JobState.LOST)
    assert error.message == "run demo-1 failed: its supervisor is gone"


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.STOPPED])
def test_any_other_end_is_no_failure(failed: RunDir, state: JobState) -> None:
    assert failure_of(failed, state) is None


@pytest.mark.parametrize("target", [["run.yaml"], ["--", "true"]])
def test_a_name_on_the_command_line_is_checked_like_one_in_the_file(tmp_path: Path, target: list[str]) -> None:
    (tmp_path / "run.yaml").write_text("name: demo\nrun: 'true'\n")
    done = trainworks_program("run", "--dry-run", "--name", "../escape", *target, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
