"""The numbers of the step-time and memory model that formulas share, each with its meaning and its origin.

Latencies of links are in `rates`, tile rates in `compute`, the prior of the uncertainty in `uncertainty`. What
measurements of one kind of cluster teach beside them are its `Slowdowns`.

`benchmarks/fit_planner.py` fits them to published step times, each source with the same weight. Bounds of the fit are
physical: a share is below one, a latency above zero. A number that is not fitted says where it is from, here and
wherever the planner has one: `Source:` what was published, `Count:` what is counted, `Set to:` the measurements that
it was chosen for, `Assumed:` none of these. `docs/reference/accuracy.md` has the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Shares are of a hardware limit; seconds are per event."""

    gemm_share: float = 0.938
    """Share of the fastest published product that a long training run sustains: clocks under load, cold caches."""
    default_peak_share: float = 0.78
    """Fastest product as a share of the data sheet's peak, if no product is published. Source: catalogue, the median of
    B200, B300 and GB200."""
    amd_peak_share: float = 0.58
    """The same for AMD's parts. Source: catalogue, the mean of MI300X, MI325X and MI355X, 51 to 62 %."""
    amd_share: float = 0.794
    """Share of that rate which AMD's parts sustain: their clocks fall further."""
    narrow_share: float = 0.888
    """Share of its speed-up over 16 bits that an 8- or 4-bit product keeps: scaling, amax, unfused casts."""
    joules_per_flop: float = 1.06e-12
    """Energy per FLOP of a 16-bit product in 4 nm and 5 nm class parts: board power over sustained rate."""
    narrow_energy: float = 1.47
    """Exponent of the operands' width in that energy: 1 would halve it in 8 bits."""
    depth_half: float = 127
    """Inner dimension at which a product runs at half its rate: filling and draining a tile."""
    wave_loss: float = 0.548
    """Part of the idle tiles of a last wave that is really lost; other kernels fill the rest."""
    routed_share: float = 0.653
    """Share of the matrix rate that products of routed experts reach: groups of unequal size, launched one by one."""
    attention_share: float = 0.878
    """Share of a kernel's published rate that attention reaches in a long run."""
    memory_share: float = 0.746
    """Share of the memory bandwidth that element-wise kernels reach."""
    backward_bytes: float = 1.5
    """Bytes that element-wise backward moves over those of forward. Count: a norm or an activation reads and writes a
    value in forward; in backward it reads the value and its gradient, and writes a gradient."""
    unfused_bytes: float = 1.94
    """Bytes that element-wise work of plain models moves in eager programs, over those of fused kernels."""
    eager_bytes: float = 4.61
    """Bytes of models with RMSNorm, rotations and gates, for which eager programs launch a kernel per operation, over
    those of fused kernels."""
    projections_share: float = 0.585
    """Share of the forward that is computed again where only the outputs of the first projections are kept."""
    selective_share: float = 0.242
    """Share of a block's forward that selective recomputation repeats in PyTorch-native programs: chosen operations."""
    launch_s: float = 3.08e-05
    """Host time per kernel of a framework without captured graphs."""
    gap_s: float = 2.54e-06
    """Idle time between two dependent kernels although the host is ahead."""
    optimizer_bytes: float = 46
    """Moved per local parameter and step. Count, in fp32: 4 for the norm, 8 to clip, 16 that Adam reads and 12 that it
    writes, 6 to copy a weight to 16 bits."""
    step_s: float = 0.00847
    """Host work of one step: data, logging, the scheduler."""
    scale_up_share: float = 0.819
    """Share of the scale-up link's one-direction rate that a ring reaches."""
    scale_out_share: float = 0.797
    """Share of the rate of a node's network interfaces that a ring reaches."""
    omni_path_share: float = 0.207
    """Share of Omni-Path's rate that rings keep in addition, whose steps pass through the host's memory one after the
    other; a pipeline's messages keep all of it."""
    pipelining: float = 0.723
    """Cost of filling a pipelined collective, as a share of 2 sqrt(latency * transfer). Set to: all-reduces of 16 A100
    and H100 over EFA, and of 8 H100 whose switches add up (benchmarks/data/collectives.csv)."""
    pipelining_inside: float = 0.09
    """The same in rings inside a domain. Set to: all-reduces of 2 to 8 A100 and V100 in one node, of the same table."""
    tp_hidden: float = 0.577
    """Part of tensor-parallel communication that software with overlap hides."""
    ep_hidden: float = 0.415
    """Part of the exchange of tokens with their experts that software with overlap hides."""
    dp_hidden: float = 0.756
    """Part of the computing time that can hide gradient and weight traffic."""
    old_gather_share: float = 0.145
    """Share of the links' rate that sharded weights reached before FSDP, gathered one by one."""
    host_link_share: float = 0.8
    """Share of the host link's rate that offloading reaches. Source: 24.8 of 31.5 GB/s, nvbandwidth 0.8 on A100-SXM4
    over PCIe 4.0 (forums.developer.nvidia.com, topic 352186)."""
    host_update_bytes_per_s: float = 2.6e10
    """Rate of a node's memory when the host updates weights, 28 bytes per parameter of its ranks. Source: geometric
    mean of DeepSpeed on A100 (50 and 35 GB/s, deepspeedai/DeepSpeed 6834 and 7474) and A800 (10 GB/s, chenyaofo's
    gist)."""
    straggle: float = 0.00998
    """Time added per doubling of the number of nodes: the slowest rank of more."""
    fragmentation: float = 0.06
    """Share of the reserved memory that the allocator cannot hand out. Set to: rows of reserved memory and of the
    device's (benchmarks/data/memory.csv)."""
    context_bytes: float = 2.5e09
    """Memory of the driver, its libraries and the collectives' buffers on each device. Set to: the device's memory in
    the same table."""


COEFFICIENTS = Coefficients()


@dataclass(frozen=True, slots=True)
class LinkFactors:
    """Measured over expected figures of the links, 1 each where no collective was measured; see `plan.collectives`.

    A filling is the cost of filling a pipeline of chunks, c, which bends the curve between small and large messages.
    """

    scale_up_latency: float = 1.0
    scale_up: float = 1.0
    """On the seconds per byte inside a domain."""
    scale_up_filling: float = 1.0
    scale_out_latency: float = 1.0
    scale_out: float = 1.0
    """On the seconds per byte between domains."""
    scale_out_filling: float = 1.0


AS_EXPECTED = LinkFactors()
"""No collective was measured."""


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """Factors on the seconds that physical rates take: 1 as predicted, 2 for half of the rate."""

    products: float = 1.0
    """Matrix products with weights."""
    attention: float = 1.0
    """Fused attention."""
    memory: float = 1.0
    """Element-wise kernels and the optimizer."""
    host: float = 1.0
    """Launches, the work of a step, offloading."""
    scale_up: float = 1.0
    """Links inside a domain."""
    scale_out: float = 1.0
    """Links between domains."""
    links: LinkFactors = AS_EXPECTED
    """What collectives measured, before these factors."""


AS_PREDICTED = Slowdowns()
"""Before any learning."""
