"""What the kernels of ``cutlass_implicit_gemm`` share: layouts, copies, fragments and products.

In CUTLASS' Python DSL, whose package this needs; see ``cutlass_kernel.py``.
"""
# The DSL reads annotations and source text of what it traces: no postponed annotations here. Its
# package is an extra, which pyright does not find.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, range_constexpr

# Numbers of 16 bits that one instruction copies: 16 bytes.
PIECE = 8


def tiled_product(dtype, tile):
    """The product of a warp, spread over the block's warps; 16 columns of each at a time, which is
    what one ``ldmatrix`` of four matrices brings."""
    op = cute.nvgpu.warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, 16))
    along, across = tile.warps
    return cute.make_tiled_mma(op, (along, across, 1), (along * 16, across * 16, 16))


def staged(side, tile, side_first):
    """``(side, depth, stages)`` in shared memory, swizzled: eight rows of 16 bytes that lie under
    each other are in different banks. ``side_first``: neighbours in memory are along the side."""
    run = 64 if side_first else tile.depth  # numbers next to each other
    swizzle = cute.make_swizzle(3 if run == 64 else 2, 3, 3)
    shape, stride = ((run, 8), (1, run)) if side_first else ((8, run), (run, 1))
    atom = cute.make_composed_layout(swizzle, 0, cute.make_layout(shape, stride=stride))
    return cute.tile_to_shape(atom, (side, tile.depth, tile.stages), (0, 1, 2))


@cute.jit
def fetch(to, source, offset, there):
    """Start copying 16 bytes, or zeros: then nothing is read."""
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
    """``((copy, from, to) of A, of B, A, B, sums)``: a thread's part, in registers."""
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
    """Add the product of a step that is in shared memory."""
    for k in range_constexpr(cute.size(a, mode=[2])):
        for copy, source, to in (read_a, read_b):
            cute.copy(copy, source[None, None, k, slot], to[None, None, k])
        cute.gemm(tiled, total, a[None, None, k], b[None, None, k], total)


@cute.jit
def store_two(out, offset, first, second):
    """Two neighbours of the result, in one instruction; the offset is even."""
    pointer = (out.iterator + offset).align(out.element_type.width // 4)
    two = cute.make_rmem_tensor((2,), out.element_type)
    two[0] = first.to(out.element_type)
    two[1] = second.to(out.element_type)
    cute.autovec_copy(two, cute.make_tensor(pointer, cute.make_layout((2,))))
