"""Depthwise products on TPUs: support checks, choice of block sizes, and the kernel call.

The kernel (``tpu_kernel.py``) selects rows by permuting registers, and multiplies them on the
vector unit.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from voxax.hardware import HardwareInfo
from voxax.kernels.implicit_gemm.tpu import WINDOWED as DENSE
from voxax.kernels.implicit_gemm.tpu import PlannedVisits, steps_of, unless_lost, visits_of
from voxax.kernels.implicit_gemm.windows import (
    SHORTEST,
    SPILLED,
    WINDOW_TILE,
    MapArrays,
    alike,
    allowed,
    block_sizes,
    by_channels,
    columns_of,
    fitting,
    free_smem,
    from_words,
    in_windows,
    places_of,
    scalar_bytes,
    to_words,
    unfit,
    with_rows,
)
from voxax.kernels.kernel import Fused, Parameters, Problem, Views, first_of
from voxax.kernels.rows import weight_read

_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Block sizes of a kernel call, for one block of channels.

    Attributes:
      window: number of rows of a window: consecutive input rows from which the neighbors of a tile
        of output rows are gathered.
      channels: number of channels of one call.
      stripes: number of parts into which tiles are divided, which may run on different cores.
      resident: 1 if all rows of the gathered operand are kept in vector memory, else 0.
      tiles: number of tiles of 128 output rows that a step processes together.
    """

    window: int
    channels: int
    stripes: int = 1
    resident: int = 0
    tiles: int = 4


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why these kernels cannot run this problem, or None if they can."""
    allowed = " and ".join(_DTYPES)
    reason = f"the window kernels multiply {allowed}, got {problem.dtype}"
    reason = None if problem.dtype in _DTYPES else reason
    reason = unfit(problem, "these window kernels take depthwise", reason)
    if reason is None and not _fitting(problem, hardware):
        least = Blocks(SHORTEST, block_sizes(problem.in_channels)[-1], hardware.cores or 1)
        taps = problem.layer.num_offsets
        return (
            f"the window kernels need {_vmem_bytes(problem, least)} bytes of vector memory and "
            f"{_smem_bytes(problem, least)} of scalar memory for {taps} taps and "
            f"{problem.out_rows} rows, the chip has {hardware.vmem_bytes or 0} and "
            f"{free_smem(hardware)}"
        )
    return reason


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure, which differ in window size and number of tiles.

    They encode :class:`Blocks`. Each candidate has the largest block of channels for which memory
    suffices.
    """
    return tuple(parameters(blocks) for blocks in _fitting(problem, hardware))


def parameters(blocks: Blocks) -> Parameters:
    """Encode ``blocks`` as tuning parameters of the kernel."""
    return (
        ("body", "windows"),
        ("channel_block", blocks.channels),
        ("resident", blocks.resident),
        ("stripes", blocks.stripes),
        ("tiles", blocks.tiles),
        ("window_rows", blocks.window),
    )


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`. With ``("interpret", 1)`` in ``parameters``, the kernel
    is emulated, so that it runs on any platform.
    """
    # Imported here, because only programs that use this kernel need Pallas.
    from voxax.kernels.depthwise import tpu_kernel

    blocks, kmap, shape = _blocks_of(parameters), MapArrays.of(problem, views), problem.result_shape
    if 0 in (*a.shape, *b.shape, *kmap.table.shape, *shape):
        return jnp.zeros(shape, a.dtype)

    config, visits = _configured(problem, parameters, kmap, a)
    arguments = config, visits.scalars, kmap.table
    xs = [in_windows(block, blocks.window) for block in by_channels(a, blocks.channels)]

    if problem.product == "wgrad":
        dys = _tiles(blocks, b)
        sums = [tpu_kernel.weight_product(*arguments, *p) for p in zip(xs, dys, strict=True)]
        return _taps(problem, blocks, sums, visits, a.dtype)

    ws = _weights(problem, blocks, b, a.dtype)
    parts = [tpu_kernel.product(*arguments, *p) for p in zip(xs, ws, strict=True)]
    return _rows(visits, parts, shape)


def gradients(
    problem: Problem,
    parameters: Parameters,
    dy: jax.Array,
    x: jax.Array,
    w: jax.Array,
    views: Views,
) -> tuple[jax.Array, jax.Array]:
    """Compute dgrad and wgrad in one kernel: return ``(dx [N, C], dw [K, C])``.

    ``problem`` describes dgrad; the operands and ``views`` are as for
    :class:`voxax.kernels.kernel.ApplyFused`.
    """
    from voxax.kernels.depthwise import tpu_kernel

    blocks, kmap = _blocks_of(parameters), MapArrays.of(problem, views)
    if 0 in (*dy.shape, *x.shape, *w.shape, *kmap.table.shape):
        return jnp.zeros_like(x), jnp.zeros_like(w)

    config, visits = _configured(problem, parameters, kmap, dy, both=True)
    rows = [in_windows(block, blocks.window) for block in by_channels(dy, blocks.channels)]
    operands = zip(rows, _weights(problem, blocks, w, x.dtype), _tiles(blocks, x), strict=True)
    arguments = config, visits.scalars, kmap.table
    pairs = [tpu_kernel.gradients(*arguments, *p) for p in operands]
    dw = _taps(problem, blocks, [sums for _, sums in pairs], visits, w.dtype)
    # dw has the table's order of taps, which dgrad of a symmetric layer reads in reverse.
    dw = dw[::-1] if problem.layer.symmetric else dw
    return _rows(visits, [dx for dx, _ in pairs], x.shape), dw


def both(problem: Problem, hardware: HardwareInfo, chosen: Parameters) -> Parameters | None:
    """Return parameters for :func:`gradients`, or None to compute dgrad and wgrad separately.

    ``chosen`` are the parameters of a separate dgrad. The returned blocks have at least half as
    many channels as those in ``chosen``. None means that memory is too small for this.
    """
    alone = _blocks_of(chosen)
    found = _fitting(problem, hardware, both=True)
    blocks = alike([b for b in found if 2 * b.channels >= alone.channels], alone)
    return None if blocks is None else parameters(blocks)


def _blocks_of(parameters: Parameters) -> Blocks:
    values = dict(parameters)
    names = ("window_rows", "channel_block", "stripes", "resident", "tiles")
    return Blocks(*(int(values[name]) for name in names))


def _configured(
    problem: Problem,
    parameters: Parameters,
    kmap: MapArrays,
    gathered: jax.Array,
    *,
    both: bool = False,
) -> tuple[Any, PlannedVisits]:
    """Return the kernel's ``TileConfig`` and its list of visits (steps).

    ``gathered``, ``[rows, channels]``, is the operand from which neighbors are gathered. ``kmap``
    has the arrays of the kernel map. ``both`` is whether the call computes dgrad and wgrad.
    """
    from voxax.kernels.implicit_gemm.tpu_kernel import TileConfig

    blocks = _blocks_of(parameters)
    config = TileConfig(
        columns=kmap.columns,
        window=blocks.window,
        parts=1,
        resident=bool(blocks.resident),
        tiles=blocks.tiles,
        vmem_bytes=allowed(_vmem_bytes(problem, blocks, both=both)),
        interpret=bool(dict(parameters).get("interpret", 0)),
        result=gathered.dtype,
    )
    return config, visits_of(problem, blocks, kmap.columns, kmap.windows, gathered.shape[0])


def _tiles(blocks: Blocks, other: jax.Array) -> list[jax.Array]:
    """Cut ``other [rows, C]`` by channels into the operands of the kernel calls.

    ``other`` is the operand that is not gathered. Each result is ``[blocks.channels, rows]``. In
    bfloat16, the channels of a block are reordered by
    :func:`~voxax.kernels.implicit_gemm.windows.to_words`.
    """
    parts = by_channels(other, blocks.channels)
    return [to_words(part, 0) for part in parts] if other.dtype == jnp.bfloat16 else parts


def _weights(problem: Problem, blocks: Blocks, w: jax.Array, dtype: Any) -> list[jax.Array]:
    """Cut the layer's weight ``w [K, C]`` into a ``float32[channels, K]`` for each kernel call.

    There are ``blocks.channels`` channels in a call. For dgrad of a symmetric layer, the K kernel
    offsets are reversed. ``dtype`` is that of the features: if bfloat16, channels are reordered
    like theirs.
    """
    parts = by_channels(weight_read(problem, w).astype(jnp.float32), blocks.channels)
    return [to_words(part, 0) for part in parts] if dtype == jnp.bfloat16 else parts


def _taps(
    problem: Problem, blocks: Blocks, sums: list[jax.Array], visits: PlannedVisits, dtype: Any
) -> jax.Array:
    """Return the weight gradient ``[K, C]`` in ``dtype``, from the kernel's partial ``sums``.

    ``sums`` has one array ``[stripes, K * channels, lanes]`` for each block of channels, which is
    added over stripes and lanes. If ``visits.fits`` is False for any group of rows, all is NaN.
    """
    taps = [jnp.sum(part, axis=(0, 2)).reshape(-1, blocks.channels) for part in sums]
    if dtype == jnp.bfloat16:
        taps = [from_words(part, 1) for part in taps]
    whole = jnp.concatenate(taps, axis=1)[:, : problem.in_channels]
    return unless_lost(whole, jnp.all(visits.fits)).astype(dtype)


def _rows(visits: PlannedVisits, parts: list[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Join ``parts``, one ``[channels, rows]`` for each block of channels, to ``[rows, C]``.

    ``shape`` is the shape of the result. Rows that the kernel does not write are filled in, see
    :meth:`PlannedVisits.defined`.
    """
    if parts[0].dtype == jnp.bfloat16:
        parts = [from_words(part, 0) for part in parts]
    return visits.defined(jnp.concatenate(parts, axis=0)[: shape[1]]).T


def _fitting(problem: Problem, hardware: HardwareInfo, *, both: bool = False) -> list[Blocks]:
    halves = 2 if problem.dtype == "bfloat16" else 1
    sizes, stripes = block_sizes(problem.in_channels), hardware.cores or 1
    return fitting(
        hardware,
        lambda window, times: (
            Blocks(window, size, stripes, resident, tiles)
            for size in sizes
            for resident, tiles in steps_of(hardware, size // halves, times)
        ),
        lambda blocks: with_rows(
            _vmem_bytes(problem, blocks, both=both), _resident_bytes(problem, blocks)
        ),
        lambda blocks: _smem_bytes(problem, blocks),
    )


def _smem_bytes(problem: Problem, blocks: Blocks) -> int:
    return scalar_bytes(problem, blocks.window, blocks.stripes, blocks.tiles)


def _resident_bytes(problem: Problem, blocks: Blocks) -> int:
    operand = 2 if problem.dtype == "bfloat16" else 4
    places = places_of(problem.gathered_rows, blocks.window)
    return blocks.resident * places * blocks.channels * operand


def _vmem_bytes(problem: Problem, blocks: Blocks, *, both: bool = False) -> int:
    """Return the bytes of vector memory that a call needs, except for resident rows.

    If ``blocks.resident`` is 1, all rows of the gathered operand are resident. ``both`` is whether
    the call computes dgrad and wgrad, see :func:`gradients`.
    """
    # Windows, blocks with two buffers, blocks with one, and intermediate results. With ``both``
    # there are the weights and their sums, and two tiles.
    columns, taps = (
        columns_of(problem.layer.spec, problem.layer.num_offsets),
        problem.layer.num_offsets,
    )
    wide, operand = 4, 2 if problem.dtype == "bfloat16" else 4
    rows = blocks.tiles * WINDOW_TILE
    tile = rows * blocks.channels
    window = blocks.window * blocks.channels * operand
    windows = 0 if blocks.resident else 3 * blocks.tiles * len(columns) * window
    # The table and a tile of the operand or result; weights over all lanes, or their sums.
    weights = taps * WINDOW_TILE * blocks.channels * wide
    twice = (taps + 8) * rows * wide + (1 + both) * (tile * wide + weights)
    picked = taps * tile * operand
    computed = (blocks.window + WINDOW_TILE) * blocks.channels * wide
    # SPILLED is for values that do not fit into registers.
    return windows + 2 * twice + picked + tile * wide + 2 * computed + SPILLED


WINDOWED = dataclasses.replace(
    DENSE,
    name="implicit",
    kind="depthwise",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    apply=apply,
    fused=Fused(both, gradients),
)
