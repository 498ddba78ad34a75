"""Parts of a run as users write them, each with something that slows it down; `benchmarks/diagnosis.py` runs them."""

import gc
import os
import re
import threading
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset


class Sleeps:
    """Asks a server of its own after every step."""

    def on_step(self, state: Any) -> None:
        time.sleep(0.2)


class SleepsOnRank1:
    """The same on one rank, for which the other one waits."""

    def on_step(self, state: Any) -> None:
        if state.rank == 1:
            time.sleep(0.2)


class Tracks:
    """Writes figures of every step to a file, and waits for the disk each time."""

    def __init__(self) -> None:
        self.file = open(f"tracked-{os.getpid()}", "wb")  # noqa: SIM115, it stays open

    def on_step(self, state: Any) -> None:
        for _ in range(20):
            self.file.write(os.urandom(1 << 18))
            self.file.flush()
            os.fsync(self.file.fileno())


class FindsAnomalies:
    """Leaves PyTorch's search for NaN on, with which every operation of the backward pass is checked."""

    def __init__(self) -> None:
        torch.autograd.set_detect_anomaly(True)

    def on_end(self, state: Any) -> None:
        """A callback needs a method."""


class Computes:
    """A thread of each rank that computes in Python beside the training, and takes its interpreter lock and core."""

    def __init__(self) -> None:
        threading.Thread(target=self._compute, daemon=True).start()

    def _compute(self) -> None:
        while True:
            sum(range(100_000))

    def on_end(self, state: Any) -> None:
        """A callback needs a method."""


class Collects:
    """A large heap that Python's garbage collector walks through in the steps."""

    def __init__(self) -> None:
        self.heap = [[number] for number in range(2_000_000)]
        gc.set_threshold(100, 1, 1)

    def on_end(self, state: Any) -> None:
        """A callback needs a method."""


class Model(nn.Module):
    """Predicts the next token of a short text by the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(512, 128), nn.Linear(128, 512)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean loss of tokens [B, T] and targets [B]."""
        return nn.functional.cross_entropy(self.head(self.embedding(tokens).mean(1)), target)


class Texts(Dataset):
    """Texts whose tokens are made when a step reads them, or beforehand where TOKENIZED is set."""

    def __init__(self) -> None:
        self.kept = [tokens(number) for number in range(256)] if os.environ.get("TOKENIZED") else None

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = tokens(index % 256) if self.kept is None else self.kept[index % 256]
        return found[:64], found[64]


def tokens(number: int) -> torch.Tensor:
    """65 tokens of a text, by a slow tokenizer."""
    words = re.findall(r"\w+|\s", " ".join(f"word{number * place % 97}" for place in range(12_000)))
    return torch.tensor([sum(word.encode()) % 512 for word in words][:65])


def build_model() -> nn.Module:
    """The model of the run."""
    return Model()


def build_dataset() -> Dataset:
    """Its texts."""
    return Texts()
