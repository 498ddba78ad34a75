"""The JSON configuration of DeepSpeed (https://www.deepspeed.ai/docs/config-json/)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from trainworks.plan.handover.job import HandedJob, Handover, check_common, common_notes, refuse, schedule_note

_PROGRAM = "DeepSpeed"
_ELSEWHERE = {
    "pp": "pipeline stages are built in the program (`PipelineModule`), not in the configuration",
    "cp": "sequence parallelism is built in the program (`DistributedAttention`), not in the configuration",
    "ep": "expert parallelism is built in the program (`MoE(ep_size=...)`), not in the configuration",
}


def render(job: HandedJob) -> Handover:
    """The JSON text, which has no comments: the notes are apart.

    Raises:
        UsageError: no configuration of DeepSpeed describes the plan.
    """
    _check(job)
    layout, optimizer = job.layout, job.optimizer
    zero: dict[str, object] = {"stage": layout.zero}
    if layout.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, object] = {
        "train_batch_size": job.plan.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.grad_accum_steps,
        "gradient_clipping": optimizer.clip_grad_norm or 0.0,
        "bf16": {"enabled": job.workload.precision == "bf16"},
        "fp16": {"enabled": job.workload.precision == "fp16"},
        "zero_optimization": zero,
        "optimizer": _optimizer(job),
    }
    if layout.gradient_compression != "none":
        config["communication_data_type"] = layout.gradient_compression
    if layout.tp > 1:
        # DeepSpeed checks train_batch_size against all ranks, those of a tensor-parallel group too, and infers it.
        del config["train_batch_size"]
        config["tensor_parallel"] = {"autotp_size": layout.tp}
    if scheduler := _scheduler(job):
        config["scheduler"] = scheduler
    return Handover("deepspeed", json.dumps(config, indent=2) + "\n", tuple(_notes(job)), has_comments=False)


def _check(job: HandedJob) -> None:
    layout = job.layout
    check_common(_PROGRAM, job, precisions=("bf16", "fp16", "fp32"), optimizers=("adamw", "lion", "sgd"))
    for axis, reason in _ELSEWHERE.items():
        if getattr(layout, axis) > 1:
            refuse(_PROGRAM, reason, f"plan with `layout: {{{axis}: 1}}`")
    if layout.dp_replicate > 1 and layout.dp_shard > 1:
        refuse(_PROGRAM, "ZeRO shares states among all data-parallel ranks", "plan with `layout: {dp_replicate: 1}`")
    if layout.offload_optimizer and layout.zero == 0:
        refuse(_PROGRAM, "it offloads the optimizer only with ZeRO", "plan with `layout: {offload_optimizer: false}`")


def _optimizer(job: HandedJob) -> Mapping[str, object]:
    optimizer = job.optimizer
    params: dict[str, object] = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if optimizer.name == "sgd":
        return {"type": "SGD", "params": params | {"momentum": optimizer.betas[0]}}
    params["betas"] = list(optimizer.betas)
    if optimizer.name == "lion":
        return {"type": "Lion", "params": params}
    return {"type": "AdamW", "params": params | {"eps": optimizer.eps}}


def _scheduler(job: HandedJob) -> Mapping[str, object] | None:
    """The scheduler; None where DeepSpeed has no such course. Its warm-up has at least one step."""
    optimizer = job.optimizer
    warmup = {"warmup_num_steps": max(1, job.warmup_steps), "warmup_type": "linear"}
    total = {"total_num_steps": job.plan.steps}
    if optimizer.schedule == "cosine":
        first = {"warmup_min_ratio": 0.0 if job.warmup_steps else 1.0}
        return {"type": "WarmupCosineLR", "params": total | first | warmup | {"cos_min_ratio": optimizer.min_lr_ratio}}
    rates = {"warmup_min_lr": 0.0 if job.warmup_steps else optimizer.lr, "warmup_max_lr": optimizer.lr}
    if optimizer.schedule == "constant":
        return {"type": "WarmupLR", "params": rates | warmup}
    if optimizer.schedule == "linear" and optimizer.min_lr_ratio == 0 and job.warmup_steps:
        return {"type": "WarmupDecayLR", "params": total | rates | warmup}
    return None


def _notes(job: HandedJob) -> list[str]:
    notes = [
        "model, data, number of steps and seed belong to the program: "
        f"{job.plan.steps} steps of sequences of {job.job.sequence_length}, seed {job.workload.seed}"
    ]
    if _scheduler(job) is None:
        notes.append(schedule_note(job, "pass a scheduler of your own to `deepspeed.initialize`"))
    if job.optimizer.weight_decay:
        notes.append("Trainworks does not decay norms and biases: pass parameter groups to `deepspeed.initialize`")
    if job.layout.recompute != "none":
        blocks = f"the first {job.layout.recompute_layers} blocks" if job.layout.recompute_layers else "the blocks"
        notes.append(f"`recompute {job.layout.recompute}` belongs to the program: checkpoint {blocks} of the model")
    if job.layout.tp > 1:
        notes.append(
            f"`train_batch_size` is left out, because DeepSpeed counts tensor-parallel ranks in it; a step has "
            f"{job.plan.global_batch} sequences if the ranks of a tensor-parallel group read the same ones"
        )
    if job.layout.tp > 1 and job.layout.sequence_parallel:
        notes.append("AutoTP keeps whole sequences on each rank: activations need more memory than planned")
    if job.is_compiled:
        notes.append("`compile` belongs to the program: call `engine.compile()`")
    notes.append(f"`checkpoint.every: {job.run_file.checkpoint.every}` belongs to the program")
    return notes + common_notes(job, family="torch")
