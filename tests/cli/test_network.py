"""`trainworks network`: what it prints for clusters of four sizes, what it writes, what it refuses."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.program import trainworks_program
from trainworks import files
from trainworks.cli.planning.network import network_command
from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError

RUN = """\
name: experts
workload:
  task: causal-lm
  model: {preset: qwen3-30b-a3b}
  data: {sequence_length: 4096}
  precision: bf16
  global_batch: 1024
  train_for: 1000 steps
cluster: 128 nodes of DGX H100
layout: {dp_shard: 1024, ep: 64, micro_batch: 1}
"""
SIXTEEN = ("--on", "16 nodes of DGX A100")
WRONG: list[dict[str, Any]] = [
    {"on": "16 nodes of DGX A101"},
    {"on": "1x H100"},
    {},
    {"on": "4x p4d.24xlarge"},
    {"topology": "moebius"},
    {"topology": "mesh"},
    {"topology": "dragonfly+"},
    {"topology": "ring", "on": "4 nodes of 8x L4"},
    {"oversubscription": "0.5"},
    {"oversubscription": "999:1", "topology": "spine-leaf"},
    {"oversubscription": "two"},
    {"oversubscription": "2:1", "on": "16 nodes of DGX A100 at 4:1"},
    {"switch": "QM8800"},
    {"switch": "64x 100 Gb/s"},
    {"switch": "64x"},
    {"spare_slots": -1},
    {"on": "300 nodes of DGX H100", "topology": "spine-leaf", "switch": "QM9700"},
    {"on": "100000 nodes of DGX A100", "switch": "QM8700"},
    {"draw": Path("network.png")},
    {"draw": Path("no/such/network.svg")},
    {"cables": Path()},
    {"switch_price": "30000"},
    {"explain": "bisecton"},
    {"run_file": Path("no-such-folder/nope.yaml")},
]


def network(*arguments: str, folder: Path | None = None) -> str:
    done = trainworks_program("network", *arguments, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("nodes", "of"), [(4, "DGX A100"), (16, "DGX A100"), (32, "DGX A100"), (1024, "DGX B200")])
def test_the_network_of_a_cluster(golden, nodes: int, of: str) -> None:
    golden(f"network_{nodes}.txt", network("--on", f"{nodes} nodes of {of}"))


def test_the_network_of_a_run_has_the_messages_of_its_layout(golden, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    golden("network_run.txt", network("run.yaml", "--oversubscription", "2", folder=tmp_path))


def test_prices_and_power_that_were_given_are_added_up(golden) -> None:
    prices = (
        "--switch-price",
        "20000 USD",
        "--cable-price",
        "$200",
        "--nic-price",
        "1500 USD",
        "--switch-power",
        "500",
    )
    golden("network_prices.txt", network(*SIXTEEN, "--topology", "spine-leaf", *prices))


def test_a_figure_is_explained_down_to_its_facts(golden) -> None:
    golden("network_explain.txt", network(*SIXTEEN, "--topology", "rail-optimised", "--explain", "switches"))


def test_json_has_base_units(golden) -> None:
    answer = json.loads(network(*SIXTEEN, "--json"))
    assert answer["design"]["bisection_bytes_per_s"] == 64 * 25e9
    assert answer["design"]["switches"] == {"switch": 4}
    assert {"spine-leaf", "rail-optimised"} <= {each["topology"] for each in answer["topologies"]}
    golden("network_keys.txt", "\n".join(keys(answer)) + "\n")


def keys(value: Any, path: str = "") -> list[str]:
    """Paths of all values; of a list those of its first element."""
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in keys(each, f"{path}.{key}" if path else key)]
    return keys(value[0], f"{path}[]") if isinstance(value, list) and value else [path]


def test_the_cable_plan_has_a_row_for_each_link(tmp_path: Path) -> None:
    network(*SIXTEEN, "--topology", "rail-optimised", "--cables", "cables.csv", folder=tmp_path)
    rows = list(csv.DictReader((tmp_path / "cables.csv").read_text().splitlines()))
    assert len(rows) == 256
    assert all(row["length_m"] for row in rows)


@pytest.mark.parametrize("topology", ["rail-optimised", "ring"])
def test_the_order_list_has_the_counts_of_the_plan(tmp_path: Path, topology: str) -> None:
    options = ["--topology", topology, "--cable-price", "100 USD", "--bill", "bill.csv", "--json"]
    plan = {item["name"]: item["count"] for item in json.loads(network(*SIXTEEN, *options, folder=tmp_path))["bill"]}
    rows = list(csv.DictReader((tmp_path / "bill.csv").read_text().splitlines()))
    rows = [row for row in rows if row["part"] not in ("spares", "total")]
    cables = [row for row in rows if row["item"].startswith("cable of ")]
    others = {row["item"]: int(row["count"]) for row in rows if row["part"] == "compute" and row not in cables}
    assert sum(int(row["count"]) for row in cables) == plan.pop("cable")
    assert all(float(row["total_usd"]) == 100 * int(row["count"]) for row in cables)
    assert others.items() >= plan.items()
    assert others["DGX A100"] == 16
    assert {row["part"] for row in rows} == {"compute", "storage", "management", "room"}
    nodes = next(row for row in rows if row["item"] == "DGX A100")
    assert (nodes["each_w"], nodes["total_w"]) == ("6500", "104000")
    units = {row["item"]: row["count"] for row in rows if row["item"].startswith("power distribution unit for ")}
    assert units == {
        "power distribution unit for 19.5 kW": "12",
        "power distribution unit for switches": units["power distribution unit for switches"],
    }


def test_the_drawing_is_an_svg(tmp_path: Path) -> None:
    network(*SIXTEEN, "--draw", "network.svg", folder=tmp_path)
    assert ET.parse(tmp_path / "network.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_drawing_is_a_graphviz_graph(tmp_path: Path) -> None:
    network(*SIXTEEN, "--draw", "network.dot", folder=tmp_path)
    assert (tmp_path / "network.dot").read_text().startswith('graph "16 nodes of DGX A100" {')


def test_on_replaces_the_cluster_of_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN.replace("1024, ep", "512, ep"))
    answer = json.loads(network("run.yaml", "--on", "64 nodes of DGX H100", "--json", folder=tmp_path))
    assert answer["design"]["nodes"] == 64


def test_what_is_wrong_is_said_with_the_limit_and_the_next_step(golden) -> None:
    answers = []
    for asked in WRONG:
        sixteen = {} if not asked or "run_file" in asked else {"on": SIXTEEN[1]}
        with pytest.raises(UsageError) as error:
            network_command(**(sixteen | asked))
        written = ", ".join(f"{name}={value}" for name, value in asked.items())
        answers.append(f"{written or 'nothing'}\n{error.value.render()}\n")
    golden("network_errors.txt", "\n".join(answers))


def test_a_wrong_request_is_a_usage_error_and_leaves_stdout_to_data() -> None:
    done = trainworks_program("network", *SIXTEEN, "--topology", "moebius")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no topology `moebius`\n")


def test_nothing_is_written_when_the_request_is_wrong(tmp_path: Path) -> None:
    trainworks_program("network", *SIXTEEN, "--topology", "moebius", "--draw", "network.svg", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(DiskFullError("no space left"), DiskFullError), (PermissionError(13, "Permission denied"), EnvironmentProblem)],
)
def test_a_file_that_cannot_be_written_is_a_problem_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: Exception, expected: type[Exception]
) -> None:
    def refuse(path: Path, content: str) -> None:
        raise raised

    monkeypatch.setattr(files, "write_atomic", refuse)
    with pytest.raises(expected) as problem:
        network_command(on=SIXTEEN[1], draw=tmp_path / "network.svg")
    assert problem.value.place == "--draw"  # type: ignore[attr-defined]


@pytest.mark.parametrize("watts", ["inf", "nan"])
def test_a_power_that_no_switch_has_is_refused(watts: str) -> None:
    with pytest.raises(UsageError, match="is not a power in watts"):
        network_command(on=SIXTEEN[1], switch_power=float(watts))


def test_a_switch_whose_ports_are_written_in_bytes_is_noted() -> None:
    printed = " ".join(network(*SIXTEEN, "--switch", "64x 400 GB/s").split())
    assert "--switch: `400 GB/s` is 3,200 Gb/s; write `400 Gb/s` if you mean bits" in printed
