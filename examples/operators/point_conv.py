"""PointConv: a network computes the weights from the relative position of each neighbor.

Source: Wu et al., "PointConv: Deep Convolutional Networks on 3D Point Clouds", CVPR 2019.
"""

import jax
import jax.numpy as jnp
import numpy as np

import voxax as vx


def point_density(points, near, bandwidth):
    """float[N]: points per unit of volume around each point, by a Gaussian; zero in padding."""
    rows, exists = jnp.maximum(near.rows, 0), near.rows >= 0
    apart = points.positions[rows] - points.positions[:, None]
    squares = jnp.sum(jnp.where(exists[..., None], apart, 0) ** 2, axis=-1)
    density = jnp.exp(-squares / (2 * bandwidth**2)) / ((2 * jnp.pi) ** 0.5 * bandwidth) ** 3
    return jnp.sum(jnp.where(exists, density, 0), axis=1)


def point_conv(points, weight, near, net, queries=None, *, density=None, scale=None):
    """The queries with C_out channels; weight [T, C, C_out]; net: [M, k, D] to [M, k, T].

    density [N] divides each neighbor's share; scale, if given, maps inverse densities, relative to
    the largest around the query, [M, k, 1] in (0, 1], to factors [M, k, 1].
    """
    queries = points if queries is None else queries
    rows, exists = jnp.maximum(near.rows, 0), (near.rows >= 0)[..., None]
    # Masked before the network, so that empty slots do not reach any gradient.
    places = jnp.where(exists, points.positions[rows] - queries.positions[:, None], 0)
    shares = net(places)
    if density is not None:
        sparse = jnp.where(exists, 1 / density[rows][..., None], 0)
        if scale is not None:
            most = jnp.max(sparse, axis=1, keepdims=True)
            sparse = scale(sparse / jnp.where(most > 0, most, 1))
        shares = shares * sparse
    shares, values = (jnp.where(exists, a, 0) for a in (shares, points.features[rows]))
    sums = jnp.einsum("mkt,mkc->mtc", shares, values, precision="highest")
    return queries.replace_features(jnp.einsum("mtc,tco->mo", sums, weight, precision="highest"))


if __name__ == "__main__":
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    positions = rng.uniform(0, 4, (300, 3)).astype(np.float32)
    points = vx.Points.make(positions, rng.standard_normal((300, 8)).astype(np.float32))
    near = vx.radius_search(points, radius=0.8, capacity=32)
    net, last = normal(3, 4), normal(4, 8, 16)

    @jax.jit
    def learned(points, near):
        density = point_density(points, near, bandwidth=0.3)
        return point_conv(points, last, near, lambda p: jnp.tanh(p @ net), density=density)

    assert learned(points, near).num_channels == 16
