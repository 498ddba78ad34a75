"""Handwritten digits by federated averaging: a Flower app that goes on from its last round if it is started again.

    trainworks run examples/flower-digits.yaml

Each client trains a linear classifier on images of its own and sends the weights alone. The server averages them, tests
the average on images that no client has, and saves it: a federation that was cut off does the rounds that are left.
The data is scikit-learn's `digits`: 1,797 real images of 8 x 8 pixels, in the package, so nothing is downloaded.
"""

import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits

STEPS, LEARNING_RATE = 100, 0.5
HELD_OUT = 297  # images of the server; the clients have the other 1,500

client = ClientApp()
server = ServerApp()


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images [1797, 65], the last pixel constant as the bias of the classifier, and labels [1797]."""
    images, labels = load_digits(return_X_y=True)
    return np.hstack([images / 16, np.ones((len(images), 1))]), labels


def record(weights: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"weights": Array(weights)})


@client.train()
def train(message: Message, context: Context) -> Message:
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    images, labels = (values[HELD_OUT + part :: parts] for values in digits())
    weights = message.content["arrays"]["weights"].numpy().copy()  # [65, 10]
    for _ in range(STEPS):
        scores = np.exp(images @ weights)
        errors = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[labels]
        weights -= LEARNING_RATE * images.T @ errors / len(images)
    metrics = MetricRecord({"num-examples": len(images)})
    return Message(RecordDict({"arrays": record(weights), "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["rounds"]
    saved = Path(os.environ["TRAINWORKS_RUN_DIR"]) / "federation.npz"
    done, weights = 0, np.zeros((65, 10))
    if saved.exists():
        with np.load(saved) as state:
            done, weights = int(state["round"]), state["weights"]
        print(f"continuing after round {done} of {rounds}", flush=True)
    images, labels = (values[:HELD_OUT] for values in digits())

    def save(since_start: int, arrays: ArrayRecord) -> MetricRecord:
        weights = arrays["weights"].numpy()
        accuracy = float(np.mean(np.argmax(images @ weights, axis=1) == labels))
        part = saved.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, round=done + since_start, weights=weights)
        part.replace(saved)
        if since_start:
            print(f"round {done + since_start} of {rounds}: accuracy {accuracy:.3f}", flush=True)
        return MetricRecord({"accuracy": accuracy})

    clients = int(os.environ["WORLD_SIZE"]) - 1
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy.start(grid, record(weights), num_rounds=rounds - done, timeout=60, evaluate_fn=save)
    saved.with_name("federation.done").touch()
