"""torchtitan's own trainer on the model and the batches of all contenders: its step is `Trainer.train_step`.

Written for torchtitan 0.3, which imports Triton and needs an accelerator. Layers, loss in pieces, compiling and CUDA
graphs are as torchtitan has them; nothing is recomputed, and no checkpoint is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from common import CLIP_GRAD_NORM, StepClock, TokenWindows
from config import PeerConfig
from torch import Tensor
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.models import llama3
from torchtitan.trainer import Trainer


class Built:
    """A part of a configuration that is there already."""

    def __init__(self, part: object) -> None:
        self.part = part

    def build(self, **_: object) -> Any:
        """The part."""
        return self.part


class Batches:
    """This rank's windows of the token file, inputs and the labels one token later, as often as they are asked for."""

    def __init__(self, config: PeerConfig) -> None:
        self.config = config

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        dataset, size = TokenWindows(self.config), self.config.micro_batch
        for step in range(self.config.steps):
            first = (step * self.config.ranks + int(os.environ["RANK"])) * size
            windows = torch.from_numpy(dataset.windows[first : first + size].astype("int64"))
            positions = torch.arange(windows.shape[1]).expand(len(windows), -1)
            yield {"input": windows, "positions": positions}, windows.roll(-1, dims=1)

    def state_dict(self) -> dict[str, object]:
        """Nothing: no checkpoint is written."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Nothing to load."""


def model_of(config: PeerConfig) -> llama3.Llama3Model.Config:
    """The model, of the parts that torchtitan's own sizes of Llama 3 have."""
    rope = llama3.ComplexRoPE.Config(
        dim=config.hidden // config.heads, max_seq_len=config.sequence_length, theta=10_000, scaling="none"
    )
    return llama3.Llama3Model.Config(
        dim=config.hidden,
        vocab_size=config.vocabulary,
        tok_embeddings=llama3.Embedding.Config(
            num_embeddings=config.vocabulary, embedding_dim=config.hidden, param_init=llama3._EMBEDDING_INIT
        ),
        norm=llama3.RMSNorm.Config(normalized_shape=config.hidden, param_init=llama3._NORM_INIT),
        lm_head=llama3.Linear.Config(
            in_features=config.hidden,
            out_features=config.vocabulary,
            param_init=llama3._output_linear_init(config.hidden),
        ),
        layers=llama3._build_llama3_layers(
            n_layers=config.layers,
            dim=config.hidden,
            n_heads=config.heads,
            hidden_dim=config.feed_forward,
            rope=rope,
            attn_backend="flex",
        ),
    )


def trainer_of(config: PeerConfig) -> Trainer.Config:
    """The configuration of torchtitan that a contender's is."""
    spec = replace(llama3.model_registry("debugmodel", attn_backend="flex"), model=model_of(config))
    made = Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=config.vocabulary)),
        optimizer=default_adamw(lr=config.lr),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=config.lr_warmup_steps),
        training=TrainingConfig(
            local_batch_size=config.micro_batch,
            seq_len=config.sequence_length,
            steps=config.steps,
            max_norm=CLIP_GRAD_NORM,
            mixed_precision_param="bfloat16" if config.precision == "bf16" else "float32",
        ),
        metrics=MetricsProcessor.Config(log_freq=config.log_every),
        parallelism=ParallelismConfig(
            data_parallel_shard_degree=config.ranks if config.shards else 1,
            data_parallel_replicate_degree=1 if config.shards else config.ranks,
        ),
        activation_checkpoint=None,
        compile=CompileConfig(enable=config.compiled),
    )
    made.tokenizer, made.dataloader = Built(None), Built(Batches(config))
    return made


def main() -> None:
    """Train under `torchrun`, print one line."""
    config = PeerConfig.from_command_line()
    trainer = trainer_of(config).build()
    clock = StepClock("torchtitan", config, dist.get_rank())
    batches = trainer.batch_generator(trainer.dataloader)
    for trainer.step in range(1, config.steps + 1):
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(batches)
        clock.step_ended()
    clock.print_result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
