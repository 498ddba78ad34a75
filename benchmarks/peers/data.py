"""Token data of the peers: a flat uint16 file. Needs numpy only, so that the benchmark can write it without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from config import PeerConfig

__all__ = ["write_token_file"]


def write_token_file(path: Path, config: PeerConfig) -> Path:
    """Write random tokens for one epoch of exactly the configured steps."""
    count = config.steps * config.tokens_per_step
    generator = np.random.default_rng(config.seed)
    generator.integers(0, config.vocabulary, size=count, dtype=np.uint16).tofile(path)
    return path
