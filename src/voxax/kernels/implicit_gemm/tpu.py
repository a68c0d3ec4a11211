"""implicit_gemm on TPUs: support checks, choice of block sizes, and the kernel call.

The kernel (``tpu_kernel.py``) loads windows of consecutive input rows (``windows.py``) and selects
the neighbors by permuting registers, because TPUs cannot gather single rows fast.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.implicit_gemm import tpu_items
from voxax.kernels.implicit_gemm.windows import (
    SHORTEST,
    SPILLED,
    VIEWS,
    WINDOW_TILE,
    Columns,
    MapArrays,
    Steps,
    alike,
    allowed,
    block_sizes,
    by_channels,
    columns_of,
    fitting,
    free_smem,
    from_words,
    in_windows,
    most_visits,
    parts_of,
    places_of,
    reads,
    scalar_bytes,
    tiles_of_visits,
    to_words,
    unfit,
    with_rows,
)
from voxax.kernels.kernel import (
    EVERY_PRODUCT,
    Fused,
    Kernel,
    Parameters,
    Problem,
    Product,
    Views,
    first_of,
)
from voxax.kernels.rows import weight_read

# Bytes of vector memory: v4 has 16 MiB, all later generations 64 or more.
_ROOMY = 2**25
_DTYPES = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Block sizes of a call of a window kernel.

    Attributes:
      window: number of rows of a window: consecutive input rows from which the neighbors of a tile
        of output rows are gathered.
      in_block: number of channels of the gathered operand in one call.
      out_block: number of channels of the other operand or of the result in one call.
      stripes: number of parts into which tiles are divided, which may run on different cores.
      resident: 1 if all rows of the gathered operand are in vector memory, else 0.
      tiles: number of tiles of 128 output rows that a step processes together.
    """

    window: int
    in_block: int
    out_block: int
    stripes: int = 1
    resident: int = 0
    tiles: int = 4


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why window kernels cannot run this problem, or None if they can."""
    reason = None if problem.dtype in _DTYPES else _dtype_refusal(problem.dtype)
    reason = unfit(problem, "the window kernels multiply dense", reason)
    if reason is None and not _fitting(problem, hardware):
        return _excess(problem, hardware)
    return reason


def _reads(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    if tpu_items.is_items(parameters):
        return ("items",)
    return reads(parameters, product, symmetric)


def _dtype_refusal(dtype: str) -> str:
    """Return the reason why the kernels do not take ``dtype``: the matrix unit reads bfloat16."""
    reasons = {
        "float16": "its exponents are not bfloat16's, and the matrix unit takes no float16",
        "float64": "the matrix unit adds in float32",
    }
    wide = "of integers int8 alone is exact in bfloat16, with sums of 1024 products in float32"
    return (
        f"the window kernels multiply {', '.join(_DTYPES)}, got {dtype}: {reasons.get(dtype, wide)}"
    )


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure, which differ in window size and number of tiles.

    Each candidate has the largest blocks of channels for which memory suffices. If rows
    have few neighbors, the kernel that reads lists of items (``tpu_items.py``) is added.
    """
    windows = tuple(parameters(blocks) for blocks in _fitting(problem, hardware))
    lists = tpu_items.candidates(problem, hardware)
    return (*lists, *windows) if tpu_items.is_preferred(problem) else (*windows, *lists)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`. With ``("interpret", 1)`` in ``parameters``, the kernel
    is emulated, so that it runs on any platform.
    """
    if tpu_items.is_items(parameters):
        return tpu_items.product(problem, parameters, a, b, views)
    # Imported here, because only programs that use these kernels need Pallas.
    from voxax.kernels.implicit_gemm import tpu_kernel

    blocks, kmap, shape = _blocks_of(parameters), MapArrays.of(problem, views), problem.result_shape
    result = product_dtype(a.dtype)
    if 0 in (*a.shape, *b.shape, *kmap.table.shape, *shape):
        return jnp.zeros(shape, result)

    needed = _vmem_bytes(problem, blocks)
    config, visits = _configured(problem, parameters, kmap, a, needed)
    a = a.astype(jnp.float32 if config.parts > 1 else jnp.bfloat16)
    x = [in_windows(block, blocks.window) for block in by_channels(a, blocks.in_block)]
    arguments = visits.scalars, kmap.table

    if problem.product == "wgrad":
        dy = by_channels(b.astype(a.dtype), blocks.out_block)
        sums = [[tpu_kernel.weight_product(config, *arguments, xs, dys) for dys in dy] for xs in x]
        whole = _taps(config, blocks, sums).transpose(1, 2, 0)
        whole = whole[:, : problem.in_channels, : problem.out_channels]
        # Convert before marking lost sums: with x64 enabled, integers were summed in 64 bits.
        return unless_lost(whole.astype(result), jnp.all(visits.fits))

    # y = sum over blocks of channels; partial sums keep the dtype of the accumulator.
    config = dataclasses.replace(config, result=result if len(x) == 1 else config.total)
    outs = []
    for weights in _weights_of(problem, blocks, b):
        terms: list[jax.Array] = []
        for xs, w in zip(x, weights, strict=True):
            if len(terms) > 1:
                # The barrier makes XLA add each term before it computes the next. Otherwise it may
                # hold all terms, each as large as the result.
                xs, *terms = jax.lax.optimization_barrier((xs, sum(terms[1:], terms[0])))
            terms.append(tpu_kernel.product(config, *arguments, xs, w))
        outs.append(sum(terms[1:], terms[0]))
    return _rows_first(visits, outs, shape).astype(result)


def gradients(
    problem: Problem,
    parameters: Parameters,
    dy: jax.Array,
    x: jax.Array,
    w: jax.Array,
    views: Views,
) -> tuple[jax.Array, jax.Array]:
    """Compute dgrad and wgrad in one kernel: return ``(dx [N, C_in], dw [K, C_in, C_out])``.

    ``problem`` describes dgrad; the operands and ``views`` are as for
    :class:`voxax.kernels.kernel.ApplyFused`.
    """
    # With t the table of dgrad, dx[n] = sum_k dy[t[n, k]] w[k]^T and
    # dw[k] = sum_n x[n]^T dy[t[n, k]]: both use the same selected rows dy[t[n, k]].
    from voxax.kernels.implicit_gemm import tpu_kernel

    blocks, kmap = _blocks_of(parameters), MapArrays.of(problem, views)
    result = product_dtype(x.dtype)
    if 0 in (*dy.shape, *x.shape, *w.shape, *kmap.table.shape):
        return jnp.zeros(x.shape, result), jnp.zeros(w.shape, result)

    needed = _vmem_bytes(problem, blocks, both=True)
    config, visits = _configured(problem, parameters, kmap, dy, needed)
    config = dataclasses.replace(config, result=result)
    operand = jnp.float32 if config.parts > 1 else jnp.bfloat16
    (rows,) = by_channels(dy.astype(operand), blocks.in_block)
    arguments = config, visits.scalars, kmap.table, in_windows(rows, blocks.window)
    tiles = by_channels(x.astype(operand), blocks.out_block)
    pairs = [
        tpu_kernel.gradients(*arguments, weight, tile)
        for (weight,), tile in zip(_weights_of(problem, blocks, w), tiles, strict=True)
    ]
    dw = _taps(config, blocks, [[sums for _, sums in pairs]]).transpose(1, 0, 2)
    dw = dw[:, : problem.in_channels, : problem.out_channels].astype(result)
    if problem.layer.symmetric:
        dw = dw[::-1]  # of the table's taps, which dgrad reads in reverse
    dx = _rows_first(visits, [dx for dx, _ in pairs], x.shape)
    return dx, unless_lost(dw, jnp.all(visits.fits))


def both(problem: Problem, hardware: HardwareInfo, chosen: Parameters) -> Parameters | None:
    """Return parameters for :func:`gradients`, or None to compute dgrad and wgrad separately.

    ``chosen`` are the parameters of a separate dgrad. If memory suffices, the result has the same
    sizes of windows and tiles. A block has all channels of ``dy`` and at least half of those of
    dx, so two kernel calls suffice. None means that memory is too small for this. More calls would
    not be faster, as every call gathers rows again.
    """
    found = fitting(
        hardware,
        lambda window, times: (
            blocks
            for blocks in _blocks(problem, hardware, window, times)
            if blocks.in_block >= problem.gathered_channels
            and 2 * blocks.out_block >= problem.other_channels
        ),
        lambda blocks: with_rows(
            _vmem_bytes(problem, blocks, both=True), _resident_bytes(problem, blocks)
        ),
        lambda blocks: _smem_bytes(problem, blocks),
    )
    blocks = alike(found, _blocks_of(chosen))
    return None if blocks is None else parameters(blocks)


def _blocks_of(parameters: Parameters) -> Blocks:
    values = dict(parameters)
    return Blocks(*(int(values[name]) for name in _NAMES))


def _configured(
    problem: Problem, parameters: Parameters, kmap: MapArrays, gathered: jax.Array, needed: int
) -> tuple[Any, PlannedVisits]:
    """Return the kernel's ``TileConfig`` and its list of visits (steps).

    ``gathered``, ``[rows, channels]``, is the operand from which neighbors are gathered. ``kmap``
    has the arrays of the kernel map. ``needed`` is the number of bytes of vector memory that the
    call needs.
    """
    from voxax.kernels.implicit_gemm import tpu_kernel

    blocks = _blocks_of(parameters)
    config = tpu_kernel.TileConfig(
        columns=kmap.columns,
        window=blocks.window,
        parts=parts_of(problem),
        resident=bool(blocks.resident),
        tiles=blocks.tiles,
        vmem_bytes=allowed(needed),
        interpret=bool(dict(parameters).get("interpret", 0)),
        total=accumulator(gathered.dtype),
    )
    return config, visits_of(problem, blocks, kmap.columns, kmap.windows, gathered.shape[0])


def _taps(config: Any, blocks: Blocks, sums: list[list[jax.Array]]) -> jax.Array:
    """Join ``sums`` to the weight gradient, ``[other channels, K, gathered channels]``.

    ``sums[i][j]`` is ``[stripes, out_block, K * in_block]`` for block ``i`` of the gathered
    channels and block ``j`` of the other channels. The stripes are added here.
    """
    summed = [[jnp.sum(block, axis=0) for block in row] for row in sums]
    taps = [[w.reshape(blocks.out_block, -1, blocks.in_block) for w in row] for row in summed]
    if config.parts == 1:
        taps = [[from_words(w, 2) for w in row] for row in taps]
    return jnp.concatenate([jnp.concatenate(row, axis=0) for row in taps], axis=2)


def _weights_of(problem: Problem, blocks: Blocks, w: jax.Array) -> list[list[jax.Array]]:
    """Cut the layer's weight ``w [K, C_in, C_out]`` by channels into operands of kernel calls.

    Element ``[i][j]`` is for block i of the result's channels and block j of the gathered channels,
    in the form that :func:`_weight_of` returns.
    """
    w = weight_read(problem, w)
    of_result = _split(_padded_weight(w, blocks), blocks.out_block, 2)
    return [
        [_weight_of(problem, part) for part in _split(block, blocks.in_block, 1)]
        for block in of_result
    ]


def _rows_first(visits: PlannedVisits, outs: list[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Join ``outs``, one ``[block, rows]`` for each block of channels, to ``[rows, channels]``.

    ``shape`` is the shape of the result. Rows that the kernel does not write are filled in, see
    :meth:`PlannedVisits.defined`.
    """
    return visits.defined(jnp.concatenate(outs, axis=0)[: shape[1]]).T


@dataclasses.dataclass(frozen=True)
class PlannedVisits:
    """The visits (steps) of a kernel call, each for one group: tiles that are processed together.

    Attributes:
      scalars: the visits as ``tpu_kernel.Visits``.
      visited: ``bool[groups]``, which groups have a visit. Other groups have no neighbors, or
        ``fits`` is False for them.
      fits: ``bool[groups]``, False for groups whose visits exceed the bound :func:`most_visits`.
        They get no visit, because a partial sum must not look like a result. This happens only in
        maps made by hand, whose rows are not in lexicographic order.
      group: number of rows of a group.
    """

    scalars: Any
    visited: jax.Array
    fits: jax.Array
    group: int

    def defined(self, y: jax.Array) -> jax.Array:
        """Return ``y [channels, rows]`` with the rows that the kernel does not write filled in.

        They become zero in groups without neighbors. In groups where ``fits`` is False, they become
        what :func:`unless_lost` returns.
        """
        # XLA fuses this into the next reader. Zeros before the kernel took 8 % of a layer's time.

        def by_row(of_group: jax.Array) -> jax.Array:
            shape = len(of_group), self.group
            return jnp.broadcast_to(of_group[:, None], shape).reshape(1, -1)[:, : y.shape[1]]

        otherwise = unless_lost(jnp.zeros(len(self.fits), y.dtype), self.fits)
        return jnp.where(by_row(self.visited), y, by_row(otherwise))


def unless_lost(y: jax.Array, fits: jax.Array) -> jax.Array:
    """Return ``y`` where ``fits`` is True, else NaN, or the least integer if ``y`` has integers.

    ``fits``, which broadcasts to ``y``, is False where ``y`` lacks terms of its sums, see
    :class:`PlannedVisits`.
    """
    integral = jnp.issubdtype(y.dtype, jnp.integer)
    lost = jnp.iinfo(y.dtype).min if integral else jnp.nan
    return jnp.where(fits, y, jnp.asarray(lost, y.dtype))


def visits_of(
    problem: Problem, steps: Steps, columns: Columns, windows: jax.Array, rows: int
) -> PlannedVisits:
    """Plan the steps (visits) of a product, and divide them into stripes of nearly equal length.

    A run is the input rows from a tile's first to its last neighbor. A group of tiles has as many
    visits as it takes windows to cover the longest of the group's runs.

    Args:
      problem: the product.
      steps: block sizes, with the rows of a window and the numbers of tiles and stripes.
      columns: taps of each column, from
        :func:`voxax.kernels.implicit_gemm.windows.columns_of`.
      windows: windows of the table, ``int32[2, tiles, columns]``, see
        :func:`voxax.kernels.implicit_gemm.windows.find_windows`.
      rows: number of rows of the gathered operand.
    """
    from voxax.kernels.implicit_gemm.tpu_kernel import Visits

    tiles, stripes, window = windows.shape[1], steps.stripes, steps.window
    most = most_visits(problem.layer.spec, columns, rows, tiles, window, steps.tiles)
    windows = jnp.pad(windows, ((0, 0), (0, -tiles % steps.tiles), (0, 0)))
    starts, lengths = windows.reshape(2, -1, steps.tiles * len(columns))
    of_place, first, ends = tiles_of_visits(lengths, window, most)
    fits = ends <= most
    # Every visit costs the same, so stripes get nearly equal numbers of visits. There is at least
    # one visit, because without any a step would write undefined values. The first group fits.
    total = jnp.maximum(jnp.max(jnp.where(fits, ends, 0)), 1)
    shares = jnp.arange(stripes + 1, dtype=jnp.int32)
    # wanted = total * shares / stripes, without a product that may overflow 32 bits.
    wanted = total // stripes * shares + jnp.minimum(total % stripes, shares)
    begins = jnp.concatenate([first, ends[-1:]])
    # A stripe begins at the nearest place where a group begins; the last one ends after all visits.
    after = jnp.searchsorted(begins, wanted, method="compare_all")
    high, low = begins[after], begins[jnp.maximum(after - 1, 0)]
    bounds = jnp.minimum(jnp.where(wanted - low < high - wanted, low, high), total)
    bounds = bounds.at[-1].set(total)
    scalars = Visits(of_place, first, starts.reshape(-1), lengths.reshape(-1), bounds)
    return PlannedVisits(scalars, fits & (ends > first), fits, steps.tiles * WINDOW_TILE)


def _weight_of(problem: Problem, w: jax.Array) -> jax.Array:
    """Turn ``w [K, C_in, C_out]`` into the operand ``bfloat16[parts * C_out, K * C_in]``.

    With 3 parts, each float32 weight is the sum of 3 bfloat16 numbers; with 1 part, the weight is
    rounded, and input channels are permuted to the order in which the kernel gathers them.
    """
    w = w if parts_of(problem) > 1 else to_words(w, 1)
    rows = w.transpose(2, 0, 1).reshape(w.shape[2], -1)
    found = []
    # w = w_1 + w_2 + w_3: each part takes the leading 8 bits of the rest. ``reduce_precision``
    # rounds, because compilers may remove a conversion to bfloat16 and back.
    for _ in range(parts_of(problem) - 1):
        found.append(jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7))
        rows = rows - found[-1]
    return jnp.concatenate([*found, rows], axis=0).astype(jnp.bfloat16)


def _split(x: jax.Array, block: int, axis: int) -> list[jax.Array]:
    return jnp.split(x, x.shape[axis] // block, axis)


def _padded_weight(w: jax.Array, blocks: Blocks) -> jax.Array:
    return jnp.pad(
        w, ((0, 0), (0, -w.shape[1] % blocks.in_block), (0, -w.shape[2] % blocks.out_block))
    )


# In the order of the attributes of Blocks.
_NAMES = ("window_rows", "in_block", "out_block", "stripes", "resident", "tiles")


def parameters(blocks: Blocks) -> Parameters:
    """Encode ``blocks`` as tuning parameters of the kernel."""
    sizes = zip(_NAMES, dataclasses.astuple(blocks), strict=True)
    return tuple(sorted((("body", "windows"), *sizes)))


def _fitting(problem: Problem, hardware: HardwareInfo) -> list[Blocks]:
    return fitting(
        hardware,
        lambda window, times: _blocks(problem, hardware, window, times),
        lambda blocks: with_rows(_vmem_bytes(problem, blocks), _resident_bytes(problem, blocks)),
        lambda blocks: _smem_bytes(problem, blocks),
    )


def _blocks(problem: Problem, hardware: HardwareInfo, window: int, times: int = 1) -> list[Blocks]:
    """Return all :class:`Blocks` with ``window`` rows in a window, fewest kernel calls first.

    ``times`` is a factor by which steps process more tiles than usual, see :func:`steps_of`.
    """
    in_channels, out_channels = problem.gathered_channels, problem.other_channels
    wide = parts_of(problem) > 1
    stripes = hardware.cores or 1
    pairs = itertools.product(block_sizes(in_channels), block_sizes(out_channels))
    ordered = sorted(pairs, key=lambda p: (-(-in_channels // p[0]) * -(-out_channels // p[1]), p))
    return [
        Blocks(window, *pair, stripes, resident, tiles)
        for pair in ordered
        for resident, tiles in steps_of(hardware, pair[0] // (1 if wide else 2), times)
    ]


def steps_of(hardware: HardwareInfo, words: int, times: int = 1) -> Iterator[tuple[int, int]]:
    """Return an iterator over values ``(resident, tiles)`` of :class:`Blocks`, fastest first.

    Args:
      hardware: the chip.
      words: number of 32-bit words of a gathered row.
      times: factor on the usual numbers of tiles.
    """
    # All rows can be in vector memory only if it is large and the device has one core: two cores
    # have a memory each, and XLA keeps no array in the small one of a v4.
    can = (hardware.cores or 1) == 1 and (hardware.vmem_bytes or 0) >= _ROOMY
    places = (1, 0) if can else (0,)
    # For long rows one tile is enough work for a step, and it takes less code.
    tiles = 4 if words <= 32 else 2 if words <= 128 else 1
    return itertools.product(places, [times * n for n in (4, 2, 1) if n <= tiles])


def _resident_bytes(problem: Problem, blocks: Blocks) -> int:
    operand = 4 if parts_of(problem) > 1 else 2
    places = places_of(problem.gathered_rows, blocks.window)
    return blocks.resident * places * blocks.in_block * operand


def _smem_bytes(problem: Problem, blocks: Blocks) -> int:
    return scalar_bytes(problem, blocks.window, blocks.stripes, blocks.tiles)


def _vmem_bytes(problem: Problem, blocks: Blocks, *, both: bool = False) -> int:
    """Return the bytes of vector memory that a call needs, except for resident rows.

    If ``blocks.resident`` is 1, all rows of the gathered operand are resident. ``both`` is whether
    the call computes dgrad and wgrad, see :func:`gradients`.
    """
    columns, taps = (
        columns_of(problem.layer.spec, problem.layer.num_offsets),
        problem.layer.num_offsets,
    )
    parts, wide, half = parts_of(problem), 4, 2
    operand, rows = wide if parts > 1 else half, blocks.tiles * WINDOW_TILE
    window = blocks.window * blocks.in_block * operand
    windows = 0 if blocks.resident else 3 * blocks.tiles * len(columns) * window
    weight = taps * blocks.in_block * blocks.out_block
    tile = rows * blocks.out_block * wide
    picked = parts * taps * blocks.in_block * rows * half
    # ``twice`` counts blocks with two buffers, ``once`` those with one.
    twice = (taps + 8) * rows * wide + tile
    once = 0
    if both or problem.product == "wgrad":
        # The sums, and the terms that are added to them.
        twice += weight * wide
        once += parts * weight * wide
    if both:
        twice += tile  # the other operand's
    if problem.product != "wgrad":
        once += parts * weight * half + tile
        # The compiler's stack holds the picked rows once more, and the terms of each product.
        once += picked + parts * (parts + 1) // 2 * tile
    # Values computed for a column: its window, and the rows of a tap in parts.
    computed = (blocks.window + parts * WINDOW_TILE) * blocks.in_block * wide
    # SPILLED is for values that do not fit in registers.
    return windows + 2 * twice + once + picked + 2 * computed + SPILLED


def _excess(problem: Problem, hardware: HardwareInfo) -> str:
    """Return a message that says which memory of the chip is too small for the smallest blocks."""
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
    reads=_reads,
    apply=apply,
    views={**VIEWS, **tpu_items.VIEWS},
    fused=Fused(both, gradients),
    # By the compiler's schedules, it takes less time than XLA's gather and products on every scan
    # and generation that was counted (benchmarks/tpu/layers.py).
    preferred=lambda problem, hardware: True,
    rank=20,
    revision=2,  # It permutes lanes; before, it multiplied with zeros and ones.
)
