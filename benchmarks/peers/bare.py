"""The bare loop: what a good engineer writes by hand with PyTorch and no library around it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from common import CLIP_GRAD_NORM, StepClock, TokenWindows, build_model, build_optimizer, log
from config import PeerConfig
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from transformers import LlamaForCausalLM, get_cosine_schedule_with_warmup


def main() -> None:
    """Train under `torchrun`, print one line."""
    config = PeerConfig.from_command_line()
    device = torch.device("cpu")
    if config.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    clock = StepClock("bare", config, dist.get_rank())
    train(config, clock, device, num_steps=1 if config.stop_after_first_step else config.steps)
    if config.stop_after_first_step:
        clock.print_first_step()
    else:
        clock.print_result()
    dist.barrier()
    dist.destroy_process_group()


def train(config: PeerConfig, clock: StepClock, device: torch.device, num_steps: int) -> None:
    """The loop."""
    model = distribute(build_model(config).to(device), config)
    parameters = list(model.parameters())
    optimizer = build_optimizer(parameters, config)
    scheduler = get_cosine_schedule_with_warmup(optimizer, config.lr_warmup_steps, config.steps)
    loss_sum = torch.zeros((), device=device)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
    for step, batch in zip(range(1, num_steps + 1), batches(config), strict=False):
        with autocast:
            loss = model(**on_device(batch, device)).loss
        loss.backward()
        clip_grad_norm_(parameters, CLIP_GRAD_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        loss_sum += loss.detach()
        if step % config.log_every == 0:
            log_mean_loss(step, loss_sum / config.log_every)
            loss_sum.zero_()
        clock.step_ended()


def distribute(model: LlamaForCausalLM, config: PeerConfig) -> torch.nn.Module:
    """DDP, or FSDP2 around every block and the rest, as its tutorial has it; one rank needs neither."""
    if config.compiled:
        model.compile()
    if config.ranks == 1:
        return model
    if not config.shards:
        return DistributedDataParallel(model, gradient_as_bucket_view=True, forward_sync_buffers=False)
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def batches(config: PeerConfig) -> Iterator[dict[str, Tensor]]:
    """One epoch in a shuffled order that all ranks agree on; each rank takes its share of every global batch."""
    dataset = TokenWindows(config)
    order = np.random.default_rng(config.seed).permutation(len(dataset))
    for indices in order.reshape(-1, config.ranks, config.micro_batch)[:, dist.get_rank()]:
        input_ids = torch.from_numpy(dataset.batch(indices))
        yield {"input_ids": input_ids, "labels": input_ids}


def on_device(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copied from page-locked memory, while the accelerator computes."""
    if device.type == "cpu":
        return batch
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in batch.items()}


def log_mean_loss(step: int, loss: Tensor) -> None:
    """Average over the ranks, and log on rank 0."""
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        log(step, loss=loss.item() / dist.get_world_size())


if __name__ == "__main__":
    main()
