"""Implicit GEMM on TPUs: rows selected on the matrix unit from windows of consecutive rows.

``tpu_kernel.py`` has the idea in full. Here: whether a problem fits the chip, in which blocks, and
the operands as the kernel wants them.
"""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp

from voxax.algorithms.base import Parameters, Problem, Product
from voxax.algorithms.rows import clear_unreached, oriented, table_views
from voxax.geometry.windows import (
    OPPOSITE_WINDOWS,
    WINDOW_ALIGNMENT,
    WINDOW_TILE,
    Columns,
    columns_of,
    most_visits,
)
from voxax.hardware import HardwareInfo

_DTYPES = ("float32", "bfloat16")
# Of these precisions one pass over bfloat16 operands is enough.
_ONE_PASS = ("default", "fastest", "bfloat16")
# Of tiles of 128 rows on LiDAR sweeps and indoor scans, 98.6 to 100 % have no window longer than
# 256 rows, and none had one longer than 512.
_WINDOWS = (256, 512)
# Channels are multiples of it, and so are the blocks they are taken in.
_CHANNELS = 128
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


def refusal(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Why this body cannot run this problem, or None."""
    if problem.platform != "tpu":
        return f"the window kernels run on TPUs, not on {problem.platform}"
    if problem.kind != "dense":
        return f"the window kernels multiply dense weights, not {problem.kind} ones"
    if problem.dtype not in _DTYPES:
        return f"the window kernels multiply {' and '.join(_DTYPES)}, got {problem.dtype}"
    if problem.num_offsets > _MOST_TAPS:
        return f"the window kernels take {_MOST_TAPS} taps at most, got {problem.num_offsets}"
    if not _fitting(problem, hardware):
        return _excess(problem, hardware)
    return None


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Each length of windows that fits, in the largest blocks of channels that do."""
    return tuple(parameters(blocks) for blocks in _fitting(problem, hardware))


def is_windowed(chosen: Parameters) -> bool:
    """Whether these are this body's parameters."""
    return dict(chosen).get("body") == "windows"


def views(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """The table of the side that is written, its windows, and the other table.

    The other table says which rows of the gathered operand are read at all.
    """
    del parameters
    if symmetric:
        return ("neighbors", "windows")
    windows = "windows" if product != "dgrad" else OPPOSITE_WINDOWS["windows"]
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
    name = table_views(problem.product, problem.symmetric)[0]
    table, other = views[name], views["neighbors"]
    if not problem.symmetric:
        (other,) = (views[n] for n in ("neighbors", "transposed_neighbors") if n != name)
    shape = problem.weight_shape if problem.product == "wgrad" else _written(problem)
    if 0 in (*a.shape, *b.shape, *table.shape, *shape):
        return jnp.zeros(shape, a.dtype)

    columns = columns_of(problem.spec, problem.num_offsets)
    windows = views["windows" if name == "neighbors" else OPPOSITE_WINDOWS["windows"]]
    # As many tiles in each stripe.
    windows = jnp.pad(windows, ((0, 0), (0, -windows.shape[1] % blocks.stripes), (0, 0)))
    visits, visited, fits = _visits(problem, blocks, columns, windows, a.shape[0])
    kernel = tpu_kernel.Kernel(
        columns, blocks.window, _parts(problem), _vmem_bytes(problem, blocks),
        bool(values.get("interpret", 0)),
    )  # fmt: skip
    by_tap = _by_tap(table, WINDOW_TILE * windows.shape[1])
    x = _gathered(problem, a, other, blocks)
    dtype = jnp.float32 if _parts(problem) > 1 else jnp.bfloat16
    arguments = kernel, tpu_kernel.Visits(*visits), by_tap

    if problem.product == "wgrad":
        dy = _padded(clear_unreached(b, table).astype(dtype), by_tap.shape[1], blocks.out_block)
        parts = [
            [
                jnp.sum(tpu_kernel.weight_product(*arguments, xs, dys, problem.num_offsets), axis=0)
                for dys in _split(dy, blocks.out_block, 1)
            ]
            for xs in x
        ]
        whole = jnp.concatenate([jnp.concatenate(row, axis=2) for row in parts], axis=1)
        whole = jnp.where(jnp.all(fits), whole, jnp.nan)
        return whole[:, : problem.in_channels, : problem.out_channels].astype(a.dtype)

    w, _ = oriented(problem, b, {"neighbors": table, "transposed_neighbors": table})
    w = _padded_weight(w.astype(dtype), blocks)
    # Partial sums over blocks of channels stay in float32.
    kept = a.dtype if len(x) == 1 else jnp.dtype(jnp.float32)
    outs = []
    for ws in _split(w, blocks.out_block, 2):
        terms = [
            tpu_kernel.product(*arguments, xs, part, kept)
            for xs, part in zip(x, _split(ws, blocks.in_block, 1), strict=True)
        ]
        outs.append(sum(terms[1:], terms[0]))
    y = jnp.concatenate(outs, axis=1).reshape(len(visited), WINDOW_TILE, -1)
    y = jnp.where(visited[:, None, None], y, jnp.zeros((), y.dtype))
    y = jnp.where(fits[:, None, None], y, jnp.asarray(jnp.nan, y.dtype))
    return y.reshape(by_tap.shape[1], -1)[: shape[0], : shape[1]].astype(a.dtype)


def _written(problem: Problem) -> tuple[int, int]:
    if problem.product == "forward":
        return problem.out_capacity, problem.out_channels
    return problem.in_capacity, problem.in_channels


def _visits(
    problem: Problem, blocks: Blocks, columns: Columns, windows: jax.Array, rows: int
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array]:
    """The arrays of ``tpu_kernel.Visits``, and ``bool[tiles]`` twice.

    Which tiles have any visits; and for which there is room. There is room for all in maps
    between canonical orders. In a map that was made by hand there may not be, and what is left out
    must not look like a result: its tiles become NaN.
    """
    tiles, stripes = windows.shape[1], blocks.stripes
    each = tiles // stripes
    most = most_visits(problem.spec, columns, rows, each, blocks.window)
    number = jnp.max(-(-windows[1] // blocks.window), axis=1)
    by_stripe = number.reshape(stripes, each)
    ends = jnp.cumsum(by_stripe, axis=1, dtype=jnp.int32)
    places = jnp.arange(most, dtype=jnp.int32)
    # The tile of a place: how many tiles of the stripe end at or before it.
    inside = jax.vmap(lambda e: jnp.searchsorted(e, places, side="right"))(ends).astype(jnp.int32)
    begin = each * jnp.arange(stripes, dtype=jnp.int32)[:, None]
    of_place = begin + jnp.minimum(inside, each - 1)
    totals = jnp.minimum(ends[:, -1], most)
    scalars = (of_place, ends - by_stripe, windows[0], windows[1], totals)
    return tuple(s.reshape(-1) for s in scalars), number > 0, (ends <= most).reshape(-1)


def _by_tap(table: jax.Array, places: int) -> jax.Array:
    """``int32[K', places]``: the table tap by tap, filled up with -1."""
    rows, taps = table.shape
    fill = ((0, -taps % 8), (0, places - rows))
    return jnp.pad(table.T, fill, constant_values=-1)


def _gathered(problem: Problem, x: jax.Array, other: jax.Array, blocks: Blocks) -> list[jax.Array]:
    """Blocks of channels of the operand that rows are selected from, in bfloat16 parts.

    Rows that nothing reads are zero, since zero times NaN is NaN. A window may begin at the last
    row.
    """
    rows = x.shape[0] + blocks.window
    x = _padded(clear_unreached(x, other), rows + -rows % WINDOW_ALIGNMENT, blocks.in_block)
    return [_in_parts(part, _parts(problem)) for part in _split(x, blocks.in_block, 1)]


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


def _padded(x: jax.Array, rows: int, block: int) -> jax.Array:
    return jnp.pad(x, ((0, rows - x.shape[0]), (0, -x.shape[1] % block)))


def _padded_weight(w: jax.Array, blocks: Blocks) -> jax.Array:
    return jnp.pad(
        w, ((0, 0), (0, -w.shape[1] % blocks.in_block), (0, -w.shape[2] % blocks.out_block))
    )


def _split(x: jax.Array, block: int, axis: int) -> list[jax.Array]:
    return jnp.split(x, x.shape[axis] // block, axis)


def _parts(problem: Problem) -> int:
    return _PARTS if problem.dtype == "float32" and problem.precision not in _ONE_PASS else 1


# In the order of Blocks.
_NAMES = ("window_rows", "in_block", "out_block", "stripes")


def parameters(blocks: Blocks) -> Parameters:
    """Those of this body."""
    sizes = zip(_NAMES, dataclasses.astuple(blocks), strict=True)
    return tuple(sorted((("body", "windows"), *sizes)))


FORM = parameters(Blocks(_WINDOWS[0], _CHANNELS, _CHANNELS))
"""One set of parameters: windows of 256 rows, one block of channels after the other."""


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
    in_channels, out_channels = _channels(problem)
    stripes = hardware.cores or 1
    pairs = itertools.product(_sizes(in_channels), _sizes(out_channels))
    ordered = sorted(pairs, key=lambda p: (-(-in_channels // p[0]) * -(-out_channels // p[1]), p))
    return [Blocks(window, *pair, stripes) for pair in ordered]


def _channels(problem: Problem) -> tuple[int, int]:
    """Channels of the operand that is gathered, and of the other."""
    c_in, c_out = problem.in_channels, problem.out_channels
    return (c_out, c_in) if problem.product == "dgrad" else (c_in, c_out)


def _sizes(channels: int) -> list[int]:
    whole = max(1, -(-channels // _CHANNELS))
    return sorted({-(-whole // pieces) * _CHANNELS for pieces in range(1, whole + 1)}, reverse=True)


def _vmem_bytes(problem: Problem, blocks: Blocks) -> int:
    """Vector memory of a call: what the pipeline holds twice, what stays, what is computed."""
    columns, taps = columns_of(problem.spec, problem.num_offsets), problem.num_offsets
    parts, wide = _parts(problem), 4
    operand = wide if parts > 1 else 2
    selected = blocks.in_block * parts
    weight = taps * blocks.in_block * blocks.out_block
    tile = WINDOW_TILE * blocks.out_block
    twice = len(columns) * blocks.window * selected * 2 + (taps + 8) * WINDOW_TILE * wide
    if problem.product == "wgrad":
        twice += tile * operand + weight * wide
        once = 0
    else:
        twice += tile * wide
        once = weight * operand + tile * wide
    # Ones, selected rows and sums of the taps of a column, and the places they are compared with.
    longest = max(map(len, columns))
    computed = WINDOW_TILE * (blocks.window + selected + blocks.out_block) * wide * (longest + 2)
    return 2 * twice + once + computed


def _smem_bytes(problem: Problem, blocks: Blocks) -> int:
    columns = columns_of(problem.spec, problem.num_offsets)
    rows = problem.out_rows
    sources = problem.out_capacity if problem.product == "dgrad" else problem.in_capacity
    tiles = -(-rows // WINDOW_TILE)
    each = -(-tiles // blocks.stripes)
    visits = most_visits(problem.spec, columns, sources, each, blocks.window)
    words = blocks.stripes * (visits + 1 + each * (1 + 2 * len(columns)))
    return 4 * words


def _free_smem(hardware: HardwareInfo) -> int:
    """Scalar memory that arguments may fill: all but 2 KiB of 1 MiB was seen to compile."""
    return max(0, (hardware.smem_bytes or 0) - 4096)


def _excess(problem: Problem, hardware: HardwareInfo) -> str:
    """Which memory the smallest blocks exceed."""
    least = _blocks(problem, hardware, _WINDOWS[0])[-1]
    for name, needed, there in (
        ("vector memory", _vmem_bytes(problem, least), hardware.vmem_bytes or 0),
        ("scalar memory", _smem_bytes(problem, least), _free_smem(hardware)),
    ):
        if needed > there:
            return (
                f"the window kernels need {needed} bytes of {name} for {problem.num_offsets} taps "
                f"and {problem.out_rows} rows, the chip has {there}"
            )
    return "no length of windows fits both memories of the chip"
