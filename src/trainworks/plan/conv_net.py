"""Step time and memory of residual networks under data parallelism.

Symbols: i input channels, o output channels, k kernel width, s stride, r width of the square output, c classes,
b images of a micro-batch, e bytes of an activation, N parameters.

A convolution is the matrix product [b r^2, i k^2] x [i k^2, o] (implicit GEMM). What it costs beside that is traffic:
its output is written, read twice and written once by batch norm and ReLU, and more often where each is a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.activations import element_bytes
from trainworks.plan.coefficients import AS_PREDICTED, COEFFICIENTS, Coefficients, Slowdowns
from trainworks.plan.collectives import collective_s
from trainworks.plan.compression import compressible, compression_s, error_bytes, sent_bytes
from trainworks.plan.compute import DeviceRates, product_s, traffic_s
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.memory import Memories
from trainworks.plan.rates import Rates
from trainworks.plan.shapes.conv_net import ConvNetShape, model_flops_per_image
from trainworks.plan.software import Software

_PASSES = {True: 4.0, False: 7.2}
"""Passes of a convolution's output through memory, forward, by whether kernels are fused. Count: written, statistics,
normalised and rectified, written; else rectified in two more, but for the 14 % of ResNet-50's values that shortcuts
project, and the outputs of its blocks, 50 % of them, added in three more."""
_KERNELS_PER_CONVOLUTION = 3
"""Count: convolution, normalisation, rectification."""
_WITHOUT = ("recompute_s", "head_s", "tp_s", "cp_s", "ep_s", "offload_s", "pp_s", "bubble_s")
"""Terms of a step that plain data parallelism does not have."""


@dataclass(frozen=True, slots=True)
class ConvJob:
    """Network, hardware and software of a training job; one image counts as one sequence of one token."""

    shape: ConvNetShape
    precision: str
    cluster: ClusterDescription
    software: Software
    sequence_length: int = 1
    slowdowns: Slowdowns = AS_PREDICTED
    """What measurements of this kind of cluster taught."""

    largest_micro_batch: ClassVar[int] = 512
    complication: ClassVar[float] = 0.01
    context_pieces: ClassVar[int] = 1

    def runnable(self, layouts: Layouts) -> NDArray[np.bool_] | slice:
        """The layouts that the software can run: all whose gradients can be compressed so."""
        return compressible(layouts)

    @property
    def tokens_per_sample(self) -> int:
        """1: an image counts as a token."""
        return self.sequence_length

    @property
    def flops_per_sequence(self) -> float:
        """Model FLOPs of one image, forward and backward."""
        return model_flops_per_image(self.shape)

    def step_times(self, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
        """One optimizer step of every layout; only the data-parallel degrees count.

        Replicas sum their gradients during backward, to the degree of `dp_hidden`.

        Raises:
            UsageError: the accelerator cannot compute in the job's precision.
        """
        rates = Rates.of_catalogue(self.cluster, self.precision, self.software, coefficients).slowed(self.slowdowns)
        forward, backward = _network_s(self.shape, layouts, rates.device, _PASSES[self.software.fused_kernels])
        reduced = collective_s(
            "all_reduce",
            self.shape.num_parameters * sent_bytes(self.shape, layouts, np.full(len(layouts), 4.0)),
            layouts.dp,
            np.ones(len(layouts)),
            rates.links,
        )
        nothing = np.zeros(len(layouts))
        local = self.shape.num_parameters / np.where(layouts.zero > 0, layouts.dp_shard, 1.0)
        doublings = np.log2(np.maximum(1.0, layouts.world_size / rates.links.ranks_per_node))
        device_s = layouts.accum * (forward + backward)
        exposed = np.maximum(reduced - coefficients.dp_hidden * backward, (1 - coefficients.dp_hidden) * reduced)
        compressed = compression_s(nothing + self.shape.num_parameters, layouts, rates.device.memory_bytes_per_s)
        return StepTimes(
            forward_s=layouts.accum * forward,
            backward_s=layouts.accum * backward,
            dp_s=exposed + compressed,
            optimizer_s=local / rates.optimizer_params_per_s,
            host_s=np.full(len(layouts), rates.host.step_s),
            **dict.fromkeys(_WITHOUT, nothing),
            straggle_s=coefficients.straggle * doublings * device_s,
        )

    def memories(self, layouts: Layouts) -> Memories:
        """Peak memory of the fullest rank of every layout.

        States are 16 bytes per parameter; per image the output of every convolution is kept twice, 2 e o r^2.
        """
        parameters = np.full(len(layouts), float(self.shape.num_parameters))
        values = sum(layer.count * layer.out_channels * layer.output_size**2 for layer in self.shape.convolutions)
        nothing = np.zeros(len(layouts))
        return Memories.with_overheads(
            context_bytes=COEFFICIENTS.context_bytes,
            weights_bytes=4.0 * parameters / np.where(layouts.zero == 3, layouts.dp_shard, 1.0),
            gradients_bytes=4.0 * parameters / np.where(layouts.zero >= 2, layouts.dp_shard, 1.0)
            + error_bytes(parameters, layouts),
            optimizer_bytes=8.0 * parameters / np.where(layouts.zero > 0, layouts.dp_shard, 1.0),
            activations_bytes=layouts.micro_batch * 2.0 * element_bytes(self.precision) * values,
            logits_bytes=layouts.micro_batch * 8.0 * self.shape.classes,
            working_bytes=nothing,
            cached_bytes=nothing,
            stage=nothing,
        )


def _network_s(shape: ConvNetShape, layouts: Layouts, device: DeviceRates, passes: float) -> tuple[Array, Array]:
    """Forward and backward of one micro-batch; the first layer needs no gradient of its input."""
    forward = backward = np.zeros(len(layouts))
    for index, layer in enumerate(shape.convolutions):
        rows = layouts.micro_batch * layer.output_size**2
        columns, depth = layer.out_channels, layer.in_channels * layer.kernel_size**2
        traffic = traffic_s(passes * device.element_bytes * rows * columns, device)
        forward = forward + layer.count * (product_s(rows, columns, depth, device) + traffic)
        of_input = product_s(rows, depth, columns, device) if index else 0.0
        products = product_s(depth, columns, rows, device) + of_input
        backward = backward + layer.count * (products + device.coefficients.backward_bytes * traffic)
    launched = _KERNELS_PER_CONVOLUTION * sum(layer.count for layer in shape.convolutions)
    host_s = launched * device.coefficients.launch_s
    return np.maximum(forward, host_s), np.maximum(backward, 2 * host_s)
