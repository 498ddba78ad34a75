"""`trainworks plan` of a described cluster: what it prints, what it refuses and where, and that it needs no torch."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.cli.test_app import IMPORT_ALL_WITHOUT_TORCH, trainworks_program
from trainworks.cli import plan as plan_command
from trainworks.cli.cluster_plan_view import plan_as_json, print_cluster_plan, print_explanation
from trainworks.cli.cluster_planning import ClusterPlan, plan_cluster
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.spec.load import parse_run_file

ON = "4 nodes of 8x A100-SXM-80GB over 8x HDR"
RUN = """\
name: llama
workload:
  task: causal-lm
  model: {preset: llama2-7b}
  data: {sequence_length: 4096}
  precision: bf16
  global_batch: 128
  train_for: 1000 steps
cluster: 4 nodes of 8x A100-SXM-80GB over 8x HDR
"""
LAYOUT = """\
layout:
  dp_shard: 4
  zero: 1
  tp: 4
  pp: 2
  micro_batch: 2
  sequence_parallel: true
  interleave: 2
  recompute: full
"""
SMALL = RUN.replace("llama2-7b", "tinyllama-1.1b").replace("4096", "2048").replace("4 nodes", "2 nodes")
EDITS = [
    ("cluster: 4 nodes of 8x A100-SXM-80GB", "cluster: 4 nodes of 8x A100-SXM-81GB"),
    ("cluster: 4 nodes of 8x A100-SXM-80GB over 8x HDR", "cluster: 33x H100-SXM"),
    ("cluster: 4 nodes of 8x A100-SXM-80GB over 8x HDR", "cluster: {engine: described}"),
    ("over 8x HDR", "over 8x string"),
    ("preset: llama2-7b", "preset: lama2-7b"),
    ("precision: bf16", "precision: fp8"),
    ("train_for: 1000 steps", "train_for: 3 epochs"),
    ("8x HDR\n", "8x HDR\ngoal: {budget: 2000 USD}\n"),
    (ON + "\n", "192 nodes of 8x A100-SXM-80GB over 8x HDR\nlayout: {dp_replicate: 128, tp: 8, pp: 8}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 4, tp: 4}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 32, micro_batch: 3}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 3, tp: 4}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 16, tp: 2, ep: 5}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 16, pp: 2, interleave: 3}\n"),
]


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement of this machine's user calibrates a plan."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("TRAINWORKS_DATA", raising=False)


def planned(text: str = RUN, **fixed: int) -> ClusterPlan:
    run_file, source = parse_run_file(text, name="run.yaml")
    return plan_cluster(run_file, source, fixed=fixed)


def written(tmp_path: Path, text: str = RUN) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path: Path, text: str = RUN, **options: Any) -> str:
    """What the program prints where it refuses; any other exception than ours fails the test."""
    with pytest.raises(TrainworksError) as refused:
        plan_command.command(written(tmp_path, text), **options)
    return refused.value.render().replace(f"{tmp_path}/", "")


def printed(plan: ClusterPlan) -> str:
    """The text of a plan on a wide terminal."""
    console = Console(file=io.StringIO(), width=240)
    print_cluster_plan(plan, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def masked(text: str) -> str:
    """Without what a better fit of the model would change."""
    text = re.sub(r"= forward .*", "= TERMS", text)
    text = re.sub(r"\d[\d.]*(m \d+s|h \d+m| (ms|us|s|[kMGT]?B)\b)|\d[\d.]*%", "#", text)
    text = re.sub(r"#  [\w.]+ tokens/s", "#  # tokens/s", text).replace("throughput", "throughput ")
    return "".join(f"{' '.join(line.split())}\n" for line in text.splitlines())


def test_a_plan_reads_like_this(golden) -> None:
    text = masked(printed(planned(RUN + LAYOUT)))
    golden("plan_cluster.txt", re.sub(r"throughput [\w.]+", "throughput #", text))


def test_a_plan_prints_and_leaves_nothing_behind(tmp_path: Path) -> None:
    written(tmp_path, RUN.replace(f"cluster: {ON}\n", ""))
    done = trainworks_program("plan", "run.yaml", "--on", ON, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "32 accelerators" in " ".join(done.stdout.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_cluster_of_the_run_file_is_planned_like_one_of_the_command_line(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "other.yaml").write_text(RUN.replace(f"cluster: {ON}\n", ""), encoding="utf-8")
    own = trainworks_program("plan", "run.yaml", "--json", folder=tmp_path)
    other = trainworks_program("plan", "other.yaml", "--json", "--on", ON, folder=tmp_path)
    assert json.loads(own.stdout) == json.loads(other.stdout)


def test_a_plan_as_json_has_these_keys(golden) -> None:
    plan = json.loads(json.dumps(plan_as_json(planned(RUN + "goal: {deadline: 30d}\n"))))
    repeated = re.compile(r"^(cluster|front\[\]|scales\[\]\.best)\..*")
    golden(
        "plan_cluster_keys.txt",
        "".join(f"{key}\n" for key in dict.fromkeys(repeated.sub(r"\1", k) for k in keys_of(plan))),
    )


def keys_of(value: Any, path: str = "") -> list[str]:
    """Dotted paths of everything below; of a list, of its first item."""
    if isinstance(value, dict):
        return [key for name, inner in value.items() for key in keys_of(inner, f"{path}.{name}".lstrip("."))]
    if isinstance(value, list):
        return keys_of(value[0], f"{path}[]") if value else [f"{path}[]"]
    return [path]


def test_a_plan_as_json_is_what_the_text_says() -> None:
    plan = planned()
    data = plan_as_json(plan)
    best = data["best"][0]
    assert data["run_time_s"] == pytest.approx(1000 * best["step_time_s"])
    assert [row["step_time_s"] for row in data["best"]] == sorted(row["step_time_s"] for row in data["best"])
    assert data["fitting"] <= data["evaluated"]
    assert len(data["best"]) == 10


def test_infinity_is_no_json() -> None:
    assert "Infinity" not in json.dumps(plan_as_json(planned()))


def test_offloading_is_a_last_resort() -> None:
    rows = planned().best
    assert not any(row.layout.offload_activations or row.layout.offload_optimizer for row in rows)


def test_offloading_is_taken_where_nothing_fits_without() -> None:
    row = planned(RUN.replace("llama2-7b", "llama2-70b").replace("4 nodes", "1 node")).best[0]
    assert row.layout.offload_activations or row.layout.offload_optimizer


def test_a_written_layout_is_planned_as_it_is() -> None:
    plan = planned(RUN + LAYOUT)
    wanted = {"dp_shard": 4, "zero": 1, "tp": 4, "pp": 2, "micro_batch": 2, "interleave": 2, "recompute": "full"}
    assert plan.result.evaluated == 1
    assert {name: getattr(plan.best[0].layout, name) for name in wanted} == wanted


def test_where_nothing_was_rejected_no_table_says_so() -> None:
    assert "because" in printed(planned())
    assert "because" not in printed(planned(RUN + LAYOUT))


def test_what_was_assumed_of_the_cluster_is_noted() -> None:
    assert "note: nodes of 8 accelerators, as in" in printed(planned(RUN.replace(ON, "32x H100-SXM")))


def test_what_was_never_measured_is_noted() -> None:
    notes = planned(RUN.replace(ON, "8x MI300X")).notes
    assert any("was ever compared" in note for note in notes)


def test_an_explanation_puts_the_layout_beside_the_fastest(tmp_path: Path) -> None:
    written(tmp_path)
    done = trainworks_program("plan", "run.yaml", "--explain", "tp=8,pp=4,micro_batch=1", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("this layout  tp 8, ")
    assert {"term", "forward", "tp", "step", "memory"} <= {line.partition(" ")[0] for line in lines}


def test_an_explanation_as_json_has_both_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_command.command(written(tmp_path), explain="tp=8,pp=4", as_json=True)
    both = json.loads(capsys.readouterr().out)
    assert (both["asked"]["layout"]["tp"], both["asked"]["layout"]["pp"]) == (8, 4)
    assert both["fastest"]["step_time_s"] <= both["asked"]["step_time_s"]


def test_the_differences_of_an_explanation_are_signed() -> None:
    console = Console(file=io.StringIO(), width=240)
    print_explanation(planned(tp=8).best[0], planned().best[0], console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"tp +\S+ \S+ +\S+ \S+ +\+", text)
    assert re.search(r"step .* \+[\d.]+%", text)


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("tp=8,pp=4", {"tp": 8, "pp": 4}),
        (" tp = 8 , micro_batch = 2 ", {"tp": 8, "micro_batch": 2}),
        ("zero=1", {"zero": 1}),
        ("dp_shard=8", {"dp_shard": 8, "zero": 3}),
        ("dp_shard=8,zero=1", {"dp_shard": 8, "zero": 1}),
        ("dp_replicate=4,dp_shard=8", {"dp": 32, "dp_shard": 8, "zero": 3}),
        ("dp_replicate=4", {"dp": 4, "dp_shard": 1, "zero": 0}),
        ("recompute=full", {"recompute": 2}),
        ("sequence_parallel=false,zero_bubble=true", {"sequence_parallel": 0, "zero_bubble": 1}),
        ("offload_activations=true", {"offload": 1}),
        ("", {}),
    ],
)
def test_an_explanation_fixes_what_is_named_and_leaves_the_rest_open(text: str, fixed: dict[str, int]) -> None:
    assert plan_command.named_degrees(text) == fixed


def test_every_refusal_says_where_and_what_to_do(tmp_path: Path, golden) -> None:
    blocks = []
    for before, after in EDITS:
        assert RUN.count(before) == 1
        blocks.append(f"# {before!a} -> {after!a}\n\n{refusal(tmp_path, RUN.replace(before, after))}\n")
    golden("plan_cluster_errors.txt", f"{RUN}\n" + "\n\n".join(blocks))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "4x foo"}, "`4x foo` describes no cluster: "),
        ({"on": ""}, "`` describes no cluster: it is empty"),
        ({"explain": "tpp=8"}, "no layout has `tpp`"),
        ({"explain": "tp"}, "tp ``: "),
        ({"explain": "tp=many"}, "tp `many`: input should be a valid integer"),
        ({"explain": "zero=4"}, "zero `4`: input should be 1, 2, 3 or 'auto'"),
        ({"explain": "tp=5"}, "no layout of 32 accelerators has tp 5"),
        ({"explain": "micro_batch=3"}, "no layout of 32 accelerators has micro_batch 3"),
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_is_blamed_itself(tmp_path: Path, options: dict[str, str], message: str) -> None:
    text = refusal(tmp_path, **options)
    assert text.startswith(f"error: {message}")
    assert "-->" not in text


def test_a_batch_that_no_mesh_divides_is_refused_with_its_reason() -> None:
    with pytest.raises(EnvironmentProblem, match="meshes: dp does not divide 33 sequences"):
        planned(RUN.replace("global_batch: 128", "global_batch: 33"), tp=1, pp=1, cp=1)


def test_an_inconsistent_layout_exits_as_a_usage_error_without_a_traceback(tmp_path: Path) -> None:
    written(tmp_path, RUN.replace("4 nodes", "192 nodes") + "layout: {dp_replicate: 128, tp: 8, pp: 8}\n")
    done = trainworks_program("plan", "run.yaml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: dp_replicate (128) * dp_shard (1) * cp (1) * tp (8) * pp (8) = 8192, world size is 1536\n"
        "  --> run.yaml:10  layout.dp_replicate\n\nhint: set `dp_replicate: 24`\n"
    )


def test_a_model_that_fits_nowhere_is_refused_with_counts_and_the_nearest_layout() -> None:
    with pytest.raises(EnvironmentProblem) as refused:
        planned(RUN.replace("llama2-7b", "megatron-gpt-1008b").replace("4096", "2048"))
    assert re.match(r"no layout fits 32 x [\d.]+ GB: [\d,]+ layouts: do not fit", refused.value.message)
    assert re.match(r"nearest: [\d.]+ [GT]B on stage \d+ with dp ", refused.value.hint or "")


def test_a_command_of_your_own_cannot_be_planned(tmp_path: Path) -> None:
    text = refusal(tmp_path, "name: demo\nrun: python train.py\n", on=ON)
    assert text == "error: a command of your own cannot be planned; only a `workload` can"


@pytest.mark.parametrize("option", ["explain", "plot"])
def test_options_of_described_clusters_need_one(tmp_path: Path, option: str) -> None:
    text = refusal(tmp_path, RUN.replace(f"cluster: {ON}\n", ""), **{option: Path("x")})
    assert "are for a described cluster" in text


def goal(deadline_s: float, *, budget: str = "") -> str:
    """A small run that is to be over in so many seconds."""
    price = f"cluster: {{of: {ON.replace('4 nodes', '2 nodes')}, usd_per_accelerator_hour: 2}}"
    written_cluster = next(line for line in SMALL.splitlines() if line.startswith("cluster"))
    return SMALL.replace(written_cluster, price) + f"goal: {{deadline: {deadline_s:.0f} s{budget}}}\n"


def test_without_a_goal_only_the_cluster_is_planned() -> None:
    assert planned(SMALL).scales == []


def test_a_deadline_that_the_cluster_misses_shows_the_larger_one_that_meets_it() -> None:
    plan = planned(goal(0.6 * planned(SMALL).run_time_s))
    *missed, met = plan.scales
    assert met.num_nodes > plan.job.cluster.num_nodes
    assert met.meets_goal
    assert not any(scale.meets_goal for scale in missed)


def test_a_deadline_with_time_to_spare_shows_the_smaller_clusters_that_meet_it_too() -> None:
    plan = planned(goal(10 * planned(SMALL).run_time_s))
    assert [(scale.num_nodes, scale.meets_goal) for scale in plan.scales] == [(1, True), (2, True)]


def test_a_deadline_that_nothing_meets_is_shown_as_missed() -> None:
    plan = planned(goal(1))
    assert plan.scales
    assert not any(scale.meets_goal for scale in plan.scales)
    assert "missed" in printed(plan)


def test_more_nodes_are_shown_only_where_they_are_faster() -> None:
    times = [scale.run_time_s for scale in planned(goal(1)).scales]
    assert times == sorted(set(times), reverse=True)


def test_a_run_costs_its_accelerator_hours() -> None:
    for scale in planned(goal(1)).scales:
        hours = scale.run_time_s / 3600 * scale.num_nodes * 8
        assert scale.cost_usd == pytest.approx(2 * hours)


def test_a_budget_that_is_too_small_is_missed_in_time() -> None:
    plan = planned(goal(10 * planned(SMALL).run_time_s, budget=", budget: 1 USD"))
    assert not any(scale.meets_goal for scale in plan.scales)


def test_a_plan_needs_no_torch(tmp_path: Path) -> None:
    written(tmp_path)
    blocked = IMPORT_ALL_WITHOUT_TORCH.split("import trainworks\n")[0]
    program = f"{blocked}\nfrom trainworks.cli.app import main\nsys.argv = ['trainworks', 'plan', 'run.yaml']\nmain()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step time" in done.stdout
