"""A loop of one's own: digits of scikit-learn under DDP; the lines with `training` are what Trainworks needs of it."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainworks.worker import session

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, world_size = dist.get_rank(), dist.get_world_size()
digits = load_digits()
images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)

net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

training = session.start(
    model,
    optimizer,
    num_steps=400,
    checkpoint_every=50,
    samples_per_step=64 * world_size,
    also={"scheduler": scheduler},
)
for step in training:
    generator = torch.Generator().manual_seed(step * world_size + rank)  # of the step alone: a resume goes on with it
    rows = torch.randint(0, len(images), (64,), generator=generator)
    loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    training.log(loss=loss, lr=scheduler.get_last_lr()[0])
    scheduler.step()

if training.is_finished and rank == 0:
    with torch.no_grad():
        right = (net.eval()(images).argmax(1) == labels).float().mean().item()
    print(f"{right:.1%} of the digits are read right")
del model  # DDP holds the group, and a thread of the group that runs on while Python ends may abort the process
dist.destroy_process_group()
