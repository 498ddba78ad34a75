"""Any model on any data trains under any layout as a plain loop trains it, where the product does not refuse it.

So does a run that continues from its checkpoint.

`TRAINWORKS_LAYOUT_SEEDS=1000` draws more cases, `TRAINWORKS_LAYOUT_SEEDS=17:18` one of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.lanes import amount
from tests.worker.parallel.plain_loop import plain_loop
from tests.worker.parallel.random_layouts import STEPS, Case, draw
from tests.worker.ranks import on_ranks
from trainworks.config.recovery import Guard
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.worker.checkpoint.checkpointer import Checkpointer
from trainworks.worker.determinism import seed_step
from trainworks.worker.loop import warm_up
from trainworks.worker.loss import loss_weights
from trainworks.worker.mesh import Mesh
from trainworks.worker.optimizer import StepOptimizer, named_parameters
from trainworks.worker.parallel.build import Setup
from trainworks.worker.tasks.causal_lm import CausalLanguageModeling
from trainworks.worker.timing import Timeline

_LIMIT_S = 60.0
"""Until ranks that wait for each other have failed."""
_OF_EVERY_KIND = (0, 5, 10, 13, 16, 17, 20, 21, 22, 107, 155)
"""Seeds that together draw every axis of a layout, every kind of recomputation, data and adapter, and dense models,
models of experts and modules of `transformers`, on as few ranks as that takes."""
_AT_NIGHT = str(amount(test=0, test_all=0, nightly=400))
_FIRST, _, _END = os.environ.get("TRAINWORKS_LAYOUT_SEEDS", _AT_NIGHT).rpartition(":")
_SEEDS = range(int(_FIRST or 0), int(_END)) or _OF_EVERY_KIND


def train(case: Case, folder: Path) -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    """Losses of this rank, gradient norms, and the first values of adapters by layer.

    The last step is made twice: after the one before it, and after loading the checkpoint of the one before it.
    """
    device, layout = torch.device("cpu"), case.layout
    mesh, timeline = Mesh(layout, "cpu", case.shape), Timeline(device)
    marked = "labels" in case.batches
    task = CausalLanguageModeling(case.workload, case.shape, mesh, marked=marked, packed=case.is_packed)
    setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=timeline)
    parallel = task.build(setup)
    warm_up(parallel, task, timeline, device)
    own = case.workload.optimizer
    optimizer = StepOptimizer(
        parallel.parts, mesh, own, num_steps=STEPS, precision="fp32", device=device, guard=Guard()
    )
    template = {"attempt": 1, "layout": layout, "data_fingerprint": "of-random-numbers"}
    checkpointer = Checkpointer(RunDir(folder), mesh.checkpoint_group, keep=2, template=template)
    adapters = {
        name.removesuffix(".lora_A.weight").removeprefix("model.").removeprefix("model."): _whole(parameter)
        for name, parameter in named_parameters(parallel.parts)
        if name.endswith(".lora_A.weight")
    }
    shape = (layout.grad_accum_steps, layout.dp, layout.micro_batch)

    def train_step(step: int) -> tuple[float, float]:
        rows = {name: torch.from_numpy(values[step]) for name, values in case.batches.items()}
        batch = {name: values.unflatten(0, shape)[:, mesh.dp_rank] for name, values in rows.items()}
        seed_step(case.workload.seed, step=step + 1, rank=dist.get_rank())
        scale = optimizer.loss_scale.per_micro_batch(layout.grad_accum_steps)
        x, labels = task.split(batch)
        loss = parallel.gradients(x, labels, scale=scale, weights=loss_weights(task.num_items(batch), timeline))
        checkpointer.await_copy()
        return loss.item(), optimizer.step(step, loss).item()

    curve = [train_step(step) for step in range(STEPS - 1)]
    checkpointer.save(STEPS - 1, parallel.parts, optimizer, samples_consumed=0)
    curve.append(train_step(STEPS - 1))
    checkpointer.allow_completion()
    checkpointer.wait()
    assert checkpointer.load_newest(parallel.parts, optimizer) is not None
    curve.append(train_step(STEPS - 1))
    return [loss for loss, _ in curve], [norm for _, norm in curve], adapters


def _whole(parameter: torch.Tensor) -> np.ndarray:
    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach().numpy().copy()


@pytest.mark.parametrize("seed", _SEEDS)
def test_ranks_train_as_a_plain_loop_does(seed: int, tmp_path: Path) -> None:
    case, refused = draw(seed, tmp_path / "model")
    assert all(error.hint for error in refused), refused
    ranks = _trained(case, create_run_dir(tmp_path, "run").path)
    losses = [sum(step) * case.layout.pp / len(ranks) for step in zip(*(each[0] for each in ranks), strict=True)]
    adapters = {name: first for each in ranks for name, first in each[2].items()}
    expected_losses, expected_norms = ([*curve, curve[-1]] for curve in plain_loop(case, adapters))
    assert losses == pytest.approx(expected_losses, rel=2e-5), case.describe()
    for _, norms, _ in ranks:
        assert norms == pytest.approx(expected_norms, rel=1e-4), case.describe()


def _trained(case: Case, folder: Path) -> list[tuple[list[float], list[float], dict[str, np.ndarray]]]:
    try:
        return on_ranks(case.layout.world_size, train, case, folder, limit_s=_LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"{case.describe()}\n{error}") from None
