"""Tables of training runs that somebody measured: from a row's text to a job, a layout and the step time.

A table has the columns of `COLUMNS`; any cell may be empty. What a row leaves open is decided as a person would who
knows the field: the model from its name or dimensions, the network from the accelerator's reference node, the layout's
open parts by the planner itself. What cannot be decided refuses the row, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainworks.catalog.catalog import accelerator, reference_node
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Node
from trainworks.catalog.models import find_preset, preset
from trainworks.errors import UsageError
from trainworks.plan.candidates import OpenLayout
from trainworks.plan.compute import Stack
from trainworks.plan.flops import FlopsConvention, flops_per_token_by_convention
from trainworks.plan.layouts import Recompute
from trainworks.plan.model_shape import shape_of_hf_config
from trainworks.plan.parameters import resized
from trainworks.plan.step_time import Job
from trainworks.record.resolved import ModelShape

__all__ = ["COLUMNS", "MeasuredRun", "read_run"]

COLUMNS = (
    *("id", "source_key", "model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len"),
    *("global_batch", "micro_batch", "gpu", "num_gpus", "gpus_per_node", "intra_node_net", "inter_node_net"),
    *("dp", "tp", "pp", "cp", "ep", "interleave", "zero_stage", "recompute", "precision", "seqpar"),
    *("iteration_time_s", "tflops_per_gpu", "tflops_kind", "tokens_per_s_per_gpu", "memory_gb_per_gpu", "memory_kind"),
    *("step_time_s_eval", "usable_for_step_eval"),
)

_PADDING = 128
_GATED_NAMES = re.compile(
    r"llama|mistral|mixtral|qwen|gemma|deepseek|yi|falcon3|olmo|granite|phi-?3|smollm", re.IGNORECASE
)
_PORT_GBIT = {
    "edr": 100,
    "hdr100": 100,
    "hdr200": 200,
    "hdr": 200,
    "ndr200": 200,
    "ndr400": 400,
    "ndr": 400,
    "xdr": 800,
}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One row that can be predicted."""

    id: str
    source: str
    job: Job
    global_batch: int
    layout: OpenLayout
    step_time_s: float | None
    """Measured; None where the row only has a memory."""
    memory_bytes: float | None
    memory_kind: str
    kind: str
    """The row's own judgement: `yes`, `moe`, `no`; `yes` where it has none."""


def read_run(row: Mapping[str, str]) -> MeasuredRun:
    """The run that a row describes.

    Raises:
        UsageError: the row lacks something that nobody could fill in, or names something unknown.
    """
    shape = _shape(row)
    length = _whole(row, "seq_len") or _refuse("seq_len is empty")
    precision = _precision(row.get("precision", ""))
    cluster = _cluster(row)
    if precision not in cluster.accelerator.peak_flops_per_s and precision == "bf16":
        precision = "fp16"
    layout = _layout(row, cluster, precision)
    batch = _whole(row, "global_batch") or _refuse("global_batch is empty")
    job = Job(shape, length, precision, cluster, _stack(precision, layout))
    gigabytes = _number(row, "memory_gb_per_gpu")
    kind = row.get("memory_kind", "")
    return MeasuredRun(
        id=row.get("id", ""),
        source=row.get("source_key") or row.get("source") or "unnamed",
        job=job,
        global_batch=batch,
        layout=layout,
        step_time_s=_step_time_s(row, job, batch, cluster.num_nodes * cluster.accelerators_per_node),
        memory_bytes=None if gigabytes is None else gigabytes * (2**30 if "GiB" in kind else 1e9),
        memory_kind=kind,
        kind=row.get("usable_for_step_eval") or "yes",
    )


def _stack(precision: str, layout: OpenLayout) -> Stack:
    """Current software, unless the row shows what only older software does: fp16 with loss scaling, or tensor
    parallelism without sequence parallelism, which came in 2022 before fused attention.
    """
    old = precision == "fp16" or (layout.tp > 1 and not layout.sequence_parallel and layout.zero < 3)
    return (
        Stack(fused_attention=False, overlap=False, gradient_bytes=2 if precision == "fp16" else 4) if old else Stack()
    )


def _refuse(reason: str) -> Any:
    raise UsageError(reason)


def _number(row: Mapping[str, str], name: str) -> float | None:
    text = (row.get(name) or "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} `{text}` is not a number") from None


def _whole(row: Mapping[str, str], name: str) -> int | None:
    value = _number(row, name)
    return None if value is None else round(value)


def _precision(text: str) -> str:
    """The arithmetic of the products: `MXFP8`, `FP8-CS`, `bf16 TE` ... name recipes of fp8, bf16 ..."""
    lower = text.lower()
    known = ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32")
    return next((name for name in known if name in lower), "bf16")


def _shape(row: Mapping[str, str]) -> ModelShape:
    found = find_preset(row.get("model", ""))
    layers = _whole(row, "layers")
    if found is not None and _agrees(row, shape_of_hf_config(preset(found))):
        shape = shape_of_hf_config(preset(found))
        return resized(shape, layers=layers, vocabulary=_whole(row, "vocab"))
    return _shape_of_dimensions(row, layers)


def _agrees(row: Mapping[str, str], shape: ModelShape) -> bool:
    hidden = _whole(row, "hidden")
    return hidden is None or hidden == shape.hidden


def _shape_of_dimensions(row: Mapping[str, str], layers: int | None) -> ModelShape:
    """A decoder of these dimensions, with a gated MLP if its name or its size says so."""
    hidden = _whole(row, "hidden") or _refuse(f"model `{row.get('model')}` is unknown and has no dimensions")
    heads = _whole(row, "heads") or max(1, hidden // 128)
    total = _number(row, "params_b")
    gated = bool(_GATED_NAMES.search(row.get("model", "")))
    width = _whole(row, "ffn") or (-(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden)
    vocabulary = _whole(row, "vocab") or (32000 if gated else 51200)
    kv_heads = _whole(row, "kv_heads") or heads
    build = _gated_config if gated else _plain_config
    length = _whole(row, "seq_len") or 2048
    if layers is None:
        if total is None:
            raise UsageError(f"model `{row.get('model')}` has neither layers nor a size")
        one = shape_of_hf_config(build(1, hidden, heads, kv_heads, width, vocabulary, length)).num_parameters
        two = shape_of_hf_config(build(2, hidden, heads, kv_heads, width, vocabulary, length)).num_parameters
        layers = max(1, round((total * 1e9 - one) / (two - one)) + 1)
    return shape_of_hf_config(build(layers, hidden, heads, kv_heads, width, vocabulary, length))


def _gated_config(
    layers: int, hidden: int, heads: int, kv_heads: int, width: int, vocabulary: int, length: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
    }


def _plain_config(
    layers: int, hidden: int, heads: int, kv_heads: int, width: int, vocabulary: int, length: int
) -> dict[str, Any]:
    del kv_heads  # GPT-2 and its kin have one per head
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": width,
        "vocab_size": -(-vocabulary // _PADDING) * _PADDING,
        "n_positions": length,
    }


def _cluster(row: Mapping[str, str]) -> ClusterDescription:
    device = accelerator(row.get("gpu") or _refuse("gpu is empty"))
    node = reference_node(device.name)
    per_node = _whole(row, "gpus_per_node") or node.accelerators
    total = _whole(row, "num_gpus") or _refuse("num_gpus is empty")
    per_node = min(per_node, total)
    domain = node.scale_up_domain if node.scale_up_domain > node.accelerators else per_node
    network, node_bytes_per_s = _network(row.get("inter_node_net") or "", node)
    return ClusterDescription(
        name=f"{total}x {device.name}",
        accelerator=device,
        num_nodes=-(-total // per_node),
        accelerators_per_node=per_node,
        scale_up_domain=domain,
        scale_up_bytes_per_s=device.scale_up_bytes_per_s,
        node_bytes_per_s=node_bytes_per_s,
        network=network,
        in_network_reduction=node.in_network_reduction,
        scale_up_reduction=node.scale_up_reduction,
    )


def _network(text: str, node: Node) -> tuple[str, float]:
    """Kind of the fabric and bytes per second of all interfaces of a node, one direction."""
    lower = text.lower()
    kind = next((name for name in ("Omni-Path", "EFA", "RoCE") if name.lower() in lower), node.network)
    port = re.search(r"(\d+)\s*gb(?:it)?/s", lower)
    generation = re.search(r"\b(edr|hdr100|hdr200|hdr|ndr200|ndr400|ndr|xdr)\b", lower)
    gbit = int(port[1]) if port else _PORT_GBIT[generation[1]] if generation else None
    if gbit is None:
        return kind, node.nics * node.nic_bytes_per_s
    count = re.search(r"(\d+)\s*x", lower)
    return kind, (int(count[1]) if count else 1) * gbit / 8 * 1e9


def _layout(row: Mapping[str, str], cluster: ClusterDescription, precision: str) -> OpenLayout:
    world = cluster.num_nodes * cluster.accelerators_per_node
    world = _whole(row, "num_gpus") or world
    tp, pp, cp = (_whole(row, name) or 1 for name in ("tp", "pp", "cp"))
    dp = _whole(row, "dp") or max(1, world // (tp * pp * cp))
    if dp * tp * pp * cp != world:
        raise UsageError(f"dp {dp} * tp {tp} * pp {pp} * cp {cp} = {dp * tp * pp * cp}, not {world} accelerators")
    zero, shard = _zero(row.get("zero_stage") or "", dp, cluster)
    batch = _whole(row, "global_batch") or 1
    per_rank = max(1, batch // dp)
    micro = _whole(row, "micro_batch")
    return OpenLayout(
        dp=dp,
        dp_shard=shard,
        zero=zero,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=_whole(row, "ep") or 1,
        interleave=_whole(row, "interleave"),
        micro_batch=None if micro is None else min(micro, per_rank),
        recompute=_recompute(row.get("recompute") or ""),
        sequence_parallel=tp > 1 and (row.get("seqpar") or str(precision != "fp16")).lower() == "true",
    )


def _zero(text: str, dp: int, cluster: ClusterDescription) -> tuple[int, int]:
    """Stage and size of the shard group: `3`, `3 (FSDP 64)`, `3 (HSDP)`; empty is 1."""
    stage = re.match(r"\s*([0-3])", text)
    zero = int(stage[1]) if stage else 1
    size = re.search(r"FSDP\s*(\d+)", text)
    if size and dp % int(size[1]) == 0:
        return zero, int(size[1])
    if "HSDP" in text:
        return zero, min(dp, cluster.accelerators_per_node)
    return zero, dp if zero else 1


def _recompute(text: str) -> Recompute | None:
    known = {"none": Recompute.NONE, "selective": Recompute.SELECTIVE, "full": Recompute.FULL}
    return next((value for name, value in known.items() if text.lower().startswith(name)), None)


def _step_time_s(row: Mapping[str, str], job: Job, batch: int, devices: int) -> float | None:
    """Measured seconds per step: printed, else from tokens/s, else from a TFLOP/s figure and its convention."""
    printed = _number(row, "step_time_s_eval") or _number(row, "iteration_time_s")
    if printed is not None:
        return printed
    tokens = batch * job.sequence_length
    if rate := _number(row, "tokens_per_s_per_gpu"):
        return tokens / (rate * devices)
    if teraflops := _number(row, "tflops_per_gpu"):
        hardware = "hardware" in (row.get("tflops_kind") or "") or "x4" in (row.get("tflops_kind") or "")
        convention: FlopsConvention = "hardware-full" if hardware else "model"
        flops = flops_per_token_by_convention(convention, job.shape, job.sequence_length)
        return tokens * flops / (teraflops * 1e12 * devices)
    return None
