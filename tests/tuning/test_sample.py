"""Check the data on which problems are measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from fake_algorithms import make_problem

import voxax as vx
from oracle import relative_error
from samples import make_voxels, slow_unless
from voxax.geometry import KernelSpec
from voxax.kernels import lookup
from voxax.kernels.explicit_gemm import xla
from voxax.tuning.occupancy import DEFAULT_KIND
from voxax.tuning.sample import sample_of

VIEWS = dict.fromkeys(("neighbors", "pair_starts", "pairs", "transposed_neighbors"))


@pytest.mark.parametrize("kind", ["dense", "grouped", "depthwise"])
@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
def test_operands_have_the_shapes_of_the_product(product, kind):
    down = KernelSpec.make(3, 2, stride=2)
    problem = make_problem(
        product, kind, out_capacity=24, num_offsets=8, spec=down, symmetric=False
    )
    sample = sample_of(problem, None, VIEWS)
    x, y, w = (48, 4), (24, 4), problem.weight_shape
    shapes = {"forward": (x, w), "dgrad": (y, w), "wgrad": (x, y)}[product]
    assert (sample.a.shape, sample.b.shape) == shapes
    assert {name: array.shape for name, array in sample.views.items()} == {
        "neighbors": (24, 8),
        "transposed_neighbors": (48, 8),
        "pair_starts": (9,),
        "pairs": sample.views["pairs"].shape,
    }
    assert all(isinstance(a, jax.Array) for a in (sample.a, sample.b, *sample.views.values()))
    assert sample.name == DEFAULT_KIND


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "bfloat16", "float16", "int8", "int32", "complex64"]
)
def test_operands_are_of_the_dtype_and_no_two_alike(dtype):
    with jax.enable_x64(dtype == "float64"):
        sample = sample_of(make_problem(dtype=dtype), None, {})
    assert sample.a.dtype == sample.b.dtype == jnp.dtype(dtype)
    assert sample.views == {}
    a, b = np.asarray(sample.a, np.complex128), np.asarray(sample.b, np.complex128)
    assert np.isfinite(a).all()
    assert abs(a.mean()) < 0.3
    assert 0.5 < a.std() < 2.5
    assert not np.array_equal(a.ravel()[:100], b.ravel()[:100])


def test_samples_are_the_same_each_time():
    one, two = (sample_of(make_problem(), None, VIEWS) for _ in range(2))
    assert np.array_equal(one.a, two.a)
    assert all(np.array_equal(one.views[name], two.views[name]) for name in VIEWS)


@pytest.mark.parametrize(
    ("given", "kernel", "stride"),
    [
        slow_unless(False, ("neighbors",), 3, 1),
        slow_unless(False, ("neighbors",), 2, 1),
        slow_unless(False, ("neighbors",), 3, 2),
        (("neighbors",), 2, 2),
        slow_unless(False, ("neighbors", "pairs", "pair_starts"), 2, 2),
    ],
)
def test_all_views_of_the_callers_map_follow_from_one_table(given, kernel, stride):
    voxels = make_voxels(random_cube(40), capacity=48)
    kmap = vx.kernel_map(voxels, kernel, stride, capacity=32 if stride == 2 else None)
    problem = make_problem(
        spec=kmap.spec,
        in_capacity=kmap.in_capacity,
        out_capacity=kmap.out_capacity,
        num_offsets=kmap.num_offsets,
        symmetric=kmap.symmetric,
    )
    sample = sample_of(problem, {name: kmap.view(name) for name in given}, VIEWS)
    assert sample.name == "caller's map"
    for name in ("neighbors", "transposed_neighbors"):
        np.testing.assert_array_equal(sample.views[name], kmap.view(name))
    block = xla.pair_list_parameters(256)
    apply = lookup("explicit_gemm")[0].apply
    through_pairs, through_table = (
        apply(problem, parameters, sample.a, sample.b, sample.views)
        for parameters in (block, xla.IM2COL)
    )
    assert relative_error(through_pairs, through_table) < 1e-5


def test_without_its_table_the_callers_map_is_not_measured_on():
    given = {name: np.zeros((2, 9), np.int32) for name in ("pairs", "pair_starts")}
    assert sample_of(make_problem(), given, VIEWS).name == DEFAULT_KIND


def test_only_what_is_read_is_made():
    assert list(sample_of(make_problem(), None, {"pairs": None}).views) == ["pairs"]


def test_no_rows():
    sample = sample_of(make_problem(rows=0), None, VIEWS)
    assert sample.a.shape == (0, 4)
    assert sample.views["neighbors"].shape == (0, 27)
