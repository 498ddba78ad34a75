"""`trainworks cost`: what it prints of a year and of a run, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.program import trainworks_program
from trainworks.api.cost import parse_assumptions
from trainworks.cli.app import app
from trainworks.errors import TrainworksError, UsageError

RUN = """\
name: llama
workload:
  task: causal-lm
  model: {preset: tinyllama-1.1b}
  data: {sequence_length: 2048}
  precision: bf16
  global_batch: 512
  train_for: 10000 steps
cluster: 64x H100
"""
TABLE = """\
accelerator,accelerators,on_demand_usd_h,spot_usd_h,name,provider
H100,8,20,5,mine,me
H100,8,20,7,mine,me
H100,8,20,9,mine,me
"""
REFUSED = [
    "",
    "--on H999",
    "--on 'DGX H100' --pue 0.5",
    "--on 'DGX H100' --electricity -1",
    "--on 'DGX H100' --years 0",
    "--on 'DGX H100' --hours-per-year 0",
    "--on 'DGX H100' --hours-per-year 1e9",
    "--on 'DGX H100' --hours-per-year nan",
    "--on 'DGX H100' --server-price 350000",
    "--on 'DGX H100' --salary lots",
    "--on 'DGX H100' --spot-life 3",
    "--on 'DGX H100' --spot-life 5m",
    "--on 'DGX H100' --grid Atlantis",
    "--on 'DGX H100' --assume PUE",
    "--on 'DGX H100' --assume spt_life=3",
    "--on 'DGX H100' --assume PUE=high",
    "--on 'DGX H100' --assume 'residual value=2'",
    "--on 'DGX H100' --explain frobnication",
    "--on 'DGX H100' --prices nowhere.csv",
    "--on 'DGX H100' --prices empty.csv",
    "--on 'DGX H100' --prices broken.csv",
    "--on 'DGX H100' --prices binary.csv",
    "--on 'DGX H100' --prices skypilot",
    "--on 'DGX H100' --html nowhere/cost.html",
    "--on 'DGX H100' --html .",
    "here.yaml",
    "command.yaml",
]


@pytest.fixture(autouse=True)
def nothing_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement and no price table of this machine's user counts; the terminal has 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Run files and price tables, good and bad."""
    files = {
        "run.yaml": RUN,
        "here.yaml": RUN.replace("64x H100", "local"),
        "command.yaml": "name: x\nrun: python train.py\ncluster: 64x H100\n",
        "mine.csv": TABLE,
        "empty.csv": "",
        "broken.csv": TABLE + "H100,8,=1+1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    return tmp_path


def cost(*arguments: str) -> str:
    """What the command prints, without a process of its own."""
    done = CliRunner().invoke(app, ["cost", *arguments], catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def refusal(*arguments: str) -> TrainworksError:
    """The error that the command ends with, before it prints anything."""
    done = CliRunner().invoke(app, ["cost", *arguments])
    assert done.stdout == ""
    assert isinstance(done.exception, TrainworksError)
    return done.exception


def test_a_year_of_one_node_is_compared_with_owning_it(golden, folder: Path) -> None:
    done = trainworks_program("cost", "--on", "DGX H100", "--hours-per-year", "5000", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    golden("cost_year.txt", done.stdout)


def test_a_run_is_priced_by_every_contract(golden, folder: Path) -> None:
    golden("cost_run.txt", cost("run.yaml"))


def test_a_figure_is_explained_down_to_its_sources(golden, folder: Path) -> None:
    golden("cost_explained.txt", cost("--on", "DGX H100", "--explain", "AWS p5.48xlarge, spot"))


def test_what_is_refused_says_why_and_what_to_do(golden, folder: Path) -> None:
    told = []
    for line in REFUSED:
        error = refusal(*shlex.split(line))
        told.append(f"$ trainworks cost {line}\n[{error.exit_code}] {error.render()}\n".replace(str(folder), "HOME"))
    golden("cost_refused.txt", "\n".join(told))


def test_json_has_base_units_in_its_names(folder: Path) -> None:
    found = json.loads(cost("run.yaml", "--json"))
    assert found["work"] == 10000 * 512 * 2048
    assert found["energy_wh"] == pytest.approx(8 * 10200 * 0.8 * 1.4 * found["hours"])
    aws = next(offer for offer in found["offers"] if offer["name"] == "AWS p5.48xlarge")
    assert aws["usd"]["on-demand"] == pytest.approx(8 * 55.04 * found["hours"])


def test_the_table_in_the_terminal_is_the_json(folder: Path) -> None:
    found = json.loads(cost("--on", "DGX H100", "--json"))
    shown = cost("--on", "DGX H100")
    assert [offer["name"] in shown for offer in found["offers"]] == [True] * len(found["offers"])


@pytest.mark.parametrize(
    ("option", "cheaper"),
    [
        (["--server-price", "200kUSD"], True),
        (["--electricity", "0.3"], False),
        (["--pue", "1.1"], True),
        (["--years", "3"], False),
        (["--salary", "100kUSD"], True),
        (["--colocation"], False),
        (["--assume", "maintenance=0.1"], False),
    ],
)
def test_an_option_moves_the_price_of_owning(folder: Path, option: list[str], cheaper: bool) -> None:
    usual, other = (json.loads(cost("--on", "DGX H100", "--json", *each))["owning_usd"] for each in ([], option))
    assert (other < usual) is cheaper


def test_the_grid_decides_on_the_carbon(folder: Path) -> None:
    clean, dirty = (
        json.loads(cost("--on", "DGX H100", "--json", "--grid", name))["carbon_kg_co2e"] for name in ("Paris", "Poland")
    )
    assert dirty == pytest.approx(clean * 662 / 15.83)


def test_a_price_table_replaces_the_catalogues_offers(folder: Path) -> None:
    found = json.loads(cost("--on", "DGX H100", "--prices", "mine.csv", "--json"))
    assert [offer["name"] for offer in found["offers"]] == ["mine"]


def test_an_installed_skypilot_gives_its_newest_tables(folder: Path) -> None:
    header = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
    for version, price in (("v9", 1), ("v10", 30)):
        table = folder / ".sky/catalogs" / version / "lambda" / "vms.csv"
        table.parent.mkdir(parents=True)
        table.write_text(f"{header}gpu_8x_h100_sxm5,H100,8.0,{price},,us-east-1\n", encoding="utf-8")
    found = json.loads(cost("--on", "DGX H100", "--prices", "skypilot", "--json"))
    assert [(offer["provider"], offer["usd_per_hour"]) for offer in found["offers"]] == [("Lambda", 30.0)]


def test_the_price_and_the_budget_of_a_run_file_count(folder: Path) -> None:
    priced = "cluster: {of: 64x H100, usd_per_accelerator_hour: 1.5}\ngoal: {budget: 300 USD}\n"
    (folder / "run.yaml").write_text(RUN.replace("cluster: 64x H100\n", priced), encoding="utf-8")
    shown = cost("run.yaml")
    assert re.search(r"your price +1\.50", shown)
    assert "The budget of 300 USD pays for" in shown


def test_a_budget_in_yuan_is_answered_in_yuan_at_a_rate_that_a_note_names(folder: Path) -> None:
    priced = "cluster: {of: 64张H100, price: ¥10/GPU/h}\ngoal: {budget: 2000元}\n"
    (folder / "run.yaml").write_text(RUN.replace("cluster: 64x H100\n", priced), encoding="utf-8")
    shown = " ".join(cost("run.yaml").split())
    assert "hours, in yuan" in shown and "USD to buy" not in shown
    assert "your price 10.00" in shown
    assert "The budget of 2,000 CNY pays for" in shown
    assert re.search(r"note: CNY at 7\.1 per USD: .*2025-10", shown)


def test_the_same_money_in_either_currency_is_one_cost(folder: Path) -> None:
    options = ("--on", "DGX H100", "--json", "--assume", "CNY per USD=7.1", "--server-price")
    yuan, dollars = (json.loads(cost(*options, price)) for price in ("213万元", "300000USD"))
    assert yuan["owning_usd"] == pytest.approx(dollars["owning_usd"])


def test_an_option_names_another_cluster_than_the_run_file(folder: Path) -> None:
    assert json.loads(cost("run.yaml", "--on", "8x H200", "--json"))["num_accelerators"] == 8


def test_the_page_is_written(folder: Path) -> None:
    cost("--on", "DGX H100", "--html", "cost.html")
    assert "What moves the answer most" in (folder / "cost.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_the_environments_fault(folder: Path) -> None:
    error = refusal("--on", "DGX H100", "--html", "/proc/cost.html")
    assert error.exit_code == 3
    assert error.message.startswith("cannot write `/proc/cost.html`")


def test_an_assumption_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="`PUE` is given twice"):
        parse_assumptions(["PUE=1.2", "pue=1.4"])


def test_the_price_of_your_own_nodes_is_no_rent(tmp_path: Path) -> None:
    of = "engine: slurm, of: 10 nodes of DGX H100, nodes: 8, usd_per_accelerator_hour: 3"
    prices = {}
    for contract in ("own", "on-demand"):
        (tmp_path / "run.yaml").write_text(RUN.replace("64x H100", f"{{{of}, contract: {contract}}}"))
        prices[contract] = json.loads(
            CliRunner().invoke(app, ["cost", str(tmp_path / "run.yaml"), "--json"], catch_exceptions=False).stdout
        )
    own, rented = prices["own"], prices["on-demand"]
    assert own["owning_usd"] == pytest.approx(3 * 64 * own["hours"])
    assert own["owning_capex_usd"] == pytest.approx(rented["owning_capex_usd"] * 10 / 8)
    names = [{each["name"] for each in priced["offers"]} for priced in (own, rented)]
    assert names[1] - names[0] == {"your price"}


def test_your_price_of_an_instance_stands_beside_its_offer(tmp_path: Path) -> None:
    cluster = "{of: 8 nodes of p5.48xlarge, usd_per_accelerator_hour: 5}"
    (tmp_path / "run.yaml").write_text(RUN.replace("64x H100", cluster))
    shown = CliRunner().invoke(app, ["cost", str(tmp_path / "run.yaml"), "--json"], catch_exceptions=False)
    offers = {each["name"]: each["usd_per_hour"] for each in json.loads(shown.stdout)["offers"]}
    assert offers["your price"] == 5 and "AWS p5.48xlarge" in offers
