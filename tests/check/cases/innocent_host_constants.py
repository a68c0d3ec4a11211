"""NumPy on constants and shapes, before anything is traced."""

import numpy as np

VERDICT = "static"


def model(x):
    frequencies = np.exp(-np.arange(x.shape[-1]) / 4).astype(np.float32)
    if frequencies.sum() > 1:
        frequencies = frequencies / float(frequencies.max())
    order = np.argsort(frequencies)
    return x[:, order] * frequencies[order][: int(np.ceil(x.shape[-1]))]


def inputs():
    return (np.ones((2, 5), np.float32),)
