"""Training software, as far as a plan depends on it: as much as on the hardware."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainworks.config.software import (
    HUGGING_FACE,
    USUALLY_EAGER,
    Attention,
    Family,
    Fp8Recipe,
    TrainingSoftware,
    family_of,
    year_of,
)

Selective = Literal["attention", "products", "every second product", "projections", "queries"]
"""What selective recomputation repeats: the scores of attention (Megatron-LM); all but the outputs of products and
attention; all but attention and every second product (torchtitan's `op` policy); or, in JAX programs, all but the
projections around attention (`save_dot_except_mlp`) or those before it (`save_qkv_proj`)."""

LARGEST_INTERLEAVE = 12
_LOGIT_BYTES = 56.0
"""Bytes of one logit in the loss of the worker. Count: 14 passes in fp32 of cast, log-softmax, loss and their
gradients."""

_DISTRIBUTED_OPERATIONS = 300
"""The nine distributed modules of a block. Count: a linear layer whose weight is a DTensor takes the host as long as
35 plain operations, forward and backward (measured with PyTorch 2.13 on a CPU)."""


@dataclass(frozen=True, slots=True)
class Software:
    """Behaviour of the training software."""

    attention: Attention = "cudnn"
    fused_kernels: bool = True
    """Norms, rotations, activation functions and residual additions are a kernel each (Transformer Engine,
    torch.compile), not one per operation."""
    fused_gate: bool = True
    """With fused kernels: an MLP's activation and the product with its gate are one, too, and keep a value less."""
    writes_gelu: bool = False
    """GELU of plain models is eight operations (`gelu_new` of transformers: GPT-2, GPT-Neo)."""
    repeats_gate: bool = False
    """Backward computes that product again from the two values, which are all that an MLP keeps: one more pass, which
    is not priced. Llama 3 405B on 8,192 GPUs needs as much to run without recomputation: 16 stages of 8 chunks hold
    141 blocks of 8,192 tokens, 70 GiB with the products, 56 GiB without."""
    sequence_parallel: bool = True
    """Tensor-parallel ranks can share norms and dropouts. Programs that cannot have no selective recomputation."""
    keeps_gathered: bool = False
    """Inputs that sequence parallelism gathers are kept, as in native programs, and not gathered again in backward."""
    fused_experts: bool = False
    """Blocks with experts have such kernels although others do not."""
    overlap: bool = True
    """Communication runs beside computing: gradient buckets, gathered weights."""
    tensor_overlap: bool = True
    """Tensor-, context- and expert-parallel communication runs beside computing, in pieces."""
    gradient_bytes: int = 4
    """Bytes per parameter of the gradients that are summed over the replicas."""
    summed_bytes: int = 0
    """Bytes per parameter that summing gradients moves after each micro-batch, in kernels of their own; 0 where the
    kernel of the product adds to the sum. PyTorch-native programs: see `step_time`."""
    native: bool = False
    """PyTorch's own parallelism: FSDP2 shards every state, in the precision of the update; gradients are freed after
    the update, except for DDP's buckets; DTensor keeps gathered inputs; a pipeline stage receives every micro-batch of
    a step into a buffer of its own. False: Megatron-LM, whose gradients have a buffer and whose inputs are gathered
    again in backward."""
    autocast: bool = False
    """Weights are fp32 where they are not sharded, and each product casts its operands."""
    weight_bytes: int = 2
    """Bytes per parameter of unsharded weights, with products in 16 bits."""
    optimizer_bytes: float = 12.0
    """Bytes per parameter of AdamW, with products in 16 bits: fp32 copy and two moments 12; moments of fp32 weights 8,
    in 16 bits 4, in 8 bits 2."""
    norm_bytes: int = 0
    """Bytes per value that an RMSNorm of several kernels keeps: input and normalised input; 0: one kernel."""
    loss_bytes: float = 4.0
    """Bytes per logit that the loss needs beside the logits: fp32 copy in place 4; in PyTorch copy, log-softmax, and
    the gradients of both 12, or of 16-bit logits 6; a kernel that makes the gradient alone 2; in pieces of an eighth
    3."""
    loss_parallel: bool = True
    """Tensor-parallel ranks have a part of the vocabulary each, in the loss too."""
    loss_chunk_bytes: int = 0
    """Size of the pieces of fp32 logits in which output and loss are computed together; 0: all at once."""
    selective: Selective = "attention"
    shares: Literal["blocks and ends", "blocks", "products"] = "blocks and ends"
    """What stages share: blocks, and where uneven, embedding and output as one each (Megatron-LM); blocks
    alone (DeepSpeed, `type:transformer`); or products, the output's too (nanotron, `get_block_compute_costs`)."""
    reduce_bucket: int = 0
    """Elements of the buffer in which DeepSpeed reduces 16-bit gradients when a pipeline is empty."""
    reduces_buckets: bool = False
    """ZeRO as DeepSpeed comes: stages 1 and 2 reduce whole buckets to every rank (`use_multi_rank_bucket_allreduce`),
    not beside backward (`overlap_comm`, which is on in stage 3)."""
    gathers_alone: bool = False
    """Sharded weights are gathered one by one, as before FSDP."""
    sent_gradient_bytes: int | None = None
    """Bytes per parameter that ranks send, where they keep others and weights are not fp32;
    `Layouts.gradient_compression` lowers both. FSDP reduces in the precision of its products, unless its user asks for
    fp32, as torchtitan, NeMo AutoModel and OLMo-core do."""
    distributed_operations: int = 0
    """Host operations that a block's distributed tensors add under tensor parallelism: wrapping, unwrapping and
    looking up how they are cut."""
    logit_bytes: float | None = None
    """Bytes that the loss moves per logit, forward and backward; by default those of a fused or an unfused loss."""
    repeats_last: bool = True
    """Full recomputation repeats a block's last product too. Backward does not need its output: XLA leaves it out, and
    PyTorch's non-reentrant checkpoints stop before it (2.1, `set_checkpoint_early_stop`)."""
    context: Literal["gather", "heads"] = "gather"
    """Context parallelism gathers keys and values, or exchanges positions for heads (Jacobs et al. 2023, Ulysses)."""
    by_domain: bool = True
    """A domain gets one copy of a token for all of its experts there (DeepEP, HybridEP); else each expert gets one."""
    framework: str = "megatron"
    """Family of programs that share their kernels and their schedule: `megatron`, `jax`, `torch` or `other`."""
    fp8_recipe: Fp8Recipe = "tensorwise"
    copied_heads: int = 0
    """Heads that attention keeps beside queries, keys, values and output (`AttentionTask.copied_heads`)."""
    name: str = field(default="", compare=False)
    """The program as the run file names it; empty where it names none."""
    said: frozenset[str] = field(default=frozenset(), compare=False)
    """Keys of the `software:` block that are set; the others are assumed."""

    @property
    def fused_attention(self) -> bool:
        """Attention as one kernel that never writes its scores, half the work when causal."""
        return self.attention != "unfused"

    def limits(self, pp: int) -> dict[str, int]:
        """The largest `zero`, `interleave` and `sequence_parallel` that the program has with so many stages.

        A pipeline of DeepSpeed has no chunks, no sequence parallelism, and at most ZeRO 1 (deepspeedai/DeepSpeed 1110
        and 4191). Megatron-LM shards its optimizer since version 3, which brings sequence parallelism, too.
        """
        of_deepspeed = self.shares == "blocks"
        plain = of_deepspeed and pp > 1
        old = self.framework == "megatron" and not (of_deepspeed or self.sequence_parallel)
        return {
            "zero": 0 if old else 1 if plain else 3,
            "interleave": 1 if plain else LARGEST_INTERLEAVE,
            "sequence_parallel": int(self.sequence_parallel and not plain),
        }

    @property
    def update_bytes(self) -> float:
        """Per parameter, of an fp32 copy of 16-bit gradients for the update (`_copy_model_grads_to_main_grads`)."""
        return 4.0 * (self.framework == "megatron" and self.gradient_bytes < 4 and self.optimizer_bytes >= 12)

    def fuses(self, *, experts: bool) -> bool:
        """Whether norms, rotations and activation functions of a block with or without experts are a kernel each."""
        return self.fused_kernels or (experts and self.fused_experts)

    @classmethod
    def of(
        cls,
        framework: str = "",
        *,
        year: int | None = None,
        compiled: bool | None = None,
        attention: Attention | None = None,
        fp8_recipe: Fp8Recipe | None = None,
        gradient_bytes: int | None = None,
        selective: Selective | None = None,
        precision: str = "bf16",
    ) -> Software:
        """What a framework of a year does where nothing else is said.

        Args:
            framework: its name, `MaxText 2024` or `PyTorch FSDP`; an unknown one is taken for a PyTorch program.
            year: of the release, by default that of the name or the present one; communication overlaps since 2023,
                that of PyTorch's FSDP since 2022; attention is one kernel since 2023 too.
            compiled: whether blocks are compiled; by default as the framework comes.
            attention: the kernel; by default that of the framework and year.
            fp8_recipe: what shares a scale in 8-bit products.
            gradient_bytes: per parameter; by default those of the framework. In fp16, programs that are not native sum
                gradients in 16 bits: Megatron-LM sums bf16 alone in fp32 (`arguments.py`), and so does DeepSpeed.
            selective: what selective recomputation repeats; by default as the framework does.
            precision: of the products.
        """
        usual = _PROGRAMS[family := family_of(framework) or "torch"]
        year = year or year_of(framework) or PRESENT
        kernel = "unfused" if year < _FUSED_SINCE else "flash-1" if year == _FUSED_SINCE else usual.attention
        optional = usual.framework == "torch"
        fused = usual.fused_kernels and not (optional and year < _COMPILED_SINCE)
        if compiled is not None:
            fused = compiled or (fused and not optional)
        eager_loss = family == "torchtitan" and not (fused and year > _COMPILED_SINCE)
        cast = year < _COMPILED_SINCE and usual.framework == "torch" and usual.native and usual.optimizer_bytes == 12
        reentrant = family in ("torch", "deepspeed") and bool(USUALLY_EAGER.search(framework))
        sent = usual.sent_gradient_bytes
        gradient_bytes = gradient_bytes or (2 if precision == "fp16" and not usual.native else None)
        if gradient_bytes:  # ranks send no wider ones than they keep
            sent = min(sent or gradient_bytes, gradient_bytes)
        said = {"framework": framework, "compiled": compiled, "attention": attention, "fp8_recipe": fp8_recipe}
        return replace(
            usual,
            optimizer_bytes=8.0 if cast else usual.optimizer_bytes,
            loss_bytes=_TORCH.loss_bytes if eager_loss else usual.loss_bytes,
            attention=attention or kernel,
            fused_kernels=fused,
            writes_gelu=optional and not fused and bool(HUGGING_FACE.search(framework)),
            norm_bytes=0 if fused else usual.norm_bytes,
            autocast=cast or usual.autocast,
            weight_bytes=4 if cast else usual.weight_bytes,
            overlap=year >= (_FSDP_SINCE if usual.framework == "torch" else _FUSED_SINCE) or usual.reduces_buckets,
            gathers_alone=year < _FSDP_SINCE,
            tensor_overlap=year >= _FUSED_SINCE and usual.tensor_overlap,
            sequence_parallel=year >= _SEQUENCE_PARALLEL_SINCE.get(family, 2023),
            gradient_bytes=gradient_bytes or usual.gradient_bytes,
            summed_bytes=_summed_bytes(usual, family, year, precision),
            sent_gradient_bytes=sent,
            selective=selective or usual.selective,
            repeats_last=usual.repeats_last or year < _COMPILED_SINCE or reentrant,
            by_domain=usual.by_domain and year >= _DEEP_EP_SINCE,
            fp8_recipe=fp8_recipe or "tensorwise",
            name=framework,
            said=frozenset(name for name, value in said.items() if value not in (None, "")),
        )


def _summed_bytes(usual: Software, family: Family, year: int, precision: str) -> int:
    """`Software.summed_bytes` of a gradient in 16 bits.

    Count: it is read, and its sum read and written: in 16 bits 6, in 32 bits 10, and 18 with a copy in 32 bits
    (`update_hp_grads` of DeepSpeed's bf16_optimizer.py).
    """
    if family == "megatron-deepspeed" and precision == "fp16":
        return 6
    if family == "megatron" and year < _ADDS_SINCE:
        return 6 if precision == "fp16" else 10
    return usual.summed_bytes


PRESENT = 2026
"""Year of a program that is named without one."""
_FUSED_SINCE = 2023
"""Source: PyTorch 2.0, of March 2023, is the first with fused attention."""
_FSDP_SINCE = 2022
"""Source: PyTorch 1.11, of March 2022, is the first with FSDP, which gathers the next weights beside computing."""
_SEQUENCE_PARALLEL_SINCE: dict[Family, int] = {"megatron": 2022, "nemo": 2022, "jax": 2021}
"""Other families have it since 2023. Source: Korthikanti et al., arXiv:2205.05198; GSPMD, arXiv:2105.04663;
deepspeedai/Megatron-DeepSpeed 148."""
_ADDS_SINCE = 2022
"""Source: Megatron-LM's `--no-gradient-accumulation-fusion`, of March 2022."""
_DEEP_EP_SINCE = 2025
"""Source: deepseek-ai/DeepEP, published in February 2025."""
_COMPILED_SINCE = 2024
"""Source: PyTorch 2.1, of October 2023, is the first whose compiler handles FSDP: IBM and torchtitan publish compiled
runs."""
_TORCH = Software(
    attention="flash-2",
    fused_kernels=False,
    tensor_overlap=False,
    native=True,
    norm_bytes=6,
    loss_bytes=12.0,
    loss_parallel=False,
    by_domain=False,
    selective="products",
    repeats_last=False,
    sent_gradient_bytes=2,
    framework="torch",
)
"""PyTorch as it comes: eager kernels, FSDP2 or DDP, `F.cross_entropy` of an fp32 copy of the logits.
Count: see the fields of `Software`."""
_OTHER = Software(attention="flash-2", tensor_overlap=False, by_domain=False, framework="other")


def worker_software(
    device: str, *, compiled: bool = False, dropout: float = 0.0, moment_bytes: float = 8.0
) -> Software:
    """Trainworks' own worker: PyTorch with DDP or FSDP2, and output and loss computed together, in pieces.

    Args:
        device: `cpu`, where a collective (gloo) takes the core that computes, an RMSNorm is several kernels, and
            attention with dropout is not fused; or `cuda`.
        compiled: whether `torch.compile` fuses the blocks.
        dropout: share of the values that the model drops.
        moment_bytes: of the optimizer per parameter; 8 of AdamW.
    """
    on_cpu = device == "cpu"
    return Software(
        attention="unfused" if on_cpu and dropout else "flash-2",
        fused_kernels=compiled,
        overlap=not on_cpu,
        tensor_overlap=False,
        native=True,
        autocast=True,
        weight_bytes=4,
        optimizer_bytes=moment_bytes,
        norm_bytes=8 if on_cpu and not compiled else 0,
        loss_chunk_bytes=32 << 20 if on_cpu else 512 << 20,
        selective="products",
        repeats_last=False,
        distributed_operations=_DISTRIBUTED_OPERATIONS,
        logit_bytes=_LOGIT_BYTES,
        context="heads",
        by_domain=False,
        framework="torch",
    )


_COMPILED = replace(_TORCH, fused_kernels=True)
_IN_16_BITS = replace(_TORCH, gradient_bytes=2, optimizer_bytes=4.0)
"""Weights, gradients and moments in bf16. Count: 2 bytes each."""
_IN_BOTH: dict[str, Any] = {"gradient_bytes": 6, "sent_gradient_bytes": 4}
"""Count: gradients in 16 bits beside those that are summed in 32."""
_PROGRAMS: dict[Family, Software] = {
    "trainworks": worker_software("cuda"),
    # deepspeed/runtime/bf16_optimizer.py. A pipeline keeps the fp32 logits of two micro-batches, the loss a clone of
    # them (pipe/engine.py; megatron/model/gpt_model.py, mpu/cross_entropy.py).
    "megatron-deepspeed": Software(
        loss_bytes=12.0, shares="blocks", reduce_bucket=500_000_000, summed_bytes=18, **_IN_BOTH
    ),
    # `grad_reduce_in_fp32 = False` in the settings of both for performance.
    "nemo": Software(gradient_bytes=2),
    "megatron": Software(),
    # Weights and moments in bf16, and the loss of 16-bit logits (examples/benchmark/configs: fp32_upcast false). Models
    # with experts are built of Transformer Engine and DeepEP (NVIDIA-NeMo/Automodel at 36044ad3d).
    "automodel": replace(_IN_16_BITS, loss_bytes=6.0, sent_gradient_bytes=4, fused_experts=True, by_domain=True),
    # `dtype: bf16` of its recipes.
    "torchtune": _IN_16_BITS,
    # FlashAttention's cross entropy keeps the logits and makes their gradient (`loss_fn: fused_crossentropy`).
    "llm-foundry": replace(_TORCH, loss_bytes=2.0),
    # `weight_dtype: float32` of MaxText's base.yml, and two moments beside it.
    "jax": replace(
        _OTHER,
        attention="cudnn",
        native=True,
        weight_bytes=4,
        optimizer_bytes=8.0,
        selective="projections",
        repeats_last=False,
        framework="jax",
    ),
    # Since 2025 it compiles the loss too, which keeps 16-bit logits and makes their gradient (components/loss.py).
    "torchtitan": replace(
        _COMPILED, loss_bytes=2.0, loss_parallel=True, sent_gradient_bytes=4, selective="every second product"
    ),
    "fms": _COMPILED,
    # deepspeed/runtime/zero/config.py and stage_1_and_2.py.
    "deepspeed": replace(_TORCH, reduces_buckets=True),
    "nanotron": replace(
        _COMPILED,
        fused_gate=False,
        keeps_gathered=True,
        native=False,
        loss_bytes=8.0,
        loss_parallel=True,
        shares="products",
        summed_bytes=10,
        **_IN_BOTH,
    ),
    # As of their sources' tables no more is known: assumed.
    "oneflow": _OTHER,
    "paddle": replace(_OTHER, fused_kernels=False, loss_bytes=12.0, gradient_bytes=2),
    "torch": _TORCH,
}
"""Programs of today, as they come. Source: the files and settings beside each. Nanotron has Triton's RMSNorm,
FlashAttention's rotations, and one product for queries, keys and values: but for the gate, its kernels are as a
compiler's (huggingface/nanotron at 03b83fc)."""


def planned_software(block: TrainingSoftware | None, *, compiled: bool | None, precision: str = "bf16") -> Software:
    """Software of a plan for a described cluster.

    A program without a name overlaps its communication as Megatron-LM does, and has a kernel per operation.

    Args:
        block: what the run file says of it.
        compiled: what the run file says of Trainworks' own compiler, which holds where the block says nothing.
        precision: of the products.
    """
    block = block or TrainingSoftware()
    compiled = compiled if block.compiled is None else block.compiled
    software = Software.of(
        block.framework or "Megatron-LM",
        compiled=compiled if block.framework is None or block.compiled is not None else compiled or None,
        attention=block.attention,
        fp8_recipe=block.fp8_recipe,
        precision=precision,
    )
    if block.framework is not None:
        return software
    return replace(software, fused_kernels=compiled is True, name="", said=software.said - {"framework"})


def describe_software(software: Software, precision: str) -> str:
    """The software of a plan in one line: what was said, and what was assumed.

    >>> describe_software(planned_software(None, compiled=False), "bf16")
    'Megatron-type program, a kernel per operation, cudnn attention (assumed: framework, attention)'
    """
    recipe = [f"{software.fp8_recipe} scales"] if precision == "fp8" else []
    kernels = "fused kernels" if software.fused_kernels else "a kernel per operation"
    parts = [software.name or "Megatron-type program", kernels, f"{software.attention} attention", *recipe]
    keys = ["framework", "compiled", "attention", *(["fp8_recipe"] if recipe else [])]
    assumed = [key for key in keys if key not in software.said]
    return ", ".join(parts) + (f" (assumed: {', '.join(assumed)})" if assumed else "")
