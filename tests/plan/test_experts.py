"""Models with experts: how far tokens travel, what is recomputed, and the published run of DeepSeek-V3."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trainworks
from tests.plan.jobs import H100S, job, known, layouts
from trainworks.catalog.catalog import accelerator
from trainworks.config.run_file import RunFile
from trainworks.plan.activations import activation_bytes, recomputes_modules
from trainworks.plan.blocks import block_times, permuted_copies
from trainworks.plan.collectives import LinkRates, exchange_s, parts_reached
from trainworks.plan.compute import device_rates
from trainworks.plan.layouts import Recompute
from trainworks.plan.parameters import resized
from trainworks.plan.software import Software, worker_software

DEEPSEEK, MIXTRAL, QWEN = known("deepseek-v3"), known("mixtral-8x7b"), known("qwen3-30b-a3b")
LINKS = LinkRates(
    ranks_per_node=8,
    domain=8,
    scale_up_bytes_per_s=400e9,
    in_switch_gain=1.0,
    shares=(),
    start_s=0.0,
    hop_s=0.0,
    node_bytes_per_s=400e9,
    scale_out_latency_s=0.0,
    message_gain=1.0,
    in_network=False,
    pipelining=0.7,
    pipelining_inside=0.4,
    pipelining_in_switch=0.7,
)
"""Eight ranks on 400 GB/s each, and 50 GB/s each between nodes, without latencies."""


def reached(shape: object, parts: int) -> float:
    return float(parts_reached(shape, np.array([float(parts)]))[0])  # type: ignore[arg-type]


def exchanged(ranks: int, *, by_domain: bool) -> float:
    one = np.array([1e9])
    return float(exchange_s(QWEN, one, np.array([float(ranks)]), LINKS, by_domain=by_domain)[0])


def test_two_experts_of_a_token_are_on_less_than_two_of_four_ranks() -> None:
    assert reached(MIXTRAL, 4) == pytest.approx(4 * (1 - 0.75**2))


def test_node_limited_routing_leaves_four_of_eight_nodes_open() -> None:
    assert reached(DEEPSEEK, 8) == pytest.approx(4 * (1 - 0.75**8))


def test_a_domain_with_two_groups_is_open_where_either_is_chosen() -> None:
    open_nodes = 4 * (1 - 0.5**2)
    assert reached(DEEPSEEK, 4) == pytest.approx(open_nodes * (1 - (1 - 1 / open_nodes) ** 8))


def test_one_rank_has_all_experts() -> None:
    assert reached(DEEPSEEK, 1) == 1


def test_a_copy_per_expert_fills_the_interfaces_with_all_copies() -> None:
    # half of 8 GB leaves each rank of two nodes, at 50 GB/s
    assert exchanged(16, by_domain=False) == pytest.approx(8e9 / 2 / 50e9)


def test_a_copy_per_domain_leaves_it_once() -> None:
    assert exchanged(16, by_domain=True) == pytest.approx(1e9 * 2 * (1 - 0.5**8) / 2 / 50e9)


def test_inside_a_node_a_rank_gets_one_copy() -> None:
    assert exchanged(8, by_domain=True) == pytest.approx(1e9 * 8 * (1 - (7 / 8) ** 8) * 7 / 8 / 400e9)


def test_one_rank_exchanges_nothing() -> None:
    assert exchanged(1, by_domain=True) == exchanged(1, by_domain=False) == 0


def test_tokens_are_sorted_twice_where_each_expert_gets_a_copy() -> None:
    once, per_expert = Software(), Software(by_domain=False)
    degrees = layouts(ep=np.array([1.0, 8.0]), dp=8)
    arrived = 8 * (1 - (7 / 8) ** 8)
    assert permuted_copies(QWEN, degrees, once).tolist() == pytest.approx([2 * (8 + 1), 2 * (8 + arrived)])
    assert permuted_copies(QWEN, degrees, per_expert).tolist() == pytest.approx([2 * (8 + 1), 48])


@pytest.mark.parametrize(
    ("name", "by_domain"),
    [
        ("Megatron-LM 2026", True),
        ("NeMo Automodel 2025", True),
        ("Megatron-LM 2024", False),
        ("torchtitan 2026", False),
        ("Trainworks", False),
    ],
)
def test_a_program_forwards_inside_a_domain_since_deep_ep(name: str, by_domain: bool) -> None:
    assert Software.of(name).by_domain is by_domain


def test_modules_keep_latents_and_8_bit_inputs_of_the_experts() -> None:
    one = {"sequence_length": 1, "software": Software(), "recompute": Recompute.SELECTIVE}
    per_token = float(activation_bytes(DEEPSEEK, layouts(), precision="fp8", **one)[0])  # type: ignore[arg-type]
    norms, latents = 2 * 2 * 7168, 2 * (1536 + 512 + 128 * 128)
    with_experts, dense = 8 * (2 * 2048 + 7168) + 2 * 2048, 2 * 18432
    assert per_token == pytest.approx(norms + latents + (58 * with_experts + 3 * dense) / 61)


def test_modules_cost_a_small_part_of_the_forward() -> None:
    device, once = device_rates(accelerator("H100-SXM"), "bf16"), layouts(recompute=Recompute.SELECTIVE)
    times = block_times(DEEPSEEK, once, sequence_length=4096, device=device, software=Software())
    # 23 million weights lift latents: at least 2 FLOPs each for 4,096 tokens, of at most 989 TFLOP/s
    lifts = 1536 * 128 * 192 + 512 * 128 * 256
    assert 2 * lifts * 4096 / 989e12 < times.recomputed_s[0] < 0.25 * times.forward_s[0]


def test_only_models_with_experts_and_fused_attention_recompute_modules() -> None:
    assert recomputes_modules(QWEN, Software())
    assert not recomputes_modules(known("llama2-7b"), Software())
    assert not recomputes_modules(QWEN, Software(attention="unfused"))


def test_experts_of_megatron_are_launched_one_by_one() -> None:
    device = device_rates(accelerator("H100-SXM"), "bf16")
    slow = replace(device, coefficients=replace(device.coefficients, launch_s=1.0))
    both = layouts(dp=8, ep=np.array([1.0, 8.0]))
    forward = block_times(QWEN, both, sequence_length=64, device=slow, software=Software()).forward_s
    # 128 experts on one rank, 16 on each of eight: two products of each
    assert forward[0] - forward[1] == pytest.approx(2 * (128 - 16), rel=1e-3)
    other = replace(Software(), framework="other")
    same = block_times(QWEN, both, sequence_length=64, device=slow, software=other).forward_s
    assert same[0] == pytest.approx(same[1], rel=1e-3)


def test_a_layer_for_a_further_token_takes_a_block_and_an_output() -> None:
    plain = DEEPSEEK.model_copy(update={"further_tokens": 0})
    with_it, without = (job(shape, H100S).step_times(layouts(dp=128, ep=8)) for shape in (DEEPSEEK, plain))
    assert DEEPSEEK.further_tokens == 1
    assert with_it.forward_s / without.forward_s == pytest.approx(62 / 61)
    embedding_s = 2 * without.head_s - with_it.head_s
    assert 0 < embedding_s < 0.1 * without.head_s


def test_a_cut_model_predicts_no_further_tokens() -> None:
    assert resized(DEEPSEEK, layers=4).further_tokens == 0
    assert resized(DEEPSEEK, layers=61).further_tokens == 1


def test_the_published_run_of_deepseek_v3_is_planned_within_a_fifth() -> None:
    # 2.664 million hours of H800 for 14.8 trillion tokens (arXiv:2412.19437, table 1)
    run = RunFile.model_validate(
        {
            "name": "deepseek-v3",
            "workload": {
                "task": "causal-lm",
                "model": {"preset": "deepseek-v3"},
                "data": {"sequence_length": 4096},
                "precision": "fp8",
                "global_batch": 15360,
                "train_for": "14.8T tokens",
                "compile": True,
            },
            "cluster": "256 nodes of 8x H800-SXM-80GB",
            "layout": {"pp": 16, "ep": 64, "tp": 1},
        }
    )
    plan = trainworks.plan(run, on="256 nodes of 8x H800-SXM-80GB", without_learning=True)
    hours = plan.steps * plan.best[0].step_time_s * 2048 / 3600
    assert hours == pytest.approx(2.664e6, rel=0.2)
    assert plan.best[0].layout.recompute == "selective"


def test_room_for_tokens_is_planned_in_memory_and_time() -> None:
    """A mean expert layer keeps and sends what fills its room up, and no more than all tokens that could come."""
    of = job(MIXTRAL, H100S, software=worker_software("cuda"))

    def rows(**capacity: float) -> tuple[float, float]:
        chosen = layouts(dp=8, dp_shard=8, zero=3, ep=8, micro_batch=1, **capacity)
        kept = activation_bytes(MIXTRAL, chosen, sequence_length=2048, precision="bf16", software=of.software)
        return float(kept[0]), float(of.step_times(chosen).ep_s[0])

    exact, room, twice, most, beyond = (
        rows(**({"expert_capacity": each} if each else {})) for each in (0, 100, 200, 800, 1600)
    )
    assert exact == room
    assert twice[0] > room[0] and 1.5 * room[1] < twice[1] < 2 * room[1]
    assert twice[1] < most[1] and most == beyond
