"""Depthwise products on TPUs: rows selected within registers, multiplied on the vector unit.

``tpu_kernel.py`` has the idea. Here: whether a problem fits the chip, in which blocks, and the
operands as the kernel wants them.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from voxax.hardware import HardwareInfo
from voxax.kernels.implicit_gemm.tpu import WINDOWED as DENSE
from voxax.kernels.implicit_gemm.tpu import steps_of, unless_lost, unvisited, visits_of
from voxax.kernels.implicit_gemm.windows import (
    SHORTEST,
    SPILLED,
    WINDOW_TILE,
    MapArrays,
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
from voxax.kernels.kernel import Parameters, Problem, Views, first_of
from voxax.kernels.rows import oriented

_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes that a call works with.

    Attributes:
      window: rows of a window.
      channels: channels of one call; what they compute is independent.
      stripes: parts of the tiles that run side by side.
      resident: 1 if all rows that are gathered from are in vector memory, else 0.
      tiles: tiles of 128 output rows that a step takes together.
    """

    window: int
    channels: int
    stripes: int = 1
    resident: int = 0
    tiles: int = 4


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Depthwise weights on TPUs, whose blocks fit the chip."""
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
    """Each length of windows that fits, in the largest blocks of channels that do."""
    return tuple(parameters(blocks) for blocks in _fitting(problem, hardware))


def parameters(blocks: Blocks) -> Parameters:
    """Encode ``blocks`` as tuning parameters."""
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
    """Run a product; ``("interpret", 1)`` among the parameters runs it on any platform."""
    # Not with voxax: only programs that use it need Pallas.
    from voxax.kernels.depthwise import tpu_kernel
    from voxax.kernels.implicit_gemm.tpu_kernel import TileConfig, Visits

    values = dict(parameters)
    names = ("window_rows", "channel_block", "stripes", "resident", "tiles")
    blocks = Blocks(*(int(values[name]) for name in names))
    kmap, shape = MapArrays.of(problem, views), problem.result_shape
    table = kmap.table
    if 0 in (*a.shape, *b.shape, *table.shape, *shape):
        return jnp.zeros(shape, a.dtype)

    visits, fits = visits_of(problem, blocks, kmap.columns, kmap.windows, a.shape[0])
    config = TileConfig(
        columns=kmap.columns,
        window=blocks.window,
        parts=1,
        resident=bool(blocks.resident),
        tiles=blocks.tiles,
        vmem_bytes=allowed(_vmem_bytes(problem, blocks)),
        interpret=bool(values.get("interpret", 0)),
    )
    packed = a.dtype == jnp.bfloat16
    arguments = config, Visits(*visits), table
    xs = [in_windows(block, blocks.window) for block in by_channels(a, blocks.channels)]

    if problem.product == "wgrad":
        dys = by_channels(b, blocks.channels)
        if packed:
            dys = [to_words(part, 0) for part in dys]
        sums = [tpu_kernel.weight_product(*arguments, *p) for p in zip(xs, dys, strict=True)]
        taps = [jnp.sum(part, axis=(0, 2)).reshape(-1, blocks.channels) for part in sums]
        if packed:
            taps = [from_words(part, 1) for part in taps]
        whole = jnp.concatenate(taps, axis=1)[:, : problem.in_channels]
        return unless_lost(whole, jnp.all(fits)).astype(a.dtype)

    w, _ = oriented(problem, b, {"neighbors": table, "transposed_neighbors": table})
    ws = by_channels(w.astype(jnp.float32), blocks.channels)
    if packed:
        ws = [to_words(part, 0) for part in ws]
    start = unvisited(fits, blocks, (blocks.channels, shape[0]), a.dtype)
    parts = [tpu_kernel.product(*arguments, *p, start) for p in zip(xs, ws, strict=True)]
    if packed:
        parts = [from_words(part, 0) for part in parts]
    return jnp.concatenate(parts, axis=0)[: shape[1], : shape[0]].T


def _fitting(problem: Problem, hardware: HardwareInfo) -> list[Blocks]:
    halves = 2 if problem.dtype == "bfloat16" else 1
    sizes, stripes = block_sizes(problem.in_channels), hardware.cores or 1
    return fitting(
        hardware,
        lambda window: (
            Blocks(window, size, stripes, resident, tiles)
            for size in sizes
            for resident, tiles in steps_of(hardware, size // halves)
        ),
        lambda blocks: with_rows(_vmem_bytes(problem, blocks), _resident_bytes(problem, blocks)),
        lambda blocks: _smem_bytes(problem, blocks),
    )


def _smem_bytes(problem: Problem, blocks: Blocks) -> int:
    return scalar_bytes(problem, blocks.window, blocks.stripes, blocks.tiles)


def _resident_bytes(problem: Problem, blocks: Blocks) -> int:
    operand = 2 if problem.dtype == "bfloat16" else 4
    places = places_of(problem.gathered_rows, blocks.window)
    return blocks.resident * places * blocks.channels * operand


def _vmem_bytes(problem: Problem, blocks: Blocks) -> int:
    """Vector memory of a call: windows, what is held twice, what stays, what is computed."""
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
    twice = (taps + 8) * rows * wide + tile * wide + weights
    picked = taps * tile * operand
    computed = (blocks.window + WINDOW_TILE) * blocks.channels * wide
    # And registers that do not suffice.
    return windows + 2 * twice + picked + tile * wide + 2 * computed + SPILLED


WINDOWED = dataclasses.replace(
    DENSE,
    name="implicit",
    kind="depthwise",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    apply=apply,
)
