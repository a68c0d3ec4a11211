"""The hierarchical bank: large kernels on cells of two positions, small ones on positions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracle.dynamic import dynamic_conv as exactly
from voxax.errors import InputError
from voxax.nn.functional import bank_error, dynamic_conv


def by_cells(x, w, size, dilation):
    """Each cell: the mean over its positions of the kernel centered there, on cells' means."""
    spatial, ndim = x.shape[1:-1], x.ndim - 2
    cells = np.zeros((len(x), *(-(-n // 2) for n in spatial), x.shape[-1]))
    for place in np.ndindex(*spatial):
        cells[(slice(None), *(p // 2 for p in place))] += x[(slice(None), *place)] / 2**ndim
    middle = (w.shape[0] - 1) // 2
    y = np.zeros((*x.shape[:-1], w.shape[-1]))
    for place in np.ndindex(*spatial):
        for phase in itertools.product((0, 1), repeat=ndim):
            for o in itertools.product(range(-((size - 1) // 2), size // 2 + 1), repeat=ndim):
                at = [(2 * (p // 2) + f + dilation * k) // 2
                      for p, f, k in zip(place, phase, o, strict=True)]  # fmt: skip
                if all(0 <= a < n for a, n in zip(at, cells.shape[1:-1], strict=True)):
                    tap = w[tuple(k + middle for k in o)]
                    y[(slice(None), *place)] += cells[(slice(None), *at)] @ tap / 2**ndim
    return y


@pytest.mark.parametrize(
    ("spatial", "largest", "size", "dilation"),
    [((9,), 5, 5, 1), ((8,), 4, 4, 3), ((6, 7), 5, 5, 1), ((4, 3, 5), 3, 3, 1)],
    ids=str,
)
def test_against_the_definition(spatial, largest, size, dilation):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, *spatial, 3))
    w = rng.standard_normal((*(largest,) * len(spatial), 3, 2))
    with jax.enable_x64(True):
        y = dynamic_conv(
            jnp.asarray(x), jnp.asarray(w), size=size, dilation=dilation,
            method="bank", bank=[size], coarse_from=size,
        )  # fmt: skip
    np.testing.assert_allclose(y, by_cells(x, w, size, dilation), atol=1e-10)


def test_small_sizes_stay_exact_and_the_error_is_reported():
    rng = np.random.default_rng(1)
    # Smooth, as features under large kernels should be.
    place = np.stack(np.meshgrid(*[np.linspace(0, 3, 24)] * 2, indexing="ij"), -1)
    x = jnp.asarray(np.sin(place @ rng.standard_normal((2, 4)))[None], jnp.float32)
    w = jnp.asarray(rng.standard_normal((7, 7, 4, 3)) / 10, jnp.float32)
    size = jnp.asarray(rng.choice([3, 7], (1, 24, 24)))
    options = {"size": size, "bank": [3, 7]}
    y = dynamic_conv(x, w, method="bank", coarse_from=5, **options)
    want = exactly(np.asarray(x), np.asarray(w), np.asarray(size))
    small = np.asarray(size) == 3
    np.testing.assert_allclose(np.asarray(y)[small], want[small], atol=1e-4)
    found = bank_error(x, w, coarse_from=5, **options)
    relative = np.sqrt(((np.asarray(y) - want) ** 2).mean() / (want**2).mean())
    assert float(found.relative) == pytest.approx(relative, rel=1e-3)
    assert float(found.moved) == 0
    assert 1e-3 < relative < 0.5
    assert float(bank_error(x, w, **options).relative) < 1e-5


def test_sizes_chosen_while_running_and_gradients():
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.standard_normal((1, 10, 9, 3)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((5, 5, 3, 2)), jnp.float32)
    size = jnp.asarray(rng.choice([2, 5], (1, 10, 9)))

    @jax.jit
    def f(x, w):
        return dynamic_conv(x, w, size=size, method="bank", bank=2, coarse_from=4)

    fixed = dynamic_conv(x, w, size=size, method="bank", bank=[2, 5], coarse_from=4)
    np.testing.assert_allclose(f(x, w), fixed, atol=1e-4)
    t = jnp.asarray(rng.standard_normal(x.shape), jnp.float32)
    y, pull = jax.vjp(f, x, w)
    dx, dw = pull(y)
    # Bilinear: the derivative along t is the function of t.
    assert float(jnp.vdot(dx, t)) == pytest.approx(float(jnp.vdot(y, f(t, w))), rel=1e-3)
    assert float(jnp.vdot(dw, w)) == pytest.approx(float(jnp.vdot(y, y)), rel=1e-3)


def test_refused():
    x, w = jnp.ones((1, 6, 6, 2)), jnp.ones((3, 3, 2, 2))
    with pytest.raises(InputError, match=r"coarse_from with stride \(2, 1\): cells of two"):
        dynamic_conv(x, w, size=3, stride=(2, 1), method="bank", bank=[3], coarse_from=3)
