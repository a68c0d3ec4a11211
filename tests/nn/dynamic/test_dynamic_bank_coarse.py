"""Banks of sizes; in hierarchical ones large kernels run on cells of two positions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle.dynamic import dynamic_conv as exactly
from samples import slow_unless
from voxax.errors import InputError
from voxax.nn.dynamic import bank as module
from voxax.nn.dynamic.grid_taps import grid_spec
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
            algorithm="bank", bank=[size], coarse_from=size,
        )  # fmt: skip
    np.testing.assert_allclose(y, by_cells(x, w, size, dilation), atol=1e-10)


def rounded(size, bank, largest, ndim):
    """The nearest in taps of each size; a number of sizes moves the fewest taps of all banks."""
    taps, whole = (lambda s: np.asarray(s) ** ndim), np.clip(size, 0, largest)

    def nearest(chosen):
        table = np.array([min(sorted(chosen), key=lambda c: abs(c**ndim - s**ndim))
                          for s in range(largest + 1)])  # fmt: skip
        table[0] = 0
        return table[whole]

    if not isinstance(bank, int):
        return nearest(bank)
    every = map(nearest, itertools.combinations(range(1, largest + 1), min(bank, largest)))
    fewer = [near for near in every if taps(near).sum() <= taps(whole).sum()]
    return min(fewer, key=lambda near: np.abs(taps(near) - taps(whole)).sum())


def of_bank(x, w, size, bank=3, coarse_from=None, dilation=1, stride=1):
    x, w = np.asarray(x), np.asarray(w)
    near = rounded(np.asarray(size), bank, w.shape[0], x.ndim - 2)
    far = near >= (99 if coarse_from is None else coarse_from)
    y = exactly(x, w, np.where(far, 0, near), dilation, stride=stride)
    for own in np.unique(near[far]):
        y[near == own] = by_cells(x, w, own, dilation)[near == own]
    return y


# spatial, largest kernel, sizes drawn, arguments
BANKS = {
    "given": ((7, 6), 5, range(7), {"bank": [5, 2]}),
    "chosen": ((7, 6), 5, (0, 1, 4, 5), {"bank": 2}),
    "strided and dilated": ((7, 5), 4, range(6), {"bank": 2, "stride": 2, "dilation": 3}),
    "cells": ((6, 5), 5, range(6), {"bank": [2, 3, 5], "coarse_from": 3}),
    "only cells": ((6, 5), 5, range(6), {"bank": [4, 5], "coarse_from": 2, "dilation": 2}),
    "cells of chosen sizes": ((9,), 6, (1, 2, 4, 6), {"bank": 3, "coarse_from": 3, "dilation": 3}),
    "three axes": ((3, 4, 3), 3, range(5), {"bank": 2, "coarse_from": 2}),
}


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "name", [slow_unless(n in ("given", "cells of chosen sizes"), n) for n in BANKS]
)
def test_results_and_gradients(name, platform, monkeypatch):
    """Against the definition in float64: forward and reverse mode, of both operands.

    GPUs run a convolution for each size, in XLA: here on the CPU.
    """
    monkeypatch.setattr(module, "target_platform", lambda: platform)
    spatial, largest, drawn, options = BANKS[name]
    rng = np.random.default_rng(3)
    step = options.get("stride", 1)
    size = rng.choice(list(drawn), (2, *(-(-n // step) for n in spatial)))
    operands = (
        rng.standard_normal((2, *spatial, 3)),
        rng.standard_normal((*(largest,) * len(spatial), 3, 2)),
    )
    with jax.enable_x64(True):

        @jax.jit
        def f(x, w):
            return dynamic_conv(x, w, size=jnp.asarray(size), algorithm="bank", **options)

        arrays = tuple(map(jnp.asarray, operands))
        y, pull = jax.vjp(f, *arrays)
        np.testing.assert_allclose(y, of_bank(*operands, size, **options), atol=1e-10)
        ct = rng.standard_normal(y.shape)
        gradients = pull(jnp.asarray(ct))
        for which in (0, 1):
            # Bilinear: the derivative along t is the function of t.
            moved = list(operands)
            moved[which] = rng.standard_normal(operands[which].shape)
            along = of_bank(*moved, size, **options)
            assert np.vdot(gradients[which], moved[which]) == pytest.approx(np.vdot(ct, along))
            tangents = [jnp.zeros_like(a) for a in arrays]
            tangents[which] = jnp.asarray(moved[which])
            np.testing.assert_allclose(jax.jvp(f, arrays, tuple(tangents))[1], along, atol=1e-10)


def test_a_chosen_bank_has_no_more_taps_than_the_exact_result():
    """Where the nearest sizes of the best bank are larger ones, another is taken."""
    rng, spec = np.random.default_rng(0), grid_spec(jnp.ones((1, 2, 2, 1)), 7, 1, 1)
    bound = 0
    for _ in range(12):
        shares = rng.dirichlet(np.full(8, 0.3))
        size = rng.choice(8, 200, p=shares).astype(np.int32)
        number = int(rng.integers(1, 5))
        chosen, near = module.rounded(size, spec, number)
        np.testing.assert_array_equal(np.unique(near[near > 0]), np.intersect1d(chosen, near))
        assert (np.asarray(near) ** 2).sum() <= (size**2).sum()
        moved = np.abs(np.asarray(near) ** 2 - size**2).sum()
        assert moved == np.abs(rounded(size, number, 7, 2) ** 2 - size**2).sum()
        free = min(
            np.abs(rounded(size, list(c), 7, 2) ** 2 - size**2).sum()
            for c in itertools.combinations(range(1, 8), number)
        )
        bound += moved > free
    assert bound > 0


def test_no_more_time_is_spent_than_on_exact_sizes():
    """The program of a bank has the products of exact sizes, of fewer taps and positions."""
    x, w = jnp.ones((1, 12, 12, 4)), jnp.ones((7, 7, 4, 4))
    size = jnp.full((1, 12, 12), 3).at[:, ::2].set(6)

    def products(**options):
        report = vx.explain(lambda x, w: dynamic_conv(x, w, size=size, **options), x, w)
        return [
            (row.choice.algorithm, layer.num_offsets, layer.out_capacity)
            for row in report
            for layer in [row.choice.problem.layer]
        ]

    ((name, *_),) = products(algorithm=None)
    assert products(algorithm="bank") == [(name, 49, 144)]
    assert products(algorithm="bank", bank=[3, 5]) == [(name, 25, 144)]
    assert products(algorithm="bank", bank=[3, 7], coarse_from=7) == [
        (name, 36, 144),
        (name, 25, 36),
    ]


def test_small_sizes_stay_exact_and_the_error_is_reported():
    rng = np.random.default_rng(1)
    # Smooth, as features under large kernels should be.
    place = np.stack(np.meshgrid(*[np.linspace(0, 3, 24)] * 2, indexing="ij"), -1)
    x = jnp.asarray(np.sin(place @ rng.standard_normal((2, 4)))[None], jnp.float32)
    w = jnp.asarray(rng.standard_normal((7, 7, 4, 3)) / 10, jnp.float32)
    size = jnp.asarray(rng.choice([3, 7], (1, 24, 24)))
    options = {"size": size, "bank": [3, 7]}
    y = dynamic_conv(x, w, algorithm="bank", coarse_from=5, **options)
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
        return dynamic_conv(x, w, size=size, algorithm="bank", bank=2, coarse_from=4)

    fixed = dynamic_conv(x, w, size=size, algorithm="bank", bank=[2, 5], coarse_from=4)
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
        dynamic_conv(x, w, size=3, stride=(2, 1), algorithm="bank", bank=[3], coarse_from=3)
