"""Strides that depend on the input or are learned, and sets that grow where the input says."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle import dynamic_operators as oracle
from oracle.derivatives import check_derivatives
from recipes import recipe
from samples import make_voxels, make_weight, slow_unless
from voxax.errors import CapacityError, InputError
from voxax.nn.functional import (
    choose_size,
    focal_conv,
    selected_stride_conv,
    spatially_sparse_conv,
)


@pytest.mark.parametrize(
    ("spatial", "strides"),
    [
        ((16, 13), (2.3, 1.7)),
        *[slow_unless(False, *c) for c in (((20,), (6.1,)), ((9, 8), (1, 1)))],
    ],
    ids=str,
)
def test_spectral_stride(spatial, strides, rng):
    x = rng.standard_normal((2, *spatial, 3))
    want = oracle.spectral_stride(x, strides, 2.5)
    with jax.enable_x64(True):
        run = jax.jit(lambda x, s: recipe("spectral_stride")(x, s, smoothness=2.5))
        y, extent = run(jnp.asarray(x), jnp.asarray(strides, float))
    assert y.shape == x.shape
    assert tuple(int(n) for n in extent) == want.shape[1:-1]
    inner = tuple(slice(0, n) for n in want.shape[1:-1])
    np.testing.assert_allclose(y[(slice(None), *inner)], want, atol=1e-10)
    rest = np.array(y)
    rest[(slice(None), *inner)] = 0
    assert not rest.any()
    narrow, _ = run(jnp.asarray(x, jnp.float32), jnp.asarray(strides, jnp.float32))
    np.testing.assert_allclose(narrow, y, atol=1e-5)


@pytest.mark.slow
def test_spectral_stride_learns_in_fewer_outputs(rng):
    values = {"x": rng.standard_normal((1, 12, 2)), "stride": np.array([2.4])}
    spectral_stride = recipe("spectral_stride")
    with jax.enable_x64(True):
        check_derivatives(
            lambda v: spectral_stride(v["x"], v["stride"], smoothness=2.0, outputs=9)[0],
            values,
            rng,
        )
        whole, extent, few, same = jax.jit(
            lambda x: (
                *spectral_stride(x, 2.4, smoothness=2.0),
                *spectral_stride(x, 2.4, smoothness=2.0, outputs=11),
            )
        )(jnp.asarray(values["x"]))
    np.testing.assert_array_equal(extent, same)
    np.testing.assert_allclose(few[:, :11], whole[:, :11], atol=1e-12)


@pytest.mark.slow
def test_one_program_for_all_spectral_strides():
    x = jnp.ones((1, 8, 8, 1))
    step = jax.jit(jax.grad(lambda s: jnp.sum(recipe("spectral_stride")(x, s)[0] ** 2)))
    for stride in (1.0, 2.0, 7.5):
        assert np.isfinite(step(jnp.float32(stride)))
    assert step._cache_size() == 1
    jax.export.export(step, platforms=["tpu", "cuda"])(jnp.float32(1))


def test_selected_stride(rng):
    x, w = rng.standard_normal((3, 7, 6, 2)), rng.standard_normal((3, 3, 2, 4))
    bias, asked = rng.standard_normal(4), [4, 1, 2]

    def run(x, w, bias, stride):
        return selected_stride_conv(x, w, stride, strides=(1, 2, 4), bias=bias)

    with jax.enable_x64(True):
        step = jax.jit(run)
        y, extent = step(*map(jnp.asarray, (x, w, bias, asked)))
        other, none = step(*map(jnp.asarray, (x, w, bias, [1, 3, 2])))
    assert y.shape == (3, 7, 6, 4)
    for b, stride in enumerate(asked):
        want = oracle.conv(x[b : b + 1], w, (stride, stride), (1, 1), bias=bias)[0]
        assert tuple(int(n) for n in extent[b]) == want.shape[:-1]
        full = np.zeros((7, 6, 4))
        full[: want.shape[0], : want.shape[1]] = want
        np.testing.assert_allclose(y[b], full, atol=1e-10)
    assert step._cache_size() == 1
    # A stride that is not listed gives NaN.
    assert np.isnan(other[1]).all()
    assert not none[1].any()
    with pytest.raises(InputError, match="stride 3 occurs"):
        run(*map(jnp.asarray, (x, w, bias, [1, 3, 2])))


@pytest.mark.slow
def test_selected_stride_learns(rng):
    values = {"x": rng.standard_normal((2, 5, 2)), "w": rng.standard_normal((3, 2, 3))}
    scores = rng.standard_normal((2, 2))

    def run(v):
        y, _ = selected_stride_conv(v["x"], v["w"], jnp.asarray([2, 1]), strides=(1, 2))
        return y

    with jax.enable_x64(True):
        check_derivatives(run, values, rng)
    x, w = (jnp.asarray(values[k], jnp.float32) for k in "xw")

    def loss(scores):
        stride, gate = choose_size(scores, (1, 2), fallback=2)
        y, _ = selected_stride_conv(x, w, stride, strides=(1, 2))
        return jnp.sum((y * gate[:, None, None]) ** 2)

    step = jax.jit(jax.grad(loss))
    assert np.all(np.asarray(step(jnp.asarray(scores, jnp.float32))) != 0)
    jax.export.export(step, platforms=["tpu", "cuda"])(jnp.asarray(scores, jnp.float32))


def sites(rng, number=60):
    return np.unique(np.c_[rng.integers(0, 2, number), rng.integers(-4, 4, (number, 2))], axis=0)


def dense_at(voxels_in, weight, site):
    """The convolution's numbers at one site, from a dictionary of voxels."""
    table = {tuple(c): f for c, f in voxels_in}
    y = np.zeros(weight.shape[-1])
    for k, o in enumerate(itertools.product((-1, 0, 1), repeat=2)):
        near = (site[0], site[1] + o[0], site[2] + o[1])
        if near in table:
            y += table[near] @ weight[k]
    return y


@pytest.mark.slow
def test_focal(rng):
    rows = sites(rng)
    weight = make_weight(3, 2)
    voxels = make_voxels(rows)
    importance = rng.uniform(0, 1, (voxels.capacity, 9)).astype(np.float32)
    offsets = list(itertools.product((-1, 0, 1), repeat=2))
    grown = {tuple(r) for r in rows.tolist()}
    for row, of in zip(rows.tolist(), importance, strict=False):
        if of[4] > 0.6:
            for o, i in zip(offsets, of, strict=True):
                if i > 0.6:
                    grown.add((row[0], row[1] + o[0], row[2] + o[1]))
    run = jax.jit(
        lambda importance: focal_conv(voxels, weight, importance, threshold=0.6, capacity=256)
    )
    out = run(jnp.asarray(importance))
    assert {tuple(c) for c in out.valid_coords().tolist()} == grown
    gated = voxels.valid_features().astype(np.float64) * importance[: len(rows), 4:5]
    source = list(zip(map(tuple, rows.tolist()), gated, strict=True))
    want = [dense_at(source, np.asarray(weight, np.float64), c) for c in sorted(grown)]
    np.testing.assert_allclose(out.valid_features(), want, atol=1e-5)


@pytest.mark.slow
def test_focal_at_its_limits(rng):
    rows = sites(rng)
    weight, voxels = make_weight(3, 2), make_voxels(rows)
    importance = rng.uniform(0, 1, (voxels.capacity, 9)).astype(np.float32)

    # Threshold 1 is the submanifold convolution, and garbage in the padding has no influence.
    poisoned = jnp.where(voxels.valid[:, None], importance, jnp.nan)
    still = {"threshold": 1.0, "gate": False, "capacity": voxels.capacity}
    same, want = jax.jit(
        lambda importance: (
            focal_conv(voxels, weight, importance, **still),
            spatially_sparse_conv(voxels, weight),
        )
    )(poisoned)
    np.testing.assert_allclose(same.valid_features(), want.valid_features(), atol=1e-6)
    with pytest.raises(CapacityError):
        focal_conv(voxels, weight, jnp.asarray(importance), threshold=0.6, capacity=len(rows))


@pytest.mark.slow
def test_focal_is_one_program_with_gradients(rng):
    rows = sites(rng)
    weight, voxels = make_weight(3, 2), make_voxels(rows)

    def loss(importance, weight, features, threshold):
        given = voxels.replace_features(features)
        out = focal_conv(given, weight, importance, threshold=threshold, capacity=256)
        return jnp.sum(out.features**2), out.num_dropped

    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
    importance = jnp.asarray(rng.uniform(0, 1, (voxels.capacity, 9)), jnp.float32)
    given = (importance, weight, voxels.features)
    for threshold in (1.0, 0.9, 0.0):
        (of_importance, *rest), dropped = step(*given, jnp.float32(threshold))
        assert np.isfinite(of_importance).all()
        assert not np.delete(np.asarray(of_importance), 4, axis=1).any()
        assert np.asarray(of_importance)[: len(rows), 4].any()
        assert all(np.isfinite(g).all() and np.asarray(g).any() for g in rest)
    assert step._cache_size() == 1
    assert int(dropped) == 0  # at most 10 x 10 sites in each of 2 scenes
    jax.export.export(step, platforms=["tpu", "cuda"])(*given, jnp.float32(0.5))


@pytest.mark.slow
def test_positional_stride(rng):
    rows = sites(rng)
    weight, voxels = make_weight(3, 2), make_voxels(rows)
    strides = np.full(voxels.capacity, 1)
    strides[: len(rows)] = rng.choice([0, 1, 2, 4], len(rows))
    keep = [s > 0 and not (c[1] % s or c[2] % s) for c, s in zip(rows, strides, strict=False)]
    with pytest.raises(CapacityError):
        recipe("positional_stride_conv")(voxels, weight, jnp.asarray(strides), capacity=4)
    out, full, few = jax.jit(
        lambda s: (
            recipe("positional_stride_conv")(voxels, weight, s),
            spatially_sparse_conv(voxels, weight),
            recipe("positional_stride_conv")(voxels, weight, s, capacity=4),
        )
    )(jnp.asarray(strides))
    np.testing.assert_array_equal(out.valid_coords(), rows[keep])
    np.testing.assert_allclose(out.valid_features(), full.valid_features()[keep], atol=1e-5)
    assert int(few.num_dropped) == sum(keep) - 4


@pytest.mark.slow
def test_positional_stride_of_a_dense_grid(rng):
    x = jnp.asarray(rng.standard_normal((2, 6, 5, 3)), jnp.float32)
    w = rng.standard_normal((3, 3, 3, 4)).astype(np.float32)
    stride = jnp.asarray(rng.choice([1, 2, 4], (2, 6, 5)))

    @jax.jit
    def f(x, stride):
        voxels = vx.Voxels.from_dense(x, jnp.ones(x.shape[:-1], bool))
        y = recipe("positional_stride_conv")(
            voxels, jnp.asarray(w).reshape(9, 3, 4), stride.reshape(-1), capacity=60
        )
        return y.to_dense((6, 5))

    y = f(x, stride)
    index = np.indices((2, 6, 5))[1:]
    keep = np.all(index % np.asarray(stride)[None] == 0, axis=0)
    want = oracle.conv(np.asarray(x, np.float64), w, (1, 1), (1, 1)) * keep[..., None]
    np.testing.assert_allclose(y, want, atol=1e-5)
    step = jax.jit(jax.grad(lambda x: jnp.sum(f(x, stride) ** 2)))
    jax.export.export(step, platforms=["tpu", "cuda"])(x)


def test_refused(rng):
    voxels, weight = make_voxels(sites(rng)), make_weight(3, 2)
    with pytest.raises(InputError, match="importance of float32"):
        focal_conv(voxels, weight, jnp.ones((voxels.capacity, 8)))
    x = jnp.ones((2, 4, 4, 3))
    with pytest.raises(InputError, match=r"strides=\(\)"):
        selected_stride_conv(x, jnp.ones((3, 3, 3, 1)), jnp.asarray([1, 1]), strides=())
