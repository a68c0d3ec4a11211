"""Products and maps of eager calls on a CPU: the bits of compiled programs, and no program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from problems import needs_native
from samples import make_voxels, make_weight
from voxax.nn.functional import spatially_sparse_conv
from voxax.products import convolve

LAYERS = {
    "submanifold": {"kernel_size": 3},
    "even": {"kernel_size": 2},
    "strided": {"kernel_size": 2, "stride": 2},
    "wide stride": {"kernel_size": 3, "stride": (2, 3, 1)},
    "dilated": {"kernel_size": 3, "dilation": 2},
    "generative": {"kernel_size": 3, "stride": 2, "generative": True, "capacity": 512},
    "clipped": {
        "kernel_size": 3, "stride": 2, "generative": True, "capacity": 512, "spatial_shape": 9,
    },
    "upward": {
        "kernel_size": 2, "stride": 2, "generative": True, "transposed": True, "capacity": 4096,
    },
}  # fmt: skip


def voxels_of(layer, rows=200, channels=4, dtype="float32"):
    voxels = make_voxels(random_cube(rows), channels, dtype)
    return vx.coarsen(voxels, 2) if layer.get("transposed") else voxels


def bits(x):
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def check_bits(eager, compiled):
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(compiled), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("name", LAYERS)
def test_maps_are_those_of_jit(name):
    """Neighbors, outputs, losses and the views of the map, padding included."""
    layer = LAYERS[name]
    voxels = voxels_of(layer)

    def build(voxels):
        kmap = vx.kernel_map(voxels, **layer)
        views = [kmap.view(n) for n in ("transposed_neighbors", "pairs", "pair_starts")]
        return kmap.neighbors, kmap.out_geometry.coords, kmap.out_geometry.count, views

    check_bits(build(voxels), jax.jit(build)(voxels))


def test_a_map_onto_other_voxels_is_that_of_jit():
    fine, coarse = make_voxels(random_cube(150)), make_voxels(random_cube(60), seed=3)
    coarse = vx.Voxels.from_coords(coarse.valid_coords(), coarse.valid_features(), 2, stride=2)

    def build(fine, coarse):
        down = vx.kernel_map(fine, 3, 2, out_voxels=coarse)
        up = vx.kernel_map(coarse, 2, 2, transposed=True, out_voxels=fine)
        return down.neighbors, up.neighbors

    check_bits(build(fine, coarse), jax.jit(build)(fine, coarse))


def gradients(voxels, weight, layer):
    def loss(features, weight):
        out = spatially_sparse_conv(voxels.replace_features(features), weight, **layer)
        return out.features.astype(jnp.float32)

    out, pull = jax.vjp(loss, voxels.features, weight)
    return out, pull(jnp.cos(out))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("groups", [None, 2])
def test_products_have_the_bits_of_jit(groups, dtype):
    with jax.enable_x64(dtype == "float64"):
        for name in ("submanifold", "even", "strided"):
            layer = LAYERS[name]
            voxels = voxels_of(layer, dtype=dtype)
            weight = make_weight(layer["kernel_size"], 3, 4, 6, dtype, groups)
            layer = layer if groups is None else {**layer, "groups": groups}
            compiled = jax.jit(lambda v, w, layer=layer: gradients(v, w, layer))
            check_bits(gradients(voxels, weight, layer), compiled(voxels, weight))


@pytest.mark.parametrize("algorithm", ["implicit_gemm", "explicit_gemm"])
def test_a_pinned_algorithm_runs(algorithm):
    """Also one that has no body for NumPy, whose views come along."""
    voxels, weight = make_voxels(random_cube(100), 4), make_weight(2, 3, 4, 6)
    layer = {"kernel_size": 2, "fwd_algo": algorithm, "bwd_algo": algorithm}
    found = gradients(voxels, weight, layer)
    expected = gradients(voxels, weight, {"kernel_size": 2})
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@needs_native
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mode", ["off", None])
def test_no_program_for_a_new_size(name, mode, programs, monkeypatch):
    """Forward, backward and map, with tuning on as it is by default."""
    if mode is None:
        monkeypatch.delenv("VOXAX_AUTOTUNE")
    layer = {k: v for k, v in LAYERS[name].items() if k != "capacity"}
    weight = make_weight(layer["kernel_size"], 3, 4, 8)

    def run(rows):
        coords = random_cube(rows)
        features, capacity = np.ones((len(coords), 4), np.float32), vx.bucket_capacity(len(coords))
        given = vx.Voxels.from_coords(coords, features, 2, capacity=capacity)
        voxels = vx.coarsen(given, 2) if layer.get("transposed") else given
        spatially_sparse_conv(voxels, weight, **layer)

        def output(features, weight):
            moved = voxels.replace_features(features)
            return spatially_sparse_conv(moved, weight, **layer).features

        out, pull = jax.vjp(output, voxels.features, weight)
        return given.capacity, jax.block_until_ready(pull(out))

    run(100)
    programs.clear()
    sizes = {run(rows)[0] for rows in (130, 200, 300, 420)}
    assert len(sizes) > 2
    assert not programs


def test_a_choice_is_made_once_and_anew_when_told(monkeypatch):
    voxels, weight = make_voxels(random_cube(60), 4), make_weight(3, 3, 4, 6)
    kmap = vx.kernel_map(voxels, 3)

    def choices():
        with vx.tuning.record_choices() as heard:
            convolve(voxels.features, weight, kmap)
        return [choice.algorithm for choice in heard]

    vx.reload_environment()
    first = choices()
    assert len(first) == 1
    assert choices() == []
    monkeypatch.setenv("VOXAX_FWD_ALGO_MODE", "explicit_gemm")
    assert set(choices()) == {"explicit_gemm"}
    monkeypatch.delenv("VOXAX_FWD_ALGO_MODE")
    vx.reload_environment()
    assert choices() == first
