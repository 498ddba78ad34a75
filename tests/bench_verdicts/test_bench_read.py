"""`bench read`: verdicts on files, and a planner that learns from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

import trainworks
from trainworks.cli.app import app
from trainworks.errors import ArgumentError, UsageError

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
