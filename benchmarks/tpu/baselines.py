"""The baseline of the window kernels, XLA's own gather, for ``voxax.predict``: what to compile."""

import jax
import jax.numpy as jnp

TAPS = 27


def _shape(*size, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(size, dtype)


def xla(product="forward", rows=100_352, channels=64):
    """A submanifold 3x3x3 layer: rows gathered and multiplied tap after tap, nothing scattered."""

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
