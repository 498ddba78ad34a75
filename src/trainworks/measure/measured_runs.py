"""Tables of measured training runs: from a row's text to a job, a layout and the step time.

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
from trainworks.measure.completions import OpenLayout
from trainworks.measure.measured_clusters import read_cluster
from trainworks.measure.row_model import MODEL_COLUMNS, read_model
from trainworks.measure.row_software import read_software
from trainworks.measure.row_training import ADAPTER_COLUMNS, OFFLOADING_COLUMNS, read_adapter, read_offloading
from trainworks.measure.tables import Row, flag_of, needed_whole, number_of, text_of, whole_of
from trainworks.plan.flops import FlopsConvention, flops_per_token_by_convention
from trainworks.plan.layouts import Recompute
from trainworks.plan.run.adapted_job import AdaptedJob
from trainworks.plan.search import search
from trainworks.plan.software import Software
from trainworks.plan.space import Fixed, Space
from trainworks.plan.step_time import TrainingJob
from trainworks.record.model_shape import ModelShape

COLUMNS = (
    *("id", "source_key", "source"),
    *MODEL_COLUMNS,
    *("seq_len", "global_batch", "micro_batch", "gpu", "num_gpus", "gpus_per_node", "intra_node_net", "inter_node_net"),
    *("dp", "tp", "pp", "cp", "ep", "interleave", "zero_stage", "recompute", "seqpar"),
    *OFFLOADING_COLUMNS,
    *ADAPTER_COLUMNS,
    *("precision", "framework", "attention", "compiled", "fp8_recipe"),
    *("iteration_time_s", "tflops_per_gpu", "tflops_kind", "mfu", "tokens_per_s_per_gpu", "memory_gb_per_gpu"),
    *("memory_kind", "step_time_s_eval", "usable_for_step_eval", "notes"),
)

MemoryKind = Literal["allocated", "reserved", "device"]
"""Memory handed out by the framework, taken from the device, or reported as used by the device."""

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
    layout: OpenLayout
    step_time_s: float | None
    """Measured; None where the row only has a memory."""
    memory_bytes: float | None
    memory_kind: MemoryKind
    kind: str
    """The row's own judgement: `yes`, `moe`, `no` ... Without one, `moe` for a model with experts, else `yes`."""

    @property
    def num_accelerators(self) -> int:
        """Accelerators of the run."""
        return self.layout.dp * self.layout.tp * self.layout.pp * self.layout.cp


def read_run(row: Row) -> MeasuredRun:
    """Run of a row.

    Raises:
        UsageError: the row lacks something that has no default, or names something unknown.
    """
    shape = read_model(row)
    length = needed_whole(row, "seq_len")
    batch = needed_whole(row, "global_batch")
    total = num_accelerators(row)
    cluster = read_cluster(row, num_accelerators=total)
    precision = _precision(text_of(row, "precision"))
    if precision not in cluster.accelerator.peak_flops_per_s and precision == "bf16":
        precision = "fp16"
    sequence_parallel = flag_of(row, "seqpar")
    adapter = read_adapter(row, shape, precision)
    job = _job(shape, length, precision, cluster, Software(), adapter)
    layout = _layout(row, job, total, batch, precision != "fp16" if sequence_parallel is None else sequence_parallel)
    software = read_software(
        row, precision, zero=layout.zero, tp=layout.tp, pp=layout.pp, sequence_parallel=layout.sequence_parallel
    )
    job = _job(shape, length, precision, cluster, software, adapter)
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


def _precision(text: str) -> str:
    """The arithmetic of the products: `MXFP8`, `FP8-CS`, `bf16 TE` ... name recipes of fp8, bf16 ..."""
    lower = text.lower().replace("bfloat16", "bf16")
    return next((name for name, words in _PRECISIONS if any(word in lower for word in words)), "bf16")


def num_accelerators(row: Row) -> int:
    """Accelerators as printed, else the product of a layout with its data-parallel degree."""
    printed = whole_of(row, "num_gpus")
    if printed is None and whole_of(row, "dp"):
        return math.prod(whole_of(row, name) or 1 for name in ("dp", "tp", "pp", "cp"))
    return needed_whole(row, "num_gpus") if printed is None else printed


def _layout(row: Row, job: TrainingJob, world: int, batch: int, sequence_parallel: bool) -> OpenLayout:
    """What the row prints of its layout.

    Raises:
        UsageError: the degrees do not fit the world, or the global batch has no micro-batch for each rank.
    """
    dp, tp, pp, cp = _mesh(row, job, world, batch)
    zero, shard = _zero(text_of(row, "zero_stage"), dp, job.cluster)
    micro, offloading = whole_of(row, "micro_batch"), read_offloading(row)
    if batch < dp * (micro or 1):
        raise UsageError(f"global_batch {batch} is smaller than dp {dp} x micro_batch {micro or 1}")
    return OpenLayout(
        dp=dp,
        dp_shard=shard,
        zero=zero,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=whole_of(row, "ep") or 1,
        interleave=whole_of(row, "interleave"),
        micro_batch=micro,
        recompute=_recompute(text_of(row, "recompute")),
        sequence_parallel=tp > 1 and sequence_parallel,
        offload=offloading.activations,
        offload_optimizer=offloading.optimizer,
    )


def _mesh(row: Row, job: TrainingJob, world: int, batch: int) -> tuple[int, int, int, int]:
    """dp, tp, pp, cp. The first of them that is empty beside printed ones is what remains of the world, the next are 1.

    Of a row that prints none of them the planner's own fastest layout is taken, but weights that are sharded
    (`zero_stage` 3) need no other axis. Where dp * tp * pp is the world beside a cp, dp counts the ranks of both.

    Raises:
        UsageError: the degrees do not multiply to the world, or nothing fits.
    """
    printed = {name: whole_of(row, name) for name in ("dp", "tp", "pp", "cp")}
    if not any(printed.values()) and world > 1 and _zero(text_of(row, "zero_stage"), world, job.cluster)[0] < 3:
        offloading = read_offloading(row)
        fixed = {"offload": int(bool(offloading.activations)), "offload_optimizer": int(offloading.optimizer)}
        return _searched_mesh(job, world, batch, whole_of(row, "micro_batch"), fixed)
    remaining = max(1, world // math.prod(degree or 1 for degree in printed.values()))
    for name in ("dp", "tp", "pp", "cp"):
        if printed[name] is None:
            printed[name], remaining = remaining, 1
    dp, tp, pp, cp = (degree or 1 for degree in printed.values())
    if dp * tp * pp == world and dp % cp == 0:
        dp //= cp
    if dp * tp * pp * cp != world:
        raise UsageError(f"dp {dp} * tp {tp} * pp {pp} * cp {cp} = {dp * tp * pp * cp}, not {world} accelerators")
    return dp, tp, pp, cp


def _searched_mesh(
    job: TrainingJob, world: int, batch: int, micro: int | None, offloading: Fixed
) -> tuple[int, int, int, int]:
    fixed = {"cp": 1, **offloading} | ({"micro_batch": micro} if micro else {})
    result = search(Space(job, world, batch, fixed), keep=1)
    if not len(result.layouts):
        raise UsageError(f"dp, tp and pp are empty, and no layout on {world} accelerators fits")
    best = result.layouts
    return int(best.dp[0]), int(best.tp[0]), int(best.pp[0]), int(best.cp[0])


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


def _recompute(text: str) -> Recompute | None:
    """Recomputation of a cell; None if it is empty or unknown."""
    lower = text.lower()
    return next((value for value, words in _RECOMPUTED if lower.startswith(words)), None)


def _step_time_s(row: Row, job: TrainingJob, batch: int, layout: OpenLayout, devices: int) -> float | None:
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
        flops = _printed_flops_per_token(text_of(row, "tflops_kind"), job, layout.recompute)
        return tokens * flops / (teraflops * 1e12 * devices)
    if mfu := number_of(row, "mfu"):
        share = mfu / 100 if mfu > 1 else mfu
        peak = job.cluster.accelerator.peak_flops_per_s.get(job.precision)  # type: ignore[call-overload]
        flops = flops_per_token_by_convention("model", job.shape, job.sequence_length)
        return tokens * flops / (share * peak * devices) if peak else None
    return None


def _printed_flops_per_token(words: str, job: TrainingJob, recompute: Recompute | None) -> float:
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
        convention = _HARDWARE[Recompute.FULL if recompute is None else recompute]
    return flops_per_token_by_convention(convention, job.shape, job.sequence_length)
