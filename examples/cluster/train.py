"""Handwritten digits with DistributedDataParallel, as a script on a cluster needs it.

    torchrun --standalone --nproc-per-node=2 examples/cluster/train.py --epochs 2 --to /tmp/digits.pt

Each rank has a device and a share of the data of its own. Micro-batches accumulate, and only the last one of a step
averages the gradients over the ranks. The checkpoint holds all that a restart needs, and a crash while it is written
leaves the one before. On CPUs the ranks use gloo and bf16 without loss scaling; on GPUs NCCL.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group, or its functions hold that and its threads to the end
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 4
"""Micro-batches of one step."""


def device_of_this_rank() -> torch.device:
    """The GPU of the local rank; without this, every process would use GPU 0."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def loader_of_this_rank(micro_batch: int) -> tuple[DataLoader, DistributedSampler]:
    """Batches of this rank's share; the workers live over all epochs, and pinned memory makes copies asynchronous."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    sampler = DistributedSampler(data, seed=0, drop_last=True)
    loader = DataLoader(
        data,
        batch_size=micro_batch,
        sampler=sampler,
        num_workers=1,
        persistent_workers=True,
        pin_memory=torch.cuda.is_available(),
        drop_last=True,
    )
    return loader, sampler


def save(path: Path, state: dict[str, Any]) -> None:
    """Write on one rank, to a name of its own first: a reader sees the old file or the new one, never a part."""
    if dist.get_rank() == 0:
        unfinished = path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    dist.barrier()


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    loader: DataLoader,
    half: torch.dtype,
) -> float:
    """One pass over the data; the last step takes the micro-batches that are left."""
    device = next(model.parameters()).device
    steps = [min(ACCUMULATE, len(loader) - start) for start in range(0, len(loader), ACCUMULATE)]
    batches, total = iter(loader), 0.0
    for parts in steps:
        for part in range(parts):
            images, labels = (tensor.to(device, non_blocking=True) for tensor in next(batches))
            is_last = part == parts - 1
            with nullcontext() if is_last else model.no_sync(), torch.autocast(device.type, dtype=half):
                loss = cross_entropy(model(images), labels) / parts
            with nullcontext() if is_last else model.no_sync():
                scaler.scale(loss).backward()
            total += loss.item() / len(steps)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return total


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--to", type=Path, default=Path("digits.pt"))
    asked = options.parse_args()

    device = device_of_this_rank()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device),
        device_ids=[device] if device.type == "cuda" else None,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    half = torch.float16 if device.type == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)  # bf16 has the range of fp32
    loader, sampler = loader_of_this_rank(micro_batch=16)

    first = 0
    if asked.to.exists():
        state = torch.load(asked.to, map_location=device, weights_only=True)
        for name, part in {"model": model.module, "optimizer": optimizer, "scaler": scaler}.items():
            part.load_state_dict(state[name])
        first = state["epoch"] + 1
    for epoch in range(first, asked.epochs):
        sampler.set_epoch(epoch)  # another order in every epoch
        loss = torch.tensor(train_epoch(model, optimizer, scaler, loader, half), device=device)
        dist.all_reduce(loss)
        parts = {"model": model.module, "optimizer": optimizer, "scaler": scaler}
        save(asked.to, {name: part.state_dict() for name, part in parts.items()} | {"epoch": epoch})
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item() / dist.get_world_size():.4f}", flush=True)
    del model  # DDP holds the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
