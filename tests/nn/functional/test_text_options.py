"""Options that are names: each function refuses one it does not know, and lists those it knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.coords import sort_by_curve
from voxax.nn import functional as F
from voxax.nn import modules as M
from voxax.parallel import SceneSplit
from voxax.products.convolution import precision_name

ROWS = np.array([[0, 0, 0], [0, 1, 2]], np.int32)
POINTS = np.array([[0.5, 0.5], [1.5, 1.0]], np.float32)
WEIGHT = jnp.ones((9, 2, 2), jnp.float32)
GRID = jnp.ones((1, 3, 3, 2), jnp.float32)
KERNEL = jnp.ones((3, 3, 2, 2), jnp.float32)


def make():
    return vx.Voxels.from_coords(ROWS, np.ones((2, 2), np.float32), capacity=4)


def around():
    cloud = vx.Points.make(POINTS, np.ones((2, 2), np.float32))
    return cloud, vx.knn_search(cloud, k=2)


def continuous(**options):
    cloud, near = around()
    return F.continuous_conv(cloud, KERNEL, near, radius=1.0, **options)


def kernel_points(**options):
    cloud, near = around()
    places = F.kernel_point_positions(4, 2).astype(np.float32)
    weight = jnp.ones((4, 2, 2), jnp.float32)
    return F.kernel_point_conv(cloud, weight, near, places, extent=1.0, **options)


def three():
    """Voxels with three channels."""
    return make().map(lambda f: jnp.repeat(f[:, :1], 3, axis=1))


def deformed(**options):
    offsets = jnp.zeros((1, 3, 3, 9, 2), jnp.float32)
    mask = jnp.ones((1, 3, 3, 9), jnp.float32)
    return F.deform_conv(GRID, KERNEL, offsets, mask=mask, **options)


OPTIONS = {
    "from_coords reduction": lambda name: vx.Voxels.from_coords(
        ROWS, np.ones((2, 1), np.float32), reduction=name
    ),
    "voxelize reduction": lambda name: vx.voxelize(POINTS, None, 0.1, reduction=name),
    "coarsen reduction": lambda name: vx.coarsen(make(), reduction=name),
    "to_bev reduction": lambda name: vx.to_bev(make(), reduction=name),
    "union reduction": lambda name: vx.union(make(), make(), reduction=name),
    "intersection reduction": lambda name: vx.intersection(make(), make(), reduction=name),
    "cat join": lambda name: vx.cat([make(), make()], join=name),
    "curve_order curve": lambda name: vx.curve_order(make(), name),
    "sort_by_curve curve": lambda name: sort_by_curve(jnp.asarray(ROWS), name),
    "cut_patches fill": lambda name: vx.cut_patches(make(), 4, fill=name),
    "serial_order order": lambda name: F.serial_order(make(), name),
    "scene_attention precision": lambda name: F.scene_attention(three(), 1, precision=name),
    "scene_attention algorithm": lambda name: F.scene_attention(three(), 1, algorithm=name),
    "GridPool reduction": lambda name: M.GridPool(2, 2, reduction=name),
    "devoxelize interpolation": lambda name: vx.devoxelize(make(), POINTS, interpolation=name),
    "splat interpolation": lambda name: vx.splat(
        POINTS, np.ones((2, 1), np.float32), make(), interpolation=name
    ),
    "radius_search algorithm": lambda name: vx.radius_search(
        around()[0], radius=1.0, capacity=4, algorithm=name
    ),
    "kernel_map kernel_shape": lambda name: vx.kernel_map(make(), 3, kernel_shape=name),
    "dilate kernel_shape": lambda name: vx.dilate(make(), kernel_shape=name),
    "global_pool reduction": lambda name: F.global_pool(make(), name),
    "GlobalPool reduction": lambda name: M.GlobalPool(name)(make()),
    "dropout mode": lambda name: F.dropout(make(), 0.5, jax.random.key(0), name),
    "Dropout mode": lambda name: M.Dropout(0.5, mode=name),
    "VoxelFeatureEncoder reduction": lambda name: M.VoxelFeatureEncoder(0, 2, 1.0, reduction=name),
    "continuous_conv mapping": lambda name: continuous(mapping=name),
    "continuous_conv precision": lambda name: continuous(precision=name),
    "kernel_point_conv influence": lambda name: kernel_points(influence=name),
    "kernel_point_conv precision": lambda name: kernel_points(precision=name),
    "deform_conv modulation": lambda name: deformed(modulation=name),
    "deform_conv precision": lambda name: deformed(precision=name),
    "spatially_sparse_conv fwd_algo": lambda name: F.spatially_sparse_conv(
        make(), WEIGHT, 3, fwd_algo=name
    ),
    "spatially_sparse_conv precision": lambda name: F.spatially_sparse_conv(
        make(), WEIGHT, 3, precision=name
    ),
    "depthwise_conv precision": lambda name: F.depthwise_conv(
        make(), WEIGHT[:, 0], 3, precision=name
    ),
    "focal_conv precision": lambda name: F.focal_conv(
        make(), WEIGHT, jnp.zeros((4, 9), jnp.float32), precision=name
    ),
    "sparse_dynamic_conv algorithm": lambda name: F.sparse_dynamic_conv(
        make(), WEIGHT, size=2, algorithm=name
    ),
    "sparse_dynamic_conv precision": lambda name: F.sparse_dynamic_conv(
        make(), WEIGHT, size=2, precision=name
    ),
    "dynamic_conv algorithm": lambda name: F.dynamic_conv(GRID, KERNEL, size=2, algorithm=name),
    "dynamic_conv precision": lambda name: F.dynamic_conv(GRID, KERNEL, size=2, precision=name),
    "Linear precision": lambda name: M.Linear(2, 2, precision=name),
    "algorithms": lambda name: vx.algorithms(forward=name).__enter__(),
    "SceneSplit order": lambda name: SceneSplit.record(lambda v: v, make(), 2, order=name),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_unknown_name_is_refused(name):
    with pytest.raises(vx.VoxaxError, match=r"bogus(?s:.*)(known|expected)"):
        OPTIONS[name]("bogus")


@pytest.mark.parametrize("precision", ["float32", "highest", jax.lax.Precision.HIGHEST, None])
def test_aliases_of_a_precision_are_one_problem(precision):
    assert precision_name(precision) == "highest"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("fastest", "default"),
        ("bfloat16", "default"),
        ("tensorfloat32", "high"),
        ("bfloat16_3x", "high"),
        ("TF32_TF32_F32", "TF32_TF32_F32"),
        (jax.lax.DotAlgorithmPreset.BF16_BF16_F32, "BF16_BF16_F32"),
    ],
)
def test_names_of_jax_are_known(alias, name):
    assert precision_name(alias) == name


def test_two_precisions_are_no_precision():
    with pytest.raises(TypeError, match="both operands share one precision"):
        precision_name(("high", "default"))
