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
    VIEWS,
    WINDOW_ALIGNMENT,
    WINDOW_TILE,
    Columns,
    columns_of,
    most_visits,
    tiles_of_visits,
)
from voxax.algorithms.kernel import (
    EVERY_PRODUCT,
    Kernel,
    Parameters,
    Problem,
    Product,
    first_of,
)
from voxax.algorithms.rows import clear_unreached, oriented, table_name
from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.hardware import HardwareInfo

_DTYPES = ("float32", "bfloat16", "int8")
# Of these precisions one pass over bfloat16 operands is enough.
_ONE_PASS = ("default", "fastest", "bfloat16")
# Of tiles of 128 rows on LiDAR sweeps and indoor scans, 98.6 to 100 % have no window longer than
# 256 rows, and none had one longer than 512.
_WINDOWS = (256, 512)
# Channels are multiples of it, and so are the blocks they are taken in; or they are half of it.
_CHANNELS = 128
_HALF = 64
# Every column and tap is code of its own, so many taps would take long to compile. 7 x 7 x 7.
_MOST_TAPS = 343
# float32 is the sum of three bfloat16 numbers, of 8 bits each.
_PARTS = 3


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
        return _CHANNELS // self.in_block if self.in_block < _CHANNELS else 1

    @property
    def alignment(self) -> int:
        """Windows start at multiples of so many rows."""
        return self.packed * WINDOW_ALIGNMENT


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Why the window kernels cannot run this problem, or None."""
    if problem.platform != "tpu":
        return f"the window kernels run on TPUs, not on {problem.platform}"
    if problem.layer.kind != "dense":
        return f"the window kernels multiply dense weights, not {problem.layer.kind} ones"
    if problem.dtype not in _DTYPES:
        return _dtype_refusal(problem.dtype)
    if problem.layer.num_offsets > _MOST_TAPS:
        return f"the window kernels take {_MOST_TAPS} taps at most, got {problem.layer.num_offsets}"
    if not _fitting(problem, hardware):
        return _excess(problem, hardware)
    return None


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


def reads(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """The table of the side that is written, its windows, and the other table.

    The other table says which rows of the gathered operand are read at all.
    """
    del parameters
    if symmetric:
        return ("neighbors", "windows")
    windows = "windows" if product != "dgrad" else "transposed_windows"
    return ("neighbors", "transposed_neighbors", windows)


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Run a product; ``("interpret", 1)`` among the parameters runs it on any platform."""
    # Not with voxax: only programs that use it need Pallas.
    from voxax.algorithms.implicit_gemm import tpu_kernel

    values = dict(parameters)
    blocks = Blocks(*(int(values[name]) for name in _NAMES))
    name = table_name(problem)
    table, other = views[name], views["neighbors"]
    if not problem.layer.symmetric:
        (other,) = (views[n] for n in ("neighbors", "transposed_neighbors") if n != name)
    shape = problem.result_shape
    result = product_dtype(a.dtype)
    if 0 in (*a.shape, *b.shape, *table.shape, *shape):
        return jnp.zeros(shape, result)

    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    windows = views["windows" if name == "neighbors" else "transposed_windows"]
    visits, fits = _visits(problem, blocks, columns, windows, a.shape[0])
    total = accumulator(a.dtype)
    kernel = tpu_kernel.Kernel(
        columns, blocks.window, blocks.packed, _parts(problem), total,
        _vmem_bytes(problem, blocks), bool(values.get("interpret", 0)),
    )  # fmt: skip
    by_tap = _by_tap(table, WINDOW_TILE * windows.shape[1])
    x = _gathered(problem, a, other, blocks)
    arguments = kernel, tpu_kernel.Visits(*visits), by_tap

    if problem.product == "wgrad":
        dy = clear_unreached(b, table).astype(x[0].dtype)
        dy = _padded(dy, by_tap.shape[1], blocks.out_block)
        parts = [
            [
                jnp.sum(tpu_kernel.weight_product(*arguments, xs, dys), axis=0)
                for dys in _split(dy, blocks.out_block, 1)
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
    for ws in _split(_padded_weight(w, blocks), blocks.out_block, 2):
        terms = [
            tpu_kernel.product(*arguments, xs, _weight_of(problem, part), start)
            for xs, part, start in zip(x, _split(ws, blocks.in_block, 1), starts, strict=True)
        ]
        outs.append(sum(terms[1:], terms[0]))
    y = jnp.concatenate(outs, axis=2)
    return y.reshape(-1, y.shape[2])[: shape[0], : shape[1]].astype(result)


def _unvisited(fits: jax.Array, channels: int, dtype: Any) -> jax.Array:
    """``[tiles + 1, WINDOW_TILE, channels]``: what a product holds where no visit writes.

    Zero, or what says that there was no room. By tile: TPUs spread a value of each row over lanes
    at a cycle a row, and that of a tile at a quarter of it.
    """
    of_tile = jnp.pad(_unless_lost(jnp.zeros(len(fits), dtype), fits), (0, 1))
    return jnp.broadcast_to(of_tile[:, None, None], (len(of_tile), WINDOW_TILE, channels))


def _unless_lost(y: jax.Array, fits: jax.Array) -> jax.Array:
    """NaN where there was no room; of integers, which have none, the least of all."""
    integral = jnp.issubdtype(y.dtype, jnp.integer)
    lost = jnp.iinfo(y.dtype).min if integral else jnp.nan
    return jnp.where(fits, y, jnp.asarray(lost, y.dtype))


def _visits(
    problem: Problem, blocks: Blocks, columns: Columns, windows: jax.Array, rows: int
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The arrays of ``tpu_kernel.Visits``, and ``bool[tiles]``: for which there is room.

    There is room for all in maps between canonical orders. In a map that was made by hand there may
    not be. Tiles without room have no visit at all: what is left out must not look like a result.
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
    # The nearest place where a tile begins; the last stripe goes to the end, room or not.
    after = jnp.searchsorted(begins, wanted, method="compare_all")
    high, low = begins[after], begins[jnp.maximum(after - 1, 0)]
    bounds = jnp.minimum(jnp.where(wanted - low < high - wanted, low, high), total)
    bounds = bounds.at[-1].set(total)
    scalars = (of_place, first, starts.reshape(-1), lengths.reshape(-1), bounds)
    return scalars, fits


def _by_tap(table: jax.Array, places: int) -> jax.Array:
    """``int32[K', places]``: the table tap by tap, filled up with -1."""
    rows, taps = table.shape
    fill = ((0, -taps % 8), (0, places - rows))
    return jnp.pad(table.T, fill, constant_values=-1)


def _gathered(problem: Problem, x: jax.Array, other: jax.Array, blocks: Blocks) -> list[jax.Array]:
    """Blocks of channels of the operand that rows are selected from, as the kernel wants them.

    Rows that nothing reads are zero, since zero times NaN is NaN. The last window is zero: a
    column's that has none, and it begins behind every other.
    """
    rows = x.shape[0] + -x.shape[0] % blocks.alignment
    x = _padded(clear_unreached(x, other), rows, blocks.in_block)
    x = x.astype(jnp.float32 if _parts(problem) > 1 else jnp.bfloat16)
    packed = (rows // blocks.packed, blocks.packed * blocks.in_block)
    parts = [part.reshape(packed) for part in _split(x, blocks.in_block, 1)]
    # After the reshape: the other way round a cycle a row, this way a sixth of it.
    return [jnp.pad(part, ((0, blocks.window // blocks.packed), (0, 0))) for part in parts]


def _weight_of(problem: Problem, w: jax.Array) -> jax.Array:
    """``[K, C_in, C_out]`` to ``bfloat16[parts * C_out, K * C_in]``.

    ``reduce_precision``, since compilers may take a conversion there and back for nothing.
    """
    rows = w.transpose(2, 0, 1).reshape(w.shape[2], -1)
    found = []
    for _ in range(_parts(problem) - 1):
        found.append(jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7))
        rows = rows - found[-1]
    return jnp.concatenate([*found, rows], axis=0).astype(jnp.bfloat16)


def _padded(x: jax.Array, rows: int, block: int) -> jax.Array:
    return jnp.pad(x, ((0, rows - x.shape[0]), (0, -x.shape[1] % block)))


def _padded_weight(w: jax.Array, blocks: Blocks) -> jax.Array:
    return jnp.pad(
        w, ((0, 0), (0, -w.shape[1] % blocks.in_block), (0, -w.shape[2] % blocks.out_block))
    )


def _split(x: jax.Array, block: int, axis: int) -> list[jax.Array]:
    return jnp.split(x, x.shape[axis] // block, axis)


def _parts(problem: Problem) -> int:
    return _PARTS if problem.dtype == "float32" and problem.layer.precision not in _ONE_PASS else 1


# In the order of Blocks.
_NAMES = ("window_rows", "in_block", "out_block", "stripes")


def parameters(blocks: Blocks) -> Parameters:
    """Encode ``blocks`` as tuning parameters."""
    sizes = zip(_NAMES, dataclasses.astuple(blocks), strict=True)
    return tuple(sorted((("body", "windows"), *sizes)))


def _fitting(problem: Problem, hardware: HardwareInfo) -> list[Blocks]:
    vmem, smem = hardware.vmem_bytes or 0, _free_smem(hardware)
    found = []
    for window in _WINDOWS:
        of_window = (
            b for b in _blocks(problem, hardware, window) if _vmem_bytes(problem, b) <= vmem
        )
        best = next(of_window, None)
        if best is not None and _smem_bytes(problem, best) <= smem:
            found.append(best)
    return found


def _blocks(problem: Problem, hardware: HardwareInfo, window: int) -> list[Blocks]:
    """Blocks of channels, those of fewest calls first."""
    in_channels, out_channels = problem.gathered_channels, problem.other_channels
    stripes = hardware.cores or 1
    pairs = itertools.product(_sizes(in_channels), _sizes(out_channels))
    ordered = sorted(pairs, key=lambda p: (-(-in_channels // p[0]) * -(-out_channels // p[1]), p))
    return [Blocks(window, *pair, stripes) for pair in ordered]


def _sizes(channels: int) -> list[int]:
    if channels <= _HALF:
        return [_HALF]
    whole = -(-channels // _CHANNELS)
    return sorted({-(-whole // pieces) * _CHANNELS for pieces in range(1, whole + 1)}, reverse=True)


def _vmem_bytes(problem: Problem, blocks: Blocks) -> int:
    """Vector memory of a call: what is held twice, what stays, what is computed."""
    columns, taps = (
        columns_of(problem.layer.spec, problem.layer.num_offsets),
        problem.layer.num_offsets,
    )
    parts, wide, half = _parts(problem), 4, 2
    operand = wide if parts > 1 else half
    weight = taps * blocks.in_block * blocks.out_block
    lanes = max(blocks.out_block, _CHANNELS)
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


def _smem_bytes(problem: Problem, blocks: Blocks) -> int:
    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    sources = problem.gathered_rows
    tiles = -(-problem.out_rows // WINDOW_TILE)
    visits = most_visits(
        problem.layer.spec, columns, sources, tiles, blocks.window, blocks.alignment
    )
    words = visits + tiles * (1 + 2 * len(columns)) + blocks.stripes + 1
    return 4 * words


def _free_smem(hardware: HardwareInfo) -> int:
    """Scalar memory that arguments may fill: all but 2 KiB of 1 MiB was seen to compile."""
    return max(0, (hardware.smem_bytes or 0) - 4096)


def _excess(problem: Problem, hardware: HardwareInfo) -> str:
    """Which memory the smallest blocks exceed."""
    least, taps = _blocks(problem, hardware, _WINDOWS[0])[-1], problem.layer.num_offsets
    for name, needed, there in (
        ("vector memory", _vmem_bytes(problem, least), hardware.vmem_bytes or 0),
        ("scalar memory", _smem_bytes(problem, least), _free_smem(hardware)),
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
