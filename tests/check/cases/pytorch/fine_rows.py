"""Python loops over rows and layers are unrolled: their number is a shape."""

import torch

VERDICT = "static"


def model(xs):
    total = 0
    for x in xs["rows"]:
        total = total + x.sum()
    parts = [part.mean() for part in xs["rows"].unbind(0)]
    a, b = xs["rows"].split([1, 2])
    return total, torch.stack(parts), {"a": a, "b": b.t()}


def inputs():
    return ({"rows": torch.arange(12.0).reshape(3, 4) - 5},)
