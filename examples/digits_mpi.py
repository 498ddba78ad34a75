"""Handwritten digits in NumPy, data-parallel over MPI as Horovod does it: a script that knows nothing of Trainworks.

    trainworks run examples/digits-mpi.yaml

mpirun starts the ranks and tells each its place. Every rank computes the gradient of its share of the batch; Allreduce
adds them up, so that any number of ranks takes the same steps.
The data is scikit-learn's `digits`: 1,797 real images of 8 x 8 pixels, in the package, so nothing is downloaded.
"""

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

EPOCHS = 20
GLOBAL_BATCH = 256
LEARNING_RATE = 0.5


def loss_and_gradient(weights_DC, images_BD, labels_B):
    """Sum of the cross-entropy over this rank's images, and its gradient."""
    logits_BC = images_BD @ weights_DC
    logits_BC -= logits_BC.max(axis=1, keepdims=True)
    probabilities_BC = np.exp(logits_BC) / np.exp(logits_BC).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels_B))
    loss = -np.log(probabilities_BC[rows, labels_B]).sum()
    probabilities_BC[rows, labels_B] -= 1
    return loss, images_BD.T @ probabilities_BC


def main():
    world = MPI.COMM_WORLD
    images, labels = load_digits(return_X_y=True)
    images /= 16
    weights = np.zeros((64, 10))
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(len(images))
        for start in range(0, len(images) - GLOBAL_BATCH + 1, GLOBAL_BATCH):
            mine = order[start : start + GLOBAL_BATCH][world.rank :: world.size]
            loss, gradient = loss_and_gradient(weights, images[mine], labels[mine])
            world.Allreduce(MPI.IN_PLACE, gradient)
            weights -= LEARNING_RATE * gradient / GLOBAL_BATCH
        loss = world.allreduce(loss) / GLOBAL_BATCH
        if world.rank == 0 and (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)
    print(f"rank {world.rank} of {world.size}: final loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
