"""The same training with Lightning Fabric."""

from __future__ import annotations

import os
from typing import cast

import torch
from common import CLIP_GRAD_NORM, StepClock, TokenWindows, build_model, build_optimizer, collate, log
from config import RANKS, PeerConfig
from lightning.fabric import Fabric, seed_everything
from lightning.fabric.strategies.ddp import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import get_cosine_schedule_with_warmup


def main() -> None:
    """Train under `torchrun`, print one line."""
    config = PeerConfig.from_command_line()
    strategy = DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True, forward_sync_buffers=False)
    fabric = Fabric(accelerator="cpu", strategy=strategy, devices=RANKS, precision="32-true")
    fabric.launch()
    seed_everything(config.seed, verbose=False)
    clock = StepClock("fabric", config, fabric.global_rank)
    train(config, clock, fabric)
    clock.print_result()
    os._exit(0)  # gloo's threads abort at exit now and then while a DDP model is alive


def train(config: PeerConfig, clock: StepClock, fabric: Fabric) -> None:
    """The loop of Fabric's own examples."""
    model = build_model(config)
    model, optimizer = fabric.setup(model, build_optimizer(model.parameters(), config))
    scheduler = get_cosine_schedule_with_warmup(optimizer, config.lr_warmup_steps, config.steps)
    loader = DataLoader(
        TokenWindows(config), batch_size=config.micro_batch, shuffle=True, drop_last=True, collate_fn=collate
    )
    loader = fabric.setup_dataloaders(loader)
    loss_sum = torch.zeros(())
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch).loss
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP_GRAD_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        loss_sum += loss.detach()
        if step % config.log_every == 0:
            mean = fabric.all_reduce(loss_sum / config.log_every, reduce_op="mean")
            loss_sum.zero_()
            if fabric.is_global_zero:
                log(step, loss=cast(Tensor, mean).item())
        clock.step_ended()


if __name__ == "__main__":
    main()
