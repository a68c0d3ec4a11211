"""What is remembered of voxels is gone with what it was computed from; nothing is left behind."""

import copy
import dataclasses
import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from map_builds import builds
from samples import make_voxels, make_weight
from voxax.geometry import host
from voxax.nn.functional import max_pool, mean_pool, unpool
from voxax.nn.functional import spatially_sparse_conv as conv

WEIGHT = make_weight(3, 3, 3, 3)
HALVES = make_weight(2, 3, 3, 3)
LAYERS = {
    "same": lambda v: conv(v, WEIGHT),
    "strided": lambda v: conv(v, HALVES, 2, 2),
    "pooled": lambda v: max_pool(v, 2),
    "generative": lambda v: conv(v, HALVES, 2, generative=True, capacity=2048),
    "there_and_back": lambda v: conv(
        conv(v, HALVES, 2, 2), WEIGHT, 3, 2, transposed=True, out_voxels=v
    ),
}


def fresh(v):
    """Voxels on the same rows that know nothing."""
    return make_voxels(np.asarray(v.valid_coords()), capacity=v.capacity).replace_features(
        jnp.asarray(v.features)
    )


def same(got, want):
    np.testing.assert_array_equal(got.valid_coords(), want.valid_coords())
    np.testing.assert_allclose(got.valid_features(), want.valid_features(), rtol=1e-5, atol=1e-5)


def moved(v, scale=2, shift=0):
    factor, step = jnp.asarray([[1, *[scale] * 3]]), jnp.asarray([[0, *[shift] * 3]])
    coords = jnp.where(v.valid[:, None], v.coords * factor + step, v.coords).astype(jnp.int32)
    return dataclasses.replace(v, geometry=dataclasses.replace(v.geometry, coords=coords))


def on_host(seed=0):
    positions = np.random.default_rng(seed).uniform(-1, 1, (300, 3)).astype(np.float32)
    features = np.random.default_rng(seed).normal(size=(300, 3)).astype(np.float32)
    return host.voxelize_on_host(positions, features, 0.2, capacity=384)[0]


WAYS_TO_COPY = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "flatten": lambda v: jax.tree.map(lambda x: x, v),
    "replace": lambda v: dataclasses.replace(v, geometry=dataclasses.replace(v.geometry)),
}


@pytest.mark.parametrize("way", WAYS_TO_COPY)
def test_copies_give_the_sums_of_their_own_voxels(way):
    for trial in range(5):
        a, b = (make_voxels(random_cube(40, seed=seed)) for seed in (trial, 100 + trial))
        conv(a, WEIGHT, out_voxels=b)
        again = WAYS_TO_COPY[way](a)
        del a, b
        for other in (make_voxels(random_cube(40, seed=200 + trial)) for _ in range(3)):
            same(
                conv(again, WEIGHT, out_voxels=other), conv(fresh(again), WEIGHT, out_voxels=other)
            )


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_carry_a_plan_and_nothing_else(way):
    voxels = make_voxels(random_cube())
    bare = len(pickle.dumps(voxels))
    wanted = [LAYERS[layer](voxels) for layer in ("same", "strided")]
    assert len(pickle.dumps(voxels)) == bare
    assert not WAYS_TO_COPY[way](voxels).geometry.memo.names()
    kmap = vx.kernel_map(voxels)
    size = len(pickle.dumps(kmap))
    kmap.view("pairs")
    assert len(pickle.dumps(kmap)) == size
    planned = WAYS_TO_COPY[way](vx.plan(LAYERS["strided"], voxels))
    with builds(0):
        same(LAYERS["strided"](planned), wanted[1])


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_other_coordinates_have_maps_of_their_own(layer, planned):
    layer = LAYERS[layer]
    voxels = make_voxels(random_cube())
    if planned:
        voxels = vx.plan(layer, voxels)
    layer(voxels)
    for scale, shift in ((2, 0), (1, 1)):
        other = moved(voxels, scale, shift)
        assert other.geometry.attached is None
        same(layer(other), layer(fresh(other)))
        again = moved(pickle.loads(pickle.dumps(voxels)), scale, shift)
        same(layer(again), layer(fresh(other)))
    both = jax.jit(lambda v: (layer(v), layer(moved(v, scale, shift))))
    same(both(voxels)[1], layer(fresh(other)))


def test_other_facts_have_maps_of_their_own():
    voxels = make_voxels(random_cube())
    coarse = LAYERS["strided"](voxels)
    geometry = dataclasses.replace(voxels.geometry, stride=(2, 2, 2))
    assert LAYERS["strided"](dataclasses.replace(voxels, geometry=geometry)).stride == (4, 4, 4)
    geometry = dataclasses.replace(voxels.geometry, batch_size=5)
    assert LAYERS["strided"](dataclasses.replace(voxels, geometry=geometry)).batch_size == 5
    sizes = (((2, 2, 2), coarse.capacity + 8),)
    geometry = dataclasses.replace(voxels.geometry, level_capacities=sizes)
    wider = LAYERS["strided"](dataclasses.replace(voxels, geometry=geometry))
    assert wider.capacity == coarse.capacity + 8


def test_kernel_maps_of_other_tables_have_views_of_their_own():
    kmap = vx.kernel_map(make_voxels(random_cube()), 3)
    pairs = np.asarray(kmap.view("pair_starts"))
    none = dataclasses.replace(kmap, views={"neighbors": jnp.full_like(kmap.neighbors, -1)})
    assert int(none.view("pair_starts")[-1]) == 0 < pairs[-1]


@pytest.mark.parametrize("layer", LAYERS)
def test_numpy_coordinates_written_to_after_a_layer(layer):
    layer = LAYERS[layer]
    voxels = on_host()
    layer(voxels)
    with builds(0):
        layer(voxels)
    voxels.geometry.coords[: int(voxels.count), 1:] *= 2
    same(layer(voxels), layer(fresh(voxels)))
    target = on_host(1)
    conv(voxels, WEIGHT, out_voxels=target)
    target.geometry.coords[: int(target.count), 1:] += 1
    same(conv(voxels, WEIGHT, out_voxels=target), conv(voxels, WEIGHT, out_voxels=fresh(target)))


def test_planned_numpy_coordinates_are_not_written_to():
    plan = vx.Plan.record(LAYERS["strided"], on_host())
    planned = plan.attach(on_host())
    for voxels in (planned, pickle.loads(pickle.dumps(planned)), copy.deepcopy(planned)):
        for array in (voxels.geometry.coords, *jax.tree.leaves(voxels.geometry.attached)):
            with pytest.raises(ValueError, match="read-only"):
                array[:1] = 0


@pytest.mark.parametrize("stride", [2, (1, 2, 4)])
def test_a_plan_keeps_the_stride_of_the_voxels(stride):
    def network(v):
        return LAYERS["there_and_back"](LAYERS["strided"](v))

    rows = random_cube(60)
    features = np.ones((len(rows), 3), np.float32)
    plan = vx.Plan.record(network, make_voxels(rows))
    voxels = vx.Voxels.from_coords(rows, features, 2, stride=stride, voxel_size=0.1)
    for planned in (plan.attach(voxels), plan.fitted([voxels]).attach(voxels, maps=False)):
        assert planned.stride == voxels.stride
        np.testing.assert_array_equal(
            np.asarray(planned.positions())[:50], np.asarray(voxels.positions())[:50]
        )
        out = network(planned)
        assert out.stride == tuple(2 * s for s in voxels.stride)
        same(out, network(voxels))
    with builds(0):
        network(plan.attach(voxels))


def test_a_plan_refuses_other_dimensions():
    plan = vx.Plan.record(LAYERS["strided"], make_voxels(random_cube()))
    flat = make_voxels(np.unique(random_cube()[:, :3], axis=0))
    for use in (plan.attach, lambda v: plan.fitted([v])):
        with pytest.raises(vx.InputError, match=r"3-D voxels.*2-D"):
            use(flat)


USES = {
    **LAYERS,
    "both_kernels": lambda v: conv(
        conv(v, WEIGHT, 3, 2), HALVES, 2, 2, transposed=True, out_voxels=v
    ),
    "unpool": lambda v: unpool(mean_pool(v, 2), v),
    "back_from_generative": lambda v: conv(
        conv(v, HALVES, 2, generative=True), WEIGHT, out_voxels=v
    ),
    "onto_each_other": lambda v: conv(
        conv(v, WEIGHT, out_voxels=(w := make_voxels(random_cube(50)))), WEIGHT, out_voxels=v
    )
    + conv(w, WEIGHT, out_voxels=v),
    "two_levels": lambda v: conv(
        conv(
            conv(low := conv(v, HALVES, 2, 2), HALVES, 2, 2), HALVES, 2, 2, transposed=True,
            out_voxels=low,
        ),
        HALVES, 2, 2, transposed=True, out_voxels=v,
    ),
    "planned": lambda v: LAYERS["there_and_back"](vx.plan(LAYERS["there_and_back"], v)),
    "views": lambda v: vx.kernel_map(v, 2, 2).transpose().view("pairs"),
    "gradient": lambda v: jax.grad(
        lambda x: LAYERS["there_and_back"](v.replace_features(x)).features.sum()
    )(v.features),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_reference_counting_alone_frees_voxels(use):
    USES[use](make_voxels(random_cube()))  # compiles
    gc.collect()
    gc.disable()
    try:
        voxels = make_voxels(random_cube())
        USES[use](voxels)
        kept = weakref.ref(voxels.geometry)
        known = voxels.geometry.memo.values()
        levels = [weakref.ref(m.out_geometry) for m in known if isinstance(m, vx.KernelMap)]
        del known
        del voxels
        assert kept() is None
        assert not [level for level in levels if level() is not None]
    finally:
        gc.enable()
