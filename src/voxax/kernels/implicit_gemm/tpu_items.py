"""Implicit GEMM on TPUs for maps with few neighbors: rows moved by items, 8 at a time.

``items.py`` says what an item is, ``tpu_items_kernel.py`` how they are multiplied. Here: for which
problems this is worth it, and the operands as the kernel wants them.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.geometry.kernel_maps import View
from voxax.geometry.kernel_spec import KernelSpec
from voxax.hardware import HardwareInfo
from voxax.kernels.implicit_gemm.items import CHUNK, GROUP, PASS, PIECE, Shape, on_host
from voxax.kernels.implicit_gemm.windows import (
    CHANNELS,
    SPILLED,
    allowed,
    free_smem,
    parts_of,
    with_rows,
)
from voxax.kernels.kernel import Parameters, Problem, Views

BODY = ("body", "items")
"""The parameter that tells these kernels from the window kernels."""
# Neighbors of a row. A row has about 0.36 times as many items, and a window kernel's time does not
# depend on them: counted on v5e and v6e with 128 channels, lists take less time up to 1.5 to 2.2
# items a row, and more with more channels.
_FEW, _MOST = 4.0, 6.0
_MOST_TAPS = 64
# Of 19 bits are the input rows of items in the program that lists them.
_MOST_ROWS = 2**19
# Input rows that a step brings to vector memory, of two blocks.
_LOADED = 2048


def is_items(parameters: Parameters) -> bool:
    """Whether the parameters are those of :func:`candidates`."""
    return BODY in parameters


def candidates(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """The parameters, or none where rows have too many neighbors, or the operands do not fit.

    How many neighbors a row has is known of concrete maps only, see ``Layer.density``.
    """
    density = problem.layer.density
    fits = density is not None and density <= _MOST and _fits(problem, hardware)
    return ((BODY,),) if fits else ()


def is_preferred(problem: Problem) -> bool:
    """Whether lists are taken unmeasured, where they are candidates."""
    density = problem.layer.density
    return density is not None and density <= _FEW and problem.in_channels > CHANNELS // 2


def _fits(problem: Problem, hardware: HardwareInfo) -> bool:
    parts = parts_of(problem)
    return (
        problem.product == "forward"
        and (hardware.cores or 1) == 1
        and problem.layer.num_offsets <= _MOST_TAPS
        and problem.gathered_rows <= _MOST_ROWS
        and CHANNELS // 4 < problem.in_channels <= (CHANNELS if parts > 1 else 2 * CHANNELS)
        and _vmem_bytes(problem) <= (hardware.vmem_bytes or 0) * 15 // 16
        and _smem_bytes(problem) <= free_smem(hardware)
    )


def _padded(channels: int) -> int:
    """Channels of an operand: half a register, or whole ones."""
    half = CHANNELS // 2
    return half if channels <= half else channels + -channels % CHANNELS


def product(
    problem: Problem, parameters: Parameters, x: jax.Array, w: jax.Array, views: Views
) -> jax.Array:
    """Run a forward product; ``("interpret", 1)`` among the parameters runs it on any platform."""
    # Not with voxax: only programs that use it need Pallas.
    from voxax.kernels.implicit_gemm import tpu_items_kernel

    items, parts = views["items"], parts_of(problem)
    result, shape = product_dtype(x.dtype), problem.result_shape
    if 0 in (*x.shape, *w.shape, *shape):
        return jnp.zeros(shape, result)
    c_in, c_out = map(_padded, (problem.in_channels, problem.out_channels))
    total = accumulator(x.dtype)
    config = tpu_items_kernel.ItemConfig(
        rows=problem.out_rows,
        shape=Shape.of(problem.out_rows, problem.layer.num_offsets),
        parts=parts,
        words=2 if c_in > CHANNELS else 1,
        vmem_bytes=allowed(_vmem_bytes(problem)),
        interpret=bool(dict(parameters).get("interpret", 0)),
        total=total,
        result=result,
    )
    operand = jnp.float32 if parts > 1 else jnp.bfloat16
    x = jnp.pad(x.astype(operand), ((0, 0), (0, c_in - x.shape[1])))
    w = jnp.pad(w, ((0, 0), (0, c_in - w.shape[1]), (0, c_out - w.shape[2])))
    header = items[:, -1]
    y = tpu_items_kernel.product(config, header[:, 0], header[:, 1], items, x, _in_parts(w, parts))
    return y[:, : problem.out_channels]


def _in_parts(w: jax.Array, parts: int) -> jax.Array:
    """``[K, C_in, C_out]`` to ``bfloat16[K, parts * C_in, C_out]``, the largest part first.

    ``reduce_precision``, since compilers may take a conversion there and back for nothing.
    """
    found = []
    for _ in range(parts - 1):
        found.append(jax.lax.reduce_precision(w, exponent_bits=8, mantissa_bits=7))
        w = w - found[-1]
    return jnp.concatenate([*found, w], axis=1).astype(jnp.bfloat16)


def _vmem_bytes(problem: Problem) -> int:
    """Vector memory of a call, with a quarter to spare for XLA's own arrays."""
    parts, taps = parts_of(problem), problem.layer.num_offsets
    shape = Shape.of(problem.out_rows, taps)
    lanes = [
        _padded(c) + -_padded(c) % CHANNELS for c in (problem.in_channels, problem.out_channels)
    ]
    c_in, c_out = lanes
    operand, word = 4 if parts > 1 else 2, 4
    loaded = problem.gathered_rows + -problem.gathered_rows % _LOADED
    rows = max(loaded, shape.blocks * shape.block_rows) * CHANNELS * word
    sums = (shape.block_rows + GROUP) * c_out * word
    written = 2 * shape.block_rows * c_out * jnp.dtype(product_dtype(problem.dtype)).itemsize
    weight = parts * taps * c_in * c_out * 2
    pass_rows = GROUP * PASS * (parts * c_in * 2 + c_out * word)
    words = 2 * CHUNK * PASS * word
    working = sums + written + weight + pass_rows + words + 2 * _LOADED * c_in * operand + SPILLED
    return with_rows(working, rows)


def _smem_bytes(problem: Problem) -> int:
    shape = Shape.of(problem.out_rows, problem.layer.num_offsets)
    return 4 * (2 * CHUNK * (2 * PASS + PASS // PIECE) + 2 * shape.blocks)


def _build(neighbors: jax.Array, spec: KernelSpec | None) -> jax.Array:
    """The lists, found on the device.

    Returns:
      ``int32[blocks, rows, 128]``, see ``items.Shape``. Of each block: the input rows at which
      items begin; the rows of the block at which their groups do; words of 8 numbers of 4 bits, for
      row ``j`` of the group the place of its neighbor plus 8, or 0 (each ``list_rows``); the taps
      of pieces (``list_rows / 16``). In the last 8 rows the first number counts the rows of the
      list that are in use, what is after them is undefined. The second counts the first groups of
      the block in which each row is its own neighbor under the middle tap: they have no items of
      it.
    """
    from voxax.kernels.implicit_gemm.items_kernel import find_items

    del spec
    return jax.lax.platform_dependent(
        neighbors, tpu=find_items, default=functools.partial(find_items, interpret=True)
    )


VIEWS = {"items": View("items", _build, on_host)}
"""The lists of the neighbor table; no product reads those of the transposed one."""
