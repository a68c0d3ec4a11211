"""Depthwise products on GPUs in Triton: support checks, choice of block sizes, the kernel call.

The kernel (``gpu_kernel.py``) gathers rows by the neighbor table while it multiplies.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.implicit_gemm import gpu
from voxax.kernels.implicit_gemm.tap_order import tiles_of
from voxax.kernels.kernel import Parameters, Problem, Views, first_of
from voxax.kernels.triton_call import Launch, absence

# (rows, most channels, warps). A program keeps one float32 sum for each row and channel.
_BLOCKS = ((32, 64, 4), (64, 32, 4), (16, 128, 4), (16, 64, 2))
_SPLITS = (4, 16, 64)
_STAGES = 3


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why these kernels cannot run this problem, or None if they can."""
    if problem.layer.kind != "depthwise":
        return f"these kernels take depthwise weights, not {problem.layer.kind} ones"
    return gpu.unfit(problem, hardware) or absence(hardware.generation)


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure: block sizes and, for wgrad, the number of partial sums.

    The numbers of partial sums that suit the number of output rows come first.
    """
    del hardware
    wgrad = problem.product == "wgrad"
    found: dict[Parameters, None] = {}
    few = sum(n * gpu.ROWS_OF_A_PART < problem.out_rows for n in _SPLITS)
    suited = sorted(_SPLITS, key=lambda n: abs(_SPLITS.index(n) - few))
    for splits in suited if wgrad else (1,):
        for rows, channels, warps in _BLOCKS:
            values: dict[str, int | str] = {"body": "triton", "num_warps": warps}
            values["channel_block"] = gpu.side(problem.in_channels, channels)
            values["gemm_block_size" if wgrad else "fwd_block_size"] = rows
            if wgrad:
                values["split_k_factor"] = splits
            found[tuple(sorted(values.items()))] = None
    return tuple(found)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`. With ``("interpret", 1)`` in ``parameters``, the kernel
    is emulated, so that it runs on any platform.
    """
    # Imported where it runs, because the package is an extra.
    from voxax.kernels.depthwise import gpu_kernel

    values = dict(parameters)
    wgrad, shape = problem.product == "wgrad", problem.result_shape
    result = product_dtype(a.dtype)
    if 0 in (*a.shape, *b.shape, *shape):
        return jnp.zeros(shape, result)
    config = gpu_kernel.TileConfig(
        rows=int(values["gemm_block_size" if wgrad else "fwd_block_size"]),
        channels=int(values["channel_block"]),
        splits=int(values.get("split_k_factor", 1)),
        launch=Launch(_STAGES, int(values["num_warps"]), bool(values.get("interpret", 0))),
    )
    if wgrad:
        parts = gpu_kernel.weight_product(config, views["pairs"], views["pair_starts"], a, b)
        return jnp.sum(parts, axis=0).astype(result)
    (name,) = gpu.reads(parameters, problem.product, problem.layer.symmetric)
    tiles = tiles_of(views[name], config.rows)
    reverse = problem.product == "dgrad" and problem.layer.symmetric
    return gpu_kernel.product(config, tiles, a, b, result, reverse=reverse)


TRITON = dataclasses.replace(
    gpu.TRITON,
    name="implicit",
    kind="depthwise",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    apply=apply,
)
