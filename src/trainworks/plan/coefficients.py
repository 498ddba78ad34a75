"""Every number of the step-time and memory model that was fitted, with what it means.

Latencies of collectives stand in `collectives`, tile rates in `compute`, what is believed before a measurement in
`uncertainty`.

`benchmarks/fit_planner.py` fits them to published step times, each source with the same weight, and prints the table
of `docs/reference/accuracy.md`. Bounds of the fit are physical: a share is below one, a latency above zero.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COEFFICIENTS", "Coefficients"]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Shares are of a hardware limit; seconds are per event."""

    gemm_share: float = 0.944
    """Of the fastest published product, what a long training run holds: clocks under load, cold caches."""
    default_peak_share: float = 0.78
    """Of the data sheet's peak, the fastest product where nobody published one."""
    amd_peak_share: float = 0.58
    """The same for AMD's parts, whose published products reach 51 to 62 %."""
    narrow_share: float = 0.868
    """Of its speed-up over 16 bits, what an 8- or 4-bit product keeps: scaling, amax, unfused casts."""
    joules_per_flop: float = 9.86e-13
    """Of a 16-bit product in 4 nm and 5 nm class parts, board power over sustained rate."""
    narrow_energy: float = 1.42
    """Exponent of the operands' width in that energy: 1 would halve it in 8 bits."""
    depth_half: float = 209
    """Inner dimension at which a product runs at half its rate: filling and draining a tile."""
    wave_loss: float = 0.485
    """Part of the idle tiles of a last wave that is really lost; other kernels fill the rest."""
    unaligned_share: float = 0.376
    """Of the matrix rate, what remains where a dimension is no multiple of 8 elements."""
    routed_share: float = 0.612
    """Of the matrix rate, what the products of routed experts reach: groups of unequal size, launched one by one."""
    attention_share: float = 0.725
    """Of the matrix rate, what fused attention reaches forward."""
    attention_backward_share: float = 0.821
    """Of its forward rate, what its backward reaches."""
    memory_share: float = 0.847
    """Of the memory's bandwidth, what element-wise kernels reach."""
    backward_bytes: float = 1.62
    """Bytes that element-wise backward moves over those of forward."""
    unfused_bytes: float = 1.7
    """Bytes that element-wise work moves in PyTorch-native programs, eager or half compiled, over fused kernels."""
    selective_share: float = 0.2
    """Of a block's forward, what selective recomputation repeats in PyTorch-native programs: chosen operations."""
    launch_s: float = 2.92e-05
    """Host time per kernel of a framework without captured graphs."""
    gap_s: float = 3.11e-06
    """Between two kernels that depend on each other, when the device is idle though the host is ahead."""
    optimizer_bytes: float = 45.2
    """Moved per local parameter and step: unscale, norm, clip, Adam, copy back."""
    step_s: float = 0.0207
    """Host work of one step: data, logging, the scheduler."""
    scale_up_share: float = 0.818
    """Of the scale-up link's one-direction rate, what a ring reaches."""
    scale_out_share: float = 0.821
    """Of a node's network interfaces, the same."""
    omni_path_share: float = 0.233
    """Of Omni-Path's rate, what collectives keep of that: its messages pass through the host's memory."""
    pipelining: float = 0.723
    """Of 2 sqrt(latency * transfer), the cost of filling a pipelined collective."""
    pipelining_inside: float = 0.392
    """The same inside a domain."""
    tp_hidden: float = 0.517
    """Part of tensor-parallel communication that a stack with overlap hides."""
    pp_exposed: float = 1.0
    """Part of the pipeline's point-to-point transfers that nothing hides."""
    dp_hidden: float = 0.844
    """Part of the computing time that can hide gradient and weight traffic."""
    old_gather_share: float = 0.197
    """Of the links' rate, what sharded weights reached in software without overlap."""
    host_link_share: float = 0.8
    """Of the link to the host, what offloading reaches."""
    host_update_bytes_per_s: float = 2e11
    """Of a node's memory, where the host updates weights: 28 bytes per parameter of all its ranks."""
    straggle: float = 0.0116
    """Time added per doubling of the number of nodes: the slowest rank of more."""
    fragmentation: float = 0.06
    """Of what the allocator reserves, what it cannot hand out."""
    context_bytes: float = 2.5e09
    """Of the driver, its libraries and the collectives' buffers on each device."""


COEFFICIENTS = Coefficients()
