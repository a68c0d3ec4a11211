"""Inputs by seed, gradients by coordinate, and arrays of what a call returned.

NumPy's ``RandomState`` draws them: its numbers are the same in every version of NumPy.
Rows of a result may have any order. The gradient of a row therefore depends on its coordinate
alone, and a result keeps its coordinates beside its features.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

# Of each dimension: rows drawn in a scene, and how far from the origin they lie. Neighbors exist,
# coarse sites have several children, and some sites are alone.
ROWS = {1: 16, 2: 30, 3: 48, 4: 60, 5: 60}
REACH = {1: 10, 2: 4, 3: 3, 4: 2, 5: 2}


class Cases(dict):
    """Cases by name: functions of the library and the dtype."""

    def add(self, case, function, *arguments, **named):
        self[case] = functools.partial(function, *arguments, **named)


def generator(seed):
    return np.random.RandomState(seed)  # a Generator's numbers may change


def scene(dimension, scenes=(0, 1), seed=0, step=1):
    """Return ``int32[N, 1 + dimension]``: distinct, some negative, scenes mixed, multiples of
    ``step``."""
    rng = generator(seed)
    parts = []
    for batch in scenes:
        reach = REACH[dimension]
        sites = rng.randint(-reach, reach + 1, (ROWS[dimension], dimension)) * step
        _, first = np.unique(sites, axis=0, return_index=True)
        sites = sites[np.sort(first)]
        parts.append(np.concatenate([np.full((len(sites), 1), batch), sites], 1))
    rows = np.concatenate(parts)
    return torch.from_numpy(rows[rng.permutation(len(rows))].astype(np.int32))


def features(rows, channels, dtype, seed=1):
    values = generator(seed).uniform(-1, 1, (rows, channels))
    return torch.from_numpy(values).to(dtype)


def tensor(me, dtype, coordinates, channels=3, seed=1, **arguments):
    """Return a sparse tensor and the leaf that its features come from."""
    leaf = features(len(coordinates), channels, dtype, seed).requires_grad_()
    return me.SparseTensor(leaf, coordinates=coordinates, **arguments), leaf


def fill(module, dtype, seed=2):
    """Give a module weights by seed, in the order of its parameters."""
    rng = generator(seed)
    module.to(dtype)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = rng.uniform(-1, 1, tuple(parameter.shape))
            if parameter.dim() > 1 and parameter.shape[0] > 1:
                values = values * np.sqrt(3 / np.prod(parameter.shape[:-1]))
            else:
                values = 0.1 * values + (1 if name.endswith("weight") else 0)
            parameter.copy_(torch.from_numpy(values))
    return module


def upstream(coordinates, channels, dtype):
    """Return the gradient of each row: a multiple of 1/16 that its coordinate decides."""
    rows = coordinates.to(torch.int64)
    primes = torch.tensor([3, 5, 7, 11, 13, 19][: rows.shape[1]])
    base = (rows * primes).sum(1, keepdim=True) + 17 * torch.arange(channels)
    return (((base * 37) % 41) - 20).to(dtype) / 16


def backward(out):
    """Backpropagate a sparse tensor's rows."""
    out.F.backward(upstream(out.C, out.F.shape[1], out.F.dtype))


def backward_rows(values):
    """Backpropagate rows whose order is the caller's."""
    rows = torch.arange(len(values)).reshape(-1, 1)
    values.backward(upstream(rows, values.shape[1], values.dtype))


def gradients(leaf, module=None):
    found = {"x": leaf.grad}
    if module is not None:
        found.update({name: p.grad for name, p in module.named_parameters()})
    return {name: grad for name, grad in found.items() if grad is not None}


def pairs(kernel_map):
    """Return a kernel map as sorted rows ``int32[M, 3]``: tap, input row, output row."""
    parts = [np.zeros((0, 3), np.int32)]
    for tap, rows in kernel_map.items():
        inputs, outputs = rows.numpy()[:2]
        parts.append(np.stack([np.full_like(inputs, tap), inputs, outputs], 1))
    rows = np.concatenate(parts).astype(np.int32)
    return torch.from_numpy(rows[np.lexsort(rows.T[::-1])])


def flat(value, name=""):
    """Return the arrays of a nested result by dotted name.

    A sparse tensor or a field ``out`` gives ``out.C``, ``out.F`` and, if it is sparse,
    ``out.stride``.
    """
    if isinstance(value, torch.Tensor):
        return {name: value.detach().numpy().copy()}
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, (list, tuple)) and not all(isinstance(v, (int, str)) for v in value):
        children = enumerate(value)
    elif hasattr(value, "F") and hasattr(value, "C"):
        children = [("C", value.C), ("F", value.F)]
        if hasattr(value, "coordinate_map_key"):
            children.append(("stride", list(value.tensor_stride)))
    else:
        return {name: np.asarray(value)}
    found = {}
    for key, child in children:
        found.update(flat(child, f"{name}.{key}" if name else str(key)))
    return found
