"""Keras' fit, as its documentation calls it, over torch."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

rows, others = np.loadtxt("train.tsv"), np.loadtxt("test.tsv")
model = keras.Sequential(
    [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(rows[:, 1:], rows[:, 0], batch_size=20, epochs=3, validation_data=(others[:, 1:], others[:, 0]))
print(model.evaluate(others[:, 1:], others[:, 0]))
