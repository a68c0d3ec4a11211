"""Keys: everything that may change which algorithm is fastest, and nothing else."""

import dataclasses
import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_algorithms import make_problem
from lowered import dense_weight, small_voxels

import voxax as vx
from voxax.explanation.inspect import find_products
from voxax.geometry import KernelSpec
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import cache as tuning_cache
from voxax.tuning.entry import density_bucket, family_of, key_of

CROSS = ((0, 0, 0), (0, 0, 1), (0, 1, 0))
SPECS = {
    "size": KernelSpec.make(3, 5),
    "shape": KernelSpec.make(3, (1, 3, 9)),
    "stride": KernelSpec.make(3, 3, stride=2),
    "dilation": KernelSpec.make(3, 3, dilation=2),
    "transposed": KernelSpec.make(3, 3, stride=2).adjoint(),
    "generative": KernelSpec.make(3, 3, generative=True),
    "custom": KernelSpec.make(3, kernel_shape=CROSS),
}
CHANGES = [
    {"product": "dgrad"},
    {"product": "wgrad"},
    {"kind": "grouped"},
    {"kind": "depthwise"},
    {"dtype": "bfloat16"},
    {"dtype": "float64"},
    {"precision": "default"},
    {"num_offsets": 8},
    {"in_channels": 8},
    {"out_channels": 8},
    {"groups": 4},
    {"symmetric": False},
    {"in_capacity": 1000},
    {"out_capacity": 1000},
    *({"spec": spec} for spec in SPECS.values()),
    {"level": (2, 2, 2)},
    {"level": (2, 2, 1)},
    {"level": ()},
    {"density": 0.0},
    {"density": 4.0},
    {"density": 2**2.5},
]


def test_each_change_makes_a_key_of_its_own():
    keys = [key_of(make_problem()), *(key_of(make_problem(**change)) for change in CHANGES)]
    assert len(set(keys)) == len(CHANGES) + 1
    assert all(map(tuning_cache.is_key, keys))


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_equal_problems_have_equal_keys(change):
    """Built from values of their own, not shared with the first."""
    one = make_problem(**change)
    spec = None if one.layer.spec is None else dataclasses.replace(one.layer.spec)
    two = make_problem(**{**change, "level": tuple(n for n in one.layer.level), "spec": spec})
    assert key_of(one) == key_of(two)


def test_a_density_says_more_than_a_level():
    """Check that the level of a counted map is not part of the key."""
    fine, coarse = (make_problem(density=4.0, level=level) for level in ((1, 1, 1), (4, 4, 4)))
    assert key_of(fine) == key_of(coarse)


def test_keys_name_no_platform():
    """Each device has a file of its own."""
    assert key_of(make_problem(platform="tpu")) == key_of(make_problem())


def test_rows_count_by_powers_of_two():
    def keys(*sizes):
        return {key_of(make_problem(rows=rows)) for rows in sizes}

    assert len(keys(513, 600, 1000, 1024)) == 1
    assert len(keys(512, 513, 1025, 0, 1)) == 5


@pytest.mark.parametrize(
    ("pairs", "rows", "bucket"),
    [(0, 9, 0), (9, 0, 0), (100, 100, 1), (118, 100, 1), (120, 100, 2**0.5), (2700, 100, 2**5)],
)
def test_densities_are_powers_of_the_square_root_of_two(pairs, rows, bucket):
    """27 is nearer to 2**4.5 by difference, to 2**5 by ratio: ratios count."""
    assert density_bucket(pairs, rows) == pytest.approx(bucket)


def test_densities_in_one_bucket_share_a_key():
    assert density_bucket(400, 100) == density_bucket(440, 100) == 4
    assert density_bucket(400, 100) != density_bucket(500, 100)
    buckets = {density_bucket(pairs, 1000) for pairs in range(1, 343_000, 7)}
    assert len(buckets) < 40, "few keys for all maps that there are"


def test_keys_of_the_largest_kernels_are_keys():
    box = np.stack(np.meshgrid(*[np.arange(-4, 5) * 7] * 4, indexing="ij"), -1).reshape(-1, 4)
    rng = np.random.default_rng(0)
    far = np.unique(rng.integers(-(10**6), 10**6, (700, 4)), axis=0)
    for offsets in (box, far):
        spec = KernelSpec.make(4, kernel_shape=offsets, stride=2**28, dilation=100, transposed=True)
        problem = make_problem(
            rows=2**31 - 1,
            spec=spec,
            num_offsets=len(offsets),
            in_channels=10**6,
            out_channels=10**6,
            level=(2**30,) * 4,
            precision="bf16_bf16_f32_x9",
            dtype="bfloat16",
            symmetric=False,
        )
        assert tuning_cache.is_key(key_of(problem))
        assert tuning_cache.is_key(key_of(make_problem(spec=spec, level=(), density=1 / 3)))


def test_a_family_is_what_similar_problems_begin_with():
    base = make_problem()
    for change in ({"rows": 10**6}, {"in_channels": 99}, {"level": (8, 8, 8)}, {"density": 2.0}):
        assert key_of(make_problem(**change)).startswith(family_of(base))
    for change in ({"product": "dgrad"}, {"dtype": "float16"}, {"num_offsets": 270}):
        assert not key_of(make_problem(**change)).startswith(family_of(base))


def test_traced_and_counted_maps_have_keys_of_their_own(monkeypatch):
    """Check a layer's problem: its density if the map is concrete, otherwise its level."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", "cached")
    voxels, weight = small_voxels(), dense_weight()
    layer = functools.partial(spatially_sparse_conv, weight=weight)
    host = vx.plan(layer, jax.tree.map(np.asarray, voxels))
    planned = jax.tree.map(jnp.asarray, host)

    def on_a_concrete_map(features):
        return layer(planned.replace_features(features)).features

    (closed,) = find_products(on_a_concrete_map, (voxels.features,), "cpu")
    (traced,) = find_products(lambda v: layer(v).features, (planned,), "cpu")
    found = np.asarray(host.geometry.attached.views[0][0]) >= 0
    assert closed.problem.layer.density == density_bucket(found.sum(), int(voxels.count))
    assert traced.problem.layer.density is None
    assert key_of(traced.problem).endswith("traced level 1x1x1")
    assert key_of(closed.problem) != key_of(traced.problem)
    assert closed.problem.weight_shape == weight.shape


def test_keys_are_the_same_in_every_process():
    program = (
        "from fake_algorithms import make_problem; from voxax.geometry import KernelSpec; "
        "from voxax.tuning.entry import key_of; "
        "print(key_of(make_problem(spec=KernelSpec.make(4, kernel_shape=((0,) * 4, (1,) * 4)))))"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": paths},
    )
    here = make_problem(spec=KernelSpec.make(4, kernel_shape=((0,) * 4, (1,) * 4)))
    assert done.stdout.strip() == key_of(here)
