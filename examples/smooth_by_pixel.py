"""Remove noise with a kernel whose size is learned for every pixel.

    python examples/smooth_by_pixel.py --steps 300

Flat parts of an image want a large kernel, edges a small one. A small network looks at the noisy
image and says a size from 1 to 7 for each pixel; `dynamic_conv` smooths with it, and differentiates
with respect to the sizes. It is compared with one size for all pixels.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

from voxax.nn.functional import dynamic_conv

LARGEST = 7


def images(rng, number, size):
    """``(noisy, clean)``, ``float32[number, size, size, 1]``: flat rectangles."""
    clean = np.zeros((number, size, size, 1), np.float32)
    for image in clean:
        for _ in range(6):
            top, left = rng.integers(0, size, 2)
            height, width = rng.integers(size // 8, size // 2, 2)
            image[top : top + height, left : left + width] = rng.uniform(-1, 1)
    noise = rng.normal(scale=0.3, size=clean.shape).astype(np.float32)
    return jnp.asarray(clean + noise), jnp.asarray(clean)


def initial(rng, learned):
    """Parameters: logits of the kernel, and of the network that says sizes."""
    kernel = np.zeros((LARGEST, LARGEST), np.float32)
    if not learned:
        return {"kernel": jnp.asarray(kernel)}
    first = rng.normal(scale=0.2, size=(5, 5, 1, 8)).astype(np.float32)
    second = rng.normal(scale=0.2, size=(3, 3, 8, 1)).astype(np.float32)
    return {
        "kernel": jnp.asarray(kernel),
        "first": jnp.asarray(first),
        "second": jnp.asarray(second),
    }


def smoothed(params, noisy, size):
    """The noisy image under a kernel whose taps of each pixel's size add up to 1."""
    if size is None:
        hidden = jax.nn.relu(dynamic_conv(noisy, params["first"]))
        said = dynamic_conv(hidden, params["second"])[..., 0]
        size = 1 + (LARGEST - 1) * jax.nn.sigmoid(said)
    else:
        size = jnp.full(noisy.shape[:3], size)
    weight = jnp.exp(params["kernel"])[..., None, None]
    both = jnp.concatenate([noisy, jnp.ones_like(noisy)], axis=-1)
    eye = jnp.eye(2, dtype=noisy.dtype)
    sums = dynamic_conv(both, weight * eye, size=size)  # of values, and of weights
    return sums[..., :1] / sums[..., 1:], size


def train(noisy, clean, steps, size=None):
    params = initial(np.random.default_rng(0), size is None)
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, state):
        def loss(params):
            return jnp.mean((smoothed(params, noisy, size)[0] - clean) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(params)
    for _ in range(steps):
        params, state, _ = step(params, state)
    return params


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--size", type=int, default=64, help="of an image, pixels")
    parser.add_argument("--fixed", type=int, nargs="*", default=[1, 3, 5, 7])
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(1)
    noisy, clean = images(rng, 8, options.size)
    held_out = images(rng, 8, options.size)

    errors = {}
    for fixed in (*options.fixed, None):
        params = train(noisy, clean, options.steps, fixed)
        result, size = smoothed(params, held_out[0], fixed)
        errors[fixed] = float(jnp.mean((result - held_out[1]) ** 2))
        name = f"size {fixed}" if fixed else f"learned, {float(size.mean()):.1f} in the mean"
        print(f"{name:>24}: mean squared error {errors[fixed]:.4f}", flush=True)
    return errors


if __name__ == "__main__":
    main()
