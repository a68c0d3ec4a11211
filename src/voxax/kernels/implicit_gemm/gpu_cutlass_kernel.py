"""The kernels of ``cutlass_implicit_gemm`` in CUTLASS' Python DSL, which need its package.

*Forward and dgrad.* A block of threads computes a tile of output rows and output channels. The rows
are sorted by the taps that they have. The block walks the list of the taps that any row of its tile
has, or a slice of the list. For each tap and step of input channels, its threads copy rows of
features, by the neighbor table, and the tap's weight into shared memory. A thread copies 16 bytes
at a time, without waiting (``cp.async``). A missing neighbor becomes zeros, and nothing is read.
The copies of ``stages`` steps overlap. Warps load matrix fragments from shared memory
(``ldmatrix``), multiply them on tensor cores (``mma.sync``), and add in float32.

*wgrad.* The tile is a part of one tap's weight. Both operands are gathered by the lists of the
tap's pairs, and a block sums over one slice of the pairs.

Every number is written once, and XLA adds slices in order, so results are bitwise reproducible.
``mma.sync`` runs on Hopper, Blackwell and later GPUs, while ``wgmma`` is only for Hopper.

Source of the idioms: CUTLASS' documentation of CuTe (layouts, tiled copies and products).
"""
# The DSL reads the annotations and source text of traced functions, so this module does not
# postpone annotations. The package is an extra, which pyright does not find.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import dataclasses
from typing import Any

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import cutlass.jax as bridge
import jax
import jax.numpy as jnp
from cutlass import Int32, Int64, range_constexpr

# Number of 16-bit values that one instruction copies (16 bytes).
PIECE = 8


def tiled_product(dtype, tile):
    """Return CuTe's tiled MMA, which describes how warps share the product of ``tile``."""
    op = cute.nvgpu.warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, 16))
    along, across = tile.warps
    # A warp multiplies 16 columns at a time, which one ``ldmatrix`` of four matrices loads.
    return cute.make_tiled_mma(op, (along, across, 1), (along * 16, across * 16, 16))


def staged(side, tile, side_first):
    """Return the CuTe layout of an operand in shared memory, ``(side, depth, stages)``.

    ``side`` is the number of rows or columns of ``tile``, which has ``depth`` and ``stages``. The
    axis ``side`` is contiguous if ``side_first``, else the axis ``depth`` is.
    """
    # Swizzled, so that eight consecutive rows of 16 bytes are in different banks.
    run = 64 if side_first else tile.depth  # number of contiguous values
    swizzle = cute.make_swizzle(3 if run == 64 else 2, 3, 3)
    shape, stride = ((run, 8), (1, run)) if side_first else ((8, run), (run, 1))
    atom = cute.make_composed_layout(swizzle, 0, cute.make_layout(shape, stride=stride))
    return cute.tile_to_shape(atom, (side, tile.depth, tile.stages), (0, 1, 2))


@cute.jit
def fetch(to, source, offset, there):
    """Start to copy 16 bytes from ``source + offset`` to ``to``; zeros if ``there`` is False.

    ``source`` points to global memory, ``to`` to shared memory. ``offset`` counts 16-bit elements.
    """
    start, size = Int64(0), Int32(0)
    if there:
        start, size = offset, Int32(2 * PIECE)
    cute.arch.inline_ptx(
        "cp.async.cg.shared.global [{$r0}], [{$r1}], 16, {$r2};",
        read_only_args=[to, source + start, size],
    )


@cute.jit
def fragments(
    tiled, thread, shared_a, shared_b, transposed: cutlass.Constexpr, tile: cutlass.Constexpr
):
    """Return a thread's arguments for :func:`multiply`: ``(read_a, read_b, a, b, total)``.

    ``a`` and ``b`` are registers for operand fragments, ``total`` for sums, which are set to zero.
    ``read_a`` and ``read_b`` are ``(copy, source, target)``: the copies from shared memory to ``a``
    and ``b``. ``transposed`` is whether the copy to ``a`` transposes.
    """
    mine = tiled.get_slice(thread)
    a = tiled.make_fragment_A(mine.partition_A(shared_a[None, None, 0]))
    b = tiled.make_fragment_B(mine.partition_B(shared_b[None, None, 0]))
    load = cute.nvgpu.warp.LdMatrix8x8x16bOp
    copy_a = cute.make_tiled_copy_A(
        cute.make_copy_atom(load(transposed, 4), shared_a.element_type), tiled
    )
    copy_b = cute.make_tiled_copy_B(
        cute.make_copy_atom(load(True, 4), shared_b.element_type), tiled
    )
    of_a, of_b = copy_a.get_slice(thread), copy_b.get_slice(thread)
    total = cute.make_rmem_tensor(
        mine.partition_shape_C((tile.rows, tile.columns)), cutlass.Float32
    )
    total.fill(0.0)
    read_a = (copy_a, of_a.partition_S(shared_a), of_a.retile(a))
    read_b = (copy_b, of_b.partition_S(shared_b), of_b.retile(b))
    return read_a, read_b, a, b, total


@cute.jit
def multiply(tiled, read_a, read_b, a, b, total, slot):
    """Multiply the operands in stage ``slot`` of shared memory; add to the thread's ``total``.

    ``tiled`` is from :func:`tiled_product`, other arguments are from :func:`fragments`.
    """
    for k in range_constexpr(cute.size(a, mode=[2])):
        for copy, source, to in (read_a, read_b):
            cute.copy(copy, source[None, None, k, slot], to[None, None, k])
        cute.gemm(tiled, total, a[None, None, k], b[None, None, k], total)


@cute.jit
def store_two(out, offset, first, second):
    """Write ``first, second`` to ``out`` at an even ``offset`` and ``offset + 1``, at once."""
    pointer = (out.iterator + offset).align(out.element_type.width // 4)
    two = cute.make_rmem_tensor((2,), out.element_type)
    two[0] = first.to(out.element_type)
    two[1] = second.to(out.element_type)
    cute.autovec_copy(two, cute.make_tensor(pointer, cute.make_layout((2,))))


@dataclasses.dataclass(frozen=True)
class Tile:
    """The part of a product that one block of threads computes.

    Attributes:
      rows, columns: number of output rows (wgrad: of input channels) and of output channels.
      depth: number of input channels of a step (wgrad: of pairs).
      stages: number of steps whose operands are in shared memory at the same time.
      warps: number of warps, of 32 threads each, along rows and columns.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    warps: tuple[int, int]

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Static sizes of a kernel call.

    Attributes:
      taps: number of taps.
      groups: number of groups of the weight.
      c_in, c_out: number of input and of output channels of one group.
      rows: number of output rows of the table (wgrad: length of the pair lists).
      tiles: number of tiles of rows (wgrad: 0).
      slices: number of slices of a sum.
    """

    taps: int
    groups: int
    c_in: int
    c_out: int
    rows: int
    tiles: int
    slices: int


def product(
    tile: Tile,
    table: jax.Array,
    taps: jax.Array,
    counts: jax.Array,
    x: jax.Array,
    w: jax.Array,
    slices: int,
    dtype: Any,
) -> jax.Array:
    """Run forward or dgrad: ``y[order[m]] = sum_k x[table[k, m]] @ w[k]``, in slices over taps.

    Args:
      tile: sizes of a block's part of the product.
      table: the sorted neighbor table, whose last row is ``order``.
      taps: the list of taps of each tile of ``tile.rows`` rows, see ``tap_order.Tiles``.
      counts: the number of taps of each tile.
      x: ``[N, G * C_in]``, float16 or bfloat16. The number of channels of each of G groups is a
        multiple of 8.
      w: ``[K, G, C_in, C_out]``, in the same dtype.
      slices: number of slices of the sum over taps.
      dtype: dtype of the result.

    Returns:
      ``[slices, rows, G * C_out]``. The sum over slices is left to the caller.
    """
    number, groups, c_in, c_out = w.shape
    sizes = Sizes(number, groups, c_in, c_out, table.shape[1], counts.shape[0], slices)
    out = jax.ShapeDtypeStruct((slices, sizes.rows, groups * c_out), jnp.dtype(dtype))
    return call(_launch_product, tile, sizes, out)(table, taps, counts, x, w)


def weight_product(
    tile: Tile,
    pairs: jax.Array,
    starts: jax.Array,
    x: jax.Array,
    dy: jax.Array,
    groups: int,
    slices: int,
) -> jax.Array:
    """Run wgrad: ``dw[k] = sum_p x[pairs[0, p]]^T dy[pairs[1, p]]``, in slices over pairs.

    Args:
      tile: sizes of a block's part; ``rows`` counts input channels, and ``depth`` counts pairs.
      pairs: ``int32[2, ...]``, the input row and the output row of each pair, tap after tap.
      starts: ``int32[K + 1]``, the index of each tap's first pair, then the number of pairs.
      x, dy: ``[N, G * C_in]`` and ``[M, G * C_out]``, of the same 16-bit dtype.
      groups: number of groups, G.
      slices: number of slices of the sum over pairs.

    Returns:
      ``float32[slices, K, G, C_in, C_out]``. The sum over slices is left to the caller.
    """
    taps, c_in, c_out = starts.shape[0] - 1, x.shape[1] // groups, dy.shape[1] // groups
    sizes = Sizes(taps, groups, c_in, c_out, pairs.shape[1], 0, slices)
    out = jax.ShapeDtypeStruct((slices, taps, groups, c_in, c_out), jnp.float32)
    return call(_launch_weight_product, tile, sizes, out)(pairs, starts, x, dy)


def call(launch: Any, tile: Tile, sizes: Sizes, out: Any) -> Any:
    """Turn the CuTe function ``launch`` into a function of JAX arrays, which returns an array.

    ``launch`` is compiled for ``tile`` and ``sizes``. ``out`` is the shape and dtype of the result.
    """
    return bridge.cutlass_call(
        launch,
        output_shape_dtype=out,
        use_static_tensors=True,
        # Shapes, dtypes, tile and sizes are part of the key by default.
        compile_key=(launch.__name__,),
        tile=tile,
        sizes=sizes,
    )


def blocks_of(tile: Tile, sizes: Sizes) -> int:
    """Return the number of thread blocks of a launch: tiles of the result times slices."""
    blocks = sizes.groups * -(-sizes.c_out // tile.columns) * sizes.slices
    if sizes.tiles:
        return blocks * sizes.tiles
    return blocks * -(-sizes.c_in // tile.rows) * sizes.taps


@cute.jit
def _launch_product(
    stream: driver.CUstream,
    table: cute.Tensor,
    taps: cute.Tensor,
    counts: cute.Tensor,
    x: cute.Tensor,
    w: cute.Tensor,
    out: cute.Tensor,
    tile: cutlass.Constexpr,
    sizes: cutlass.Constexpr,
):
    layout_a = staged(tile.rows, tile, False)
    layout_b = staged(tile.columns, tile, True)
    tiled = tiled_product(x.element_type, tile)
    _product(table, taps, counts, x, w, out, tiled, layout_a, layout_b, tile, sizes).launch(
        grid=[blocks_of(tile, sizes), 1, 1], block=[tile.threads, 1, 1], stream=stream
    )


@cute.jit
def _launch_weight_product(
    stream: driver.CUstream,
    pairs: cute.Tensor,
    starts: cute.Tensor,
    x: cute.Tensor,
    dy: cute.Tensor,
    out: cute.Tensor,
    tile: cutlass.Constexpr,
    sizes: cutlass.Constexpr,
):
    layout_a = staged(tile.rows, tile, True)
    layout_b = staged(tile.columns, tile, True)
    tiled = tiled_product(x.element_type, tile)
    _weight_product(pairs, starts, x, dy, out, tiled, layout_a, layout_b, tile, sizes).launch(
        grid=[blocks_of(tile, sizes), 1, 1], block=[tile.threads, 1, 1], stream=stream
    )


@cute.jit
def _fetch_step(
    arrays, shared, place, turn, slot, tile: cutlass.Constexpr, sizes: cutlass.Constexpr
):
    """Start to copy the operands of step ``turn`` of forward or dgrad to shared memory.

    A step is one tap (kernel offset) and ``tile.depth`` input channels.

    Args:
      arrays: ``(table, taps, x, w)`` as for :func:`product`.
      shared: ``(shared_a, shared_b, layout_a, layout_b)``, shared memory and its layout for rows of
        x and for weights.
      place: ``(thread, first row, first tap, group, first output channel)``. The tap is an index
        into the list of taps of the tile.
      turn: number of the step.
      slot: number of the stage (buffer) of shared memory.
      tile, sizes: static sizes of the kernel.
    """
    table, taps, x, w = arrays
    shared_a, shared_b, layout_a, layout_b = shared
    thread, first_row, first_tap, group, first_out = place
    steps = -(-sizes.c_in // tile.depth)
    first_in = (turn % steps) * tile.depth
    tap = taps[first_row // tile.rows, first_tap + turn // steps]
    across = tile.depth // PIECE
    at = (thread % across) * PIECE
    for turn_of_rows in range_constexpr(tile.rows * across // tile.threads):
        row = thread // across + turn_of_rows * (tile.threads // across)
        source = Int32(-1)
        if first_row + row < sizes.rows:
            source = table[tap, first_row + row]
        offset = Int64(source) * (sizes.groups * sizes.c_in) + group * sizes.c_in + first_in + at
        there = (source >= 0) & (first_in + at < sizes.c_in)
        fetch(shared_a.iterator + layout_a((row, at, slot)), x.iterator, offset, there)
    across = tile.columns // PIECE
    at = (thread % across) * PIECE
    for turn_of_rows in range_constexpr(tile.depth * across // tile.threads):
        row = thread // across + turn_of_rows * (tile.threads // across)
        channel = (Int64(tap) * sizes.groups + group) * sizes.c_in + first_in + row
        there = (first_in + row < sizes.c_in) & (first_out + at < sizes.c_out)
        offset = channel * sizes.c_out + first_out + at
        fetch(shared_b.iterator + layout_b((at, row, slot)), w.iterator, offset, there)


@cute.jit
def _fetch_side(
    pairs,
    array,
    shared,
    layout,
    place,
    step,
    slot,
    side: cutlass.Constexpr,
    width: cutlass.Constexpr,
    channels: cutlass.Constexpr,
    tile: cutlass.Constexpr,
    groups: cutlass.Constexpr,
):
    """Start to copy one operand of a step of wgrad to stage (buffer) ``slot`` of shared memory.

    The operand has ``tile.depth`` rows of ``array`` and ``width`` of its channels. The rows are the
    input rows (``side`` 0) or the output rows (``side`` 1) of the pairs from number ``step`` on.
    ``place`` is ``(thread, end of the pairs, group, first channel)``. ``channels`` is the number of
    channels of a group. ``shared`` is the memory of this operand, ``layout`` its layout.
    """
    thread, end, group, first = place
    across = width // PIECE
    at = (thread % across) * PIECE
    for turn_of_rows in range_constexpr(tile.depth * across // tile.threads):
        row = thread // across + turn_of_rows * (tile.threads // across)
        pair = step + row
        source = Int32(-1)
        if pair < end:
            source = pairs[side, pair]
        offset = Int64(source) * (groups * channels) + group * channels + first + at
        there = (source >= 0) & (first + at < channels)
        fetch(shared.iterator + layout((at, row, slot)), array.iterator, offset, there)


@cute.jit
def _fetch_pairs(
    arrays, shared, place, turn, slot, tile: cutlass.Constexpr, sizes: cutlass.Constexpr
):
    """Start to copy the operands of step ``turn`` of wgrad to shared memory.

    They are copied to stage (buffer) ``slot``. The operands are the rows of x and of dy that belong
    to ``tile.depth`` pairs of one tap. ``arrays`` is ``(pairs, x, dy)`` as for
    :func:`weight_product`. ``shared`` is as for :func:`_fetch_step`, with rows of x and of dy.
    ``place`` is
    ``(thread, first pair, end of the pairs, group, first input channel, first output channel)``.
    """
    pairs, x, dy = arrays
    shared_a, shared_b, layout_a, layout_b = shared
    thread, begin, end, group, first_in, first_out = place
    step = begin + turn * tile.depth
    _fetch_side(
        pairs, x, shared_a, layout_a, (thread, end, group, first_in), step, slot,
        0, tile.rows, sizes.c_in, tile, sizes.groups,
    )  # fmt: skip
    _fetch_side(
        pairs, dy, shared_b, layout_b, (thread, end, group, first_out), step, slot,
        1, tile.columns, sizes.c_out, tile, sizes.groups,
    )  # fmt: skip


@cute.jit
def _sum_steps(
    fetch_step: cutlass.Constexpr,
    arrays,
    place,
    turns,
    tiled,
    layout_a,
    layout_b,
    transposed: cutlass.Constexpr,
    tile: cutlass.Constexpr,
    sizes: cutlass.Constexpr,
):
    """Return one thread's part of the product that its block computes, summed over ``turns`` steps.

    Args:
      fetch_step: function that starts to copy the operands of a step: ``_fetch_step`` (forward and
        dgrad) or ``_fetch_pairs`` (wgrad).
      arrays, place: arguments of ``fetch_step``.
      turns: number of steps.
      tiled: the tiled MMA from :func:`tiled_product`.
      layout_a, layout_b: layouts of both operands in shared memory, from :func:`staged`.
      transposed: whether the first operand is transposed when it is read, as in wgrad.
      tile, sizes: static sizes of the kernel.
    """
    thread, dtype = place[0], arrays[2].element_type
    memory = cutlass.memory.SmemAllocator()
    shared_a = memory.allocate_tensor(dtype, layout_a, 1024)
    shared_b = memory.allocate_tensor(dtype, layout_b, 1024)
    shared = (shared_a, shared_b, layout_a, layout_b)
    read_a, read_b, a, b, total = fragments(tiled, thread, shared_a, shared_b, transposed, tile)
    # Step t is fetched into slot t % stages. Before the first product, stages - 1 steps are in
    # flight, and each product frees a slot for one more.
    for turn in range_constexpr(tile.stages - 1):
        if turn < turns:
            fetch_step(arrays, shared, place, turn, turn, tile, sizes)
        cute.arch.cp_async_commit_group()
    for turn in cutlass.range(turns, unroll=1):
        # All threads have this step in shared memory now, and have read the step before it.
        cute.arch.cp_async_wait_group(tile.stages - 2)
        cute.arch.sync_threads()
        ahead = turn + (tile.stages - 1)
        if ahead < turns:
            fetch_step(arrays, shared, place, ahead, ahead % tile.stages, tile, sizes)
        cute.arch.cp_async_commit_group()
        multiply(tiled, read_a, read_b, a, b, total, turn % tile.stages)
    return total


@cute.jit
def _store(
    target_of: cutlass.Constexpr,
    where_to,
    out,
    total,
    tiled,
    thread,
    first_row,
    first_out,
    rows: cutlass.Constexpr,
    tile: cutlass.Constexpr,
    sizes: cutlass.Constexpr,
):
    """Write ``total``, one thread's sums of a tile of the result, to ``out``.

    ``tiled`` tells which elements of the tile the thread has. ``first_row`` and ``first_out`` are
    the tile's first row and output channel. ``target_of(where_to, row, sizes)`` returns where a row
    begins in ``out``, in units of C_out elements; it is :func:`_row_of_output` or
    :func:`_row_of_weight`. Rows from ``rows`` on and channels from C_out on are not written.
    """
    where = tiled.get_slice(thread).partition_C(
        cute.make_identity_tensor((tile.rows, tile.columns))
    )
    for i in range_constexpr(cute.size(total, mode=[1])):
        for half in range_constexpr(2):  # rows of a thread lie 8 apart
            row = first_row + where[(0, half), i, 0][0]
            if row < rows:
                target = target_of(where_to, row, sizes)
                for j in range_constexpr(cute.size(total, mode=[2])):
                    at = first_out + where[(0, half), i, j][1]
                    if at < sizes.c_out:
                        offset = target * sizes.c_out + at
                        store_two(out, offset, total[(0, half), i, j], total[(1, half), i, j])


def _row_of_output(where_to, row, sizes):
    """Return where forward and dgrad write the result for column ``row`` of the sorted table.

    The result is an index into ``out``, in units of C_out elements. ``where_to`` is
    ``(table, slice, group)``: the sorted neighbor table, whose last row has the output row of each
    column, the number of the slice of taps, and the group of channels.
    """
    table, part, group = where_to
    return (Int64(part) * sizes.rows + table[sizes.taps, row]) * sizes.groups + group


def _row_of_weight(where_to, row, sizes):
    """Return where wgrad writes the result for input channel ``row`` of a group.

    The result is an index into ``out``, in units of C_out elements. ``where_to`` is
    ``(slice, tap, group)``, where the slice is that of the pairs over which the kernel sums.
    """
    part, tap, group = where_to
    return ((Int64(part) * sizes.taps + tap) * sizes.groups + group) * sizes.c_in + row


@cute.kernel
def _product(
    table,
    taps,
    counts,
    x,
    w,
    out,
    tiled,
    layout_a,
    layout_b,
    tile: cutlass.Constexpr,
    sizes: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    out_blocks = -(-sizes.c_out // tile.columns)
    columns = sizes.groups * out_blocks
    rest, column = block // columns, block % columns
    part, number = rest // sizes.tiles, rest % sizes.tiles
    group, first_out = column // out_blocks, (column % out_blocks) * tile.columns
    first_row = number * tile.rows

    # Each of S slices has ceil(T / S) of the tile's T taps; the last slices may have fewer.
    share = (counts[number] + (sizes.slices - 1)) // sizes.slices
    first_tap = part * share
    turns = cutlass.min(share, counts[number] - first_tap) * -(-sizes.c_in // tile.depth)

    place = (thread, first_row, first_tap, group, first_out)
    arrays = (table, taps, x, w)
    total = _sum_steps(
        _fetch_step, arrays, place, turns, tiled, layout_a, layout_b, False, tile, sizes
    )
    _store(
        _row_of_output, (table, part, group), out, total, tiled, thread, first_row, first_out,
        sizes.rows, tile, sizes,
    )  # fmt: skip


@cute.kernel
def _weight_product(
    pairs,
    starts,
    x,
    dy,
    out,
    tiled,
    layout_a,
    layout_b,
    tile: cutlass.Constexpr,
    sizes: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    out_blocks = -(-sizes.c_out // tile.columns)
    blocks = -(-sizes.c_in // tile.rows) * out_blocks
    rest, column = block // (sizes.groups * blocks), block % (sizes.groups * blocks)
    part, tap = rest // sizes.taps, rest % sizes.taps
    group = column // blocks
    first_in = (column % blocks) // out_blocks * tile.rows
    first_out = column % out_blocks * tile.columns

    # Every part but the last has whole steps.
    steps = (starts[tap + 1] - starts[tap] + (tile.depth - 1)) // tile.depth
    share = (steps + (sizes.slices - 1)) // sizes.slices * tile.depth
    begin = cutlass.min(starts[tap] + part * share, starts[tap + 1])
    end = cutlass.min(begin + share, starts[tap + 1])
    turns = (end - begin + (tile.depth - 1)) // tile.depth

    place = (thread, begin, end, group, first_in, first_out)
    arrays = (pairs, x, dy)
    total = _sum_steps(
        _fetch_pairs, arrays, place, turns, tiled, layout_a, layout_b, True, tile, sizes
    )
    _store(
        _row_of_weight, (part, tap, group), out, total, tiled, thread, first_in, first_out,
        sizes.c_in, tile, sizes,
    )  # fmt: skip
