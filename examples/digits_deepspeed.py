"""Handwritten digits under DeepSpeed ZeRO-1: a script that knows nothing of Trainworks.

    trainworks run examples/digits-deepspeed.yaml

`deepspeed.initialize` finds its place in the environment, as under DeepSpeed's own launcher. On a machine without
accelerators DeepSpeed compiles a small extension the first time, which takes a C++ compiler and a minute.
"""

import deepspeed
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

EPOCHS = 5
GLOBAL_BATCH = 128
CONFIG = {
    "train_batch_size": GLOBAL_BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


def main():
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    rank, size = engine.global_rank, engine.world_size
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order[: len(order) // GLOBAL_BATCH * GLOBAL_BATCH].split(GLOBAL_BATCH):
            mine = batch[rank::size]
            loss = cross_entropy(engine(images[mine].to(engine.device)), labels[mine].to(engine.device))
            engine.backward(loss)
            engine.step()
    print(f"rank {rank} of {size}: final loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
