"""A generator of parts of constant width."""

import numpy as np

VERDICT = "static"


class Config:
    widths = (2, 3)

    @property
    def total(self):
        return sum(self.widths)


def chunks(x, widths):
    at = 0
    for w in widths:
        yield x[at : at + w]
        at += w


def model(x):
    config = Config()
    return [c.sum() for c in chunks(x, config.widths)], x[: config.total]


def inputs():
    return (np.arange(8, dtype=np.float32),)
