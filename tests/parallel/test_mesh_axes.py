"""Arrays that are split over automatic and explicit axes of a mesh: the results of whole arrays."""

import pytest

from parallel.mesh_jobs import DEVICES, names
from parallel.own_devices import on_devices

# One of each family; the slow test has all.
CHOSEN = (
    *(
        "conv",
        "conv_bias",
        "conv_grouped",
        "depthwise",
        "conv_transposed",
        "conv_generative",
        "union_sum",
        "intersection_max",
    ),
    *("inject", "prune", "top_k", "crop", "dilate", "refine", "coarsen_mean", "to_bev_sum"),
    *("cat_union", "cat_intersection", "elementwise", "curve_order_morton", "positional_stride"),
    *("batch_of_unbatched", "scene", "batch_norm", "group_norm"),
    *("max_pool", "sum_pool"),
    *("global_pool_mean", "global_pool_max", "unpool", "space_to_channel", "channel_to_space"),
    *("dynamic_grouped", "dynamic_selected", "dynamic_masked", "deform_v3", "local"),
    *(
        "selected_stride",
        "radius_search",
        "knn_search",
        "continuous",
        "kernel_point",
        "kernel_point_penalty",
    ),
    *("sparse_grouped", "focal"),
)


def ran(script):
    on_devices(f"from parallel import mesh_jobs\nmesh_jobs.{script}", devices=DEVICES)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_network_on_split_scenes(kind):
    ran(f"check_a_network({kind!r})")


def test_operators_on_split_arrays():
    ran(f"check('Explicit', {CHOSEN}, eagerly=False)")


def test_operators_on_split_arrays_without_a_mesh_in_context():
    chosen = ("conv_bias", "union_sum", "cat_union", "dynamic_grouped", "elementwise", "knn_search")
    ran(f"check('Explicit', {chosen}, eagerly=True)")


def test_operators_mapped_over_an_explicit_axis():
    ran(f"check_mapped({('conv_strided', 'intersection_max', 'max_pool', 'voxelize_mean')})")


def test_modules_with_split_parameters():
    ran("check_modules()")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_every_operator_on_split_arrays(kind):
    ran(f"check({kind!r}, {names()}, eagerly=True)")
