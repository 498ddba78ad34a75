"""The loss is a mean over all labels that count, however they are spread over micro-batches, ranks and positions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from tests.lanes import cases
from tests.worker.parallel.test_equivalence import LLAMA, POSITIONS
from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.worker.loss import IGNORED, loss_weights, weighted
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.optimizer import named_parameters
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.timing import Timeline

GLOBAL_BATCH = 16
LABELLED = [1, 0, 16, 3, 0, 0, 9, 2, 5, 16, 1, 1, 0, 7, 12, 4]
"""Positions of each sequence that have a label; one micro-batch of two has none at all."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas": {"dp_replicate": 2, "micro_batch": 1},
    "one rank, 8 micro-batches of 2": {"micro_batch": 2},
    "one rank, 16 micro-batches of 1": {"micro_batch": 1},
    "shards": {"dp_shard": 2, "micro_batch": 4},
    "replicas of shards": {"dp_replicate": 2, "dp_shard": 2, "micro_batch": 2},
    "tensor": {"tp": 2, "micro_batch": 2},
    "context": {"cp": 2, "micro_batch": 2},
    "pipeline": {"pp": 2, "micro_batch": 2},
    "interleaved pipeline": {"pp": 2, "interleave": 2, "micro_batch": 2},
    "zero-bubble pipeline": {"pp": 2, "zero_bubble": True, "micro_batch": 2},
    "pipeline of replicas": {"pp": 2, "dp_replicate": 2, "micro_batch": 2},
    "pipeline with context": {"pp": 2, "cp": 2, "micro_batch": 2},
    "context, tensor and shards": {"cp": 2, "tp": 2, "dp_shard": 2, "micro_batch": 2},
}


def a_batch() -> torch.Tensor:
    """Tokens [16, T + 1]."""
    return torch.randint(0, LLAMA.vocabulary, (GLOBAL_BATCH, POSITIONS + 1), generator=torch.manual_seed(7))


def gradients(layout: ResolvedLayout, weigh: bool) -> tuple[float, dict[str, np.ndarray]]:
    """Loss of this rank, and its gradients, whole."""
    device, mesh = torch.device("cpu"), Mesh(layout, "cpu")
    timeline = Timeline(device)
    setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=timeline)
    parallel = distribute_decoder(
        LLAMA, setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    )
    batch = a_batch()
    labels = batch[:, 1:].clone()
    for row, count in zip(labels, LABELLED, strict=True):
        row[: POSITIONS - count] = IGNORED
    stretch = slice(mesh.cp_rank * (POSITIONS // layout.cp), (mesh.cp_rank + 1) * (POSITIONS // layout.cp))
    own_x, own_labels = (
        each.view(layout.grad_accum_steps, layout.dp, layout.micro_batch, -1)[:, mesh.dp_rank, :, stretch]
        for each in (batch[:, :-1], labels)
    )
    counts = (own_labels != IGNORED).flatten(1).sum(1)
    weights = loss_weights(counts, timeline) if weigh else None
    loss = parallel.gradients(own_x, own_labels, scale=1.0 / layout.grad_accum_steps, weights=weights)
    whole = {name: each.grad for name, each in named_parameters(parallel.parts) if each.grad is not None}
    return loss.item(), {name: getattr(each, "full_tensor", lambda e=each: e)().numpy() for name, each in whole.items()}


def outcome(written: dict[str, Any], *, weigh: bool = True) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of a layout."""
    layout = Layout.model_validate(written)
    world_size = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp * layout.pp
    resolved = resolve_layout(
        layout, world_size=world_size, global_batch=GLOBAL_BATCH, micro_batch=int(layout.micro_batch)
    )
    ranks = on_ranks(world_size, gradients, resolved, weigh)
    loss = sum(loss for loss, _ in ranks) * resolved.pp / world_size
    return loss, {name: value for _, of_rank in ranks for name, value in of_rank.items()}


@functools.cache
def of_one_micro_batch() -> tuple[float, dict[str, np.ndarray]]:
    """What every layout is held against: the mean over all labels at once, with no weights at all."""
    return outcome({"micro_batch": GLOBAL_BATCH}, weigh=False)


AT_NIGHT = ("replicas of shards", "pipeline of replicas", "pipeline with context")
"""Of parts that the other layouts have."""


@pytest.mark.parametrize("name", cases(LAYOUTS, at_night=AT_NIGHT))
def test_loss_and_gradients_are_those_of_one_micro_batch(name: str) -> None:
    loss, expected = of_one_micro_batch()
    got_loss, got = outcome(LAYOUTS[name])
    assert got_loss == pytest.approx(loss, rel=1e-5)
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-3, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["one rank, 8 micro-batches of 2", "replicas", "context", "pipeline"])
def test_a_mean_of_means_is_another_loss(name: str) -> None:
    loss, _ = of_one_micro_batch()
    got, _ = outcome(LAYOUTS[name], weigh=False)
    assert got != pytest.approx(loss, rel=1e-2)


def equal_weights() -> list[float]:
    """Of three micro-batches of 7 items on each rank."""
    weights = loss_weights(torch.full((3,), 7), Timeline(torch.device("cpu")))
    assert weights is not None
    return weights.tolist()  # type: ignore[no-any-return]


def test_equal_counts_weigh_exactly_one() -> None:
    assert on_ranks(3, equal_weights) == [[1.0] * 3] * 3


def test_a_micro_batch_without_items_adds_nothing_to_loss_and_gradient() -> None:
    logits = torch.randn(4, 5, requires_grad=True)
    nothing = torch.nn.functional.cross_entropy(logits, torch.full((4,), IGNORED))
    assert nothing.isnan()
    loss = weighted(nothing, torch.tensor(0.0))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.tolist() == torch.zeros(4, 5).tolist()
