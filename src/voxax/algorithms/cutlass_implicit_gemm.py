"""cutlass_implicit_gemm: implicit GEMM on the tensor cores of NVIDIA GPUs, sums cut into slices.

No code of CUTLASS is inside, and none was tried: docs/gpu.md says why its name and parameters
stand for the best tensor-core kernel that voxax has instead, that of ``implicit_gemm`` with large
tiles. Beyond that one it cuts sums in all products: the taps of a tile go to ``split_k_slices``
programs, whose float32 sums are added in order. So a map of few rows, with few tiles, still has
work for all cores.
"""

from __future__ import annotations

import itertools
import math

import jax

from voxax.algorithms.base import Algorithm, Parameters, Problem
from voxax.algorithms.implicit_gemm import gpu
from voxax.algorithms.rows import EVERY_PRODUCT
from voxax.hardware import HardwareInfo

# What ``mma_tile`` counts: rows, channels of the other operand and of a step, stages, warps.
_TILES = (
    (128, 128, 64, 3, 8),
    (64, 128, 64, 3, 4),
    (128, 64, 64, 4, 4),
    (64, 64, 64, 4, 4),
)
_SLICES = (1, 2, 4, 8)
# Sums of more slices than one are written out.
_MOST_SLICED_BYTES = 2**29
# Compute capability from which on tensor cores take bfloat16.
_LEAST_CAPABILITY = (8, 0)


def _supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    if problem.platform != "gpu":
        return f"runs on NVIDIA GPUs only, not on {problem.platform}"
    reason = gpu.unfit(problem, hardware)
    if reason is not None:
        return reason
    capability = _capability(hardware)
    if capability is None:
        return f"runs on NVIDIA GPUs only, not on {hardware.generation or hardware.device_kind}"
    if capability < _LEAST_CAPABILITY:
        least = ".".join(map(str, _LEAST_CAPABILITY))
        return f"needs compute capability {least}, this GPU has {hardware.generation}"
    if gpu.precision_of(problem) is jax.lax.Precision.HIGHEST:
        return (
            "multiplies on tensor cores, which round float32: give precision='default', or "
            "float16 or bfloat16 features"
        )
    if not _space(problem, hardware):
        return f"has no tile that fits {hardware.shared_memory_bytes} bytes of shared memory"
    return None


def _capability(hardware: HardwareInfo) -> tuple[int, ...] | None:
    numbers = (hardware.generation or "").split(".")
    return tuple(map(int, numbers)) if all(n.isdigit() for n in numbers) else None


def _space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Tiles and slices; few slices first where there are many tiles."""
    limit = hardware.shared_memory_bytes or 0
    wgrad = problem.product == "wgrad"
    channels = problem.in_channels if problem.product == "dgrad" else problem.out_channels
    size = math.prod(problem.weight_shape) if wgrad else problem.out_rows * channels
    found = [
        (("accumulator_type", "float32"), ("mma_tile", tile), ("split_k_slices", slices))
        for slices, tile in itertools.product(_SLICES, range(len(_TILES)))
        if slices == 1 or 4 * slices * size <= _MOST_SLICED_BYTES
    ]
    fitting = [p for p in found if gpu.shared_bytes(problem, _blocks(problem, p)) <= limit]
    tiles = problem.num_offsets if wgrad else -(-problem.out_rows // _TILES[0][0])
    wanted = (hardware.cores or 1) / max(tiles, 1)
    return tuple(sorted(fitting, key=lambda p: abs(int(dict(p)["split_k_slices"]) - wanted)))


def _heuristic(problem: Problem, hardware: HardwareInfo) -> Parameters:
    return _space(problem, hardware)[0]


def _blocks(problem: Problem, parameters: Parameters) -> Parameters:
    """The same as parameters of the kernel."""
    values = dict(parameters)
    tile = _TILES[int(values.get("mma_tile", 0))]
    rows = "gemm_block_size" if problem.product == "wgrad" else "fwd_block_size"
    chosen = dict(gpu.blocks(problem, tile))
    chosen |= {rows: min(tile[0], 64) if problem.product == "wgrad" else tile[0]}
    chosen |= {name: values[name] for name in ("interpret",) if name in values}
    return tuple(sorted(chosen.items()))


def _apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    slices = int(dict(parameters)["split_k_slices"])
    return gpu.run(problem, _blocks(problem, parameters), a, b, views, slices)


ALGORITHM = Algorithm(
    name="cutlass_implicit_gemm",
    kinds=frozenset({"dense", "grouped"}),
    products=EVERY_PRODUCT,
    platforms=frozenset({"any"}),
    revision=2,
    supports=_supports,
    space=_space,
    heuristic=_heuristic,
    views=gpu.views,
    forms=((("accumulator_type", "float32"), ("mma_tile", 0), ("split_k_slices", 1)),),
    apply=_apply,
)
