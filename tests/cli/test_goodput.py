"""`trainworks goodput`: what it prints, what it refuses, and what each option changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.program import trainworks_program
from trainworks.cli.output import check_pages
from trainworks.cli.planning.goodput import goodput_command
from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError
from trainworks.report.rendering import page as page_renderer

LARGE = ("--on", "2048 nodes of DGX H100", "--work", "54d", "--deadline", "63d", "--trials", "200")
ON = {"on": "64x H100", "work": "30d", "trials": 50}
RUN = """\
name: llama
workload:
  task: causal-lm
  model: {preset: llama2-7b}
  data: {sequence_length: 4096}
  global_batch: 128
  train_for: 100k steps
cluster: 4 nodes of 8x A100-SXM-80GB over 8x HDR
"""
SMALL = RUN.replace("llama2-7b", "tinyllama-1.1b").replace("4096", "2048").replace("4 nodes", "2 nodes")


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement of this machine's user calibrates a plan."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("TRAINWORKS_DATA", raising=False)


@pytest.fixture
def forecast(capsys: pytest.CaptureFixture[str]):
    """A function that runs the command with these options, and reads its JSON."""

    def run(run_file: Path | None = None, **options: Any) -> dict[str, Any]:
        given = options if run_file else ON | options
        goodput_command(run_file, **({"trials": 50} | given), as_json=True)
        read: dict[str, Any] = json.loads(capsys.readouterr().out)
        return read

    return run


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(SMALL)
    return path


def test_a_forecast_reads_like_this(golden) -> None:
    done = trainworks_program("goodput", *LARGE)
    assert (done.returncode, done.stderr) == (0, "")
    golden("goodput.txt", done.stdout)


def test_an_explanation_reads_like_this(golden) -> None:
    golden("goodput_explained.txt", trainworks_program("goodput", *LARGE, "--explain", "runtime goodput").stdout)


REFUSED: list[dict[str, Any]] = [
    {"on": None, "work": None},
    {"work": None},
    {"on": "64x H999"},
    {"work": "0d"},
    {"work": "3 fortnights"},
    {"node_mttf": "10m"},
    {"spares": 9},
    {"elastic": 9},
    {"slow_speed": 1.5},
    {"spot": "1m", "spot_notice": "1h"},
    {"explain": "price"},
    {"html": Path("nowhere/page.html")},
    {"html": Path()},
    {"run_file": Path("nope.yaml"), "on": None, "work": None},
    {"run_file": Path("run.yaml"), "on": None},
    {"run_file": Path("command.yaml"), "on": None, "work": None},
]


def test_every_refusal_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(SMALL)
    Path("command.yaml").write_text("name: demo\nrun: 'true'\n")
    blocks = []
    for changed in REFUSED:
        with pytest.raises(UsageError) as raised:
            goodput_command(**(ON | changed))
        blocks.append(f"{', '.join(f'{key}={value}' for key, value in changed.items())}\n{raised.value.render()}\n")
    golden("goodput_errors.txt", "\n".join(blocks))


def test_a_refusal_is_a_usage_error_without_data() -> None:
    done = trainworks_program("goodput")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: a run file is missing")


def test_a_run_file_brings_its_work_and_its_checkpoint(forecast, run_file: Path) -> None:
    found = forecast(run_file)
    assert found["num_nodes"] == 2
    assert found["save_s"] == 0.5
    assert found["write_s"] == pytest.approx(1.1e9 * 14 / 2 / 1.2e9, rel=0.01)
    assert any("step time is sampled" in note for note in found["notes"])


def test_the_run_file_s_own_figures_are_used(forecast, run_file: Path) -> None:
    extra = "recover: {node_mttf: 10d}\ncheckpoint: {every: 20m}\ngoal: {deadline: 9d}\n"
    run_file.write_text(SMALL + extra)
    found = forecast(run_file)
    assert (found["job_mttf_s"], found["checkpoint_interval_s"], found["deadline_s"]) == (
        pytest.approx(5 * 86400),
        1200.0,
        9 * 86400.0,
    )


def test_the_command_line_goes_before_the_run_file(forecast, run_file: Path) -> None:
    run_file.write_text(SMALL + "recover: {node_mttf: 10d}\ncheckpoint: {every: 20m}\ngoal: {deadline: 9d}\n")
    found = forecast(run_file, on="4x p4d.24xlarge", node_mttf="40d", every="10m", deadline="3d")
    assert found["num_nodes"] == 4
    assert (found["job_mttf_s"], found["checkpoint_interval_s"], found["deadline_s"]) == (
        pytest.approx(10 * 86400),
        600.0,
        3 * 86400.0,
    )


def test_a_save_waits_for_the_one_before_where_the_interval_is_shorter_than_the_write(forecast) -> None:
    found = forecast(every="10s", save_write="2m", save="1s")
    assert found["save_s"] == 110.0
    assert any("each save waits for the one before" in note for note in found["notes"])


@pytest.mark.parametrize("notice", ["0s", "2m"])
def test_expected_and_simulated_goodput_agree_on_spot_capacity(forecast, notice: str) -> None:
    found = forecast(on="64 nodes of DGX H100", work="100d", spot="3h", spot_notice=notice, spot_wait="10m")
    for figure in ("runtime_goodput", "ettr"):
        assert found["expected"][figure] == pytest.approx(found["simulated"][figure], abs=0.004)


def test_the_finish_is_sure_where_nothing_fails(forecast) -> None:
    found = forecast(node_mttf="1e9d", save="0s")
    assert found["simulated"]["finish_s"] == pytest.approx(dict.fromkeys(("p10", "p50", "p90"), 30 * 86400.0), rel=1e-3)


@pytest.mark.parametrize(
    ("worse", "cause"),
    [
        ({"node_mttf": "20d"}, "lost work"),
        ({"save": "10m"}, "checkpoint"),
        ({"restart": "3h"}, "recovery"),
        ({"detect": "3h"}, "recovery"),
        ({"repair": "20d", "spares": 0}, "waiting for nodes"),
        ({"slow": "30d"}, "straggling"),
        ({"spot": "6h", "spot_wait": "2h"}, "preempted"),
        ({"queue": "2d"}, "queueing"),
        ({"elastic": 4, "repair": "9d", "spares": 0}, "fewer nodes"),
        ({"save_write": "30m"}, "lost work"),
    ],
    ids=str,
)
def test_each_option_shows_where_its_time_goes(forecast, worse: dict[str, Any], cause: str) -> None:
    rate = {"node_mttf": "60d"}
    assert forecast(**(rate | worse))["simulated"]["shares"][cause] > forecast(**rate)["simulated"]["shares"][cause]


def test_a_notice_that_is_long_enough_keeps_the_work(forecast) -> None:
    spot = {"spot": "6h", "node_mttf": "1e6d"}
    short, long = (
        forecast(**spot, spot_notice=notice)["simulated"]["shares"]["lost work"] for notice in ("30s", "120s")
    )
    assert long < short / 10


def test_more_spares_finish_no_later(forecast) -> None:
    rows = forecast(node_mttf="20d", repair="3d")["by_spares"]
    finishes = [row["finish_s"]["p90"] for row in rows]
    assert len(rows) > 2
    assert finishes == sorted(finishes, reverse=True)


def test_the_shares_of_a_forecast_add_up(forecast) -> None:
    assert sum(forecast()["simulated"]["shares"].values()) == pytest.approx(1.0)


def test_a_forecast_as_json_has_these_keys(forecast, golden) -> None:
    found = forecast(deadline="31d")
    keys = [f"{key}.{inner}" if isinstance(found[key], dict) else key for key in found for inner in _inner(found[key])]
    golden("goodput_keys.txt", "\n".join(keys) + "\n")


def _inner(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else [""]


def test_what_is_assumed_is_said(forecast) -> None:
    notes = forecast(on="8 nodes of 8x MI300X over 8x 400 Gb/s", spot="6h", slow="90d", elastic=4)["notes"]
    said = " ".join(notes)
    for part in ("MI300X", "how long a save takes is assumed", "stragglers and elasticity"):
        assert part in said


def test_an_elastic_job_that_can_miss_no_replica_says_so(forecast) -> None:
    assert any("without one replica 7 nodes are left" in note for note in forecast(elastic=8)["notes"])


def test_the_page_is_written_beside_the_text(tmp_path: Path, forecast) -> None:
    forecast(html=tmp_path / "page.html", deadline="31d")
    assert "deadline 31d" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_full_disk_is_the_machine_s_fault(tmp_path: Path, forecast, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise DiskFullError("no space left on the device")

    monkeypatch.setattr(page_renderer, "write_atomic", full)
    with pytest.raises(DiskFullError) as raised:
        forecast(html=tmp_path / "page.html")
    assert (raised.value.place, raised.value.exit_code) == ("--html", 3)


def test_a_page_that_cannot_be_written_is_the_machine_s_fault(
    tmp_path: Path, forecast, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    def check_then_remove(html: Path | None, pdf: Path | None) -> None:
        check_pages(html, pdf)
        shutil.rmtree(folder)

    monkeypatch.setattr("trainworks.cli.planning.goodput.check_pages", check_then_remove)
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        forecast(html=folder / "page.html")


def test_a_run_on_this_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(SMALL.replace("cluster: 2 nodes of 8x A100-SXM-80GB over 8x HDR\n", ""))
    with pytest.raises(UsageError, match="described cluster") as raised:
        goodput_command(path)
    assert raised.value.place is not None
