"""The dynamic strategy ``tiled`` on TPUs: support checks, block sizes, and the kernel call.

The kernels (``tpu_kernel.py``) keep blocks of positions with their halo in vector memory.
``blocks.py`` explains the terms. ``tpu_lanes.py`` is for 2-D grids that can keep XLA's layout.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.dtypes import product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.dynamic import masked, tpu_lanes
from voxax.kernels.dynamic.blocks import (
    MOST_PACKED,
    Blocks,
    blocks_of,
    channels_of,
    levels_of,
    places_of,
    shells_of,
    taps_of,
    whole,
)
from voxax.kernels.dynamic.grid import Grid, grid_of
from voxax.kernels.implicit_gemm.windows import CHANNELS, free_smem, parts_of
from voxax.kernels.kernel import Parameters, Problem, Views, first_of

_DTYPES = ("float32", "bfloat16")
# These limit the length of the program, which has code for each number of shells and all passes.
_MOST_SHELLS, _MOST_PASSES = 16, 512
_ROWS = (2048, 1024, 512, 256, 128)


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why this module's kernels cannot run ``problem``, or None if they can."""
    reason = masked.supports(problem, hardware)
    if reason is not None:
        return reason
    if problem.platform != "tpu":
        return f"the block kernels run on TPUs, not on {problem.platform}"
    if problem.dtype not in _DTYPES:
        return f"the block kernels multiply {' and '.join(_DTYPES)}, got {problem.dtype}"
    shells = shells_of(problem)
    if shells > _MOST_SHELLS:
        return f"the block kernels take {_MOST_SHELLS} sizes at most, got {shells}"
    if not space(problem, hardware):
        pack, least = _packs(problem, hardware)[-1], _ROWS[-1]
        calls = blocks_of(problem, pack, least)
        passes = max(len(call.passes) for call in calls)
        if passes > _MOST_PASSES:
            return f"the block kernels take {_MOST_PASSES} passes at most, got {passes}"
        needed = max(_vmem_bytes(problem, call) for call in calls)
        scalars = max(_smem_bytes(call) for call in calls)
        return (
            f"the block kernels need {needed} bytes of vector memory and {scalars} of scalar "
            f"memory, the chip has {hardware.vmem_bytes or 0} and {free_smem(hardware)}"
        )
    return None


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure, which differ in block size and positions per row.

    A row is the channels of a few consecutive positions along W. For each number of positions per
    row, up to two blocks are measured, the largest that fit in memory. If the kernels of
    ``tpu_lanes.py`` can run, up to two of their block sizes come first.
    """
    found, packs, cores = [], _packs(problem, hardware), hardware.cores or 1
    for pack in packs[:1]:
        fits = [n for n in tpu_lanes.LINES if _fits_lanes(problem, hardware, pack, n)]
        found += [parameters(pack, lines, cores, "lanes") for lines in fits[:2]]
    for pack in packs:
        fits = [rows for rows in _ROWS if _fits(problem, hardware, pack, rows)]
        found += [parameters(pack, rows, cores) for rows in fits[:2]]
    return tuple(found)


def parameters(pack: int, rows: int, stripes: int = 1, body: str = "blocks") -> Parameters:
    """Encode block sizes as tuning parameters of the kernel.

    Args:
      pack: number of consecutive positions whose channels form a row (with ``body="lanes"``, a
        group of positions along H).
      rows: number of rows of a block; with ``body="lanes"``, the number of its indices along H.
      stripes: number of parts of the grid that run in parallel, one on each core.
      body: ``"blocks"``, or ``"lanes"`` for ``tpu_lanes.py``.
    """
    return (("body", body), ("pack", pack), ("rows", rows), ("stripes", stripes))


def _packs(problem: Problem, hardware: HardwareInfo) -> list[int]:
    """Return one or two candidates for the number of consecutive positions packed into a row.

    The first is the largest power of two, at most ``MOST_PACKED``, for which the channels of a row
    fit the side of the matrix unit. The second is half of it.
    """
    side = (hardware.matrix_unit or (CHANNELS,))[-1]
    most = max(problem.in_channels, problem.out_channels)
    pack = 1
    while 2 * pack * most <= side and pack < MOST_PACKED:
        pack *= 2
    return [pack, pack // 2] if pack > 1 else [pack]


def _fits_lanes(problem: Problem, hardware: HardwareInfo, pack: int, lines: int) -> bool:
    return tpu_lanes.fits(problem, hardware, pack, lines, _MOST_PASSES)


def _fits(problem: Problem, hardware: HardwareInfo, pack: int, rows: int) -> bool:
    return all(
        len(call.passes) <= _MOST_PASSES
        and _vmem_bytes(problem, call) <= (hardware.vmem_bytes or 0)
        and _smem_bytes(call) <= free_smem(hardware)
        for call in blocks_of(problem, pack, rows)
    )


def _smem_bytes(call: Blocks) -> int:
    """Return the bytes of scalar memory that a kernel call needs, for ``tpu_kernel.Steps``."""
    return 4 * (2 * math.prod(call.number) + len(call.passes) * call.pack**2)


def _vmem_bytes(problem: Problem, call: Blocks) -> int:
    """Return the bytes of vector memory that a kernel call needs."""
    # ``twice`` counts arrays that change with the block and have two buffers, ``once`` those that
    # stay. The rest is the compiler's stack.
    size, wide = jnp.dtype(problem.dtype).itemsize, 4
    source = call.pack * channels_of(problem.gathered_channels, call.pack)
    result = call.pack * channels_of(problem.other_channels, call.pack)
    window = math.prod(call.window) * source
    weight = len(call.passes) * source * result
    twice = len(call.planes) * window * size + call.rows * result * size
    twice += 16 * call.rows * wide
    if problem.product == "dgrad":  # the rows of each shell are masked separately
        slots = sum(len({p.column for p in shell.passes}) for shell in call.shells)
    else:
        slots = len(call.columns)
    columns = slots * call.window[0] * call.length * source * size
    once = columns + 2 * call.rows * result * wide
    # One weight of each tap, whose last axis fills whole registers.
    taps = (problem.layer.num_offsets + 1) * source * result // call.pack
    if problem.product == "wgrad":
        once += weight * wide
        twice += taps * wide
    else:
        once += (weight + taps) * size
    if problem.product == "dgrad":
        twice += len(call.planes) * window * size
    # The compiler's stack: rows of a product's passes, in parts where float32 keeps its digits.
    shell = max(len(s.passes) for s in call.shells)
    stack = min(call.rows, 512) * (shell * source * size + 2 * result * wide) * parts_of(problem)
    return 2 * twice + once + 2 * stack + (1 << 20)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands are as for :class:`voxax.kernels.kernel.Apply`.
    ``views["sizes"]``, ``int32[M]``, has the kernel size of each output position. With
    ``("interpret", 1)`` in ``parameters``, the kernel is emulated, so it runs on any platform.
    """
    # Imported here, because only programs that use these kernels need Pallas.
    from voxax.kernels.dynamic import tpu_kernel

    values = dict(parameters)
    pack, rows = int(values["pack"]), int(values["rows"])
    if 0 in (*a.shape, *b.shape, *problem.result_shape):
        return jnp.zeros(problem.result_shape, product_dtype(a.dtype))

    if values["body"] == "lanes":
        return tpu_lanes.apply(problem, parameters, a, b, views["sizes"])
    calls = blocks_of(problem, pack, rows)

    def config(call: Blocks) -> Any:
        return tpu_kernel.BlockConfig(
            blocks=call,
            exact=parts_of(problem) > 1,
            vmem_bytes=_vmem_bytes(problem, call),
            stripes=min(int(values["stripes"]), math.prod(call.number)),
            masks_source=problem.product == "dgrad",
            repeats=problem.product != "wgrad",
            all_shells=problem.layer.sizes.uniform == "all" and len(calls) == 1,
            interpret=bool(values.get("interpret", 0)),
        )

    grid, stripes = grid_of(problem), int(values["stripes"])
    sizes = views["sizes"].reshape(grid.outputs)
    if problem.product == "dgrad":
        dy, w = a.reshape(*grid.outputs, -1), _padded(jnp.swapaxes(b, 1, 2), pack)
        parts = {}
        for call in calls:
            level = levels_of(call.sizes, sizes)
            table = taps_of(call.passes, pack, len(b))
            steps = tpu_kernel.Steps.of(_in_window(call, level), stripes, table)
            x = _source(call, dy, (1,) * len(grid.stride))
            seen = jnp.broadcast_to(level.astype(dy.dtype)[..., None], dy.shape)
            seen = _source(call, seen, (1,) * len(grid.stride))
            y = tpu_kernel.product(config(call), steps, x, None, seen, w, a)
            parts[call.phase] = _result(call, y, problem.in_channels)
        return _interleaved(parts, grid, a.dtype).reshape(problem.result_shape)

    (call,) = calls
    level = _by_block(call, levels_of(call.sizes, sizes))
    reached = jnp.max(level, axis=(1, 2)).astype(jnp.int32)
    if problem.product == "wgrad":
        table = places_of(call.passes, pack)
    else:
        table = taps_of(call.passes, pack, len(b))
    steps = tpu_kernel.Steps.of(reached, stripes, table)
    x = _source(call, a.reshape(*grid.inputs, -1), grid.stride)
    if problem.product == "forward":
        w = _padded(b, pack)
        y = tpu_kernel.product(config(call), steps, x, level, None, w, a)
        return _result(call, y, problem.out_channels).reshape(problem.result_shape)
    dy = _cotangent(call, b)
    sums = jnp.sum(tpu_kernel.weight_product(config(call), steps, x, level, dy), axis=0)
    sums = sums[:, : problem.out_channels, : problem.in_channels]
    return jnp.swapaxes(sums, 1, 2).astype(product_dtype(a.dtype))


def _source(call: Blocks, x: jax.Array, stride: tuple[int, ...]) -> jax.Array:
    """Split ``x [B, *spatial, C]`` by phase, the remainder of a position modulo ``stride``.

    The result is ``[phases * B * D, H, W / P, P * C]``: each phase is padded with zeros to
    ``[B, D, H, W, C]``, and P neighbors along W are packed into one row.
    """
    steps = whole((0, *stride))[1:]
    x = x.reshape(*whole(x.shape[:-1]), x.shape[-1])
    channels = channels_of(x.shape[-1], call.pack)
    fill = [-n % s for n, s in zip(x.shape[1:4], steps, strict=True)]
    if any(s > 1 for s in steps):
        x = jnp.pad(x, [(0, 0), *((0, n) for n in fill), (0, 0)])
        parts = [n // s for n, s in zip(x.shape[1:4], steps, strict=True)]
        pairs = [n for pair in zip(parts, steps, strict=True) for n in pair]
        x = x.reshape(x.shape[0], *pairs, x.shape[-1]).transpose(2, 4, 6, 0, 1, 3, 5, 7)
        x = jnp.stack([x[phase] for phase in call.phases])
    else:
        x = x[None]
    pack = call.pack
    x = jnp.pad(x, [(0, 0)] * 4 + [(0, -x.shape[4] % pack), (0, channels - x.shape[5])])
    # Packed first: a margin of whole rows moves no lanes.
    x = x.reshape(*x.shape[:4], x.shape[4] // pack, pack * channels)
    sides = [(0, 0), (0, 0)]
    for low, extent, n, unit in zip(call.low, call.source, x.shape[2:5], (1, 1, pack), strict=True):
        sides.append((low // unit, (extent - low) // unit - n))
    x = jnp.pad(x, [*sides, (0, 0)])
    return x.reshape(-1, *x.shape[3:])


def _by_block(call: Blocks, level: jax.Array) -> jax.Array:
    """Cut ``level [B, *spatial]`` into the blocks of the kernel.

    ``level`` is a number for each output position. The result is
    ``float32[blocks, MOST_PACKED, rows]``. A row has ``call.pack`` consecutive positions, which the
    second axis numbers; the entries after them are zero.
    """
    along, high, wide = call.number
    extents = whole(level.shape)
    level = level.reshape(along, *extents[2:])
    length = call.length * call.pack
    level = jnp.pad(
        level, ((0, 0), (0, high * call.lines - extents[2]), (0, wide * length - extents[3]))
    )
    level = level.reshape(along, high, call.lines, wide, call.length, call.pack)
    level = level.transpose(0, 1, 3, 5, 2, 4).reshape(-1, call.pack, call.rows)
    return jnp.pad(level, ((0, 0), (0, MOST_PACKED - call.pack), (0, 0))).astype(jnp.float32)


def _in_window(call: Blocks, level: jax.Array) -> jax.Array:
    """Return the maximum of ``level`` over the positions that each block reads, ``int32[blocks]``.

    ``level``, ``int32[B, *spatial]``, has a number for each position that is read (the source).
    """
    level = level.reshape(whole(level.shape))
    sides = zip(call.low, call.source, level.shape[1:], strict=True)
    level = jnp.pad(level, [(0, 0), *((low, n - low - own) for low, n, own in sides)])
    shifts = [shift for _, shift in call.planes]
    _, high, wide = call.number
    length, rows = call.length * call.pack, call.window[1] * call.pack
    first = min(shifts), call.begin, 0
    sides = max(shifts) - min(shifts) + 1, call.window[0], rows
    steps = 1, call.lines, length
    number = call.outputs[0], high, wide
    level = level[
        (slice(None), *(
            slice(f, f + (n - 1) * step + side)
            for f, n, step, side in zip(first, number, steps, sides, strict=True)
        ))
    ]  # fmt: skip
    found = jax.lax.reduce_window(
        level, jnp.int32(0), jax.lax.max, (1, *sides), (1, *steps), "VALID"
    )
    return found.reshape(-1)


def _padded(w: jax.Array, pack: int) -> jax.Array:
    """Pad the channels of ``w [K, C_in, C_out]`` with zeros, and append zero weights as ``w[K]``.

    ``pack`` positions with the padded channels fill whole registers.
    """
    return jnp.pad(w, [(0, 1), *((0, channels_of(n, pack) - n) for n in w.shape[1:])])


def _cotangent(call: Blocks, dy: jax.Array) -> jax.Array:
    """Return ``dy [M, C]`` as the kernel reads it, ``[B * D, H', W' / P, P * C]``.

    H' and W' are the extents of the output grid, padded with zeros to whole blocks. P consecutive
    positions along W are packed into one row.
    """
    along, high, wide = call.number
    _, lines, length = call.outputs
    channels = channels_of(dy.shape[1], call.pack)
    dy = dy.reshape(along, lines, length, -1)
    more = high * call.lines - lines, wide * call.length * call.pack - length
    dy = jnp.pad(dy, ((0, 0), (0, more[0]), (0, more[1]), (0, channels - dy.shape[3])))
    return dy.reshape(along, high * call.lines, wide * call.length, -1)


def _result(call: Blocks, y: jax.Array, channels: int) -> jax.Array:
    """Unpack the kernel's result ``y [B * D, H', W' / P, P * C]`` to ``[B * D, H, W, channels]``.

    This removes padding along H', W' and the channels. P is the number of positions in a row.
    """
    _, high, wide = call.outputs
    y = y.reshape(*y.shape[:2], y.shape[2] * call.pack, -1)
    return y[:, :high, :wide, :channels]


def _interleaved(parts: dict[tuple[int, int, int], jax.Array], grid: Grid, dtype: Any) -> jax.Array:
    """Merge the parts of dx, one for each phase, into the whole dx ``[B, D, H, W, C]``.

    A phase is the remainder of an input position modulo the stride, a key of ``parts``. A part is
    ``[B * D, H, W, C]``, with the extents of its phase. Absent phases become zero.
    """
    inputs, steps = whole(grid.inputs), whole((0, *grid.stride))[1:]
    if steps == (1, 1, 1):
        return parts[0, 0, 0]
    extents = [-(-n // s) for n, s in zip(inputs[1:], steps, strict=True)]
    channels = next(iter(parts.values())).shape[-1]
    empty = jnp.zeros((inputs[0], *extents, channels), dtype)
    phases = []
    for phase in np.ndindex(*steps):
        part = parts.get(phase)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if part is None:
            phases.append(empty)
            continue
        part = part.reshape(inputs[0], -1, *part.shape[1:])
        sides = zip(extents, part.shape[1:4], strict=True)
        phases.append(jnp.pad(part, [(0, 0), *((0, n - own) for n, own in sides), (0, 0)]))
    merged = jnp.stack(phases).reshape(*steps, inputs[0], *extents, channels)
    merged = merged.transpose(3, 4, 0, 5, 1, 6, 2, 7)
    merged = merged.reshape(
        inputs[0], *(n * s for n, s in zip(extents, steps, strict=True)), channels
    )
    return merged[(slice(None), *(slice(n) for n in inputs[1:]))]


BLOCKS = dataclasses.replace(
    masked.TILED,
    name="tiled",
    platform="tpu",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    apply=apply,
    preferred=lambda problem, hardware: (
        not (problem.layer.sizes.uniform and problem.product == "forward")
    ),
    # Before the kernel of ``tiled`` in plain XLA.
    rank=29,
    # Revision 2 added the kernels of ``tpu_lanes.py``.
    revision=2,
)
