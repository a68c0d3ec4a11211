"""NumPy, lists and plain numbers."""

import numpy as np
import torch

VERDICT = "not static"


def model(x):
    host = x.detach().numpy()  # expect: VX109
    values = x.tolist()  # expect: VX109
    other = np.asarray(x)  # expect: VX109
    return torch.from_numpy(host + other) * len(values)


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
