"""Which layout is chosen where the run file leaves it open: the fastest that fits, of everything that is trainable."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fakes import processes
from tests.plan.shapes import calibration, shape, workload
from trainworks.config.layout import Layout, ModelSupport, ResolvedLayout, divisors, resolve_layout
from trainworks.errors import EnvironmentProblem, LayoutError
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.degrees import degrees_of, layouts_of, planned_layout, resolved_of
from trainworks.plan.layouts import Layouts
from trainworks.plan.run.layout import choose_layouts, largest_micro_batch
from trainworks.plan.run.pricing import RunJob, run_job
from trainworks.plan.run.trainable import check_trainable, trainable
from trainworks.plan.search import limit_bytes
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.resolved import PlannedLayout

PLENTY = 10**12


def job(
    world_size: int = 2, memory: int = PLENTY, batch: int = 32, model: ModelShape | None = None, **rates: Any
) -> RunJob:
    """The small model, or another, on ranks without any noise; a rank alone takes no memory."""
    measured = calibration(
        num_ranks=world_size, **({"baseline_bytes": 0, "all_reduce_latency_s": 1e-4, "op_overhead_s": 1e-5} | rates)
    )
    work = workload(global_batch=batch, precision="fp32")
    ranks = processes(1, world_size)
    return run_job(work, model or shape(), ranks, calibration=measured, memory_per_rank_bytes=memory)


def choose(world_size: int = 2, wanted: Layout | None = None, **of_job: Any) -> tuple[PlannedLayout, ...]:
    """Best first."""
    return choose_layouts(job(world_size, **of_job), wanted)


def chosen(world_size: int = 2, wanted: Layout | None = None, **of_job: Any) -> ResolvedLayout:
    """The best."""
    return choose(world_size, wanted, **of_job)[0].layout


def needed(world_size: int, written: Layout, micro_batch: int = 1, model: ModelShape | None = None) -> int:
    """Memory of a rank of which this layout takes all that a run may use."""
    layout = resolve_layout(written, world_size=world_size, global_batch=32, micro_batch=micro_batch)
    one = job(world_size, model=model)
    return round(float(one.memories(layouts_of([layout])).total_bytes[0]) / (limit_bytes(one) / PLENTY)) + 10


@pytest.mark.parametrize("written", [None, Layout(tp=2)])
def test_a_module_over_tp_is_planned_without_sequence_parallelism_and_with_its_memory(written: Layout | None) -> None:
    module = ModelSupport(model_type="gemma", uncut=dict.fromkeys(("cp", "ep"), "the worker trains it as it is"))
    ours, theirs = (
        [one for one in choose_layouts(each, written, keep=60) if one.layout.tp == 2]
        for each in (job(), replace(job(), support=module))
    )
    assert [{one.layout.sequence_parallel for one in each} for each in (ours, theirs)] == [{True}, {False}]
    assert theirs[0].memory_bytes > ours[0].memory_bytes


def test_a_model_that_fits_is_replicated() -> None:
    assert (chosen().dp_replicate, chosen().dp_shard) == (2, 1)


def test_a_model_whose_states_do_not_fit_twice_is_cut_or_sharded() -> None:
    deep = shape(layers=24, hidden=1024, heads=16)
    layout = chosen(4, memory=needed(4, Layout(dp_shard=4), model=deep), model=deep)
    assert layout.dp_replicate < 4
    assert layout.dp_shard * layout.tp * layout.pp > 1


def test_what_does_not_fit_says_which_terms_take_most() -> None:
    with pytest.raises(EnvironmentProblem, match=r"does not fit: [\d.]+ .B per rank at least, [\d.]+ kB usable; "):
        choose(memory=10**6)
    with pytest.raises(EnvironmentProblem, match=r"usable; [\d.]+ .B are \w+.* and [\d.]+ .B are \w+"):
        largest_micro_batch(job(memory=10**6), None)


def test_a_wanted_layout_is_kept() -> None:
    layout = chosen(4, Layout(dp_replicate=2, dp_shard=2, micro_batch=4))
    assert (layout.dp_replicate, layout.dp_shard, layout.micro_batch, layout.grad_accum_steps) == (2, 2, 4, 2)


@pytest.mark.parametrize(
    "written",
    [
        {"pp": 2, "dp_shard": 2, "interleave": 2, "stage_layers": (1, 1, 1, 1)},
        {"cp": 2, "tp": 2, "sequence_parallel": False},
        {"dp_replicate": 4, "gradient_compression": "powersgd", "powersgd_rank": 2},
        {"pp": 4, "zero_bubble": True},
        {"dp_shard": 4, "zero": 1, "recompute": "selective"},
        {"dp_replicate": 4, "offload_optimizer": True},
    ],
    ids=str,
)
def test_a_written_layout_keeps_every_word(written: dict[str, Any]) -> None:
    layout = chosen(4, Layout.model_validate(written))
    assert {name: getattr(layout, name) for name in written} == written


def test_a_wanted_layout_that_does_not_fit_is_not_exchanged_for_another() -> None:
    with pytest.raises(EnvironmentProblem, match="does not fit"):
        choose(4, Layout(dp_replicate=4), memory=round(0.9 * needed(4, Layout(dp_replicate=4, recompute="full"))))


def test_what_fits_only_without_activations_computes_them_again() -> None:
    wanted = Layout(dp_shard=4, micro_batch=8)
    memory = needed(4, wanted.model_copy(update={"recompute": "full"}), micro_batch=8)
    assert chosen(4, wanted, memory=memory).recompute == "full"


@given(st.integers(1, 16), st.integers(1, 512))
def test_an_automatic_micro_batch_divides_what_a_rank_gets(world_size: int, batch: int) -> None:
    assume(batch % world_size == 0)
    layout = chosen(world_size, batch=batch)
    assert layout.micro_batch * layout.grad_accum_steps * layout.dp == batch


def test_an_automatic_micro_batch_stops_at_8192_tokens() -> None:
    assert largest_micro_batch(job(1, batch=1024), None) * 128 == 8192
    assert all(one.layout.micro_batch * 128 <= 8192 for one in choose(1, batch=1024))


def test_a_written_micro_batch_may_be_larger() -> None:
    assert chosen(1, Layout(micro_batch=512), batch=1024).micro_batch == 512


@given(st.integers(1, 2 * 10**8))
def test_what_is_chosen_fits(memory: int) -> None:
    try:
        found = choose(memory=memory)
    except EnvironmentProblem:
        return
    assert max(one.memory_bytes for one in found) <= limit_bytes(job(memory=memory))


def test_a_batch_that_the_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"global_batch \(32\) is not a multiple"):
        choose(7)


@pytest.mark.parametrize("wanted", [{"dp_shard": 2}, {"tp": 2}, {"dp_replicate": 2, "offload_optimizer": True}])
def test_compressed_gradients_are_for_plain_replicas(wanted: dict[str, object]) -> None:
    with pytest.raises(LayoutError, match=r"gradient_compression \(bf16\) is for plain replicas"):
        choose(wanted=Layout.model_validate(wanted | {"gradient_compression": "bf16"}))


def every_layout(world_size: int, batch: int) -> list[ResolvedLayout]:
    """All that the rules of the ranks and the batch allow, as a person could write them."""
    found = []
    axes = ("dp_replicate", "dp_shard", "cp", "tp", "pp")
    for degrees in product(divisors(world_size), repeat=len(axes)):
        for recompute, chunks, bubble in product(("none", "full"), (1, 2), (False, True)):
            written = Layout(
                **dict(zip(axes, degrees, strict=True)), recompute=recompute, interleave=chunks, zero_bubble=bubble
            )
            for size in divisors(batch):
                try:
                    layout = resolve_layout(written, world_size=world_size, global_batch=batch, micro_batch=size)
                    check_trainable(layout, workload(global_batch=batch), shape())
                except LayoutError:
                    continue
                found.append(layout)
    return found


def test_nothing_trainable_is_faster_than_what_is_chosen() -> None:
    """By the planner's own times, with a fifth for the plainer one (`preferred_s`)."""
    one = job(4, batch=8)
    times = one.step_times(layouts_of(every_layout(4, 8))).total_s
    assert choose(4, batch=8)[0].step_s <= 1.05 * float(times.min())


def test_what_is_searched_is_trainable() -> None:
    for world_size in (1, 2, 4, 8):
        for found in choose(world_size):
            check_trainable(found.layout, workload(), shape())


def test_a_row_of_a_search_is_a_layout_of_the_worker_and_back() -> None:
    for layout in every_layout(4, 8):
        rows = Layouts.of(global_batch=8, **degrees_of(layout))
        assert degrees_of(resolved_of(planned_layout(rows, 0), None)) == degrees_of(layout)


def test_memory_outside_of_the_tensors_is_that_of_the_device() -> None:
    """A process with CUDA has gigabytes on the host; on the device the driver's context counts."""
    ranks = Processes(nodes=1, processes_per_node=2, threads_per_process=1, device="cuda")
    measured = calibration(device="cuda", num_ranks=2, baseline_bytes=9 * 10**9)
    on_device = run_job(workload(), shape(), ranks, calibration=measured)
    on_cpu = run_job(workload(), shape(), processes(1, 2), calibration=calibration(baseline_bytes=9 * 10**9))
    assert on_device.baseline_bytes == COEFFICIENTS.context_bytes
    assert on_cpu.baseline_bytes == 9 * 10**9


def test_rules_refuse_arrays_as_they_refuse_a_layout() -> None:
    layouts = every_layout(4, 8)
    assert trainable(layouts_of(layouts), workload(global_batch=8), shape()).all()
