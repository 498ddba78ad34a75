"""Time of one optimizer step of many layouts: a visible sum of terms.

Symbols: p pipeline stages, v chunks per stage, m micro-batches per step, L blocks, N parameters of the model, and
those of `compute`.

    T = m u + (sum of u over the stages - u) / v + dp + optimizer + step,  u = slowest stage

where a stage's u is forward, backward and recomputation of its blocks and of its embedding or logits, with the
communication its micro-batch cannot hide. The second term is the bubble of (interleaved) 1F1B: the first and last
micro-batch pass all stages (Narayanan et al. 2021). A zero-bubble schedule fills it with weight gradients, half of
backward: what remains of it is the share of the other work (Qi et al. 2023, ZB-H1). Gradients and weights of the
data-parallel group hide behind computing where the software overlaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.activations import activation_bytes, element_bytes, has_casts
from trainworks.plan.blocks import BlockTimes, HeadTimes, block_times, head_times
from trainworks.plan.coefficients import AS_PREDICTED, COEFFICIENTS, Coefficients, Slowdowns
from trainworks.plan.collectives import collective_s, exchange_s, point_to_point_s
from trainworks.plan.compression import compressible, compression_s, gathered_bytes, sent_bytes
from trainworks.plan.flops import model_flops_per_token
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Array, Layouts, Recompute, Values
from trainworks.plan.memory import Memories, predict_memories
from trainworks.plan.parameters import (
    StageParameters,
    head_dims,
    num_attention_layers,
    num_expert_layers,
    num_sublayers,
    stage_blocks,
    stage_parameters,
)
from trainworks.plan.programs import Programs
from trainworks.plan.rates import Rates
from trainworks.plan.software import Software
from trainworks.record.calibration import Calibration
from trainworks.record.model_shape import ModelShape

_LARGEST_MICRO_BATCH = 64
_LARGEST_IMAGE_BATCH = 512


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Everything about a training job except its layout: model, batch, software and cluster."""

    shape: ModelShape
    sequence_length: int
    precision: str
    cluster: ClusterDescription
    software: Software
    slowdowns: Slowdowns = AS_PREDICTED
    """What measurements of this kind of cluster taught."""
    calibration: Calibration | None = None
    """Measured rates, which replace those of the catalogue."""
    programs: Programs = ()
    """What may train instead of `software`, with their shares, where it is not known; see `programs`."""
    keeps: Software | None = None
    """The program whose memory counts instead of that of `software`: the likeliest, where the layout shows one."""

    complication: ClassVar[float] = 0.01
    context_pieces: ClassVar[int] = 2
    """Pieces of a sequence per context-parallel rank: an early and a late one, for equal work."""

    @property
    def largest_micro_batch(self) -> int:
        """Samples of one rank that a search tries at most: images are smaller than sequences."""
        return _LARGEST_IMAGE_BATCH if self.shape.patch_values else _LARGEST_MICRO_BATCH

    def runnable(self, layouts: Layouts) -> NDArray[np.bool_] | slice:
        """The layouts that the software can run: all of a described cluster whose gradients can be compressed so."""
        return compressible(layouts)

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence, or patches of an image."""
        return self.sequence_length

    @property
    def flops_per_sequence(self) -> float:
        """Model FLOPs, forward and backward."""
        return self.sequence_length * model_flops_per_token(self.shape, self.sequence_length)

    @property
    def by_program(self) -> list[Self]:
        """The job under each of its programs."""
        return [replace(self, software=software, programs=()) for software, _ in self.programs]

    def rates(self, coefficients: Coefficients = COEFFICIENTS) -> Rates:
        """Rates of a rank: measured, or those of the catalogue with these coefficients, after learning."""
        if self.calibration is not None:
            rates = Rates.of_calibration(self.calibration, self.software)
        else:
            rates = Rates.of_catalogue(self.cluster, self.precision, self.software, coefficients)
        return rates.slowed(self.slowdowns)

    def step_times(self, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
        """One optimizer step of every layout.

        Raises:
            UsageError: the accelerator cannot compute in the job's precision.
        """
        if self.programs:
            shares = [share for _, share in self.programs]
            return StepTimes.mixed([job.step_times(layouts, coefficients) for job in self.by_program], shares)
        rates = self.rates(coefficients)
        block, head, (tp_s, cp_s, ep_s) = _kernels(self, layouts, rates)
        offload_s = _offload_s(self, layouts, rates, block.total_s)
        stage = _slowest_stage(self, layouts, block, head, tp_s + cp_s + ep_s + offload_s)
        once_s = layouts.accum * stage.blocks  # of one block's times in a step
        terms = {
            "forward_s": once_s * block.forward_s,
            "backward_s": once_s * block.backward_s + _accumulation_s(self, layouts, rates, stage.blocks),
            "recompute_s": once_s * block.recomputed_s,
            "head_s": layouts.accum * stage.head_s,
            "tp_s": once_s * tp_s,
            "cp_s": once_s * cp_s,
            "ep_s": once_s * ep_s,
            "offload_s": once_s * offload_s,
            "pp_s": layouts.accum * _pipeline_transfers_s(self, layouts, rates, stage.blocks * block.total_s),
            "bubble_s": stage.bubble_s,
            "dp_s": _data_parallel_s(self, layouts, rates, stage.blocks, once_s * block.total_s),
            "optimizer_s": _optimizer_s(self, layouts, rates),
        }
        doublings = np.log2(np.maximum(1.0, layouts.world_size / rates.links.ranks_per_node))
        waiting_s = rates.coefficients.straggle * doublings * sum(terms.values(), start=np.zeros(len(layouts)))
        return StepTimes(**terms, host_s=np.full(len(layouts), rates.host.step_s), straggle_s=waiting_s)

    def memories(self, layouts: Layouts) -> Memories:
        """Peak memory of the fullest rank of every layout."""
        is_tpu = (self.cluster.accelerator.architecture or "").startswith("TPU")
        return predict_memories(
            self.shape,
            layouts,
            sequence_length=self.sequence_length,
            precision=self.precision,
            software=self.keeps or self.software,
            context_bytes=_TPU_RESERVED_BYTES if is_tpu else COEFFICIENTS.context_bytes,
        )


_TPU_RESERVED_BYTES = 260 * 2**20
"""Memory of a TPU that its runtime reserves. Source: XLA, which prints it where a program does not fit (`reserved
260.00M`)."""
_CUTS = ("micro_batch", "tp", "sequence_parallel", "cp", "ep", "expert_capacity", "recompute", "zero")
"""All that decides how the work of a block is cut; `zero` decides whether weights are cast."""


def _kernels(
    job: TrainingJob, layouts: Layouts, rates: Rates
) -> tuple[BlockTimes, HeadTimes, tuple[Array, Array, Array]]:
    """Times of one block, of the head, and of the block's communication, computed once for layouts that cut it alike.

    Each layout has its own where each has rates of its own. Where a stage recomputes a part of its blocks, they are
    those of an average block.
    """
    own_rates = np.ndim(rates.device.product_flops_per_s) > 0
    first, like = (np.arange(len(layouts)),) * 2 if own_rates else layouts.alike(_CUTS)
    cut = layouts.take(first)
    length, software = job.sequence_length, rates.software
    block = block_times(job.shape, cut, sequence_length=length, device=rates.device, software=software)
    head = head_times(job.shape, cut, sequence_length=length, device=rates.wide, software=software)
    tp_s, cp_s, ep_s = _block_communication(job, cut, rates)
    of_blocks, sent = block.take(like), (tp_s[like], cp_s[like], ep_s[like])
    if (layouts.recompute_layers > 0).any():
        blocks, _ = stage_blocks(job.shape.layers, layouts)
        share = layouts.recomputing(blocks) / blocks
        of_blocks = replace(of_blocks, recomputed_s=share * of_blocks.recomputed_s)
        once = _block_communication(job, replace(layouts, recompute=np.zeros(len(layouts))), rates)
        tp_s, cp_s, ep_s = (share * all_ + (1 - share) * one for all_, one in zip(sent, once, strict=True))
        sent = (tp_s, cp_s, ep_s)
    return of_blocks, head.take(like), sent


@dataclass(frozen=True, slots=True)
class _Stage:
    blocks: Array
    head_s: Array
    """Embedding or logits of a micro-batch, on the stages that have them."""
    bubble_s: Array
    """Per step."""


def _slowest_stage(job: TrainingJob, layouts: Layouts, block: BlockTimes, head: HeadTimes, exposed_s: Array) -> _Stage:
    per_block = block.total_s + exposed_s
    middle, last = stage_blocks(job.shape.layers, layouts)
    alone = layouts.pp == 1
    # blocks and outputs for further tokens are laid out by hand, so that every stage has its share
    further = job.shape.further_tokens
    more = further * (2 * job.shape.layers / num_sublayers(job.shape))  # an attention and an MLP for each
    middle, last = (blocks * (1 + more / job.shape.layers) for blocks in (middle, last))
    output_s = head.output_s * (1 + further / layouts.pp)
    last_head = output_s + np.where(alone, head.embedding_s, 0.0)
    last_rules = alone | (last * per_block + last_head >= middle * per_block + head.embedding_s)
    blocks = np.where(last_rules, last, middle)
    head_s = np.where(last_rules, last_head, head.embedding_s)
    through = (job.shape.layers + more) * per_block + output_s + head.embedding_s
    bubble = np.maximum(0.0, through - blocks * per_block - head_s) / layouts.interleave
    bubble = np.where(layouts.zero_bubble > 0, bubble * (1.0 - block.backward_s / block.total_s), bubble)
    return _Stage(blocks, head_s, np.where(alone, 0.0, bubble))


def _block_communication(job: TrainingJob, layouts: Layouts, rates: Rates) -> tuple[Array, Array, Array]:
    """Exposed seconds per block and micro-batch: tensor, context, expert parallel.

    tp   2 all-reduces of M h forward and backward, 2 more when the block is recomputed; with sequence parallelism each
         is a gather and a scatter
    cp   keys and values gathered forward and backward, and their gradients scattered
    ep   4 exchanges of M h / t (`collectives`), times `Layouts.expert_rows`: out and back, forward and backward; tokens
         reach their experts already split over t, so that blocks of routed experts alone have half of the
         tensor-parallel traffic

    Each forward collective once more where a block is recomputed.
    """
    shape = job.shape
    tokens = layouts.micro_batch * job.sequence_length / layouts.cp
    e = float(element_bytes(job.precision))
    message = e * tokens * shape.hidden
    again = layouts.recompute == Recompute.FULL
    share = num_expert_layers(shape) / shape.layers
    repeats = np.where(again, 6.0 if rates.software.repeats_last else 5.0, 4.0)
    spared = share * (shape.shared_feed_forward == 0) + (2 - num_sublayers(shape) / shape.layers)
    repeats = repeats * (1 - 0.5 * spared)
    ones = np.ones(len(layouts))
    reduced = collective_s("all_reduce", message, layouts.tp, ones, rates.links)
    gathered = collective_s("all_gather", message, layouts.tp, ones, rates.links)
    tp_s = repeats * np.where(layouts.sequence_parallel > 0, 2 * gathered, reduced)
    hidden = rates.coefficients.tp_hidden if rates.software.tensor_overlap else 0.0
    width = np.maximum(shape.kv_heads, layouts.tp) * sum(head_dims(shape)) / layouts.tp
    kv_bytes = e * tokens * layouts.cp * width
    attending = num_attention_layers(shape) / shape.layers
    if rates.software.context == "heads":
        cp_s = _exchange_of_heads_s(job, layouts, rates, e * tokens)
    else:
        cp_s = np.where(again, 4.0, 3.0) * collective_s("all_gather", kv_bytes, layouts.cp, layouts.tp, rates.links)
    cp_s = attending * cp_s + _exchange_of_mixers_s(job, layouts, rates, e * tokens)
    message = message * ((shape.expert_latent or shape.hidden) / shape.hidden)
    message = message * layouts.expert_rows
    once_s = exchange_s(shape, message / layouts.tp, layouts.ep, rates.links, by_domain=rates.software.by_domain)
    ep_shown = share * (1 - rates.software.tensor_overlap * rates.coefficients.ep_hidden)
    return tp_s * (1 - hidden), cp_s * (1 - hidden), ep_shown * np.where(again, 6.0, 4.0) * once_s


def _exchange_of_mixers_s(job: TrainingJob, layouts: Layouts, rates: Rates, token_bytes: Array) -> Array:
    """What Mamba-2 mixers project goes to the ranks of their heads, which scan whole sequences, and back (Megatron)."""
    mixer = job.shape.state_space
    if mixer is None:
        return np.zeros(len(layouts))
    passes = np.where(layouts.recompute == Recompute.FULL, 3.0, 2.0) * (mixer.layers / job.shape.layers)
    exchanged: Array = passes * sum(
        collective_s("all_to_all", token_bytes * width / layouts.tp, layouts.cp, layouts.tp, rates.links)
        for width in (mixer.projected, mixer.inner)
    )
    return exchanged


def _exchange_of_heads_s(job: TrainingJob, layouts: Layouts, rates: Rates, token_bytes: Array) -> Array:
    """Queries, keys and values to the ranks of their heads and the attention's output back, with their gradients."""
    heads = job.shape.heads / layouts.tp
    kv_heads = np.maximum(job.shape.kv_heads, layouts.tp) / layouts.tp
    query_dim, value_dim = head_dims(job.shape)
    there = token_bytes * (heads * query_dim + kv_heads * (query_dim + value_dim))
    back = token_bytes * heads * value_dim
    passes = np.where(layouts.recompute == Recompute.FULL, 3.0, 2.0)
    exchanged: Array = passes * sum(
        collective_s("all_to_all", size, layouts.cp, layouts.tp, rates.links) for size in (there, back)
    )
    return exchanged


def _offload_s(job: TrainingJob, layouts: Layouts, rates: Rates, block_s: Array) -> Array:
    """A block's activations cross the host's link twice, out during forward, back during backward."""
    if not (layouts.offload > 0).any():
        return np.zeros(len(layouts))
    stored = activation_bytes(
        job.shape, layouts, sequence_length=job.sequence_length, precision=job.precision, software=job.software
    )
    moved_s = 2 * stored / rates.host.link_bytes_per_s
    return np.where(layouts.offload > 0, np.maximum(0.0, moved_s - rates.coefficients.dp_hidden * block_s), 0.0)


def _pipeline_transfers_s(job: TrainingJob, layouts: Layouts, rates: Rates, compute_s: Array) -> Array:
    """Exposed seconds per micro-batch: activations forward and their gradients backward, for each of v chunks.

    The t ranks send a part each. Software with overlap sends one chunk while it computes another.
    """
    tokens = layouts.micro_batch * job.sequence_length / layouts.cp
    size = tokens * job.shape.hidden * element_bytes(job.precision) / layouts.tp
    stride = layouts.tp * layouts.cp * layouts.dp
    full = 2 * layouts.interleave * point_to_point_s(size, stride, layouts.pp, rates.links)
    hidden = rates.coefficients.dp_hidden * rates.software.overlap
    return np.where(layouts.pp > 1, np.maximum(full - hidden * compute_s, (1 - hidden) * full), 0.0)


def _data_parallel_s(job: TrainingJob, layouts: Layouts, rates: Rates, blocks: Array, compute_s: Array) -> Array:
    """Communication of gradients and sharded weights per step that is not hidden.

    zero 0    one all-reduce of the gradients
    zero 1    one scatter of them, and a gather of 16-bit weights after the update
    zero 2    a scatter per micro-batch; with v > 1 chunks one per chunk and p micro-batches that follow each other on
              it, whose gradients are added first (Llama Team 2024, arXiv:2407.21783, section 3.3.2)
    zero 3    per micro-batch the weights gathered forward and backward and the gradients scattered
    DeepSpeed with zero 1 and 2 an all-reduce instead of a scatter, which nothing hides (`Software.reduces_buckets`)
    native    in a pipeline one scatter per step with zero 2 and 3, too (`torch.distributed.pipelining`)
    replicas  beside shards: an all-reduce of the shard's gradients

    Nothing hides the kernels of PowerSGD (`layouts.gradient_compression`). Software with overlap hides up to
    `dp_hidden` of the time that computes: of the whole step with zero 2 and 3, else of one micro-batch, since
    gradients are complete in the last. With v > 1 chunks the last one alone waits for it: those of the others are
    complete p micro-batches earlier each, and their weights are needed as much later.
    """
    parameters = _held(job, layouts, blocks)
    copies = layouts.dp * layouts.cp
    expert_copies = np.maximum(1.0, copies * layouts.tp / layouts.ep)
    whole = float(element_bytes(job.precision))
    units, weight_bytes = blocks + 1, gathered_bytes(job.shape, layouts, whole)
    full = _reductions_s(job, layouts, rates, parameters.dense, units, copies, layouts.tp, weight_bytes)
    if job.shape.experts:
        full = full + _reductions_s(job, layouts, rates, parameters.experts, units, expert_copies, layouts.ep, whole)
    overlaps = rates.software.overlap & ((layouts.zero == 3) | (not rates.software.reduces_buckets))
    hidden = rates.coefficients.dp_hidden * overlaps
    slowed = (layouts.zero == 3) & rates.software.gathers_alone
    full = np.where(slowed, full / rates.coefficients.old_gather_share, full)
    one, v = compute_s / layouts.accum, layouts.interleave
    earlier = (np.minimum(layouts.pp, layouts.accum) - 1) * (1 - 1 / v)
    available = np.where(layouts.zero >= 2, compute_s, one * (1 + earlier))
    of_last = np.where(layouts.zero >= 2, 0.0, (full - hidden * one) / v)
    exposed: Array = np.maximum(np.maximum(full - hidden * available, full * (1 - hidden)), of_last)
    return exposed + compression_s(parameters.total, layouts, rates.device.memory_bytes_per_s)


def _accumulation_s(job: TrainingJob, layouts: Layouts, rates: Rates, blocks: Array) -> Array:
    """Casts of weights and sums of gradients that are kernels: per parameter `Software.summed_bytes`, or of PyTorch's.

    Where a rank holds gradients whole, 3 e_g for each micro-batch after the first, whose gradient is kept as it is,
    with e_g bytes of one (zero 0 and 1); under autocast (zero 0) 6 for the cast and 6 for its gradient each.
    Shards are gathered into a flat buffer and copied out of it, forward and backward, 2 e each time (zero 3);
    gradients are copied into one, e read and what is sent written (zero 2 and 3; `_fsdp_collectives.py`), and divided
    there in DeepSpeed's zero 2, 4 e. Measured links copy in their own time.
    """
    software = rates.software
    held = _held(job, layouts, blocks).total
    if not software.native or software.framework != "torch":
        summed_s: Array = held * software.summed_bytes * layouts.accum / rates.device.memory_bytes_per_s
        return summed_s
    e = element_bytes(job.precision)
    sums = np.where(layouts.zero <= 1, 3.0 * (4 if software.autocast else e) * (layouts.accum - 1), 0.0)
    casts = 12.0 * layouts.accum * has_casts(layouts, job.precision, software)
    sent = software.sent_gradient_bytes or software.gradient_bytes
    into_bucket = 4.0 * e if software.reduces_buckets else float(e + sent)
    copies = np.select([layouts.zero == 3, layouts.zero == 2], [5.0 * e + sent, into_bucket], 0.0)
    copies = np.where(np.isinf(rates.links.copied_bytes_per_s), copies, 0.0)
    seconds: Array = held * (sums + casts + copies * layouts.accum) / rates.device.memory_bytes_per_s
    return seconds


def _held(job: TrainingJob, layouts: Layouts, blocks: Array) -> StageParameters:
    """Parameters of one rank of a stage; a model in one stage has both tables unless they are one."""
    tables = np.where((layouts.pp == 1) & (not job.shape.tie_embeddings), 2.0, 1.0)
    return stage_parameters(job.shape, layouts, blocks, embeddings=tables)


def _reductions_s(
    job: TrainingJob,
    layouts: Layouts,
    rates: Rates,
    parameters: Array,
    units: Array,
    copies: Array,
    stride: Array,
    weight_bytes: Values,
) -> Array:
    """Seconds of one step's reductions and gathers of these parameters, hidden or not; zero 3 moves unit by unit.

    `weight_bytes` are those of a parameter that is gathered.
    """
    kept, sent = rates.software.gradient_bytes, rates.software.sent_gradient_bytes
    uncompressed = np.where(has_casts(layouts, job.precision, rates.software), kept, sent or kept)
    gradients, weights = parameters * sent_bytes(job.shape, layouts, uncompressed), parameters * weight_bytes
    replicas = np.where(layouts.zero > 0, layouts.dp / layouts.dp_shard, copies)  # without shards every copy is one
    shards = np.maximum(1.0, copies / replicas)
    pieces = np.where(layouts.zero == 3, units, 1.0)
    scattered = pieces * collective_s("reduce_scatter", gradients / pieces, shards, stride, rates.links)
    if rates.software.reduces_buckets:
        whole = collective_s("all_reduce", gradients, shards, stride, rates.links)
        scattered = np.where(layouts.zero == 3, scattered, whole)
    gathered = pieces * collective_s("all_gather", weights / pieces, shards, stride, rates.links)
    outer = collective_s("all_reduce", gradients / shards, replicas, stride * shards, rates.links)
    keeps = (layouts.zero <= 1) | (rates.software.native & (layouts.pp > 1))
    adds_first = (layouts.zero == 2) & (layouts.interleave > 1)
    runs = np.where(adds_first, np.ceil(layouts.accum / layouts.pp), layouts.accum)
    scatters = np.where(keeps, 1.0, runs)
    gathers = np.where(layouts.zero == 3, 2.0 * layouts.accum, 1.0)
    return scatters * scattered + gathers * gathered + outer


def _optimizer_s(job: TrainingJob, layouts: Layouts, rates: Rates) -> Array:
    """Parameters that a rank keeps after sharding, over the rate of the device or of the host that updates them.

    DeepSpeed sums offloaded gradients on the device: out and back over the host's link between two micro-batches.
    """
    blocks, _ = stage_blocks(job.shape.layers, layouts)
    parameters = _held(job, layouts, blocks)
    shards = layouts.dp_shard * layouts.cp
    expert_copies = np.maximum(1.0, shards * layouts.tp / layouts.ep)
    local = parameters.dense / np.where(layouts.zero > 0, shards, 1.0)
    local = local + parameters.experts / np.where(layouts.zero > 0, expert_copies, 1.0)
    per_s = np.where(layouts.offload_optimizer > 0, rates.host.update_params_per_s, rates.optimizer_params_per_s)
    crossing = np.where(layouts.offload_optimizer > 0, 2.0 * element_bytes(job.precision) * (layouts.accum - 1), 0.0)
    seconds: Array = local / per_s
    return seconds + rates.software.reduces_buckets * crossing * local / rates.host.link_bytes_per_s
