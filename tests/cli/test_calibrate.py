"""`trainworks calibrate`: what it keeps, what it says of it, and what it refuses before anything is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainworks.api import calibrate as calibrate_use_case
from trainworks.api.planning.described import plan_cluster
from trainworks.cli.planning.accuracy import calibrate_command
from trainworks.config.load import parse_run_file
from trainworks.errors import TrainworksError
from trainworks.plan.cluster.layout import check_against, parse_layout

ON = "1 node of 8x A100-SXM-80GB over 8x HDR"
RUN = """\
name: tiny
workload:
  task: causal-lm
  model: {preset: tinyllama-1.1b}
  data: {sequence_length: 2048}
  precision: bf16
  global_batch: 64
  train_for: 1000 steps
"""
LAYOUT = "dp_shard=8,zero=1,micro_batch=2,recompute=none"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where measurements are kept: nothing at first."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def written(tmp_path: Path, text: str = RUN) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def calibrated(tmp_path: Path, text: str = RUN, **options: Any) -> None:
    calibrate_command(written(tmp_path, text), **({"on": ON, "layout": LAYOUT} | options))


def refusal(tmp_path: Path, text: str = RUN, **options: Any) -> str:
    with pytest.raises(TrainworksError) as refused:
        calibrated(tmp_path, text, **options)
    return refused.value.render()


def step_time_s(layout: str = LAYOUT) -> float:
    run_file, source = parse_run_file(f"{RUN}cluster: {ON}\n", name="run.yaml")
    return plan_cluster(run_file, source, layout=parse_layout(layout)).best[0].step_time_s


def test_a_measured_step_moves_the_plan_towards_it(tmp_path: Path, data: Path) -> None:
    before = step_time_s()
    calibrated(tmp_path, step_time=f"{1.1 * before:.4f} s")
    assert before < step_time_s() < 1.1 * before
    assert len(list((data / "clusters").iterdir())) == 1


def test_it_says_which_layout_was_taken_to_have_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(tmp_path, step_time=f"{step_time_s():.4f} s")
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "layout  dp_shard 8, zero 1, micro-batch 2"
    assert [line.split()[0] for line in out.splitlines()[3:]] == ["before", "after", "measured"]
    assert "outside" not in out
    assert err.startswith("stored in ")


def test_before_and_after_are_of_the_same_layout(tmp_path: Path, data: Path) -> None:
    calibrated(tmp_path, layout="tp=8", step_time="60 s")
    kept = json.loads(next((data / "clusters").iterdir()).read_text(encoding="utf-8"))["step"]
    assert kept["layout"]["tp"] == 8
    assert "auto" not in {kept["layout"][name] for name in ("micro_batch", "recompute", "interleave")}


@pytest.mark.parametrize("factor", [0.3, 3])
def test_a_time_outside_the_interval_is_remarked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    calibrated(tmp_path, step_time=f"{factor * step_time_s():.4f} s")
    text = " ".join(capsys.readouterr().out.split())
    assert "is outside the 80 % interval that was planned: check the run for disturbances, or measure again" in text


@pytest.mark.parametrize(
    ("step_time", "message"),
    [
        ("0 s", "`0 s` must be greater than 0"),
        ("1e9 s", "a step of 1,000,000,000 s is longer than 10,000,000 s"),
        ("200 days", "a step of 17,280,000 s is longer than"),
        ("-3 s", "`-3 s` is not a duration"),
        ("31", "`31` has no unit"),
    ],
)
def test_a_time_that_no_step_takes_is_refused_before_anything_is_kept(
    tmp_path: Path, data: Path, step_time: str, message: str
) -> None:
    assert refusal(tmp_path, step_time=step_time).startswith(f"error: {message.replace('31` has', '31` has')}")
    assert not data.exists()


def test_a_step_without_its_layout_is_refused_with_one_to_copy(tmp_path: Path, data: Path) -> None:
    text = refusal(tmp_path, layout="", step_time="1 s")
    assert text.startswith("error: the step time `1 s` needs the layout that ran\n  --> --layout")
    option = re.search(r"--layout (\S+)$", text)
    assert option is not None
    assert check_against(parse_layout(option[1]), world_size=8, global_batch=64)["dp"] >= 1
    assert not data.exists()


def test_the_layout_of_the_run_file_is_named_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(tmp_path, RUN + "layout: {dp_shard: 8}\n", layout="", step_time="1 s")
    assert "dp_shard 8, zero 3" in capsys.readouterr().out


def test_the_option_replaces_the_layout_of_the_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(tmp_path, RUN + "layout: {tp: 8}\n", step_time="1 s")
    assert capsys.readouterr().out.startswith("layout  dp_shard 8, zero 1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either --step-time or --benchmark"),
        ({"step_time": "1 s", "benchmark": Path("b.json")}, "give either --step-time or --benchmark"),
        ({"step_time": "1 s", "on": None}, "a calibration is for a described cluster"),
        ({"step_time": "1 s", "on": "4x foo"}, "`4x foo` does not describe a cluster"),
        ({"step_time": "1 s", "layout": "tp=3"}, "tp (3) does not divide 8 accelerators"),
        ({"benchmark": Path("none.json")}, "cannot read benchmark record `none.json`"),
    ],
    ids=str,
)
def test_what_teaches_nothing_is_refused_and_nothing_is_kept(
    tmp_path: Path, data: Path, options: dict[str, Any], message: str
) -> None:
    text = refusal(tmp_path, **options)
    assert text.startswith(f"error: {message}")
    assert not data.exists()


def test_a_measurement_that_breaks_the_plan_is_not_kept(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **options: Any) -> Any:
        plan = plan_cluster(*_, **options)  # type: ignore[arg-type]
        if options.get("learned"):
            plan.best[0] = plan.best[0].model_copy(update={"high_s": float("nan")})
        return plan

    monkeypatch.setattr(calibrate_use_case, "plan_cluster", broken)
    assert "this measurement cannot calibrate a plan" in refusal(tmp_path, step_time="1 s")
    assert not data.exists()


def test_the_number_of_measurements_is_noted(tmp_path: Path) -> None:
    run_file, source = parse_run_file(f"{RUN}cluster: {ON}\n", name="run.yaml")
    for count in ("1 measurement", "2 measurements"):
        calibrated(tmp_path, step_time="1 s")
        assert any(f"calibrated by {count} of this kind" in note for note in plan_cluster(run_file, source).notes)


def test_a_step_of_a_compiled_model_is_kept_as_such(tmp_path: Path, data: Path) -> None:
    calibrated(tmp_path, RUN + "  compile: true\n", step_time="1 s")
    kept = json.loads(next((data / "clusters").iterdir()).read_text(encoding="utf-8"))["step"]
    assert kept["fused_kernels"] is True
