"""Which stage holds what: blocks and parameters are neither lost nor counted twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.plan.families import CONFIGS
from tests.plan.jobs import known, layouts, tiny
from trainworks.plan.parameters import (
    dense_blocks,
    num_expert_layers,
    num_parameters,
    output_parameters,
    stage_blocks,
    stage_parameters,
)
from trainworks.plan.shapes.transformer import shape_of_hf_config

DECODERS = [name for name in CONFIGS if not name.startswith(("vit", "dinov2", "bert"))]


def blocks(layers: int, pp: int, interleave: int = 1) -> tuple[int, int]:
    """Of a middle stage and of the last."""
    middle, last = stage_blocks(layers, layouts(pp=pp, interleave=interleave))
    return int(middle[0]), int(last[0])


@given(per_chunk=st.integers(1, 12), pp=st.integers(1, 32), interleave=st.integers(1, 12))
def test_blocks_that_divide_evenly_are_divided_evenly(per_chunk: int, pp: int, interleave: int) -> None:
    each = per_chunk * interleave
    assert blocks(each * pp, pp, interleave) == (each, each)


@given(layers=st.integers(1, 200), pp=st.integers(1, 64))
def test_no_stage_holds_more_than_its_share_rounded_up(layers: int, pp: int) -> None:
    assume(pp <= layers)
    middle, last = blocks(layers, pp)
    assert last <= middle == -(-layers // pp)


@given(each=st.integers(2, 12), pp=st.integers(3, 64))
def test_with_embedding_and_logits_counted_the_ends_have_one_block_less(each: int, pp: int) -> None:
    assert blocks(each * pp - 2, pp) == (each, each - 1)


@pytest.mark.parametrize(
    ("layers", "pp", "interleave", "middle", "last"),
    [
        pytest.param(126, 16, 1, 8, 7, id="Llama 3 405B"),
        pytest.param(126, 16, 8, 8, 7, id="Llama 3 405B in 8 chunks of one"),
        pytest.param(70, 12, 1, 6, 5, id="BLOOM"),
        pytest.param(96, 8, 2, 12, 12, id="GPT-3"),
        pytest.param(61, 16, 1, 4, 3, id="uneven: the first stages round up, the last down"),
        pytest.param(10, 4, 1, 3, 2, id="counted with the ends"),
    ],
)
def test_known_models_are_cut_like_this(layers: int, pp: int, interleave: int, middle: int, last: int) -> None:
    assert blocks(layers, pp, interleave) == (middle, last)


@pytest.mark.parametrize("name", DECODERS)
def test_one_stage_holds_every_parameter(name: str) -> None:
    """But for the norm after the last block, which a tiny model notices."""
    shape = shape_of_hf_config(CONFIGS[name])
    matrices = 1.0 if output_parameters(shape) == 0 else 2.0
    held = stage_parameters(shape, layouts(), np.array([float(shape.layers)]), embeddings=matrices)
    assert float(held.total[0]) == pytest.approx(num_parameters(shape), rel=0.05)


@pytest.mark.parametrize(("name", "pp"), [("llama2-7b", 4), ("llama3-70b", 8), ("mixtral-8x7b", 8)])
def test_the_stages_together_hold_the_model(name: str, pp: int) -> None:
    shape = known(name)
    some = layouts(pp=pp)
    middle, last = stage_blocks(shape.layers, some)
    ends = stage_parameters(shape, some, middle).total + stage_parameters(shape, some, last).total
    between = (pp - 2) * stage_parameters(shape, some, middle, embeddings=0.0).total
    assert float((ends + between)[0]) == pytest.approx(shape.num_parameters, rel=1e-4)


@given(tp=st.sampled_from([1, 2, 4]), ep=st.sampled_from([1, 2, 4, 8]))
def test_tp_divides_what_is_no_expert_and_ep_what_is(tp: int, ep: int) -> None:
    shape = tiny("qwen3_moe")
    whole, part = (stage_parameters(shape, some, np.array([3.0])) for some in (layouts(), layouts(tp=tp, ep=ep, dp=8)))
    assert float(part.dense[0]) == pytest.approx(float(whole.dense[0]) / tp)
    assert float(part.experts[0]) == pytest.approx(float(whole.experts[0]) / ep)


def test_a_dense_model_has_no_experts() -> None:
    assert stage_parameters(tiny(), layouts(), np.array([3.0])).experts == 0


@given(pp=st.sampled_from([1, 2, 3, 4, 6, 12]), dense=st.integers(0, 12))
def test_dense_layers_come_first(pp: int, dense: int) -> None:
    shape = tiny("deepseek_v3").model_copy(update={"layers": 12, "dense_layers": dense})
    some = layouts(pp=pp)
    middle, last = stage_blocks(12, some)
    first_holds = float(dense_blocks(shape, some, middle, end=False)[0])
    last_holds = float(dense_blocks(shape, some, last, end=True)[0])
    assert first_holds == min(dense, 12 / pp)
    assert last_holds == (max(0, dense - 12 + 12 / pp) if pp > 1 else dense)
    assert num_expert_layers(shape) == 12 - dense


def test_a_dense_model_has_dense_blocks_only() -> None:
    assert dense_blocks(tiny(), layouts(pp=2), np.array([2.0]), end=True) == 2
