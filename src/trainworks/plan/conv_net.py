"""Residual networks: convolutions, parameters and FLOPs; step time and memory under data parallelism.

Symbols: i input channels, o output channels, k kernel width, s stride, r width of the square output, c classes,
b images of a micro-batch, e bytes of an activation, N parameters.

A convolution is the matrix product [b r^2, i k^2] x [i k^2, o] (implicit GEMM). What it costs beside that is traffic:
its output is written, read twice and written once by batch norm and ReLU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.spec import Frozen
from trainworks.errors import UsageError
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.collectives import collective_s
from trainworks.plan.compute import DeviceRates, element_bytes, product_s, traffic_s
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.memory import Memories
from trainworks.plan.rates import AS_PREDICTED, Rates, Slowdowns
from trainworks.plan.software import Software
from trainworks.plan.step_time import StepTimes, TrainingJob

BlockKind = Literal["basic", "bottleneck"]


_PASSES = 4.0
"""Passes of a convolution's output through memory, forward: written, statistics, normalised and rectified, written."""
_KERNELS_PER_CONVOLUTION = 3


class Convolution(Frozen):
    """One convolution without bias, with the batch norm behind it."""

    in_channels: int
    out_channels: int
    kernel_size: int
    stride: int
    output_size: int
    """Width of the output, which is square."""
    count: int = 1
    """Number of such convolutions in the network."""


class ConvNetShape(Frozen):
    """An image classifier: convolutions with batch norms, an average over the image, one linear layer."""

    convolutions: tuple[Convolution, ...]
    """Convolutions in the order of their first use."""
    features: int
    """Channels that reach the classifier."""
    classes: int
    image_size: int
    num_parameters: int


def conv_net_of_hf_config(config: Mapping[str, Any]) -> ConvNetShape:
    """The network of a ResNet's config.json.

    Args:
        config: `image_size` (224 when left out) is not in the file itself; it decides FLOPs, not parameters.

    Raises:
        UsageError: another model type, or a block that reduces in its first convolution.
    """
    if config.get("model_type") != "resnet":
        raise UsageError(f"cannot plan model type `{config.get('model_type')}` as a convolutional network")
    if config.get("downsample_in_bottleneck") or config.get("downsample_in_first_stage"):
        raise UsageError("a ResNet that reduces in its first convolution or stage cannot be planned yet")
    image = int(config.get("image_size", 224))
    classes = len(config["id2label"]) if "id2label" in config else int(config.get("num_labels", 1000))
    layers = tuple(_resnet(config, image))
    shape = ConvNetShape(
        convolutions=tuple(layer.model_copy(update={"count": count}) for layer, count in Counter(layers).items()),
        features=layers[-1].out_channels,
        classes=classes,
        image_size=image,
        num_parameters=0,
    )
    return shape.model_copy(update={"num_parameters": conv_net_parameters(shape)})


def conv_net_parameters(shape: ConvNetShape) -> int:
    """All weights: sum of i o k^2 + 2 o, the batch norm's scale and shift, and the classifier's (o + 1) c.

    Running mean and variance are state, not parameters.
    """
    per_layer = (
        layer.count * layer.out_channels * (layer.in_channels * layer.kernel_size**2 + 2)
        for layer in shape.convolutions
    )
    return sum(per_layer) + (shape.features + 1) * shape.classes


def forward_flops_per_image(shape: ConvNetShape) -> float:
    """Forward FLOPs of one image: 2 (sum of i o k^2 r^2 + o c); a multiplication and an addition are two.

    Tables that print 4.1 "GFLOPs" for ResNet-50 count multiply-adds once. Norms and activations are left out.
    """
    products = (
        layer.count * layer.in_channels * layer.out_channels * (layer.kernel_size * layer.output_size) ** 2
        for layer in shape.convolutions
    )
    return 2.0 * (sum(products) + shape.features * shape.classes)


def model_flops_per_image(shape: ConvNetShape) -> float:
    """Forward and backward FLOPs of one image: three times forward, though the first layer needs no input gradient."""
    return 3.0 * forward_flops_per_image(shape)


def _resnet(config: Mapping[str, Any], image_size: int) -> Iterator[Convolution]:
    """Stem of 7x7 and pooling, each halving the image, then stages of residual blocks (He et al. 2015, table 1)."""
    kind: BlockKind = config.get("layer_type", "bottleneck")
    channels = int(config.get("embedding_size", 64))
    size = -(-image_size // 2)
    yield _convolution(int(config.get("num_channels", 3)), channels, 7, 2, size)
    size = -(-size // 2)
    depths, widths = config.get("depths", (3, 4, 6, 3)), config.get("hidden_sizes", (256, 512, 1024, 2048))
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            yield from _block(kind, channels, width, stride, size)
            size, channels = -(-size // stride), width


def _block(kind: BlockKind, channels: int, width: int, stride: int, input_size: int) -> Iterator[Convolution]:
    """A residual block with its projection first, where the input has another form than the output."""
    size = -(-input_size // stride)
    if stride != 1 or channels != width:
        yield _convolution(channels, width, 1, stride, size)
    if kind == "basic":
        yield _convolution(channels, width, 3, stride, size)
        yield _convolution(width, width, 3, 1, size)
        return
    narrow = width // 4
    yield _convolution(channels, narrow, 1, 1, input_size)
    yield _convolution(narrow, narrow, 3, stride, size)
    yield _convolution(narrow, width, 1, 1, size)


def _convolution(in_channels: int, out_channels: int, kernel_size: int, stride: int, output_size: int) -> Convolution:
    return Convolution(
        in_channels=in_channels,
        out_channels=out_channels,
        kernel_size=kernel_size,
        stride=stride,
        output_size=output_size,
    )


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

    def runnable(self, layouts: Layouts) -> slice:
        """The layouts that the software can run: all."""
        return slice(None)

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
        return _predict_step_times(self, layouts, coefficients)

    def memories(self, layouts: Layouts) -> Memories:
        """Peak memory of the fullest rank of every layout."""
        return _predict_memories(self, layouts)


AnyJob = TrainingJob | ConvJob
"""A job that can be planned."""


def _predict_step_times(job: ConvJob, layouts: Layouts, coefficients: Coefficients) -> StepTimes:
    rates = Rates.of_catalogue(job.cluster, job.precision, job.software, coefficients).slowed(job.slowdowns)
    forward, backward = _network_s(job.shape, layouts, rates.device)
    reduced = collective_s(
        "all_reduce",
        np.full(len(layouts), 4.0 * job.shape.num_parameters),
        layouts.dp,
        np.ones(len(layouts)),
        rates.links,
    )
    nothing = np.zeros(len(layouts))
    local = job.shape.num_parameters / np.where(layouts.zero > 0, layouts.dp_shard, 1.0)
    doublings = np.log2(np.maximum(1.0, layouts.world_size / rates.links.ranks_per_node))
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
        optimizer_s=local / rates.optimizer_params_per_s,
        host_s=np.full(len(layouts), rates.host.step_s),
        straggle_s=coefficients.straggle * doublings * device_s,
    )


def _network_s(shape: ConvNetShape, layouts: Layouts, device: DeviceRates) -> tuple[Array, Array]:
    """Forward and backward of one micro-batch; the first layer needs no gradient of its input."""
    forward = backward = np.zeros(len(layouts))
    for index, layer in enumerate(shape.convolutions):
        rows = layouts.micro_batch * layer.output_size**2
        columns, depth = layer.out_channels, layer.in_channels * layer.kernel_size**2
        traffic = traffic_s(_PASSES * device.element_bytes * rows * columns, device)
        forward = forward + layer.count * (product_s(rows, columns, depth, device) + traffic)
        of_input = product_s(rows, depth, columns, device) if index else 0.0
        products = product_s(depth, columns, rows, device) + of_input
        backward = backward + layer.count * (products + device.coefficients.backward_bytes * traffic)
    launched = _KERNELS_PER_CONVOLUTION * sum(layer.count for layer in shape.convolutions)
    host_s = launched * device.coefficients.launch_s
    return np.maximum(forward, host_s), np.maximum(backward, 2 * host_s)


def _predict_memories(job: ConvJob, layouts: Layouts) -> Memories:
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
