"""First and second derivatives against finite differences of the function itself."""

import jax
import jax.numpy as jnp
import numpy as np

STEP = 1e-6


def check_derivatives(operator, values, rng, rtol=1e-5):
    """``operator(values) -> y``, of every float array in the dict; needs 64-bit numbers.

    Two programs: the operator, and the gradient of a scalar of it with its own derivative along
    one direction, reverse mode and forward over reverse.
    """
    held = {key: jnp.asarray(value) for key, value in values.items()}
    along = {key: jnp.asarray(rng.standard_normal(value.shape)) for key, value in held.items()}
    forward = jax.jit(operator)
    probe = jnp.asarray(rng.standard_normal(forward(held).shape))

    def scalar(values):
        return jnp.sum(probe * jnp.sin(operator(values)))

    derive = jax.jit(lambda values, t: jax.jvp(jax.grad(scalar), (values,), (t,)))
    first, second = derive(held, along)

    def loss(values):
        return float(np.vdot(probe, np.sin(forward(values))))

    for key in held:
        moved = [{**held, key: held[key] + sign * STEP * along[key]} for sign in (1, -1)]
        want = (loss(moved[0]) - loss(moved[1])) / (2 * STEP)
        got = float(jnp.vdot(first[key], along[key]))
        assert abs(got - want) <= rtol * (1 + abs(want)) * 10, (key, got, want)
    up, down = (
        derive({key: held[key] + sign * STEP * along[key] for key in held}, along)[0]
        for sign in (1, -1)
    )
    for key in held:
        want = (np.asarray(up[key]) - np.asarray(down[key])) / (2 * STEP)
        scale = 1 + np.abs(want).max(initial=0)
        np.testing.assert_allclose(second[key], want, atol=100 * rtol * scale, err_msg=key)
