"""`trainworks size`: what it proposes, why, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

import trainworks
from tests.program import trainworks_program
from trainworks.api.inputs import load_run
from trainworks.api.launching.prepared_run import prepare
from trainworks.api.planning.described import plan_cluster
from trainworks.api.proposal import stack_yaml
from trainworks.api.run_request import read_run
from trainworks.api.sizing.plans import PlanCache
from trainworks.catalog.cluster import parse_cluster
from trainworks.config.run_description import load_tasks
from trainworks.errors import ArgumentError, EnvironmentProblem, UsageError
from trainworks.plan.sizing.result import least_usd
from trainworks.units import Money

RUN = """\
name: llama-2-7b
workload:
  task: causal-lm
  model: {preset: llama2-7b}
  data: {sequence_length: 4096}
  precision: bf16
  global_batch: 64
  train_for: 1.6B tokens
goal: {deadline: 4h}
"""
WITH_DATA = RUN.replace("data: {", "data: {source: python-stdlib, ")
TEAMS = ("every: 12h, deadline: 10h", "every: 1d, deadline: 1d")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """Fine-tuning of a 7B model, as the articles have it."""
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def size(*arguments: str | Path, folder: Path) -> str:
    """What the command prints when all goes well."""
    done = trainworks_program("size", *map(str, arguments), folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_proposal_reads_like_this(run_file: Path, golden) -> None:
    told = size("run.yaml", "--only", "H100", "--only", "A100", folder=run_file.parent)
    golden("size.txt", told)


def test_the_proposal_meets_the_deadline_and_is_the_cheapest_that_does(run_file: Path) -> None:
    told = json.loads(size("run.yaml", "--only", "H100", "--json", folder=run_file.parent))
    lasting = [item for item in told["alternatives"] if item["contract"] != "spot"]
    meeting = [item for item in lasting if item["p90_s"] <= 4 * 3600]
    assert told["proposal"] == min(meeting, key=lambda item: item["cost_usd"])
    assert told["proposal"]["chance"] >= 0.9


def test_owning_is_an_alternative_where_its_hours_are_given(run_file: Path) -> None:
    told = json.loads(
        size("run.yaml", "--only", "DGX H100", "--hours-per-year", "7000", "--json", folder=run_file.parent)
    )
    assert "own" in {item["contract"] for item in told["alternatives"]}


def test_the_written_run_file_plans_as_the_proposal_did(run_file: Path) -> None:
    folder, only = run_file.parent, ("--only", "p5.48xlarge", "--contract", "on-demand", "--budget", "5000 USD")
    told = json.loads(size("run.yaml", *only, "--deadline", "6h", "--write", "sized.yaml", "--json", folder=folder))
    written, source = load_tasks(folder / "sized.yaml")[0]
    planned = plan_cluster(written, source, learned=())
    again, chosen = planned.best[0].model_dump(mode="json"), told["layout"]
    assert (again["layout"], again["memory"]) == (chosen["layout"], chosen["memory"])
    assert again["terms_s"] == pytest.approx(chosen["terms_s"], rel=1e-3)
    assert planned.job.cluster.num_nodes == told["proposal"]["num_nodes"]
    assert (written.goal.deadline, written.goal.budget) == (6 * 3600, Money(5000.0, "USD"))
    assert written.workload == load_tasks(run_file)[0][0].workload


def test_a_proposal_of_a_run_in_python_is_a_run_again(run_file: Path) -> None:
    run = load_tasks(run_file)[0][0]
    proposal = trainworks.size(run, only=["p5.48xlarge"], contract=["on-demand"])
    written = proposal.run_file
    assert (written.workload, written.goal) == (run.workload, run.goal)
    assert written.cluster.of == proposal.details.plan.job.cluster.name
    assert trainworks.plan(written).best[0].layout == proposal.details.plan.best[0].layout


def test_the_options_of_a_backend_stay_in_the_written_run_file(run_file: Path) -> None:
    run_file.write_text(f"{WITH_DATA}cluster: {{engine: slurm, slurm: {{partition: gpu}}}}\n")
    proposal = trainworks.size(run_file, only=["p5.48xlarge"], contract=["on-demand"])
    cluster = proposal.run_file.cluster
    assert (cluster.engine, cluster.slurm.partition) == ("slurm", "gpu")
    assert (cluster.nodes, cluster.processes_per_node) == (proposal.chosen.num_nodes, 8)


@pytest.mark.parametrize("engine", ["slurm", "kubernetes"])
def test_a_sized_run_can_be_planned_priced_and_submitted_with_the_same_figures(
    run_file: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WITH_DATA
    run_file.write_text(f"{text}cluster: {{kubernetes: {{image: docker.io/me/train:1, volume: runs}}}}\n")
    proposal = trainworks.size(run_file, engine=engine, only=["H100"], contract=["on-demand"])
    nodes, step_s = proposal.chosen.num_nodes, proposal.details.plan.best[0].step_time_s
    monkeypatch.chdir(run_file.parent)
    written = Path("sized.yaml")
    written.write_text(proposal.run_yaml)
    planned = trainworks.plan(written)
    assert planned.job.cluster.num_nodes == nodes
    assert planned.best[0].step_time_s == pytest.approx(step_s, rel=1e-3)
    assert trainworks.cost(written).comparison.lines
    prepared = prepare(read_run(written), folder=Path("runs"), queued=True).with_forecast(ask=False)
    forecast, asked = prepared.resolved.forecast, prepared.spec
    assert (asked.max_nodes, asked.node.accelerators, asked.node.accelerator) == (nodes, 8, "H100-SXM-80GB")
    assert asked.time_limit_s == 4 * 3600
    assert forecast is not None and forecast.step_s == pytest.approx(step_s, rel=1e-3)
    model = prepared.resolved.run_file.workload.model
    assert (model.preset, model.layers, model.hidden, model.feed_forward) == (None, 32, 4096, 11008)
    assert ("nvidia.com/gpu: '8'" if engine == "kubernetes" else "gpu:H100-SXM-80GB:8") in prepared.rendered()


def test_a_sized_run_takes_the_resources_of_the_proposal(run_file: Path) -> None:
    run_file.write_text(f"{WITH_DATA}resources: {{accelerators: A100:4, memory: 100}}\ncluster: slurm:gpu\n")
    written = trainworks.size(run_file, only=["p5.48xlarge"], contract=["on-demand"]).run_file
    assert str(written.resources.accelerators[0]) == "H100-SXM-80GB:8" and written.resources.memory == 100
    assert (written.cluster.engine, written.cluster.slurm.partition) == ("slurm", "gpu")


@pytest.mark.parametrize("engine", ["local", "described", "skypilot", "slurmm"])
def test_an_engine_that_trains_no_workload_is_refused(run_file: Path, engine: str) -> None:
    with pytest.raises(UsageError) as found:
        trainworks.size(run_file, engine=engine)
    assert engine in found.value.message


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({}, "`source` is missing"), ({"llama2-7b": "resnet-50"}, "planned, not trained")],
)
def test_a_run_that_could_not_be_submitted_is_not_sized_for_a_scheduler(
    run_file: Path, changed: dict[str, str], reason: str
) -> None:
    text = RUN
    for old, new in changed.items():
        text = text.replace(old, new)
    run_file.write_text(text)
    with pytest.raises(UsageError, match=reason) as found:
        trainworks.size(run_file, engine="slurm")
    assert found.value.place


def test_nodes_that_are_bought_for_a_run_are_the_fewest_that_meet_its_goal(run_file: Path) -> None:
    proposal = trainworks.size(run_file, only=["A100"], contract=["own"], deadline="3h")
    assert proposal.chosen.num_nodes == 8
    bought = [each.purchase.value for each in proposal.sized.alternatives if each.meets(proposal.request.goal)]
    assert proposal.chosen.purchase.value == min(bought) and len(bought) > 1


def test_stack_and_order_list_have_the_nodes_that_are_bought_and_a_partition_for_the_time_limit(run_file: Path) -> None:
    run_file.write_text(WITH_DATA.replace("1.6B", "400B"))
    options = {"engine": "slurm", "only": ["DGX A100 80GB"], "deadline": "20d", "assume": {"node power": 7000}}
    bought = trainworks.size(run_file, contract=["own"], **options)
    nodes = bought.chosen.num_nodes + bought.chosen.spares
    assert bought.chosen.spares > 0 and bought.run_file.job.time_limit == 20 * 24 * 3600
    stack = stack_yaml(bought)
    assert f"gpu[{1:0{len(str(nodes))}}-{nodes}]" in stack and "20-00:00:00" in stack
    first, *_, last = csv.DictReader(io.StringIO(bought.bill_csv))
    assert (first["item"], first["count"], first["total_w"]) == ("DGX A100 80GB", f"{nodes}", f"{nodes * 7000}")
    assert int(last["total_usd"]) == round(bought.chosen.purchase.value)  # one figure for all that is bought
    rented = trainworks.size(run_file, contract=["on-demand"], **{**options, "only": ["p4de.24xlarge"]})
    nodes = rented.chosen.num_nodes
    row = f"compute,{rented.chosen.candidate.node},{nodes},,,7000,{nodes * 7000},rented"
    assert rented.bill_csv.splitlines()[1:] == [row]


def test_a_model_that_is_too_small_for_many_nodes_gets_a_few(run_file: Path) -> None:
    run_file.write_text(
        RUN.replace("{preset: llama2-7b}", "{layers: 2, hidden: 64, heads: 4}")
        .replace("4096", "128")
        .replace("global_batch: 64", "global_batch: 8")
        .replace("1.6B tokens", "1000 steps")
    )
    assert trainworks.size(run_file, only=["A100"], contract=["own"]).chosen.num_nodes == 1
    with pytest.raises(EnvironmentProblem, match="do not divide among more"):
        trainworks.size(run_file, only=["A100"], contract=["own"], deadline="1s")


def test_a_budget_that_no_hardware_can_meet_is_refused_without_a_plan(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainworks.api.sizing.plans.plan_cluster", None)
    with pytest.raises(EnvironmentProblem, match=r"a budget of 1\.00 USD is too small: even at the peak"):
        trainworks.size(run_file, budget="1USD")


def test_no_alternative_costs_less_than_its_accelerators_at_their_peak(run_file: Path) -> None:
    proposal = trainworks.size(run_file, only=["H100", "A100"], contract=["on-demand", "reserved", "spot"])
    plan = proposal.details.plan
    flops = plan.steps * plan.global_batch * plan.job.flops_per_sequence
    for each in proposal.sized.alternatives:
        assert each.cost.value > least_usd(each.candidate, proposal.request, flops) > 0


def test_every_figure_of_a_proposal_can_be_explained(run_file: Path) -> None:
    only = ("--only", "p5.48xlarge", "--contract", "on-demand")
    told = size("run.yaml", *only, "--explain", "cost", folder=run_file.parent)
    assert told.startswith("cost = ")
    assert "AWS p5.48xlarge price = 55.0 USD/h" in told


def test_the_page_holds_all_of_it_and_asks_for_nothing(run_file: Path) -> None:
    size("run.yaml", "--only", "p5.48xlarge", "--html", "page.html", folder=run_file.parent)
    page = (run_file.parent / "page.html").read_text()
    heads = (
        "Why",
        "Cost and time",
        "Alternatives",
        "Smallest clusters",
        "One step",
        "Finish",
        "Which network",
        "Hosts",
    )
    for head in (*heads, "Storage", "Own or rent", "Where the figures come from"):
        assert f"<h2>{head}</h2>" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_nodes_in_words_are_checked_with_their_processor(run_file: Path) -> None:
    node = ("--node", "8x A100-SXM-80GB over 8x NDR", "--processor", "EPYC 9654", "--json")
    told = json.loads(size("run.yaml", *node, folder=run_file.parent))
    verdicts = {item["part"]: item["verdict"] for item in told["hosts"]}
    assert (verdicts["NIC"], verdicts["processor"]) == ("wasteful", "mismatch")
    assert {item["contract"] for item in told["alternatives"]} == {"own"}


def test_a_price_of_your_own_rents_nodes_in_words(run_file: Path) -> None:
    with run_file.open("a") as file:
        file.write("cluster: {of: 8x A100-SXM-80GB, usd_per_accelerator_hour: 2.5}\n")
    node = ("--node", "8x A100-SXM-80GB over 8x HDR", "--json")
    told = json.loads(size("run.yaml", *node, folder=run_file.parent))
    rented = [item for item in told["alternatives"] if item["contract"] == "on-demand"]
    each = [item["cost_usd"] / item["accelerators"] / item["p50_s"] * 3600 for item in rented]
    assert rented
    assert each == [pytest.approx(2.5)] * len(each)


def test_several_runs_share_one_cluster(run_file: Path, golden) -> None:
    for index, goal in enumerate(TEAMS):
        team = RUN.replace("llama-2-7b\n", f"team-{index}\n").replace("deadline: 4h", goal)
        (run_file.parent / f"{index}.yaml").write_text(team)
    golden("size_teams.txt", size("0.yaml", "1.yaml", "--only", "H100", folder=run_file.parent))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "H1000"], "no accelerator `H1000` in the catalogue"),
        (["--node", "8x H1000"], "no accelerator `H1000`"),
        (["--processor", "EPYC"], "no processor `EPYC`"),
        (["--deadline", "soon"], "`soon` is not a duration"),
        (["--deadline", "0s"], "`0s` must be greater than 0"),
        (["--region", "moon"], "no offer is in `moon`"),
        (["--budget", "5"], "`5` is not an amount of US dollars or yuan"),
        (["--confidence", "90"], "`90` is not between 0 and 100 %"),
        (["--contract", "stolen"], "unknown contract `stolen`"),
        (["--hours-per-year", "9000"], "9000 is not between 1 and 8,784"),
        (["--assume", "PUE=0.5"], "PUE is 0.5"),
        (["--html", "nowhere/page.html"], "`nowhere` is not a folder"),
        (["--largest", "0"], "'--largest'"),
        (["--prices", "none.csv"], "cannot read `none.csv`"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_planned(run_file: Path, arguments: list[str], said: str) -> None:
    done = trainworks_program("size", "run.yaml", *arguments, folder=run_file.parent)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_goal_that_nothing_meets_names_what_comes_nearest(run_file: Path) -> None:
    done = trainworks_program("size", "run.yaml", "--only", "p5.48xlarge", "--budget", "40USD", folder=run_file.parent)
    assert done.returncode == 3
    assert "alternatives meets the goal; the surest is" in done.stderr


def test_a_contract_that_fails_is_a_row_with_its_reason(run_file: Path) -> None:
    short = ("--only", "p5.48xlarge", "--assume", "spot life=60", "--json")
    told = json.loads(size("run.yaml", *short, folder=run_file.parent))
    reasons = [item["reason"] for item in told["not_proposed"] if item["node"].endswith(" x p5.48xlarge, spot")]
    assert {item["contract"] for item in told["alternatives"]} == {"on-demand"}
    assert reasons
    assert all("it makes little progress" in reason for reason in reasons)


def test_an_unknown_preset_is_named_with_its_line_and_the_nearest(run_file: Path) -> None:
    run_file.write_text(RUN.replace("llama2-7b}", "lama2-7b}"))
    done = trainworks_program("size", "run.yaml", folder=run_file.parent)
    assert done.returncode == 2
    assert "lama2-7b" in done.stderr
    assert "run.yaml:4  workload.model.preset" in done.stderr
    assert "llama2-7b" in done.stderr.partition("hint:")[2]


def test_a_command_has_nothing_to_size(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: x\nrun: python train.py\n")
    done = trainworks_program("size", "run.yaml", folder=tmp_path)
    assert done.returncode == 2
    assert "nothing says what this command trains" in done.stderr


def test_teams_that_do_not_say_how_often_they_start_are_refused_with_the_line(run_file: Path) -> None:
    done = trainworks_program("size", "run.yaml", "run.yaml", folder=run_file.parent)
    assert done.returncode == 2
    assert "`llama-2-7b` has no `goal.every`, the time between its starts\n  --> run.yaml:9  goal" in done.stderr


def test_a_spot_run_is_paid_for_about_as_long_as_it_takes(run_file: Path) -> None:
    run_file.write_text(RUN.replace("1.6B", "60B").replace("4h", "5d"))
    spot = ("--only", "gpu-h100-sxm_8gpu", "--contract", "spot", "--prices", "prices.csv", "--json")
    (run_file.parent / "prices.csv").write_text(
        "accelerator,accelerators,on_demand_usd_h,spot_usd_h,node\nH100,8,20,8,gpu-h100-sxm_8gpu\n"
    )
    told = json.loads(size("run.yaml", *spot, folder=run_file.parent))["proposal"]
    paid_s = told["cost_usd"] / told["accelerators"] * 3600
    assert told["p50_s"] == pytest.approx(paid_s, rel=0.04)


def test_checkpoints_come_as_often_as_the_run_file_says(run_file: Path) -> None:
    with run_file.open("a") as file:
        file.write("checkpoint: {every: 10m}\n")
    told = size("run.yaml", "--only", "p5.48xlarge", "--contract", "on-demand", folder=run_file.parent)
    assert "a checkpoint every 10m 0s" in told


@pytest.mark.parametrize("more", [{}, {"budget": "5000USD"}])
def test_nodes_in_words_without_the_precision_are_refused_with_the_reason(run_file: Path, more: dict[str, str]) -> None:
    with pytest.raises(EnvironmentProblem, match="no bf16 matrix units"):
        trainworks.size(run_file, node=["8x V100-SXM2-32GB over 4x EDR"], **more)


@pytest.mark.parametrize(
    ("contract", "only", "reason"),
    [
        ("on-demand", ["DGX B300", "p5.48xlarge"], "it can be bought, and not rented"),
        ("own", ["DGX H100", "p5.48xlarge"], "it can be rented, and not bought"),
        ("spot", ["DGX H200", "p5.48xlarge"], "no offer is spot"),
    ],
)
def test_a_node_that_is_not_on_offer_is_not_said_to_cost_more_than_the_budget(
    run_file: Path, contract: str, only: list[str], reason: str
) -> None:
    proposal = trainworks.size(run_file, only=only, contract=[contract], budget="500000USD", deadline="1d")
    assert reason in [each.reason for each in proposal.sized.skipped]


def test_a_better_network_is_never_shown_with_a_longer_step() -> None:
    rows = PlanCache(*load_run("examples/plan-llama-3-70b.yaml")).fabrics(parse_cluster("8 nodes of DGX H100"))
    times = [each.best.step_time_s for each in rows]
    assert times == sorted(times, reverse=True) and len(times) > 3


def test_the_largest_cluster_to_consider_need_not_be_a_power_of_two(run_file: Path) -> None:
    options = {"only": ["H100"], "contract": ["on-demand"], "largest": 3}
    assert trainworks.size(run_file, deadline="3h10m", **options).chosen.num_nodes == 3
    with pytest.raises(EnvironmentProblem, match=r"3 nodes would take too long[;)]"):
        trainworks.size(run_file, deadline="2h", **options)


def test_nodes_of_a_rack_are_bought_in_whole_racks(run_file: Path) -> None:
    proposal = trainworks.size(run_file, only=["GB200"], contract=["own"])
    chosen = proposal.chosen
    assert (chosen.num_nodes + chosen.spares) % 18 == 0
    racks = (chosen.num_nodes + chosen.spares) // 18
    assert f"compute,GB200 NVL72 of 18 nodes,{racks}," in proposal.bill_csv
    assert chosen.purchase.value == proposal.details.ownership.owning.capex.value


def test_a_cluster_that_is_there_is_used_and_not_bought(run_file: Path) -> None:
    divisible = WITH_DATA.replace("global_batch: 64", "global_batch: 80")
    run_file.write_text(f"{divisible}cluster: {{engine: slurm, of: 5 nodes of DGX A100 at 2:1}}\n")
    used = trainworks.size(run_file, deadline="5h")
    assert (used.chosen.contract, used.chosen.num_nodes, used.bill_csv.count("\n")) == ("existing", 5, 1)
    written = used.run_file.cluster
    assert (written.of, written.nodes, written.contract) == ("5 nodes of DGX A100 at 2:1", 5, "own")
    assert used.verdict.action.startswith("Use 5 of your 5 DGX A100")
    with pytest.raises(EnvironmentProblem, match="5 nodes would take too long"):
        trainworks.size(run_file, deadline="30m")
    assert trainworks.size(run_file, contract=["on-demand"]).chosen.contract == "on-demand"


def test_the_nodes_that_are_there_cost_the_price_of_the_run_file(run_file: Path) -> None:
    options = "engine: slurm, of: 8 nodes of DGX A100, usd_per_accelerator_hour: 1.5"
    run_file.write_text(f"{WITH_DATA}cluster: {{{options}}}\n")
    used = trainworks.size(run_file)
    assert used.run_file.cluster.usd_per_accelerator_hour == pytest.approx(1.5, abs=1e-4)
    assert used.run_file.cluster.contract == "on-demand"


def test_a_budget_alone_buys_time_and_a_deadline_saves_money(run_file: Path) -> None:
    run_file.write_text(WITH_DATA.replace("deadline: 4h", "budget: 400USD"))
    fast = trainworks.size(run_file, only=["H100"], contract=["on-demand"])
    meeting = [each for each in fast.sized.alternatives if each.cost.value <= 400]
    assert fast.chosen.p90_s == min(each.p90_s for each in meeting)
    cheap = trainworks.size(run_file, only=["H100"], contract=["on-demand"], deadline="30d")
    assert cheap.chosen.cost.value < fast.chosen.cost.value and cheap.chosen.p90_s > fast.chosen.p90_s


def test_a_budget_of_a_purchase_is_for_the_nodes(run_file: Path) -> None:
    with pytest.raises(
        EnvironmentProblem, match=r"the cheapest is 1 x DGX A100 80GB \(bought\), own for [\d,]+ USD to buy"
    ):
        trainworks.size(run_file, only=["DGX A100 80GB"], contract=["own"], budget="1000USD", deadline="3d")


@pytest.mark.parametrize(("pods", "lacking"), [("", "no image"), ("kubernetes: {image: a/b:1}", "need a volume")])
def test_pods_that_could_not_start_are_refused_before_anything_is_planned(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, pods: str, lacking: str
) -> None:
    monkeypatch.setattr("trainworks.api.sizing.plans.plan_cluster", None)
    run_file.write_text(WITH_DATA + (f"cluster: {{{pods}}}\n" if pods else ""))
    with pytest.raises(UsageError, match=lacking):
        trainworks.size(run_file, engine="kubernetes")


def test_a_run_without_a_deadline_fits_into_the_time_of_its_partition(run_file: Path) -> None:
    run_file.write_text(WITH_DATA.replace("goal: {deadline: 4h}\n", "").replace("1.6B", "60B"))
    slow = trainworks.size(run_file, only=["p4d.24xlarge"], contract=["on-demand"], largest=1)
    (days,) = map(int, re.findall(r"max_time: '(\d+)-00", stack_yaml(slow)))
    assert slow.run_file.job.time_limit is None and slow.chosen.p90_s > 7 * 86400
    assert slow.chosen.outcome.quantile_s(0.99) <= days * 86400


def test_the_verdict_on_what_is_bought_says_when_it_pays(run_file: Path) -> None:
    bought = trainworks.size(run_file, only=["DGX H100"], contract=["own"], deadline="2h")
    usd = f"{bought.chosen.purchase.value:,.0f} USD"
    network = "over 8x 400 Gb/s InfiniBand a node in a star"
    assert bought.verdict.action.startswith(f"Buy {bought.chosen.num_nodes} x DGX H100 ({bought.chosen.accelerators} ")
    assert network in bought.verdict.action and usd in bought.verdict.figure
    pays = bought.details.ownership.break_even.value
    assert f"owning pays from {pays:,.0f} hours of training a year on" in bought.verdict.unless


def test_nodes_without_a_stack_file_are_proposed_all_the_same(run_file: Path) -> None:
    folder = run_file.parent
    done = trainworks_program(
        "size", "run.yaml", "--only", "MI300X", "--deadline", "9d", "--write-stack", "s.yaml", folder=folder
    )
    assert done.returncode == 2 and "a stack is proposed for GPUs of NVIDIA" in done.stderr
    assert done.stdout.startswith("Rent 1 x MI300X node") and not (folder / "s.yaml").exists()


def test_a_region_keeps_its_offers_alone(run_file: Path) -> None:
    proposal = trainworks.size(run_file, only=["H100", "H200"], contract=["on-demand"], region="eu")
    assert {each.seller.split()[0] for each in proposal.sized.alternatives} <= {"Nebius", "AWS", "Lambda"}
    assert any("eu-north-1" in each.seller for each in proposal.sized.alternatives)


def test_only_offers_of_providers_that_state_a_rule_are_considered(run_file: Path) -> None:
    table = run_file.parent / "offers.csv"
    header = "accelerator,accelerators,on_demand_usd_h,provider,node,region,compliance"
    rows = ["H100,8,16,Cheap,DGX H100,eu,SOC 2", "H100,8,30,Certain,DGX H100,eu,SOC 2; ISO 27001;"]
    table.write_text("\n".join([header, *rows]))
    asked = {"prices": table, "contract": ["on-demand"]}
    for rules, provider in (((), "Cheap"), (("SOC 2",), "Cheap"), (("iso 27001", "SOC 2"), "Certain")):
        assert trainworks.size(run_file, require=rules, **asked).chosen.seller.split()[0] == provider
    with pytest.raises(ArgumentError, match="no offer states `HIPAA`"):
        trainworks.size(run_file, require=["HIPAA"], **asked)
