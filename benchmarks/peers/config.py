"""What every contender is given and what it hands back; imports nothing but the standard library."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["RANKS", "PeerConfig", "Result"]

RANKS = 2
"""Processes of every contender on processors; one thread each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """One model, one amount of work. The same object configures all contenders."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    sequence_length: int
    micro_batch: int
    """Sequences per rank and step."""
    steps: int
    """Optimizer steps in all."""
    warmup_steps: int
    """The first steps, which are not timed."""
    lr: float = 3e-4
    lr_warmup_steps: int = 10
    log_every: int = 10
    """The loss is averaged over the ranks and logged once in so many steps."""
    seed: int = 1
    device: str = "cpu"
    """`cpu`, or `cuda`: a rank for each accelerator; only `bare.py` knows it."""
    accelerators: int = 1
    precision: str = "fp32"
    """`bf16` is autocast."""
    compiled: bool = False
    """torch.compile of the whole model, or of what the contender compiles."""
    shards: bool = False
    """FSDP2 over all ranks, ZeRO-3, instead of DDP; only `bare.py` knows it."""
    data_file: str = ""
    """Token file of `data.write_token_file`."""
    stop_after_first_step: bool = False
    """Print when the first step ended instead of a throughput; only `bare.py` knows it."""

    @property
    def ranks(self) -> int:
        """Processes of a contender."""
        return RANKS if self.device == "cpu" else self.accelerators

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks."""
        return self.ranks * self.micro_batch * self.sequence_length

    def write(self, path: Path) -> Path:
        """Write the config as JSON, for `from_command_line` of the other process."""
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def from_command_line(cls) -> PeerConfig:
        """Read the file that the only argument names."""
        return cls(**json.loads(Path(sys.argv[1]).read_text()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run of one contender measured, after the warm-up steps."""

    peer: str
    tokens_per_s: float
    """Tokens of all ranks over the wall clock of the whole timed window."""
    step_s_median: float
    steps: int
    """Timed steps."""
