"""Plain PyTorch: what one writes without a library for sparse convolution.

A convolution of the dense grid was never the fastest form in 120 cases on three processors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from benchmarks.peers.cases import Case, Contestant, Makers, sgemm_operands

# Of one matrix. A training step holds several.
_LIMIT = 2**30


def setup(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = True


def versions() -> dict[str, str]:
    return {"PyTorch": torch.__version__}


def sgemm() -> Contestant:
    a, b = map(torch.from_numpy, sgemm_operands())
    return Contestant(lambda: a @ b, lambda result: {"out": result.numpy()})


def contestants(case: Case, arrays: dict[str, np.ndarray]) -> Makers:
    if case.operation == "minkunet18":
        return {}
    if case.operation == "map3":
        return {"searchsorted": partial(_search, case, arrays)}
    return {
        "loop": partial(_loop, case, arrays),
        "im2col": partial(_im2col, case, arrays),
    }


def _layer(
    case: Case,
    arrays: dict[str, np.ndarray],
    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Contestant:
    features, weight, cotangent = (
        torch.from_numpy(arrays[name]) for name in ("features", "weight", "cotangent")
    )
    return differentiated(case, features, weight, cotangent, forward)


def differentiated(
    case: Case,
    features: torch.Tensor,
    weight: torch.Tensor,
    cotangent: torch.Tensor,
    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Contestant:
    """``forward`` alone, or with the gradients of features and weight, by the case's mode."""
    if not case.trains:

        def infer() -> torch.Tensor:
            with torch.no_grad():
                return forward(features, weight)

        return Contestant(infer, lambda out: {"out": out.numpy()})
    x, w = features.requires_grad_(), weight.requires_grad_()

    def train() -> tuple[torch.Tensor, ...]:
        out = forward(x, w)
        return out.detach(), *torch.autograd.grad(out, (x, w), cotangent)

    names = ("out", "features_grad", "weight_grad")
    return Contestant(
        train, lambda result: {n: v.numpy() for n, v in zip(names, result, strict=True)}
    )


def tap_by_tap(neighbors: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a layer on a neighbor table, which gathers, multiplies and adds."""
    outs = [torch.nonzero(column >= 0)[:, 0] for column in neighbors.unbind(1)]
    ins = [column[out].long() for column, out in zip(neighbors.unbind(1), outs, strict=True)]

    def forward(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result = features.new_zeros(len(neighbors), weight.shape[2])
        for rows, out, matrix in zip(ins, outs, weight.unbind(0), strict=True):
            if len(rows):
                result.index_add_(0, out, features.index_select(0, rows) @ matrix)
        return result

    return forward


def _loop(case: Case, arrays: dict[str, np.ndarray]) -> Contestant:
    return _layer(case, arrays, tap_by_tap(torch.from_numpy(arrays["neighbors"])))


def _im2col(case: Case, arrays: dict[str, np.ndarray]) -> Contestant | str:
    """All neighbors beside each other, zeros where there is none: one product."""
    rows, taps = arrays["neighbors"].shape
    size = rows * taps * case.channels * 4
    if size > _LIMIT:
        return f"its matrix has {size / 2**30:.1f} GiB"
    # One row of zeros, after the others, is what a missing neighbor points to.
    missing = len(arrays["coords"])
    table = torch.from_numpy(np.where(arrays["neighbors"] < 0, missing, arrays["neighbors"]))
    flat = table.long().reshape(-1)

    def forward(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([features, features.new_zeros(1, features.shape[1])])
        matrix = padded.index_select(0, flat).reshape(rows, -1)
        return matrix @ weight.reshape(-1, weight.shape[2])

    return _layer(case, arrays, forward)


def _search(case: Case, arrays: dict[str, np.ndarray]) -> Contestant:
    """Sorted keys and one binary search for every tap; only shuffled ones need the sorting."""
    coords = torch.from_numpy(arrays["coords"]).long()
    y, z = (int(extent) + 2 for extent in arrays["grid"][1:])
    steps = torch.tensor([y * z, z, 1])
    offsets = torch.cartesian_prod(*[torch.arange(-1, 2)] * 3) @ steps

    def run() -> list[tuple[torch.Tensor, torch.Tensor]]:
        # One more cell on every side: a step over the border is no other cell's key.
        keys, order = (coords[:, 1:] + 1) @ steps, None
        if case.mode == "shuffled":
            keys, order = torch.sort(keys)
        pairs = []
        for offset in offsets:
            wanted = keys + offset
            at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
            out = torch.nonzero(keys[at] == wanted)[:, 0]
            pair = at[out], out
            pairs.append(pair if order is None else (order[pair[0]], order[pair[1]]))
        return pairs

    return Contestant(run, lambda pairs: {"pairs": np.asarray(sum(len(p[0]) for p in pairs))})
