"""What cannot cut a model, and what PyTorch would compute wrongly in silence, is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.model import Model
from trainworks.config.run_file import Workload
from trainworks.errors import LayoutError
from trainworks.plan.run.trainable import check_trainable
from trainworks.plan.shapes.transformer import shape_of_hf_config, shape_of_model
from trainworks.record.model_shape import ModelShape

MODEL = {"layers": 4, "hidden": 64, "heads": 8, "kv_heads": 4}
WORKLOAD: dict[str, Any] = {
    "task": "causal-lm",
    "model": MODEL,
    "data": {"source": "text", "sequence_length": 64, "vocabulary": 512},
    "global_batch": 32,
    "train_for": "3 steps",
}
MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def check(written: dict[str, Any], *, experts: bool = False, micro_batch: int = 2, **changes: Any) -> None:
    """Check a layout of 16 sequences per step and rank, two at a time."""
    layout = Layout.model_validate(written)
    world_size = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp * layout.pp
    workload = Workload.model_validate(WORKLOAD | changes)
    resolved = resolve_layout(layout, world_size=world_size, global_batch=32, micro_batch=micro_batch)
    check_trainable(resolved, workload, shape_of_hf_config(MIXTRAL) if experts else shape(workload))


def shape(workload: Workload) -> ModelShape:
    """Of the dimensions in the run file."""
    vocabulary = workload.data.vocabulary or 0
    return shape_of_model(workload.model, vocabulary=vocabulary, sequence_length=workload.data.sequence_length)


@pytest.mark.parametrize(
    "written",
    [
        {"tp": 4},
        {"cp": 8},
        {"tp": 2, "cp": 4},
        {"pp": 4},
        {"pp": 2, "interleave": 2},
        {"pp": 2, "stage_layers": (1, 3)},
        {"pp": 2, "dp_shard": 2, "zero": 2, "zero_bubble": True},
        {"pp": 2, "zero_bubble": True, "zero": 3},
        {"dp_shard": 2, "tp": 2, "pp": 2},
        {"tp": 2, "sequence_parallel": False},
        {"dp_shard": 2, "recompute": "selective", "offload_optimizer": True},
    ],
    ids=str,
)
def test_a_layout_that_the_worker_can_train_is_accepted(written: dict[str, Any]) -> None:
    check(written)


@pytest.mark.parametrize("written", [{"dp_shard": 4, "ep": 4}, {"tp": 2, "dp_shard": 2, "ep": 4}], ids=str)
def test_experts_are_spread(written: dict[str, Any]) -> None:
    check(written, experts=True)


REFUSED = {
    r"tp \(3\) does not divide the 8 heads": ({"tp": 3}, "tp", "set `tp` to one of 1, 2, 4, 8"),
    r"cp \(16\) does not divide the 8 heads": ({"cp": 16}, "cp", "set `cp` to one of 1, 2, 4, 8"),
    r"8 pipeline stages are more than the 4 layers": ({"pp": 8}, "pp", "at most 4 stages"),
    r"stage_layers names 2 stages with 5 layers; there are 2 with 4": (
        {"pp": 2, "stage_layers": (2, 3)},
        "stage_layers",
        "leave it out for an even cut",
    ),
    r"zero: 3 takes the weights away": (
        {"pp": 2, "dp_shard": 2, "zero_bubble": True, "zero": 3},
        "zero",
        "set `zero: 2`",
    ),
    r"once per half": ({"pp": 2, "zero_bubble": True, "recompute": "full"}, "recompute", "set `recompute: none`"),
    r"ep \(2\) spreads experts, and this model has none": ({"dp_shard": 2, "ep": 2}, "ep", "leave it out"),
    r"expert_capacity sizes the exchange between ranks of ep, and ep is 1": (
        {"expert_capacity": 1.5},
        "expert_capacity",
        "set `ep`, or leave it out",
    ),
    r"needs `precision: fp8` and shards with `zero: 3`": (
        {"dp_shard": 2, "fp8_all_gather": True},
        "fp8_all_gather",
        None,
    ),
    r"zero_bubble is a pipeline schedule, and pp is 1": ({"zero_bubble": True}, "zero_bubble", None),
    r"interleave cuts pipeline stages into chunks, and pp is 1": ({"interleave": 2}, "interleave", None),
    r"stage_layers are those of pipeline stages": ({"stage_layers": (4,)}, "stage_layers", None),
    r"sequence_parallel splits over tp, and tp is 1": ({"sequence_parallel": True}, "sequence_parallel", None),
    r"recompute_layers counts layers that recompute": ({"recompute_layers": 2}, "recompute_layers", None),
    r"offload_activations moves what": (
        {"recompute": "selective", "offload_activations": True},
        "offload_activations",
        None,
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_layout_that_cannot_be_trained_is_refused_with_the_reason(words: str) -> None:
    written, field, hint = REFUSED[words]
    with pytest.raises(LayoutError, match=words) as refused:
        check(written)
    assert refused.value.field == field
    assert hint is None or refused.value.hint == hint


def test_a_pipeline_needs_as_many_micro_batches_as_stages() -> None:
    with pytest.raises(LayoutError, match=r"needs at least 4 micro-batches per step, there are 2"):
        check({"pp": 4}, micro_batch=16)


def test_an_interleaved_pipeline_needs_a_multiple_of_its_stages() -> None:
    with pytest.raises(LayoutError, match=r"needs a multiple of 3 micro-batches per step, there are 16"):
        check({"pp": 3, "interleave": 2}, model=MODEL | {"layers": 6})


def test_more_ranks_than_key_heads_share_them() -> None:
    check({"tp": 8})


def test_key_heads_that_ranks_can_neither_cut_nor_share_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"tp \(4\) does not divide the 6 key/value heads"):
        check({"tp": 4}, model=MODEL | {"heads": 12, "kv_heads": 6, "hidden": 96})


def test_a_vocabulary_is_cut_unevenly() -> None:
    check({"tp": 4}, data=WORKLOAD["data"] | {"vocabulary": 513})


def test_shards_of_an_uneven_vocabulary_have_whole_columns() -> None:
    with pytest.raises(LayoutError, match=r"16 shards do not divide the 72 columns of a vocabulary of 513") as refused:
        check({"tp": 4, "dp_shard": 16}, data=WORKLOAD["data"] | {"vocabulary": 513}, model=MODEL | {"hidden": 72})
    assert refused.value.field == "dp_shard"


def test_positions_that_tp_cannot_share_name_the_next_length() -> None:
    with pytest.raises(LayoutError, match=r"tp \(4\) does not divide the 33 positions") as refused:
        check({"tp": 4, "cp": 2}, data=WORKLOAD["data"] | {"sequence_length": 66})
    assert refused.value.hint == "set `data.sequence_length: 72`"


@pytest.mark.parametrize("what", ["experts", "dropout"])
def test_what_would_part_on_copies_of_positions_needs_positions_of_its_own(what: str) -> None:
    model = Model.model_validate(MODEL | {"kv_heads": None, "architecture": "gpt2", "dropout": 0.1})
    with pytest.raises(LayoutError, match=f"{what} over tp need sequence_parallel"):
        check(
            {"tp": 2, "sequence_parallel": False},
            experts=what == "experts",
            **({} if what == "experts" else {"model": model.model_dump(exclude_none=True)}),
        )


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"ep \(8\) does not divide the 4 experts"):
        check({"dp_shard": 8, "ep": 8}, experts=True)


def test_compiled_blocks_do_not_go_with_zero_bubble() -> None:
    with pytest.raises(LayoutError, match="cannot split the backward of compiled blocks"):
        check({"pp": 2, "zero_bubble": True}, compile=True)
