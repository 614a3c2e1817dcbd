"""A small convolutional network for small images, and how to restore it from a checkpoint."""

from __future__ import annotations

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Keras 3 does not support ParameterServerStrategy
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only

import tensorflow as tf


def build(shape: tuple[int, ...]) -> tf.keras.Model:
    """Build the network: it maps images as bytes, (batch, height, width, channels), to one score per class."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.InputLayer(shape, dtype=tf.uint8),
            layers.Rescaling(1 / 90.0, offset=-72.9 / 90.0, dtype=tf.float32),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="first"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="second"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu", name="hidden"),
            layers.Dense(10, name="scores"),
        ]
    )


def restore(model: tf.keras.Model, directory: str) -> str:
    """Load the latest checkpoint's weights: of train.py (by object), or of train_flags.py (by name)."""
    newest = tf.train.latest_checkpoint(directory)
    if newest is None:
        raise SystemExit(f"there is no checkpoint in {directory}")
    saved = tf.train.load_checkpoint(newest)
    if saved.has_tensor("scores/kernel"):
        for variable in model.variables:
            variable.assign(saved.get_tensor(variable.name.partition(":")[0]))
    else:
        tf.train.Checkpoint(model=model).restore(newest).expect_partial().assert_existing_objects_matched()
    return newest
