"""Acceptance of a cluster: its verdict from its parts, and the plans that it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.bench.test_busy_nodes import NODES, node, report
from trainworks.api.bench import accept_cluster
from trainworks.cli.app import app
from trainworks.deploy.verification import ClusterVerification, NodeVerdict
from trainworks.errors import ArgumentError, EnvironmentProblem, UsageError
from trainworks.measure.bench.bench_report import BenchReport
from trainworks.measure.bench.node_record import BenchPart
from trainworks.measure.bench.short_training import ShortTraining
from trainworks.measure.bench.verdict import BenchVerdict
from trainworks.report.proving.cluster_verification import Acceptance
from trainworks.report.rendering.renderer import to_json

STACK = "examples/cluster/stack.yaml"
RUN = """\
name: news
workload:
  task: causal-lm
  model: {preset: gpt2}
  data: {source: python-stdlib, sequence_length: 1024}
  global_batch: 512
  train_for: 10B tokens
cluster: CLUSTER
"""
GOOD = report(*(node(index, 25e9) for index in range(5)))


def without(part: str, reason: str) -> BenchReport:
    """The good benchmark, but that the first node did not measure a part."""
    records = list(GOOD.records)
    records[0] = replace(records[0], parts=records[0].parts | {part: BenchPart(skipped=reason)})
    return replace(GOOD, records=tuple(records))


def accepted(outcome: str = "pass", bench: BenchReport | None = GOOD, training: str = "pass") -> Acceptance:
    """Five nodes that a stack names, with what was found on them."""
    verdict = NodeVerdict("a", "clock", outcome, "1 s off", "synchronised")  # type: ignore[arg-type]
    if bench is not None and training:
        done = ShortTraining(run="news-trial-1", verdict=BenchVerdict(training), reason="as planned")
        bench = replace(bench, training=done)
    return Acceptance(0.0, "0.1.0", "12ab", "34cd", ClusterVerification("hall", (verdict,)), NODES, bench)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (accepted(), "accepted"),
        (accepted("warn"), "accepted"),
        (accepted(bench=without("mpi", "MPI is not installed: no `mpirun`")), "accepted"),
        (accepted(bench=without("memory/device", "no accelerator")), "accepted"),
        (accepted(bench=without("devices", "torch is not installed on this node")), "not accepted"),
        (accepted(training=""), "not accepted"),
        (accepted(training="no expectation"), "not accepted"),
        (accepted(training="weak"), "accepted"),
        (accepted(training="fail"), "not accepted"),
        (accepted(training="busy: no verdict"), "no verdict"),
        (accepted("fail", None), "not accepted"),
        (accepted(bench=report(*(node(index, 25e9) for index in range(4)))), "not accepted"),
        (accepted(bench=report(*(node(index, 9e9) for index in range(5)))), "not accepted"),
        (accepted(bench=report(*(node(index, 25e9 if index else 9e9, load=0.5) for index in range(5)))), "no verdict"),
    ],
    ids=[
        "good",
        "warned",
        "no MPI",
        "no GPU",
        "no torch",
        "not trained",
        "no steps",
        "slow",
        "far too slow",
        "busy",
        "drift",
        "a node missing",
        "links",
        "a busy node",
    ],
)
def test_the_outcome_is_that_of_the_worst_part(found: Acceptance, outcome: str) -> None:
    assert found.outcome == outcome
    assert to_json(found)["outcome"] == outcome
    signals = {"accepted": ("go", "check"), "no verdict": ("check",), "not accepted": ("stop",)}
    assert found.verdict.signal in signals[outcome]
    assert (found.verdict.action == "Accept the cluster") == (outcome == "accepted")
    shown = str(found)
    assert f"outcome   {outcome}" in shown and "sha256 12ab" in shown
    assert ("not measured: e" in shown) is (found.missing == ("e",))
    assert ("not measured: devices of a: torch" in shown) is bool(found.bench and found.bench.unmeasured)


def unreachable() -> ClusterVerification:
    raise AssertionError("a node was asked")


def test_a_plan_for_other_nodes_than_those_of_the_stack_is_refused_before_a_node_is_reached(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(RUN.replace("CLUSTER", "{engine: slurm, of: 4 nodes of DGX A100}"))
    other = r"counts on 4 nodes of DGX A100 .* the stack has 4 nodes of DGX H100"
    with pytest.raises(ArgumentError, match=other):
        accept_cluster(STACK, run, unreachable, folder=tmp_path / "runs")
    run.write_text(RUN.replace("CLUSTER", "{engine: slurm, of: 8 nodes of DGX H100, nodes: 4}"))
    with pytest.raises(ArgumentError, match="counts on 8 nodes of DGX H100"):
        accept_cluster(STACK, run, unreachable, folder=tmp_path / "runs")
    run.write_text(
        RUN.replace("CLUSTER", "{engine: slurm, of: 4 nodes of DGX H100}").replace("gpt2", "llama3-70b")
        + "layout: {dp_replicate: 32}\n"
    )
    with pytest.raises(EnvironmentProblem, match="no layout fits 32 accelerators"):
        accept_cluster(STACK, run, unreachable, folder=tmp_path / "runs")
    run.write_text(RUN.replace("CLUSTER", "{engine: local}"))
    with pytest.raises(ArgumentError, match="measures the nodes of a cluster"):
        accept_cluster(STACK, run, unreachable, folder=tmp_path / "runs")
    assert [each.name for each in tmp_path.iterdir()] == ["run.yaml"]


def test_nodes_that_differ_from_their_stack_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drift = accepted("fail").verification
    monkeypatch.setattr("trainworks.api.deploying.verify_stack", lambda stack, into, force: drift)
    run = tmp_path / "run.yaml"
    run.write_text(RUN.replace("CLUSTER", f"{{engine: slurm, of: {Path(STACK).absolute()}}}"))
    command = ["deploy", "verify", STACK, "--into", str(tmp_path / "project"), "--bench", str(run)]
    done = CliRunner().invoke(app, [*command, "--runs", str(tmp_path / "runs"), "--json"])
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert (found["outcome"], found["bench"]) == ("not accepted", None)
    assert all(re.fullmatch("[0-9a-f]{64}", found[name]) for name in ("stack_sha256", "run_file_sha256"))
    assert not (tmp_path / "runs").exists()


def test_what_is_no_run_file_of_a_workload_is_placed_at_its_option(tmp_path: Path) -> None:
    for other in (STACK, "examples", "examples/digits-ddp.yaml"):
        command = ["deploy", "verify", STACK, "--into", str(tmp_path), "--bench", other]
        refused = CliRunner().invoke(app, command).exception
        assert isinstance(refused, UsageError)
        assert (refused.message, refused.place) == ("a training needs a workload", "--bench")


@pytest.mark.parametrize("extra", [["check"], ["verify", "--limit", "gpu1"]], ids=["check", "some hosts"])
def test_a_part_of_a_cluster_is_not_accepted(extra: list[str], tmp_path: Path) -> None:
    step, *limit = extra
    command = ["deploy", step, STACK, "--into", str(tmp_path), "--bench", "run.yaml", *limit]
    with pytest.raises(UsageError, match="accepts a whole cluster"):
        CliRunner().invoke(app, command, catch_exceptions=False)
