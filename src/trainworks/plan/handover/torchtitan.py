"""A configuration function of torchtitan, its present form of a configuration.

torchtitan/config/README.md: a run is described by a function that returns a `Trainer.Config`, selected with `--module`
and `--config`; command-line options and TOML files are gone or frozen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pprint import pformat

from trainworks.config.layout import stage_layers
from trainworks.plan.handover.job import (
    HandedJob,
    Handover,
    check_common,
    check_language_model,
    comments,
    common_notes,
    refuse,
    schedule_note,
    title,
)

_PROGRAM = "torchtitan"
_MODELS = {
    (32, 4096, 32, 8, 14336, 128256): ("llama3", "llama3_8b"),
    (80, 8192, 64, 8, 28672, 128256): ("llama3", "llama3_70b"),
    (126, 16384, 128, 8, 53248, 128256): ("llama3", "llama3_405b"),
    (28, 1024, 16, 8, 3072, 151936): ("qwen3", "qwen3_0_6b"),
    (28, 2048, 16, 8, 6144, 151936): ("qwen3", "qwen3_1_7b"),
    (40, 5120, 40, 8, 17408, 151936): ("qwen3", "qwen3_14b"),
    (64, 5120, 64, 8, 25600, 151936): ("qwen3", "qwen3_32b"),
}
"""Layers, width, heads, key/value heads, MLP width and vocabulary -> model and its function in `config_registry`."""


def render(job: HandedJob) -> Handover:
    """The Python module with the configuration function `run_NAME`.

    Raises:
        UsageError: torchtitan cannot run the plan.
    """
    model, base = _check(job)
    function = "run_" + re.sub(r"\W", "_", job.run_file.name, flags=re.ASCII)
    settings = {name: pformat(value, width=100, compact=True) for name, value in _settings(job).items()}
    for name, literal in settings.items():
        if "\n" in literal:
            settings[name] = "(\n        " + literal.replace("\n", "\n        ") + "\n    )"
    policy = {"full": "FullAC", "selective": "SelectiveAC"}.get(job.layout.recompute)
    notes = _notes(job, model)
    lines = [
        title(job),
        f"# NGPU={job.job.cluster.accelerators_per_node} MODULE=<this module> CONFIG={function} ./run_train.sh",
        *comments(notes),
        "",
        "from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig",
        *([f"from torchtitan.distributed.activation_checkpoint import {policy}"] if policy else []),
        f"from torchtitan.models.{model}.config_registry import {base}",
        "from torchtitan.trainer import Trainer",
        "",
        "",
        f"def {function}() -> Trainer.Config:",
        f"    config = {base}()",
        *(f"    config.{name} = {literal}" for name, literal in settings.items()),
        f"    config.activation_checkpoint = {f'{policy}.Config()' if policy else None}",
        *_optimizer(job),
        "    return config",
    ]
    return Handover(_PROGRAM, "\n".join(lines) + "\n", tuple(notes))


def _check(job: HandedJob) -> tuple[str, str]:
    """The model and its function in torchtitan; refuses what torchtitan cannot run."""
    layout, shape = job.layout, job.shape
    check_language_model(_PROGRAM, job)
    check_common(_PROGRAM, job, precisions=("bf16", "fp32"), optimizers=("adamw",))
    found = _MODELS.get((shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.feed_forward, shape.vocabulary))
    if found is None or shape.experts:
        names = ", ".join(name for _, name in _MODELS.values())
        refuse(
            _PROGRAM,
            f"no model of its registry has {shape.layers} layers of width {shape.hidden} and these heads",
            f"known are {names}; `--as megatron` builds a model from its dimensions",
        )
    if layout.zero == 1:
        refuse(_PROGRAM, "FSDP2 always shards gradients, and the layout has `zero 1`", "plan with `layout: {zero: 3}`")
    if layout.gradient_compression != "none":
        refuse(_PROGRAM, "it reduces gradients in fp32", "remove `layout.gradient_compression`")
    if shape.tie_embeddings and layout.pp > 1:
        refuse(_PROGRAM, "tied embeddings cannot be split over stages", "plan with `layout: {pp: 1}`")
    return found


def _settings(job: HandedJob) -> Mapping[str, object]:
    layout, length = job.layout, job.job.sequence_length
    settings: dict[str, object] = {
        "training.steps": job.plan.steps,
        "training.max_context_length": length,
        "training.num_tokens_per_microbatch_per_dp_rank": layout.micro_batch * length,
        "training.num_tokens_per_train_step": job.plan.global_batch * length,
        "training.max_norm": job.optimizer.clip_grad_norm or float("1e30"),
        "training.mixed_precision_param": "bfloat16" if job.workload.precision == "bf16" else "float32",
        "training.enable_cpu_offload": layout.offload_optimizer,
        "parallelism.data_parallel_replicate_degree": layout.dp_replicate,
        "parallelism.data_parallel_shard_degree": layout.dp_shard,
        "parallelism.fsdp_reshard_after_forward": "never" if layout.zero == 2 else "always",
        "parallelism.context_parallel_degree": layout.cp,
        "parallelism.tensor_parallel_degree": layout.tp,
        "parallelism.enable_sequence_parallel": layout.sequence_parallel,
        "parallelism.pipeline_parallel_degree": layout.pp,
        **_pipeline(job),
        **_schedule(job),
        "compile.enable": job.is_compiled,
        "debug.seed": job.workload.seed,
        "debug.deterministic": job.workload.deterministic,
        "checkpoint.enable": True,
        "checkpoint.keep_latest_k": job.run_file.checkpoint.keep,
    }
    if job.run_file.checkpoint.every.steps:
        settings["checkpoint.interval"] = job.run_file.checkpoint.every.steps
    settings["validator.enable"] = job.workload.eval is not None
    if job.workload.eval is not None:
        settings["validator.freq"] = job.workload.eval.every_steps
        if job.workload.eval.steps != "all":
            settings["validator.steps"] = job.workload.eval.steps
    return settings


def _pipeline(job: HandedJob) -> Mapping[str, object]:
    """Fields of a pipeline; its stages have the layers that the plan gave them. CUDA graphs exclude a pipeline."""
    layout = job.layout
    if layout.pp == 1:
        return {}
    parts = [[f"layers.{layer}" for layer in stage] for stage in stage_layers(layout, job.shape.layers)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return {
        "parallelism.pipeline_parallel_schedule": "Interleaved1F1B" if layout.interleave > 1 else "1F1B",
        "parallelism.num_pp_microbatches": layout.grad_accum_steps,
        "parallelism.module_fqns_per_model_part": parts,
        "training.disable_cuda_graphs": True,
    }


def _schedule(job: HandedJob) -> Mapping[str, object]:
    optimizer = job.optimizer
    decays = optimizer.schedule in ("cosine", "linear", "wsd")
    return {
        "lr_scheduler.warmup_steps": job.warmup_steps,
        "lr_scheduler.decay_ratio": optimizer.decay_share if optimizer.schedule == "wsd" else None,
        "lr_scheduler.decay_type": "cosine" if optimizer.schedule == "cosine" else "linear",
        "lr_scheduler.min_lr_factor": optimizer.min_lr_ratio if decays else 1.0,
    }


def _optimizer(job: HandedJob) -> list[str]:
    """Two groups, because Trainworks does not decay norms and biases; the first pattern that matches wins."""
    optimizer = job.optimizer
    lines = ["    config.optimizer = OptimizersContainer.Config(", "        param_groups=["]
    for pattern, decay in ((r"norm|bias$", 0.0), (r".*", optimizer.weight_decay)):
        arguments = {"lr": optimizer.lr, "betas": optimizer.betas, "eps": optimizer.eps, "weight_decay": decay}
        lines += [
            "            ParamGroupConfig(",
            f"                pattern={pattern!r},",
            "                optimizer_name='AdamW',",
            f"                optimizer_kwargs={arguments!r},",
            "            ),",
        ]
    return [*lines, "        ],", "    )"]


def _notes(job: HandedJob, model: str) -> list[str]:
    workload, every = job.workload, job.run_file.checkpoint.every
    evaluation, schedule = workload.eval, job.optimizer.schedule
    notes = {
        f"`data` is not handed over: set `config.dataloader` and `config.hf_assets_path` of {model}": True,
        "torchtitan scales rotary positions as Llama 3.1 does, also for Llama 3": model == "llama3",
        schedule_note(job, "the rate stays constant after the warm-up"): schedule in ("inverse-sqrt", "range-test"),
        "torchtitan always clips gradients: `max_norm` is set too large to matter": not job.optimizer.clip_grad_norm,
        "torchtitan shards states over the context-parallel ranks; the plan keeps them whole": job.layout.zero == 0
        and job.layout.cp > 1,
        "`enable_cpu_offload` moves weights and gradients to the host, too; the plan moves the optimizer alone": (
            job.layout.offload_optimizer
        ),
        "SelectiveAC repeats every second product; a plan with `software: torchtitan` counts it": job.layout.recompute
        == "selective",
        f"torchtitan recomputes every layer; the plan {job.layout.recompute_layers} of each rank": (
            job.layout.recompute_layers
        ),
        f"`checkpoint.every: {every}` is not in steps: set `config.checkpoint.interval`": every.steps is None,
        "`eval`: set `config.validator.dataloader`": evaluation is not None,
        "`eval.steps: all`: set `config.validator.steps`": evaluation is not None and evaluation.steps == "all",
    }
    usual = common_notes(job, family="torch", written=("eval", "deterministic"))
    return [*(note for note, applies in notes.items() if applies), *usual]
