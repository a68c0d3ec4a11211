"""cutlass_implicit_gemm: implicit GEMM in CUTLASS' Python DSL, for NVIDIA's Hopper and later.

``gpu_cutlass_kernel.py`` has the kernels. This module decides whether they can run, and chooses
tile sizes. The sum of a product can be cut into ``split_k_slices`` slices, whose float32 results
are added in order. A slice has some of the taps of a tile of rows or, in wgrad, some of the pairs
of a tap. So even a map with few tiles of rows keeps all cores busy.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp

from voxax.hardware import HardwareInfo
from voxax.kernels.implicit_gemm import gpu
from voxax.kernels.implicit_gemm.tap_order import tiles_of
from voxax.kernels.kernel import EVERY_PRODUCT, Kernel, Parameters, Problem, Views, first_of

PACKAGE = "nvidia-cutlass-dsl"
_LEAST_VERSION = (4, 8)
# (rows, columns, warps along both) of a tile; ``mma_tile`` is the index. The rows of wgrad are
# input channels.
_TILES = (
    (128, 128, (2, 4)),
    (64, 128, (2, 2)),
    (128, 64, (2, 2)),
    (64, 64, (2, 2)),
)
_DEPTH, _STAGES = 64, 3
_SLICES = (1, 2, 4, 8)
# The largest size of the sums of several slices, which are written to memory.
_MOST_SLICED_BYTES = 2**29
# Compute capability of Hopper, for which the kernels were compiled.
_LEAST_CAPABILITY = (9, 0)
_DTYPES = ("float16", "bfloat16")
# Numbers in a copy of 16 bytes, which starts at a multiple of 16 bytes.
_PIECE = 8


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why the CUTLASS kernels cannot run this problem, or None if they can."""
    if problem.platform != "gpu":
        return f"runs on NVIDIA GPUs only, not on {problem.platform}"
    reason = gpu.unfit(problem, hardware)
    if reason is not None:
        return reason
    capability = _numbers(hardware.generation or "")
    if capability is None:
        return f"runs on NVIDIA GPUs only, not on {hardware.generation or hardware.device_kind}"
    if capability < _LEAST_CAPABILITY:
        least = ".".join(map(str, _LEAST_CAPABILITY))
        return f"needs compute capability {least}, this GPU has {hardware.generation}"
    if problem.dtype not in _DTYPES:
        return f"multiplies {' and '.join(_DTYPES)} on tensor cores, got {problem.dtype}"
    channels = (
        problem.in_channels // problem.layer.groups,
        problem.out_channels // problem.layer.groups,
    )
    if any(c % _PIECE for c in channels):
        return (
            f"needs multiples of {_PIECE} channels, as it copies 16 bytes at a time, got "
            f"{channels[0]} and {channels[1]}"
        )
    if not space(problem, hardware):
        return f"has no tile that fits {hardware.shared_memory_bytes} bytes of shared memory"
    return _absence()


def _absence() -> str | None:
    """Return the reason why the CUTLASS DSL cannot be used (no package or too old), or None."""
    least = ".".join(map(str, _LEAST_VERSION))
    how = f"install it with pip install '{PACKAGE}>={least}' (or voxax[cutlass])"
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return f"needs the package {PACKAGE}, which is not installed: {how}"
    numbers = _numbers(".".join(re.findall(r"\d+", version)[:2]))
    if numbers is None or numbers < _LEAST_VERSION:
        return f"needs {PACKAGE} {least}, {version} is installed: {how}"
    return None


def _numbers(text: str) -> tuple[int, ...] | None:
    """Parse a version or compute capability such as ``9.0`` to integers; None for other texts."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(p.isdigit() for p in parts) else None


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure: the size of a tile and the number of slices of a sum.

    A slice is a part of the sum over taps or pairs. Earlier parameters have a number of slices with
    which tiles times slices is nearer to the number of cores.
    """
    limit = hardware.shared_memory_bytes or 0
    wgrad = problem.product == "wgrad"
    size = math.prod(problem.result_shape)
    found = [
        (("accumulator_type", "float32"), ("mma_tile", tile), ("split_k_slices", slices))
        for slices, tile in itertools.product(_SLICES, range(len(_TILES)))
        if slices == 1 or 4 * slices * size <= _MOST_SLICED_BYTES
    ]
    fitting = [p for p in found if shared_bytes(problem, p) <= limit]
    tiles = problem.layer.num_offsets if wgrad else -(-problem.out_rows // _TILES[0][0])
    wanted = (hardware.cores or 1) / max(tiles, 1)
    return tuple(sorted(fitting, key=lambda p: abs(int(dict(p)["split_k_slices"]) - wanted)))


def shape_of(problem: Problem, parameters: Parameters) -> dict[str, Any]:
    """Return the tile that ``parameters`` select, as the fields of ``gpu_cutlass_kernel.Tile``.

    The result is a dict, so that CUTLASS need not be imported.
    """
    rows, columns, warps = _TILES[int(dict(parameters)["mma_tile"])]
    gathered = problem.gathered_channels
    # Steps of wgrad run over pairs, others over channels; few channels need no deep step.
    shallow = problem.product != "wgrad" and gathered // problem.layer.groups <= _DEPTH // 2
    depth = _DEPTH // 2 if shallow else _DEPTH
    return {
        "rows": rows,
        "columns": columns,
        "depth": depth,
        "stages": _STAGES,
        "warps": warps,
    }


def shared_bytes(problem: Problem, parameters: Parameters) -> int:
    """Return the bytes of shared memory of a block of threads, for all stages of both operands."""
    shape = shape_of(problem, parameters)
    return 2 * (shape["rows"] + shape["columns"]) * shape["depth"] * shape["stages"]


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`. ``parameters`` select the tile and the number of slices.
    """
    groups, shape, dtype = problem.layer.groups, problem.result_shape, a.dtype
    wgrad = problem.product == "wgrad"
    if 0 in (*a.shape, *b.shape, *shape):
        return jnp.zeros(shape, dtype)
    # Imported where it runs, because the package is an extra.
    from voxax.kernels.implicit_gemm import gpu_cutlass_kernel as kernel

    slices = int(dict(parameters)["split_k_slices"])
    tile = kernel.Tile(**shape_of(problem, parameters))
    if wgrad:
        parts = kernel.weight_product(
            tile, views["pairs"], views["pair_starts"], a, b, groups, slices
        )
        return jnp.sum(parts, axis=0).reshape(shape).astype(dtype)
    table, w = gpu.table_and_weight(problem, b, views)
    tiles = tiles_of(table, tile.rows)
    out = dtype if slices == 1 else jnp.float32
    y = kernel.product(tile, table, tiles.taps[:, :-1], tiles.counts, a, w, slices, out)
    return (y[0] if slices == 1 else jnp.sum(y, axis=0)).astype(dtype)


CUTLASS = Kernel(
    name="cutlass_implicit_gemm",
    kind="dense",
    products=EVERY_PRODUCT,
    platform="gpu",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    reads=gpu.reads,
    apply=apply,
    views=gpu.TRITON.views,
    unproven=True,
    revision=4,
    rank=30,
)
