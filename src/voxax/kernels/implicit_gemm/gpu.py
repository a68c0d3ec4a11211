"""Implicit GEMM on GPUs: features read by the neighbor table inside the kernel, through Triton.

``gpu_kernel.py`` has the idea in full. Here: whether a problem fits the chip, in which blocks, and
the operands as the kernel wants them.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import product_dtype
from voxax.hardware import HardwareInfo, hardware_of
from voxax.kernels.implicit_gemm.tap_order import VIEWS, tiles_of
from voxax.kernels.kernel import (
    EVERY_PRODUCT,
    Kernel,
    Parameters,
    Problem,
    Product,
    Views,
    first_of,
)
from voxax.kernels.rows import oriented
from voxax.kernels.triton_call import Launch, absence

DTYPES = ("float32", "float16", "bfloat16")
# Of these precisions float32 operands may be rounded to tensor float32, on NVIDIA's tensor cores.
ONE_PASS = ("default", "high", "TF32_TF32_F32", "BF16_BF16_F32")
# The list of a tile's taps is found by comparing each with each. 7 x 7 x 7.
MOST_TAPS = 343
# Triton's products have no smaller side.
LEAST = 16
# (rows, most channels of the other operand, most gathered channels of a step, stages, warps): on an
# H100 the first is the fastest or within a tenth of it for 16 to 256 channels and 1,000 to 100,000
# rows of float16, and the second is ahead from 128 channels on (benchmarks/results/gpu.md; measured
# with earlier kernels), where it moves half of the bytes from the cache (gpu_estimate.md).
_TENSOR = (
    (64, 64, 64, 3, 4),
    (128, 128, 64, 3, 8),
    (32, 64, 64, 3, 2),
    (128, 256, 64, 3, 8),
    (16, 32, 64, 3, 1),
)
# Products of float32 with all digits are no work for tensor cores: small blocks, few stages.
_PLAIN = (
    (64, 64, 32, 3, 4),
    (128, 64, 32, 3, 8),
    (32, 64, 32, 3, 4),
    (16, 32, 32, 3, 2),
)
_WIDE = 128
# Tiles are taken small enough for so many programs a core.
_PROGRAMS_PER_CORE = 2
# Pairs of one step of wgrad, on tensor cores and without: there Triton holds a step in registers,
# and ptxas spilled with 32 pairs, or with half of the warps.
_WGRAD_ROWS, _WGRAD_PLAIN_ROWS = 64, 16
# Parts of its sum. The tap with most pairs, the center, has one of each row: with fewer parts than
# one for so many rows its programs are the last to end.
_SPLITS = (1, 4, 16, 64)
ROWS_OF_A_PART = 512
# Parts are written, and read to be added. On an H100, whose cache has 50 MB, the fastest took 28 MB
# with 64, 128 and 256 channels alike (benchmarks/results/gpu.md, earlier kernels).
_CACHED_PARTIAL_BYTES = 2**25
# Slices of the taps of a tile, of forward and dgrad on few rows.
_SLICES = (2, 8)
_MOST_PARTIAL_BYTES = 2**28
_NAMES = ("in_block", "out_block", "num_stages", "num_warps")


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Dense and grouped weights on GPUs, whose blocks fit shared memory."""
    if problem.layer.kind == "depthwise":
        return "these kernels multiply matrices, not depthwise weights"
    reason = unfit(problem, hardware)
    if reason is None and not space(problem, hardware):
        least = min(shared_bytes(problem, p) for p in _every(problem, hardware))
        return (
            f"the Triton kernels need {least} bytes of shared memory, a block has "
            f"{hardware.shared_memory_bytes}"
        )
    return reason or absence()


def unfit(problem: Problem, hardware: HardwareInfo) -> str | None:
    """The reason why no Triton kernel runs this problem, whatever its blocks, or None."""
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
    """Blocks that fit shared memory, those of enough programs first; wgrad also parts, the others
    slices where rows are few."""
    limit = hardware.shared_memory_bytes or 0
    fitting = [p for p in _every(problem, hardware) if shared_bytes(problem, p) <= limit]
    wanted = _PROGRAMS_PER_CORE * (hardware.cores or 1)
    if problem.product != "wgrad":
        # As listed where there are programs enough, but the first wide one in front; else those of
        # most programs.
        wide = next((p for p in fitting if int(dict(p)["out_block"]) >= _WIDE), None)
        whole = sorted(fitting, key=lambda p: (-min(_programs(problem, p), wanted), p != wide))
        return (*whole, *_sliced(problem, whole, wanted))
    return tuple(
        tuple(sorted((*p, ("split_k_factor", splits))))
        for splits in _splits(problem, wanted)
        for p in fitting
    )


def reads(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """The sorted table of the side that is written; of wgrad the pairs."""
    del parameters
    if product == "wgrad":
        return ("pair_starts", "pairs")
    return (
        "transposed_sorted_neighbors"
        if product == "dgrad" and not symmetric
        else "sorted_neighbors",
    )


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Run a product; ``("interpret", 1)`` among the parameters runs it on any platform."""
    # Only where it runs: the package is an extra.
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
    )
    return (y[0] if splits == 1 else jnp.sum(y, axis=0)).astype(result)


def table_and_weight(problem: Problem, b: jax.Array, views: Views) -> tuple[jax.Array, jax.Array]:
    """The sorted table of forward or dgrad, and the weight from gathered to written channels,
    ``[K, G, C_in, C_out]``."""
    (name,) = reads((), problem.product, problem.layer.symmetric)
    table = views[name]
    w, _ = oriented(problem, b, {"neighbors": table, "transposed_neighbors": table})
    groups = problem.layer.groups
    sides = problem.gathered_channels // groups, problem.other_channels // groups
    return table, w.reshape(problem.layer.num_offsets, groups, *sides)


def precision_of(problem: Problem, hardware: HardwareInfo) -> str:
    """What Triton calls the precision of products: all digits of float32, unless fewer are asked
    for and the GPU has tensor cores for them."""
    rounded = problem.dtype == "float32" and problem.layer.precision in ONE_PASS
    return "tf32" if rounded and not is_amd(hardware) else "ieee"


def is_amd(hardware: HardwareInfo) -> bool:
    """True for a GPU of AMD, whose generations have names like ``gfx942``."""
    return (hardware.generation or "").startswith("gfx")


def side(channels: int, most: int) -> int:
    """Channels of a block: a power of two."""
    return min(most, max(LEAST, 1 << max(channels - 1, 0).bit_length()))


def blocks(
    problem: Problem, shape: tuple[int, int, int, int, int]
) -> tuple[tuple[str, int | str], ...]:
    """The parameters that a row of the tables above becomes for this problem, without rows."""
    _, most_out, most_in, stages, warps = shape
    groups = problem.layer.groups
    gathered, other = problem.gathered_channels // groups, problem.other_channels // groups
    if problem.product == "wgrad":  # both are sides of the result
        most_in = most_out
    values = (side(gathered, most_in), side(other, most_out), stages, warps)
    return (("body", "triton"), *zip(_NAMES, values, strict=True))


def shared_bytes(problem: Problem, parameters: Parameters) -> int:
    """Shared memory of a program: operands of each stage, or the result on its way out.

    Triton pads rows of 512 bytes by 16 on some GPUs, and may keep a barrier for each stage.
    """
    values = {name: int(value) for name, value in parameters if name != "body"}
    rows = values.get("fwd_block_size", values.get("gemm_block_size", 0))
    item = jnp.dtype(problem.dtype).itemsize
    ins, outs = values["in_block"], values["out_block"]
    if problem.product == "wgrad":
        stage, result = rows * (ins + outs), ins * outs
    else:
        stage, result = (rows + outs) * ins, rows * outs
    return max(values["num_stages"] * (stage * item * 17 // 16 + 16), 4 * result)


def _every(problem: Problem, hardware: HardwareInfo) -> list[Parameters]:
    """Each of the blocks above, as this problem can use it; of wgrad without the parts."""
    exact = problem.dtype == "float32" and problem.layer.precision not in ONE_PASS
    wgrad = problem.product == "wgrad"
    found: list[Parameters] = []
    for shape in _PLAIN if exact else _TENSOR:
        values = dict(blocks(problem, shape))
        pairs = min(shape[0], _WGRAD_PLAIN_ROWS if exact else _WGRAD_ROWS)
        rows = pairs if wgrad else shape[0]
        values["gemm_block_size" if wgrad else "fwd_block_size"] = rows
        warps = 2 * shape[4] if wgrad and exact else shape[4]
        values["num_warps"] = min(warps, _most_warps(problem, hardware, values))
        found.append(tuple(sorted(values.items())))
    return list(dict.fromkeys(found))


def _most_warps(problem: Problem, hardware: HardwareInfo, values: dict[str, int | str]) -> int:
    """Warps whose threads copy 16 bytes each of the operand that is larger in a step."""
    ins, outs = int(values["in_block"]), int(values["out_block"])
    if problem.product == "wgrad":
        numbers = int(values["gemm_block_size"]) * max(ins, outs)
    else:
        numbers = ins * max(int(values["fwd_block_size"]), outs)
    threads = 64 if is_amd(hardware) else 32
    return max(1, numbers * jnp.dtype(problem.dtype).itemsize // (16 * threads))


def _splits(problem: Problem, wanted: int) -> list[int]:
    """Return the fewest parts that give so many programs of few rows, within the cache; then the
    numbers next to it."""
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
    """Parameters for few rows: programs share the taps of a tile, in the two best blocks."""
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
    """On an H100 the same algorithm in Pallas took, in float16, 0.08 to 0.86 times as long as
    explicit_gemm in all products that were measured (docs/gpu.md); float32 was not measured."""
    return problem.dtype in ("float16", "bfloat16") and not is_amd(hardware)


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
    preferred=_preferred,
    unproven=True,
    revision=2,
    rank=20,
)
