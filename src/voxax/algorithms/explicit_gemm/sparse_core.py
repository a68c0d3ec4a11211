"""SparseCores gather, TensorCores multiply: block by block of output rows, on TPUs that have both.

Of each block the rows under all taps are gathered into memory, ``sparse_core_kernel.py`` has that
part, and multiplied there by XLA. It is im2col, but for who gathers: missing neighbors cost no
copy, and nothing is scattered. What is gathered is 32-bit words, 128 side by side:

- bfloat16 channels stand in pairs, the first half of them below, the second half above. Shifts take
  them apart, as values move to the matrix unit.
- Channels are padded until they are 16, 32, 64 or a multiple of 128 words.
- Where they are fewer, taps stand side by side; where they are more, a row is several pieces.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.algorithms.kernel import EVERY_PRODUCT, Kernel, Parameters, Problem, Views, first_of
from voxax.algorithms.rows import (
    clear_unreached,
    options,
    oriented,
    split_rows,
    table_name,
    table_read,
    zeros,
)
from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.hardware import HardwareInfo

_DTYPES = ("float32", "bfloat16")
# Words that stand side by side: the width of TensorCores' tiles.
_WORDS = 128
# Copies move 32 or 64 bytes at once, and registers hold 8 or 16 words.
_LEAST = 16
_WORD_BYTES = 4
# Rows of one copy; JAX's own kernels take no longer lists of indices.
_WINDOW = 128
_BLOCKS = (8192, 32768)
# Blocks whose gathered rows are larger than that are not offered, but for the smallest.
_MOST_BYTES = 2**29


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of gathered rows in memory.

    Attributes:
      halves: channels in one word: 1, or 2 of 16 bits.
      words: of one row, padded.
    """

    halves: int
    words: int

    @property
    def width(self) -> int:
        """Words of one copy."""
        return min(self.words, _WORDS)

    @property
    def pieces(self) -> int:
        """Copies of one row."""
        return self.words // self.width

    @property
    def beside(self) -> int:
        """Taps side by side in 128 words."""
        return _WORDS // self.width

    def groups(self, taps: int) -> int:
        """Columns of 128 words that all taps of a row take."""
        return -(-taps * self.pieces // self.beside)


def layout_of(channels: int, dtype: str) -> Layout:
    """Return the layout of rows of so many channels."""
    halves = _WORD_BYTES // np.dtype(jnp.dtype(dtype)).itemsize
    words = max(-(-channels // halves), _LEAST)
    if words < _WORDS:
        return Layout(halves, 1 << (words - 1).bit_length())
    return Layout(halves, -(-words // _WORDS) * _WORDS)


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Dense weights on TPUs whose SparseCores can gather the rows."""
    if problem.platform != "tpu":
        return f"SparseCores are parts of TPUs, the platform is {problem.platform}"
    if not hardware.sparse_cores:
        return f"{hardware.model or hardware.device_kind} has no SparseCores"
    if not (hardware.sparse_subcores and hardware.sparse_lanes and hardware.sparse_memory_bytes):
        return "it is unknown how many subcores the SparseCores have, and how much memory"
    if problem.layer.kind != "dense":
        return f"gathered rows meet dense weights, not {problem.layer.kind} ones"
    if problem.dtype not in _DTYPES:
        return f"SparseCores gather {' and '.join(_DTYPES)}, got {problem.dtype}"
    layout = layout_of(problem.gathered_channels, problem.dtype)
    needed = _subcore_bytes(layout)
    if needed > hardware.sparse_memory_bytes:
        return (
            f"a subcore needs {needed} bytes for {_WINDOW} rows of {layout.width} words twice, it "
            f"has {hardware.sparse_memory_bytes}"
        )
    if layout.width % hardware.sparse_lanes:
        return f"rows of {layout.width} words are no multiple of {hardware.sparse_lanes} lanes"
    if problem.gathered_rows * layout.pieces >= 2**31:
        return f"{problem.gathered_rows} rows in {layout.pieces} pieces each exceed 32-bit indices"
    return None


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Blocks of rows, none much longer than the map and none too large for memory; or nothing."""
    if supports(problem, hardware) is not None:
        return ()
    layout = layout_of(problem.gathered_channels, problem.dtype)
    row = layout.groups(problem.layer.num_offsets) * _WORDS * _WORD_BYTES
    most = min(_MOST_BYTES, (hardware.memory_free or _MOST_BYTES) // 4)
    fitting = [
        rows
        for before, rows in zip((0, *_BLOCKS), _BLOCKS, strict=False)
        if not before or (problem.out_rows > before and rows * row <= most)
    ]
    return tuple(parameters(rows, hardware) for rows in fitting)


def parameters(block_rows: int, hardware: HardwareInfo) -> Parameters:
    """Parameters for blocks of ``block_rows`` rows."""
    values = {
        "block_rows": block_rows,
        "formulation": "sparse_core",
        "cores": hardware.sparse_cores or 1,
        "subcores": hardware.sparse_subcores or 1,
        "lanes": hardware.sparse_lanes or 1,
    }
    return tuple(sorted(values.items()))


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Run a product; ``("interpret", 1)`` among the parameters gathers in plain JAX anywhere."""
    # Not with voxax: only programs that use it need Pallas.
    from voxax.algorithms.explicit_gemm import sparse_core_kernel

    values: dict[str, Any] = dict(parameters)
    how = sparse_core_kernel.Gather(
        values["cores"], values["subcores"], values["lanes"], _WINDOW, values.get("interpret", 0)
    )
    table = views[table_name(problem)]
    result = product_dtype(a.dtype)
    wgrad = problem.product == "wgrad"
    if 0 in (*a.shape, *b.shape, *table.shape, *problem.result_shape):
        return jnp.zeros(problem.result_shape, result)
    layout = layout_of(a.shape[1], problem.dtype)
    source = _as_words(a, layout)
    size = _block_rows(len(table), values["block_rows"])
    places = _places(table, layout, size)

    def gathered(number: jax.Array) -> list[jax.Array]:
        index = jax.lax.dynamic_slice_in_dim(places, number * size, size, 1)
        found = sparse_core_kernel.gather(how, source.reshape(-1, layout.width), index)
        return _channels_of(found, layout, a.dtype)

    numbers = jnp.arange(places.shape[1] // size, dtype=jnp.int32)

    wide = options(problem, a.dtype)
    if wgrad:
        parts = split_rows(clear_unreached(b, table), size, 0)

        def add(total: jax.Array, block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            number, g = block
            terms = [jnp.einsum("krl,ro->klo", x, g, **wide) for x in gathered(number)]
            return total + jnp.stack(terms), None

        groups = layout.groups(problem.layer.num_offsets)
        total = zeros((layout.halves, groups, _WORDS, b.shape[1]), accumulator(a.dtype), a)
        sums, _ = jax.lax.scan(add, total, (numbers, parts))
        return _weight_from(sums, layout, problem.weight_shape).astype(result)

    w, _ = oriented(problem, b, {"neighbors": table, "transposed_neighbors": table})
    halves = _weight_by_words(w, layout)

    def block(number: jax.Array) -> jax.Array:
        terms = [
            jnp.einsum("krl,klo->ro", x, half, **wide)
            for x, half in zip(gathered(number), halves, strict=True)
        ]
        return sum(terms[1:], terms[0]).astype(result)

    out = jax.lax.map(block, numbers)
    return out.reshape(-1, out.shape[-1])[: len(table)]


def _as_words(x: jax.Array, layout: Layout) -> jax.Array:
    """``[N, C]`` to ``int32[N', 128]``, row after row."""
    rows, channels = x.shape
    x = jnp.pad(x, ((0, -rows % layout.beside), (0, layout.words * layout.halves - channels)))
    if layout.halves == 1:
        words = jax.lax.bitcast_convert_type(x, jnp.int32)
    else:
        bits = jax.lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32)
        low, high = bits[:, : layout.words], bits[:, layout.words :]
        words = jax.lax.bitcast_convert_type(low | (high << 16), jnp.int32)
    # Once, before all blocks: XLA would move rows of fewer words into their order for each.
    return jax.lax.optimization_barrier(words.reshape(-1, _WORDS))


def _block_rows(rows: int, most: int) -> int:
    """Rows of a block, a multiple of a copy's: about as many as asked for, so that few are left."""
    least = -(-rows // most)
    blocks = min(range(least, 2 * least), key=lambda n: -rows % (n * _WINDOW))
    return -(-rows // (blocks * _WINDOW)) * _WINDOW


def _places(table: jax.Array, layout: Layout, size: int) -> jax.Array:
    """``int32[M, K]`` to places in the words: ``int32[groups * beside, M']``, whole blocks."""
    rows, taps = table.shape
    index = jnp.pad(table.T, ((0, 0), (0, -rows % size)), constant_values=-1)
    piece = jnp.arange(layout.pieces, dtype=table.dtype)[None, :, None]
    places = jnp.where(index[:, None] < 0, -1, index[:, None] * layout.pieces + piece)
    places = places.reshape(taps * layout.pieces, index.shape[1])
    fill = layout.groups(taps) * layout.beside - taps * layout.pieces
    return jnp.pad(places, ((0, fill), (0, 0)), constant_values=-1)


def _channels_of(words: jax.Array, layout: Layout, dtype: Any) -> list[jax.Array]:
    """``int32[groups, rows, 128]`` to the channels in each half of the words."""
    if layout.halves == 1:
        return [jax.lax.bitcast_convert_type(words, dtype)]
    # The upper half of a float32 is a bfloat16: the conversions are exact.
    parts = words << 16, words & jnp.int32(-(1 << 16))
    return [jax.lax.bitcast_convert_type(part, jnp.float32).astype(dtype) for part in parts]


def _weight_by_words(w: jax.Array, layout: Layout) -> jax.Array:
    """``[K, C_in, C_out]`` to ``[halves, groups, 128, C_out]``."""
    taps, c_in, c_out = w.shape
    groups, all_taps = layout.groups(taps), -(-taps // layout.beside) * layout.beside
    fill = ((0, all_taps - taps), (0, layout.words * layout.halves - c_in), (0, 0))
    w = jnp.pad(w, fill).reshape(all_taps, layout.halves, layout.words, c_out)
    return w.transpose(1, 0, 2, 3).reshape(layout.halves, groups, _WORDS, c_out)


def _weight_from(w: jax.Array, layout: Layout, shape: tuple[int, ...]) -> jax.Array:
    """The way back."""
    taps, c_in, c_out = shape
    w = w.reshape(layout.halves, -1, layout.words, c_out).transpose(1, 0, 2, 3)
    return w.reshape(-1, layout.halves * layout.words, c_out)[:taps, :c_in]


def _subcore_bytes(layout: Layout) -> int:
    """Two buffers of rows and of indices."""
    return 2 * _WINDOW * (layout.width + 1) * _WORD_BYTES


SPARSE_CORE = Kernel(
    name="explicit_gemm",
    kind="dense",
    products=EVERY_PRODUCT,
    platform="tpu",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    reads=table_read,
    apply=apply,
    # Behind the formulations in XLA: there is no measurement of how fast SparseCores gather.
    rank=15,
)
