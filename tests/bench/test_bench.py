"""`bench` from end to end: a run whose ranks measure, its report, and its resumption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import trainworks
from tests.fakes import SMALL_WORKLOAD
from trainworks.cli.app import app
from trainworks.errors import ArgumentError, EnvironmentProblem, UsageError
from trainworks.measure.bench.node import node_name
from trainworks.measure.bench.node_record import (
    BenchPart,
    read_record,
    read_records,
    record_path,
    records_in,
    write_record,
)
from trainworks.measure.bench.short_training import PlannedStep, judge_training
from trainworks.measure.bench.verdict import BenchVerdict
from trainworks.record.measured.bench import BenchSetting, parse_setting

NODE = [sys.executable, "-m", "trainworks.measure.bench.node"]


def node_program(run_folder: Path, request: dict[str, object], **env: str) -> subprocess.Popen[str]:
    """The program of one node, as an agent starts it."""
    return subprocess.Popen(
        [*NODE, json.dumps(request)],
        env=os.environ | {"TRAINWORKS_RUN_DIR": str(run_folder)} | env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def compiler_that_never_ends(folder: Path) -> dict[str, str]:
    """Variables of a node that does not come to its last part, for which it compiles a program."""
    folder.mkdir()
    (folder / "cc").write_text('#!/bin/sh\n[ "$1" = --version ] || while kill -0 $PPID; do sleep 1; done\n')
    (folder / "cc").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "TRAINWORKS_CACHE": str(folder / "cache")}


@pytest.mark.slow
def test_a_killed_node_measures_only_what_is_missing(tmp_path: Path) -> None:
    request = {"kinds": ["compute", "memory"]}
    first = node_program(tmp_path, request, **compiler_that_never_ends(tmp_path / "bin"))
    path = record_path(tmp_path, 0)
    while (before := read_record(path)) is None or len(before.parts) < 2:
        assert first.poll() is None
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    before = read_record(path)
    assert before is not None
    assert not before.is_complete
    second = node_program(tmp_path, request)
    output, _ = second.communicate()
    after = read_record(path)
    assert after is not None
    assert after.is_complete
    assert {name: after.parts[name] for name in before.parts} == before.parts
    assert {line.split(": ")[1] for line in output.splitlines()} == set(after.parts) - set(before.parts)


def test_a_node_prints_its_record_where_its_run_directory_is_lost(tmp_path: Path) -> None:
    request = {"kinds": ["storage"], "paths": [str(tmp_path / "none")], "prints_record": True}
    output, _ = node_program(tmp_path, request).communicate()
    (record,) = records_in(output.splitlines())
    assert record == read_record(record_path(tmp_path, 0))
    assert record.is_complete
    assert [part.skipped for part in record.parts.values()] == [
        f"`{tmp_path}/none` is not a folder that can be written"
    ]


def test_a_record_of_another_request_is_not_continued(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        node_program(tmp_path, {"kinds": ["storage"], "paths": [str(tmp_path / folder)]}).communicate()
    (record,) = read_records(tmp_path)
    assert list(record.parts) == [f"storage/{tmp_path}/two"]


def test_a_damaged_record_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    record_path(tmp_path, 3).write_text("{")
    with pytest.raises(EnvironmentProblem, match=r"node-3\.json` is not the record of a node"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"SLURMD_NODENAME": "node7"}, "node7"),
        ({"NODE_NAME": "gpu-12"}, "gpu-12"),
        ({"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, os.uname().nodename),
        ({"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1"}, f"{os.uname().nodename}/1"),
    ],
    ids=["Slurm", "Kubernetes", "a host", "two nodes on one host"],
)
def test_a_node_has_the_name_of_its_scheduler_or_host(env: dict[str, str], name: str) -> None:
    assert node_name(1, env) == name


def test_values_of_a_variable_are_settings_side_by_side() -> None:
    assert parse_setting("NCCL_ALGO=Ring,Tree") == [
        BenchSetting(name="NCCL_ALGO=Ring", env={"NCCL_ALGO": "Ring"}),
        BenchSetting(name="NCCL_ALGO=Tree", env={"NCCL_ALGO": "Tree"}),
    ]


@pytest.mark.parametrize("text", ["NCCL_ALGO", "=1", "A B=1", "A=", "A=1,"])
def test_a_setting_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a variable with values"):
        parse_setting(text)


def test_an_unknown_kind_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot measure `latency`"):
        trainworks.bench("latency", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_is_placed_at_the_argument_that_has_it(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["bench", "latency", "--runs", str(tmp_path)]).exception
    assert isinstance(refused, UsageError)
    assert refused.place == "WHAT"


def test_a_benchmark_without_a_figure_says_what_is_missing_and_is_a_problem_of_the_environment(tmp_path: Path) -> None:
    command = ["bench", "storage", "--path", str(tmp_path / "none"), "--runs", str(tmp_path)]
    refused = CliRunner().invoke(app, command).exception
    assert isinstance(refused, EnvironmentProblem)
    assert refused.exit_code == 3
    assert "is not a folder that can be written" in refused.message
    (path,) = tmp_path.glob("*/bench/node-0.json")
    record = read_record(path)
    assert record is not None
    lacking = {"devices": BenchPart(skipped="torch is not installed on this node")}
    write_record(path, replace(record, parts=lacking))
    with pytest.raises(EnvironmentProblem, match="devices: torch is not installed on this node") as caught:
        trainworks.bench(resume=path.parent.parent.name, folder=tmp_path)
    assert "trainworks[train]" in (caught.value.hint or "")


@pytest.mark.slow
def test_several_nodes_measure_all_pairs_under_every_setting_and_a_finished_run_is_shown_again(tmp_path: Path) -> None:
    lines: list[str] = []
    settings = ["OMP_NUM_THREADS=1"]
    report = trainworks.bench("network", nodes=3, settings=settings, folder=tmp_path, progress=lines.append)
    assert report.is_complete
    names = [record.name for record in report.records]
    pairs = {f"{a} <-> {b}" for a, b in ((names[0], names[1]), (names[0], names[2]), (names[1], names[2]))}
    for setting in ("default", *settings):
        found = [each for each in report.measurements if each.conditions["setting"] == setting]
        assert {each.subject for each in found} == pairs
        assert len(found) == 9  # both directions, and the latency
    assert f"{names[0]}: network@default" in lines
    again = trainworks.bench(resume=report.run, folder=tmp_path)
    assert again.measurements == report.measurements


@pytest.mark.slow
def test_the_command_prints_a_report_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ["bench", "storage", "collectives", "--path", str(tmp_path), "--runs", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, [*options, "--json", "--html", str(page)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["complete"] is True
    assert {each["quantity"] for each in found["measurements"]} >= {"storage_write", "storage_read", "busbw"}
    assert "Collectives" in page.read_text()
    shown = CliRunner().invoke(app, ["bench", "--resume", found["run"], "--runs", str(tmp_path / "runs")])
    assert "all_reduce over gloo" in shown.stdout


@pytest.mark.slow
def test_storage_is_held_against_what_a_run_needs_of_each_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = yaml.safe_load((Path(__file__).parents[2] / "examples" / "plan-llama-2-7b.yaml").read_text())
    example["checkpoint"] = {"to": "saves"}
    example["workload"]["data"]["source"] = "shards"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(example))
    paths = [tmp_path / name for name in ("saves", "shards", "other")]
    for path in paths:
        path.mkdir()
    report = trainworks.bench("storage", expect="run.yaml", paths=paths, folder=tmp_path / "runs")
    planned = trainworks.storage("run.yaml").demand
    needed = {
        (Path(each.measurement.subject).name, str(each.measurement.conditions["operation"])): each.expected
        for each in report.judged
        if "the run needs" in each.reason  # and, on a busy machine, why there is no verdict
    }
    write, restart, read = (rate.value / planned.nodes.value for rate in (planned.write, planned.restart, planned.read))
    assert needed == {
        ("saves", "checkpoint"): write,
        ("saves", "shards"): restart,
        ("shards", "shards"): read,
        ("other", "checkpoint"): write,
        ("other", "shards"): max(read, restart),
    }
    assert report.learned is None


def test_a_dry_run_shows_the_job_and_its_yardstick_and_starts_nothing(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "run.yaml").write_text("run: train\ncluster: {engine: slurm, of: 4 nodes of DGX A100, nodes: 3}\n")
    options = ["--dry-run", "--cluster", str(tmp_path / "run.yaml"), "--runs", str(runs)]
    shown = CliRunner().invoke(app, ["bench", "compute", "network", *options])
    assert shown.exit_code == 0 and not runs.exists()
    assert "#SBATCH --nodes=3\n" in shown.stdout and "#SBATCH --gres=gpu:A100-SXM-80GB:8\n" in shown.stdout
    assert "measures compute, network on 3 nodes, held against 4 nodes of DGX A100" in " ".join(shown.stderr.split())
    with pytest.raises(UsageError, match="is for a new benchmark"):
        CliRunner().invoke(app, ["bench", "--resume", "bench-1", *options], catch_exceptions=False)


SMALL = f"""\
name: small-with-a-name-that-is-as-long-as-the-name-of-a-run-may-be-1
{SMALL_WORKLOAD}  optimizer: {{schedule: cosine, warmup: 2000 steps}}
cluster: {{engine: local, processes_per_node: 1}}
goal: {{deadline: 1d}}
profile: 3000:3010
recover: {{max_restarts: 3}}
checkpoint: {{copies: [copies]}}
job: {{hold: true, min_nodes: 1}}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run file of a workload of many steps, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("A sentence that a model may learn by heart. " * 400)
    (tmp_path / "run.yaml").write_text(SMALL)
    return tmp_path


@pytest.mark.slow
def test_a_workload_trains_after_the_benchmark_and_answers_for_its_plan(small: Path) -> None:
    report = trainworks.bench("storage", cluster="run.yaml", train=True)
    training = report.training
    assert training is not None and training.planned is not None and training.step_s is not None, training
    run = trainworks.find_run(training.run)
    assert run.state == "SUCCEEDED"
    assert run.path.parent == Path("runs") / report.run / "training"
    written = yaml.safe_load(run.run_dir.run_file.read_text())
    assert written["workload"]["train_for"] == "30 steps" and not (small / "copies").exists()
    resolved = run.resolved
    assert resolved.plan is not None and resolved.plan.num_steps == 30
    assert (training.planned.step_s, training.planned.cluster) == (resolved.plan.step_time.total_s, "")
    assert report.is_accepted is (training.verdict is not BenchVerdict.FAIL)
    shown = CliRunner().invoke(app, ["bench", "--resume", report.run, "--json"])
    assert json.loads(shown.stdout)["training"] == training.model_dump(mode="json")
    assert "a step planned (80 %:" in " ".join(
        CliRunner().invoke(app, ["bench", "--resume", report.run]).stdout.split()
    )


@pytest.mark.slow
def test_a_training_that_does_not_start_leaves_the_report_of_what_was_measured(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*request: object, **options: object) -> None:
        raise EnvironmentProblem("the queue is full")

    monkeypatch.setattr("trainworks.api.bench.start_run", refuses)
    report = trainworks.bench("storage", cluster="run.yaml", train=True)
    assert report.judged and report.training is not None and not report.is_accepted
    assert report.training.reason == "it did not start: the queue is full"
    with pytest.raises(ArgumentError, match="that is continued trains nothing"):
        trainworks.bench(cluster="run.yaml", resume=report.run, train=True)


@pytest.mark.slow
def test_a_training_that_fails_is_not_accepted_and_says_why(small: Path) -> None:
    (small / "text.txt").write_text("too short")
    report = trainworks.bench("storage", cluster="run.yaml", train=True)
    assert report.training is not None
    assert report.training.verdict is BenchVerdict.FAIL and not report.is_accepted
    assert "text" in report.training.reason


def test_a_node_without_the_expected_accelerators_is_not_accepted_and_trains_nothing(small: Path) -> None:
    report = trainworks.bench("memory", cluster="run.yaml", expect="8x H100", train=True)
    assert [each.partition(" shows ")[2] for each in report.lacking] == ["0 of 8 accelerators"]
    assert not report.is_accepted
    assert report.training is not None and report.training.reason == "nothing trained: the benchmark is not accepted"
    assert len(list(small.glob("runs/*"))) == 1


@pytest.mark.parametrize("cluster", [None, "slurm", "command.yaml"])
def test_a_training_needs_the_run_file_of_a_workload(small: Path, cluster: str | None) -> None:
    (small / "command.yaml").write_text("run: python train.py\n")
    with pytest.raises(ArgumentError, match="a training needs a workload"):
        trainworks.bench("memory", cluster=cluster, train=True)
    assert not (small / "runs").exists()


def test_a_slow_step_is_judged_on_the_scale_of_its_plan() -> None:
    planned = PlannedStep(cluster="", step_s=1.0, low_s=0.8, high_s=1.2)
    found = [judge_training("r", planned, step_s, is_busy=False).verdict for step_s in (0.1, 1.2, 1.43, 1.45)]
    assert found == [BenchVerdict.PASS, BenchVerdict.PASS, BenchVerdict.WEAK, BenchVerdict.FAIL]
    assert judge_training("r", planned, 9.0, is_busy=True).verdict is BenchVerdict.BUSY
    assert judge_training("r", planned, 1.1, is_busy=True).verdict is BenchVerdict.PASS


def test_what_only_a_workload_has_is_no_part_of_its_benchmark(small: Path) -> None:
    more = "software: torchtitan\nlayout: {dp_shard: 16}\nguard: {spike: skip}\n"
    written = SMALL.replace("{max_restarts: 3}", "{hang_timeout: 10m}").replace("{copies", "{memory_every: 10, copies")
    written = written.replace(
        "engine: local, processes_per_node: 1", "engine: slurm, of: 2 nodes of DGX H100, nodes: 2"
    )
    (small / "run.yaml").write_text(written + more)
    shown = CliRunner().invoke(app, ["bench", "all", "--cluster", "run.yaml", "--train", "--dry-run"])
    assert shown.exit_code == 0, shown.exception
    assert "#SBATCH --gres=gpu:H100-SXM-80GB:8\n" in shown.stdout and "#SBATCH --nodes=2\n" in shown.stdout
    assert "--hold" not in shown.stdout
    assert "held against 2 nodes of DGX H100" in shown.stderr and "submit run.yaml --dry-run" in shown.stderr
