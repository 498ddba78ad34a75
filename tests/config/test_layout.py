"""The layout identity: dp_replicate * dp_shard * cp * tp * pp = world size, micro * accumulation * dp = batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.config.layout import Layout, ResolvedLayout, check_layout, check_written, divisors, resolve_layout
from trainworks.errors import LayoutError

DEGREES = st.integers(1, 8)
OPTIONS = (
    "micro_batch",
    "zero",
    "sequence_parallel",
    "interleave",
    "zero_bubble",
    "recompute",
    "recompute_layers",
    "offload_activations",
    "offload_optimizer",
)


@st.composite
def legal_layouts(draw: st.DrawFn) -> tuple[ResolvedLayout, int]:
    """A resolved layout, and the global batch that it was resolved for."""
    axes = {name: draw(DEGREES) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp")}
    ep = draw(st.sampled_from(divisors(axes["dp_shard"] * axes["cp"] * axes["tp"])))
    world_size = axes["dp_replicate"] * axes["dp_shard"] * axes["cp"] * axes["tp"] * axes["pp"]
    per_rank = draw(st.integers(1, 64))
    batch = per_rank * axes["dp_replicate"] * axes["dp_shard"]
    micro_batch = draw(st.sampled_from(divisors(per_rank)))
    layout = Layout(**axes, ep=ep)
    return resolve_layout(layout, world_size=world_size, global_batch=batch, micro_batch=micro_batch), batch


def refusal(layout: Layout, *, world_size: int, global_batch: int = 64, micro_batch: int = 1) -> LayoutError:
    """The error of a layout that does not fit."""
    with pytest.raises(LayoutError) as refused:
        resolve_layout(layout, world_size=world_size, global_batch=global_batch, micro_batch=micro_batch)
    return refused.value


@given(legal_layouts())
def test_the_axes_multiply_to_the_world_size(case: tuple[ResolvedLayout, int]) -> None:
    layout, _ = case
    assert layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp * layout.pp == layout.world_size


@given(legal_layouts())
def test_micro_batch_times_accumulation_times_dp_is_the_global_batch(case: tuple[ResolvedLayout, int]) -> None:
    layout, global_batch = case
    assert layout.micro_batch * layout.grad_accum_steps * layout.dp == global_batch


@given(DEGREES, DEGREES, st.integers(1, 512))
def test_a_layout_of_another_world_size_is_refused(dp_shard: int, tp: int, world_size: int) -> None:
    layout = Layout(dp_shard=dp_shard, tp=tp)
    if dp_shard * tp != world_size:
        assert f"world size is {world_size}" in refusal(layout, world_size=world_size, global_batch=dp_shard).message


@given(st.integers(2, 8), DEGREES, st.integers(1, 512))
def test_following_the_hint_about_the_world_size_makes_the_layout_fit(shard: int, tp: int, factor: int) -> None:
    world_size = tp * factor
    if shard * tp == world_size:
        return
    hint = refusal(Layout(dp_shard=shard, tp=tp), world_size=world_size).hint
    assert hint == f"set `dp_shard: {factor}`"
    assert resolve_layout(Layout(dp_shard=factor, tp=tp), world_size=world_size, global_batch=factor, micro_batch=1)


@given(st.integers(1, 10**4))
def test_divisors_divide_and_come_in_pairs(number: int) -> None:
    found = divisors(number)
    assert found == sorted({d for small in found for d in (small, number // small)})


def test_the_error_names_every_factor_the_product_and_the_world_size() -> None:
    error = refusal(Layout(dp_shard=4, tp=8, pp=2), world_size=128)
    assert error.message == ("dp_replicate (1) * dp_shard (4) * cp (1) * tp (8) * pp (2) = 64, world size is 128")
    assert (error.field, error.hint) == ("dp_shard", "set `dp_shard: 8`")


def test_every_refusal_says_what_to_do(golden) -> None:
    refusals = [
        refusal(Layout(dp_shard=4, tp=8, pp=2), world_size=128),
        refusal(Layout(dp_replicate=3), world_size=8),
        refusal(Layout(dp_replicate=2, dp_shard=2), world_size=8),
        refusal(Layout(tp=8), world_size=4),
        refusal(Layout(tp=2, ep=3), world_size=2),
        refusal(Layout(dp_shard=3), world_size=3, global_batch=32),
        refusal(Layout(dp_shard=2), world_size=2, global_batch=24, micro_batch=5),
    ]
    blocks = [f"{error.render()}\nfield: {error.field}\n" for error in refusals]
    golden("layout_errors.txt", "\n".join(blocks))


def test_expert_parallelism_reuses_ranks() -> None:
    layout = resolve_layout(Layout(dp_shard=4, tp=2, ep=8), world_size=8, global_batch=4, micro_batch=1)
    assert layout.world_size == 8


@pytest.mark.parametrize("axis", ["dp_replicate", "dp_shard", "cp", "tp", "pp", "ep"])
@pytest.mark.parametrize("degree", [0, -1])
def test_a_degree_is_at_least_one(axis: str, degree: int) -> None:
    with pytest.raises(ValueError, match=f"{axis}\n.*greater than or equal to 1"):
        Layout.model_validate({axis: degree})


@pytest.mark.parametrize("micro_batch", [0, -1])
def test_a_micro_batch_is_at_least_one(micro_batch: int) -> None:
    with pytest.raises(ValueError, match="micro_batch"):
        Layout(micro_batch=micro_batch)


def test_a_layout_is_described_without_its_ones() -> None:
    layout = resolve_layout(Layout(dp_shard=2, tp=2), world_size=4, global_batch=8, micro_batch=2)
    assert layout.describe() == "dp_shard 2, zero 3, tp 2, sequence-parallel, micro-batch 2"


def test_one_process_is_described_as_such() -> None:
    layout = resolve_layout(Layout(), world_size=1, global_batch=8, micro_batch=8)
    assert layout.describe() == "micro-batch 8"


@given(legal_layouts())
def test_degrees_can_be_checked_before_the_micro_batch_is_known(case: tuple[ResolvedLayout, int]) -> None:
    layout, global_batch = case
    degrees = Layout(**{name: getattr(layout, name) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")})
    check_layout(degrees, world_size=layout.world_size, global_batch=global_batch)


@given(st.builds(Layout, dp_shard=DEGREES, tp=DEGREES, ep=DEGREES), st.integers(1, 64), st.integers(1, 64))
def test_a_check_refuses_what_resolving_refuses(layout: Layout, world_size: int, global_batch: int) -> None:
    def message(check: Callable[..., object], **more: int) -> str | None:
        try:
            check(layout, world_size=world_size, global_batch=global_batch, **more)
        except LayoutError as error:
            return error.render()
        return None

    assert message(check_layout) == message(resolve_layout, micro_batch=1)


def test_a_product_that_is_far_too_large_names_every_factor() -> None:
    with pytest.raises(LayoutError) as refused:
        check_layout(Layout(dp_replicate=128, tp=8, pp=8), world_size=1536, global_batch=128)
    assert refused.value.message == (
        "dp_replicate (128) * dp_shard (1) * cp (1) * tp (8) * pp (8) = 8192, world size is 1536"
    )
    assert (refused.value.field, refused.value.hint) == ("dp_replicate", "set `dp_replicate: 24`")


WRITTEN = st.dictionaries(st.sampled_from(["dp_replicate", "dp_shard", "cp", "tp", "pp"]), DEGREES)


@given(WRITTEN, st.integers(1, 512))
def test_a_written_layout_is_closed_where_its_degrees_are_the_world(degrees: dict[str, int], factor: int) -> None:
    world_size = math.prod(degrees.values()) * factor
    layout = Layout.model_validate(degrees)
    dp = layout.dp_replicate * layout.dp_shard
    if factor == 1:
        assert check_written(layout, world_size=world_size, global_batch=dp)
    elif not {"tp", "pp"} <= degrees.keys():
        assert not check_written(layout, world_size=world_size, global_batch=dp)


@pytest.mark.parametrize("data_parallel", ["dp_replicate", "dp_shard"])
def test_where_all_kinds_of_parallelism_are_written_they_have_to_multiply(data_parallel: str) -> None:
    layout = Layout.model_validate({data_parallel: 128, "tp": 8, "pp": 8})
    with pytest.raises(LayoutError) as refused:
        check_written(layout, world_size=1536, global_batch=1536)
    assert refused.value.message.endswith("= 8192, world size is 1536")
    assert {f"{name} (" in refused.value.message for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp")} == {True}
    assert (refused.value.field, refused.value.hint) == (data_parallel, f"set `{data_parallel}: 24`")
    with pytest.raises(LayoutError, match="= 64, world size is 1536"):
        check_written(Layout(dp_shard=1, tp=8, pp=8), world_size=1536, global_batch=1536)


def test_every_refusal_of_a_written_layout_says_what_to_do(golden) -> None:
    written: list[tuple[dict[str, object], int]] = [
        ({"dp_shard": 128, "tp": 8, "pp": 8}, 1536),
        ({"dp_shard": 3, "tp": 4}, 32),
        ({"tp": 5}, 32),
        ({"tp": 8, "pp": 8}, 32),
        ({"dp_replicate": 4, "zero": 1}, 32),
        ({"dp_shard": 5}, 40),
        ({"dp_shard": 32, "micro_batch": 3}, 32),
        ({"micro_batch": 3}, 32),
    ]
    blocks = []
    for layout, world_size in written:
        with pytest.raises(LayoutError) as refused:
            check_written(
                Layout.model_validate(layout), world_size=world_size, global_batch=1536 if world_size > 40 else 64
            )
        blocks.append(f"# {layout} on {world_size}\n\n{refused.value.render()}\nfield: {refused.value.field}\n")
    golden("written_layout_errors.txt", "\n".join(blocks))


@pytest.mark.parametrize("written", ["dp_shard", "dp_replicate"])
def test_a_batch_that_is_not_shared_evenly_blames_the_degree_that_is_written(written: str) -> None:
    layout = Layout.model_validate({written: 8})
    assert refusal(layout, world_size=8, global_batch=60).field == written


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_open_unless_it_is_written(option: str) -> None:
    assert getattr(Layout(), option) == "auto"


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_may_be_left_open_in_words(option: str) -> None:
    assert Layout.model_validate({option: "auto"}) == Layout()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("zero", 0), ("zero", 4), ("sequence_parallel", "some"), ("interleave", 0), ("zero_bubble", "zb-h1"),
        ("recompute", "half"), ("recompute", True), ("recompute_layers", 0),
        ("offload_activations", "cpu"), ("offload_optimizer", 2),
    ],
)  # fmt: skip
def test_an_option_has_its_values_and_no_others(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        Layout.model_validate({option: value})


def test_a_layout_with_every_option_survives_json() -> None:
    written = Layout(
        dp_shard=8, zero=1, tp=2, sequence_parallel=True, pp=2, interleave=4, zero_bubble=False, micro_batch=1,
        recompute="selective", recompute_layers=3, offload_activations=False, offload_optimizer=True,
    )  # fmt: skip
    assert Layout.model_validate_json(written.model_dump_json()) == written
