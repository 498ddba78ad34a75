"""The same training with Hugging Face accelerate."""

from __future__ import annotations

from typing import cast

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import set_seed
from common import CLIP_GRAD_NORM, StepClock, TokenWindows, build_model, build_optimizer, collate, log
from config import PeerConfig
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import get_cosine_schedule_with_warmup


def main() -> None:
    """Train under `torchrun`, print one line."""
    config = PeerConfig.from_command_line()
    ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True, broadcast_buffers=False)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[ddp])
    set_seed(config.seed)
    clock = StepClock("accelerate", config, accelerator.process_index)
    train(config, clock, accelerator)
    clock.print_result()
    accelerator.end_training()


def train(config: PeerConfig, clock: StepClock, accelerator: Accelerator) -> None:
    """The loop of accelerate's own examples."""
    model = build_model(config)
    optimizer = build_optimizer(model.parameters(), config)
    # A prepared scheduler advances once per process and step.
    world_size = accelerator.num_processes
    scheduler = get_cosine_schedule_with_warmup(
        optimizer, config.lr_warmup_steps * world_size, config.steps * world_size
    )
    loader = DataLoader(
        TokenWindows(config), batch_size=config.micro_batch, shuffle=True, drop_last=True, collate_fn=collate
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    loss_sum = torch.zeros(())
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP_GRAD_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        loss_sum += loss.detach()
        if step % config.log_every == 0:
            mean = accelerator.reduce(loss_sum / config.log_every, reduction="mean")
            loss_sum.zero_()
            if accelerator.is_main_process:
                log(step, loss=cast(Tensor, mean).item())
        clock.step_ended()


if __name__ == "__main__":
    main()
