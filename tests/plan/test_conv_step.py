"""Convolutional networks: the same laws of time, memory and search, over data parallelism alone."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import layouts
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.models import preset
from trainworks.plan.conv_net import ConvJob
from trainworks.plan.search import fits, search
from trainworks.plan.shapes.conv_net import conv_net_of_hf_config
from trainworks.plan.software import Software
from trainworks.plan.space import Space

ON = "2 nodes of 8x A100-SXM-80GB over 8x HDR"
DEGREES = st.sampled_from([1, 2, 4, 8, 16])


def conv_job(name: str = "resnet-50", cluster: str = ON, precision: str = "bf16") -> ConvJob:
    return ConvJob(conv_net_of_hf_config(preset(name)), precision, parse_cluster(cluster), Software())


RESNET = conv_job()


def seconds(of: ConvJob = RESNET, global_batch: int = 2048, **degrees: float) -> float:
    return float(of.step_times(layouts(global_batch, **degrees)).total_s[0])


@given(dp=DEGREES, micro_batch=DEGREES)
def test_no_step_beats_the_data_sheet(dp: int, micro_batch: int) -> None:
    peak = RESNET.cluster.accelerator.peak_flops_per_s["bf16"]
    bound = 2048 * RESNET.flops_per_sequence / (dp * peak)
    assert seconds(dp=dp, micro_batch=micro_batch) > bound


@given(dp=DEGREES, micro_batch=DEGREES)
def test_many_layouts_are_priced_as_each_alone(dp: int, micro_batch: int) -> None:
    together = RESNET.step_times(layouts(2048, dp=np.array([1.0, dp]), micro_batch=micro_batch))
    assert together.total_s[1] == pytest.approx(seconds(dp=dp, micro_batch=micro_batch), rel=1e-12)


def test_a_kernel_per_operation_moves_more_bytes() -> None:
    """16,621 images per second of eager PyTorch on 8 A100 (NVIDIA/DeepLearningExamples), 2,048 a step."""
    fused = conv_job(cluster="DGX A100", precision="fp16")
    eager = replace(fused, software=Software(fused_kernels=False))
    assert seconds(eager, dp=8, micro_batch=256) > 1.2 * seconds(fused, dp=8, micro_batch=256)
    assert 2048 / seconds(eager, dp=8, micro_batch=256) == pytest.approx(16621, rel=0.1)


@given(dp=DEGREES)
def test_twice_the_batch_takes_at_most_twice_as_long(dp: int) -> None:
    once, twice = (seconds(global_batch=batch, dp=dp, micro_batch=32) for batch in (1024, 2048))
    assert once < twice <= 2 * once


def test_deeper_networks_take_longer() -> None:
    times = [seconds(conv_job(f"resnet-{depth}"), micro_batch=64) for depth in (50, 101, 152)]
    assert times == sorted(times)


def test_more_replicas_are_faster() -> None:
    times = [seconds(dp=dp, micro_batch=64) for dp in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)


def test_gradients_of_weights_fill_the_processors_although_they_have_few_tiles() -> None:
    times = RESNET.step_times(layouts(2048, dp=8, micro_batch=256))
    assert times.backward_s < 3 * times.forward_s


def test_one_accelerator_talks_to_nobody() -> None:
    assert RESNET.step_times(layouts(64)).dp_s == 0
    assert RESNET.step_times(layouts(64, dp=2)).dp_s > 0


def test_a_parameter_takes_16_bytes() -> None:
    memory = RESNET.memories(layouts(64))
    states = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert states == pytest.approx(16 * RESNET.shape.num_parameters)


def test_images_of_a_micro_batch_need_memory_each() -> None:
    one, two = (RESNET.memories(layouts(64, micro_batch=size)).activations_bytes for size in (1, 2))
    assert two == 2 * one


def test_a_convolutional_network_is_split_over_data_alone() -> None:
    found = search(Space(RESNET, 16, 2048, {}))
    assert fits(found.memories, RESNET).all()
    for axis in ("tp", "pp", "cp", "ep"):
        assert (getattr(found.layouts, axis) == 1).all()
    assert {rejection.reason for rejection in found.rejections if rejection.unit == "meshes"} == {
        "a convolutional network is split over dp alone"
    }


def test_every_term_is_finite() -> None:
    times = RESNET.step_times(layouts(2048, dp=np.array([1.0, 4.0, 16.0])))
    assert all(np.isfinite(getattr(times, field.name)).all() for field in fields(times))
