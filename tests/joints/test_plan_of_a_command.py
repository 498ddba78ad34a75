"""What a command trains, from one key of its run file to its plan, its record and everything that compares the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trainworks
from tests.fakes import metrics_row, read_rows
from tests.observe_why.conftest import calibration
from trainworks.api.launching import workload_plan
from trainworks.api.launching.prepared_run import prepare
from trainworks.api.observing.why import diagnosis_of
from trainworks.api.resuming.changes import ResumeChanges, changed_run
from trainworks.api.run_request import RunRequest
from trainworks.config.load import parse_run_file
from trainworks.config.run_file import RunFile
from trainworks.errors import LayoutError, RunFileError, TrainworksError, UsageError
from trainworks.jobs.state import JobState
from trainworks.measure.planning import Planning
from trainworks.observe.metrics.runs import RunSnapshot, run_samples
from trainworks.observe.trackers.feed import parameters_of
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.run.processes import training_processes
from trainworks.record.calibration import CalibrationRequest
from trainworks.record.measured.finished_run import finished_run, software_of
from trainworks.record.metrics import append_metrics
from trainworks.record.processes import Processes
from trainworks.record.resolved import ResolvedRun

TRAINS: dict[str, Any] = {
    "task": "causal-lm",
    "model": {"layers": 4, "hidden": 256, "heads": 8},
    "data": {"sequence_length": 128, "vocabulary": 2048},
    "precision": "fp32",
    "global_batch": 8,
    "train_for": "40 steps",
}
SCRIPT = 'for step in $(seq 1 40); do echo "step $step loss 2.5"; done'
UNLEARNED = Planning(learning=False)


def command(**changes: Any) -> RunFile:
    return RunFile.model_validate({"name": "script", "run": SCRIPT, "trains": TRAINS} | changes)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[CalibrationRequest]:
    """What is measured of this machine, whose rates are round."""
    asked: list[CalibrationRequest] = []

    def calibrate(request: CalibrationRequest, *_: object, **__: object) -> object:
        asked.append(request)
        return calibration(request.num_ranks)

    monkeypatch.setattr(workload_plan, "calibrate", calibrate)
    return asked


def resolved(run_file: RunFile, folder: Path) -> ResolvedRun:
    return prepare(RunRequest(run_file), folder=folder, queued=False, planning=UNLEARNED).resolved


def test_a_record_keeps_what_a_command_trains() -> None:
    assert RunFile.model_validate_json(command().model_dump_json()).trains == command().trains


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": None, "workload": TRAINS}, "`trains` needs `run`"),
        ({"trains": TRAINS | {"seed": 2}}, "`trains.seed` has no effect"),
        ({"trains": TRAINS | {"train_for": "2 epochs"}}, "does not know how long an epoch is"),
        (
            {"trains": {"task": "module", "model": {"module": "m.py"}, "global_batch": 8, "train_for": "5 steps"}},
            "which takes no model of a `task: module`",
        ),
        ({"trains": None, "metrics": {"samples_per_step": 1}}, "`metrics.samples_per_step` needs `trains`"),
        ({"trains": None, "layout": {"tp": 2}}, "`layout` needs `workload`, or `trains` beside `run`"),
        ({"trains": None, "software": "MaxText"}, "`software` needs `workload`, or `trains` beside `run`"),
    ],
)
def test_what_no_plan_can_take_is_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        command(**changes)


def test_a_command_that_does_not_name_its_model_is_not_planned() -> None:
    with pytest.raises(UsageError, match="nothing says what this command trains") as refused:
        trainworks.plan(command(trains=None))
    assert "`trains:" in (refused.value.hint or "")


def test_an_error_of_the_plan_is_at_the_line_of_the_file() -> None:
    text = "name: a\nrun: x\ntrains:\n  task: causal-lm\n  model: {preset: llama3-8b}\n  data: {sequence_length: 64}\n"
    run_file, _ = parse_run_file(f"{text}  global_batch: 8\n  train_for: 5 steps\n", name="run.yaml")
    with pytest.raises(TrainworksError) as refused:
        parse_run_file(f"{text}  global_batch: 0\n  train_for: 5 steps\n", name="run.yaml")
    assert isinstance(refused.value, RunFileError)
    assert refused.value.problems[0].place == "run.yaml:7  trains.global_batch"
    assert run_file.as_planned.workload == run_file.trains


def test_a_described_cluster_has_the_plan_of_a_workload_whose_program_is_not_named() -> None:
    as_command = trainworks.plan(command(), on="16x A100-SXM-80GB", without_learning=True)
    of_other = RunFile.model_validate({"name": "script", "workload": TRAINS, "software": {}})
    as_workload = trainworks.plan(of_other, on="16x A100-SXM-80GB", without_learning=True)
    assert isinstance(as_command, ClusterPlan)
    assert as_command.best == as_workload.best
    assert len(as_command.job.programs) > 1  # type: ignore[union-attr]


def test_a_plan_on_this_machine_is_wider_than_that_of_the_worker(
    tmp_path: Path, requests: list[CalibrationRequest]
) -> None:
    mine, other = resolved(command(), tmp_path), resolved(RunFile(name="w", workload=_trained_here(tmp_path)), tmp_path)
    assert mine.plan is not None and other.plan is not None and mine.plan.expected and other.plan.expected
    assert [request.precision for request in requests] == ["fp32", "fp32"]
    assert mine.plan.step_time == other.plan.step_time
    assert mine.plan.expected.high_s > 1.2 * other.plan.expected.high_s
    assert (mine.plan.checkpoint_every_steps, mine.plan.checkpoint_bytes, mine.plan.compared) == (None, 0, ())
    assert mine.plan.memory.logits_bytes >= 12 * mine.plan.layout.micro_batch * 128 * 2048
    assert software_of(mine) == "command script"


def _trained_here(folder: Path) -> Any:
    (folder / "text.txt").write_text("a " * 4000)
    return TRAINS | {"data": TRAINS["data"] | {"source": str(folder / "text.txt")}}


@pytest.mark.parametrize(
    ("run", "layout", "ranks"),
    [
        ("torchrun --nproc-per-node=4 train.py", None, 4),
        ("deepspeed --num_gpus 2 train.py", None, 2),
        ("torchrun --nproc_per_node=auto train.py", {"dp_shard": 4}, 4),
        ("python train.py", None, 1),
    ],
)
def test_the_ranks_of_a_plan_are_those_that_the_launcher_starts(
    run: str, layout: dict[str, int] | None, ranks: int
) -> None:
    one = Processes(nodes=1, processes_per_node=1, threads_per_process=8, device="cpu")
    found = training_processes(command(run=run, layout=layout), one)
    assert (found.processes_per_node, found.threads_per_process) == (ranks, 8 // ranks)


def test_a_layout_that_does_not_fit_the_ranks_is_refused(tmp_path: Path, requests: list[CalibrationRequest]) -> None:
    run_file = command(run="torchrun --nproc-per-node 2 train.py", layout={"dp_shard": 4})
    with pytest.raises(LayoutError, match="world size is 2"):
        resolved(run_file, tmp_path)
    assert not requests


def test_a_program_that_counts_samples_has_a_plan_of_them(tmp_path: Path, requests: list[CalibrationRequest]) -> None:
    whole, each = (resolved(command(metrics=metrics), tmp_path).plan for metrics in ({}, {"samples_per_step": 2}))
    assert whole is not None and each is not None and whole.expected and each.expected
    assert (each.num_steps, each.tokens_per_step) == (4 * whole.num_steps, whole.tokens_per_step / 4)
    assert each.step_time.total_s == pytest.approx(whole.step_time.total_s / 4)
    assert each.expected.low_s == pytest.approx(whole.expected.low_s / 4)
    assert each.run_time_s == pytest.approx(whole.run_time_s)
    assert each.tokens_per_s == pytest.approx(whole.tokens_per_s)


@pytest.mark.parametrize("engine", ["slurm", "kubernetes", {"engine": "ssh", "hosts": ["a", "b", "c", "d"]}])
def test_a_job_carries_the_plan_of_its_nodes_by_the_catalogue(tmp_path: Path, engine: Any) -> None:
    trains = TRAINS | {"model": {"preset": "llama3-8b"}, "data": {"sequence_length": 4096}, "precision": "bf16"}
    changes = {"trains": trains | {"global_batch": 64}, "num_nodes": 4, "resources": {"accelerators": "H100:8"}}
    run_file = command(cluster=engine, **changes, environment={"image": "nvcr.io/nvidia/pytorch:26.10-py3"})
    prepared = prepare(RunRequest(run_file), folder=tmp_path, queued=True, planning=UNLEARNED)
    found = prepared.with_forecast(ask=False, learning=False).resolved
    assert found.plan is not None and found.forecast is not None and found.plan.expected is not None
    assert found.plan.step_time.total_s == pytest.approx(found.forecast.step_s)
    assert found.plan.layout.world_size == 32
    assert (found.plan.expected.low_s, found.plan.expected.high_s) == (found.forecast.low_s, found.forecast.high_s)
    assert found.planner == ()  # its nodes measure nothing
    assert ResolvedRun.model_validate_json(found.model_dump_json()).plan == found.plan


def test_the_record_of_a_command_answers_for_its_plan(tmp_path: Path, requests: list[CalibrationRequest]) -> None:
    until_written = 'while ! test -s "$TRAINWORKS_RUN_DIR/metrics.jsonl"; do sleep 0.1; done'
    run = trainworks.run(command(run=f"{SCRIPT}; {until_written}"), folder=tmp_path)
    report, plan = run.report(), run.resolved.plan
    assert plan is not None and report.comparison is not None and report.training is not None
    compared = report.comparison
    assert compared.step_time.planned == plan.step_time.total_s
    assert compared.tokens_per_s.planned == plan.tokens_per_s and compared.tokens_per_s.measured is not None
    assert [term.name for term in compared.step_time_terms] == ["compute", "other"]
    assert {row["tokens"] for row in read_rows(run.run_dir.metrics_file)} == {8 * 128}
    assert report.training.model.startswith("llama, 4 layers") and report.training.num_steps == 40
    assert compared.run_time.measured is not None and compared.anchor is not None
    assert compared.memory.planned == plan.memory.total_bytes and (compared.memory.measured or 0) > 0
    notes = " ".join(diagnosis_of(run).notes)
    assert "lays out its own ranks" in notes and "`metrics: {samples_per_step: ...}`" in notes
    assert parameters_of(run.resolved)["trains.global_batch"] == 8
    snapshot = RunSnapshot(run="script-1", state=JobState.RUNNING, resolved=run.resolved)
    samples = {sample.family.name: sample.value for sample in run_samples(snapshot)}
    assert samples["trainworks_run_planned_step_seconds"] == plan.step_time.total_s


def test_a_killed_command_keeps_its_plan_when_it_resumes(tmp_path: Path, requests: list[CalibrationRequest]) -> None:
    once = 'for step in $(seq 1 20); do echo "step $step loss 2.5"; done; test -f again || { touch again; kill -9 $$; }'
    once += '; for step in $(seq 21 40); do echo "step $step loss 2.25"; done'
    run = trainworks.run(command(run=once, workdir=str(tmp_path), recover={"max_restarts": 1}), folder=tmp_path)
    assert len(requests) == 1
    report = run.report()
    assert report.comparison is not None and report.training is not None and len(report.attempts) == 2
    assert report.training.steps_done == report.training.num_steps == 40
    (lost,) = (cause for cause in diagnosis_of(run).causes if cause.name == "lost_steps")
    assert "the program loaded nothing that it had saved" in " ".join(lost.evidence)


def test_a_resume_on_other_ranks_plans_them(tmp_path: Path, requests: list[CalibrationRequest]) -> None:
    run = trainworks.run(command(layout={"dp_replicate": 1}), folder=tmp_path)
    changed, _ = changed_run(run.run_dir, ResumeChanges(nproc=2), node_planner="none")
    assert changed.plan is not None and changed.plan.of_command
    assert [request.num_ranks for request in requests] == [1, 2]
    assert changed.plan.layout.world_size == changed.processes.world_size == 2


def test_a_program_that_prints_every_tenth_step_is_not_called_slow(
    tmp_path: Path, requests: list[CalibrationRequest]
) -> None:
    run = trainworks.run(command(run="true"), folder=tmp_path)
    plan = run.resolved.plan
    assert plan is not None
    rows = (
        metrics_row(step, step_s=plan.step_time.total_s, num_steps=10, tokens=plan.tokens_per_step)
        for step in range(10, 410, 10)
    )
    append_metrics(run.run_dir.metrics_file, rows)
    diagnosis = diagnosis_of(run)
    assert diagnosis.num_steps == 400
    assert "slow_compute" not in {cause.name for cause in diagnosis.causes}


def test_a_setting_reaches_what_a_command_trains() -> None:
    text = f"name: a\nrun: {SCRIPT!r}\ntrains: {json.dumps(TRAINS)}\n"
    run_file, _ = parse_run_file(text, name="run.yaml", settings={"trains.global_batch": "16"})
    assert run_file.trains is not None and run_file.trains.global_batch == 16


def test_a_command_teaches_its_own_plans_alone(
    tmp_path: Path, requests: list[CalibrationRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps may be of another kind."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    run = trainworks.run(command(), folder=tmp_path)
    finished = finished_run(run.run_dir, 1.0)
    assert finished is not None and finished.software == "command script"
    again = prepare(RunRequest(command()), folder=tmp_path, queued=False).resolved
    assert again.plan is not None and again.plan.expected is not None and again.plan.expected.learned_from == 1
    other = prepare(RunRequest(command(name="other")), folder=tmp_path, queued=False).resolved
    assert other.plan is not None and other.plan.expected is not None and other.plan.expected.learned_from == 0
