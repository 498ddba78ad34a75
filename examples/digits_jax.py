"""Handwritten digits in plain JAX on several processes: a script that knows nothing of Trainworks.

    trainworks run examples/digits-jax.yaml

`jax.distributed.initialize()` without arguments finds the coordinator and this process's place in its environment. Each
process holds its share of every batch; the compiler adds the sum of the gradients over all devices.
The data is scikit-learn's `digits`: 1,797 real images of 8 x 8 pixels, in the package, so nothing is downloaded.
"""

import jax

jax.distributed.initialize()  # before anything else of JAX

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

EPOCHS = 20
GLOBAL_BATCH = 128
LEARNING_RATE = 0.5


def loss_of(weights, images_BD, labels_B):
    """Mean cross-entropy of a network with one hidden layer."""
    hidden_BH = jnp.tanh(images_BD @ weights["in"])
    logits_BC = hidden_BH @ weights["out"]
    return -jnp.sum(jax.nn.log_softmax(logits_BC) * jax.nn.one_hot(labels_B, 10)) / GLOBAL_BATCH


@jax.jit
def step(weights, images_BD, labels_B):
    loss, gradients = jax.value_and_grad(loss_of)(weights, images_BD, labels_B)
    return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradients), loss


def main():
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    by_data = NamedSharding(mesh, PartitionSpec("data"))
    keys = jax.random.split(jax.random.key(0))
    weights = {"in": jax.random.normal(keys[0], (64, 64)) / 8, "out": jax.random.normal(keys[1], (64, 10)) / 8}
    weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))  # the same on every device
    rank, size = jax.process_index(), jax.process_count()
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(images.shape[0])
        for start in range(0, images.shape[0] - GLOBAL_BATCH + 1, GLOBAL_BATCH):
            mine = order[start : start + GLOBAL_BATCH][rank::size]
            batch = [jax.make_array_from_process_local_data(by_data, part[mine]) for part in (images, labels)]
            weights, loss = step(weights, *batch)
        if rank == 0 and (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}")
    print(f"process {rank} of {size}: final loss {loss:.4f}")


if __name__ == "__main__":
    main()
