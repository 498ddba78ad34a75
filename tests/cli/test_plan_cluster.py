"""`trainworks plan` of a described cluster: what it prints, what it refuses and where, and that it needs no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_app import IMPORT_ALL_WITHOUT_TORCH
from tests.program import trainworks_program
from trainworks.api.plan import plan
from trainworks.api.planning.described import plan_cluster
from trainworks.catalog.catalog import assumption
from trainworks.catalog.cluster import parse_cluster
from trainworks.cli.planning.plan import plan_command
from trainworks.config.load import parse_run_file
from trainworks.errors import DiskFullError, EnvironmentProblem, TrainworksError, UsageError
from trainworks.plan.cluster.layout import fixed_by, parse_layout
from trainworks.plan.cluster.plan import ClusterPlan, LayoutComparison
from trainworks.plan.cluster.scaling import format_chance
from trainworks.plan.network.design import design_network
from trainworks.plan.network.traffic import effective_cluster
from trainworks.plan.search import limit_bytes
from trainworks.report.rendering import page as page_renderer
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import render_text
from trainworks.results import Result

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
    ("4 nodes of 8x A100-SXM-80GB over 8x HDR\n", "4 nodes of DGX B300\ngoal: {budget: 2000 USD}\n"),
    (ON + "\n", "192 nodes of 8x A100-SXM-80GB over 8x HDR\nlayout: {dp_replicate: 128, tp: 8, pp: 8}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 4, tp: 4, pp: 1}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {tp: 5}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {micro_batch: 3}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {pp: 32, tp: 1, dp_shard: 1, interleave: 2}\n"),
    ("4 nodes of 8x A100-SXM-80GB over 8x HDR\n", "40x H100\nlayout: {dp_shard: 5}\n"),
    ("cluster: 4 nodes of 8x", "cluster: 4 nodes 8x"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 32, micro_batch: 3}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 3, tp: 4}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 16, tp: 2, ep: 5}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {dp_shard: 16, pp: 2, interleave: 3}\n"),
    ("8x HDR\n", "8x HDR\nlayout: {tp: 4, gradient_compression: powersgd}\n"),
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
        plan_command(written(tmp_path, text), **options)
    return refused.value.render().replace(f"{tmp_path}/", "")


def printed(plan: Result, *, width: int = 240) -> str:
    """The text of a plan on a wide terminal."""
    return render_text(build_document(plan), width=width) + "\n"


def masked(text: str) -> str:
    """Without what a better fit of the model would change."""
    text = re.sub(r"= forward .*", "= TERMS", text)
    text = re.sub(r"\d[\d.]*(m \d+s|h \d+m| (ms|us|s|GiB)\b)|(?<=MFU )\d+ %|\b\d+ %(?= +[\d.]+ GiB)", "#", text)
    text = re.sub(r"#  [\w.]+ tokens/s", "#  # tokens/s", text).replace("throughput", "throughput ")
    return "".join(f"{' '.join(line.split())}\n" for line in text.splitlines())


def test_a_plan_reads_like_this(golden) -> None:
    text = masked(printed(planned(RUN + LAYOUT)))
    golden("plan_cluster.txt", re.sub(r"throughput [\w.]+", "throughput #", text))


def test_a_plan_of_videos_counts_them_beside_their_tokens(golden) -> None:
    text = RUN.replace("causal-lm", "diffusion").replace("llama2-7b", "wan2.1-1.3b")
    text = text.replace("{sequence_length: 4096}", "{image_size: 832, image_height: 480, frames: 81}")
    layout = "layout: {dp_shard: 16, zero: 3, cp: 2, micro_batch: 1}\n"
    shown = masked(printed(planned(text + layout)))
    golden("plan_videos.txt", re.sub(r"throughput [\w.]+|\([\w.]+ tokens/s\)", "#", shown))


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
    plan = json.loads(json.dumps(planned(RUN + "goal: {deadline: 30d}\n").to_json()))
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
    data = plan.to_json()
    best = data["best"][0]
    assert data["run_time_s"] == pytest.approx(1000 * best["step_time_s"])
    assert [row["step_time_s"] for row in data["best"]] == [row.step_time_s for row in plan.best]
    assert data["fitting"] <= data["evaluated"]
    assert len(data["best"]) == 10


def test_infinity_is_no_json() -> None:
    assert "Infinity" not in json.dumps(planned().to_json())


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


def test_a_described_oversubscription_slows_the_plan_as_it_slows_scattered_ranks_of_the_network() -> None:
    tapered, full = planned(RUN.replace(ON, f"{ON} 4:1")), planned()
    best = tapered.result.layouts
    assert (tapered.job.step_times(best).total_s > full.job.step_times(best).total_s).all()
    described = parse_cluster(f"{ON} 4:1")
    seen = replace(tapered.job, cluster=effective_cluster(described, design_network(described)))
    assert seen.step_times(best).total_s == pytest.approx(tapered.job.step_times(best).total_s)
    assert "note: oversubscription 4:1: counts with 50.0 GB/s of the 200 GB/s of each node" in printed(tapered)


def test_what_was_never_measured_is_noted() -> None:
    notes = planned(RUN.replace(ON, "8x MI355X")).notes
    assert any("was ever compared" in note for note in notes)


def test_an_explanation_puts_the_layout_beside_the_proposed(tmp_path: Path) -> None:
    written(tmp_path)
    done = trainworks_program("plan", "run.yaml", "--explain", "tp=8,pp=4,micro_batch=1", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, lines = done.stdout.partition("\n\n")
    assert lines.startswith("this layout  tp 8, ")
    assert {"term", "forward", "tp", "step", "memory"} <= {line.partition(" ")[0] for line in lines.splitlines()}


def test_an_explanation_as_json_has_both_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_command(written(tmp_path), explain="tp=8,pp=4", as_json=True)
    both = json.loads(capsys.readouterr().out)
    assert (both["asked"]["layout"]["tp"], both["asked"]["layout"]["pp"]) == (8, 4)
    assert both["proposed"]["step_time_s"] <= both["asked"]["step_time_s"]


def test_the_differences_of_an_explanation_are_signed() -> None:
    text = printed(LayoutComparison(planned(tp=8), planned()))
    assert re.search(r"tp +\S+ \S+ +\S+ \S+ +\+", text)
    assert re.search(r"step .* \+[\d.]+ %", text)


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
    assert fixed_by(parse_layout(text)) == fixed


def test_every_refusal_says_where_and_what_to_do(tmp_path: Path, golden) -> None:
    blocks = []
    for before, after in EDITS:
        assert RUN.count(before) == 1
        blocks.append(f"# {before!a} -> {after!a}\n\n{refusal(tmp_path, RUN.replace(before, after))}\n")
    golden("plan_cluster_errors.txt", f"{RUN}\n" + "\n\n".join(blocks))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "4x foo"}, "`4x foo` does not describe a cluster: "),
        ({"on": ""}, "`` does not describe a cluster: it is empty"),
        ({"explain": "tpp=8"}, "no layout has `tpp`"),
        ({"explain": "tp"}, "tp ``: "),
        ({"explain": "tp=many"}, "tp `many`: input should be a valid integer"),
        ({"explain": "zero=4"}, "zero `4`: input should be 1, 2, 3 or 'auto'"),
        ({"explain": "tp=5"}, "tp (5) does not divide 32 accelerators"),
        ({"explain": "tp=8,pp=8"}, "pp (8) does not divide the 4 of 32 accelerators that tp (8) leave"),
        ({"explain": "micro_batch=3"}, "micro_batch (3) does not divide the 128 sequences of a step"),
        ({"explain": "tp=1,pp=1,cp=1,micro_batch=8"}, "micro_batch (8) does not divide the 4 sequences that each"),
        ({"explain": "dp_replicate=64"}, "dp_replicate (64) * dp_shard (1) * cp (1) * tp (1) * pp (1) = 64, world"),
        ({"explain": "dp_replicate=8,zero=1"}, "zero (1) shares among the ranks of dp_shard"),
        ({"explain": "interleave=3"}, "interleave (3) does not divide any stage of 32 layers"),
        ({"explain": "interleave=3,pp=2"}, "interleave (3) does not divide the 16 of a stage"),
        ({"explain": "interleave=2,zero_bubble=true"}, "interleave (2) excludes zero_bubble"),
        ({"explain": "zero_bubble=true,pp=1"}, "zero_bubble (true) needs a pipeline, and pp is 1"),
        ({"explain": "sequence_parallel=true,tp=1"}, "sequence_parallel (true) splits over the ranks of tp"),
        ({"explain": "recompute=selective"}, "recompute (selective) saves nothing: fused attention keeps no scores"),
        ({"explain": "ep=2"}, "ep (2) needs experts"),
        ({"nodes": 2}, "--nodes is for this machine, and the cluster is a described one"),
        ({"nproc": 2, "recalibrate": True}, "--nproc and --recalibrate are for this machine"),
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_is_blamed_itself(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    text = refusal(tmp_path, **options)
    assert text.startswith(f"error: {message}")
    places = [line for line in text.splitlines() if "-->" in line]
    assert places in ([], [f"  --> --{next(iter(options))}"])
    assert places or "on" not in options


@pytest.mark.parametrize(
    ("program", "explain", "message"),
    [
        ("Megatron-LM 2021", "recompute=selective", "recompute (selective) is later than Megatron-LM 2021"),
        ("Megatron-LM 2021", "sequence_parallel=true", "sequence_parallel (true) does not work with Megatron-LM 2021"),
        ("Megatron-LM 2021", "zero=1", "zero (1) does not work with Megatron-LM 2021"),
        (
            "Megatron-DeepSpeed",
            "interleave=2,pp=2",
            "interleave (2) does not work with Megatron-DeepSpeed in a pipeline",
        ),
        ("Megatron-DeepSpeed", "zero=2,pp=2", "zero (2) does not work with Megatron-DeepSpeed in a pipeline"),
    ],
)
def test_what_a_program_does_not_have_is_refused(tmp_path: Path, program: str, explain: str, message: str) -> None:
    text = refusal(tmp_path, f"{RUN}software: {program}\n", explain=explain)
    assert text.startswith(f"error: {message}\n")


def test_a_batch_that_no_mesh_divides_is_refused_with_its_reason() -> None:
    with pytest.raises(UsageError, match=r"dp \(32\) does not divide 33 sequences") as refused:
        planned(RUN.replace("global_batch: 128", "global_batch: 33"), tp=1, pp=1, cp=1)
    assert refused.value.hint == "set `global_batch: 64`"


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
        planned(RUN.replace("llama2-7b", "megatron-gpt-1008b").replace("4096", "2048").replace("4 nodes", "1 node"))
    first, *reasons = refused.value.message.splitlines()
    assert first == "no layout fits 8 accelerators of 80.0 GiB"
    assert all(re.match(r"  [\d.,k]+ \w+: too large for|  \d+ mesh", reason) for reason in reasons)
    nearest, _ = (refused.value.hint or "").splitlines()
    assert re.match(r"nearest: [\d.,]+ GiB .*recompute full, offload activations, offload optimizer", nearest)


def test_a_pipeline_too_large_for_megatron_lm_is_planned_for_a_program_that_keeps_less() -> None:
    """Llama 3 405B on 8,192 H100 (arXiv:2407.21783, table 4)."""
    text = (
        RUN.replace("llama2-7b", "llama3.1-405b")
        .replace("4096", "8192")
        .replace("global_batch: 128", "global_batch: 2048")
    )
    text = text.replace(ON, "1024 nodes of 8x H100-SXM-80GB over 8x RoCE 400")
    degrees = "dp_shard: 64, zero: 2, tp: 8, pp: 16, interleave: 8, recompute: none, offload_activations: false"
    text += f"layout: {{{degrees}, offload_optimizer: false, micro_batch: 1}}\n"
    plan = planned(text)
    assert 60 < plan.best[0].memory.total_bytes / 2**30 < 80
    assert sum("whose backward computes the product of a gated MLP again" in note for note in plan.notes) == 1
    with pytest.raises(EnvironmentProblem, match=r"no layout fits 8,192 accelerators"):
        planned(text + "software: {framework: Megatron-LM}\n")


def test_a_command_is_planned_by_what_it_trains(tmp_path: Path) -> None:
    text = refusal(tmp_path, "name: demo\nrun: python train.py\n", on=ON)
    assert text.startswith("error: nothing says what this command trains, as a plan needs it")


def test_a_layout_is_compared_on_a_described_cluster_alone(tmp_path: Path) -> None:
    text = refusal(tmp_path, RUN.replace(f"cluster: {ON}\n", ""), explain="tp=2")
    assert "for a described cluster" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explain": "tp=8", "sizes": True}, "`--explain` does not use `--sizes`"),
        ({"target": "megatron", "tune": 3}, "`--as` does not use `--tune`"),
    ],
    ids=str,
)
def test_an_option_that_would_be_ignored_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    assert message in refusal(tmp_path, RUN, **options)


def goal(deadline_s: float, *, budget: str = "") -> str:
    """A small run that is to be over in so many seconds."""
    price = f"cluster: {{of: {ON.replace('4 nodes', '2 nodes')}, usd_per_accelerator_hour: 2}}"
    written_cluster = next(line for line in SMALL.splitlines() if line.startswith("cluster"))
    return SMALL.replace(written_cluster, price) + f"goal: {{deadline: {deadline_s:.0f} s{budget}}}\n"


def test_evaluations_are_a_part_of_the_run_time() -> None:
    """Ten evaluations of 20 batches, each with about a third of the work of a step."""
    plain = planned(SMALL)
    plan = planned(SMALL.replace("  train_for", "  eval: {data: texts, every: 100 steps, steps: 20}\n  train_for"))
    assert plan.evaluation is not None and plan.evaluation.count == 10
    extra = plan.run_time_s - plain.run_time_s
    assert extra == pytest.approx(plan.evaluation.total_s)
    assert 0.2 * 200 * plain.best[0].step_time_s < extra < 0.6 * 200 * plain.best[0].step_time_s
    assert plan.work.value == pytest.approx(plan.run_time_s)
    assert plan.run_interval_s[0] < plan.run_time_s < plan.run_interval_s[1]
    assert "10 times, every 100 steps, 20 batches" in render_text(build_document(plan))


def test_evaluations_of_data_that_are_not_counted_are_named_as_left_out() -> None:
    plan = planned(SMALL.replace("  train_for", "  eval: {data: texts, every: 100 steps, steps: all}\n  train_for"))
    assert plan.run_time_s == planned(SMALL).run_time_s
    assert any("evaluations are left out" in note for note in plan.notes)


def test_without_a_goal_only_the_cluster_is_planned() -> None:
    assert planned(SMALL).scales == []


def test_a_deadline_that_the_cluster_misses_shows_the_larger_one_that_meets_it() -> None:
    plan = planned(goal(0.6 * planned(SMALL).run_time_s))
    *others, last = plan.scales
    assert last.num_nodes > plan.job.cluster.num_nodes
    assert last.meets_goal and last.chance >= 0.9
    assert all(scale.chance < 0.9 for scale in others)


def test_a_deadline_with_time_to_spare_shows_the_smaller_clusters_that_meet_it_too() -> None:
    plan = planned(goal(10 * planned(SMALL).run_time_s))
    assert [(scale.num_nodes, scale.chance > 0.99) for scale in plan.scales] == [(1, True), (2, True)]


def test_a_deadline_that_nothing_meets_is_shown_as_missed() -> None:
    plan = planned(goal(1))
    assert plan.scales
    assert all(scale.chance < 0.01 for scale in plan.scales)
    assert "90 % on none up to 16" in printed(plan)


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


def test_a_budget_without_a_price_takes_the_cheapest_offer_of_the_catalogue_and_says_which() -> None:
    plan = planned(SMALL + "goal: {budget: 1 USD}\n")
    (note,) = [note for note in plan.notes if note.startswith("priced at")]
    price = float(note.split()[2])
    assert "on-demand (" in note
    assert "20" in note.partition("(")[2]  # the year of the source
    for scale in plan.scales:
        assert scale.cost_usd == pytest.approx(price * scale.run_time_s / 3600 * scale.num_nodes * 8, rel=0.01)


def test_a_budget_in_yuan_is_answered_in_yuan() -> None:
    plan = planned(goal(3600, budget=", budget: 71元"))
    same = planned(goal(3600, budget=f", budget: {71 / assumption('CNY per USD').typical:.9f} USD"))
    assert "and 71 CNY: met with a chance of" in (plan.goal or "")
    assert [scale.chance for scale in plan.scales] == pytest.approx([scale.chance for scale in same.scales])
    assert " CNY " in render_text(build_document(plan), width=200)
    assert len([note for note in plan.notes if note.startswith("CNY at ")]) == 1


def test_a_price_of_the_run_file_goes_before_the_catalogue() -> None:
    plan = planned(goal(3600, budget=", budget: 10 USD"))
    assert not [note for note in plan.notes if note.startswith("priced at")]


def test_a_plan_needs_no_torch(tmp_path: Path) -> None:
    written(tmp_path)
    blocked = IMPORT_ALL_WITHOUT_TORCH.split("import trainworks\n")[0]
    program = f"{blocked}\nfrom trainworks.cli.app import main\nsys.argv = ['trainworks', 'plan', 'run.yaml']\nmain()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step time" in done.stdout


def shares(layout: str, text: str = RUN) -> list[dict[str, Any]]:
    """Of all layouts that are planned with a written one, what is written."""
    plan = planned(f"{text}layout: {layout}\n")
    return [row.layout.model_dump() for row in (*plan.best, *plan.front)]


@pytest.mark.parametrize(
    ("layout", "same"),
    [
        ("{tp: 8}", {"tp": 8}),
        ("{zero: 3}", {"zero": 3}),
        ("{pp: 2, recompute: full}", {"pp": 2, "recompute": "full"}),
        ("{dp_replicate: 4}", {"dp_replicate": 4, "dp_shard": 1}),
        ("{dp_replicate: 2, dp_shard: 4}", {"dp_replicate": 2, "dp_shard": 4}),
        ("{dp_shard: 32}", {"dp_replicate": 1, "dp_shard": 32, "tp": 1, "pp": 1, "cp": 1}),
    ],
)
def test_what_a_layout_names_is_fixed_and_the_rest_is_searched(layout: str, same: dict[str, Any]) -> None:
    rows = shares(layout)
    assert len(rows) > 1
    assert all({name: row[name] for name in same} == same for row in rows)


def test_an_empty_layout_decides_nothing() -> None:
    assert planned(RUN + "layout: {}\n").best == planned().best


def test_zero_shares_nothing_where_one_rank_holds_all() -> None:
    assert shares("{zero: 3, tp: 8, micro_batch: 1}", RUN.replace(ON, "8x H100"))[0]["tp"] == 8


def test_other_sizes_keep_what_the_layout_fixes_and_dp_follows() -> None:
    plan = planned(goal(1) + "layout: {dp_shard: 16, zero: 3, recompute: full}\n")
    assert [(scale.num_nodes, scale.best.layout.dp_shard) for scale in plan.scales][:3] == [(1, 8), (2, 16), (4, 32)]
    assert {scale.best.layout.recompute for scale in plan.scales} == {"full"}


def test_replicas_of_a_group_follow_the_number_of_nodes() -> None:
    plan = planned(goal(1) + "layout: {dp_replicate: 2, dp_shard: 8}\n")
    layouts = [(scale.best.layout.dp_replicate, scale.best.layout.dp_shard) for scale in plan.scales]
    assert layouts[:3] == [(1, 8), (2, 8), (4, 8)]


def test_a_size_that_the_layout_cannot_have_is_skipped() -> None:
    assert planned(goal(1) + "layout: {tp: 2, pp: 8}\n").scales[0].num_nodes == 2


@pytest.mark.parametrize(("end", "chance"), [("low_s", 0.1), ("step_time_s", 0.5), ("high_s", 0.9)])
def test_the_ends_of_the_interval_are_the_first_and_the_last_tenth(end: str, chance: float) -> None:
    best = planned(SMALL).best[0]
    plan = planned(goal(getattr(best, end) / best.step_time_s * planned(SMALL).run_time_s))
    own = next(scale for scale in plan.scales if scale.num_nodes == 2)
    assert own.chance == pytest.approx(chance, abs=0.02)  # the deadline is in whole seconds


def test_a_later_deadline_is_met_with_a_higher_chance() -> None:
    run_time_s = planned(SMALL).run_time_s
    plans = [planned(goal(share * run_time_s)) for share in (0.5, 0.9, 0.99, 1.01, 1.1, 2)]
    chances = [next(scale.chance for scale in plan.scales if scale.num_nodes == 2) for plan in plans]
    assert chances == sorted(set(chances)) and 0 <= chances[0] < 0.01 and 0.99 < chances[-1] <= 1


def test_the_goal_is_answered_in_one_line() -> None:
    plan = planned(goal(0.6 * planned(SMALL).run_time_s))
    chance = r"(under |over )?\d+ %"
    answer = rf"\S+ \S+: met with a chance of {chance} on 2 nodes(; {chance} on \d+)+"
    assert re.fullmatch(answer, plan.goal or "")
    assert re.search(rf"^goal +{answer}$", printed(plan), flags=re.MULTILINE)


def test_a_layout_that_only_fits_with_offloading_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_node = RUN.replace("4 nodes", "1 node")
    plan_command(written(tmp_path, one_node), explain="dp_replicate=8")
    note = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("note"))
    assert re.search(r"this layout does not fit without offloading the optimizer: \d+ GiB of 80.0 GiB", note)
    whole = planned(one_node.replace("llama2-7b", "llama2-70b")).notes[0]
    assert whole.startswith("no layout fits without offloading the ")


def test_what_would_fit_is_the_next_step() -> None:
    with pytest.raises(EnvironmentProblem) as refused:
        planned(RUN.replace("llama2-7b", "llama2-70b").replace(ON, "1x A100-SXM-80GB"))
    assert refused.value.message.splitlines()[0] == "no layout fits 1 accelerator of 80.0 GiB"
    assert re.search(r"\n +[2-8] nodes of this kind are the fewest on which it fits$", refused.value.hint or "")


def test_where_more_nodes_do_not_help_less_is_the_next_step() -> None:
    with pytest.raises(EnvironmentProblem) as refused:
        planned(dp=32, dp_shard=1, zero=0, tp=1, pp=1, cp=1, offload=0, offload_optimizer=0)
    assert "nor does it fit on up to 32 nodes of this kind: leave more of the layout open" in (refused.value.hint or "")


def test_a_batch_that_few_layouts_divide_is_noted() -> None:
    plan = planned(RUN.replace(ON, "24x A100-SXM-80GB").replace("global_batch: 128", "global_batch: 64"))
    assert any("`global_batch: 72` may be faster" in note for note in plan.notes)
    assert not any("global_batch" in note for note in planned().notes)


def test_fewer_nodes_are_named_where_they_are_faster() -> None:
    odd = RUN.replace("4 nodes", "9 nodes")
    note = next(note for note in planned(odd).notes if "may be faster" in note)
    named = re.search(r": (\d+) of the 9 nodes take ([\d.]+) s a step; ", note)
    assert named is not None
    fewer = planned(odd.replace("9 nodes", f"{named[1]} nodes"))
    assert fewer.best[0].step_time_s == pytest.approx(float(named[2]), rel=0.01)
    assert fewer.best[0].step_time_s < planned(odd).best[0].step_time_s


def test_a_layout_at_the_limit_of_memory_is_marked() -> None:
    plan = planned()
    limit = limit_bytes(plan.job)
    rows = [line for line in printed(plan).splitlines() if " micro-batch " in line and " %  " in line]
    marked = {"tight" in line for line in rows[: len(plan.best)]}
    assert marked == {row.memory.total_bytes > 0.97 * limit for row in plan.best}


@pytest.mark.parametrize("width", [80, 120, 240])
def test_no_line_ends_in_a_blank_or_is_cut(width: int) -> None:
    lines = printed(planned(goal(1)), width=width).splitlines()
    assert all(line == line.rstrip() and len(line) <= width and "\u2026" not in line for line in lines)


def test_parts_are_one_empty_line_apart_and_nothing_stands_twice() -> None:
    text = printed(planned())
    assert "\n\n\n" not in text
    layouts = [line for line in text.splitlines() if " micro-batch " in line and " %  " in line]
    assert len(layouts) == len(set(layouts))


def test_a_page_shows_the_asked_layout_beside_the_proposed(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    plan_command(written(tmp_path), explain="tp=8,pp=4,micro_batch=1", html=page)
    names = re.findall(r'class="name"><span>([^<]+)', page.read_text(encoding="utf-8"))
    assert len(names) == 4
    assert names[0].startswith("tp 8, ")
    assert not names[1].startswith("tp 8, ")


@pytest.mark.parametrize(
    ("page", "message"),
    [("no/plan.html", "no` is not a folder"), (".", "` is not a file"), ("/dev/full", "`/dev/full` is not a file")],
)
def test_a_page_that_cannot_be_written_is_refused_before_planning(tmp_path: Path, page: str, message: str) -> None:
    text = refusal(tmp_path, RUN.replace("llama2-7b", "no-such-model"), html=tmp_path / page)
    assert message in text.splitlines()[0]
    assert "--> --html" in text


def test_a_page_on_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFullError("no space left on device: 0 B free, writing `plan.html`", hint="lower `checkpoint.keep`")

    monkeypatch.setattr(page_renderer, "write_atomic", full)
    text = refusal(tmp_path, html=tmp_path / "plan.html")
    assert text.endswith("hint: free some space, or write it elsewhere")


def test_a_model_with_experts_is_less_certain() -> None:
    dense, routed = (planned(RUN.replace("llama2-7b", name)).best[0] for name in ("llama2-7b", "qwen3-30b-a3b"))
    assert routed.high_s / routed.low_s > dense.high_s / dense.low_s


def test_smaller_clusters_are_planned_without_a_goal_where_they_are_asked_for() -> None:
    run_file, source = parse_run_file(RUN, name="run.yaml")
    asked = plan_cluster(run_file, source, all_sizes=True)
    assert plan_cluster(run_file, source).scales == []
    assert [scale.num_nodes for scale in asked.scales] == sorted({scale.num_nodes for scale in asked.scales})
    assert asked.scales[-1].num_nodes <= asked.job.cluster.num_nodes
    times = [scale.run_time_s for scale in asked.scales]
    assert times == sorted(times, reverse=True)


def test_a_plan_far_above_every_compared_run_says_so_behind_its_verdict() -> None:
    plan = planned(RUN.replace("4 nodes", "16384 nodes").replace("batch: 128", "batch: 131072"))
    assert printed(plan, width=160).split("\n\n")[1].startswith("warning ")


def test_a_plan_says_when_the_network_starves_the_accelerators() -> None:
    poor, _ = parse_run_file(SMALL.replace("8x HDR", "1x HDR100"), name="run.yaml")
    good, source = parse_run_file(SMALL, name="run.yaml")
    assert any("the network starves the accelerators" in note for note in plan_cluster(poor, None).notes)
    assert not any("starves" in note for note in plan_cluster(good, source).notes)


@pytest.mark.parametrize(("chance", "text"), [(0.8999, "89 %"), (0.9, "90 %"), (0.29, "29 %"), (0.004, "under 1 %")])
def test_a_chance_below_nine_of_ten_is_never_shown_as_90_percent(chance: float, text: str) -> None:
    assert format_chance(chance) == text


def test_an_oversubscribed_network_that_no_switch_of_the_catalogue_builds_is_not_said_to_be_designed() -> None:
    notes = plan("examples/plan-llama-2-7b.yaml", on="4x p4d.24xlarge at 4:1").notes
    assert [note for note in notes if "counts with 12.5 GB/s of the 50.0 GB/s" in note and "designs" not in note]


def test_settings_of_the_command_line_plan_what_an_edited_file_would(tmp_path: Path) -> None:
    path = written(tmp_path)
    options = ("--set", "global_batch=64", "--set", "cluster=8x A100-SXM-80GB", "--set", "layout.tp=2", "--json")
    done = trainworks_program("plan", str(path), *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    edited = RUN.replace("global_batch: 128", "global_batch: 64").replace(ON, "8x A100-SXM-80GB")
    path.write_text(f"{edited}layout: {{tp: 2}}\n")
    assert json.loads(trainworks_program("plan", str(path), "--json", folder=tmp_path).stdout) == json.loads(
        done.stdout
    )


@pytest.mark.parametrize("command", ["plan", "size", "cost", "network", "goodput", "storage", "run", "submit"])
def test_every_command_places_a_misspelt_setting_alike(tmp_path: Path, command: str) -> None:
    done = trainworks_program(command, str(written(tmp_path)), "--set", "optimzer.lr=1", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "error: unknown key `optimzer`\n  --> --set optimzer.lr\n\nhint: did you mean `optimizer.lr`?\n"
    )


def test_a_setting_without_a_run_file_is_refused(tmp_path: Path) -> None:
    done = trainworks_program("cost", "--on", "DGX H100", "--set", "global_batch=1", folder=tmp_path)
    assert done.returncode == 2 and "settings change a run file, and none is given\n  --> --set" in done.stderr
