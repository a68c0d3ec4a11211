"""Dynamic products on TPUs for 2-D grids with few channels: support checks and the kernel call.

XLA stores ``[B, H, W, C]`` with few channels as ``[B, H, C, W]``, with W along the lanes. The
kernels (``tpu_lanes_kernel.py``) read this as ``[B * H * C, W]``, so that no operand is moved. They
are for stride 1 and a W that nearly fills whole registers; ``tpu.py`` is for all other grids.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.dynamic.blocks import channels_of, levels_of, places_of, taps_of
from voxax.kernels.dynamic.grid import grid_of
from voxax.kernels.dynamic.lanes import Lanes, lanes_of
from voxax.kernels.implicit_gemm.windows import CHANNELS, free_smem, parts_of
from voxax.kernels.kernel import Parameters, Problem

LINES = (64, 32, 16, 8)
"""Possible numbers of lines of a block, multiples of every number of positions of a group."""
# The largest part of a register's lanes that may be empty.
_MOST_EMPTY = 0.25


def fits(problem: Problem, hardware: HardwareInfo, pack: int, lines: int, passes: int) -> bool:
    """Return whether ``tpu_lanes_kernel.py`` can run a product with these block sizes.

    Args:
      problem: the product.
      hardware: the chip.
      pack: number of consecutive positions along H that form a group.
      lines: number of lines (indices along H) of a block.
      passes: the largest allowed number of passes (matrix products of a block).
    """
    grid = grid_of(problem)
    if len(grid.stride) != 2 or any(s > 1 for s in grid.stride):
        return False
    if max(problem.in_channels, problem.out_channels) >= CHANNELS:  # XLA keeps these in lanes.
        return False
    high, wide = grid.inputs[1:]
    lanes = lanes_of(problem, pack, lines)
    return (
        wide >= (1 - _MOST_EMPTY) * lanes.width
        and (lines == LINES[-1] or lines <= high)
        and len(lanes.passes) <= passes
        and smem_bytes(lanes) <= free_smem(hardware)
        and vmem_bytes(problem, lanes) <= (hardware.vmem_bytes or 0)
    )


def smem_bytes(lanes: Lanes) -> int:
    """Return the bytes of scalar memory that a kernel call needs."""
    return 4 * (2 * lanes.scenes * lanes.number + len(lanes.passes) * lanes.pack**2)


def vmem_bytes(problem: Problem, lanes: Lanes) -> int:
    """Return the bytes of vector memory that a kernel call needs."""
    size, wide, pack = jnp.dtype(problem.dtype).itemsize, 4, lanes.pack
    source = channels_of(problem.gathered_channels, pack)
    result = channels_of(problem.other_channels, pack)
    weight = pack**2 * source * result
    twice = lanes.taken * source * lanes.width * size
    twice += lanes.lines * result * lanes.width * size
    # A line of levels fills a tile of registers.
    twice += 8 * (lanes.taken if lanes.masks_source else lanes.lines) * lanes.width * wide
    once = len(lanes.slots) * lanes.window * source * lanes.width * size
    taps = (problem.layer.num_offsets + 1) * result * max(source, CHANNELS)
    if problem.product == "wgrad":
        once += len(lanes.passes) * weight * wide
        twice += taps * wide
    else:
        once += (len(lanes.passes) * weight + taps) * size
    # The compiler's stack: operands of a shell's product, and its sums.
    shell = max(len(s) for s in lanes.shells)
    stack = shell * (weight + pack * source * lanes.tile) * size
    stack = (stack + 2 * pack * result * lanes.tile * wide) * parts_of(problem)
    return 2 * twice + once + 2 * stack + (1 << 20)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, sizes: jax.Array
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    ``parameters`` are from :func:`voxax.kernels.dynamic.tpu.parameters` with ``body="lanes"``. The
    operands are as for :class:`voxax.kernels.kernel.Apply`. ``sizes``, ``int32[M]``, has the kernel
    size of each output position.
    """
    # Imported here, because only programs that use these kernels need Pallas.
    from voxax.kernels.dynamic import tpu_lanes_kernel as kernel
    from voxax.kernels.dynamic.tpu_kernel import Steps

    values = dict(parameters)
    pack, lines = int(values["pack"]), int(values["rows"])
    lanes, grid = lanes_of(problem, pack, lines), grid_of(problem)
    blocks = lanes.scenes * lanes.number
    config = kernel.LaneConfig(
        lanes=lanes,
        exact=parts_of(problem) > 1,
        vmem_bytes=vmem_bytes(problem, lanes),
        stripes=min(int(values["stripes"]), blocks),
        repeats=problem.product != "wgrad",
        all_shells=problem.layer.sizes.uniform == "all",
        interpret=bool(values.get("interpret", 0)),
    )
    sizes = jnp.pad(sizes.reshape(grid.outputs), ((0, 0), (0, 0), (0, lanes.width - lanes.wide)))
    whole = _whole_blocks(lanes, sizes)
    if lanes.masks_source:
        largest, whole = _in_window(lanes, sizes), sizes
    else:
        largest = jnp.max(whole.reshape(blocks, lines, -1), axis=(1, 2))
    reached = levels_of(lanes.sizes, largest)
    level = levels_of(lanes.sizes, whole).astype(jnp.float32).reshape(-1, 1, lanes.width)
    x = _rows(lanes, a.reshape(*grid.inputs, -1))
    if problem.product == "wgrad":
        steps = Steps.of(reached, config.stripes, places_of(lanes.passes, pack))
        dy = _rows(lanes, _whole_blocks(lanes, b.reshape(*grid.inputs, -1)))
        sums = jnp.sum(kernel.weight_product(config, steps, x, level, dy), axis=0)
        sums = sums[:, : problem.out_channels, : problem.in_channels]
        return jnp.swapaxes(sums, 1, 2).astype(product_dtype(a.dtype))
    w = b if problem.product == "dgrad" else jnp.swapaxes(b, 1, 2)
    w = jnp.pad(w, [(0, 1), *((0, channels_of(n, pack) - n) for n in w.shape[1:])])
    steps = Steps.of(reached, config.stripes, taps_of(lanes.passes, pack, len(b)))
    y = kernel.product(config, steps, x, level, w, a)
    y = y.reshape(lanes.scenes, lanes.number * lines, -1, lanes.width)
    y = y[:, : lanes.high, : problem.other_channels, : lanes.wide]
    return jnp.swapaxes(y, 2, 3).reshape(problem.result_shape)


def _rows(lanes: Lanes, x: jax.Array) -> jax.Array:
    """Return ``x [B, H, W, C]`` as the kernel reads it, ``[B * H * C, W]``, with W along lanes.

    W and C are padded with zeros, so that W and the channels of a group fill whole registers.
    """
    more = channels_of(x.shape[3], lanes.pack) - x.shape[3]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, lanes.width - x.shape[2]), (0, more)))
    return jnp.swapaxes(x, 2, 3).reshape(-1, lanes.width)


def _whole_blocks(lanes: Lanes, x: jax.Array) -> jax.Array:
    """Pad axis H of ``x [B, H, ...]`` with zeros to a whole number of blocks."""
    more = lanes.number * lanes.lines - lanes.high
    return jnp.pad(x, [(0, 0), (0, more), *((0, 0),) * (x.ndim - 2)])


def _in_window(lanes: Lanes, sizes: jax.Array) -> jax.Array:
    """Return the maximum of ``sizes [B, H, W]`` over the lines that each block reads, ``[blocks]``.

    These lines are the block and its halo along H.
    """
    sizes = jnp.max(sizes, axis=2)
    behind = lanes.number * lanes.lines + lanes.window - lanes.lines - lanes.low - lanes.high
    sizes = jnp.pad(sizes, ((0, 0), (lanes.low, max(0, behind))))
    found = [
        jnp.max(sizes[:, n * lanes.lines : n * lanes.lines + lanes.window], axis=1)
        for n in range(lanes.number)
    ]
    return jnp.stack(found, axis=1).reshape(-1)
