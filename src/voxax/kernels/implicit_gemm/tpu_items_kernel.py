"""The Pallas kernel of ``implicit_gemm`` on TPUs for maps with few neighbors.

The window kernels of ``tpu_kernel.py`` permute registers for every tap, whether a neighbor exists
or not. This kernel moves only rows with neighbors, by *items*, see ``items.py``. An item has one
tap, 8 consecutive output rows, and up to 8 neighbors among 8 consecutive input rows. Rows are in
the sublanes of registers and channels in the lanes, which is XLA's layout for arrays of many
channels. An item takes one load of 8 input rows, one permutation of the sublanes, and one addition
to 8 rows of sums.

All input rows are in vector memory, in words of 32 bits. A word is one float32 number, or two
bfloat16 numbers, of channels ``c`` and ``c + 128``. The first steps of the grid load the input
rows. Each later step computes a block of output rows in passes of 128 items. Pass ``p`` moves the
rows of items ``p``, multiplies the rows of items ``p - 1``, and adds the products of items
``p - 2`` to the sums. So no part waits for another. Missing neighbors become zeros.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax import _compat
from voxax.hardware.pallas_checks import bounds_checks
from voxax.kernels.implicit_gemm.items import (
    CHUNK,
    GROUP,
    PASS,
    PIECE,
    Shape,
)
from voxax.kernels.implicit_gemm.windows import CHANNELS

# Number of input rows that one step of the grid loads into vector memory.
LOADED = 2048
# Number of items whose sums are all read before the first sum is written. The result is right,
# because the groups of a piece are distinct.
_BATCH = 8
_PIECES = PASS // PIECE
# Number of rows that a step of a loop copies, with all their channels.
_STRIDE = 256


@dataclasses.dataclass(frozen=True)
class ItemConfig:
    """The static parameters of a call of the items kernel.

    Attributes:
      rows: M, the number of output rows.
      shape: sizes of the lists of items.
      parts: into how many bfloat16 numbers each number of the operands is split: 3 for all digits
        of float32, or 1.
      words: number of channels in a word of 32 bits, 1 or 2.
      vmem_bytes: bytes of vector memory that the compiler may use.
      interpret: True to run as plain JAX on any platform, or parameters of Pallas' TPU interpreter.
      total: dtype of the sums: float32, or int32 for operands whose values are 8-bit integers.
      result: dtype of the result.
    """

    rows: int
    shape: Shape
    parts: int
    words: int
    vmem_bytes: int
    interpret: Any = False
    total: Any = jnp.float32
    result: Any = jnp.float32


# Jitted, so that layers of the same sizes are traced and compiled once.
@functools.partial(jax.jit, static_argnums=0)
def product(
    config: ItemConfig,
    passes: jax.Array,
    own: jax.Array,
    items: jax.Array,
    x: jax.Array,
    w: jax.Array,
) -> jax.Array:
    """Run a forward product: return ``y[m] = sum_k x[table[m, k]] w[k]``, ``[M, C_out]``.

    Args:
      config: static parameters.
      passes: ``int32[blocks]``, number of rows of each block's list that are in use.
      own: ``int32[blocks]``, number of leading groups of a block whose rows are their own neighbors
        under the middle tap. These groups have no items of the middle tap.
      items: the lists of items, see ``tpu_items._build``.
      x: ``[N, C_in]``, bfloat16, or float32 for more than one part; C_in is 64, 128 or 256.
      w: ``bfloat16[K, parts * C_in, C_out]``.
    """
    shape = config.shape
    loads = -(-x.shape[0] // LOADED)
    c_in, c_out = x.shape[1], w.shape[2]
    block_rows = shape.block_rows
    held = max(loads * LOADED, shape.blocks * block_rows)
    word = jnp.int32 if config.words == 2 else jnp.float32
    lists = (2, CHUNK, PASS)
    call = pl.pallas_call(
        functools.partial(_run, config, loads),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(loads + shape.blocks,),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.HBM),
                pl.BlockSpec(
                    (LOADED, c_in),
                    lambda step, *_: (jnp.minimum(step, jnp.int32(loads - 1)), jnp.int32(0)),
                ),
                pl.BlockSpec(w.shape, lambda *_: (0, 0, 0), pipeline_mode=pl.Buffered(1)),
            ],
            out_specs=pl.BlockSpec(
                (block_rows, c_out), lambda step, *_: (_block_of(step, loads), jnp.int32(0))
            ),
            scratch_shapes=[
                pltpu.SMEM(lists, jnp.int32),
                pltpu.SMEM(lists, jnp.int32),
                pltpu.VMEM(lists, jnp.int32),
                pltpu.SMEM((2, CHUNK // PIECE, PASS), jnp.int32),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.VMEM((held, min(c_in, CHANNELS)), word),
                pltpu.VMEM((block_rows + GROUP, c_out), config.total),
                pltpu.VMEM((config.parts, GROUP * PASS, c_in), jnp.bfloat16),
                pltpu.VMEM((GROUP * PASS, c_out), config.total),
            ],
        ),
        out_shape=_compat.shape_like((config.rows, c_out), config.result, x),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=config.vmem_bytes,
            dimension_semantics=("arbitrary",),
            # The rows of an item lie within the array, see items.py.
            disable_bounds_checks=not bounds_checks(),
        ),
        interpret=config.interpret,
    )
    # With x64 enabled, a Python number in an index map is 64 bits long, which the chip lacks.
    with jax.enable_x64(False):
        return call(passes, own, items, x, w)


def _block_of(step: Any, loads: int) -> Any:
    """Return the number of the block of output rows that a step computes.

    It is 0 in the first ``loads`` steps, which only load input rows.
    """
    return jnp.maximum(step - jnp.int32(loads), 0)


@dataclasses.dataclass(frozen=True)
class _Lists:
    """The lists of items of one block, which are read in chunks.

    Each list has two buffers. While one chunk is read, the next chunk is copied to the other
    buffer. The buffers of words are in vector memory, those of other lists in scalar memory.

    Attributes:
      config: static parameters.
      block: number of the block of output rows.
      items: the lists of all blocks, in HBM.
      begins, groups, words, taps: the two buffers of each list. The lists are the first four in
        ``tpu_items._build``, in this order.
      arrived: semaphores of the buffers.
    """

    config: ItemConfig
    block: Any
    items: Any
    begins: Any
    groups: Any
    words: Any
    taps: Any
    arrived: Any

    def _copies(self, chunk: Any) -> list[Any]:
        slot = jax.lax.rem(chunk, jnp.int32(2))
        found = []
        for number, to in enumerate((self.begins, self.groups, self.words, self.taps)):
            rows = to.shape[1]
            begin = pl.multiple_of(number * self.config.shape.list_rows + chunk * rows, rows)
            source = self.items.at[self.block, pl.ds(begin, rows)]
            found.append(pltpu.make_async_copy(source, to.at[slot], self.arrived.at[slot]))
        return found

    def bring(self, chunk: Any) -> None:
        """Start to copy chunk number ``chunk`` of the lists to its buffers."""
        for copy in self._copies(chunk):
            copy.start()

    def wait(self, chunk: Any) -> None:
        """Wait until chunk number ``chunk`` is in its buffers."""
        for copy in self._copies(chunk):
            copy.wait()

    def row(self, numbers: Any, number: Any) -> Any:
        """Return a reference to row ``number`` of the list whose two buffers are ``numbers``."""
        slot = jax.lax.rem(jax.lax.div(number, jnp.int32(CHUNK)), jnp.int32(2))
        return numbers.at[slot, jax.lax.rem(number, jnp.int32(CHUNK))]

    def tap(self, number: Any, piece: Any) -> Any:
        """Return the tap of piece ``piece`` (16 items) in row ``number`` of the list."""
        place = jax.lax.rem(number, jnp.int32(CHUNK)) * _PIECES + piece
        slot = jax.lax.rem(jax.lax.div(number, jnp.int32(CHUNK)), jnp.int32(2))
        return self.taps[
            slot, jax.lax.div(place, jnp.int32(PASS)), jax.lax.rem(place, jnp.int32(PASS))
        ]


def _run(
    config: ItemConfig, loads: int, passes: Any, own: Any, items: Any, x: Any, w: Any, out: Any,
    begins: Any, groups: Any, words: Any, taps: Any, arrived: Any,
    rows: Any, sums: Any, picked: Any, terms: Any,
) -> None:  # fmt: skip
    step = pl.program_id(0)
    block = _block_of(step, loads)
    lists = _Lists(config, block, items, begins, groups, words, taps, arrived)

    @pl.when(step < loads)
    def _() -> None:
        _load(config, x, rows, step)

    @pl.when(step >= loads)
    def _() -> None:
        number = passes[block]

        @pl.when(number > 0)
        def _() -> None:
            lists.bring(jnp.int32(0))

        _add_own(config, block * config.shape.block_rows, own[block], w, rows, sums, picked)

        @pl.when(number > 0)
        def _() -> None:
            # The first two passes have no products to add yet, so they add zeros.
            _fill(terms)
            for part in range(config.parts):
                _fill(picked.at[part])
            # Two more passes than rows of the list, to multiply and add the last items.
            jax.lax.fori_loop(
                0,
                number + 2,
                lambda place, _: _pass(config, place, number, lists, w, rows, sums, picked, terms),
                None,
            )

        def write(place: Any, _: None) -> None:
            at = pl.ds(pl.multiple_of(place * _STRIDE, _STRIDE), _STRIDE)
            out[at, :] = sums[at, :].astype(out.dtype)

        jax.lax.fori_loop(0, config.shape.block_rows // _STRIDE, write, None)


def _fill(ref: Any) -> None:
    """Set all rows of ``ref`` to zero, in a loop to keep the program short."""

    def fill(place: Any, _: None) -> None:
        at = pl.ds(pl.multiple_of(place * _STRIDE, _STRIDE), _STRIDE)
        ref[at, :] = jnp.zeros((_STRIDE, ref.shape[1]), ref.dtype)

    jax.lax.fori_loop(0, ref.shape[0] // _STRIDE, fill, None)


def _load(config: ItemConfig, x: Any, rows: Any, step: Any) -> None:
    """Copy ``x``, the ``LOADED`` input rows of ``step``, to their place in ``rows``.

    ``rows`` has all input rows as 32-bit words: float32 channels, or two bfloat16 channels if
    ``config.words`` is 2.
    """

    def load(place: Any, _: None) -> None:
        at = pl.multiple_of(place * _STRIDE, _STRIDE)
        block = x[pl.ds(at, _STRIDE), :]
        to = pl.ds(pl.multiple_of(step * LOADED + at, _STRIDE), _STRIDE)
        if config.words == 2:
            # A word is channel c in the low half, and channel c + 128 in the high half.
            low, high = (
                jax.lax.bitcast_convert_type(half, jnp.uint16).astype(jnp.uint32)
                for half in (block[:, :CHANNELS], block[:, CHANNELS:])
            )
            rows[to, :] = jax.lax.bitcast_convert_type(low | (high << 16), jnp.int32)
        else:
            rows[to, :] = block.astype(jnp.float32)

    jax.lax.fori_loop(0, LOADED // _STRIDE, load, None)


def _add_own(
    config: ItemConfig, begin: Any, groups: Any, w: Any, rows: Any, sums: Any, picked: Any
) -> None:
    """Write the middle tap's products of a block's first ``groups`` groups to ``sums``.

    The rows of these groups are their own neighbors under this tap, so they are read from ``rows``,
    all input rows, without items. ``begin`` is the first row of the block. ``picked`` is scratch
    memory. The sums of the block's other rows become zero.
    """

    # As many rows as a pass moves, because the next product waits for the move.
    stride = GROUP * PASS

    def add(place: Any, _: None) -> None:
        at = pl.multiple_of(place * stride, stride)
        found = rows[pl.ds(pl.multiple_of(begin + at, stride), stride), :]
        row = at + jax.lax.broadcasted_iota(jnp.int32, found.shape, 0)
        whole = pl.ds(0, stride)
        _keep(config, jnp.where(row < groups * GROUP, found, jnp.zeros_like(found)), picked, whole)
        sums[pl.ds(at, stride), :] = _product(config, picked, whole, w, w.shape[0] // 2)

    jax.lax.fori_loop(0, config.shape.block_rows // stride, add, None)


def _pass(
    config: ItemConfig, place: Any, number: Any, lists: _Lists,
    w: Any, rows: Any, sums: Any, picked: Any, terms: Any,
) -> None:  # fmt: skip
    """Do one round of a pipeline that gathers, multiplies and adds passes of 128 items.

    Gather the rows of pass ``place`` to ``picked``, multiply those of pass ``place - 1`` to
    ``terms``, and add those of pass ``place - 2`` to ``sums``. The block has ``number`` passes,
    whose items are in ``lists``. ``rows`` has all input rows. No stage waits for another in a
    round.
    """
    chunk, within = jax.lax.div(place, jnp.int32(CHUNK)), jax.lax.rem(place, jnp.int32(CHUNK))

    @pl.when(jnp.logical_and(within == 0, place < number))
    def _() -> None:
        lists.wait(chunk)

    # The first two passes of a chunk still read the chunk before, which the next then replaces.
    @pl.when(jnp.logical_and(within == 2, (chunk + 1) * CHUNK < number))
    def _() -> None:
        lists.bring(chunk + 1)

    # The numbers of items are clipped at both ends. The values that are then read are zero or not
    # used.
    added, multiplied, moved = (jnp.clip(place - back, 0, number - 1) for back in (2, 1, 0))
    groups, begins = (
        lists.row(of, at) for of, at in ((lists.groups, added), (lists.begins, moved))
    )
    codes = _codes(lists.row(lists.words, moved)[...].reshape(1, PASS))

    def piece(number: Any) -> None:
        first = number * PIECE
        # Add: y[group] += terms[item].
        for begin in range(0, PIECE, _BATCH):
            part = [first + begin + item for item in range(_BATCH)]
            written = [pl.ds(pl.multiple_of(groups[item], GROUP), GROUP) for item in part]
            found = [
                sums[group, :] + terms[_group(item), :]
                for item, group in zip(part, written, strict=True)
            ]
            for group, value in zip(written, found, strict=True):
                sums[group, :] = value
        # Multiply: a piece has one tap, so one product serves its 16 items.
        at = _group(first, PIECE)
        terms[at, :] = _product(config, picked, at, w, lists.tap(multiplied, number))
        # Move two items at a time: 16 rows fill a register of bfloat16.
        for item in range(0, PIECE, 2):
            pair = [
                _moved(rows, begins[one], _column(codes, one))
                for one in (first + item, first + item + 1)
            ]
            _keep(config, jnp.concatenate(pair, axis=0), picked, _group(first + item, 2))

    if config.interpret:  # The loop compiles sooner.
        jax.lax.fori_loop(0, _PIECES, lambda number, _: piece(number), None)
    else:
        for number in range(_PIECES):
            piece(number)


def _group(item: Any, items: int = 1) -> Any:
    """Return a slice: the 8 rows of each of ``items`` consecutive items, from ``item`` on."""
    return pl.ds(item * GROUP, items * GROUP)


def _column(codes: jax.Array, item: Any) -> jax.Array:
    if isinstance(item, int):
        return codes[:, item : item + 1]
    return jax.lax.dynamic_slice_in_dim(codes, item, 1, axis=1)


def _codes(word: jax.Array) -> jax.Array:
    """Unpack each word of ``[1, PASS]`` to its 8 numbers of 4 bits, ``[GROUP, PASS]``."""
    shape = GROUP, word.shape[1]
    shift = 4 * jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    return jax.lax.shift_right_logical(jnp.broadcast_to(word, shape), shift) & jnp.int32(15)


def _moved(rows: Any, begin: Any, code: jax.Array) -> jax.Array:
    """Return 8 rows: row ``j`` is input row ``begin + code[j] - 8``, or zero if ``code[j] < 8``."""
    window = rows[pl.ds(begin, GROUP), :]
    code = jnp.broadcast_to(code, window.shape)
    found = jnp.take_along_axis(window, code & jnp.int32(7), axis=0, mode="promise_in_bounds")
    return jnp.where(code >= 8, found, jnp.zeros_like(found))


def _keep(config: ItemConfig, words: jax.Array, picked: Any, at: Any) -> None:
    """Convert gathered rows, ``words``, to bfloat16 parts; write them to ``picked[:, at]``.

    ``words`` are 32-bit words as in :func:`_load`. The sum of a channel's parts is its value.
    """
    if config.words == 2:
        picked[0, at, :CHANNELS] = _half(words << 16)
        picked[0, at, CHANNELS:] = _half(words & jnp.int32(-(1 << 16)))
        return
    for part in range(config.parts):
        if config.parts == 1:
            picked[part, at, :] = words.astype(jnp.bfloat16)
            return
        # x = x_1 + x_2 + x_3: each part has the upper 16 bits of the rest. The lower bits are cut,
        # not rounded, because a compiler may remove a conversion to bfloat16 and back.
        bits = jax.lax.bitcast_convert_type(words, jnp.int32) & jnp.int32(-(1 << 16))
        head = jax.lax.bitcast_convert_type(bits, jnp.float32)
        picked[part, at, :] = head.astype(jnp.bfloat16)
        words = words - head


def _half(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.bfloat16)


def _product(config: ItemConfig, picked: Any, at: Any, w: Any, tap: Any) -> jax.Array:
    """Multiply the rows ``at`` of ``picked`` by the weight of ``tap``; return ``[rows, C_out]``.

    Rows and weights are sums of ``config.parts`` bfloat16 parts.
    """
    c_in = picked.shape[2]
    total = jnp.zeros((at.size, w.shape[2]), config.total)
    # x w = sum_ij x_i w_j over i + j < parts, counted from 0, the smallest terms first. The other
    # terms are below the precision of float32.
    for part in reversed(range(config.parts)):
        for other in reversed(range(config.parts - part)):
            product = jnp.dot(
                picked[part, at, :],
                w[tap, other * c_in : (other + 1) * c_in, :],
                precision=jax.lax.Precision.DEFAULT,
                preferred_element_type=jnp.float32,
            )
            total = total + product.astype(config.total)
    return total
