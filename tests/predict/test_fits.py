"""Memory is predicted from shapes, compared with what there is, and refused in words."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.own_process import in_own_process
from flax import nnx

import voxax as vx
from voxax.errors import CapacityError, InputError, VoxaxError
from voxax.hardware.tpu import ENVIRONMENT
from voxax.nn.functional import spatially_sparse_conv
from voxax.nn.modules import BatchNorm, Sequential, SubMConv3d
from voxax.predict import MemoryLimitError, MemoryReport
from voxax.predict.memory import buckets_up_to, largest_fitting, resized

MIB = 1 << 20


@pytest.fixture(scope="module")
def voxels():
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(0, 24, (1200, 3)), axis=0).astype(np.int32)
    coords = np.concatenate([np.zeros((len(coords), 1), np.int32), coords], 1)
    features = rng.normal(size=(len(coords), 4)).astype(np.float32)
    return vx.Voxels.from_coords(coords, features, batch_size=1, capacity=1280)


@pytest.fixture(scope="module")
def module():
    return Sequential(SubMConv3d(4, 8, 3), BatchNorm(8), SubMConv3d(8, 4, 3))


def at(voxels, capacity):
    """Voxels of another capacity; only their shapes matter."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), resized(voxels, capacity))


def wide(v):
    """Memory in proportion to the capacity: 2 KiB of each row."""
    return dataclasses.replace(v, features=jnp.tile(v.features, (1, 128)))


def test_equals_the_compilers_figure(voxels):
    report = vx.fits(wide, voxels)
    stats = jax.jit(wide).lower(voxels).compile().memory_analysis()
    assert report.argument_bytes == stats.argument_size_in_bytes
    assert report.output_bytes == stats.output_size_in_bytes
    assert report.temporary_bytes == stats.temp_size_in_bytes
    assert report.program_bytes == sum(
        (stats.argument_size_in_bytes, stats.output_size_in_bytes, stats.temp_size_in_bytes)
    )
    assert report.output_bytes >= 1280 * 512 * 4
    assert report.resident_bytes > 0
    assert report.needed_bytes == report.program_bytes - report.resident_bytes
    assert report.peak_bytes >= report.baseline_bytes + report.needed_bytes
    assert report
    assert report.raise_if_not() is report
    assert report.suggested_capacity is None
    assert report.programs == 1


def test_prints_and_is_frozen(voxels):
    report = vx.fits(wide, voxels)
    text = str(report)
    assert text.startswith("fits: capacity 1280 (batch of 1) needs ")
    for word in ("arguments", "temporaries", "in use before", "peak", "available"):
        assert word in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.capacity = 1


@pytest.mark.lax_promotion  # optax promotes step counts
def test_module_is_not_changed_and_training_needs_more(voxels, module):
    module.eval()
    before = jax.tree.map(np.array, nnx.split(module)[1])
    voxels = vx.plan(module, voxels)  # maps built inside would take long to compile
    evaluation = vx.fits(module, voxels)
    training = vx.fits(module, voxels, training=True)
    with_state = vx.fits(module, voxels, training=True, optimizer=optax.adam(1e-3))
    parameters = sum(p.nbytes for p in jax.tree.leaves(nnx.state(module, nnx.Param)))
    assert training.program_bytes > evaluation.program_bytes
    # Two moments in, two moments out.
    assert with_state.argument_bytes >= training.argument_bytes + 2 * parameters
    assert with_state.output_bytes >= training.output_bytes + 2 * parameters
    jax.tree.map(np.testing.assert_array_equal, before, nnx.split(module)[1])


def test_parameters_beside_the_function(voxels):
    weight = jnp.ones((1, 4, 4))
    conv = lambda w, v: spatially_sparse_conv(v, w, 1)  # noqa: E731
    given = vx.fits(conv, voxels, params=weight)
    assert given.argument_bytes >= weight.nbytes
    trained = vx.fits(
        conv, voxels, params=weight, training=True, loss=lambda out: jnp.sum(out.features)
    )
    assert trained.output_bytes > given.output_bytes


def test_refused_before_anything_is_allocated(voxels):
    before = {id(x) for x in jax.live_arrays()}
    report = vx.fits(wide, voxels, available=1 * MIB, margin=0.0)
    assert not report
    assert {id(x) for x in jax.live_arrays()} <= before
    suggested = report.suggested_capacity
    assert suggested < 1280
    assert suggested == vx.bucket_capacity(suggested)
    message = (
        rf"capacity 1280 \(batch of 1\) needs [\d.]+ MiB on cpu, available are 1\.0 MiB: the "
        rf"largest capacity that fits is {suggested}, or a narrower network"
    )
    with pytest.raises(MemoryLimitError, match=message) as caught:
        report.raise_if_not()
    assert isinstance(caught.value, CapacityError)
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, VoxaxError)
    assert "does not fit" in str(report)


def test_the_suggestion_fits_and_twice_is_refused(voxels):
    budget = 2 * MIB
    report = vx.fits(wide, voxels, available=budget, margin=0.0)
    suggested = report.suggested_capacity

    small = vx.fits(wide, at(voxels, suggested), available=budget, margin=0.0)
    assert small.raise_if_not().needed_bytes <= budget
    assert jax.jit(wide)(at(voxels, suggested)).features.shape == (suggested, 512)
    following = vx.fits(
        wide, at(voxels, vx.bucket_capacity(suggested + 1)), available=budget, margin=0.0
    )
    with pytest.raises(MemoryLimitError, match=f"that fits is {suggested}"):
        following.raise_if_not()
    with pytest.raises(MemoryLimitError, match=f"that fits is {suggested}"):
        vx.fits(wide, at(voxels, 2 * suggested), available=budget, margin=0.0).raise_if_not()


def test_larger_ones_are_suggested_on_demand(voxels):
    report = vx.fits(wide, voxels, available=64 * MIB, suggest=True)
    assert report
    assert report.suggested_capacity > 1280
    assert report.suggested_batch == report.suggested_capacity // 1280
    assert "scenes of this size" in str(report)
    assert vx.fits(wide, voxels, available=1 * MIB, suggest=False).suggested_capacity is None


def test_margin_is_left_alone(voxels):
    need = vx.fits(wide, voxels).needed_bytes
    assert vx.fits(wide, voxels, available=need, margin=0.0)
    assert not vx.fits(wide, voxels, available=need, margin=0.1, suggest=False)
    assert vx.fits(wide, voxels, available=int(need / 0.89), margin=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": optax.sgd(1.0)}, "belong to a training step: give training=True"),
        ({"loss": jnp.sum}, "belong to a training step"),
        ({"margin": 1.0}, r"margin=1\.0 must be a number of at least 0 and less than 1"),
        ({"margin": "0.1"}, r"margin='0\.1' must be a number"),
        ({"available": "3GB"}, "available '3GB' must be a finite number"),
        ({"available": -5}, "available -5 must be at least 0"),
        ({"training": True, "optimizer": "adam"}, "optimizer='adam' has no init and update"),
        ({"device": "cpu"}, r"device='cpu': give a device of JAX"),
    ],
)
def test_mistakes(voxels, options, message):
    with pytest.raises(InputError, match=message):
        vx.fits(wide, voxels, **options)


def test_device_whose_memory_is_unknown(voxels, monkeypatch):
    module = sys.modules["voxax.predict.memory"]
    describe = module.describe
    silent = lambda d: dataclasses.replace(describe(d), memory_bytes=None)  # noqa: E731
    monkeypatch.setattr(module, "describe", silent)
    report = vx.fits(wide, voxels, suggest=True)
    assert report.available_bytes is None
    assert report
    assert "whose free memory is unknown" in str(report)


def test_compiler_that_refuses(voxels, monkeypatch):
    """Raise the TPU compiler's error for more memory than the chip has."""
    words = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 21.25G of 15.75G hbm. Exceeded hbm capacity by 5.50G."
    )
    lower = jax.stages.Lowered.compile

    def compile(self, *arguments):
        if any(1280 in leaf.shape for leaf in jax.tree.leaves(self.args_info)):
            raise RuntimeError(words)
        return lower(self, *arguments)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    report = vx.fits(wide, voxels, available=64 * MIB)
    assert not report
    assert report.needed_bytes == int(21.25 * 2**30)
    assert 0 < report.suggested_capacity < 1280
    with pytest.raises(MemoryLimitError, match=r"Used 21\.25G of 15\.75G hbm.*capacity that fits"):
        report.raise_if_not()


def test_other_compile_errors_are_not_hidden(voxels):
    def broken(v):
        raise KeyError("the model's own")

    with pytest.raises(KeyError, match="the model's own"):
        vx.fits(broken, voxels)


def test_resized_with_attached_maps(voxels, module):
    planned = vx.plan(module, voxels)
    half = resized(planned, 640)
    assert half.features.shape == (640, 4)
    assert half.geometry.attached.views[0][0].shape[0] == 640
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(half))
    assert half.geometry.attached.records == planned.geometry.attached.records
    assert vx.fits(module, half)


def test_buckets():
    assert buckets_up_to(40) == [16, 20, 24, 28, 32, 40]


@pytest.mark.parametrize("start", [16, 100, 1280, 5000])
@pytest.mark.parametrize("limit", [30_000, 500_000, 40_000_000])
def test_search_finds_the_largest_on_a_line(start, limit):
    calls = []

    def need(capacity):
        calls.append(capacity)
        return 20_000 + 123 * capacity

    found = largest_fitting(need, start, limit)
    best = max((b for b in buckets_up_to(64 * start) if 20_000 + 123 * b <= limit), default=None)
    assert found == best
    assert len(calls) <= 6


def test_search_where_nothing_fits():
    assert largest_fitting(lambda c: None, 1280, 100) is None
    assert largest_fitting(lambda c: 101, 1280, 100) is None


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
def test_tpu_that_is_not_there(name):
    """The figure is the TPU compiler's, the memory the chip's; in a process of its own."""
    script = f"""
import json, jax, numpy as np, voxax as vx
from jax.experimental import topologies
from voxax.nn.modules import SubMConv3d
device = topologies.get_topology_desc(platform="tpu", topology_name={name!r}).devices[0]
coords = np.zeros((4096, 4), np.int32)
coords[:, 1] = np.arange(4096)
voxels = vx.Voxels.from_coords(coords, np.ones((4096, 32), np.float32), batch_size=1, capacity=4096)
conv = SubMConv3d(32, 32, 3)
report = vx.fits(conv, voxels, device=device)
from flax import nnx
graph, state = nnx.split(conv)
s = jax.sharding.SingleDeviceSharding(device)
shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, voxels))
run = jax.jit(lambda p, v: nnx.merge(graph, p)(v), in_shardings=s, out_shardings=s)
m = run.lower(*shapes).compile().memory_analysis()
total = m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes
total += m.generated_code_size_in_bytes - m.alias_size_in_bytes
print(json.dumps([report.program_bytes, total, report.needed_bytes, report.available_bytes,
                  vx.hardware.describe(device).memory_bytes, bool(report)]))
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        check=True,
    )
    figure, compiler, needed, available, memory, fit = json.loads(result.stdout.splitlines()[-1])
    assert figure == compiler == needed
    assert available == memory > 10**10
    assert fit


@pytest.mark.slow
def test_prediction_of_the_peak():
    """Within 15 % of what the system measures, in a process of its own."""
    run = in_own_process("memory_prediction", "one", 0.25, 10_000, False)
    assert abs(run["error"]) < 0.15


def test_report_is_exported():
    assert MemoryReport.__module__ == "voxax.predict.memory"
    assert vx.hardware.describe is not None
