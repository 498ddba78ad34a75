"""A bare DDP loop with checkpoints that resumes, for `torchrun --max-restarts`; it imports torch alone.

    torchrun --nproc-per-node 2 --max-restarts 3 restart_peer.py FOLDER STEPS CHECKPOINT_EVERY

Every rank appends `step time pid` to `steps-RANK.txt`; rank 0 saves.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def tiny_model() -> nn.Module:
    """A transformer of two layers, hidden 64, over 512 tokens."""
    block = nn.TransformerEncoderLayer(64, 4, 176, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.Embedding(512, 64), nn.TransformerEncoder(block, 2), nn.Linear(64, 512))


def main(folder: Path, num_steps: int, every: int) -> None:
    """Resume from the checkpoint if there is one, and train."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(tiny_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint, step = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    with (folder / f"steps-{dist.get_rank()}.txt").open("a", buffering=1) as times:
        while step < num_steps:
            step += 1
            tokens = torch.randint(512, (4, 64))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % every == 0 and dist.get_rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
            times.write(f"{step} {time.time():.6f} {os.getpid()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
