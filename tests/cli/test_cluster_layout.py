"""A written layout of a described cluster: read, written back, and carried over to other sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.config.layout import Layout
from trainworks.errors import UsageError
from trainworks.plan.cluster.layout import as_option, check_against, fixed_at, fixed_by, parse_layout, roomier_batch
from trainworks.plan.degrees import fixed_of, planned_layout, written_layout
from trainworks.plan.layouts import Layouts

EIGHT = {"dp": 8, "dp_shard": 8, "zero": 3, "tp": 1, "pp": 1, "cp": 1}

PLANNED = st.fixed_dictionaries(
    {
        "dp": st.sampled_from([1, 2, 8]), "tp": st.sampled_from([1, 4]), "pp": st.sampled_from([1, 2]),
        "cp": st.sampled_from([1, 2]), "zero": st.sampled_from([0, 1, 3]), "micro_batch": st.sampled_from([1, 2]),
        "recompute": st.sampled_from([0, 2]), "offload_optimizer": st.sampled_from([0, 1]),
        "gradient_compression": st.sampled_from([0, 1, 2]),
    }
)  # fmt: skip


@given(PLANNED)
def test_a_planned_layout_written_as_an_option_is_read_as_the_same(row: dict[str, int]) -> None:
    shards = row["dp"] if row["zero"] else 1
    zero = row["zero"] if row["dp"] * row["cp"] > 1 else 0
    layouts = Layouts.of(global_batch=64, **(row | {"zero": zero, "dp_shard": shards}))
    layout = written_layout(planned_layout(layouts, 0))
    read = check_against(parse_layout(as_option(layout)), world_size=int(layouts.world_size[0]), global_batch=64)
    assert read == {name: value for name, value in fixed_of(layout).items() if name in read}
    named = {"dp", "dp_shard", "zero", "tp", "pp", "cp", "micro_batch", "recompute"}
    assert named | ({"gradient_compression"} if row["gradient_compression"] else set()) <= read.keys()


def test_automatic_values_decide_nothing() -> None:
    assert fixed_by(Layout(micro_batch="auto", zero="auto")) == {}


@pytest.mark.parametrize(
    ("fixed", "world_size", "expected"),
    [
        ({}, 16, {}),
        ({"tp": 8, "recompute": 2}, 16, {"tp": 8, "recompute": 2}),
        ({"tp": 8, "pp": 4}, 16, None),
        (EIGHT, 16, EIGHT | {"dp": 16, "dp_shard": 16}),
        (EIGHT, 1, EIGHT | {"dp": 1, "dp_shard": 1, "zero": 0}),
        ({"dp": 16, "dp_shard": 8, "zero": 3}, 24, {"dp_shard": 8, "zero": 3}),
        ({"dp": 16, "dp_shard": 8, "zero": 3}, 12, None),
        ({"dp": 16, "dp_shard": 1, "zero": 0}, 32, {"dp_shard": 1, "zero": 0}),
        ({"dp": 1, "dp_shard": 1, "zero": 0, "tp": 8}, 16, {"tp": 8}),
    ],
)
def test_data_parallelism_follows_the_number_of_accelerators(
    fixed: dict[str, int], world_size: int, expected: dict[str, int] | None
) -> None:
    assert fixed_at(fixed, world_size) == expected


@given(st.integers(1, 2048), st.integers(1, 4096))
def test_a_roomier_batch_is_larger_and_needs_no_other(world_size: int, global_batch: int) -> None:
    batch = roomier_batch(world_size, global_batch)
    assert batch is None or batch > global_batch


@pytest.mark.parametrize(
    ("world_size", "batch", "roomier"),
    [(24, 64, 72), (32, 60, 64), (1536, 1024, 1152), (768, 1024, 1152), (8, 64, None)],
)
def test_the_next_batch_that_is_shared_well(world_size: int, batch: int, roomier: int | None) -> None:
    assert roomier_batch(world_size, batch) == roomier


def test_a_degree_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="gives `tp` twice") as raised:
        parse_layout("tp=8,pp=2,tp=4")
    assert raised.value.hint == "keep one `tp=`"


@pytest.mark.parametrize("text", ["tp=99999999", "tp=" + "9" * 5000])
def test_a_degree_above_its_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_layout(text)
