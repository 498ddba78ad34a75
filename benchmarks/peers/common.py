"""What the peers share, so that only the library differs: model, optimizer, batches, timing protocol.

Timing: an accelerator has finished a step where its loss is logged, so the first and the last timed step are logged
ones. Every rank notes the clock when a step has ended. Rank 0 reports, over the steps after the warm-up, the tokens
of all ranks over the time of the whole window, and the median step. Gradients are averaged in every step, so no
rank can run ahead and no barrier is needed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from config import PeerConfig, Result
from torch import Tensor
from torch.optim import AdamW
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

__all__ = [
    "BETAS",
    "CLIP_GRAD_NORM",
    "WEIGHT_DECAY",
    "StepClock",
    "TokenWindows",
    "build_model",
    "build_optimizer",
    "collate",
    "log",
]

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
CLIP_GRAD_NORM = 1.0


def build_model(config: PeerConfig) -> LlamaForCausalLM:
    """The Llama of all contenders: SDPA, fp32, separate input and output embeddings, random weights."""
    torch.manual_seed(config.seed)
    model_config = LlamaConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.hidden,
        intermediate_size=config.feed_forward,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=config.sequence_length,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )
    return LlamaForCausalLM(model_config).train()


def build_optimizer(parameters: Iterable[torch.nn.Parameter], config: PeerConfig) -> AdamW:
    """Fused AdamW with the settings of all contenders."""
    return AdamW(parameters, lr=config.lr, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)


class TokenWindows(Dataset[npt.NDArray[np.int64]]):
    """Consecutive windows of `sequence_length` tokens of the memory-mapped token file."""

    def __init__(self, config: PeerConfig) -> None:
        tokens = np.memmap(config.data_file, dtype=np.uint16, mode="r")
        self.windows = tokens.reshape(-1, config.sequence_length)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> npt.NDArray[np.int64]:
        return self.windows[index].astype(np.int64)

    def batch(self, indices: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """Several windows with one gather, shape (len(indices), sequence_length)."""
        return self.windows[indices].astype(np.int64)


def collate(windows: list[npt.NDArray[np.int64]]) -> dict[str, Tensor]:
    """A batch of equal windows for `model(**batch)`; the model itself shifts the labels."""
    input_ids = torch.from_numpy(np.stack(windows))
    return {"input_ids": input_ids, "labels": input_ids}


def log(step: int, **values: float) -> None:
    """One line on stderr; stdout is for the result."""
    print(f"step {step}", *(f"{name} {value:.6g}" for name, value in values.items()), file=sys.stderr)


class StepClock:
    """Notes the end of every step and prints the result on rank 0."""

    def __init__(self, peer: str, config: PeerConfig, rank: int) -> None:
        self.peer = peer
        self.config = config
        self.rank = rank
        self.first_step_end_t = 0.0
        self._ends_s: list[float] = []

    def step_ended(self) -> None:
        """To be called after the optimizer step and its logging."""
        if not self._ends_s:
            self.first_step_end_t = time.time()
        self._ends_s.append(time.perf_counter())

    def print_result(self) -> None:
        """Print the one JSON line of this run."""
        self._print(asdict(self._result()))

    def print_first_step(self) -> None:
        """Print when the first step ended, in seconds since the epoch."""
        self._print({"peer": self.peer, "first_step_end_t": self.first_step_end_t})

    def _result(self) -> Result:
        ends_s = self._ends_s[self.config.warmup_steps - 1 :]
        num_steps = len(ends_s) - 1
        return Result(
            peer=self.peer,
            tokens_per_s=num_steps * self.config.tokens_per_step / (ends_s[-1] - ends_s[0]),
            step_s_median=median(end - start for start, end in pairwise(ends_s)),
            steps=num_steps,
        )

    def _print(self, line: dict[str, Any]) -> None:
        if self.rank == 0:
            print(json.dumps(line), flush=True)
