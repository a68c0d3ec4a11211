"""Depthwise products on TPUs: rows selected on the matrix unit, multiplied on the vector unit.

``tpu_kernel.py`` has the idea. Here: whether a problem fits the chip, in which blocks, and the
operands as the kernel wants them.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from voxax.algorithms.implicit_gemm.tpu import WINDOWED as DENSE
from voxax.algorithms.implicit_gemm.windows import (
    CHANNELS,
    SHORTEST,
    WINDOW_ALIGNMENT,
    WINDOW_TILE,
    Columns,
    MapArrays,
    block_sizes,
    columns_of,
    fitting,
    free_smem,
    most_visits,
    padded,
    parts_of,
    scalar_bytes,
    split,
    tiles_of_visits,
    unfit,
)
from voxax.algorithms.kernel import Parameters, Problem, Views, first_of
from voxax.algorithms.rows import clear_unreached, oriented
from voxax.hardware import HardwareInfo

_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes that a call works with.

    Attributes:
      window: rows of a window.
      channels: channels of one call; what they compute is independent.
    """

    window: int
    channels: int


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Depthwise weights on TPUs, whose blocks fit the chip."""
    allowed = " and ".join(_DTYPES)
    reason = f"the window kernels multiply {allowed}, got {problem.dtype}"
    reason = None if problem.dtype in _DTYPES else reason
    reason = unfit(problem, "these window kernels take depthwise", reason)
    if reason is None and not _fitting(problem, hardware):
        least, taps = Blocks(SHORTEST, CHANNELS), problem.layer.num_offsets
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
        ("window_rows", blocks.window),
    )


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Run a product; ``("interpret", 1)`` among the parameters runs it on any platform."""
    # Not with voxax: only programs that use it need Pallas.
    from voxax.algorithms.depthwise import tpu_kernel
    from voxax.algorithms.implicit_gemm.tpu_kernel import TileConfig, Visits

    values = dict(parameters)
    blocks = Blocks(int(values["window_rows"]), int(values["channel_block"]))
    kmap, shape = MapArrays.of(problem, views), problem.result_shape
    table, channels = kmap.table, problem.in_channels
    if 0 in (*a.shape, *b.shape, *table.shape, *shape):
        return jnp.zeros(shape, a.dtype)

    columns = kmap.columns
    visits, visited, fits = _visits(problem, blocks, columns, kmap.windows, a.shape[0])
    config = TileConfig(
        columns=columns,
        window=blocks.window,
        parts=parts_of(problem),
        vmem_bytes=_vmem_bytes(problem, blocks),
        interpret=bool(values.get("interpret", 0)),
    )
    by_tap, block = kmap.by_tap, blocks.channels
    arguments = config, Visits(*visits), by_tap
    # Rows that nothing reads are zero, since zero times NaN is NaN. A window may begin at the last.
    rows = a.shape[0] + blocks.window
    x = padded(clear_unreached(a, kmap.other), rows + -rows % WINDOW_ALIGNMENT, block)
    xs = [_in_parts(part, parts_of(problem)) for part in split(x, block, 1)]

    if problem.product == "wgrad":
        dy = padded(clear_unreached(b, table).astype(jnp.float32), by_tap.shape[1], block)
        dys = split(dy, block, 1)
        parts = [tpu_kernel.weight_product(*arguments, *p) for p in zip(xs, dys, strict=True)]
        whole = jnp.concatenate(parts, axis=1)[: problem.layer.num_offsets, :channels]
        return jnp.where(jnp.all(fits), whole, jnp.nan).astype(a.dtype)

    w, _ = oriented(problem, b, {"neighbors": table, "transposed_neighbors": table})
    w = padded(w.astype(jnp.float32), by_tap.shape[0], block)
    ws = split(w, block, 1)
    parts = [tpu_kernel.product(*arguments, *p, a.dtype) for p in zip(xs, ws, strict=True)]
    y = jnp.concatenate(parts, axis=1).reshape(len(visited), WINDOW_TILE, -1)
    y = jnp.where(visited[:, None, None], y, jnp.zeros((), y.dtype))
    y = jnp.where(fits[:, None, None], y, jnp.asarray(jnp.nan, y.dtype))
    return y.reshape(by_tap.shape[1], -1)[: shape[0], :channels]


def _visits(
    problem: Problem, blocks: Blocks, columns: Columns, windows: jax.Array, rows: int
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array]:
    """Return the arrays of ``tpu_kernel.Visits``, and ``bool[tiles]`` twice.

    The first marks tiles with visits, the second tiles whose visits fit the bound: all do in maps
    between canonical orders, see :func:`voxax.algorithms.implicit_gemm.windows.most_visits`.
    """
    tiles = windows.shape[1]
    most = most_visits(problem.layer.spec, columns, rows, tiles, blocks.window)
    of_place, first, ends = tiles_of_visits(windows[1], blocks.window, most)
    total = jnp.minimum(ends[-1:], most)
    scalars = (of_place, first, windows[0].reshape(-1), windows[1].reshape(-1), total)
    return scalars, ends > first, ends <= most


def _in_parts(x: jax.Array, parts: int) -> jax.Array:
    """``bfloat16[N, parts * C]`` whose parts sum to ``x``, as far as that many bits go.

    ``reduce_precision``, since compilers may take a conversion there and back for nothing.
    """
    if parts == 1:
        return x.astype(jnp.bfloat16)
    found = []
    for _ in range(parts):
        found.append(jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7))
        x = x - found[-1]
    return jnp.concatenate(found, axis=1).astype(jnp.bfloat16)


def _fitting(problem: Problem, hardware: HardwareInfo) -> list[Blocks]:
    sizes = block_sizes(problem.in_channels)
    return fitting(
        hardware,
        lambda window: (Blocks(window, size) for size in sizes),
        lambda blocks: _vmem_bytes(problem, blocks),
        lambda blocks: _smem_bytes(problem, blocks),
    )


def _smem_bytes(problem: Problem, blocks: Blocks) -> int:
    return scalar_bytes(problem, blocks.window, WINDOW_ALIGNMENT, 1)


def _vmem_bytes(problem: Problem, blocks: Blocks) -> int:
    """Vector memory of a call: what the pipeline holds twice, what stays, what is computed."""
    columns, taps = (
        columns_of(problem.layer.spec, problem.layer.num_offsets),
        problem.layer.num_offsets + 8,
    )
    longest, wide = max(map(len, columns)), 4
    selected = blocks.channels * parts_of(problem)
    tile = WINDOW_TILE * blocks.channels * wide
    windows = len(columns) * blocks.window * selected * 2
    twice = windows + taps * (WINDOW_TILE + 2 * blocks.channels) * wide + 2 * tile
    computed = (longest + 2) * WINDOW_TILE * (2 * blocks.window + 2 * selected) * wide
    return 2 * twice + tile + computed


WINDOWED = dataclasses.replace(
    DENSE,
    name="implicit",
    kind="depthwise",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    apply=apply,
)
