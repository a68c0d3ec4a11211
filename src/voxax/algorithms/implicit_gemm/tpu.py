"""Implicit GEMM on TPUs: rows selected on the matrix unit from windows of consecutive rows.

``tpu_kernel.py`` has the idea in full. Here: whether a problem fits the chip, in which blocks, and
the operands as the kernel wants them.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from voxax.algorithms.implicit_gemm.windows import (
    CHANNELS,
    SHORTEST,
    VIEWS,
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
    reads,
    scalar_bytes,
    split,
    tiles_of_visits,
    unfit,
)
from voxax.algorithms.kernel import (
    EVERY_PRODUCT,
    Kernel,
    Parameters,
    Problem,
    Views,
    first_of,
)
from voxax.algorithms.rows import clear_unreached, oriented
from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.hardware import HardwareInfo

_DTYPES = ("float32", "bfloat16", "int8")
# Channels are multiples of CHANNELS, and so are the blocks they are taken in; or half of it.
_HALF = 64


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes that a call works with.

    Attributes:
      window: rows of a window.
      in_block, out_block: channels of one call, of the operand that is gathered and of the other.
      stripes: parts of the tiles that run side by side.
    """

    window: int
    in_block: int
    out_block: int
    stripes: int = 1

    @property
    def packed(self) -> int:
        """Rows that stand side by side in 128 lanes."""
        return CHANNELS // self.in_block if self.in_block < CHANNELS else 1

    @property
    def alignment(self) -> int:
        """Windows start at multiples of so many rows."""
        return self.packed * WINDOW_ALIGNMENT


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Dense weights on TPUs, whose blocks fit the chip."""
    reason = None if problem.dtype in _DTYPES else _dtype_refusal(problem.dtype)
    reason = unfit(problem, "the window kernels multiply dense", reason)
    if reason is None and not _fitting(problem, hardware):
        return _excess(problem, hardware)
    return reason


def _dtype_refusal(dtype: str) -> str:
    """Operands pass through the matrix unit as bfloat16 numbers, which have 8 digits."""
    reasons = {
        "float16": "its exponents are not bfloat16's, and the matrix unit takes no float16",
        "float64": "the matrix unit adds in float32",
    }
    wide = "of integers int8 alone is exact in bfloat16, with sums of 1024 products in float32"
    return (
        f"the window kernels multiply {', '.join(_DTYPES)}, got {dtype}: {reasons.get(dtype, wide)}"
    )


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Each length of windows that fits, in the largest blocks of channels that do."""
    return tuple(parameters(blocks) for blocks in _fitting(problem, hardware))


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Run a product; ``("interpret", 1)`` among the parameters runs it on any platform."""
    # Not with voxax: only programs that use it need Pallas.
    from voxax.algorithms.implicit_gemm import tpu_kernel

    values = dict(parameters)
    blocks = Blocks(*(int(values[name]) for name in _NAMES))
    kmap, shape = MapArrays.of(problem, views), problem.result_shape
    result, table = product_dtype(a.dtype), kmap.table
    if 0 in (*a.shape, *b.shape, *table.shape, *shape):
        return jnp.zeros(shape, result)

    columns = kmap.columns
    visits, fits = _visits(problem, blocks, columns, kmap.windows, a.shape[0])
    total = accumulator(a.dtype)
    config = tpu_kernel.TileConfig(
        columns=columns,
        window=blocks.window,
        parts=parts_of(problem),
        vmem_bytes=_vmem_bytes(problem, blocks),
        interpret=bool(values.get("interpret", 0)),
        packed=blocks.packed,
        total=total,
    )
    by_tap = kmap.by_tap
    x = _gathered(problem, a, kmap.other, blocks)
    arguments = config, tpu_kernel.Visits(*visits), by_tap

    if problem.product == "wgrad":
        dy = clear_unreached(b, table).astype(x[0].dtype)
        dy = padded(dy, by_tap.shape[1], blocks.out_block)
        parts = [
            [
                jnp.sum(tpu_kernel.weight_product(*arguments, xs, dys), axis=0)
                for dys in split(dy, blocks.out_block, 1)
            ]
            for xs in x
        ]
        taps = [[w.reshape(blocks.out_block, -1, blocks.in_block) for w in row] for row in parts]
        whole = jnp.concatenate([jnp.concatenate(row, axis=0) for row in taps], axis=2)
        whole = whole.transpose(1, 2, 0)[:, : problem.in_channels, : problem.out_channels]
        # The dtype first: with x64 enabled integers were summed in 64 bits.
        return _unless_lost(whole.astype(result), jnp.all(fits))

    w, _ = oriented(problem, b, {"neighbors": table, "transposed_neighbors": table})
    # Partial sums over blocks of channels stay wide.
    kept = result if len(x) == 1 else total
    unvisited = _unvisited(fits, blocks.out_block, kept)
    # Of several terms in the first alone: twice the least integer is zero.
    starts = [unvisited] + [jnp.zeros_like(unvisited)] * (len(x) - 1)
    outs = []
    for ws in split(_padded_weight(w, blocks), blocks.out_block, 2):
        terms = [
            tpu_kernel.product(*arguments, xs, _weight_of(problem, part), start)
            for xs, part, start in zip(x, split(ws, blocks.in_block, 1), starts, strict=True)
        ]
        outs.append(sum(terms[1:], terms[0]))
    y = jnp.concatenate(outs, axis=2)
    return y.reshape(-1, y.shape[2])[: shape[0], : shape[1]].astype(result)


def _unvisited(fits: jax.Array, channels: int, dtype: Any) -> jax.Array:
    """Return ``[tiles + 1, WINDOW_TILE, channels]``, the product where no visit writes.

    It is zero, or marks tiles whose visits do not fit the bound. By tile: TPUs broadcast a value of
    each row over lanes at a cycle a row, and that of a tile at a quarter of it.
    """
    of_tile = jnp.pad(_unless_lost(jnp.zeros(len(fits), dtype), fits), (0, 1))
    return jnp.broadcast_to(of_tile[:, None, None], (len(of_tile), WINDOW_TILE, channels))


def _unless_lost(y: jax.Array, fits: jax.Array) -> jax.Array:
    """Set tiles that do not fit to NaN, of integers to the least value."""
    integral = jnp.issubdtype(y.dtype, jnp.integer)
    lost = jnp.iinfo(y.dtype).min if integral else jnp.nan
    return jnp.where(fits, y, jnp.asarray(lost, y.dtype))


def _visits(
    problem: Problem, blocks: Blocks, columns: Columns, windows: jax.Array, rows: int
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Return the arrays of ``tpu_kernel.Visits``, and ``bool[tiles]``: tiles that fit the bound.

    All tiles fit in maps between canonical orders, but not always in a map that was made by hand.
    Tiles that do not fit have no visit at all: a part of the sum must not look like a result.
    """
    tiles, alignment = windows.shape[1], blocks.alignment
    most = most_visits(problem.layer.spec, columns, rows, tiles, blocks.window, alignment)
    starts = jnp.maximum(windows[0] - windows[0] % alignment, 0)
    lengths = jnp.where(windows[1] > 0, windows[1] + windows[0] - starts, 0)
    of_place, first, ends = tiles_of_visits(lengths, blocks.window, most)
    fits = ends <= most
    # Each visit costs as much as another, so stripes have as many visits, but for whole tiles.
    total = jnp.max(jnp.where(fits, ends, 0))
    shares = jnp.arange(blocks.stripes + 1, dtype=jnp.int32)
    # Not total * shares: many visits by many stripes may not fit 32 bits.
    wanted = total // blocks.stripes * shares + jnp.minimum(total % blocks.stripes, shares)
    begins = jnp.concatenate([first, ends[-1:]])
    # The nearest place where a tile begins; the last stripe goes to the end in any case.
    after = jnp.searchsorted(begins, wanted, method="compare_all")
    high, low = begins[after], begins[jnp.maximum(after - 1, 0)]
    bounds = jnp.minimum(jnp.where(wanted - low < high - wanted, low, high), total)
    bounds = bounds.at[-1].set(total)
    scalars = (of_place, first, starts.reshape(-1), lengths.reshape(-1), bounds)
    return scalars, fits


def _gathered(problem: Problem, x: jax.Array, other: jax.Array, blocks: Blocks) -> list[jax.Array]:
    """Blocks of channels of the operand that rows are selected from, as the kernel wants them.

    Rows that nothing reads are zero, since zero times NaN is NaN. The last window is zero: a
    column's that has none, and it begins behind every other.
    """
    rows = x.shape[0] + -x.shape[0] % blocks.alignment
    x = padded(clear_unreached(x, other), rows, blocks.in_block)
    x = x.astype(jnp.float32 if parts_of(problem) > 1 else jnp.bfloat16)
    packed = (rows // blocks.packed, blocks.packed * blocks.in_block)
    parts = [part.reshape(packed) for part in split(x, blocks.in_block, 1)]
    # After the reshape: the other way round a cycle a row, this way a sixth of it.
    return [jnp.pad(part, ((0, blocks.window // blocks.packed), (0, 0))) for part in parts]


def _weight_of(problem: Problem, w: jax.Array) -> jax.Array:
    """``[K, C_in, C_out]`` to ``bfloat16[parts * C_out, K * C_in]``.

    ``reduce_precision``, since compilers may take a conversion there and back for nothing.
    """
    rows = w.transpose(2, 0, 1).reshape(w.shape[2], -1)
    found = []
    for _ in range(parts_of(problem) - 1):
        found.append(jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7))
        rows = rows - found[-1]
    return jnp.concatenate([*found, rows], axis=0).astype(jnp.bfloat16)


def _padded_weight(w: jax.Array, blocks: Blocks) -> jax.Array:
    return jnp.pad(
        w, ((0, 0), (0, -w.shape[1] % blocks.in_block), (0, -w.shape[2] % blocks.out_block))
    )


# In the order of Blocks.
_NAMES = ("window_rows", "in_block", "out_block", "stripes")


def parameters(blocks: Blocks) -> Parameters:
    """Encode ``blocks`` as tuning parameters."""
    sizes = zip(_NAMES, dataclasses.astuple(blocks), strict=True)
    return tuple(sorted((("body", "windows"), *sizes)))


def _fitting(problem: Problem, hardware: HardwareInfo) -> list[Blocks]:
    return fitting(
        hardware,
        lambda window: _blocks(problem, hardware, window),
        lambda blocks: _vmem_bytes(problem, blocks),
        lambda blocks: _smem_bytes(problem, blocks),
    )


def _blocks(problem: Problem, hardware: HardwareInfo, window: int) -> list[Blocks]:
    """Blocks of channels, those of fewest calls first."""
    in_channels, out_channels = problem.gathered_channels, problem.other_channels
    stripes = hardware.cores or 1
    pairs = itertools.product(_sizes(in_channels), _sizes(out_channels))
    ordered = sorted(pairs, key=lambda p: (-(-in_channels // p[0]) * -(-out_channels // p[1]), p))
    return [Blocks(window, *pair, stripes) for pair in ordered]


def _sizes(channels: int) -> list[int]:
    return [_HALF] if channels <= _HALF else block_sizes(channels)


def _smem_bytes(problem: Problem, blocks: Blocks) -> int:
    return scalar_bytes(problem, blocks.window, blocks.alignment, blocks.stripes + 1)


def _vmem_bytes(problem: Problem, blocks: Blocks) -> int:
    """Vector memory of a call: what is held twice, what stays, what is computed."""
    columns, taps = (
        columns_of(problem.layer.spec, problem.layer.num_offsets),
        problem.layer.num_offsets,
    )
    parts, wide, half = parts_of(problem), 4, 2
    operand = wide if parts > 1 else half
    weight = taps * blocks.in_block * blocks.out_block
    lanes = max(blocks.out_block, CHANNELS)
    tile = WINDOW_TILE * lanes * wide
    picked = parts * taps * blocks.in_block * WINDOW_TILE * half
    window = blocks.window * blocks.in_block
    twice = len(columns) * window * operand + (taps + 8) * WINDOW_TILE * wide + tile
    if problem.product == "wgrad":
        # Sums, and the terms that are added to them.
        twice += weight * wide
        once = parts * weight * wide
    else:
        once = parts * weight * half + tile
        # What the compiler puts on its stack: the picked rows once more, and terms of each product.
        once += picked + parts * (parts + 1) // 2 * blocks.out_block * WINDOW_TILE * wide
    # Of a column: its window by channels, in parts; the ones, and what they are compared with.
    computed = parts * (window + blocks.in_block * WINDOW_TILE) + 4 * blocks.window * WINDOW_TILE
    return 2 * twice + once + picked + 2 * wide * computed


def _excess(problem: Problem, hardware: HardwareInfo) -> str:
    """Return the reason: the memory that the smallest blocks exceed."""
    least, taps = _blocks(problem, hardware, SHORTEST)[-1], problem.layer.num_offsets
    for name, needed, there in (
        ("vector memory", _vmem_bytes(problem, least), hardware.vmem_bytes or 0),
        ("scalar memory", _smem_bytes(problem, least), free_smem(hardware)),
    ):
        if needed > there:
            return (
                f"the window kernels need {needed} bytes of {name} for {taps} taps "
                f"and {problem.out_rows} rows, the chip has {there}"
            )
    return "no length of windows fits both memories of the chip"


WINDOWED = Kernel(
    name="implicit_gemm",
    kind="dense",
    products=EVERY_PRODUCT,
    platform="tpu",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    reads=reads,
    apply=apply,
    views=VIEWS,
    # It takes 0.11 to 0.4 times XLA's gather with products, or less, at 64 channels of bfloat16 on
    # two scans and five generations, by the compiler's schedules (benchmarks/tpu/layers.py).
    preferred=lambda problem, hardware: True,
    rank=20,
)
