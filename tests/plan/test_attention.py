"""Attention kernels: what the planner makes of their published tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.facts import AttentionKernel
from trainworks.plan.compute import attention_shares, kernel_rates

KERNELS = load_catalog().kernels
FUSED = ("flash-2", "flash-3", "flash-4", "cudnn")
GENERATIONS = ("Volta", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA3", "")


@pytest.mark.parametrize("name", KERNELS)
def test_published_rates_of_long_sequences_are_met_within_a_tenth(name: str) -> None:
    row = KERNELS[name]
    part = load_catalog().accelerators[row.accelerator]
    rates = kernel_rates(row.kernel, part.architecture or "", part.name)  # type: ignore[arg-type]
    for table, causal, backward in _tables(row):
        for length, rate in table.items():
            share = attention_shares(rates, row.head_dim, length, causal=causal)[backward]
            if length >= 4096:
                assert share * part.peak_flops_per_s["bf16"] == pytest.approx(rate, rel=0.13), (length, causal)


def _tables(row: AttentionKernel) -> list[tuple[dict[int, float], bool, bool]]:
    return [
        (row.forward_flops_per_s, False, False),
        (row.backward_flops_per_s, False, True),
        (row.causal_forward_flops_per_s, True, False),
        (row.causal_backward_flops_per_s, True, True),
    ]


@given(
    kernel=st.sampled_from(FUSED),
    generation=st.sampled_from(GENERATIONS),
    head_dim=st.integers(16, 256),
    length=st.integers(1024, 1 << 20),
    causal=st.booleans(),
)
def test_shares_are_below_one_and_grow_with_length_and_head_size(
    kernel: str, generation: str, head_dim: int, length: int, causal: bool
) -> None:
    rates = kernel_rates(kernel, generation)  # type: ignore[arg-type]
    here = attention_shares(rates, head_dim, length, causal=causal)
    longer = attention_shares(rates, head_dim, 2 * length, causal=causal)
    wider = attention_shares(rates, head_dim + 16, length, causal=causal)
    for share, with_length, with_head in zip(here, longer, wider, strict=True):
        assert 0 < share <= min(with_length, with_head) * (1 + 1e-12) < 1


@pytest.mark.parametrize(
    ("generation", "order"), [("Hopper", ("flash-2", "cudnn")), ("Blackwell", ("flash-2", "cudnn"))]
)
def test_kernels_for_a_generation_beat_those_of_the_one_before(generation: str, order: tuple[str, str]) -> None:
    old, new = (attention_shares(kernel_rates(k, generation), 128, 8192, causal=True) for k in order)  # type: ignore[arg-type]
    assert old < new


def test_an_accelerator_without_a_table_has_the_share_of_its_generation() -> None:
    rates = [kernel_rates("cudnn", "Blackwell", name) for name in ("B200-180GB", "GB300-288GB", "GB200-186GB")]
    assert rates[0] != rates[1] == rates[2]


def test_a_kernel_without_a_table_runs_as_flash_attention_2() -> None:
    assert kernel_rates("flash-3", "Ampere") == kernel_rates("flash-2", "Ampere")
    assert kernel_rates("cudnn", "Volta") == kernel_rates("flash-2", "Ampere")
