"""The loop of `restart_peer.py` as a replica group of torchft: the groups go on without a dead one, and heal it.

    export TORCHFT_LIGHTHOUSE=http://localhost:29510 REPLICA_GROUP_ID=0
    torchrun --standalone --nproc-per-node 1 torchft_loop.py FOLDER STEPS

As in torchft's train_ddp.py: its DDP wrapper, 5 s for gloo and 30 s for everything else; weights come over HTTP, the
default. Every attempt at a step is a line `step time pid status` in `steps-GROUP.txt`; status is `failed` for a step
that torchft discarded, `healing` for one in which this group only fetched weights, else how many groups took part.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from restart_peer import tiny_model
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def main(folder: Path, num_steps: int) -> None:
    """Train until the groups have committed that many steps."""
    group = os.environ["REPLICA_GROUP_ID"]
    torch.manual_seed(1)
    module = tiny_model()
    wrapped = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        wrapped.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": wrapped.state_dict()},
        min_replica_size=1,
        replica_id=f"group_{group}",
        timeout=timedelta(seconds=30),
    )
    model, optimizer = DistributedDataParallel(manager, module), Optimizer(manager, wrapped)
    with (folder / f"steps-{group}.txt").open("a", buffering=1) as attempts:
        while manager.current_step() < num_steps:
            before = manager.current_step()
            optimizer.zero_grad()
            tokens = torch.randint(512, (4, 64))
            nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            status = str(manager.num_participants()) if manager.is_participating() else "healing"
            status = status if manager.current_step() > before else "failed"
            attempts.write(f"{manager.current_step()} {time.time():.6f} {os.getpid()} {status}\n")
    manager.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
