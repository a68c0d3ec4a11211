"""Baselines of the window kernels: XLA's own gather, and a kernel that copies rows.

Each is a function for ``voxax.predict``: it returns what to compile, for a submanifold 3x3x3
layer.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TAPS, TILE, LANES = 27, 128, 128


def _shape(*size, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(size, dtype)


def xla(product="forward", rows=100_352, channels=64):
    """Rows gathered by XLA and multiplied, tap after tap; no scatter in any product."""

    def picked(x, table, tap):
        index = table[tap]
        return jnp.where((index >= 0)[:, None], x[jnp.maximum(index, 0)], 0)

    def outputs(x, w, table):
        def add(tap, total):
            return total + jnp.dot(
                picked(x, table, tap), w[tap], preferred_element_type=jnp.float32
            )

        zero = jnp.zeros((rows, channels), jnp.float32)
        return jax.lax.fori_loop(0, TAPS, add, zero).astype(x.dtype)

    def weights(x, dy, table):
        def one(tap, total):
            term = jnp.dot(picked(x, table, tap).T, dy, preferred_element_type=jnp.float32)
            return total.at[tap].set(term)

        zero = jnp.zeros((TAPS, channels, channels), jnp.float32)
        return jax.lax.fori_loop(0, TAPS, one, zero).astype(x.dtype)

    x, w = _shape(rows, channels), _shape(TAPS, channels, channels)
    table = _shape(TAPS, rows, dtype="int32")
    # dgrad of a submanifold layer: the same with the taps reversed.
    return (weights, x, x, table) if product == "wgrad" else (outputs, x, w, table)


def row_copies(product="forward", rows=100_352, channels=64):
    """A copy for each neighbour, from HBM, of a float32 row of 128 lanes.

    A tile's neighbours come as a list: ``sources[tile, i]`` is an input row, ``slots[tile, i]``
    where it goes, ``tap * TILE + output row``. Rows without a neighbour are zero.
    """
    tiles = -(-rows // TILE)
    most = TAPS * TILE
    listed = -(-most // 1024) * 1024  # one-dimensional blocks are multiples of it

    def kernel(counts, sources, slots, x, other, out, picked, semaphore):
        tile = pl.program_id(0)

        def copy(i):
            return pltpu.make_async_copy(
                x.at[pl.ds(sources[i], 1)], picked.at[pl.ds(slots[i], 1)], semaphore
            )

        def start(i, carry):
            copy(i).start()
            return carry

        def wait(i, carry):
            copy(i).wait()
            return carry

        picked[...] = jnp.zeros_like(picked)
        jax.lax.fori_loop(0, counts[tile], start, 0)
        jax.lax.fori_loop(0, counts[tile], wait, 0)

        if product == "wgrad":

            @pl.when(tile == 0)
            def _():
                out[...] = jnp.zeros_like(out)

            for tap in range(TAPS):
                found = picked[tap * TILE : (tap + 1) * TILE].astype(jnp.bfloat16)
                out[tap] += jax.lax.dot_general(
                    found, other[...], (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
                )
            return
        total = jnp.zeros((TILE, channels), jnp.float32)
        for tap in range(TAPS):
            found = picked[tap * TILE : (tap + 1) * TILE].astype(jnp.bfloat16)
            total += jnp.dot(found, other[tap], preferred_element_type=jnp.float32)
        out[...] = total.astype(out.dtype)

    def run(counts, sources, slots, x, other):
        wide = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, LANES - channels)))
        entries = pl.BlockSpec((listed,), lambda i, _: (i,), memory_space=pltpu.SMEM)
        if product == "wgrad":
            operand = pl.BlockSpec((TILE, channels), lambda i, _: (i, 0))
            shape = (TAPS, LANES, channels)
            out = pl.BlockSpec(shape, lambda i, _: (0, 0, 0))
            result, semantics = jax.ShapeDtypeStruct(shape, jnp.float32), "arbitrary"
        else:
            other = jnp.pad(other, ((0, 0), (0, LANES - channels), (0, 0)))
            operand = pl.BlockSpec((TAPS, LANES, channels), lambda i, _: (0, 0, 0))
            out = pl.BlockSpec((TILE, channels), lambda i, _: (i, 0))
            result, semantics = _shape(tiles * TILE, channels), "parallel"
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(tiles,),
                in_specs=[entries, entries, pl.BlockSpec(memory_space=pltpu.HBM), operand],
                out_specs=out,
                scratch_shapes=[pltpu.VMEM((most, LANES), jnp.float32), pltpu.SemaphoreType.DMA],
            ),
            out_shape=result,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=(semantics,), disable_bounds_checks=True
            ),
        )(counts, sources, slots, wide, other)

    integers = functools.partial(_shape, dtype="int32")
    other = _shape(tiles * TILE, channels)
    if product != "wgrad":
        other = _shape(TAPS, channels, channels)
    lists = integers(tiles * listed)
    return run, integers(tiles), lists, lists, _shape(rows, channels), other
