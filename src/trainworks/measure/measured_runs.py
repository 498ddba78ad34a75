"""Tables of measured training runs: from a row's text to a job, a layout, the step time and the memory.

A table has the columns of `COLUMNS`; any cell may be empty. Missing values have the defaults an expert would choose:
the model from its name or dimensions, the network from the accelerator's reference node, the layout's open parts from
the planner. A row is refused with the reason if a value has no default.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.finetune import Adapter
from trainworks.errors import UsageError
from trainworks.measure import row_settings
from trainworks.measure.completions import lacking_bytes
from trainworks.measure.measured_clusters import read_cluster
from trainworks.measure.tables import Row, flag_of, needed_number, needed_whole, number_of, text_of, whole_of
from trainworks.plan.collectives import Collective
from trainworks.plan.flops import FlopsConvention, flops_per_token_by_convention
from trainworks.plan.layouts import Recompute
from trainworks.plan.programs import normalised
from trainworks.plan.run.pricing import AdaptedJob
from trainworks.plan.search import search
from trainworks.plan.software import Software
from trainworks.plan.space import Fixed, Space
from trainworks.plan.step_time import TrainingJob
from trainworks.record.model_shape import ModelShape

COLUMNS = (
    *("id", "source_key", "source"),
    *row_settings.MODEL_COLUMNS,
    *("seq_len", "global_batch", "micro_batch", "gpu", "num_gpus", "gpus_per_node", "intra_node_net", "inter_node_net"),
    *("dp", "tp", "pp", "cp", "ep", "interleave", "zero_stage", "recompute", "seqpar"),
    *row_settings.OFFLOADING_COLUMNS,
    *row_settings.ADAPTER_COLUMNS,
    *("precision", "framework", "attention", "compiled", "fp8_recipe"),
    *("iteration_time_s", "tflops_per_gpu", "tflops_kind", "mfu", "tokens_per_s_per_gpu", "memory_gb_per_gpu"),
    *("memory_kind", "step_time_s_eval", "usable_for_step_eval", "notes"),
)

MemoryKind = Literal["allocated", "reserved", "device"]
"""Memory handed out by the framework, taken from the device, or reported as used by the device."""

_MESH = ("dp", "tp", "pp", "cp")
_PRECISIONS = (
    ("fp4", ("fp4",)),
    ("fp8", ("fp8", "e4m3")),
    ("bf16", ("bf16", "bfloat")),
    ("fp16", ("fp16", "float16", "half")),
    ("tf32", ("tf32",)),
    ("fp32", ("fp32", "float32")),
)
_RECOMPUTED = (
    (Recompute.SELECTIVE, ("selective", "attention", "core")),
    (Recompute.FULL, ("full", "all", "true", "yes", "on", "uniform", "block")),
    (Recompute.NONE, ("none", "no", "off", "false", "0")),
)
_HARDWARE: dict[Recompute, FlopsConvention] = {
    Recompute.NONE: "model",
    Recompute.SELECTIVE: "hardware-selective",
    Recompute.FULL: "hardware-full",
}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One row that can be predicted."""

    id: str
    source: str
    job: TrainingJob
    global_batch: int
    layout: Fixed
    """Decided fields of `Layouts`; the planner chooses the others."""
    step_time_s: float | None
    """Measured; None where the row only has a memory."""
    memory_bytes: float | None
    memory_kind: MemoryKind
    kind: str
    """The row's own judgement: `yes`, `moe`, `no` ... Without one, `moe` for a model with experts, else `yes`."""

    @property
    def num_accelerators(self) -> int:
        """Accelerators of the run."""
        return math.prod(self.layout[name] for name in _MESH)


def read_run(row: Row) -> MeasuredRun:
    """Run of a row.

    Raises:
        UsageError: the row lacks something that has no default, or names something unknown.
    """
    row = _as_shared(row)
    shape = row_settings.read_model(row)
    own = shape.max_sequence_length if shape.patch_values else None  # a sample of its usual size
    length = whole_of(row, "seq_len") or own or needed_whole(row, "seq_len")
    batch = needed_whole(row, "global_batch")
    total = num_accelerators(row)
    cluster = read_cluster(row, num_accelerators=total)
    # recipes name the arithmetic of the products: `MXFP8` and `FP8-CS` are fp8, `bf16 TE` is bf16
    arithmetic = text_of(row, "precision").lower().replace("bfloat16", "bf16")
    precision = next((name for name, words in _PRECISIONS if any(word in arithmetic for word in words)), "bf16")
    if precision not in cluster.accelerator.peak_flops_per_s and precision == "bf16":
        precision = "fp16"
    sequence_parallel = flag_of(row, "seqpar")
    adapter = row_settings.read_adapter(row, shape, precision)
    job = _job(shape, length, precision, cluster, Software(), adapter)
    layout = _layout(row, job, total, batch, precision != "fp16" if sequence_parallel is None else sequence_parallel)
    found = row_settings.read_programs(row, shape, precision, cluster.accelerator, layout)
    if not _is_out_of_memory(row):  # the run did fit: a program that cannot have fitted did not train it
        attempts = (
            [each for each in some if not lacking_bytes(replace(job, software=each[0]), layout, global_batch=batch)]
            for some in (found, *row_settings.sparing(found))
        )
        found = normalised(next(filter(None, attempts), found))
    job = _job(shape, length, precision, cluster, found[0][0], adapter)
    if len(found) > 1 and adapter is None:
        job = replace(job, programs=found)
    gigabytes = number_of(row, "memory_gb_per_gpu")
    words = text_of(row, "memory_kind")
    return MeasuredRun(
        id=text_of(row, "id"),
        source=source_of(row),
        job=job,
        global_batch=batch,
        layout=layout,
        step_time_s=_step_time_s(row, job, batch, layout, total),
        memory_bytes=gigabytes * (2**30 if "gib" in words.lower() else 1e9) if gigabytes else None,
        memory_kind=memory_kind(words),
        kind=text_of(row, "usable_for_step_eval").lower() or ("moe" if shape.experts else "yes"),
    )


def _job(
    shape: ModelShape,
    length: int,
    precision: str,
    cluster: ClusterDescription,
    software: Software,
    adapter: Adapter | None,
) -> TrainingJob:
    if adapter is None:
        return TrainingJob(shape, length, precision, cluster, software)
    kept = software if adapter.base == "fp32" else replace(software, autocast=False)
    return AdaptedJob(shape, length, precision, cluster, kept, adapter=adapter)


_SHARES_BF16_STATES = re.compile(r"deepspeed|\bmeg-ds\b", re.IGNORECASE)
"""DeepSpeed's bf16 optimizer shares its states among replicas with ZeRO 0 too (deepspeed.runtime.bf16_optimizer)."""


def _as_shared(row: Row) -> Row:
    """The row with the sharding that its program does unasked."""
    words = " ".join(text_of(row, name) for name in ("framework", "source", "notes"))
    unasked = text_of(row, "zero_stage") == "0" and "bf16" in text_of(row, "precision").lower()
    return {**row, "zero_stage": "1"} if unasked and _SHARES_BF16_STATES.search(words) else row


def source_of(row: Row) -> str:
    """Source of the row: errors are averaged within a source before sources are."""
    return text_of(row, "source_key") or text_of(row, "source") or "unnamed"


def memory_kind(words: str) -> MemoryKind:
    """Kind of a memory figure: `peak allocated GiB (torch)`, `torch reserved`, `nvidia-smi GB`.

    A program that prints a `peak` has it from the framework; any other figure is the device's own.
    """
    lower = words.lower()
    if "reserv" in lower or "smi" in lower:
        return "reserved" if "reserv" in lower else "device"
    return "allocated" if any(word in lower for word in ("alloc", "active", "peak")) else "device"


def num_accelerators(row: Row) -> int:
    """Accelerators as printed, else the product of a layout with its data-parallel degree."""
    printed = whole_of(row, "num_gpus")
    if printed is None and whole_of(row, "dp"):
        return math.prod(whole_of(row, name) or 1 for name in _MESH)
    return needed_whole(row, "num_gpus") if printed is None else printed


def _layout(row: Row, job: TrainingJob, world: int, batch: int, sequence_parallel: bool) -> Fixed:
    dp, tp, pp, cp = _mesh(row, job, world, batch)
    zero, shard = _zero(text_of(row, "zero_stage"), dp, job.cluster)
    micro, offloading = whole_of(row, "micro_batch"), row_settings.read_offloading(row)
    recomputed = text_of(row, "recompute").lower()
    if batch < dp * (micro or 1):
        raise UsageError(f"global_batch {batch} is smaller than dp {dp} x micro_batch {micro or 1}")
    decided = {
        "dp": dp,
        "dp_shard": shard,
        "zero": zero,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": whole_of(row, "ep") or 1,
        "interleave": whole_of(row, "interleave"),
        "micro_batch": micro,
        "recompute": next((value for value, words in _RECOMPUTED if recomputed.startswith(words)), None),
        "sequence_parallel": int(tp > 1 and sequence_parallel),
        "offload": offloading.activations,
        "offload_optimizer": int(offloading.optimizer),
    }
    return {name: value for name, value in decided.items() if value is not None}


def _mesh(row: Row, job: TrainingJob, world: int, batch: int) -> tuple[int, int, int, int]:
    """dp, tp, pp, cp. The first of them that is empty beside printed ones is what remains of the world, the next are 1.

    Of a row that prints none of them the planner's own fastest layout is taken, but weights that are sharded
    (`zero_stage` 3) need no other axis. Where dp * tp * pp is the world beside a cp, dp counts the ranks of both.
    """
    printed = {name: whole_of(row, name) for name in _MESH}
    if not any(printed.values()) and world > 1 and _zero(text_of(row, "zero_stage"), world, job.cluster)[0] < 3:
        offloading = row_settings.read_offloading(row)
        fixed = {"cp": 1, "offload": int(bool(offloading.activations)), "offload_optimizer": int(offloading.optimizer)}
        fixed |= {"micro_batch": micro} if (micro := whole_of(row, "micro_batch")) else {}
        best = search(Space(job, world, batch, fixed), keep=1).layouts
        if not len(best):
            raise UsageError(f"dp, tp and pp are empty, and no layout on {world} accelerators fits")
        return int(best.dp[0]), int(best.tp[0]), int(best.pp[0]), int(best.cp[0])
    remaining = max(1, world // math.prod(degree or 1 for degree in printed.values()))
    for name in _MESH:
        if printed[name] is None:
            printed[name], remaining = remaining, 1
    dp, tp, pp, cp = (degree or 1 for degree in printed.values())
    if dp * tp * pp == world and dp % cp == 0:
        dp //= cp
    if dp * tp * pp * cp != world:
        raise UsageError(f"dp {dp} * tp {tp} * pp {pp} * cp {cp} = {dp * tp * pp * cp}, not {world} accelerators")
    return dp, tp, pp, cp


def _zero(text: str, dp: int, cluster: ClusterDescription) -> tuple[int, int]:
    """Stage and size of the shard group: `3`, `ZeRO-2`, `3 (FSDP 64)`, `1 (group of 8)`, `3 (HSDP)`; empty is 1."""
    lower = text.lower()
    stage = re.search(r"(?:^|zero|stage)[\s_-]*([0-3])\b", lower)
    sharded = "fsdp" in lower or "hsdp" in lower
    replicated = lower in ("none", "no", "off", "false") or "ddp" in lower
    zero = int(stage[1]) if stage else 3 if sharded else 0 if replicated else 1
    size = re.search(r"(?:fsdp|groups? of|shard(?:ing|s| group)?)[\s=]+([1-9]\d*)", lower)
    if size and dp % int(size[1]) == 0:
        return zero, int(size[1])
    if "hsdp" in lower:
        return zero, math.gcd(dp, cluster.accelerators_per_node)
    return zero, dp if zero else 1


def _step_time_s(row: Row, job: TrainingJob, batch: int, layout: Fixed, devices: int) -> float | None:
    """Measured seconds per step: printed, else from tokens/s, else from a FLOP/s or MFU figure and its convention."""
    printed = number_of(row, "step_time_s_eval") or number_of(row, "iteration_time_s")
    if printed:
        return printed
    tokens = batch * job.sequence_length
    if rate := number_of(row, "tokens_per_s_per_gpu"):
        return tokens / (rate * devices)
    if isinstance(job, AdaptedJob) and (number_of(row, "tflops_per_gpu") or number_of(row, "mfu")):
        raise UsageError("tables count the FLOPs of adapters in different ways: fill in tokens_per_s_per_gpu")
    if teraflops := number_of(row, "tflops_per_gpu"):
        flops = _printed_flops_per_token(text_of(row, "tflops_kind"), job, layout.get("recompute"))
        return tokens * flops / (teraflops * 1e12 * devices)
    if mfu := number_of(row, "mfu"):
        share = mfu / 100 if mfu > 1 else mfu
        peak = job.cluster.accelerator.peak_flops_per_s.get(job.precision)  # type: ignore[call-overload]
        flops = flops_per_token_by_convention("model", job.shape, job.sequence_length)
        return tokens * flops / (share * peak * devices) if peak else None
    return None


def _printed_flops_per_token(words: str, job: TrainingJob, recompute: int | None) -> float:
    """FLOPs per token as the row's figure counts them.

    model, causal      what the model needs; `causal` with half the attention
    hardware, HFU      with what is computed again; where the table does not say, everything is
    x4, x3             2 N for each pass over the parameters, of which recomputation makes four
    as printed         as hardware
    """
    lower = words.lower()
    passes = re.search(r"\bx([34])\b", lower)
    if passes and "hardware" not in lower:
        return 2.0 * job.shape.num_parameters * (3 if recompute == Recompute.NONE else int(passes[1]))
    convention: FlopsConvention = "model-causal" if "causal" in lower else "model"
    if any(word in lower for word in ("hardware", "hfu", "printed")):
        convention = _HARDWARE[Recompute.FULL if recompute is None else Recompute(recompute)]
    return flops_per_token_by_convention(convention, job.shape, job.sequence_length)


MEMORY_COLUMNS = (*COLUMNS, "outcome")


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """One row that can be predicted."""

    run: MeasuredRun
    out_of_memory: bool
    """True if it did not fit; then it has no figure."""


def read_memory(row: Row) -> MeasuredMemory:
    """Run of a row, and whether it fitted.

    Without a global batch, assumes as many micro-batches as pipeline stages: more do not change the memory.

    Raises:
        UsageError: the row lacks something that has no default.
    """
    filled = row
    if not text_of(row, "global_batch"):
        tp, pp, cp, micro = (whole_of(row, name) or 1 for name in ("tp", "pp", "cp", "micro_batch"))
        dp = whole_of(row, "dp") or max(1, num_accelerators(row) // (tp * pp * cp))
        filled = {**row, "global_batch": str(dp * pp * micro)}
    return MeasuredMemory(read_run(filled), out_of_memory=_is_out_of_memory(row))


def _is_out_of_memory(row: Row) -> bool:
    return re.search("oom|out of memory", text_of(row, "outcome"), re.IGNORECASE) is not None


COLLECTIVE_COLUMNS = (
    *("id", "source", "gpu", "nodes", "gpus", "network", "collective", "size_bytes", "time_us", "busbw", "algbw"),
)

_KNOWN: dict[str, Collective] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """One row that can be predicted."""

    id: str
    source: str
    group: str
    """Collective, ranks, accelerator and network: what one curve over sizes belongs to."""
    kind: Collective
    cluster: ClusterDescription
    ranks: int
    size_bytes: float
    """Size as nccl-tests counts it: the complete buffer, summed over the ranks in gathers and scatters."""
    time_s: float | None


def read_collective(row: Row) -> MeasuredCollective:
    """The collective of a row; its time is printed, or follows from `algbw` or `busbw` in GB/s.

    Raises:
        UsageError: the row lacks something, or names a collective that is not planned.
    """
    ranks = needed_whole(row, "gpus")
    nodes = whole_of(row, "nodes") or 1
    if ranks % nodes:
        raise UsageError(f"{ranks} gpus are not the same number on each of {nodes} nodes")
    network = text_of(row, "network")
    size_bytes = needed_number(row, "size_bytes")
    text = text_of(row, "collective")
    key = "".join(letter for letter in text.lower() if letter.isalpha()).removesuffix("perf")
    if key not in _KNOWN:
        raise UsageError(f"collective `{text}` is not planned", hint=f"these are: {', '.join(_KNOWN.values())}")
    kind = _KNOWN[key]
    # some of one node's ranks have the links of a whole node; of several, all ranks are in the group
    between = {"gpus_per_node": str(ranks // nodes), "inter_node_net": network}
    links = between if nodes > 1 else {"gpus_per_node": "", "intra_node_net": network}
    cluster = read_cluster({**row, **links}, num_accelerators=ranks)
    return MeasuredCollective(
        id=text_of(row, "id"),
        source=source_of(row),
        group=f"{kind}, {ranks}x {cluster.accelerator.name}, {network or cluster.network}",
        kind=kind,
        cluster=cluster,
        ranks=ranks,
        size_bytes=size_bytes,
        time_s=_time_s(row, kind, ranks, size_bytes),
    )


def _time_s(row: Row, kind: Collective, ranks: int, size_bytes: float) -> float | None:
    """Algbw = S / t, busbw = algbw times 2(n-1)/n for an all-reduce, (n-1)/n for the others (nccl-tests)."""
    if microseconds := number_of(row, "time_us"):
        return microseconds * 1e-6
    if bus := number_of(row, "busbw"):
        return size_bytes * (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks / (bus * 1e9)
    if algorithm := number_of(row, "algbw"):
        return size_bytes / (algorithm * 1e9)
    return None
