"""Live runs, nodes and accelerators."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from typer.testing import CliRunner

from tests.report.conftest import RunWriter, make_plan
from trainworks.api.observing.top import LiveRuns
from trainworks.cli.app import app
from trainworks.host.machine_load import machine_load
from trainworks.record.measured.step_anchor import AnchoredStep, StepAnchor, write_anchor


@pytest.fixture
def running(tmp_path: Path) -> RunWriter:
    """A run that is at step 20 since now, on another host."""
    run = RunWriter(tmp_path / "runs", make_plan(), None)
    run.launch()
    run.at = time.time() - 2.4
    run.steps(20).status("RUNNING", supervisor_host="elsewhere")
    return run


def test_a_running_run_has_its_progress_and_its_plan(running: RunWriter) -> None:
    (line,) = LiveRuns(running.run_dir.path.parent).look().runs
    assert (line.state, line.step, line.num_steps) == ("RUNNING", 20, 300)
    assert line.planned_step_s == pytest.approx(0.1)
    assert line.eta_s == pytest.approx(280 * line.step_s)  # type: ignore[operator]
    assert not line.is_quiet


def test_a_run_has_its_anchored_step_and_when_it_would_be_done_by_it(running: RunWriter) -> None:
    live = LiveRuns(running.run_dir.path.parent)
    assert live.look().runs[0].anchored_step_s is None
    found = AnchoredStep(first_step=6, step=20, step_s=0.11, low_s=0.1, high_s=0.12, unrest=0.01)
    plan = running.run_dir.read_resolved().plan
    assert plan is not None
    write_anchor(running.run_dir.anchor_file, StepAnchor(layout=plan.layout, planned_s=0.1, found=found))
    assert live.look().runs[0].anchored_step_s == 0.11
    answer = CliRunner().invoke(app, ["status", str(running.run_dir.path), "--json"])
    assert json.loads(answer.stdout)["anchored_eta_s"] == pytest.approx(280 * 0.11)


def test_each_look_sees_what_is_new_and_leaves_out_what_has_ended_until_it_is_resumed(running: RunWriter) -> None:
    live = LiveRuns(running.run_dir.path.parent)
    assert [line.step for line in live.look().runs] == [20]
    running.steps(5)
    assert [line.step for line in live.look().runs] == [25]
    running.finish()
    assert live.look().runs == ()
    running.status("RUNNING", supervisor_host="elsewhere")
    assert [line.run for line in live.look().runs] == [running.run_dir.run_id]


def test_a_run_whose_last_step_is_old_is_marked(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, make_plan(), None)
    run.launch().steps(20).status("RUNNING", supervisor_host="elsewhere")
    (line,) = LiveRuns(tmp_path).look().runs
    assert line.is_quiet


def test_without_a_terminal_it_prints_once(running: RunWriter) -> None:
    answer = CliRunner().invoke(app, ["top", "--runs", str(running.run_dir.path.parent)])
    assert answer.exit_code == 0, answer.output
    assert all(text in answer.stdout for text in (running.run_dir.run_id, "20/300", "cores busy"))


def test_json_has_every_figure(running: RunWriter) -> None:
    answer = CliRunner().invoke(app, ["top", "--json", "--runs", str(running.run_dir.path.parent)])
    found = json.loads(answer.stdout)
    assert found["runs"][0]["step"] == 20
    assert found["machine"]["cores"] >= 1


class Driver:
    """An NVIDIA driver with one accelerator that reports everything but its power limit."""

    NVML_TEMPERATURE_GPU = 0

    NVMLError = pynvml.NVMLError

    def __getattr__(self, name: str) -> object:
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": object(),
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=60 * 10**9, total=85 * 10**9),
            "nvmlDeviceGetPowerUsage": 650_000,
            "nvmlDeviceGetTemperature": 71,
        }
        if name not in answers:

            def refuse(*_: object) -> None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

            return refuse
        return lambda *_: answers[name]


def test_an_accelerator_has_the_figures_that_its_driver_reports() -> None:
    (one,) = machine_load(Driver()).accelerators
    assert (one.busy_share, one.power_w, one.power_limit_w, one.temperature_c) == (0.97, 650.0, None, 71)


def test_the_first_look_of_a_process_sees_busy_cores() -> None:
    program = """
import multiprocessing
from trainworks.host.machine_load import machine_load

def work():
    while True:
        pass

if __name__ == "__main__":
    worker = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    worker.start()
    first = machine_load().cores_busy
    worker.kill()
    print(first > 0)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
