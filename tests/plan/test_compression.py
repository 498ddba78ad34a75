"""Compressed gradients: what a plan takes them to send, on described clusters and on ranks at hand alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from tests.plan.built_models import built
from tests.plan.families import CONFIGS
from tests.plan.jobs import job, known, layouts
from trainworks.catalog.models import preset
from trainworks.config.layout import Layout, resolve_layout
from trainworks.plan.compression import sent_bytes
from trainworks.plan.conv_net import ConvJob
from trainworks.plan.degrees import fixed_of, layouts_of, planned_layout
from trainworks.plan.job import AnyJob
from trainworks.plan.layouts import Compression
from trainworks.plan.parameters import attention_parameters, attention_sizes, dense_mlp_parameters, mlp_sizes
from trainworks.plan.search import search_layouts
from trainworks.plan.shapes.conv_net import conv_net_of_hf_config
from trainworks.plan.shapes.transformer import shape_of_hf_config

REPLICAS = job("gpt2", "2 nodes of 8x A100-SXM-80GB over 1x 100GbE")
IMAGES = ConvJob(conv_net_of_hf_config(preset("resnet-50")), "bf16", REPLICAS.cluster, REPLICAS.software)
KINDS = ("none", "bf16", "powersgd")


def fixed(**written: Any) -> dict[str, int]:
    return fixed_of(Layout.model_validate({"dp_replicate": 16, "micro_batch": 4} | written))


def sent(kind: Compression, rank: int = 0) -> float:
    compressed = layouts(gradient_compression=kind, powersgd_rank=rank)
    return float(sent_bytes(known("gpt2"), compressed, np.array([4.0]))[0])


def test_a_described_cluster_has_the_time_of_what_replicas_send() -> None:
    best = [search_layouts(REPLICAS, 64, fixed(gradient_compression=kind), keep=1) for kind in KINDS]
    whole, rounded, low_rank = (float(REPLICAS.step_times(each.layouts).dp_s[0]) for each in best)
    assert low_rank < rounded < whole / 2  # computing hides a part
    assert [planned_layout(each.layouts, 0).gradient_compression for each in best] == list(KINDS)


@pytest.mark.parametrize("kind", ["bf16", "fp16", "powersgd"])
def test_a_layout_is_priced_by_its_compression_whether_it_is_searched_or_resolved(kind: str) -> None:
    written = Layout.model_validate({"dp_replicate": 16, "gradient_compression": kind, "powersgd_rank": 2})
    resolved = layouts_of([resolve_layout(written, world_size=16, global_batch=64, micro_batch=4)])
    searched = search_layouts(REPLICAS, 64, fixed_of(written) | {"micro_batch": 4, "recompute": 0}, keep=1)
    assert REPLICAS.step_times(resolved).dp_s[0] == REPLICAS.step_times(searched.layouts).dp_s[0]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_in_16_bits_take_no_longer_however_they_are_shared(zero: int) -> None:
    kinds = [Compression.NONE, Compression.BF16]
    shards = 1 if zero == 0 else 16
    both = layouts(dp=16, dp_shard=shards, zero=zero, micro_batch=1, gradient_compression=kinds)
    whole, rounded = REPLICAS.step_times(both).dp_s
    assert rounded < whole


def test_more_factors_are_more_bytes_and_never_more_than_the_matrix() -> None:
    few, more, most = (sent(Compression.POWERSGD, rank) for rank in (1, 4, 10**6))
    assert few < more < sent(Compression.BF16) < most == sent(Compression.NONE)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3_moe", "deepseek_v3"])
def test_powersgd_sends_what_torch_sends(family: str) -> None:
    rank = 2
    with torch.device("meta"):
        weights = list(built(CONFIGS[family]).parameters())
    values = 0
    for weight in weights:
        rows, columns = weight.shape[0], weight[0].numel()
        smaller, whole, factors = powerSGD_hook._should_compress(rows, columns, min(rank, rows, columns), 2)
        values += factors if smaller else whole
    shape = shape_of_hf_config(CONFIGS[family])
    bytes_ = sent_bytes(shape, layouts(gradient_compression=Compression.POWERSGD, powersgd_rank=rank), np.array([4.0]))[
        0
    ]
    assert bytes_ * sum(weight.numel() for weight in weights) == pytest.approx(4 * values, rel=0.05)


@pytest.mark.parametrize("family", CONFIGS)
def test_the_linear_layers_of_a_block_have_its_matrices(family: str) -> None:
    shape = shape_of_hf_config(CONFIGS[family])
    sizes = (attention_sizes(shape), mlp_sizes(shape))
    counted = [sum(inputs * outputs for inputs, outputs in each.values()) for each in sizes]
    assert counted == [attention_parameters(shape), dense_mlp_parameters(shape)]


def test_the_error_that_powersgd_keeps_takes_memory() -> None:
    kinds = [Compression.NONE, Compression.POWERSGD]
    plain, kept = REPLICAS.memories(layouts(dp=16, gradient_compression=kinds, powersgd_rank=4)).allocated_bytes
    assert kept - plain == pytest.approx(4 * REPLICAS.shape.num_parameters, rel=0.01)


@pytest.mark.parametrize("of", [REPLICAS, IMAGES], ids=["transformer", "convolutional network"])
def test_powersgd_is_searched_among_plain_replicas(of: AnyJob) -> None:
    found = search_layouts(of, 64, {"gradient_compression": Compression.POWERSGD, "powersgd_rank": 4}, keep=50)
    assert np.all(found.layouts.dp == 16)
    assert not found.layouts.zero.any()


def test_the_classifier_of_a_convolutional_network_is_compressed_too() -> None:
    shape = IMAGES.shape
    compressed = layouts(gradient_compression=Compression.POWERSGD, powersgd_rank=1)
    norms = shape.num_parameters - 25_502_912  # weights of convolutions and classifier
    values = sent_bytes(shape, compressed, np.array([4.0]))[0] * shape.num_parameters / 4
    assert norms < values < norms + 100_000
