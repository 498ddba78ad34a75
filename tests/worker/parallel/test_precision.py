"""Lower precisions follow fp32 under every kind of cut, and fp16's ranks agree on their loss scale."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.worker.parallel.test_equivalence import LLAMA, MODELS, outcome
from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.timing import Timeline

LAYOUTS = {
    "replicas": {"dp_replicate": 2},
    "shards": {"dp_shard": 2},
    "zero-2": {"dp_shard": 2, "zero": 2},
    "tensor": {"tp": 2},
    "context": {"cp": 2},
    "pipeline": {"pp": 2},
    "one": {},
}
WITH_EXPERTS = {"one-experts": {}, "experts": {"dp_shard": 2, "ep": 2}}


@pytest.fixture(scope="module")
def in_fp32():
    """Losses of one process, of a dense model and one with experts."""
    return {"dense": outcome(LLAMA, {}).losses, "experts": outcome(MODELS["mixtral"], {}).losses}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", LAYOUTS | WITH_EXPERTS)
def test_a_16_bit_loss_follows_fp32_within_2_percent(in_fp32, name, precision):
    config = MODELS["mixtral"] if name in WITH_EXPERTS else LLAMA
    got = outcome(config, (LAYOUTS | WITH_EXPERTS)[name], precision)
    assert got.losses == pytest.approx(in_fp32["experts" if name in WITH_EXPERTS else "dense"], rel=0.02)
    assert all(weights.dtype == "float32" for weights in got.weights.values())


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="fp8 needs trainworks[fp8]")
@pytest.mark.parametrize("name", ["replicas", "shards", "pipeline", "one"])
def test_an_emulated_fp8_loss_follows_fp32_within_5_percent(in_fp32, name):
    expected = in_fp32["dense"]
    got = outcome(LLAMA, LAYOUTS[name], "fp8").losses
    assert got == pytest.approx(expected, rel=0.05)
    assert got != pytest.approx(expected, rel=1e-6)


def test_an_overflow_in_the_shards_of_one_rank_halves_the_scale_of_all_and_moves_no_weight():
    before, after, scales = zip(*on_ranks(2, overflow_on_rank_1), strict=True)
    assert scales == (32768.0, 32768.0)
    assert before == after


def overflow_on_rank_1():
    """Sums of this rank's shards before and after a step, and its loss scale."""
    layout = resolve_layout(Layout(dp_shard=2), world_size=2, global_batch=4, micro_batch=2)
    device = torch.device("cpu")
    mesh = Mesh(layout, "cpu")
    setup = Setup(mesh=mesh, device=device, precision="fp16", compiled=False, timeline=Timeline(device))
    parallel = distribute_decoder(LLAMA, setup, positions=16, first_weights=lambda parts: draw_weights(parts, seed=3))
    optimizer = StepOptimizer(
        parallel.parts, mesh, Optimizer(lr=1e-2), num_steps=4, precision="fp16", device=device, guard=Guard()
    )
    tokens = torch.randint(0, 64, (1, 2, 17), generator=torch.manual_seed(mesh.dp_rank))
    loss = parallel.gradients(tokens[..., :-1], tokens[..., 1:], scale=optimizer.loss_scale.per_micro_batch(1))
    gradient = next(parallel.parts[0].parameters()).grad
    assert isinstance(gradient, DTensor)
    if mesh.dp_rank == 1:
        gradient.to_local().fill_(float("inf"))
    before = [each.local.sum().item() for each in optimizer.parameters]
    optimizer.step(0, loss)
    after = [each.local.sum().item() for each in optimizer.parameters]
    return before, after, float(optimizer.loss_scale.state()["scale"])
