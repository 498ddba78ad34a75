"""The answers of `trainworks health`: text, JSON, Slurm, node-problem-detector, and the nodes of a fleet."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trainworks
from tests.health.machine import Machine, healthy
from trainworks.api.proving.health import drain_unhealthy, fleet_health, health
from trainworks.backends.slurm.client import SlurmClient
from trainworks.cli.app import app
from trainworks.errors import ArgumentError, UsageError
from trainworks.host.process import Output
from trainworks.measure.health.expectation import expectation_of, expected_cluster
from trainworks.measure.health.node_health import NodeHealth, check_node, odd_ones_out
from trainworks.recover.node_history import NodeHistory
from trainworks.report.proving.health import drain_reason, npd_line, prolog_lines
from trainworks.units import DAY_S


def bad(machine: Machine) -> Machine:
    machine.nvml.gpus[3]["lost"] = True
    machine.write("proc/mounts", "/dev/md0 / ext4 rw 0 0\nfs1:/export /shared nfs4 rw,hard 0 0")
    return machine


@pytest.fixture
def good_node(tmp_path: Path) -> NodeHealth:
    return check_node(healthy(tmp_path).view())


@pytest.fixture
def bad_node(tmp_path: Path) -> NodeHealth:
    return check_node(bad(healthy(tmp_path)).view())


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["health", *arguments])
    return done.exit_code, done.stdout


def test_the_text_names_finding_limit_and_action(bad_node: NodeHealth) -> None:
    assert "2 failed" in str(bad_node)
    page = html.unescape(bad_node.to_html())
    for part in ("GPU 3 does not answer", "as many as expected", "reboot the node", "/scratch is not mounted"):
        assert part in page


def test_what_every_reader_gets(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.expect = "8x H100-SXM-80GB, 8x NDR"
    machine.nvml.gpus[3]["rows"] = (0, 1, 1, 0)
    machine.write("sys/class/infiniband/mlx5_5/ports/1/rate", "200 Gb/sec (4X HDR)")
    machine.write("proc/sys/kernel/numa_balancing", "1")
    machine.log.append("[399000.5] NVRM: Xid (PCI:0000:04:00): 48, pid=411, name=python, DBE")
    node = replace(check_node(machine.view()), seconds=0.02)
    said = [str(node), *prolog_lines(node), drain_reason(node), npd_line(node)]
    golden("health.txt", "\n".join(said) + "\n")


def test_the_text_of_a_good_node_says_so(good_node: NodeHealth) -> None:
    assert "nothing wrong" in str(good_node)


def test_json_has_every_check_with_its_source(bad_node: NodeHealth) -> None:
    report = bad_node.to_json()
    assert (report["node"], report["verdict"]) == ("node17", "failed")
    first = report["checks"][0]
    assert (first["check"], first["verdict"]) == ("gpu-count", "failed")
    assert first["source"].startswith("https://")
    assert report["facts"]["NIC firmware"] == "8x 28.39.1002"


def test_a_prolog_prints_a_line_for_each_failure(good_node: NodeHealth, bad_node: NodeHealth) -> None:
    assert prolog_lines(good_node) == []
    lines = prolog_lines(bad_node)
    assert len(lines) == 2
    assert all(line.startswith("print trainworks health: ") for line in lines)


def test_node_problem_detector_gets_one_line_of_80_bytes(good_node: NodeHealth, bad_node: NodeHealth) -> None:
    for each in (good_node, bad_node):
        line = npd_line(each)
        assert len(line.encode()) <= 80
        assert "\n" not in line
    assert npd_line(bad_node).startswith("gpu-count: GPU 3 does not answer")
    assert npd_line(bad_node).endswith(" +1 checks")


def test_a_long_line_is_not_cut_inside_a_character(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.write("etc/fstab", f"fs1:/x /{'ä' * 60} nfs4 hard 0 0")
    line = npd_line(check_node(machine.view()))
    assert len(line.encode()) <= 80
    assert "\ufffd" not in line


class SlurmOfOneNode:
    """scontrol, which knows the state of a node and writes down what it is asked."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.updates: list[list[str]] = []

    def __call__(self, command: list[str], **_: object) -> Output:
        if command[1] == "show":
            return Output(0, f"NodeName={command[3]} Arch=x86_64 State={self.state} ThreadsPerCore=2", "")
        self.updates.append(command)
        return Output(0, "", "")


@pytest.mark.parametrize(("state", "drained"), [("IDLE", True), ("MIXED", True), ("IDLE+DRAIN", False)])
def test_a_bad_node_is_drained_unless_it_is_already(state: str, drained: bool, bad_node: NodeHealth) -> None:
    slurm = SlurmOfOneNode(state)
    assert drain_unhealthy(bad_node, drain_reason(bad_node), SlurmClient(run=slurm)) is drained
    assert bool(slurm.updates) is drained
    if drained:
        assert slurm.updates[0][1:4] == ["update", "NodeName=node17", "State=DRAIN"]
        assert slurm.updates[0][4].startswith("Reason=trainworks: gpu-count: GPU 3")


def test_a_good_node_is_not_asked_about(good_node: NodeHealth) -> None:
    slurm = SlurmOfOneNode("IDLE")
    assert not drain_unhealthy(good_node, "", SlurmClient(run=slurm))
    assert slurm.updates == []


@pytest.mark.parametrize("reader", ["text", "prolog", "npd"])
def test_the_exit_code_says_whether_a_check_failed(
    reader: str, good_node: NodeHealth, bad_node: NodeHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, code in ((good_node, 0), (bad_node, 1)):
        monkeypatch.setitem(vars(trainworks), "health", lambda *_, node=node, **__: node)
        assert call("--as", reader)[0] == code


def test_this_machine_can_be_checked() -> None:
    code, said = call("--json")
    report = json.loads(said)
    assert code == (1 if report["verdict"] == "failed" else 0)
    assert len(report["checks"]) >= 40
    assert {each["verdict"] for each in report["checks"]} <= {"ok", "warning", "failed", "unknown", "not applicable"}


def test_what_is_expected_may_be_a_run_file(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("name: a\nrun: python train.py\ncluster: 4x p4d.24xlarge\n")
    result = health(str(run))
    count = next(each for each in result.results if each.check == "gpu-count")
    assert count.problems[-1].endswith("8 expected")


@pytest.mark.parametrize(
    ("text", "nics", "rate"),
    [
        ("8x H100-SXM-80GB, 8x NDR", 8, 50e9),
        ("DGX H100", 8, 50e9),
        ("2x p5.48xlarge", 32, None),
        ("8x H100-SXM-80GB", None, None),
        ("4 nodes of 8x H100 over 25GbE", None, None),
    ],
)
def test_nics_are_expected_where_linux_has_rdma_devices(text: str, nics: int | None, rate: float | None) -> None:
    expected = expectation_of(expected_cluster(text))
    assert (expected.accelerators, expected.nics, expected.nic_bytes_per_s) == (8, nics, rate)


@pytest.mark.parametrize("text", ["9x Nothing", "", "8x H100, 8x NDR, 2x more"])
def test_an_expectation_that_describes_nothing_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        health(text)


def test_the_odd_ones_out_of_a_fleet_are_named(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b", "c"):
        machine = healthy(tmp_path / name)
        machine.write("proc/sys/kernel/hostname", name)
        if name == "c":
            machine.write("sys/class/infiniband/mlx5_3/fw_ver", "28.36.1010")
            machine.nvml.gpus[0]["lost"] = True
        if name == "b":
            machine.history = NodeHistory(score=4.0, failures=3, held_s=DAY_S)
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(check_node(machine.view()).to_json()))
    fleet = fleet_health(files)
    odd = {each.fact: (each.usual, each.value, each.nodes) for each in fleet.odd}
    assert odd["NIC firmware"] == ("8x 28.39.1002", "7x 28.39.1002, 1x 28.36.1010", ("c",))
    assert odd["GPUs"] == ("8x NVIDIA H100 80GB HBM3", "7x NVIDIA H100 80GB HBM3", ("c",))
    assert [node.name for node in fleet.failing] == ["c"]
    assert {node.name: node.history for node in fleet.nodes if node.history} == {
        "b": "3 failures in 1.0 days under jobs, score 4.0"
    }
    assert "3 nodes: 1 fail, 1 differ" in str(fleet)
    code, said = call("--nodes", *map(str, files))
    assert code == 1
    assert "28.36.1010" in said
    assert "Failed under earlier jobs" in said


def test_a_fleet_with_a_node_that_its_cluster_does_not_know_drains_none(tmp_path: Path) -> None:
    report = check_node(bad(healthy(tmp_path)).view()).to_json()
    (tmp_path / "a.json").write_text(json.dumps(report))
    refused = CliRunner().invoke(app, ["health", "--nodes", str(tmp_path / "a.json"), "--drain", "local"]).exception
    assert isinstance(refused, UsageError)
    assert "has no node `node17`" in refused.message


def test_draining_needs_the_files_of_a_fleet() -> None:
    assert isinstance(CliRunner().invoke(app, ["health", "--drain", "slurm"]).exception, UsageError)


def test_a_node_has_the_name_that_kubernetes_gives_it(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.environment["NODE_NAME"] = "gpu-12"
    assert check_node(machine.view()).node == "gpu-12"


def test_a_fleet_of_equals_has_no_odd_ones(tmp_path: Path) -> None:
    facts = {"driver": "580.95.05"}
    assert odd_ones_out({"a": facts, "b": facts}) == []
    both = odd_ones_out({"a": facts, "b": {"driver": "570.1"}})
    assert [(each.usual, each.value, each.nodes) for each in both] == [("", "570.1", ("b",)), ("", "580.95.05", ("a",))]
    assert odd_ones_out({"a": facts, "b": facts, "c": {}})[0].value == ""


@pytest.mark.parametrize("content", ["{}", "not JSON", "[1]", '{"node": 1, "checks": [], "facts": []}'])
def test_a_file_that_is_no_report_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not the report of a node"):
        fleet_health([path])


def test_files_and_the_flag_belong_together(tmp_path: Path) -> None:
    for arguments in (["--nodes"], [str(tmp_path)]):
        assert isinstance(CliRunner().invoke(app, ["health", *arguments]).exception, UsageError)


def test_a_folder_with_blanks_and_quotes_reaches_the_program_whole(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    trap = tmp_path / "trap"
    machine.write("proc/mounts", f"fs1:/x /a\\040b;touch\\040{shlex.quote(str(trap))} nfs4 rw 0 0")
    check_node(machine.view())
    assert not trap.exists()
