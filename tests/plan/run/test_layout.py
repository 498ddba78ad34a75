"""Which layout is chosen where the run file leaves it open."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.plan.shapes import layout, shape, workload
from trainworks.config.layout import Layout, ResolvedLayout
from trainworks.errors import EnvironmentProblem, LayoutError
from trainworks.plan.run.layout import choose_layout
from trainworks.plan.run.memory import predict_memory

PLENTY = 10**12


def choose(world_size: int = 2, wanted: Layout | None = None, memory: int = PLENTY, batch: int = 32) -> ResolvedLayout:
    """For the small model."""
    return choose_layout(
        workload(global_batch=batch),
        shape(),
        wanted,
        world_size=world_size,
        memory_per_rank_bytes=memory,
        baseline_bytes=0,
    )


def needed(dp_shard: int, dp_replicate: int = 1, recompute: str = "none") -> int:
    """Memory of a rank that has 80 % of it for a micro-batch of 1, and a little more."""
    accumulated = 32 // (dp_shard * dp_replicate)
    ranks = layout(dp_shard, dp_replicate).model_copy(update={"recompute": recompute, "grad_accum_steps": accumulated})
    terms = predict_memory(shape(), ranks, sequence_length=128, precision="bf16", baseline_bytes=0)
    return round(terms.total_bytes / 0.8) + 10


def test_a_model_that_fits_is_replicated() -> None:
    assert (choose().dp_replicate, choose().dp_shard) == (2, 1)


def test_a_model_that_does_not_fit_is_sharded() -> None:
    chosen = choose(4, memory=needed(dp_shard=4))
    assert (chosen.dp_replicate, chosen.dp_shard) == (1, 4)


def test_what_does_not_fit_even_sharded_computes_activations_again() -> None:
    chosen = choose(4, memory=needed(dp_shard=4, recompute="full"))
    assert (chosen.dp_shard, chosen.recompute, chosen.micro_batch) == (4, "full", 1)


def test_what_does_not_fit_says_which_terms_take_most() -> None:
    with pytest.raises(EnvironmentProblem, match=r"usable; [\d.]+ .B are \w+.* and [\d.]+ .B are \w+"):
        choose(memory=10**6)


def test_what_does_not_fit_even_sharded_is_refused_with_both_figures() -> None:
    with pytest.raises(EnvironmentProblem, match=r"the model does not fit: [\d.]+ .B per rank at least, 800 kB usable"):
        choose(memory=10**6)


def test_a_wanted_layout_is_kept() -> None:
    chosen = choose(4, Layout(dp_replicate=2, dp_shard=2, micro_batch=4))
    assert (chosen.dp_replicate, chosen.dp_shard, chosen.micro_batch, chosen.grad_accum_steps) == (2, 2, 4, 2)


def test_a_wanted_layout_that_does_not_fit_is_not_exchanged_for_another() -> None:
    with pytest.raises(EnvironmentProblem, match="does not fit"):
        choose(4, Layout(dp_replicate=4), memory=needed(dp_shard=4))


@given(st.integers(1, 16), st.integers(1, 512))
def test_an_automatic_micro_batch_divides_what_a_rank_gets(world_size: int, batch: int) -> None:
    assume(batch % world_size == 0)
    chosen = choose(world_size, batch=batch)
    assert chosen.micro_batch * chosen.grad_accum_steps * world_size == batch


def test_an_automatic_micro_batch_is_the_largest_that_fits() -> None:
    assert (choose(1, memory=needed(1)).micro_batch, choose(1).micro_batch) == (1, 32)


def test_an_automatic_micro_batch_stops_at_8192_tokens() -> None:
    assert choose(1, batch=1024).micro_batch * 128 == 8192


@given(st.integers(1, 2 * 10**8))
def test_what_is_chosen_fits(memory: int) -> None:
    try:
        chosen = choose(memory=memory)
    except EnvironmentProblem:
        return
    terms = predict_memory(shape(), chosen, sequence_length=128, precision="bf16", baseline_bytes=0)
    assert terms.total_bytes <= 0.8 * memory


def test_a_batch_that_the_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"global_batch \(32\) is not a multiple"):
        choose(3)


@pytest.mark.parametrize("wanted", [{"dp_shard": 2}, {"tp": 2}, {"dp_replicate": 2, "offload_optimizer": True}])
def test_compressed_gradients_are_for_plain_replicas(wanted: dict[str, object]) -> None:
    with pytest.raises(LayoutError, match=r"gradient_compression \(bf16\) is for plain replicas"):
        choose(wanted=Layout.model_validate(wanted | {"gradient_compression": "bf16"}))
