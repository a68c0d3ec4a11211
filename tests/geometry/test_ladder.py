"""On CPUs few capacities, and so few programs, serve scans of many sizes; the same in any order."""

import json

import jax
import numpy as np
import optax
import pytest
from benchmarks.workloads import random_cube
from flax import nnx

import voxax as vx
from voxax.coords import ladder_capacity
from voxax.geometry.default_capacity import default_capacity
from voxax.geometry.level_fit import Fit
from voxax.hardware import HardwareInfo, targeting
from voxax.models.training import Trainer
from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential, SparseConv3d, SubMConv3d

SIZES = np.random.default_rng(0).permutation(np.geomspace(1800, 58_000, 30).astype(int))


def scan(number):
    """A hilly surface of so many voxels."""
    side = int(np.ceil(np.sqrt(number)))
    x, y = (axis.ravel()[:number] for axis in np.meshgrid(np.arange(side), np.arange(side)))
    z = (4 * np.sin(x / 9) * np.cos(y / 7)).astype(np.int32)
    rows = np.stack([np.zeros_like(x), x, y, z], axis=1).astype(np.int32)
    return vx.Voxels.from_coords(rows, np.ones((number, 2), np.float32), 1)


def network():
    rngs = nnx.Rngs(0)
    return Sequential(
        SubMConv3d(2, 4, 3, rngs=rngs),
        BatchNorm(4),
        ReLU(),
        SparseConv3d(4, 4, 2, stride=2, rngs=rngs),
        SparseConv3d(4, 4, 2, stride=2, rngs=rngs),
        Linear(4, 2, rngs=rngs),
    )


@pytest.fixture(scope="module")
def scans():
    return [scan(number) for number in SIZES]


def loss_of(model, voxels):
    return (model(voxels).features ** 2).sum()


@pytest.mark.parametrize("fitted", [False, True])
def test_thirty_sizes_compile_three_programs(fitted, scans):
    model = network()
    plan = vx.Plan.record(model, scans[0])
    if fitted:
        plan = plan.fitted(scans)
    graph, state = nnx.split(model)
    programs = []

    @jax.jit
    def gradients(state, voxels):
        programs.append(voxels.capacity)
        return jax.grad(lambda state: loss_of(nnx.merge(graph, state), voxels))(state)

    for voxels in scans:
        planned = plan.attach(voxels) if fitted else vx.plan(model, voxels)
        assert planned.capacity == voxels.capacity
        jax.block_until_ready(gradients(state, planned))
    assert len(programs) <= 3


def test_thirty_sizes_of_training_compile_three_programs(scans):
    trainer = Trainer(Sequential(SubMConv3d(2, 2, 3, rngs=nnx.Rngs(0))), optax.adamw(1e-3))
    for voxels in scans:
        planned = vx.plan(trainer.model(), voxels)
        labels = np.full(planned.capacity, -1, np.int32)
        labels[: int(planned.count)] = 0
        trainer.step(planned, labels)
    assert trainer.programs <= 3


def test_capacities_do_not_depend_on_the_order(scans):
    plan = vx.Plan.record(network(), scans[0])
    fitted = plan.fitted(scans)
    assert fitted == plan.fitted(scans[::-1])
    assert fitted.fit == Fit.from_json(json.loads(json.dumps(fitted.fit.to_json())))
    assert plan.with_fit(fitted.fit) == fitted
    rungs = fitted.fit.rungs
    assert len(rungs) == 3
    assert 1.05 * 58_000 <= rungs[-1] < 1.06 * 58_000
    assert {fitted.capacity(n) for n in SIZES} == set(rungs)
    assert fitted.capacity(rungs[-1] + 1) == ladder_capacity(rungs[-1] + 1)
    planned = [fitted.attach(v, maps=False, capacity=fitted.capacity(int(v.count))) for v in scans]
    assert len({v.geometry.level_capacities for v in planned}) == 3


def test_levels_that_are_not_fitted_follow_from_the_input():
    """Voxels far apart need more at each level, at most as many as the input."""
    dense, apart = random_cube(300), random_cube(300)
    apart[:, 1:] *= 4
    model = network()
    for rows, shares in ((dense, (0.75, 0.375)), (apart, (1, 1))):
        voxels = vx.Voxels.from_coords(rows, np.ones((len(rows), 2), np.float32), 2)
        levels = dict(vx.plan(model, voxels).geometry.level_capacities)
        capacity = ladder_capacity(len(np.unique(rows, axis=0)))
        assert voxels.capacity == capacity
        strides = zip((2, 4), shares, strict=True)
        assert levels == {(s,) * 3: share * capacity for s, share in strides}
        assert int(vx.plan(model, voxels).num_dropped) == 0


def test_a_scan_that_outgrows_the_samples_keeps_the_rows_of_its_labels():
    rows, apart = random_cube(300), random_cube(300)
    apart[:, 1:] *= 4
    dense, sparse = (
        vx.Voxels.from_coords(r, np.ones((len(r), 2), np.float32), 2) for r in (rows, apart)
    )
    plan = vx.Plan.record(network(), dense).fitted([dense])
    planned = plan.attach(sparse)
    assert planned.capacity == sparse.capacity
    factors = {
        rows / fitted
        for (_, rows), fitted in zip(
            planned.geometry.level_capacities, plan.capacities(dense.capacity)[1:], strict=True
        )
    }
    assert factors <= {2, 4, 8}
    assert len(factors) == 1
    assert int(network()(planned).num_dropped) == 0


def test_generative_levels_take_a_rung_of_their_own(scans):
    grow = SparseConv3d(2, 2, 3, generative=True, rngs=nnx.Rngs(0))
    planned = vx.plan(grow, scans[0])
    ((_, rows),) = planned.geometry.level_capacities
    count = int(grow(planned).count)
    assert rows == ladder_capacity(count)


def test_voxels_beyond_a_given_capacity_are_an_error(scans):
    plan = vx.Plan.record(network(), scans[0])
    with pytest.raises(vx.CapacityError, match="do not fit into capacity 64: give capacity="):
        plan.attach(scans[0], capacity=64)


def test_accelerators_keep_finer_steps(scans):
    with targeting(HardwareInfo("tpu", "TPU v5e")):
        assert default_capacity(40_000) == vx.bucket_capacity(40_000)
        plan = vx.Plan.record(network(), scans[0])
    assert plan.capacity(40_000) == vx.bucket_capacity(40_000)
    assert plan.fitted(scans).fit.rungs == ()
    counts = [len(rows) for rows in plan.level_rows(scans[0].valid_coords())]
    planned = plan.attach(scans[0], maps=False)
    sizes = [rows for _, rows in planned.geometry.level_capacities]
    assert sizes == [vx.bucket_capacity(n) for n in counts[1:]]


@pytest.mark.parametrize(
    "broken",
    [
        None, {}, {"levels": [], "rungs": [0], "least": 0}, {"levels": [], "rungs": 3, "least": 0},
        {"levels": [[1.0, "0", []]], "rungs": [], "least": 0},
        {"levels": [[1.0, 1e9, []]], "rungs": [], "least": 0},
        {"levels": [[1.0, 0.0, [[8]]]], "rungs": [], "least": 0},
        {"levels": [], "rungs": [True], "least": 0}, {"levels": [], "rungs": [], "least": -1},
    ],
    ids=str,
)  # fmt: skip
def test_broken_capacities_of_a_checkpoint_are_refused(broken):
    with pytest.raises(vx.FileFormatError, match="no capacities of levels"):
        Fit.from_json(broken)


def test_capacities_of_another_network_are_refused(scans):
    plan = vx.Plan.record(network(), scans[0])
    with pytest.raises(vx.InputError, match="of 0 levels, and the network has 2"):
        plan.with_fit(Fit(()))
