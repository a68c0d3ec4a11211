"""The Pallas kernel that gathers rows on a TPU's SparseCores, of several taps side by side.

All vector subcores of all SparseCores share the blocks of indices. A block's indices come to the
subcore's memory while the block before is gathered, and its rows leave while the next are
gathered: that is Pallas' pipeline, with two buffers each. One indirect copy brings a block's rows.
Missing rows are not copied at all, so the buffer is cleared first.

A copy moves 32-bit words, and rows are at most 128 of them, so that what arrives is in the order
in which TensorCores keep arrays of 128 lanes: nothing is moved between the two.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from voxax import _compat

WIDTH = 128
"""Words side by side in what is gathered: the width of a TensorCore's tiles."""
_MISSING = -1


@dataclasses.dataclass(frozen=True)
class Gather:
    """The static side of a call.

    Attributes:
      cores, subcores: SparseCores of the device, and vector subcores of each.
      lanes: 32-bit values of a subcore's registers.
      window: rows of one copy, of all taps that come side by side.
      interpret: 1 gathers in plain JAX, on any platform. Or Pallas' parameters of its TPU
        interpreter: the kernel itself, but that it knows neither several subcores nor copies by a
        list of indices, so that one subcore copies row by row.
    """

    cores: int
    subcores: int
    lanes: int
    window: int
    interpret: Any = 0


# Jitted, so that layers of the same sizes are traced and translated for the chip once.
@functools.partial(jax.jit, static_argnums=0)
def gather(how: Gather, x: jax.Array, index: jax.Array) -> jax.Array:
    """``out[g, m, t] = x[index[g * beside + t, m]]``, zero where that is -1.

    Args:
      how: see there.
      x: ``int32[N, words]``; of words a multiple of ``how.lanes``.
      index: ``int32[groups * beside, M]``, M a multiple of ``how.window``; smaller than N.

    Returns:
      ``int32[groups, M, beside * words]``, of ``beside * words`` always 128.
    """
    taps, count = index.shape
    words, window = x.shape[1], how.window
    beside = WIDTH // words
    shape = taps // beside, count, WIDTH
    if how.interpret == 1:
        index = index.reshape(-1, beside, count).transpose(0, 2, 1)
        found = x.at[index].get(mode="clip")
        return jnp.where((index >= 0)[..., None], found, jnp.zeros((), x.dtype)).reshape(shape)
    simulated = bool(how.interpret)
    outputs = window // beside
    tiles = count // outputs
    mesh = plsc.VectorSubcoreMesh(
        core_axis_name="core",
        subcore_axis_name="subcore",
        num_cores=1 if simulated else how.cores,
        num_subcores=1 if simulated else how.subcores,
    )

    def clear(rows: Any) -> None:
        # The iterations of a parallel loop may overlap; the interpreter has none.
        loop = pl.loop if simulated else plsc.parallel_loop

        @loop(0, window)
        def _(row: Any) -> None:
            for begin in range(0, words, how.lanes):
                rows[row, pl.ds(begin, how.lanes)] = jnp.zeros((how.lanes,), rows.dtype)

    def line_up(wanted: Any, listed: Any) -> None:
        """The indices of taps that come side by side, row by row."""
        if simulated:

            @pl.loop(0, window)
            def _(at: Any) -> None:
                row, tap = at // beside, at % beside
                listed[pl.ds(at, 1)] = wanted[pl.ds(tap, 1), pl.ds(row, 1)].reshape(1)

            return
        for begin in range(0, window, how.lanes):
            at = begin + jax.lax.iota(jnp.int32, how.lanes)
            tap, row = jax.lax.rem(at, jnp.int32(beside)), jax.lax.div(at, jnp.int32(beside))
            listed[pl.ds(begin, how.lanes)] = plsc.load_gather(wanted, [tap, row])

    def copy(x_ref: Any, listed: Any, rows: Any) -> None:
        if not simulated:
            pltpu.sync_copy(x_ref.at[plsc.Indices(listed, ignored_value=_MISSING)], rows)
            return

        @pl.loop(0, window)
        def _(at: Any) -> None:
            source = listed[pl.ds(at, 1)][0]

            @pl.when(source != _MISSING)
            def _() -> None:
                pltpu.sync_copy(x_ref.at[pl.ds(source, 1)], rows.at[pl.ds(at, 1)])

    def kernel(x_ref: Any, index_ref: Any, out_ref: Any, listed: Any) -> None:
        def step(wanted: Any, rows: Any) -> None:
            clear(rows)
            line_up(wanted, listed)
            copy(x_ref, listed, rows)

        pltpu.emit_pipeline(
            step,
            grid=(shape[0] * tiles,),
            in_specs=[pl.BlockSpec((beside, outputs), lambda i: (i // tiles, i % tiles))],
            out_specs=[pl.BlockSpec((window, words), lambda i: (i, 0))],
            core_axis_name=("core", "subcore"),
            dimension_semantics=(pltpu.PARALLEL,),
        )(index_ref, out_ref)

    run: Any = pl.kernel(
        kernel,
        out_type=_compat.shape_like((taps * count, words), x.dtype, x),
        mesh=mesh,
        scratch_types=[pltpu.VMEM((window,), jnp.int32)],
        # Rows of fewer than 128 words stay together only without a TensorCore's tiles.
        compiler_params=pltpu.CompilerParams(use_tc_tiling_on_sc=False, needs_layout_passes=False),
        interpret=how.interpret or False,
    )
    out = run(x, index)
    # Else XLA takes the words apart in rows that are shorter than a TensorCore's lanes.
    return jax.lax.optimization_barrier(out.reshape(-1, WIDTH)).reshape(shape)
