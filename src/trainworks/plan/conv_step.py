"""Step time and memory of a convolutional network under data parallelism.

Symbols: those of `conv_net`; b images of a micro-batch, e bytes of an activation, N parameters.
A convolution is the matrix product [b r^2, i k^2] x [i k^2, o] (implicit GEMM). What it costs beside that is traffic:
its output is written, read twice and written once by batch norm and ReLU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.collectives import collective_s, fabric_of
from trainworks.plan.compute import Machine, element_bytes, machine_of, product_s, traffic_s
from trainworks.plan.conv_net import ConvNetShape, model_flops_per_image
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.memory import Memories
from trainworks.plan.software import Software
from trainworks.plan.step_time import StepTimes

__all__ = ["ConvJob", "predict_conv_memories", "predict_conv_step_times"]

_PASSES = 4.0
"""Passes of a convolution's output through memory, forward: written, statistics, normalised and rectified, written."""
_KERNELS_PER_CONVOLUTION = 3


@dataclass(frozen=True, slots=True)
class ConvJob:
    """Network, hardware and software of a training job; one image counts as one sequence of one token."""

    shape: ConvNetShape
    precision: str
    cluster: ClusterDescription
    software: Software
    sequence_length: int = 1

    @property
    def flops_per_sequence(self) -> float:
        """Model FLOPs of one image, forward and backward."""
        return model_flops_per_image(self.shape)


def predict_conv_step_times(job: ConvJob, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
    """One optimizer step of every layout; only the data-parallel degrees count.

    Replicas sum their gradients during backward, to the degree of `dp_hidden`.

    Raises:
        UsageError: the accelerator cannot compute in the job's precision.
    """
    machine = machine_of(job.cluster.accelerator, job.precision, coefficients)
    forward, backward = _network_s(job.shape, layouts, machine)
    reduced = collective_s(
        "all_reduce",
        np.full(len(layouts), 4.0 * job.shape.num_parameters),
        layouts.dp,
        np.ones(len(layouts)),
        fabric_of(job.cluster, coefficients),
    )
    nothing = np.zeros(len(layouts))
    local = job.shape.num_parameters / np.where(layouts.zero > 0, layouts.dp_shard, 1.0)
    doublings = np.log2(np.maximum(1.0, layouts.world_size / job.cluster.accelerators_per_node))
    device_s = layouts.accum * (forward + backward)
    return StepTimes(
        forward_s=layouts.accum * forward,
        backward_s=layouts.accum * backward,
        recompute_s=nothing,
        head_s=nothing,
        tp_s=nothing,
        cp_s=nothing,
        ep_s=nothing,
        offload_s=nothing,
        pp_s=nothing,
        bubble_s=nothing,
        dp_s=np.maximum(reduced - coefficients.dp_hidden * backward, (1 - coefficients.dp_hidden) * reduced),
        optimizer_s=local * coefficients.optimizer_bytes / machine.memory_bytes_per_s,
        host_s=np.full(len(layouts), coefficients.step_s),
        straggle_s=coefficients.straggle * doublings * device_s,
    )


def _network_s(shape: ConvNetShape, layouts: Layouts, machine: Machine) -> tuple[Array, Array]:
    """Forward and backward of one micro-batch; the first layer needs no gradient of its input."""
    forward = backward = np.zeros(len(layouts))
    for index, layer in enumerate(shape.convolutions):
        rows = layouts.micro_batch * layer.output_size**2
        columns, depth = layer.out_channels, layer.in_channels * layer.kernel_size**2
        traffic = traffic_s(_PASSES * machine.element_bytes * rows * columns, machine)
        forward = forward + layer.count * (product_s(rows, columns, depth, machine) + traffic)
        of_input = product_s(rows, depth, columns, machine) if index else 0.0
        products = product_s(depth, columns, rows, machine) + of_input
        backward = backward + layer.count * (products + machine.coefficients.backward_bytes * traffic)
    launched = _KERNELS_PER_CONVOLUTION * sum(layer.count for layer in shape.convolutions)
    host_s = launched * machine.coefficients.launch_s
    return np.maximum(forward, host_s), np.maximum(backward, 2 * host_s)


def predict_conv_memories(job: ConvJob, layouts: Layouts) -> Memories:
    """States of 16 bytes per parameter, and per image the output of every convolution twice: 2 e o r^2."""
    parameters = np.full(len(layouts), float(job.shape.num_parameters))
    values = sum(layer.count * layer.out_channels * layer.output_size**2 for layer in job.shape.convolutions)
    nothing = np.zeros(len(layouts))
    shared = np.where(layouts.zero > 0, layouts.dp_shard, 1.0)
    return Memories(
        weights_bytes=4.0 * parameters / np.where(layouts.zero == 3, layouts.dp_shard, 1.0),
        gradients_bytes=4.0 * parameters / np.where(layouts.zero >= 2, layouts.dp_shard, 1.0),
        optimizer_bytes=8.0 * parameters / shared,
        activations_bytes=layouts.micro_batch * 2.0 * element_bytes(job.precision) * values,
        logits_bytes=layouts.micro_batch * 8.0 * job.shape.classes,
        working_bytes=nothing,
        stage=nothing,
    )
