"""Many layouts at once: one array per degree, so that a million of them are priced in a few array operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Values = Array | float
"""One value for all layouts, or one for each."""


class Recompute(IntEnum):
    """Activations that backward recomputes."""

    NONE = 0
    SELECTIVE = 1
    """The attention between the projections: scores, softmax, dropout (Korthikanti et al. 2022)."""
    FULL = 2
    """Every block, from its input."""


class Compression(IntEnum):
    """Format of the gradients that replicas send."""

    NONE = 0
    """The format in which the software keeps gradients."""
    BF16 = 1
    FP16 = 2
    POWERSGD = 3
    """Low-rank factors of matrices, with error feedback (Vogels et al. 2019)."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """Degrees of n layouts; every field is an array of shape [n], whole numbers held as float64.

    `dp * cp * tp * pp` is the world size; `ep` reuses the ranks of `dp * cp * tp`, the nearest ones.
    """

    dp: Array
    """Ranks that see different data: dp_replicate * dp_shard."""
    dp_shard: Array
    """Ranks within dp that share one copy of the states selected by `zero`; divides dp."""
    zero: Array
    """0 nothing is shared, 1 optimizer state, 2 and gradients, 3 and weights (FSDP)."""
    tp: Array
    sequence_parallel: Array
    """1 where norms and residuals are split over the tensor-parallel group too."""
    pp: Array
    interleave: Array
    """Model chunks that each pipeline stage holds; 1 is plain 1F1B."""
    cp: Array
    ep: Array
    expert_capacity: Array
    """`Layout.expert_capacity` in percent; 0 where every copy of a token has room."""
    micro_batch: Array
    recompute: Array
    """A `Recompute`."""
    recompute_layers: Array
    """Blocks of each stage that `recompute` concerns, the first ones; 0 for all."""
    zero_bubble: Array
    """1 where a stage's weight gradients wait until it would be idle (ZB-H1, Qi et al. 2023); with interleave 1."""
    offload: Array
    """1 where activations wait in the host's memory for their backward."""
    offload_optimizer: Array
    """1 where optimizer states live in the host's memory and the host updates the weights."""
    gradient_compression: Array
    """A `Compression`."""
    powersgd_rank: Array
    """Rank of PowerSGD's factors; 0 without them."""
    fp8_all_gather: Array
    """1 where weights of fp8 products are gathered in 8 bits."""
    accum: Array
    """Micro-batches per step: global_batch / (dp * micro_batch)."""

    def __len__(self) -> int:
        return len(self.dp)

    @property
    def world_size(self) -> Array:
        """Ranks of each layout."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def expert_rows(self) -> Array:
        """Rows that ranks exchange for each routed copy of a token: 1, or with a capacity also what fills them up."""
        padded = np.minimum(self.expert_capacity / 100, self.ep)
        return np.where((self.ep > 1) & (self.expert_capacity > 0), padded, 1.0)

    def recomputing(self, blocks: Array) -> Array:
        """How many of a stage's blocks `recompute` concerns."""
        return np.where(self.recompute_layers > 0, np.minimum(self.recompute_layers, blocks), blocks)

    def take(self, chosen: NDArray[np.generic] | slice) -> Layouts:
        """The layouts at these positions, or where a mask is true."""
        return Layouts(*(values[chosen] for values in _FIELDS(self)))

    def chunks(self, size: int) -> Iterator[Layouts]:
        """Consecutive pieces of at most `size`: intermediate arrays then stay in the processor's cache."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    @classmethod
    def of(cls, *, global_batch: int, **degrees: Values) -> Layouts:
        """Layouts from values that broadcast against each other; a degree that is not given is 1, an option 0.

        What is left over of the batch is a part of a micro-batch.
        """
        known = {field.name: 0.0 if field.name in _OPTIONS else 1.0 for field in fields(cls) if field.name != "accum"}
        if unknown := degrees.keys() - known.keys():
            raise TypeError(f"no such degree: {', '.join(sorted(unknown))}")
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, np.float64)) for v in (known | degrees).values()))
        named = dict(zip(known, arrays, strict=True))
        return cls(**named, accum=np.maximum(1.0, global_batch / (named["dp"] * named["micro_batch"])))

    def alike(self, names: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Positions of the first layouts of all that differ in these fields, and for each layout the one it is like.

        >>> first, like = Layouts.of(global_batch=8, tp=[1, 2, 1], dp=[4, 2, 2]).alike(("tp",))
        >>> first.tolist(), like.tolist()
        ([0, 1], [0, 1, 0])
        """
        code = np.zeros(len(self), dtype=np.int64)
        for name in names:
            values = getattr(self, name).astype(np.int64)
            code = code * (values.max(initial=0) + 1) + values
        _, first, like = np.unique(code, return_index=True, return_inverse=True)
        return first, like

    @classmethod
    def concatenate(cls, parts: Sequence[Layouts]) -> Layouts:
        """All layouts, in order."""
        return cls(*map(np.concatenate, zip(*map(_FIELDS, parts), strict=True)))

    def row(self, index: int) -> dict[str, int]:
        """One layout as whole numbers by name."""
        return {name: round(float(getattr(self, name)[index])) for name in _NAMES}


def divides(divisor: Values, number: Values) -> NDArray[np.bool_]:
    """True where a number below 2^50 is a multiple: its quotient is whole. A remainder takes ten times as long."""
    quotient = number / divisor
    whole: NDArray[np.bool_] = np.equal(quotient, np.floor(quotient))
    return whole


_NAMES = tuple(field.name for field in fields(Layouts))
_FIELDS = attrgetter(*_NAMES)
_OPTIONS = (
    *("zero", "sequence_parallel", "recompute", "recompute_layers", "zero_bubble", "offload", "offload_optimizer"),
    *("gradient_compression", "powersgd_rank", "expert_capacity", "fp8_all_gather"),
)
