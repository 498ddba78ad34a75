"""What torch computes with: device and precision of a rank, random numbers, algorithms that give equal bits."""

from __future__ import annotations

import os

import numpy as np
import torch

from trainworks.errors import EnvironmentProblem
from trainworks.record.processes import Processes


def take_device(processes: Processes, precision: str, local_rank: int) -> torch.device:
    """The device of a rank, which is current from now on; before it is used, torch gets its settings.

    Matrix products and convolutions in fp32 round their inputs to TF32 with the precision `tf32` alone; torch would
    round those of convolutions by default.

    Raises:
        EnvironmentProblem: torch sees no GPU for this rank.
    """
    torch.set_num_threads(processes.threads_per_process)
    if processes.device != "cuda":
        return torch.device("cpu")
    if local_rank >= (seen := torch.cuda.device_count()):
        raise EnvironmentProblem(
            f"PyTorch {torch.__version__} sees {seen} GPUs on this node, and its local rank {local_rank} needs one",
            hint="compare with `nvidia-smi`: a build for CPUs, an older driver and CUDA_VISIBLE_DEVICES hide GPUs",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return device


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
    # torch.manual_seed would format the stack three times, once for each kind of device that is not there
    torch.default_generator.manual_seed(int(mixed[0]))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(int(mixed[0]))
