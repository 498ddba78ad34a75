"""Residual networks: their convolutions, parameters and FLOPs.

Symbols: i input channels, o output channels, k kernel width, s stride, r width of the square output, c classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from trainworks.config.spec import Frozen
from trainworks.errors import UsageError

BlockKind = Literal["basic", "bottleneck"]


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
