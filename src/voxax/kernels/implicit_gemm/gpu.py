"""implicit_gemm on GPUs in Triton: support checks, choice of block sizes, and the kernel call.

The kernel (``gpu_kernel.py``) gathers features by the neighbor table while it multiplies.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import product_dtype
from voxax.hardware import HardwareInfo, hardware_of, targeting
from voxax.kernels.implicit_gemm.tap_order import VIEWS, tiles_of
from voxax.kernels.kernel import (
    EVERY_PRODUCT,
    Epilogue,
    Kernel,
    Parameters,
    Problem,
    Product,
    Views,
    first_of,
)
from voxax.kernels.rows import oriented
from voxax.kernels.triton_call import Compilation, Launch, absence, noting_calls

DTYPES = ("float32", "float16", "bfloat16")
# With these precisions float32 operands may be rounded to tensor float32, on NVIDIA's tensor cores.
ONE_PASS = ("default", "high", "TF32_TF32_F32", "BF16_BF16_F32")
# With this precision each operand is the sum of two numbers in tensor float32, and three of their
# four products are added.
THREE_PASSES = "TF32_TF32_F32_X3"
# 7 x 7 x 7. To list a tile's taps, every tap is compared with every other.
MOST_TAPS = 343
# Triton's products have no smaller side.
LEAST = 16
# (rows, most channels of the other operand, most gathered channels of a step, stages, warps). On an
# H100 the first entry is the fastest, or takes a tenth more time, for 16 to 256 channels and 1,000
# to 100,000 rows of float16. From 128 channels on the second entry is faster, because it moves half
# of the bytes from the cache (benchmarks/results/gpu.md; measured with earlier kernels).
_TENSOR = (
    (64, 64, 64, 3, 4),
    (128, 128, 64, 3, 8),
    (32, 64, 64, 3, 2),
    (128, 256, 64, 3, 8),
    (16, 32, 64, 3, 1),
)
# For float32 with all digits, which tensor cores cannot multiply: smaller blocks, shorter steps.
_PLAIN = (
    (64, 64, 32, 3, 4),
    (128, 64, 32, 3, 8),
    (32, 64, 32, 3, 4),
    (16, 32, 32, 3, 2),
)
# The same for wgrad, whose rows are the pairs of a step. An operand is read from the cache once for
# each block of the other operand's channels, so larger blocks read less. Calculated from the rates
# of an H100, 128 channels take 0.6 of the time in blocks of 128 x 128, and 256 channels take 0.5,
# or 0.4 in blocks of 256 x 128. Without tensor cores, Triton keeps a step in registers: ptxas
# spilled with 32 pairs, or with half of the warps.
_WGRAD_TENSOR = (
    (64, 64, 64, 3, 4),
    (64, 128, 128, 3, 8),
    (32, 64, 64, 3, 2),
    (64, 128, 256, 4, 8),
    (64, 128, 128, 4, 8),
    (16, 32, 32, 3, 1),
)
_WGRAD_PLAIN = ((16, 64, 64, 3, 8), (16, 32, 32, 3, 4))
_WIDE = 128
# Tiles are chosen small enough for this many programs per core.
_PROGRAMS_PER_CORE = 2
# Numbers of parts of wgrad's sum, and the rows for each part. The center tap has the most pairs,
# one for every row. With fewer parts, all others wait for its programs.
_SPLITS = (1, 4, 16, 64)
ROWS_OF_A_PART = 512
# The largest total size of the parts that stays in the cache until they are added. On an H100,
# whose cache has 50 MB, the fastest candidates had parts of 28 MB for 64, 128 and 256 channels
# (benchmarks/results/gpu.md, earlier kernels).
_CACHED_PARTIAL_BYTES = 2**25
# Numbers of slices of a tile's taps, for forward and dgrad on few rows.
_SLICES = (2, 8)
_MOST_PARTIAL_BYTES = 2**28
_NAMES = ("in_block", "out_block", "num_stages", "num_warps")
# Options of Triton's compiler for AMD's matrix cores, measured with the first blocks. With kpack 2
# a thread reads twice as many numbers of an operand at once: for 64 channels in float16 the forward
# kernel for gfx942 has 24 reads of shared memory instead of 48. matrix_instr_nonkdim 16 selects
# products of 16 x 16 results, which end sooner, instead of 32 x 32, for up to 22 registers more.
# Neither option changes how many programs a core has. gfx950 and RDNA have no kpack. waves_per_eu
# is left out: shared memory limits the number of programs, registers do not; with 4 waves the
# compiler spilled in wgrad of 256 channels, and with 2 it used as many registers or more.
_AMD_OPTIONS: dict[str, tuple[tuple[tuple[str, int], ...], ...]] = {
    "gfx90a": ((("kpack", 2),), (("kpack", 2), ("matrix_instr_nonkdim", 16))),
    "gfx942": ((("kpack", 2),), (("kpack", 2), ("matrix_instr_nonkdim", 16))),
    "gfx950": ((("matrix_instr_nonkdim", 16),),),
}
_OPTIONS = ("kpack", "matrix_instr_nonkdim")


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why the Triton kernels cannot run this problem, or None if they can."""
    if problem.layer.kind == "depthwise":
        return "these kernels multiply matrices, not depthwise weights"
    reason = unfit(problem, hardware) or _without_matrix_units(problem, hardware)
    if reason is None and not space(problem, hardware):
        least = min(shared_bytes(problem, p) for p in _every(problem, hardware))
        return (
            f"the Triton kernels need {least} bytes of shared memory, a block has "
            f"{hardware.shared_memory_bytes}"
        )
    return reason or absence(hardware.generation)


def _without_matrix_units(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return a message if Triton has no matrix instructions for the problem's dtype, else None.

    Without such instructions, Triton adds scalars and spills registers, and is no better than XLA
    (benchmarks/results/gpu_resources.md).
    """
    generation = hardware.generation or ""
    if is_amd(hardware):
        without = problem.dtype == "float32" and generation.startswith(("gfx11", "gfx12"))
    else:
        without = problem.dtype != "float32" and float(generation) < 8
    if not without:
        return None
    return f"Triton multiplies {problem.dtype} without matrix instructions on {generation}"


def unfit(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why no Triton kernel can run a problem, or None; memory is not checked."""
    if problem.platform != "gpu":
        return f"the Triton kernels run on GPUs, not on {problem.platform}"
    if problem.layer.kind == "dynamic":
        return "the Triton kernels take no dynamic weights"
    if problem.dtype not in DTYPES:
        return f"the Triton kernels multiply {', '.join(DTYPES)}, got {problem.dtype}"
    if problem.layer.num_offsets > MOST_TAPS:
        return f"the Triton kernels take {MOST_TAPS} taps at most, got {problem.layer.num_offsets}"
    if hardware.shared_memory_bytes is None:
        return "it is unknown how much shared memory a block of this GPU has"
    if hardware.generation is None:
        return "it is unknown of which generation this GPU is"
    return None


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure: block sizes that fit shared memory, the best guess first.

    For wgrad, parameters also have the number of partial sums. For forward and dgrad on few rows,
    more candidates split the taps of a tile among programs.
    """
    fitting = [p for p in _every(problem, hardware) if _fits(problem, p, hardware)]
    wanted = _PROGRAMS_PER_CORE * (hardware.cores or 1)
    # The first block with many channels is preferred.
    wide = next((p for p in fitting if int(dict(p)["out_block"]) >= _WIDE), None)
    if problem.product != "wgrad":
        # In the order of the lists if there are enough programs; else by the number of programs.
        whole = sorted(fitting, key=lambda p: (-min(_programs(problem, p), wanted), p != wide))
        found = [*whole, *_sliced(problem, whole, wanted)]
    else:
        found = [
            tuple(sorted((*p, ("split_k_factor", splits))))
            for splits in _splits(problem, wanted)
            for p in sorted(fitting, key=lambda p: p != wide)
        ]
    options = _AMD_OPTIONS.get(hardware.generation or "", ())
    return (*found, *(tuple(sorted((*p, *more))) for p in found[:1] for more in options))


def reads(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """Return the names of the map's arrays that a product reads: a sorted table, or pair lists.

    wgrad reads pair lists. ``symmetric``, a layer's
    :attr:`~voxax.kernels.kernel.Layer.symmetric`, decides which neighbor table dgrad reads.
    """
    del parameters
    if product == "wgrad":
        return ("pair_starts", "pairs")
    return (
        "transposed_sorted_neighbors"
        if product == "dgrad" and not symmetric
        else "sorted_neighbors",
    )


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: Views,
    epilogue: Epilogue | None = None,
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`. With ``("interpret", 1)`` in ``parameters``, the kernel
    is emulated, so that it runs on any platform. ``epilogue`` is allowed only for a forward product
    without ``split_k_factor``.
    """
    # Imported where it runs, because the package is an extra.
    from voxax.kernels.implicit_gemm import gpu_kernel

    values = dict(parameters)
    wgrad, shape = problem.product == "wgrad", problem.result_shape
    result = product_dtype(a.dtype)
    if 0 in (*a.shape, *b.shape, *shape):
        return jnp.zeros(shape, result)
    splits = int(values.get("split_k_factor", 1))
    config = gpu_kernel.TileConfig(
        rows=int(values["gemm_block_size" if wgrad else "fwd_block_size"]),
        in_block=int(values["in_block"]),
        out_block=int(values["out_block"]),
        splits=splits,
        launch=Launch(
            stages=int(values["num_stages"]),
            warps=int(values["num_warps"]),
            interpret=bool(values.get("interpret", 0)),
            options=tuple((n, int(values[n])) for n in _OPTIONS if n in values),
        ),
        precision=precision_of(problem, hardware_of("gpu")[0]),
    )
    if wgrad:
        parts = gpu_kernel.weight_product(
            config, views["pairs"], views["pair_starts"], a, b, problem.layer.groups
        )
        return jnp.sum(parts, axis=0).reshape(shape).astype(result)
    table, w = views[reads(parameters, problem.product, problem.layer.symmetric)[0]], b
    dgrad = problem.product == "dgrad"
    y = gpu_kernel.product(
        config,
        tiles_of(table, config.rows),
        a,
        w if w.ndim == 4 else w[:, None],
        result if splits == 1 else jnp.float32,
        transposed=dgrad,
        reverse=dgrad and problem.layer.symmetric,
        epilogue=epilogue,
    )
    return (y[0] if splits == 1 else jnp.sum(y, axis=0)).astype(result)


def with_epilogue(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: Views,
    epilogue: Epilogue,
) -> jax.Array | None:
    """Return the forward product of ``a`` and ``b`` with ``epilogue`` applied, or None.

    None means that the kernel cannot apply the epilogue: the sum has several parts, the residual's
    dtype differs from the result's, an operand is empty, or shared memory is too small.
    """
    residual = epilogue.residual
    # XLA adds several parts, and applies the epilogue in the same kernel.
    if dict(parameters).get("split_k_factor", 1) != 1 or 0 in (*a.shape, *b.shape):
        return None
    if residual is not None and residual.dtype != product_dtype(a.dtype):
        return None
    run = functools.partial(apply, problem, parameters)
    if not dict(parameters).get("interpret"):
        hardware, _ = hardware_of("gpu")
        with noting_calls() as found:
            jax.eval_shape(run, a, b, views, epilogue)
        made = found[0].compiled(hardware.generation or "")
        if made.metadata.shared > (hardware.shared_memory_bytes or 0):
            return None
    return run(a, b, views, epilogue)


def table_and_weight(problem: Problem, b: jax.Array, views: Views) -> tuple[jax.Array, jax.Array]:
    """Return the arrays that forward or dgrad reads: a sorted neighbor table, and the weight.

    The table is from :func:`~voxax.kernels.implicit_gemm.tap_order.sort_by_taps`. The weight is
    ``b`` as ``[K, G, C_in, C_out]`` for G groups. C_in is the number of channels of a group that
    the product gathers, C_out the number that it writes. So dgrad reads the transposed weight.
    """
    (name,) = reads((), problem.product, problem.layer.symmetric)
    table = views[name]
    w, _ = oriented(problem, b, {"neighbors": table, "transposed_neighbors": table})
    groups = problem.layer.groups
    sides = problem.gathered_channels // groups, problem.other_channels // groups
    return table, w.reshape(problem.layer.num_offsets, groups, *sides)


def precision_of(problem: Problem, hardware: HardwareInfo) -> str:
    """Return the ``input_precision`` of ``tl.dot``: ``"ieee"``, ``"tf32x3"`` or ``"tf32"``.

    Only float32 on NVIDIA's GPUs has less than ``"ieee"``, if the layer's precision admits it.
    """
    precision = problem.layer.precision
    if problem.dtype != "float32" or is_amd(hardware):
        return "ieee"
    if precision == THREE_PASSES and float(hardware.generation or 0) >= 8:
        return "tf32x3"
    return "tf32" if precision in ONE_PASS else "ieee"


def is_amd(hardware: HardwareInfo) -> bool:
    """Return whether the hardware is an AMD GPU, whose generation has a name like ``gfx942``."""
    return (hardware.generation or "").startswith("gfx")


def side(channels: int, most: int) -> int:
    """Return the size of a block of ``channels``: the next power of two, from 16 to ``most``."""
    return min(most, max(LEAST, 1 << max(channels - 1, 0).bit_length()))


def blocks(
    problem: Problem, shape: tuple[int, int, int, int, int]
) -> tuple[tuple[str, int | str], ...]:
    """Return the parameters of a block: its numbers of channels, stages and warps.

    ``shape`` is (rows, most channels of the other operand, most gathered channels, stages, warps).
    A block has fewer channels if ``problem`` does, see :func:`side`. The result lacks the rows,
    because the name of their parameter depends on the product.
    """
    _, most_out, most_in, stages, warps = shape
    groups = problem.layer.groups
    gathered, other = problem.gathered_channels // groups, problem.other_channels // groups
    values = (side(gathered, most_in), side(other, most_out), stages, warps)
    return (("body", "triton"), *zip(_NAMES, values, strict=True))


def _fits(problem: Problem, parameters: Parameters, hardware: HardwareInfo) -> bool:
    """Return whether a program of the kernel fits the GPU's shared memory."""
    limit = hardware.shared_memory_bytes or 0
    most = shared_bytes(problem, parameters)
    # Mostly the upper or the lower bound decides. Otherwise the program is compiled.
    if most <= limit or _least_shared_bytes(problem, parameters) > limit:
        return most <= limit
    if absence(hardware.generation):
        return False
    made = compilation_of(problem, parameters, hardware).compiled(hardware.generation or "")
    return made.metadata.shared <= limit


@functools.lru_cache(maxsize=1024)
def compilation_of(problem: Problem, parameters: Parameters, hardware: HardwareInfo) -> Compilation:
    """Return the input of Triton's compiler for a product; the GPU need not be present."""
    layer = problem.layer
    outs, ins, taps = layer.out_capacity, layer.in_capacity, layer.num_offsets
    shapes = {
        "sorted_neighbors": (taps + 1, outs),
        "transposed_sorted_neighbors": (taps + 1, ins),
        "pairs": (2, taps * outs),
        "pair_starts": (taps + 1,),
    }
    names = reads(parameters, problem.product, layer.symmetric)
    views = {name: jax.ShapeDtypeStruct(shapes[name], jnp.int32) for name in names}
    operands = [jax.ShapeDtypeStruct(shape, problem.dtype) for shape in problem.operand_shapes]
    with targeting(hardware), noting_calls() as found:
        jax.eval_shape(functools.partial(apply, problem, parameters), *operands, views)
    (only,) = found
    return only


def shared_bytes(problem: Problem, parameters: Parameters) -> int:
    """Return an upper bound of the shared memory of one program of the kernel, in bytes."""
    values, stage, result = _blocks_in_memory(problem, parameters)
    item = jnp.dtype(problem.dtype).itemsize
    # The memory contains the operands of all stages, or later the result before it is written.
    # Triton pads rows of 512 bytes by 16 on some GPUs, and may keep a barrier for each stage.
    return max(values["num_stages"] * (stage * item * 17 // 16 + 16), 4 * result)


def _least_shared_bytes(problem: Problem, parameters: Parameters) -> int:
    """Return a lower bound of the shared memory of one program of the kernel, in bytes."""
    values, stage, _ = _blocks_in_memory(problem, parameters)
    # A product may read one of the stages from registers.
    return (values["num_stages"] - 1) * stage * jnp.dtype(problem.dtype).itemsize


def _blocks_in_memory(problem: Problem, parameters: Parameters) -> tuple[dict[str, int], int, int]:
    """Return ``(parameters, operands, result)``: integer parameters by name, and two sizes.

    ``operands`` is the number of elements that one step of the kernel's sum reads, of both operands
    together. ``result`` is the number of elements of the sum.
    """
    values = {name: int(value) for name, value in parameters if name != "body"}
    rows = values.get("fwd_block_size", values.get("gemm_block_size", 0))
    ins, outs = values["in_block"], values["out_block"]
    if problem.product == "wgrad":
        return values, rows * (ins + outs), ins * outs
    return values, (rows + outs) * ins, rows * outs


def _every(problem: Problem, hardware: HardwareInfo) -> list[Parameters]:
    """Return all candidates for the block sizes, as parameters, whether they fit the GPU or not.

    Blocks are cut to the problem's channels. :func:`_most_warps` limits the number of warps.
    """
    # Three passes hold both halves of their operands in registers: ptxas spilled in large blocks.
    exact = problem.dtype == "float32" and problem.layer.precision not in ONE_PASS
    wgrad = problem.product == "wgrad"
    if wgrad:
        shapes = _WGRAD_PLAIN if exact else _WGRAD_TENSOR
    else:
        shapes = _PLAIN if exact else _TENSOR
    found: list[Parameters] = []
    for shape in shapes:
        values = dict(blocks(problem, shape))
        if wgrad and shape[1] >= _WIDE and (values["out_block"], values["in_block"]) != shape[1:3]:
            continue  # a block that the channels do not fill
        values["gemm_block_size" if wgrad else "fwd_block_size"] = shape[0]
        values["num_warps"] = min(shape[4], _most_warps(problem, hardware, values))
        found.append(tuple(sorted(values.items())))
    return list(dict.fromkeys(found))


def _most_warps(problem: Problem, hardware: HardwareInfo, values: dict[str, int | str]) -> int:
    """Return the largest number of warps for which every thread has something to copy.

    With this number each thread copies 16 bytes of a step's larger operand.
    """
    ins, outs = int(values["in_block"]), int(values["out_block"])
    if problem.product == "wgrad":
        numbers = int(values["gemm_block_size"]) * max(ins, outs)
    else:
        numbers = ins * max(int(values["fwd_block_size"]), outs)
    threads = 64 if is_amd(hardware) else 32
    return max(1, numbers * jnp.dtype(problem.dtype).itemsize // (16 * threads))


def _splits(problem: Problem, wanted: int) -> list[int]:
    """Return up to three candidates for the number of parts of wgrad's sum, the best guess first.

    Different programs compute the parts. ``wanted`` is the number of programs that keeps the GPU
    busy. The best guess is the smallest number of parts that gives so many programs and few rows
    per part. If that many partial sums exceed the cache, it is the largest number that does not.
    """
    sides = (
        -(-problem.in_channels // 64) * -(-problem.out_channels // 64) * problem.layer.num_offsets
    )
    weights = 4 * math.prod(problem.weight_shape)
    allowed = [n for n in _SPLITS if n == 1 or n * weights <= _MOST_PARTIAL_BYTES]
    enough = max(wanted / sides, problem.out_rows / ROWS_OF_A_PART)
    cached = sum(n * weights <= _CACHED_PARTIAL_BYTES for n in allowed)
    usual = next((i for i, n in enumerate(allowed) if n >= enough), len(allowed) - 1)
    usual = min(usual, max(cached - 1, 0))
    near = [i for i in (usual, usual + 1, usual - 1) if 0 <= i < len(allowed)]
    return [allowed[i] for i in near]


def _sliced(problem: Problem, whole: list[Parameters], wanted: int) -> list[Parameters]:
    """Return candidates for few rows, in which several programs share the taps of a tile.

    ``wanted`` is the number of programs that keeps the GPU busy. The candidates are the first two
    of ``whole`` that give fewer programs, with different values of ``split_k_factor`` added.
    """
    channels = problem.other_channels
    few = [p for p in whole if _programs(problem, p) < wanted][:2]
    return [
        tuple(sorted((*parameters, ("split_k_factor", slices))))
        for slices in _SLICES
        for parameters in few
        if 4 * slices * problem.out_rows * channels <= _MOST_PARTIAL_BYTES
    ]


def _programs(problem: Problem, parameters: Parameters) -> int:
    values = dict(parameters)
    channels = problem.other_channels
    columns = problem.layer.groups * -(
        -(channels // problem.layer.groups) // int(values["out_block"])
    )
    return -(-problem.out_rows // int(values["fwd_block_size"])) * columns


def _preferred(problem: Problem, hardware: HardwareInfo) -> bool:
    """Return whether to prefer Triton to XLA: for 16-bit floats on NVIDIA's GPUs from Ampere on.

    On an H100 the same algorithm in Pallas took 0.08 to 0.86 times as long as explicit_gemm in
    float16, in all measured products (docs/gpu.md); float32 was not measured.
    """
    if is_amd(hardware) or float(hardware.generation or 0) < 8:
        return False
    return problem.dtype in ("float16", "bfloat16")


TRITON = Kernel(
    name="implicit_gemm",
    kind="dense",
    products=EVERY_PRODUCT,
    platform="gpu",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    reads=reads,
    apply=apply,
    views=VIEWS,
    with_epilogue=with_epilogue,
    preferred=_preferred,
    unproven=True,
    revision=3,
    rank=20,
)
