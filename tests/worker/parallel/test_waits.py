"""Whatever axis ranks exchange over: a rank that waits for a slow one says so, and the slow one does not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.worker.parallel.test_equivalence import GLOBAL_BATCH, MODELS, POSITIONS
from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.host import process
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.parallel.build import Parallel, Setup, distribute_decoder
from trainworks.worker.timing import Timeline

SLOW_S = 0.5
PATIENCE_S = 120.0
AXES = {
    "replicas": {"dp_replicate": 2},
    "shards": {"dp_shard": 2},
    "tensor": {"tp": 2},
    "tensor-without-sequence": {"tp": 2, "sequence_parallel": False},
    "context": {"cp": 2},
    "experts": {"dp_shard": 2, "ep": 2},
    "pipeline": {"pp": 2},
    "pipeline-interleaved": {"pp": 2, "interleave": 2},
}


def waited(layout: ResolvedLayout, slow: int) -> tuple[float, float]:
    """Seconds of one forward and backward, and what of them this rank waited, while one rank sleeps in a block."""
    device, timeline = torch.device("cpu"), Timeline(torch.device("cpu"))
    mesh = Mesh(layout, "cpu")
    setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=timeline)
    config = MODELS["mixtral" if layout.ep > 1 else "llama"]
    parallel = distribute_decoder(
        config, setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    )
    shape = (layout.grad_accum_steps, layout.micro_batch, POSITIONS // layout.cp)
    tokens = torch.randint(0, config.vocabulary, shape, generator=torch.manual_seed(1))
    parallel.gradients(tokens, tokens, scale=1.0)
    parallel.settle()
    pids = [0, 0]
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == slow:
        _slow_down(parallel, pids[1 - slow])
    dist.barrier()
    timeline.take_waits()
    begin = time.perf_counter()
    parallel.gradients(tokens, tokens, scale=1.0)
    total = time.perf_counter() - begin
    return total, sum(end - start for start, end in timeline.take_waits())  # type: ignore[operator, misc]


def _slow_down(parallel: Parallel, other: int) -> None:
    """The first block of this rank sleeps once, from when the other rank waits for it.

    On a busy machine that rank may begin long after this one, and would wait for less than the sleep, or for nothing.
    """
    part = parallel.parts[0]
    assert isinstance(part, Decoder)

    def sleep_once(*_: object) -> None:
        _await_idle(other)
        time.sleep(SLOW_S)
        hook.remove()

    hook = part.blocks[0].register_forward_pre_hook(sleep_once)


def _await_idle(pid: int) -> None:
    """Return once a process only waits: all of its threads sleep, and the first one does not work in between."""
    looks, worked, until = 0, "", time.monotonic() + PATIENCE_S
    while looks < 10 and time.monotonic() < until:
        time.sleep(0.02)
        before, worked = worked, Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()[0]
        states = {process.state(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()}
        looks = looks + 1 if states == {"S"} and worked == before else 0


@pytest.mark.parametrize("axis", AXES)
def test_who_waits_for_a_slow_rank_says_so(axis: str) -> None:
    layout = Layout.model_validate({"micro_batch": 2} | AXES[axis])
    resolved = resolve_layout(layout, world_size=2, global_batch=GLOBAL_BATCH, micro_batch=2)
    (slow_s, slow_waited_s), (fast_s, fast_waited_s) = on_ranks(2, waited, resolved, 0)
    assert SLOW_S * 0.8 < fast_waited_s < fast_s
    assert slow_waited_s < slow_s - SLOW_S
