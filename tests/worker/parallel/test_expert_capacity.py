"""Experts with room for a known number of tokens: what fits is exact, and what does not is left out and counted."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.worker.parallel.test_equivalence import GLOBAL_BATCH, MODELS, POSITIONS
from tests.worker.parallel.test_evaluation import layout_of
from tests.worker.ranks import on_ranks
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.parallel.model_parallel import PaddedDispatch
from trainworks.worker.timing import Timeline

COUNTS = ([5, 1, 1, 1], [2, 2, 2, 2])
"""Rows that each of two ranks has for each of four experts: rank 0 sends six of eight to itself."""


def scaled(x_RD: Tensor, counts: Tensor) -> Tensor:
    """Experts that multiply by 1, 2, ...; rows of no expert are left as no memory should be read."""
    rank = dist.get_rank()
    factors = torch.arange(1.0, 1 + len(counts)) + len(counts) * rank
    by_row = factors.repeat_interleave(counts).unsqueeze(1)
    rest = torch.full((len(x_RD) - len(by_row), x_RD.shape[1]), torch.nan)
    return torch.cat([x_RD[: len(by_row)] * by_row, rest])


def dispatched(capacity: float) -> tuple[list[float], list[float], float, int]:
    """First values of outputs and of gradients, and what was left out."""
    dispatch = PaddedDispatch(dist.group.WORLD, capacity)
    counts = torch.tensor(COUNTS[dist.get_rank()])
    x = torch.arange(1.0, 9.0).unsqueeze(1).repeat(1, 3).requires_grad_()
    out = dispatch(scaled, x, counts)
    out.sum().backward()
    assert x.grad is not None
    return out[:, 0].tolist(), x.grad[:, 0].tolist(), dispatch.dropped.item(), dispatch.routed


def test_rows_that_find_room_are_exact_and_the_others_are_zero_and_counted() -> None:
    skewed, even = on_ranks(2, dispatched, 1.0)
    # of 6 rows to rank 0 four have room: 5 * 4 // 6 of its first expert, and 1 * 4 // 6 of its second
    assert skewed[1] == [1, 1, 1, 0, 0, 0, 3, 4]
    assert skewed[0] == [1, 2, 3, 0, 0, 0, 21, 32]
    assert skewed[2:] == (3, 8)
    assert even[1] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert even[2:] == (0, 8)


@pytest.mark.parametrize("capacity", [1.5, 2.0, 7.0])
def test_with_room_for_every_row_nothing_is_left_out(capacity: float) -> None:
    for rank, (out, gradient, dropped, routed) in enumerate(on_ranks(2, dispatched, capacity)):
        factors = torch.arange(1.0, 5.0).repeat_interleave(torch.tensor(COUNTS[rank]))
        assert gradient == factors.tolist()
        assert out == (factors * torch.arange(1.0, 9.0)).tolist()
        assert (dropped, routed) == (0, 8)


def of_a_model(capacity: float | None) -> tuple[float | None, float | None, float, float]:
    """Share that was left out in a step and in the next call, its loss, and the loss of an evaluation."""
    layout = layout_of(2, micro_batch=GLOBAL_BATCH // 2, dp_shard=2, ep=2, expert_capacity=capacity)
    device = torch.device("cpu")
    setup = Setup(mesh=Mesh(layout, "cpu"), device=device, precision="fp32", compiled=False, timeline=Timeline(device))
    parallel = distribute_decoder(
        MODELS["mixtral"], setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    )
    tokens = torch.randint(0, 64, (1, GLOBAL_BATCH // 2, POSITIONS + 1), generator=torch.manual_seed(7))
    loss = parallel.gradients(tokens[..., :-1], tokens[..., 1:], scale=1.0).item()
    overflows = [parallel.take_figures().get("overflow") for _ in range(2)]
    shares = [None if share is None else share.item() for share in overflows]
    return *shares, loss, parallel.evaluate(tokens[..., :-1], tokens[..., 1:])[0, 0].item()


def test_a_step_counts_its_overflow_and_an_evaluation_leaves_nothing_out() -> None:
    (exact, tight) = (on_ranks(2, of_a_model, capacity)[0] for capacity in (None, 1.0))
    assert exact[:2] == (None, None)
    assert tight[0] is not None and 0 < tight[0] < 0.5
    assert tight[1] == 0
    assert tight[2] != pytest.approx(exact[2], rel=1e-6)
    assert tight[3] == pytest.approx(exact[3], rel=1e-6)
