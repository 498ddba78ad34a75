"""Residual networks: convolutions, parameters and FLOPs against the published and the real ones."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.catalog.models import preset
from trainworks.errors import UsageError
from trainworks.plan.shapes.conv_net import (
    ConvNetShape,
    conv_net_of_hf_config,
    conv_net_parameters,
    forward_flops_per_image,
    model_flops_per_image,
)

DEPTHS = [18, 34, 50, 101, 152]


def resnet(depth: int, **changes: Any) -> ConvNetShape:
    return conv_net_of_hf_config(preset(f"resnet-{depth}") | changes)


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_depth_counts_the_layers_of_the_main_path(depth: int) -> None:
    """Convolutions but the projections (1x1 that change the form of a block), and the classifier."""
    projections = 3 if depth < 50 else 4
    assert sum(layer.count for layer in resnet(depth).convolutions) - projections + 1 == depth


@pytest.mark.parametrize(
    ("depth", "multiply_adds"), [(18, 1.814e9), (34, 3.664e9), (50, 4.089e9), (101, 7.801e9), (152, 11.514e9)]
)
def test_forward_is_two_flops_for_each_of_torchvision_s_multiply_adds(depth: int, multiply_adds: float) -> None:
    assert forward_flops_per_image(resnet(depth)) / 2 == pytest.approx(multiply_adds, rel=1e-3)


def test_backward_is_twice_forward() -> None:
    assert model_flops_per_image(resnet(50)) == 3 * forward_flops_per_image(resnet(50))


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize("image_size", [64, 75, 224])
def test_a_network_costs_what_pytorch_counts(depth: int, image_size: int) -> None:
    torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    transformers = pytest.importorskip(
        "transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]"
    )
    from torch.utils.flop_counter import FlopCounterMode

    fields = {name: value for name, value in preset(f"resnet-{depth}").items() if name != "model_type"}
    counter = FlopCounterMode(display=False)
    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**fields)).eval()
        with counter, torch.no_grad():
            model(torch.zeros(1, 3, image_size, image_size))
    shape = resnet(depth, image_size=image_size)
    assert shape.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert forward_flops_per_image(shape) == counter.get_total_flops()


def test_the_last_stage_of_resnet_50_is_that_of_the_paper() -> None:
    """Two of its three blocks take 2048 channels down to 512."""
    stage = {(c.in_channels, c.out_channels, c.kernel_size): c.count for c in resnet(50).convolutions}
    assert (stage[2048, 512, 1], stage[512, 512, 3], stage[512, 2048, 1]) == (2, 2, 3)
    assert {c.output_size for c in resnet(50).convolutions[-3:]} == {7}


def test_classes_change_only_the_classifier() -> None:
    assert conv_net_parameters(resnet(50)) - conv_net_parameters(resnet(50, num_labels=10)) == 990 * 2049


def test_only_a_resnet_can_be_planned() -> None:
    with pytest.raises(UsageError, match="cannot plan model type `vit` as a convolutional network"):
        conv_net_of_hf_config(preset("vit-b16"))


@pytest.mark.parametrize("option", ["downsample_in_bottleneck", "downsample_in_first_stage"])
def test_a_resnet_of_another_form_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="reduces in its first convolution"):
        resnet(50, **{option: True})
