"""Lower precisions follow fp32 under every kind of cut, and fp16's ranks agree on their loss scale."""

from __future__ import annotations

import functools
import importlib.util
import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn import Linear

from tests.lanes import cases
from tests.worker.parallel.test_equivalence import LLAMA, MODELS, outcome
from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.worker.checkpoint.state import whole_state
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import Decoder
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


@pytest.mark.parametrize(
    "case",
    cases(
        [(precision, name) for precision in ("bf16", "fp16") for name in LAYOUTS | WITH_EXPERTS],
        at_night=[("fp16", name) for name in ("zero-2", "tensor", "context", "pipeline")],
    ),
    ids="-".join,
)
def test_a_16_bit_loss_follows_fp32_within_2_percent(in_fp32, case):
    precision, name = case
    config = MODELS["mixtral"] if name in WITH_EXPERTS else LLAMA
    got = outcome(config, (LAYOUTS | WITH_EXPERTS)[name], precision)
    assert got.losses == pytest.approx(in_fp32["experts" if name in WITH_EXPERTS else "dense"], rel=0.02)
    assert all(weights.dtype == "float32" for weights in got.weights.values())


NEEDS_TORCHAO = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="NOT TESTED: fp8 needs trainworks[fp8]"
)
GATHERED = {
    "gathered": {"dp_shard": 2, "fp8_all_gather": True},
    "gathered-context": {"cp": 2, "fp8_all_gather": True},
    "gathered-by-replicas": {"dp_replicate": 2, "dp_shard": 2, "fp8_all_gather": True},
}


@NEEDS_TORCHAO
@pytest.mark.parametrize("name", ["replicas", "shards", "pipeline", "one", *GATHERED])
def test_an_emulated_fp8_loss_follows_fp32_within_5_percent(in_fp32, name):
    expected = in_fp32["dense"]
    got = outcome(LLAMA, (LAYOUTS | GATHERED)[name], "fp8").losses
    assert got == pytest.approx(expected, rel=0.05)
    assert got != pytest.approx(expected, rel=1e-6)


def gathered(*, in_8_bits: bool) -> tuple[int, bool, float]:
    """Bytes of this rank's shards that travel in a forward and backward, whether its checkpoint has plain fp32 tensors
    over the model's own storage, and a loss of evaluation.
    """
    layout = resolve_layout(Layout(dp_shard=2, fp8_all_gather=in_8_bits), world_size=2, global_batch=4, micro_batch=2)
    sent, gather = [], dist.all_gather_single

    def counted(output: torch.Tensor, shard: torch.Tensor, **options: object) -> object:
        sent.append(shard.nbytes)
        return gather(output, shard, **options)

    dist.all_gather_single = counted  # each rank is a process of its own
    device, mesh = torch.device("cpu"), Mesh(layout, "cpu")
    setup = Setup(mesh=mesh, device=device, precision="fp8", compiled=False, timeline=Timeline(device))
    parallel = distribute_decoder(LLAMA, setup, positions=16, first_weights=lambda parts: draw_weights(parts, seed=3))
    optimizer = StepOptimizer(
        parallel.parts, mesh, Optimizer(lr=1e-2), num_steps=4, precision="fp8", device=device, guard=Guard()
    )
    tokens = torch.randint(0, 64, (1, 2, 17), generator=torch.manual_seed(mesh.dp_rank))
    parallel.gradients(tokens[..., :-1], tokens[..., 1:], scale=1.0)
    num_bytes = sum(sent)
    optimizer.fill_state()
    saved = whole_state(parallel.parts, optimizer)["model"]
    plain = all(type(each.to_local()) is torch.Tensor and each.dtype == torch.float32 for each in saved.values())
    with torch.no_grad():
        for each in saved.values():  # as a checkpoint is loaded
            each.to_local().mul_(0.0)
    return num_bytes, plain, parallel.evaluate(tokens[..., :-1], tokens[..., 1:])[0, 0].item()


@NEEDS_TORCHAO
def test_shards_of_fp8_weights_travel_in_half_of_the_bytes_and_are_saved_in_fp32() -> None:
    with torch.device("meta"):
        blocks = Decoder(LLAMA).blocks
    num_multiplied = sum(
        each.weight.numel() for block in blocks for each in block.modules() if isinstance(each, Linear)
    )
    (wide, *_), (narrow, *_) = (on_ranks(2, functools.partial(gathered, in_8_bits=each)) for each in (False, True))
    # forward and backward each gather the other rank's half
    assert wide[0] - narrow[0] == num_multiplied
    assert wide[1] and narrow[1]
    assert narrow[2] == pytest.approx(math.log(LLAMA.vocabulary)) == wide[2]


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
