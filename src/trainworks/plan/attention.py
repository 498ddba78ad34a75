"""Rates of fused attention kernels, from their published tables (`trainworks catalog list kernels`).

A table of FLOP/s r by sequence length T becomes two numbers, by least squares of the relative errors of

    1 / r(T) = (1 + h / T) / R

with the rate R of long sequences and the length h at half of it: tiles fill and drain, and a mask cuts those on the
diagonal. R / peak in 16 bits holds for the generation of the accelerator that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from trainworks.catalog.catalog import accelerator, attention_kernels
from trainworks.catalog.facts import Accelerator, AttentionKernel
from trainworks.plan.software import Attention

_GENERATIONS = ("Hopper", "Blackwell", "CDNA")
_NARROW = 20.0
"""Heads narrower than those of every table reach d / (d + 20) of the rate: a pair of positions costs 4 d FLOPs and one
exponential, which runs on a slower unit. 20 is what FlashAttention-2 shows between heads of 64 and 128 on H100."""


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


@cache
def kernel_rates(kernel: Attention, architecture: str) -> tuple[HeadRates, ...]:
    """Tables of a kernel on a generation, narrowest heads first.

    A kernel without a table for the generation is taken for FlashAttention-2 there, and a generation without any for
    Ampere.
    """
    generation = _generation(architecture)
    tables = _tables()
    return tables.get((kernel, generation)) or tables.get(("flash-2", generation)) or tables["flash-2", "Ampere"]


def attention_shares(
    rates: tuple[HeadRates, ...], head_dim: float, length: float, *, causal: bool
) -> tuple[float, float]:
    """Shares of the 16-bit peak forward and backward, of the pairs of tokens that the mask leaves.

    Between two head sizes interpolated; heads wider than all tables have the rate of the widest.
    """
    sizes = [rate.head_dim for rate in rates]
    narrow = min(head_dim, sizes[0])
    factor = narrow / (narrow + _NARROW) * (sizes[0] + _NARROW) / sizes[0]

    def share(directions: list[_Direction]) -> float:
        curves = [direction.causal if causal else direction.full for direction in directions]
        return factor * float(np.interp(head_dim, sizes, [curve.at(length) for curve in curves]))

    return share([rate.forward for rate in rates]), share([rate.backward for rate in rates])


@cache
def _tables() -> dict[tuple[str, str], tuple[HeadRates, ...]]:
    found: dict[tuple[str, str], list[HeadRates]] = {}
    for row in attention_kernels().values():
        measured = accelerator(row.accelerator)
        key = row.kernel, _generation(measured.architecture or "")
        found.setdefault(key, []).append(_head_rates(row, measured))
    return {key: tuple(sorted(rates, key=lambda rate: rate.head_dim)) for key, rates in found.items()}


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
