"""Ten goals, each bought, rented and on a cluster that is there: from the goal to the bill without an editor.

`size` writes a run file, a stack file and an order list, and the commands behind it take them as they are. None refuses
what the one before wrote, and accelerators, time limit, network and price are the same in all.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trainworks.api.bench import accept_cluster
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.stack_cluster import read_cluster
from trainworks.cli.app import app
from trainworks.config.run_file import RunFile
from trainworks.config.stack_parts.words import FILL_IN
from trainworks.deploy.verification import ClusterVerification, NodeVerdict
from trainworks.units import parse_duration

LLAMA_405B = "{architecture: llama, layers: 126, hidden: 16384, heads: 128, kv_heads: 8, feed_forward: 53248}"
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 14,
        "num_channels": 3,
    },
}
"""Model folders that lie beside the run files."""


def text(model: str, sequence_length: int, batch: int, amount: str, data: str = "", more: str = "") -> str:
    """A workload that trains on text."""
    source = f"source: python-stdlib, sequence_length: {sequence_length}{data}"
    return f"""\
workload:
  task: causal-lm
  model: {model}
  data: {{{source}}}
  precision: bf16
  global_batch: {batch}
  train_for: {amount}
{more}"""


IMAGES = """\
workload:
  task: image-classification
  model: {hf: vit}
  data: {source: photos, image_size: 224}
  precision: bf16
  global_batch: 4096
  train_for: 20000 steps
"""


@dataclass(frozen=True)
class Goal:
    """What is wanted, options of `size`, and the cluster of those who have one."""

    workload: str
    goal: str
    there: str
    options: tuple[str, ...] = ()
    to_buy: tuple[str, ...] = ()


LORA = text(
    "{hf: llama, weights: pretrained}",
    2048,
    32,
    "2000 steps",
    ", tokenizer: llama/tokenizer.json",
    "  adapter: {rank: 16}\n",
)
GOALS = {
    "small": Goal(text("{preset: gpt2}", 1024, 512, "10B tokens"), "deadline: 12h", "4 nodes of DGX A100"),
    "middle": Goal(
        text("{preset: llama3-8b}", 8192, 128, "20B tokens"),
        "deadline: 36h",
        "12 nodes of DGX H100 at 2:1",
        ("--only", "H100"),
    ),
    "budget": Goal(
        text("{preset: llama2-7b}", 4096, 256, "5B tokens"),
        "budget: 1500 USD",
        "16 nodes of 8x A100-SXM-80GB over 4x HDR",
        ("--only", "A100"),
        ("--budget", "700000 USD"),
    ),
    "adapter": Goal(LORA, "deadline: 6h", "3 nodes of 4x L40S over 2x RoCE 100", ("--only", "H100")),
    "experts": Goal(
        text("{preset: mixtral-8x7b}", 4096, 512, "400B tokens"),
        "deadline: 30d",
        "20 nodes of DGX H100",
        ("--only", "H100"),
    ),
    "large": Goal(
        text(LLAMA_405B, 8192, 2048, "1T tokens", ", vocabulary: 128256"),
        "deadline: 60d, budget: 200000000 USD",
        "300 nodes of DGX B200",
        ("--only", "B200", "--only", "H200"),
    ),
    "images": Goal(IMAGES, "deadline: 4h", "4 nodes of DGX H100", ("--only", "H100")),
    "one-node": Goal(
        text("{preset: llama3-8b}", 4096, 64, "500M tokens"), "deadline: 1d", "DGX H100", ("--largest", "1")
    ),
    "racks": Goal(
        text("{preset: llama3-70b}", 8192, 1024, "1T tokens"),
        "deadline: 30d",
        "12 racks of GB200 NVL72",
        ("--only", "GB200"),
    ),
    "huge": Goal(
        text("{preset: llama3-70b}", 8192, 16384, "15T tokens"),
        "deadline: 12d",
        "12500 nodes of DGX H100",
        ("--only", "H100", "--largest", "16384"),
    ),
}
WAYS = ("bought", "rented", "there")
WAYS_OF = {
    "small": ("bought",),
    "middle": ("rented", "there"),
    "budget": ("bought", "there"),
    "adapter": ("there", "rented"),
    "experts": ("rented",),
    "large": ("bought",),
    "images": ("rented",),
    "one-node": ("bought", "there"),
    "racks": ("bought", "rented"),
    "huge": ("there",),
}
"""Every goal, and every way five times; at night each goal goes all of them."""
QUICK = {("middle", "rented"), ("adapter", "there"), ("racks", "bought")}
"""Cases of `make test`."""


class Chain:
    """One goal on its way, by the commands alone."""

    def __init__(self, name: str, way: str, folder: Path) -> None:
        self.goal, self.way, self.folder = GOALS[name], way, folder
        cluster = ""
        if name == "racks" and way == "rented":  # no offer has any: a cluster that is there, at a price
            cluster = f"cluster: {{engine: slurm, of: {self.goal.there}, usd_per_accelerator_hour: 4.5}}\n"
        if way == "there":
            pods = "kubernetes: {image: registry.example/train:1, volume: runs}"
            cluster = f"cluster: {{engine: kubernetes, of: {self.goal.there}, {pods}}}\n"
        self.is_there = bool(cluster)
        written = f"name: {name}\n{self.goal.workload}{cluster}goal: {{{self.goal.goal}}}\n"
        (folder / "goal.yaml").write_text(written, encoding="utf-8")
        for model, config in CONFIGS.items():
            (folder / model).mkdir()
            (folder / model / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "llama" / "tokenizer.json").write_text("{}", encoding="utf-8")
        (folder / "photos" / "cats").mkdir(parents=True)
        shutil.copy("docs/images/report.png", folder / "photos" / "cats" / "cat.png")
        self.sized = json.loads(self.run("size", "goal.yaml", *self._options(), *FILES, "--json"))
        stack = folder / "stack.yaml"
        stack.write_text(re.sub(rf"\s*{FILL_IN}.*", "", stack.read_text(encoding="utf-8")), encoding="utf-8")

    def _options(self) -> tuple[str, ...]:
        if self.is_there:
            return ()
        contract = {"bought": "own", "rented": "on-demand"}[self.way]
        extra = self.goal.to_buy if self.way == "bought" else ()
        return ("--engine", "slurm", "--contract", contract, *self.goal.options, *extra)

    def run(self, *arguments: str) -> str:
        """What a command prints in the folder of the chain; it has to succeed."""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == 0, f"{' '.join(arguments)}: {done.exception!r}\n{done.stderr}"
        return done.stdout

    def printed(self, *arguments: str) -> str:
        """What a command prints on both streams, on one line."""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == 0, f"{' '.join(arguments)}: {done.exception!r}\n{done.stderr}"
        return " ".join(done.output.split())

    @property
    def proposal(self) -> dict[str, Any]:
        return self.sized["proposal"]

    @cached_property
    def run_file(self) -> RunFile:
        return RunFile.model_validate(yaml.safe_load((self.folder / "run.yaml").read_text(encoding="utf-8")))

    @cached_property
    def planned(self) -> dict[str, Any]:
        return json.loads(self.run("plan", "run.yaml", "--json"))

    @cached_property
    def priced(self) -> dict[str, Any]:
        return json.loads(self.run("cost", "run.yaml", "--json"))

    @cached_property
    def submission(self) -> str:
        """What would be submitted."""
        return self.printed("submit", "--dry-run", "run.yaml")

    @cached_property
    def stack(self) -> ClusterDescription:
        return read_cluster(str(self.folder / "stack.yaml"))

    @cached_property
    def whole(self) -> ClusterDescription:
        """All nodes of `cluster.of` of the written run file."""
        return read_cluster(self.run_file.cluster.of or "")


FILES = ("--write", "run.yaml", "--write-stack", "stack.yaml", "--bill", "bill.csv")


def lane(name: str, way: str) -> str:
    """The smallest lane of a case."""
    return "test" if (name, way) in QUICK else "test-all" if way in WAYS_OF[name] else "nightly"


def cases() -> list[Any]:
    return [
        pytest.param((name, way), marks=pytest.mark.lane(lane(name, way)), id=f"{name}-{way}")
        for name in GOALS
        for way in WAYS
    ]


@pytest.fixture(scope="module", params=cases())
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    name, way = request.param
    return Chain(name, way, tmp_path_factory.mktemp("goal"))


def test_the_same_accelerators_are_planned_priced_measured_and_requested(chain: Chain) -> None:
    proposal, per_node = chain.proposal, chain.stack.accelerators_per_node
    nodes, accelerators = proposal["num_nodes"], proposal["accelerators"]
    assert nodes * per_node == accelerators
    assert chain.planned["cluster"]["num_nodes"] == nodes
    assert chain.planned["cluster"]["accelerator"]["name"] == chain.stack.accelerator.name
    assert chain.priced["num_accelerators"] == accelerators
    for said in (chain.printed("bench", "all", "--dry-run", "--cluster", "run.yaml"), chain.submission):
        if chain.way == "there":
            assert f"parallelism: {nodes} " in said and f"nvidia.com/gpu: '{per_node}'" in said
        else:
            assert f"--nodes={nodes} " in said and f":{per_node} " in said.partition("--gres=gpu:")[2]
    action = chain.sized["verdict"]["action"]
    assert f"{nodes:,} " in action and f"({accelerators:,} " in action


def test_the_deadline_is_the_time_limit_of_the_job_and_its_partition_takes_it(chain: Chain) -> None:
    limit_s = chain.run_file.job.time_limit
    deadline = re.search(r"deadline: (\w+)", chain.goal.goal)
    assert limit_s == (parse_duration(deadline[1]) if deadline else None)
    said = chain.submission
    if chain.way == "there":
        found = re.search(r"activeDeadlineSeconds: (\d+)", said)
        assert (None if found is None else int(found[1])) == limit_s
    else:
        found = re.search(r"--time=(\d+)-(\d+):00:00", said)
        assert (None if found is None else (24 * int(found[1]) + int(found[2])) * 3600) == limit_s
    stack = yaml.safe_load((chain.folder / "stack.yaml").read_text(encoding="utf-8"))
    most_s = int(stack["slurm"]["partitions"][0]["max_time"].partition("-")[0]) * 86400
    assert most_s >= (limit_s or chain.proposal["p90_s"])


def test_the_stack_and_the_order_list_have_all_nodes_of_the_run_file_and_their_network(chain: Chain) -> None:
    assert chain.run("deploy", "check", "stack.yaml").strip() == "Use it as it is: nothing found in 1 file."
    assert "slurm.conf" in chain.run("deploy", "render", "stack.yaml", "--into", "project")
    stack, whole, plan = chain.stack, chain.whole, chain.planned["cluster"]
    same = ("num_nodes", "nics", "node_bytes_per_s", "network", "oversubscription", "accelerators_per_node")
    assert [getattr(stack, name) for name in same] == [getattr(whole, name) for name in same]
    assert [plan[name] for name in same[1:]] == [getattr(whole, name) for name in same[1:]]
    written = yaml.safe_load((chain.folder / "stack.yaml").read_text(encoding="utf-8"))
    if "fabric" in written:  # a cloud's own network has no design
        design = json.loads(chain.run("network", "--on", "stack.yaml", "--json"))["design"]
        assert (design["nodes"], design["endpoints"]) == (whole.num_nodes, whole.num_nodes * whole.nics)
        assert design["oversubscription"] == pytest.approx(whole.oversubscription, rel=0.35)  # the worst cut, or less
    with (chain.folder / "bill.csv").open(encoding="utf-8") as file:
        bill = list(csv.DictReader(file))
    if chain.is_there:
        assert bill == []
        return
    in_a_rack = re.search(r"of (\d+) nodes", bill[0]["item"])
    ordered = int(bill[0]["count"]) * (int(in_a_rack[1]) if in_a_rack else 1)
    assert ordered == whole.num_nodes == chain.proposal["num_nodes"] + chain.proposal["spares"]
    if chain.way == "bought":
        assert chain.proposal["purchase_usd"] == pytest.approx(chain.priced["owning_capex_usd"])
        assert int(bill[-1]["total_usd"]) == round(chain.proposal["purchase_usd"])
        assert (in_a_rack is not None) is ("NVL72" in whole.name)


def test_one_price_of_an_hour_is_behind_every_cost(chain: Chain) -> None:
    usd = chain.run_file.cluster.usd_per_accelerator_hour
    assert usd is not None
    hours = chain.proposal["accelerators"] * chain.proposal["p50_s"] / 3600
    assert chain.proposal["cost_usd"] == pytest.approx(usd * hours, rel=1e-3, abs=0.01)
    is_own = chain.run_file.cluster.contract == "own"
    assert is_own is (chain.way != "rented")
    assert chain.priced["hours"] == pytest.approx(chain.proposal["p50_s"] / 3600, rel=1e-3)  # failures and all
    energy_wh = chain.sized["figures"]["energy"]["value"]
    assert chain.priced["energy_wh"] == pytest.approx(energy_wh, rel=1e-3)
    cost = chain.priced["num_accelerators"] * chain.priced["hours"] * usd
    if is_own:
        assert chain.priced["owning_usd"] == pytest.approx(cost, rel=1e-3)
    else:
        paid = {each["name"]: each["usd"]["on-demand"] for each in chain.priced["offers"]}
        assert paid["your price"] == pytest.approx(cost, rel=1e-3)
    assert f"at {usd:.2f} USD an hour" in chain.submission


def test_the_plan_gives_the_step_and_the_chance_of_the_proposal(chain: Chain) -> None:
    best, chosen = chain.planned["best"][0], chain.sized["layout"]
    assert best["layout"] == chosen["layout"]
    assert sum(best["terms_s"].values()) == pytest.approx(sum(chosen["terms_s"].values()), rel=1e-3)
    assert best["memory"] == chosen["memory"]


def test_an_acceptance_takes_the_run_file_and_the_stack_as_they_are(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node is reached: the first one differs from its stack, after which nothing is measured."""
    drift = ClusterVerification("hall", (NodeVerdict("gpu1", "clock", "fail", "1 s off", "synchronised"),))
    monkeypatch.chdir(chain.folder)
    found = accept_cluster("stack.yaml", "run.yaml", lambda: drift)
    assert (found.outcome, len(found.nodes)) == ("not accepted", chain.whole.num_nodes)
