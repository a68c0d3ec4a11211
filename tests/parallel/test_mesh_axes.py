"""Arrays that are split over automatic and explicit axes of a mesh: the results of whole arrays."""

import pytest

from parallel.mesh_jobs import DEVICES, names
from parallel.own_devices import on_devices
from voxax import _native

# One of each family; the slow test has all.
CHOSEN = (
    *("conv", "depthwise", "conv_transposed", "conv_generative", "union_sum", "intersection_max"),
    *("inject", "prune", "top_k", "crop", "dilate", "refine", "coarsen_mean", "to_bev_sum"),
    *("batch_of_unbatched", "scene", "batch_norm", "group_norm"),
    *("max_pool", "sum_pool"),
    *("global_pool_mean", "global_pool_max", "unpool", "space_to_channel", "channel_to_space"),
    *("dynamic_grouped", "dynamic_selected", "dynamic_masked", "deform_v3", "local"),
    *("selected_stride", "radius_search", "knn_search", "continuous", "kernel_point"),
    *("sparse_grouped", "focal"),
)


def ran(script):
    on_devices(f"from parallel import mesh_jobs\nmesh_jobs.{script}", devices=DEVICES)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_network_on_split_scenes(kind):
    if kind == "Explicit" and _native.unavailable():
        pytest.xfail("without native kernels, vmap over an explicit axis fails in JAX's own rules")
    ran(f"check_a_network({kind!r})")


def test_operators_on_split_arrays():
    ran(f"check('Explicit', {CHOSEN}, eagerly=False)")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_every_operator_on_split_arrays(kind):
    # Eagerly, JAX asks for `jax.set_mesh` around operators on explicit axes.
    ran(f"check({kind!r}, {names(kind)}, eagerly={kind == 'Auto'})")
