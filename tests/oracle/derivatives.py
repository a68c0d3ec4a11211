"""First and second derivatives against finite differences of the function itself."""

import jax
import jax.numpy as jnp
import numpy as np

STEP = 1e-6


def check_derivatives(operator, values, rng, rtol=1e-5, others=()):
    """``operator(values) -> y``, of every float array in the dict; needs 64-bit numbers.

    What else the dict holds is given to the operator as it is. Two programs: the operator, and the
    gradient of a scalar of it with its own derivative along one direction, reverse mode and forward
    over reverse. They stay two where the values change, also to those of ``others``.
    """
    fixed, held = _parted(values)
    along = {key: jnp.asarray(rng.standard_normal(value.shape)) for key, value in held.items()}
    forward = jax.jit(lambda fixed, held: operator({**fixed, **held}))
    probe = jnp.asarray(rng.standard_normal(forward(fixed, held).shape))

    @jax.jit
    def derive(fixed, held, t):
        def scalar(held):
            return jnp.sum(probe * jnp.sin(operator({**fixed, **held})))

        return jax.jvp(jax.grad(scalar), (held,), (t,))

    first, second = derive(fixed, held, along)

    def loss(held):
        return float(np.vdot(probe, np.sin(forward(fixed, held))))

    for key in held:
        moved = [{**held, key: held[key] + sign * STEP * along[key]} for sign in (1, -1)]
        want = (loss(moved[0]) - loss(moved[1])) / (2 * STEP)
        got = float(jnp.vdot(first[key], along[key]))
        assert abs(got - want) <= rtol * (1 + abs(want)) * 10, (key, got, want)
    up, down = (
        derive(fixed, {key: held[key] + sign * STEP * along[key] for key in held}, along)[0]
        for sign in (1, -1)
    )
    for key in held:
        want = (np.asarray(up[key]) - np.asarray(down[key])) / (2 * STEP)
        scale = 1 + np.abs(want).max(initial=0)
        np.testing.assert_allclose(second[key], want, atol=100 * rtol * scale, err_msg=key)
    for other in others:
        slopes = jax.tree.leaves(derive(*_parted(other), along))
        assert all(np.isfinite(leaf).all() for leaf in slopes)
    assert derive._cache_size() == 1
    assert forward._cache_size() == 1


def _parted(values):
    """Return the values without and with derivatives, as arrays."""
    held = {
        key: jnp.asarray(value)
        for key, value in values.items()
        if hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
    }
    return {key: value for key, value in values.items() if key not in held}, held
