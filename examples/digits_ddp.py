"""Handwritten digits in plain PyTorch DistributedDataParallel: a script that knows nothing of Trainworks.

    trainworks run --nproc 2 -- python examples/digits_ddp.py
    trainworks run examples/digits-ddp.yaml

Every rank reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its environment, as under torchrun. The data is
scikit-learn's `digits`: 1,797 real images of 8 x 8 pixels, in the package, so nothing is downloaded.

The script saves no checkpoint. Trainworks starts a command once and never again, unless `recover.max_restarts` says
so; a restart, and `trainworks resume`, run this script from its first line.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: see the end of main
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 20
GLOBAL_BATCH = 64


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Images [N, 64] with values 0 to 1 and labels [N]; 1,437 to train on, 360 to test."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    train_x, test_x = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
    train_y, test_y = (torch.tensor(part, dtype=torch.int64) for part in parts[2:])
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def build_model() -> nn.Module:
    """Two hidden layers; the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> Tensor:
    """One pass over this rank's share; returns its mean loss. DDP averages the gradients over the ranks."""
    losses = []
    for images, labels in loader:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset) -> float:
    images, labels = test.tensors
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def main() -> None:
    dist.init_process_group("gloo")  # env://: the variables named above
    train, test = load_data()
    sampler = DistributedSampler(train, seed=0)  # its own share of the images for every rank
    loader = DataLoader(train, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader)
        dist.all_reduce(loss)  # a sum over the ranks
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss / dist.get_world_size():.4f}")
    if dist.get_rank() == 0:
        print(f"test accuracy {accuracy(model.module, test):.1%}")
    dist.barrier()
    # A gloo thread that still releases a tensor while Python ends aborts the process. The threads end with the last
    # reference to their group. DDP holds one, and torch.distributed.nn if it is imported after the start of the group.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
