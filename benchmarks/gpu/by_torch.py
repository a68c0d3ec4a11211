"""Plain PyTorch: gather, multiply, add, tap by tap, with the pairs computed before.

And what all libraries on PyTorch share: :func:`measured`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from benchmarks.gpu.rows import STACK, Row
from benchmarks.gpu.stopwatch import REHEARSAL, timed
from benchmarks.peers.by_torch import tap_by_tap
from benchmarks.tpu.scans import neighbors

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not REHEARSAL:
    raise ImportError(f"PyTorch {torch.__version__} sees no GPU")

UNWRITTEN = {"note": "not written here"}


class Library(Protocol):
    """3x3x3 submanifold layers of a library on PyTorch."""

    def sites(self, coords: torch.Tensor, x: torch.Tensor) -> Any:
        """What a layer takes beside the features ``x``; the map is in it, or is made later."""
        ...

    def layer(self, channels: int, bias: bool) -> torch.nn.Module: ...

    def apply(self, layer: torch.nn.Module, sites: Any, x: torch.Tensor) -> tuple[Any, Any]:
        """The sites with their map, and the layer's result."""
        ...


def versions() -> dict[str, str]:
    return {"PyTorch": torch.__version__}


def wait(result: Any) -> None:
    del result
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measured(library: Library, row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the times of a map, a layer with its map made before, or layers with their map."""
    coords = torch.from_numpy(cloud["coords"]).to(DEVICE)
    if row.operation == "map":
        ones = torch.ones(len(coords), 1, device=DEVICE)
        one = library.layer(1, False).to(DEVICE)

        def build() -> Any:
            with torch.no_grad():  # one channel: nearly all of it is the map
                return library.apply(one, library.sites(coords, ones), ones)

        return timed(build, wait)
    if row.operation == "layer":
        x, _, dy = operands(row, len(coords))
        layer = library.layer(row.channels, False).to(DEVICE, x.dtype)
        layer.train(row.trains)
        with torch.no_grad():
            sites, _ = library.apply(layer, library.sites(coords, x), x)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return library.apply(layer, sites, x)[1]

        params = tuple(p for p in layer.parameters() if p.requires_grad)
        return timed(stepped(row, forward, x, params, dy), wait)
    if row.operation.startswith(STACK):
        return timed(_stack(library, row, coords), wait)
    return UNWRITTEN


def _stack(library: Library, row: Row, coords: torch.Tensor) -> Any:
    """As FlexGEMM's benchmark: the map, the layers, and the gradients of their parameters."""
    dtype = getattr(torch, row.dtype)
    number = int(row.operation.removeprefix(STACK))
    layers = [library.layer(row.channels, True).to(DEVICE, dtype) for _ in range(number)]
    params = [p for layer in layers for p in layer.parameters()]
    x = torch.randn(len(coords), row.channels, device=DEVICE).to(dtype)
    dy = torch.ones_like(x)

    def run() -> Any:
        sites, out = library.sites(coords, x), x
        for layer in layers:
            sites, out = library.apply(layer, sites, out)
        return torch.autograd.grad(out, params, dy)

    return run


def measure(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    if row.operation == "map":
        return timed(_search(cloud["coords"]), wait)
    if row.operation != "layer":
        return UNWRITTEN
    x, w, dy = operands(row, len(cloud["coords"]))
    table = torch.from_numpy(neighbors(cloud["coords"][:, 1:])).to(DEVICE)
    forward = tap_by_tap(table)
    run = stepped(row, lambda x: forward(x, w), x, (w,), dy)
    return timed(run, wait)


def operands(row: Row, rows: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, row.channels), (27, row.channels, row.channels), (rows, row.channels)
    dtype = getattr(torch, row.dtype)
    return tuple(torch.randn(*s, generator=generator).to(DEVICE, dtype) for s in shapes)


def stepped(
    row: Row, forward: Any, x: torch.Tensor, params: tuple[torch.Tensor, ...], dy: torch.Tensor
) -> Any:
    """One call of ``forward``, with the gradients of all where the row trains."""
    if not row.trains:

        def infer() -> torch.Tensor:
            with torch.no_grad():
                return forward(x)

        return infer
    wanted = tuple(tensor.requires_grad_() for tensor in (x, *params))
    return lambda: torch.autograd.grad(forward(x), wanted, dy)


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
