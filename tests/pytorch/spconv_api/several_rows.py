"""Layers on voxels that occur several times, in a process of their own, by spconv or by voxax.

    python several_rows.py FILE spconv|voxax

Writes tensors by name, in float64: outputs, gradients and pairs.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import networks
import torch


def cloud(ndim: int, rows: int = 60) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Two scenes in which about half of the rows share a voxel with another."""
    generator = torch.Generator().manual_seed(ndim)
    shape = [{1: 24, 2: 6, 3: 4}[ndim] + axis for axis in range(ndim)]
    columns = [torch.randint(size, (rows,), generator=generator) for size in (2, *shape)]
    features = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return features, torch.stack(columns, 1).int(), shape


def results(spconv: Any, functional: Any, ops: Any, utils: Any) -> dict[str, torch.Tensor]:
    """Return the tensors by name; the arguments are modules of spconv, or of voxax."""
    found: dict[str, torch.Tensor] = {}
    made = utils.PointToVoxel([1.0, 1.0], [0, 0, 4, 4], 3, 10, 4, torch.device("cpu"))
    points = torch.tensor([[2.5, 0.5, 1.0], [2.6, 0.1, 4.0]])
    found |= zip(("points", "cells", "numbers"), made(points, empty_mean=True), strict=True)

    def note(name: str, out: Any, *leaves: torch.Tensor) -> None:
        values = out if isinstance(out, torch.Tensor) else out.features
        if values is not out:
            found[f"{name} indices"] = out.indices
        found[f"{name} values"] = values.detach()
        loss = (values * torch.arange(1, values.numel() + 1).reshape(values.shape)).sum()
        for number, grad in enumerate(torch.autograd.grad(loss, leaves)):
            found[f"{name} gradient {number}"] = grad

    for ndim in (1, 2, 3):
        features, indices, shape = cloud(ndim)
        leaf = features.requires_grad_()
        x = spconv.SparseConvTensor(leaf, indices, shape, 2)

        def layer(kind: str, *args: Any, ndim: int = ndim, **options: Any) -> Any:
            torch.manual_seed(0)
            return getattr(spconv, f"{kind}{ndim}d")(*args, **options).double()

        for name, made in {
            "submanifold": layer("SubMConv", 3, 4, 3),
            "dilated": layer("SubMConv", 3, 4, (5, 3, 3)[:ndim], dilation=2),
            "strided": layer("SparseConv", 3, 4, 3, 2, 1),
            "unstrided": layer("SparseConv", 3, 4, 2),
            "transposed": layer("SparseConvTranspose", 3, 4, 3, 2),
            "pointwise": layer("SubMConv", 3, 4, 1),
        }.items():
            note(f"{ndim} {name}", made(x), leaf, *made.parameters())
        native = {"algo": spconv.ConvAlgo.Native}
        net = [
            layer("SubMConv", 3, 3, 3, indice_key="same", **native),
            layer("SubMConv", 3, 3, 3, indice_key="same", **native),
            layer("SparseConv", 3, 4, 3, 2, 1, indice_key="down", **native),
            layer("SparseInverseConv", 4, 3, 3, "down", **native),
            layer("SubMConv", 3, 3, 3, indice_key="same", **native),
        ]
        y = x
        for module in net:
            y = module(y)
        note(f"{ndim} network", y, leaf, *(p for module in net for p in module.parameters()))
        for key in ("same", "down"):
            data = y.find_indice_pair(key)
            found[f"{ndim} {key} pairs"] = data.indice_pairs
            found[f"{ndim} {key} numbers"] = data.indice_pair_num
        pooled = layer("SparseMaxPool", 2, 2)(x)
        note(f"{ndim} pooling", pooled, leaf)
        note(f"{ndim} dense", x.dense(), leaf)
        total = functional.sparse_add(x, pooled if pooled.spatial_shape == shape else x)
        order = torch.tensor(
            sorted(range(len(total.indices)), key=total.indices.tolist().__getitem__)
        )
        found[f"{ndim} sum"] = total.features.detach()[order]
        distinct = torch.unique(indices, dim=0)
        distinct = distinct[
            torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0))
        ]
        for rows, subm in itertools.product((indices, distinct.contiguous()), (True, False)):
            ones, sizes = [1] * ndim, ([3] * ndim, [1 if subm else 2] * ndim, [1] * ndim)
            arguments = (rows, 2, shape, spconv.ConvAlgo.Native, *sizes, ones, [0] * ndim, subm)
            out, pairs, numbers = ops.get_indice_pairs(*arguments)
            name = f"{ndim} {len(rows)} {subm}"
            found |= {f"{name} outputs": out, f"{name} pairs": pairs, f"{name} numbers": numbers}
            weight = torch.empty(5, *sizes[0], 3, dtype=torch.float64)
            weight.copy_(torch.arange(weight.numel()).reshape(weight.shape) % 7)
            call = functional.indice_subm_conv if subm else functional.indice_conv
            at = leaf[: len(rows)]
            values = call(at, weight, pairs, numbers, len(out), spconv.ConvAlgo.Native)
            note(f"{name} of pairs", values, leaf)
    return found


def main() -> None:
    file, by = sys.argv[1:]
    torch.set_num_threads(1)
    networks.start(by)
    import spconv.pytorch as spconv
    from spconv.pytorch import functional, ops, utils

    torch.save(results(spconv, functional, ops, utils), file)


if __name__ == "__main__":
    main()
