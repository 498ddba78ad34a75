"""Token sequences with some tokens hidden, as BERT learns from them (Devlin et al., 2019, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainworks.worker.data.order import Indices, Order
from trainworks.worker.data.reader import Dataset

_SHARE = 0.15
_HIDDEN, _REPLACED = 0.8, 0.1
"""Shares of the chosen tokens that are hidden and replaced; the rest stay unchanged."""
_NOT_ASKED = -100
"""The label of a token that the loss leaves out."""


class MaskedTokens:
    """`x` and `labels` [n, T]: round(0.15 T) tokens of every sequence are predicted, 80 % of them hidden, 10 % replaced
    by any token, 10 % left.

    Every sequence predicts the same number, as in BERT's own code, so that the mean over a micro-batch, over ranks and
    over accumulation is the mean over all predicted tokens of the global batch. What is drawn depends on the seed and
    on the number g of the sample alone: it is the same on any number of ranks, and another in every epoch.

    Args:
        tokens: gathers `tokens` [n, T + 1], of which the first T are taken.
        mask: token that replaces a hidden one.
        vocabulary: tokens that may replace one: 0 ... vocabulary - 1.
        spared: tokens that are predicted only if there are too few others; ends of documents.
        seed: of the run.
    """

    def __init__(self, tokens: Dataset, *, mask: int, vocabulary: int, spared: Sequence[int], seed: int) -> None:
        self._tokens = tokens
        self._mask, self._vocabulary, self._spared = mask, vocabulary, list(spared)
        self._seed = seed
        self.fingerprint = tokens.fingerprint
        self.sample_bytes = 2 * tokens.sample_bytes

    def __len__(self) -> int:
        return len(self._tokens)

    def order(self, seed: int | Sequence[int]) -> Order:
        """Fingerprint of the tokens."""
        return self._tokens.order(seed)

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`x` and `labels`, both [n, T] int64."""
        x = np.ascontiguousarray(self._tokens.gather(indices, samples)["tokens"][:, :-1])
        labels = np.full_like(x, _NOT_ASKED)
        for row, sample in enumerate(samples.tolist()):
            self._hide(x[row], labels[row], np.random.default_rng([self._seed, sample]))
        return {"x": x, "labels": labels}

    def _hide(self, x: NDArray[np.int64], labels: NDArray[np.int64], draw: np.random.Generator) -> None:
        count = max(1, round(_SHARE * len(x)))
        late = draw.random(len(x)) + np.isin(x, self._spared)
        chosen = np.argsort(late, kind="stable")[:count]
        labels[chosen] = x[chosen]
        fate, other = draw.random(count), draw.integers(0, self._vocabulary, count)
        x[chosen] = np.where(fate < _HIDDEN, self._mask, np.where(fate < _HIDDEN + _REPLACED, other, x[chosen]))
