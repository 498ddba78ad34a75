"""Kernels on one accelerator: laws of the roofline, of tiles and of precisions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainworks.catalog.catalog import accelerator
from trainworks.catalog.facts import Precision
from trainworks.catalog.rows import read_rows
from trainworks.errors import UsageError
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.compute import DeviceRates, device_rates, product_s, traffic_s

A100 = device_rates(accelerator("A100-SXM-80GB"), "bf16")
H100 = accelerator("H100-SXM")
DIMENSIONS = st.integers(1, 2000).map(lambda eights: 8 * eights)
PLANNABLE = [row.name for row in read_rows("accelerators").values() if row.unplannable is None]


def seconds(m: float, n: float, k: float, *, batch: float = 1.0, device: DeviceRates = A100) -> float:
    return float(product_s(m, n, k, device, batch))


@given(m=st.integers(1, 20000), n=st.integers(1, 20000), k=st.integers(1, 20000))
def test_a_product_is_never_faster_than_the_roofline(m: int, n: int, k: int) -> None:
    computing = 2 * m * n * k / A100.product_flops_per_s
    moving = A100.element_bytes * (m * k + k * n + m * n) / A100.memory_bytes_per_s
    assert seconds(m, n, k) >= max(computing, moving) * (1 - 1e-12)


@given(m=DIMENSIONS, n=DIMENSIONS, k=DIMENSIONS)
def test_a_product_with_more_rows_columns_or_depth_takes_no_less(m: int, n: int, k: int) -> None:
    least = seconds(m, n, k)
    assert least <= min(seconds(m + 8, n, k), seconds(m, n + 8, k), seconds(m, n, k + 8))


@given(m=DIMENSIONS, n=DIMENSIONS, k=DIMENSIONS)
def test_doubling_a_dimension_of_a_product_that_is_not_split_at_most_doubles_the_time(m: int, n: int, k: int) -> None:
    assume(not is_split(m, n))
    assert doubled_s(m, n, k) <= 2 * seconds(m, n, k) * (1 + 1e-12)


@given(m=DIMENSIONS, n=DIMENSIONS, k=DIMENSIONS, batch=st.integers(1, 64))
def test_a_batch_of_products_that_are_not_split_takes_at_most_its_products_one_by_one(
    m: int, n: int, k: int, batch: int
) -> None:
    assume(not is_split(m, n))
    assert seconds(m, n, k, batch=batch) <= batch * seconds(m, n, k) * (1 + 1e-12)


# Three parts of a product may fill all processors, and two products of one part each only two thirds of them: parts are
# whole. Such a product loses as large a share as a last wave that is not full.


@given(m=DIMENSIONS, n=DIMENSIONS, k=DIMENSIONS)
def test_doubling_a_dimension_costs_at_most_an_idle_wave_more_than_twice_the_time(m: int, n: int, k: int) -> None:
    assert doubled_s(m, n, k) <= 2 * (1 + COEFFICIENTS.wave_loss) * seconds(m, n, k)


@given(m=DIMENSIONS, n=DIMENSIONS, k=DIMENSIONS, batch=st.integers(1, 64))
def test_a_batch_costs_at_most_an_idle_wave_more_than_its_products_one_by_one(
    m: int, n: int, k: int, batch: int
) -> None:
    assert seconds(m, n, k, batch=batch) <= batch * (1 + COEFFICIENTS.wave_loss) * seconds(m, n, k)


def doubled_s(m: int, n: int, k: int) -> float:
    """The slowest of three products, each with one dimension twice as large."""
    return max(seconds(2 * m, n, k), seconds(m, 2 * n, k), seconds(m, n, 2 * k))


def is_split(m: int, n: int) -> bool:
    """True if two parts of each of its tiles find processors, so that a deep product is split."""
    return 2 * math.ceil(m / 256) * math.ceil(n / 128) <= A100.multiprocessors


def test_a_large_product_comes_near_the_reachable_rate() -> None:
    assert seconds(2**15, 2**15, 2**15) == pytest.approx(2 * 2**45 / A100.product_flops_per_s, rel=0.05)


def test_one_row_more_than_a_full_wave_costs_more_than_its_share() -> None:
    wave = A100.multiprocessors * 128
    assert seconds(wave + 1, 128, 8192) / seconds(wave, 128, 8192) > 1.005 * (wave + 1) / wave


def test_rows_that_fill_no_tile_cost_like_the_tile() -> None:
    assert seconds(65, 4096, 4096) == pytest.approx(seconds(128, 4096, 4096), rel=0.05)


def test_a_thin_product_waits_for_the_memory() -> None:
    units = replace(A100, product_flops_per_s=1e3 * A100.product_flops_per_s)
    moving = 2 * 16384**2 / A100.memory_bytes_per_s
    assert seconds(1, 16384, 16384) >= moving
    assert seconds(1, 16384, 16384, device=units) == pytest.approx(moving, rel=1e-3)


@pytest.mark.parametrize("dims", [(4095, 4096, 4096), (4096, 4095, 4096)])
def test_rows_and_columns_are_rounded_up_to_tiles(dims: tuple[int, int, int]) -> None:
    assert seconds(*dims) == seconds(4096, 4096, 4096)


@pytest.mark.parametrize("part", ["H100-SXM", "B200", "MI300X"])
def test_narrower_numbers_are_faster(part: str) -> None:
    device = accelerator(part)
    widths = [name for name in ("fp32", "tf32", "bf16", "fp8", "fp4") if name in device.peak_flops_per_s]
    times = [seconds(8192, 8192, 8192, device=device_rates(device, precision)) for precision in widths]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("part", PLANNABLE)
def test_every_accelerator_computes_in_exactly_the_precisions_that_it_has(part: str) -> None:
    device = accelerator(part)
    for precision in get_args(Precision):
        if precision in device.peak_flops_per_s:
            peak = device.peak_flops_per_s[precision]
            clocks = max(1.0, (device.matmul_flops_per_s or 0) / device.peak_flops_per_s.get("bf16", peak))
            assert 0 < device_rates(device, precision).product_flops_per_s <= peak * clocks
        else:
            with pytest.raises(UsageError, match=f"has no {precision} matrix units"):
                device_rates(device, precision)


def test_the_refusal_of_a_precision_lists_those_that_there_are() -> None:
    with pytest.raises(UsageError) as refused:
        device_rates(accelerator("V100-SXM-32GB"), "fp8")
    assert refused.value.hint == f"it has {', '.join(sorted(accelerator('V100-SXM-32GB').peak_flops_per_s))}"


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_attention_is_computed_in_16_bits_at_least(precision: str) -> None:
    wide = device_rates(H100, "bf16").attention_flops_per_s
    assert device_rates(H100, precision).attention_flops_per_s == wide


def test_attention_in_fp32_is_no_faster_than_fp32() -> None:
    device = device_rates(H100, "fp32")
    assert device.attention_flops_per_s <= device.product_flops_per_s


@given(st.floats(0.2, 1.0))
def test_less_power_never_makes_it_faster(share: float) -> None:
    assert H100.power_w
    capped = H100.model_copy(update={"power_w": share * H100.power_w})
    assert device_rates(capped, "bf16").product_flops_per_s <= device_rates(H100, "bf16").product_flops_per_s


def test_a_card_of_half_the_power_keeps_more_than_half_of_the_rate() -> None:
    """PyTorch's products of 8,192 reach 493 TFLOP/s on a H100 PCIe, of 10,240 then 472."""
    card = device_rates(accelerator("H100-PCIE-80GB"), "bf16").product_flops_per_s
    linear = accelerator("H100-PCIE-80GB").model_copy(update={"chip_power_w": None})
    assert device_rates(linear, "bf16").product_flops_per_s < 0.8 * card
    assert 400e12 < card < 472e12


def test_power_was_no_limit_before_2022() -> None:
    device = accelerator("A100-SXM-80GB")
    capped = device.model_copy(update={"power_w": 1.0})
    assert device_rates(capped, "bf16") == device_rates(device, "bf16")


def test_a_fraction_of_a_published_rate_is_preferred_to_a_fraction_of_the_peak() -> None:
    slow = H100.model_copy(update={"matmul_flops_per_s": 1e12, "power_w": None})
    assert device_rates(slow, "bf16").product_flops_per_s == pytest.approx(1e12 * COEFFICIENTS.gemm_share)


def test_an_accelerator_without_a_published_rate_reaches_the_usual_share() -> None:
    unknown = H100.model_copy(update={"matmul_flops_per_s": None, "power_w": None})
    expected = unknown.peak_flops_per_s["bf16"] * COEFFICIENTS.default_peak_share * COEFFICIENTS.gemm_share
    assert device_rates(unknown, "bf16").product_flops_per_s == pytest.approx(expected)


def test_full_precision_numbers_take_four_bytes() -> None:
    sizes = {name: device_rates(H100, name).element_bytes for name in ("fp32", "tf32", "fp16", "bf16", "fp8")}
    assert sizes == {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}


@given(st.floats(1, 1e12))
def test_traffic_never_beats_the_memory(num_bytes: float) -> None:
    bound = num_bytes / accelerator("A100-SXM-80GB").memory_bytes_per_s
    assert float(traffic_s(np.array([num_bytes]), A100)[0]) >= bound


def test_a_better_machine_does_the_same_product_sooner() -> None:
    better = replace(A100, product_flops_per_s=2 * A100.product_flops_per_s)
    assert seconds(8192, 8192, 8192, device=better) == pytest.approx(seconds(8192, 8192, 8192) / 2)
