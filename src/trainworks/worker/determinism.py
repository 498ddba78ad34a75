"""Make two runs on the same ranks of the same machines bit-identical: random numbers, algorithms, refusals."""

from __future__ import annotations

import os

import numpy as np
import torch


def make_deterministic() -> None:
    """Let torch choose algorithms that give the same bits every time, and refuse operations that have none.

    To be called before the device is used: cuBLAS reads its workspace, and NCCL its algorithm, when they start.
    Attention is restricted to flash and to plain matrix products, because the memory-efficient kernel sums its
    gradients in any order. Source: "Reproducibility" in PyTorch's notes; CUBLAS_WORKSPACE_CONFIG in cuBLAS's manual.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ.setdefault("NCCL_ALGO", "Ring")  # the tuner may take another algorithm, and with it another order
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # slow; nothing reads it


def seed_step(seed: int, *, step: int, rank: int) -> None:
    """Seed torch's generators for one step of one rank.

    Dropout and every other draw are then a function of (seed, step, rank). A resumed, restarted or rolled-back run
    draws what an untouched one draws, and a checkpoint holds no generator state. Ranks draw different numbers, because
    each of them computes other samples, positions, heads or layers; a layout in which two ranks hold copies of the
    same activations refuses dropout (`plan.run.trainable`).
    """
    mixed = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]))
