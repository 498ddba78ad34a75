"""Configurations for torchtitan, Megatron-LM and DeepSpeed: keys that those programs have, and nothing left unsaid."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trainworks.api.plan import hand_over
from trainworks.cli.app import app
from trainworks.config.load import parse_run_file
from trainworks.errors import UsageError
from trainworks.plan.handover.job import Handover

KEYS = Path(__file__).parents[1] / "data" / "handover"
EVERYTHING: dict[str, Any] = {
    "guard": {"spike": "skip"},
    "recover": {"replace_stragglers": True},
    "track": ["tensorboard"],
    "checkpoint": {"every": "500 steps", "copies": ["s3://bucket/prefix"]},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "megatron": {"dp_replicate": 1, "dp_shard": 2, "zero": 1, "tp": 2, "pp": 2, "interleave": 2, "micro_batch": 1},
    "torchtitan": {"dp_replicate": 1, "dp_shard": 2, "zero": 3, "tp": 2, "pp": 2, "interleave": 2, "micro_batch": 1},
    "deepspeed": {"dp_replicate": 1, "dp_shard": 4, "zero": 2, "tp": 2, "micro_batch": 1},
}
"""A complete layout of eight accelerators for each target;"""


def handed(
    target: str, *, workload: dict[str, Any] | None = None, layout: dict[str, Any] | None = None, **keys: Any
) -> Handover:
    """A plan of Llama 3 8B on one node, as the target gets it."""
    own = {
        "task": "causal-lm",
        "model": {"preset": "llama3-8b"},
        "data": {"sequence_length": 4096},
        "global_batch": 32,
        "train_for": "1000 steps",
        "optimizer": {"warmup": "100 steps"},
    } | (workload or {})
    base = {"zero_bubble": False, "offload_activations": False, "offload_optimizer": False, "recompute": "full"}
    run = {"name": "llama-3.8b", "workload": own, "cluster": "DGX H100", "layout": base | (layout or LAYOUTS[target])}
    run_file, _ = parse_run_file(yaml.safe_dump(run | keys), name="run.yaml")
    return hand_over(run_file, target)


def known(target: str) -> set[str]:
    """The keys of a program at the commit that the file names."""
    lines = (KEYS / f"{target}.txt").read_text(encoding="utf-8").splitlines()
    return {line for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("target", LAYOUTS)
def test_a_plan_is_handed_over_with_what_is_missing(target: str, golden) -> None:
    handover = handed(target, **EVERYTHING)
    assert {"`guard` is not handed over", "`recover` is not handed over", "`track` is not handed over"} <= set(
        handover.notes
    )
    assert "`checkpoint.copies` is not handed over" in handover.notes
    shown = handover.text if handover.has_comments else handover.text + "\n".join(handover.notes) + "\n"
    golden(f"plan_as_{target}.txt", shown)


HYBRID: dict[str, Any] = {
    "layout": {"dp_replicate": 2, "dp_shard": 8, "zero": 3, "micro_batch": 1},
    "cluster": "2 nodes of DGX H100",
}
OPTIMIZERS = [{"name": name} for name in ("adamw", "lion", "sgd")]
SCHEDULES = [{"schedule": name} for name in ("cosine", "linear", "constant", "wsd", "inverse-sqrt", "range-test")]
VARIANTS: list[dict[str, Any]] = [
    *({"workload": {"optimizer": optimizer}} for optimizer in OPTIMIZERS + SCHEDULES),
    {"workload": {"optimizer": {"schedule": "linear", "min_lr_ratio": 0.0, "warmup": "10 steps"}}},
    *({"workload": {"precision": precision}} for precision in ("fp32", "fp16", "fp8")),
    {"workload": {"eval": {"split": "5 %", "every": "50 steps"}, "deterministic": True}},
    {"workload": {"model": {"preset": "qwen3-0.6b"}}, "layout": {"dp_replicate": 8, "micro_batch": 1}},
    {"layout": {"dp_replicate": 1, "dp_shard": 4, "pp": 2, "zero": 3, "micro_batch": 1, "stage_layers": [14, 18]}},
    {"layout": {"dp_shard": 8, "zero": 3, "micro_batch": 1, "offload_optimizer": True}},
    {"layout": {"dp_shard": 8, "zero": 2, "micro_batch": 1, "gradient_compression": "bf16"}},
    HYBRID,
    {
        "workload": {"model": {"architecture": "mixtral", "layers": 8, "hidden": 1024, "heads": 16}},
        "layout": {"dp_shard": 8, "ep": 8, "zero": 1, "micro_batch": 1},
    },
    {"workload": {"model": {"preset": "qwen3-14b"}}},
    {"workload": {"model": {"architecture": "gpt2", "layers": 12, "hidden": 768, "heads": 12}}},
]


@pytest.mark.parametrize("target", LAYOUTS)
def test_every_key_is_one_of_the_program(target: str) -> None:
    of = {"megatron": megatron_keys, "torchtitan": torchtitan_keys, "deepspeed": deepspeed_keys}[target]
    written: set[str] = set()
    handed_over = 0
    for variant in VARIANTS:
        try:
            handover = handed(target, **variant)
        except UsageError as refused:
            assert "cannot run this plan" in refused.message, variant
            assert refused.hint
            continue
        handed_over += 1
        written |= of(handover.text)
    assert handed_over >= 7
    assert written - known(target) == set()


def megatron_keys(text: str) -> set[str]:
    """The options, as bash reads the array."""
    script = f'{text}printf "%s\\n" "${{MEGATRON_ARGUMENTS[@]}}"'
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    return {word for word in printed.splitlines() if word.startswith("--")}


def torchtitan_keys(text: str) -> set[str]:
    """Imports, fields that are assigned, and fields of the optimizer's groups."""
    keys: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            keys |= {f"{node.module} import {name.name}" for name in node.names}
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            keys.add(ast.unparse(node.targets[0]).removeprefix("config."))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("OptimizersContainer.Config", "ParamGroupConfig"):
            keys |= {f"{ast.unparse(node.func)}:{keyword.arg}" for keyword in node.keywords}
    return keys


def deepspeed_keys(text: str) -> set[str]:
    """Paths of the keys; parameters stand after the type of their optimizer or scheduler."""
    config = json.loads(text)
    keys: set[str] = set()
    for name in ("optimizer", "scheduler"):
        if block := config.pop(name, None):
            keys |= {name, *(f"{name}.{key}" for key in block)}
            if block["type"] != "SGD":  # torch.optim.SGD, with torch's own parameters
                keys |= {f"{name}.{block['type']}.{key}" for key in block["params"]}
    return keys | set(paths(config))


def paths(block: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in block.items():
        found += [f"{prefix}{key}", *(paths(value, f"{prefix}{key}.") if isinstance(value, dict) else [])]
    return found


REFUSED = [
    ("torchtitan", {"layout": {"dp_shard": 8, "zero": 1, "micro_batch": 1}}, "always shards gradients", "zero: 3"),
    ("torchtitan", {"workload": {"model": {"preset": "llama2-7b"}}}, "no model of its registry", "--as megatron"),
    ("torchtitan", {"workload": {"optimizer": {"name": "muon"}}}, "no optimizer like `muon`", "adamw"),
    ("torchtitan", {"workload": {"precision": "fp8"}}, "precision: fp8", "bf16"),
    ("megatron", {"workload": {"optimizer": {"name": "adamw-8bit"}}}, "no optimizer like `adamw-8bit`", "adamw"),
    (
        "megatron",
        {"workload": {"model": {"preset": "gpt-oss-20b"}}, "layout": {"dp_shard": 8}},
        "attention and experts",
        "Bridge",
    ),
    *(
        ("megatron", {"workload": {"model": {"preset": name}}}, "attention and experts", "Bridge")
        for name in ("glm4-9b", "smollm3-3b", "phi4-mini", "granite3-8b", "gemma-2b")
    ),
    ("deepspeed", {"layout": LAYOUTS["megatron"]}, "PipelineModule", "pp: 1"),
    ("deepspeed", {"layout": {"dp_shard": 4, "cp": 2, "zero": 1}}, "DistributedAttention", "cp: 1"),
    ("deepspeed", HYBRID, "among all data-parallel", "dp_replicate: 1"),
]


@pytest.mark.parametrize(("target", "changes", "reason", "hint"), REFUSED)
def test_a_plan_that_the_program_cannot_run_is_refused(
    target: str, changes: dict[str, Any], reason: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)) as refused:
        handed(target, **changes)
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(("layers", "by_chunk"), [(8, 4), (7, 4), (2, 1)])
def test_layers_of_a_stage_that_recompute_are_layers_of_each_chunk_for_megatron(layers: int, by_chunk: int) -> None:
    text = handed("megatron", layout=LAYOUTS["megatron"] | {"recompute_layers": layers}).text
    assert "--recompute-method block" in text
    assert f"--recompute-num-layers {by_chunk}" in text
    assert ("rounds up to whole layers of each chunk" in text) == (layers == 7)


def test_the_micro_batches_of_torchtitan_make_the_global_batch() -> None:
    config = handed("torchtitan").text
    number = {name: int(value) for name, value in re.findall(r"(\w+) = (-?\d+)$", config, re.MULTILINE)}
    shard, micro_batches = number["data_parallel_shard_degree"], number["num_pp_microbatches"]
    assert (
        number["num_tokens_per_microbatch_per_dp_rank"] * micro_batches * shard == number["num_tokens_per_train_step"]
    )
    stages = next(
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(config))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("module_fqns_per_model_part")
    )
    layers = [f"layers.{layer}" for layer in range(32)]
    assert [name for stage in stages for name in stage] == ["tok_embeddings", *layers, "norm", "lm_head"]


def test_the_command_prints_the_configuration_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    layout = {"dp_shard": 8, "zero": 2, "tp": 1, "pp": 1, "micro_batch": 1, "interleave": 1}
    workload = {"task": "causal-lm", "model": {"preset": "llama3-8b"}, "data": {"sequence_length": 2048}}
    run = {"name": "lm", "workload": workload | {"global_batch": 8, "train_for": "10 steps"}, "layout": layout}
    path.write_text(yaml.safe_dump(run))
    result = CliRunner().invoke(app, ["plan", str(path), "--on", "DGX H100", "--as", "deepspeed"])
    assert json.loads(result.stdout)["train_batch_size"] == 8
    assert "note: model, data, number of steps and seed belong to the program" in result.stderr
    result = CliRunner().invoke(app, ["plan", str(path), "--as", "megatron"])
    assert "`cluster` is `local`" in result.exception.message  # type: ignore[union-attr]


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_what_a_program_does_not_evaluate_is_noted(target: str) -> None:
    evaluation = {
        "data": {"wiki": "wiki.txt", "code": "code.txt"},
        "metric_of": "code",
        "metrics": ["own:measure"],
        "generate": {"prompts": ["Once"]},
        "every": "50 steps",
    }
    notes = handed(target, workload={"eval": evaluation}).notes
    assert any("`eval.data` has several sets" in note for note in notes)
    assert {f"`workload.eval.{key}` is not handed over" for key in ("metrics", "generate", "metric_of")} <= set(notes)
