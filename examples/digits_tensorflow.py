"""Handwritten digits under TensorFlow's MultiWorkerMirroredStrategy: a script that knows nothing of Trainworks.

    trainworks run examples/digits-tensorflow.yaml

The strategy finds its workers in TF_CONFIG and averages the gradients over them. `BackupAndRestore` saves weights,
optimizer and epoch after each epoch, and continues from there if the job is started again. It is the callback of
Keras 2 (tf-keras): `fit` of Keras 3.15 fails under this strategy.
The data is scikit-learn's `digits`: 1,797 real images of 8 x 8 pixels, in the package, so nothing is downloaded.
"""

import os

import tensorflow as tf
import tf_keras as keras
from sklearn.datasets import load_digits

EPOCHS = 20
GLOBAL_BATCH = 128
STEPS = 14  # per epoch: 1,792 of 1,797 images


def batches() -> tf.data.Dataset:
    """Global batches without end; the strategy gives every worker its share of each."""
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
    by_data = tf.data.Options()
    by_data.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.shuffle(len(labels), seed=0).repeat().batch(GLOBAL_BATCH).with_options(by_data)


def build_model() -> keras.Model:
    """One hidden layer."""
    model = keras.Sequential([keras.layers.Dense(64, activation="tanh", input_shape=(64,)), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=loss, metrics=["accuracy"])
    return model


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build_model()
    backup = keras.callbacks.BackupAndRestore(f"{os.environ.get('TRAINWORKS_RUN_DIR', '.')}/backup")
    history = model.fit(batches(), epochs=EPOCHS, steps_per_epoch=STEPS, verbose=2, callbacks=[backup]).history
    rank, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    print(f"worker {rank} of {size}: {len(history['loss'])} epochs, final loss {history['loss'][-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
