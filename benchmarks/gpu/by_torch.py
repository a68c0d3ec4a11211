"""Plain PyTorch: gather, multiply, add, tap by tap, with the pairs computed before."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.gpu.rows import Row
from benchmarks.gpu.stopwatch import timed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def versions() -> dict[str, str]:
    return {"PyTorch": torch.__version__}


def wait(result: Any) -> None:
    del result
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measure(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    if row.operation == "map":
        return timed(_search(cloud["coords"]), wait)
    if row.operation != "layer":
        return {"note": "plain PyTorch has no such network: not written here"}
    x, w, dy = operands(row, len(cloud["coords"]))
    columns = torch.from_numpy(cloud["neighbors"]).to(DEVICE).unbind(1)
    outs = [torch.nonzero(column >= 0)[:, 0] for column in columns]
    ins = [column[out].long() for column, out in zip(columns, outs, strict=True)]

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        result = x.new_zeros(len(x), w.shape[2])
        for rows, out, matrix in zip(ins, outs, w.unbind(0), strict=True):
            result.index_add_(0, out, x.index_select(0, rows) @ matrix)
        return result

    return timed(stepped(row, forward, x, w, dy), wait)


def operands(row: Row, rows: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, row.channels), (27, row.channels, row.channels), (rows, row.channels)
    dtype = getattr(torch, row.dtype)
    return tuple(torch.randn(*s, generator=generator).to(DEVICE, dtype) for s in shapes)


def stepped(row: Row, forward: Any, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Any:
    """One call of ``forward``, with both gradients where the row trains."""
    if not row.trains:

        def infer() -> torch.Tensor:
            with torch.no_grad():
                return forward(x, w)

        return infer
    x.requires_grad_()
    w.requires_grad_()
    return lambda: torch.autograd.grad(forward(x, w), (x, w), dy)


def _search(coords: np.ndarray) -> Any:
    """Sorted keys, and one binary search for each tap."""
    rows = torch.from_numpy(coords[:, 1:]).long().to(DEVICE) + 1
    _, y, z = (int(n) + 2 for n in rows.max(0).values)
    steps = torch.tensor([y * z, z, 1], device=DEVICE)
    keys = (rows * steps).sum(1)
    offsets = (torch.cartesian_prod(*[torch.arange(-1, 2)] * 3).to(DEVICE) * steps).sum(1)

    def run() -> torch.Tensor:
        wanted = keys[:, None] + offsets
        at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        return torch.where(keys[at] == wanted, at, -1)

    return run
