"""implicit_gemm on TPUs for maps with few neighbors: choice of this kernel, and its call.

The kernel (``tpu_items_kernel.py``) moves up to 8 rows together, by lists of items (``items.py``).
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
"""The parameter that distinguishes this kernel from the window kernels."""
# Items are preferred up to a mean of _FEW neighbors per row, and candidates up to _MOST. A row has
# about 0.36 times as many items as neighbors. The time of a window kernel does not depend on the
# number of neighbors. Counted on v5e and v6e with 128 channels, items take less time than windows
# up to 1.5 to 2.2 items per row. With more channels this limit is higher.
_FEW, _MOST = 4.0, 6.0
_MOST_TAPS = 64
# The program that lists the items stores their input rows in 19 bits.
_MOST_ROWS = 2**19
# Number of input rows that one step loads into vector memory, which holds two buffers of them.
_LOADED = 2048


def is_items(parameters: Parameters) -> bool:
    """Return whether parameters select the kernel of this module, not that of ``tpu.py``."""
    return BODY in parameters


def candidates(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters of the items kernel to measure: one candidate or ``()``.

    There is a candidate only for forward on a chip with one core, if rows have few neighbors and
    the kernel supports the numbers of taps, rows and channels. The mean number of neighbors is
    known only for maps that are not traced, see ``Layer.density``.
    """
    density = problem.layer.density
    fits = density is not None and density <= _MOST and _fits(problem, hardware)
    return ((BODY,),) if fits else ()


def is_preferred(problem: Problem) -> bool:
    """Return whether the items kernel, if it is a candidate, is preferred to the window kernel."""
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
    """Round ``channels`` up to 64, the lanes of half a register, or to a multiple of 128."""
    half = CHANNELS // 2
    return half if channels <= half else channels + -channels % CHANNELS


def product(
    problem: Problem, parameters: Parameters, x: jax.Array, w: jax.Array, views: Views
) -> jax.Array:
    """Return the forward product of features ``x`` and weight ``w``, ``[M, C_out]``.

    ``views`` has the array ``items``. With ``("interpret", 1)`` in ``parameters``, the kernel is
    emulated, so that it runs on any platform.
    """
    # Imported here, because only programs that use this kernel need Pallas.
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
    """Return ``w [K, C_in, C_out]`` as ``bfloat16[K, parts * C_in, C_out]``, largest part first.

    Each weight is the sum of ``parts`` bfloat16 numbers: exact float32 for 3, rounded for 1.
    """
    # w = w_1 + w_2 + w_3: each part takes the leading 8 bits of the rest. ``reduce_precision``
    # rounds, because compilers may remove a conversion to bfloat16 and back.
    found = []
    for _ in range(parts - 1):
        found.append(jax.lax.reduce_precision(w, exponent_bits=8, mantissa_bits=7))
        w = w - found[-1]
    return jnp.concatenate([*found, w], axis=1).astype(jnp.bfloat16)


def _vmem_bytes(problem: Problem) -> int:
    """Return the bytes of vector memory that a call needs, a quarter of it for XLA's arrays."""
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
    """Build the lists of items of a neighbor table ``int32[M, K]`` on the device.

    An item describes the neighbors of 8 output rows (a group) that one tap finds within 8
    consecutive input rows. 16 items (a piece) share a tap. ``spec`` is not used.

    Returns:
      ``int32[blocks, rows, 128]``, see ``items.Shape``. The rows of each block are:

      - ``list_rows`` with the input row at which each item begins;
      - ``list_rows`` with the row of the block at which the item's group begins;
      - ``list_rows`` with a word of 8 numbers of 4 bits: number ``j`` is the place of the neighbor
        of row ``j`` of the group in the item's input rows, plus 8, or 0 without a neighbor;
      - ``list_rows / 16`` with the tap of each piece;
      - 8 rows with two counts. Column 0 is the number of list rows in use; the other list rows are
        undefined. Columns 1 to 127 are the number of leading groups of the block whose rows are
        their own neighbors under the middle tap. These groups have no items of the middle tap.
    """
    from voxax.kernels.implicit_gemm.items_kernel import find_items

    del spec
    return jax.lax.platform_dependent(
        neighbors, tpu=find_items, default=functools.partial(find_items, interpret=True)
    )


VIEWS = {"items": View("items", _build, on_host)}
"""The array ``items`` of the neighbor table. No product reads items of the transposed table."""
