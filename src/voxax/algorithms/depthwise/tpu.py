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
    WINDOW_ALIGNMENT,
    WINDOW_TILE,
    Columns,
    columns_of,
    most_visits,
    tiles_of_visits,
)
from voxax.algorithms.kernel import Parameters, Problem, first_of
from voxax.algorithms.rows import clear_unreached, oriented, table_name
from voxax.hardware import HardwareInfo

_DTYPES = ("float32", "bfloat16")
# Of these precisions bfloat16 operands are enough.
_ONE_PASS = ("default", "fastest", "bfloat16")
# Lengths of windows, as for dense weights.
_WINDOWS = (256, 512)
# Channels are taken in multiples of this.
_CHANNELS = 128
_MOST_TAPS = 343
# float32 is the sum of three bfloat16 numbers, of 8 bits each.
_PARTS = 3


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
    """Why these window kernels cannot run this problem, or None."""
    if problem.platform != "tpu":
        return f"the window kernels run on TPUs, not on {problem.platform}"
    if problem.layer.kind != "depthwise":
        return f"these window kernels take depthwise weights, not {problem.layer.kind} ones"
    if problem.dtype not in _DTYPES:
        return f"the window kernels multiply {' and '.join(_DTYPES)}, got {problem.dtype}"
    if problem.layer.num_offsets > _MOST_TAPS:
        return f"the window kernels take {_MOST_TAPS} taps at most, got {problem.layer.num_offsets}"
    if not _fitting(problem, hardware):
        least = Blocks(_WINDOWS[0], _CHANNELS)
        return (
            f"the window kernels need {_vmem_bytes(problem, least)} bytes of vector memory and "
            f"{_smem_bytes(problem, least)} of scalar memory for {problem.layer.num_offsets} taps "
            f"and {problem.out_rows} rows, the chip has {hardware.vmem_bytes or 0} and "
            f"{_free_smem(hardware)}"
        )
    return None


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
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Run a product; ``("interpret", 1)`` among the parameters runs it on any platform."""
    # Not with voxax: only programs that use it need Pallas.
    from voxax.algorithms.depthwise import tpu_kernel

    values = dict(parameters)
    blocks = Blocks(int(values["window_rows"]), int(values["channel_block"]))
    name = table_name(problem)
    table, other = views[name], views["neighbors"]
    if not problem.layer.symmetric:
        (other,) = (views[n] for n in ("neighbors", "transposed_neighbors") if n != name)
    channels = problem.in_channels
    wgrad = problem.product == "wgrad"
    shape = problem.result_shape
    if 0 in (*a.shape, *b.shape, *table.shape, *shape):
        return jnp.zeros(shape, a.dtype)

    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    windows = views["windows" if name == "neighbors" else "transposed_windows"]
    visits, visited, fits = _visits(problem, blocks, columns, windows, a.shape[0])
    kernel = tpu_kernel.Kernel(
        columns, blocks.window, _parts(problem), _vmem_bytes(problem, blocks),
        bool(values.get("interpret", 0)),
    )  # fmt: skip
    places = WINDOW_TILE * windows.shape[1]
    fill = ((0, -problem.layer.num_offsets % 8), (0, places - table.shape[0]))
    arguments = kernel, tpu_kernel.Visits(*visits), jnp.pad(table.T, fill, constant_values=-1)
    # Rows that nothing reads are zero, since zero times NaN is NaN. A window may begin at the last.
    rows = a.shape[0] + blocks.window
    x = _padded(clear_unreached(a, other), rows + -rows % WINDOW_ALIGNMENT, blocks)
    xs = [_in_parts(part, _parts(problem)) for part in _split(x, blocks)]

    if wgrad:
        dy = _padded(clear_unreached(b, table).astype(jnp.float32), places, blocks)
        dys = _split(dy, blocks)
        parts = [tpu_kernel.weight_product(*arguments, *p) for p in zip(xs, dys, strict=True)]
        whole = jnp.concatenate(parts, axis=1)[: problem.layer.num_offsets, :channels]
        return jnp.where(jnp.all(fits), whole, jnp.nan).astype(a.dtype)

    w, _ = oriented(problem, b, {"neighbors": table, "transposed_neighbors": table})
    w = _padded(
        w.astype(jnp.float32), problem.layer.num_offsets + -problem.layer.num_offsets % 8, blocks
    )
    ws = _split(w, blocks)
    parts = [tpu_kernel.product(*arguments, *p, a.dtype) for p in zip(xs, ws, strict=True)]
    y = jnp.concatenate(parts, axis=1).reshape(len(visited), WINDOW_TILE, -1)
    y = jnp.where(visited[:, None, None], y, jnp.zeros((), y.dtype))
    y = jnp.where(fits[:, None, None], y, jnp.asarray(jnp.nan, y.dtype))
    return y.reshape(places, -1)[: shape[0], :channels]


def _visits(
    problem: Problem, blocks: Blocks, columns: Columns, windows: jax.Array, rows: int
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array]:
    """The arrays of ``tpu_kernel.Visits``, and ``bool[tiles]`` twice.

    Which tiles have any visits; and for which there is room: for all in maps between canonical
    orders, see :func:`voxax.algorithms.implicit_gemm.windows.most_visits`.
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


def _padded(x: jax.Array, rows: int, blocks: Blocks) -> jax.Array:
    return jnp.pad(x, ((0, rows - x.shape[0]), (0, -x.shape[1] % blocks.channels)))


def _split(x: jax.Array, blocks: Blocks) -> list[jax.Array]:
    return jnp.split(x, x.shape[1] // blocks.channels, axis=1)


def _parts(problem: Problem) -> int:
    return _PARTS if problem.dtype == "float32" and problem.layer.precision not in _ONE_PASS else 1


def _fitting(problem: Problem, hardware: HardwareInfo) -> list[Blocks]:
    vmem, smem = hardware.vmem_bytes or 0, _free_smem(hardware)
    whole = max(1, -(-problem.in_channels // _CHANNELS))
    pieces = {-(-whole // number) for number in range(1, whole + 1)}
    sizes = sorted((_CHANNELS * piece for piece in pieces), reverse=True)
    found = []
    for window in _WINDOWS:
        fitting = (b for size in sizes if _vmem_bytes(problem, b := Blocks(window, size)) <= vmem)
        best = next(fitting, None)
        if best is not None and _smem_bytes(problem, best) <= smem:
            found.append(best)
    return found


def _vmem_bytes(problem: Problem, blocks: Blocks) -> int:
    """Vector memory of a call: what the pipeline holds twice, what stays, what is computed."""
    columns, taps = (
        columns_of(problem.layer.spec, problem.layer.num_offsets),
        problem.layer.num_offsets + 8,
    )
    longest, wide = max(map(len, columns)), 4
    selected = blocks.channels * _parts(problem)
    tile = WINDOW_TILE * blocks.channels * wide
    windows = len(columns) * blocks.window * selected * 2
    twice = windows + taps * (WINDOW_TILE + 2 * blocks.channels) * wide + 2 * tile
    computed = (longest + 2) * WINDOW_TILE * (2 * blocks.window + 2 * selected) * wide
    return 2 * twice + tile + computed


def _smem_bytes(problem: Problem, blocks: Blocks) -> int:
    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    sources = problem.gathered_rows
    tiles = -(-problem.out_rows // WINDOW_TILE)
    visits = most_visits(problem.layer.spec, columns, sources, tiles, blocks.window)
    return 4 * (visits + 1 + tiles * (1 + 2 * len(columns)))


def _free_smem(hardware: HardwareInfo) -> int:
    """Scalar memory that arguments may fill: all but 2 KiB of 1 MiB was seen to compile."""
    return max(0, (hardware.smem_bytes or 0) - 4096)


WINDOWED = dataclasses.replace(
    DENSE,
    name="implicit",
    kind="depthwise",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    apply=apply,
)
