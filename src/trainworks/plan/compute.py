"""Time of the kernels of one block on one accelerator, forward and backward.

Symbols: M tokens of a micro-batch on this rank (b T / cp), h hidden, H heads, K key/value heads, d head dimension,
f feed-forward, V vocabulary, t tensor-parallel degree, e bytes of an activation.

A product [m, k] x [k, n] is cut into tiles that the multiprocessors work off in waves:

    tiles  = batch * ceil(m / tm) * ceil(n / tn)
    waves  = tiles / P, of which the idle part of the last wave is lost by `wave_loss`
    T      = waves * P * 2 tm tn (k + depth_half) / rate, not below the time its bytes take
             (fewer tiles than P are split along k, as far as 1024 remain of it)

A kernel of the attention has the share of the peak that its published tables show (`trainworks catalog list kernels`).
A table of FLOP/s r by sequence length T becomes two numbers, by least squares of the relative errors of

    1 / r(T) = (1 + h / T) / R

with the rate R of long sequences and the length h at half of it: tiles fill and drain, and a mask cuts those on the
diagonal. R / peak in 16 bits holds for the accelerator that was measured, and for others of its generation that have no
table.

Element-wise kernels take their bytes over the memory's rate. A block takes at least the host's time to launch its
kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from trainworks.catalog.catalog import accelerator as catalogued
from trainworks.catalog.catalog import attention_kernels
from trainworks.catalog.facts import Accelerator, AttentionKernel
from trainworks.config.software import Attention, Fp8Recipe
from trainworks.errors import UsageError
from trainworks.plan.activations import element_bytes
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.layouts import Array, Values

_TILE_ROWS, _TILE_COLUMNS = 256, 128
"""Source: the most efficient tiles of cuBLAS; NVIDIA, Matrix Multiplication Background User's Guide, section 2.3."""
_SHORTEST_SPLIT = 1024
"""Inner dimension that a part of a product keeps, where few tiles are split along it to fill the processors, as in the
gradient of a convolution's weights. Assumed."""
_ROWWISE_SHARE = 0.77
"""Rate of 8-bit products with scales by rows and their casts, over that of one scale per tensor. Source: 6,424 for
7,186 tokens/s of an 8B model on 8 H100 (pytorch/torchtitan at 7a04053). With scales by blocks 134 published runs are as
fast as with one per tensor."""
_GENERATIONS = ("Hopper", "Blackwell", "CDNA")


class _Curve(NamedTuple):
    share: float
    half: float

    def at(self, length: float) -> float:
        return self.share * length / (length + self.half)


class _Direction(NamedTuple):
    full: _Curve
    causal: _Curve


class HeadRates(NamedTuple):
    """Shares of the peak that a kernel reaches with heads of one size, by sequence length."""

    head_dim: int
    forward: _Direction
    backward: _Direction


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Reachable rates of one accelerator under one precision."""

    product_flops_per_s: float
    """Rate of products with weight matrices, in the run's precision."""
    attention_flops_per_s: float
    """Rate that the shares of an attention kernel are of; never below 16 bits."""
    memory_bytes_per_s: float
    multiprocessors: int
    precision: str
    element_bytes: int
    coefficients: Coefficients
    measured_products: tuple[tuple[float, float], ...] = ()
    """FLOPs and FLOP/s of products that were measured, smallest first; they replace the tiles."""
    measured_attention_flops_per_s: float | None = None
    """Attention forward and backward, all pairs of tokens counted: it replaces the rate above."""
    attention: tuple[HeadRates, ...] = ()
    """Shares of the attention kernel by head size."""
    casts: bool = False
    """Whether kernels cast the inputs of products to 8 or 4 bits; units without more speed in those do it inside."""
    is_queued: bool = True
    """Whether kernels wait in a queue that the host fills ahead of the device; on a CPU the host is the device."""

    def attention_rates(self, head_dim: float, length: float, *, causal: bool) -> tuple[float, float]:
        """FLOP/s of the attention kernel forward and backward, of the pairs of tokens that the mask leaves."""
        forward, backward = attention_shares(self.attention, head_dim, length, causal=causal)
        return forward * self.attention_flops_per_s, backward * self.attention_flops_per_s


def device_rates(
    accelerator: Accelerator,
    precision: str,
    coefficients: Coefficients = COEFFICIENTS,
    attention: Attention = "cudnn",
    fp8_recipe: Fp8Recipe = "tensorwise",
) -> DeviceRates:
    """Rates that products and kernels reach on an accelerator.

    Args:
        accelerator: the device.
        precision: of the products with weights.
        coefficients: fitted shares.
        attention: the kernel of the attention.
        fp8_recipe: what shares a scale in 8-bit products.

    Raises:
        UsageError: the accelerator has no matrix units for the precision; the message lists those it has.
    """
    peaks = accelerator.peak_flops_per_s
    if precision not in peaks:
        raise UsageError(
            f"{accelerator.name} has no {precision} matrix units", hint=f"it has {', '.join(sorted(peaks))}"
        )
    wide = "bf16" if "bf16" in peaks else "fp16" if "fp16" in peaks else "fp32"
    share = coefficients.amd_peak_share if accelerator.vendor == "AMD" else coefficients.default_peak_share
    if accelerator.matmul_flops_per_s is not None:
        published = accelerator.matmul_flops_per_s / peaks[wide]  # type: ignore[index]
        share = min(share, published) if precision in ("fp32", "tf32") else published
    sustained = share * coefficients.gemm_share * (coefficients.amd_share if accelerator.vendor == "AMD" else 1.0)
    bits = {"fp8": 8, "fp4": 4}.get(precision, 16)
    rate = sustained * peaks[precision]  # type: ignore[index]
    if bits < 16:
        rate = sustained * peaks[wide] * (rate / sustained / peaks[wide]) ** coefficients.narrow_share  # type: ignore[index]
    rate = _limit_by_power(rate, accelerator, bits, coefficients)
    rate *= _ROWWISE_SHARE if precision == "fp8" and fp8_recipe == "rowwise" else 1.0
    peak = rate if precision in ("fp32", "tf32") else peaks[wide]  # type: ignore[index]
    return DeviceRates(
        product_flops_per_s=rate,
        attention_flops_per_s=peak * coefficients.attention_share,
        attention=kernel_rates(attention, accelerator.architecture or "", accelerator.name.partition(" at ")[0]),
        memory_bytes_per_s=accelerator.memory_bytes_per_s * coefficients.memory_share,
        multiprocessors=accelerator.multiprocessors or 1,
        precision=precision,
        element_bytes=element_bytes(precision),
        coefficients=coefficients,
        casts=bits < 16 and peaks[precision] > peaks[wide],  # type: ignore[index]
    )


def _limit_by_power(rate: float, accelerator: Accelerator, bits: int, coefficients: Coefficients) -> float:
    """The rate that the board's power can feed, W / (joules per FLOP), where that is the lower one.

    Parts made in 4 nm and 5 nm class processes (from 2022 on) lower their clocks in long runs of large products; before
    that the matrix units were the limit. A chip that is fed less than it can take lowers its voltage with its clocks,
    and the energy of a FLOP falls with it: W becomes sqrt(W W_chip). Energy falls with the width of the operands, but
    not to its square.
    """
    if accelerator.power_w is None or accelerator.launched < 2022:
        return rate
    joules = coefficients.joules_per_flop * (bits / 16) ** coefficients.narrow_energy
    most_w = accelerator.chip_power_w or accelerator.rated_power_w or accelerator.power_w
    fed = math.sqrt(accelerator.power_w * most_w) / joules
    return float((rate**-8 + fed**-8) ** -0.125)


class Product(NamedTuple):
    """`batch` matrix products of these dimensions."""

    rows: Values
    columns: Values
    depth: Values
    batch: Values = 1.0
    share: float = 1.0
    """Share of the rate that one product of these dimensions reaches."""


def product_s(m: Values, n: Values, k: Values, device: DeviceRates, batch: Values = 1.0) -> Array:
    """Seconds of `batch` products [m, k] x [k, n]; see the head of this module."""
    if device.measured_products:
        return _measured_product_s(2.0 * batch * m * n * k, device)
    coefficients = device.coefficients
    tiles = batch * np.ceil(m / _TILE_ROWS) * np.ceil(n / _TILE_COLUMNS)
    splits = np.minimum(np.maximum(np.floor(device.multiprocessors / tiles), 1.0), np.maximum(k // _SHORTEST_SPLIT, 1))
    waves = tiles * splits / device.multiprocessors
    waves = waves + coefficients.wave_loss * (np.ceil(waves) - waves)
    depth = k / splits + coefficients.depth_half
    flops = waves * device.multiprocessors * 2.0 * _TILE_ROWS * _TILE_COLUMNS * depth
    traffic_bytes = device.element_bytes * batch * (m * k + k * n + m * n)
    seconds: Array = np.maximum(flops / device.product_flops_per_s, traffic_bytes / device.memory_bytes_per_s)
    return seconds


def products_s(products: Sequence[Product], device: DeviceRates) -> tuple[Array, Array]:
    """Seconds of all products forward, and backward: the gradients of their inputs and of their weights."""
    dims = np.empty((4, len(products), np.size(products[0].rows)))
    for at, product in enumerate(products):
        for dim, value in zip(dims, product[:4], strict=True):
            dim[at] = value
    m, n, k, batch = dims
    share = np.array([product.share for product in products])[:, np.newaxis]
    forward, of_inputs, of_weights = (
        seconds / share
        for seconds in product_s(np.stack([m, m, k]), np.stack([n, k, n]), np.stack([k, n, m]), device, batch)
    )
    return forward.sum(axis=0), (of_inputs + of_weights).sum(axis=0)


def _measured_product_s(flops: Values, device: DeviceRates) -> Array:
    """Seconds at the measured rate, linear in the logarithm of the FLOPs between two measured products.

    All are as much slower as the largest, whose rate `product_flops_per_s` has after learning.
    """
    sizes, rates = zip(*device.measured_products, strict=True)
    slowdown = rates[-1] / device.product_flops_per_s
    seconds: Array = slowdown * flops / np.interp(np.log(flops), np.log(sizes), rates)
    return seconds


def traffic_s(num_bytes: Array, device: DeviceRates) -> Array:
    """Seconds to move bytes through the accelerator's memory in element-wise kernels."""
    return num_bytes / device.memory_bytes_per_s


def with_launches(kernels_s: Array, num_kernels: Values, device: DeviceRates) -> Array:
    """The slower of the device, with the gaps between its kernels, and of the host that launches them; near each other
    they do not overlap perfectly: (x^8 + y^8)^(1/8). Their sum where the host is the device.
    """
    if not device.is_queued:
        return kernels_s + num_kernels * device.coefficients.launch_s
    device_s = kernels_s + num_kernels * device.coefficients.gap_s
    host_s = num_kernels * device.coefficients.launch_s
    return np.sqrt(np.sqrt(np.sqrt(device_s**8 + host_s**8)))


@cache
def kernel_rates(kernel: Attention, architecture: str, name: str = "") -> tuple[HeadRates, ...]:
    """Tables of a kernel on an accelerator, narrowest heads first.

    Those of the accelerator itself, else of its generation. A kernel without a table for the generation is taken for
    FlashAttention-2 there, and a generation without any for Ampere.
    """
    generation = _generation(architecture)
    choices = ((kernel, name), (kernel, generation), ("flash-2", generation), ("flash-2", "Ampere"))
    tables = _tables()
    return next(tables[choice] for choice in choices if choice in tables)


def attention_shares(
    rates: tuple[HeadRates, ...], head_dim: float, length: float, *, causal: bool
) -> tuple[float, float]:
    """Shares of the 16-bit peak forward and backward, of the pairs of tokens that the mask leaves.

    Between two head sizes interpolated; heads beyond all tables have the rate of the nearest.
    """
    sizes = [rate.head_dim for rate in rates]

    def share(directions: list[_Direction]) -> float:
        curves = [direction.causal if causal else direction.full for direction in directions]
        return float(np.interp(head_dim, sizes, [curve.at(length) for curve in curves]))

    return share([rate.forward for rate in rates]), share([rate.backward for rate in rates])


@cache
def _tables() -> dict[tuple[str, str], tuple[HeadRates, ...]]:
    """Rates by kernel and accelerator; the first accelerator of a generation stands for the generation too."""
    found: dict[tuple[str, str], tuple[HeadRates, ...]] = {}
    for row in attention_kernels().values():
        rates = (*found.get((row.kernel, row.accelerator), ()), _head_rates(row, catalogued(row.accelerator)))
        found[row.kernel, row.accelerator] = tuple(sorted(rates, key=lambda rate: rate.head_dim))
    for (kernel, name), rates in list(found.items()):
        found.setdefault((kernel, _generation(catalogued(name).architecture or "")), rates)
    return found


def _generation(architecture: str) -> str:
    """`CDNA` for CDNA3, `Ampere` for what no table knows."""
    return next((name for name in _GENERATIONS if architecture.startswith(name)), "Ampere")


def _head_rates(row: AttentionKernel, measured: Accelerator) -> HeadRates:
    """The curves of a row; backward under a mask loses what forward loses, where nothing else was published."""
    forward = row.forward_flops_per_s or row.causal_forward_flops_per_s
    backward = row.backward_flops_per_s or row.causal_backward_flops_per_s
    masked = row.causal_forward_flops_per_s or forward
    masked_backward = row.causal_backward_flops_per_s or {
        length: rate * masked[length] / forward[length] for length, rate in backward.items() if length in masked
    }
    peak = measured.peak_flops_per_s["bf16"]
    return HeadRates(
        row.head_dim,
        _Direction(_curve(forward, peak), _curve(masked, peak)),
        _Direction(_curve(backward, peak), _curve(masked_backward, peak)),
    )


def _curve(rates: Mapping[int, float], peak: float) -> _Curve:
    lengths, shares = np.array(list(rates), dtype=float), np.array(list(rates.values())) / peak
    inverse, slope = np.linalg.lstsq(np.stack([shares, shares / lengths], axis=1), np.ones(len(shares)), rcond=None)[0]
    if slope <= 0:
        return _Curve(1 / float(np.mean(1 / shares)), 0.0)
    return _Curve(float(1 / inverse), float(slope / inverse))
