"""`bench read`: verdicts on files, and a planner that learns from them."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

import trainworks
from trainworks.catalog.cluster import parse_cluster
from trainworks.cli.app import app
from trainworks.errors import ArgumentError, UsageError
from trainworks.host.folders import data_folder
from trainworks.measure.bench.bench_verdicts import BenchVerdicts
from trainworks.measure.scoring import PredictedRun
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.record.measured.measurement import ClusterMeasurement, MeasuredRate
from trainworks.record.measured.measurement_store import append_measurement

DATA = Path(__file__).parents[1] / "data" / "bench"
HDR = "2 nodes of 8x A100-SXM-80GB, 8x HDR"
LINKS = DATA / "ib_write_bw.txt"


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", "read", *map(str, arguments)])


def test_a_file_is_judged_against_the_described_cluster() -> None:
    done = invoke(LINKS, "--expect", HDR, "--json")
    assert done.exit_code == 0
    (first, second) = json.loads(done.stdout)["verdicts"]
    assert first["verdict"] == second["verdict"] == "pass"
    assert second["bound"]["value"] == 25e9
    assert second["value"] == pytest.approx(24.45e9, rel=1e-3)


def test_a_value_above_the_port_is_impossible_and_exits_with_1() -> None:
    done = invoke(LINKS, "--expect", "2 nodes of 8x A100-SXM-80GB, 1x HDR100")
    assert done.exit_code == 1
    assert "above the bound of 12.5 GB/s" in " ".join(done.stdout.split())


def test_inside_a_node_the_output_names_the_accelerator() -> None:
    verdicts = trainworks.read_bench([DATA / "nvbandwidth.txt"])
    assert [each.measurement.subject for each in verdicts.bad] == ["gpu1 <-> gpu2"]
    assert all(each.verdict.value == "pass" for each in verdicts.judged if each not in verdicts.bad)


def test_several_files_are_one_table_with_the_worst_first() -> None:
    done = invoke(LINKS, DATA / "nvbandwidth.txt")
    lines = done.stdout.splitlines()
    verdicts = [line.split()[0] for line in lines if line.startswith(("fail", "pass", "no expectation"))]
    assert verdicts == sorted(verdicts, key=["fail", "pass", "no"].index)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no file to read"),
        (("nothing.log",), "cannot read `nothing.log`"),
        ((LINKS, "--expect", "8x Nothing"), "Nothing"),
        ((LINKS, "--learn"), "none is described"),
        ((DATA / "stream.txt", "--learn", "--expect", HDR), "no figure that passed"),
    ],
)
def test_a_request_that_is_wrong_is_refused(arguments: tuple[str | Path, ...], message: str) -> None:
    error = invoke(*arguments).exception
    assert isinstance(error, UsageError)
    assert message in error.message


def described(folder: Path, kind: str) -> str:
    """A run file with the cluster of `HDR`, or a stack file of its nodes."""
    path = folder / "own.yaml"
    if kind == "run":
        data = {"name": "own", "run": "true", "cluster": {"engine": "described", "of": HDR.replace(", ", " over ")}}
    else:
        data = yaml.safe_load(Path("examples/cluster/stack.yaml").read_text(encoding="utf-8"))
        data["nodes"][-1] |= {"hosts": "gpu[01-02]", "machine": "p4d.24xlarge"}
        data["fabric"] = {"design": {"nics": 8, "port": "HDR"}}
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("option", ["--expect", "--cluster"])
@pytest.mark.parametrize("kind", ["run", "stack"])
def test_a_file_that_describes_the_cluster_is_what_is_expected(tmp_path: Path, kind: str, option: str) -> None:
    done = invoke(LINKS, option, described(tmp_path, kind), "--json")
    assert done.exit_code == 0, done.exception
    assert [each["verdict"] for each in json.loads(done.stdout)["verdicts"]] == ["pass", "pass"]
    assert json.loads(done.stdout)["expected"].startswith("2 nodes of ")


def test_a_stack_file_is_what_a_node_should_have() -> None:
    by_file, by_text = (
        trainworks.health(expect, with_history=False).failed for expect in ("examples/cluster/stack.yaml", "DGX H100")
    )
    assert [(each.check, each.limit) for each in by_file] == [(each.check, each.limit) for each in by_text]
    assert "gpu-count" in [each.check for each in by_file]


@pytest.mark.parametrize("option", ["--expect", "--cluster"])
def test_a_stack_of_several_kinds_of_nodes_is_refused_at_its_line(tmp_path: Path, option: str) -> None:
    path = described(tmp_path, "stack")
    data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    other = {"hosts": "old[01-02]", "address": "10.10.9.1", "roles": ["compute"], "machine": "DGX H100"}
    Path(path).write_text(yaml.safe_dump(data | {"nodes": [*data["nodes"], other]}), encoding="utf-8")
    error = invoke(LINKS, option, path).exception
    assert isinstance(error, UsageError)
    assert "not of one kind with accelerators" in error.message
    assert "(p4d.24xlarge), `old[01-02]` (DGX H100)" in error.message
    assert error.place is not None
    assert error.place.startswith(f"{path}:")


@pytest.mark.parametrize(
    ("option", "value"), [("--nodes", "2"), ("--full", ""), ("--path", "."), ("--resume", "x"), ("--cluster", "r.yaml")]
)
def test_an_option_that_reading_would_ignore_is_refused_at_its_place(option: str, value: str) -> None:
    error = invoke(LINKS, "--expect", HDR, option, *filter(None, [value])).exception
    assert isinstance(error, UsageError)
    assert error.place == option


def test_expect_alone_belongs_to_read() -> None:
    error = CliRunner().invoke(app, ["bench", "memory", "--learn"]).exception
    assert isinstance(error, UsageError)


def test_a_plan_learns_from_a_benchmark_and_says_so() -> None:
    run = "examples/plan-llama-2-7b.yaml"
    on = "2 nodes of 8x A100-SXM-80GB over 8x HDR"
    before = trainworks.plan(run, on=on)
    trainworks.read_bench([LINKS], expect=HDR, learn=True)
    after = trainworks.plan(run, on=on)
    assert not any("bench" in note for note in before.notes)
    calibrated = "calibrated by 1 measurement of this kind of cluster, by `trainworks bench`"
    assert any(note.startswith(calibrated) for note in after.notes)
    assert after.best[0].high_s / after.best[0].low_s <= before.best[0].high_s / before.best[0].low_s


def test_a_slow_link_makes_the_planned_step_longer(tmp_path: Path) -> None:
    run, on = "examples/plan-llama-2-7b.yaml", "2 nodes of 8x A100-SXM-80GB over 8x HDR"
    slow = tmp_path / "slow.txt"
    text = LINKS.read_text(encoding="utf-8")
    slow.write_text(text.replace("23317.65", "17400.0").replace("23296.34", "17400.0"), encoding="utf-8")
    fast_s = trainworks.plan(run, on=on).best[0].step_time_s
    assert trainworks.read_bench([slow], expect=HDR, learn=True).judged[-1].verdict.value == "weak"
    assert trainworks.plan(run, on=on).best[0].step_time_s > fast_s


def test_what_failed_teaches_nothing() -> None:
    with pytest.raises(ArgumentError, match="no figure that passed"):
        trainworks.read_bench([LINKS], expect="2 nodes of 8x H100-SXM-80GB, 8x NDR", learn=True)
    assert issubclass(ArgumentError, UsageError)


def test_the_same_output_teaches_once() -> None:
    first = trainworks.read_bench([LINKS], expect=HDR, learn=True).learned
    again = trainworks.read_bench([LINKS], expect=HDR, learn=True).learned
    assert first is not None
    assert first == again
    assert len(first.read_text(encoding="utf-8").splitlines()) == 1


RUN = "examples/plan-llama-2-7b.yaml"
P4DE = "2x p4de.24xlarge"
PUBLISHED = Path("benchmarks/data/collectives.csv")


def reduced(*, row: str = "", bandwidth: str = "") -> str:
    """The published all-reduces of two p4de.24xlarge, as nccl-tests prints them.

    Args:
        row: size of one whose bandwidths are printed as below.
        bandwidth: in GB/s.
    """
    ranks = [f"#  Rank {at:2} Group  0 Pid {at} on node{at // 8} device {at % 8} [0x10] A100" for at in range(16)]
    lines = ["# nccl-tests version 2.13.6", *ranks, "# all_reduce_perf"]
    lines.append("#  size  count  type  redop  root  time  algbw  busbw  #wrong")
    with PUBLISHED.open(encoding="utf-8") as file:
        for each in csv.DictReader(file):
            if each["gpu"] == "A100-80GB" and each["network"].startswith("p4de"):
                bus = [bandwidth] * 2 if each["size_bytes"] == row else [each["algbw"], each["busbw"]]
                count = int(each["size_bytes"]) // 4
                lines.append(f"{each['size_bytes']} {count} float sum -1 {each['time_us']} {bus[0]} {bus[1]} 0")
    return "\n".join(lines)


def learned(folder: Path, text: str, expect: str = P4DE) -> BenchVerdicts:
    path = folder / "all_reduce_perf.log"
    path.write_text(text, encoding="utf-8")
    return trainworks.read_bench([path], expect=expect, learn=True)


def planned(on: str = "4x p4de.24xlarge", *, without_learning: bool = False) -> ClusterPlan:
    return trainworks.plan(RUN, on=on, without_learning=without_learning)


def test_plan_size_and_score_use_and_name_the_links_that_were_measured(tmp_path: Path) -> None:
    before = planned()
    learned(tmp_path, reduced())
    note = f"links between nodes: measured 50 GB/s for each node on {time.strftime('%Y-%m-%d')} by nccl-tests 2.13.6"
    after = planned()
    assert any(each.startswith(note) for each in after.notes)
    assert after.best[0].step_time_s < 0.995 * before.best[0].step_time_s
    assert planned(without_learning=True).best == before.best
    sizes = [
        trainworks.size(RUN, deadline="3d", node=["p4de.24xlarge"], without_learning=without).details.plan
        for without in (False, True)
    ]
    assert [any(each.startswith(note) for each in plan.notes) for plan in sizes] == [True, False]
    assert sizes[0].best[0].step_time_s != sizes[1].best[0].step_time_s
    report, blind = (
        trainworks.score(PUBLISHED, collectives=True, without_learning=without) for without in (False, True)
    )
    assert any(note in each for each in report.notes)
    assert not blind.notes
    group = next(name for name in report.score.every.sources if "p4de" in name)  # type: ignore[union-attr]
    errors = [each.score.every.sources[group].mape for each in (report, blind)]  # type: ignore[union-attr]
    assert errors[0] < 0.4 * errors[1]


def test_a_plan_prints_measured_rates_as_figures(tmp_path: Path) -> None:
    learned(tmp_path, reduced())
    done = CliRunner().invoke(app, ["plan", RUN, "--on", "8x p4de.24xlarge", "--json", "--no-review"])
    (rate,) = json.loads(done.stdout)["measured"]
    assert (rate["rate"], rate["tool"], rate["limits"]) == ("scale_out", "nccl-tests 2.13.6", True)
    assert 1.2 < rate["of_expected"] < 1.3
    assert rate["latency_s"] > 1.3 * rate["expected_latency_s"]


def test_small_messages_have_the_printed_time_and_not_the_rounded_bandwidth(tmp_path: Path) -> None:
    found = learned(tmp_path, reduced())
    seconds = [each.measurement.conditions["seconds"] for each in found.judged]
    assert min(map(float, seconds)) == pytest.approx(161e-6)


@pytest.mark.parametrize("row", ["8388608", "536870912"])
def test_a_benchmark_with_an_impossible_collective_teaches_nothing(tmp_path: Path, row: str) -> None:
    with pytest.raises(ArgumentError, match="no figure that passed"):
        learned(tmp_path, reduced(row=row, bandwidth="1e15").replace("1e15 1e15", "1e15 1.875e15"))


def test_a_benchmark_whose_large_messages_fail_teaches_nothing(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no figure that passed"):
        learned(tmp_path, reduced(), expect="2 nodes of DGX A100 80GB")


def test_what_one_node_measured_holds_on_every_network_and_what_several_did_on_theirs_alone(tmp_path: Path) -> None:
    learned(tmp_path, reduced())
    other = planned("4 nodes of 8x A100-SXM-80GB over 8x HDR")
    assert not other.measured
    rate = MeasuredRate(rate="memory", kind="device_memory_bandwidth", of_expected=0.9, tool="nvbandwidth 0.8")
    one = ClusterMeasurement(created_at=0.0, cluster=parse_cluster("8x A100-SXM-80GB"), rates=(rate,))
    append_measurement(data_folder("clusters"), one)
    assert [each.rate for each in planned("4 nodes of 8x A100-SXM-80GB over 8x HDR").measured] == ["memory"]
    assert [each.rate for each in planned().measured] == ["memory", "scale_out"]


def test_score_predicts_runs_with_the_products_that_one_node_measured(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "id,model,gpu,num_gpus,seq_len,global_batch,recompute\n7b,Llama2-7B,A100-80GB,128,4096,256,none\n",
        encoding="utf-8",
    )
    rate = MeasuredRate(rate="products", kind="gemm", of_expected=0.7, tool="torch 2.9")
    one = ClusterMeasurement(created_at=0.0, cluster=parse_cluster("8x A100-SXM-80GB"), rates=(rate,))
    append_measurement(data_folder("clusters"), one)
    (after,), (before,) = (trainworks.score(table, without_learning=without).rows for without in (False, True))
    assert isinstance(after, PredictedRun) and isinstance(before, PredictedRun)
    assert 1.2 < after.step_time_s / before.step_time_s < 1 / 0.7
    assert after.high_s / after.low_s < before.high_s / before.low_s
    (note,) = trainworks.score(table).notes
    assert "matrix products: measured 0.70 of the catalogue's rate on 1970-01-01 by torch 2.9" in note


def test_the_newest_log_counts_and_not_the_one_that_was_read_last(tmp_path: Path) -> None:
    new, old = tmp_path / "new.log", tmp_path / "old.log"
    new.write_text(reduced(), encoding="utf-8")
    old.write_text(re.sub(r"sum -1 (\d+)", lambda found: f"sum -1 {4 * int(found[1])}", reduced()), encoding="utf-8")
    os.utime(old, (1e9, 1e9))
    trainworks.read_bench([new], expect=P4DE, learn=True)
    rates = planned().measured
    trainworks.read_bench([old], expect=P4DE, learn=True)
    assert planned().measured == rates


def test_a_stored_line_with_an_absurd_rate_is_left_out(tmp_path: Path) -> None:
    path = learned(tmp_path, reduced()).learned
    assert path is not None
    rates = planned().measured
    line = json.loads(path.read_text(encoding="utf-8"))
    line |= {"created_at": 2e9, "curves": [], "rates": [{"rate": "memory", "kind": "gemm", "of_expected": 1e15}]}
    path.write_text(f"{path.read_text(encoding='utf-8')}{json.dumps(line)}\n", encoding="utf-8")
    assert planned().measured == rates
