"""Command-line options of Megatron-LM's `pretrain_gpt.py`, as a shell array."""

from __future__ import annotations

import shlex

from trainworks.catalog.models import preset
from trainworks.config.layout import stage_layers
from trainworks.plan.activations import recomputes_modules
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

_PROGRAM = "Megatron-LM"
_UNLIKE_LLAMA = ("gemma", "glm", "granite", "phi3", "smollm3")  # in positions, activations or scales
_Options = dict[str, str | int | float | bool | None]
"""Option without its dashes -> value; True for a switch, and False or None to leave it out."""


def render(job: HandedJob) -> Handover:
    """The array `MEGATRON_ARGUMENTS`, for `torchrun ... pretrain_gpt.py "${MEGATRON_ARGUMENTS[@]}"`.

    Raises:
        UsageError: Megatron-LM cannot run the plan.
    """
    _check(job)
    saving: _Options = {"save-interval": job.run_file.checkpoint.every.steps}
    groups = [_model(job), _parallelism(job), _training(job), _optimizer(job), _precision(job), saving]
    notes = _notes(job)
    lines = [title(job), *comments(notes), "MEGATRON_ARGUMENTS=("]
    for name, value in (option for options in groups for option in options.items()):
        if value is not None and value is not False:
            lines.append(f"    --{name}" if value is True else f"    --{name} {shlex.quote(str(value))}")
    return Handover("megatron", "\n".join([*lines, ")"]) + "\n", tuple(notes))


def _check(job: HandedJob) -> None:
    layout, shape = job.layout, job.shape
    check_language_model(_PROGRAM, job)
    check_common(_PROGRAM, job, precisions=("bf16", "fp16", "fp32", "fp8", "fp4"), optimizers=("adamw", "lion", "sgd"))
    unlike = shape.latent or shape.window or shape.dense_layers or shape.shared_feed_forward or shape.parallel
    if unlike or not _attention(job):
        refuse(
            _PROGRAM,
            "the plan does not have every dimension of this model's attention and experts",
            "take the model's options from Megatron Bridge, or hand over a Llama-, Qwen-, Mixtral- or GPT-2-like model",
        )
    if layout.zero >= 2 and job.optimizer.name == "lion":
        refuse(_PROGRAM, "Megatron-FSDP has no Lion", "plan with `layout: {zero: 1}`")
    if layout.gradient_compression == "fp16":
        refuse(_PROGRAM, "it reduces gradients in fp32 or bf16", "set `layout.gradient_compression: bf16`")
    if job.workload.precision == "fp8" and job.job.software.fp8_recipe == "rowwise":
        refuse(_PROGRAM, "it has no `fp8_recipe: rowwise`", "plan with `software: {fp8_recipe: tensorwise}`")


def _attention(job: HandedJob) -> _Options | None:
    """Options of norms and biases, from the number of small weights per layer; None for an unknown kind."""
    shape = job.shape
    if not shape.gated_mlp:
        return {"position-embedding-type": "learned_absolute"} if shape.learned_positions else None
    extra = shape.small.layer - 2 * shape.hidden
    kinds: dict[int, _Options] = {
        0: {},
        2 * shape.head_dim: {"qk-layernorm": True},
        (shape.heads + 2 * shape.kv_heads) * shape.head_dim: {"add-qkv-bias": True},
    }
    name = job.workload.model.preset
    if extra not in kinds or shape.learned_positions or (name and preset(name).get("model_type") in _UNLIKE_LLAMA):
        return None
    usual: _Options = {
        "position-embedding-type": "rope",
        "normalization": "RMSNorm",
        "swiglu": True,
        "disable-bias-linear": True,
    }
    return usual | kinds[extra]


def _model(job: HandedJob) -> _Options:
    shape, model = job.shape, job.workload.model
    grouped = shape.kv_heads < shape.heads
    options = {
        "num-layers": shape.layers,
        "hidden-size": shape.hidden,
        "ffn-hidden-size": shape.feed_forward,
        "num-attention-heads": shape.heads,
        "group-query-attention": grouped,
        "num-query-groups": shape.kv_heads if grouped else None,
        "kv-channels": shape.head_dim,
        "vocab-size": shape.vocabulary,
        "max-position-embeddings": shape.max_sequence_length,
        "untie-embeddings-and-output-weights": not shape.tie_embeddings,
        "hidden-dropout": model.dropout,
        "attention-dropout": model.dropout,
        **(_attention(job) or {}),
    }
    if shape.experts:
        options |= {
            "num-experts": shape.experts,
            "moe-router-topk": shape.experts_per_token,
            "moe-ffn-hidden-size": shape.expert_feed_forward,
            "moe-router-load-balancing-type": "aux_loss",
            "moe-aux-loss-coeff": model.written_balance_loss,
        }
    return options


def _parallelism(job: HandedJob) -> _Options:
    layout = job.layout
    hybrid = layout.dp_replicate > 1 and layout.zero > 0
    options: _Options = {
        "tensor-model-parallel-size": layout.tp,
        "sequence-parallel": layout.sequence_parallel,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
        "expert-model-parallel-size": layout.ep if job.shape.experts else None,
        "use-distributed-optimizer": layout.zero > 0,
        "num-distributed-optimizer-instances": layout.dp_replicate if hybrid else None,
        "overlap-grad-reduce": job.job.software.overlap,
        "overlap-param-gather": job.job.software.overlap and layout.zero > 0,
        "grad-reduce-in-bf16": layout.gradient_compression == "bf16",
        "optimizer-cpu-offload": layout.offload_optimizer,
        "use-precision-aware-optimizer": layout.offload_optimizer,
        "recompute-granularity": None if layout.recompute == "none" else layout.recompute,
    }
    if layout.recompute == "selective" and recomputes_modules(job.shape, job.job.software):
        options["recompute-modules layernorm moe_act"] = True
    if layout.recompute == "full":
        each = -(-layout.recompute_layers // layout.interleave)  # Megatron-LM counts by chunk
        method = "block" if each else "uniform"
        options |= {"recompute-method": method, "recompute-num-layers": each or 1}
    if layout.zero >= 2:
        strategy = "optim_grads" if layout.zero == 2 else "optim_grads_params"
        options |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": strategy}
        options["ckpt-format"] = "fsdp_dtensor"
    return options | _stages(job)


def _stages(job: HandedJob) -> _Options:
    """The layers of the stages, where Megatron-LM would not divide them evenly itself."""
    layout = job.layout
    if layout.pp == 1:
        return {}
    sizes = [len(stage) for stage in stage_layers(layout, job.shape.layers)]
    if len(set(sizes)) == 1:
        return {"num-virtual-stages-per-pipeline-rank": layout.interleave if layout.interleave > 1 else None}
    stages = [f"t*{size}" if size else "" for size in sizes]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    return {"pipeline-model-parallel-layout": "|".join(stages)}


def _training(job: HandedJob) -> _Options:
    evaluation = job.workload.eval
    steps = 0 if evaluation is None else evaluation.steps
    return {
        "seq-length": job.job.sequence_length,
        "micro-batch-size": job.layout.micro_batch,
        "global-batch-size": job.plan.global_batch,
        "train-iters": job.plan.steps,
        "eval-interval": evaluation.every_steps if evaluation else None,
        "eval-iters": None if steps == "all" else steps,
        "seed": job.workload.seed,
        "deterministic-mode": job.workload.deterministic,
    }


def _optimizer(job: HandedJob) -> _Options:
    optimizer = job.optimizer
    first, second = optimizer.betas
    own: dict[str, _Options] = {
        "adamw": {"optimizer": "adam", "adam-beta1": first, "adam-beta2": second, "adam-eps": optimizer.eps},
        "lion": {"optimizer": "lion", "lion-beta1": first, "lion-beta2": second},
        "sgd": {"optimizer": "sgd", "sgd-momentum": first},
    }
    styles = {"cosine": "cosine", "linear": "linear", "wsd": "WSD", "inverse-sqrt": "inverse-square-root"}
    decays = optimizer.schedule in ("cosine", "linear", "wsd")
    options = own[optimizer.name] | {
        "lr": optimizer.lr,
        "min-lr": f"{optimizer.lr * optimizer.min_lr_ratio:.6g}" if decays else None,
        "lr-decay-style": styles.get(optimizer.schedule, "constant"),
        "lr-warmup-iters": job.warmup_steps or None,
        "weight-decay": optimizer.weight_decay,
        "clip-grad": optimizer.clip_grad_norm or 0.0,
    }
    if optimizer.schedule == "wsd":
        options |= {"lr-wsd-decay-style": "linear"}
        options["lr-wsd-decay-iters"] = max(1, round(optimizer.decay_share * job.plan.steps))
    return options


def _precision(job: HandedJob) -> _Options:
    precision = job.workload.precision
    options: _Options = {"bf16": precision in ("bf16", "fp8", "fp4"), "fp16": precision == "fp16"}
    if precision == "fp8":
        options |= {"fp8-format": "hybrid", "fp8-recipe": job.job.software.fp8_recipe}
    return options | ({"fp4-format": "e2m1"} if precision == "fp4" else {})


def _notes(job: HandedJob) -> list[str]:
    layout, every, evaluation = job.layout, job.run_file.checkpoint.every, job.workload.eval
    notes = {
        "`data` is not handed over: add `--data-path`, `--tokenizer-type` and `--tokenizer-model`": True,
        "`checkpoint.to` is not handed over: add `--save` and `--load`": True,
        "the plan does not know the base of rotary positions and epsilon: add `--rotary-base` and `--norm-epsilon`": (
            not job.shape.learned_positions
        ),
        "the plan does not know how the router scores experts: add the `--moe-router-...` options": job.shape.experts,
        schedule_note(job, "the rate stays constant"): job.optimizer.schedule == "range-test",
        f"`checkpoint.every: {every}` is not in steps: add `--save-interval`": every.steps is None,
        f"`checkpoint.keep: {job.run_file.checkpoint.keep}` has no counterpart: old checkpoints stay": True,
        f"`recompute_layers: {layout.recompute_layers}` rounds up to whole layers of each chunk": (
            layout.recompute_layers % layout.interleave
        ),
        "`compile` has no counterpart: the kernels of Transformer Engine are compiled already": job.is_compiled,
        "Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1: leave it unset": layout.zero >= 2,
        "before Blackwell, set CUDA_DEVICE_MAX_CONNECTIONS=1": layout.zero < 2 and layout.tp * layout.cp > 1,
        "`eval.steps: all`: add `--full-validation` or `--eval-iters`": evaluation and evaluation.steps == "all",
    }
    usual = common_notes(job, family="megatron", written=("eval", "deterministic"))
    return [*(note for note, applies in notes.items() if applies), *usual]
