"""Examples that describe a cluster are planned as they stand; the others run in the other tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainworks.cli.app import app
from trainworks.config.run_description import load_tasks

EXAMPLES = Path(__file__).parents[2] / "examples"
DESCRIBED = [path for path in sorted(EXAMPLES.glob("*.yaml")) if load_tasks(path)[0][0].cluster.engine == "described"]


def planned(example: Path, *options: str) -> Any:
    """The plan of an example as JSON."""
    result = CliRunner().invoke(app, ["plan", str(example), *options, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement of the machine that tests run on changes a plan."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path))


def test_there_is_an_example_that_describes_a_cluster() -> None:
    assert DESCRIBED


@pytest.mark.parametrize("example", DESCRIBED, ids=lambda path: path.name)
def test_an_example_of_a_described_cluster_is_planned(example: Path) -> None:
    plan = planned(example)
    assert plan["best"][0]["low_s"] < plan["best"][0]["step_time_s"] < plan["best"][0]["high_s"]


def test_twelve_hours_of_llama_2_7b_on_eight_a100_are_about_one_and_a_half_billion_tokens() -> None:
    plan = planned(EXAMPLES / "plan-llama-2-7b.yaml")
    assert 9 < plan["run_time_s"] / 3600 < 15


def test_four_nodes_over_plain_ethernet_are_slower_than_one_with_data_parallelism_alone() -> None:
    example = EXAMPLES / "plan-llama-2-7b.yaml"
    slow = ["--on", "4 nodes of 8x A100-SXM-80GB over TCP 25", "--explain", "tp=1,pp=1,cp=1"]
    assert planned(example, *slow)["asked"]["step_time_s"] > planned(example)["best"][0]["step_time_s"]
