"""A product is tuned in the middle of whatever JAX is tracing, and the trace never notices."""

import concurrent.futures
import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_algorithms import Timer, fake, registered
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from lowered import dense_weight, small_voxels

import voxax as vx
from oracle import relative_error
from voxax import _compat
from voxax.kernels.explicit_gemm.xla import IM2COL
from voxax.nn.functional import spatially_sparse_conv
from voxax.nn.modules import SpatiallySparseConv
from voxax.tuning import measure as tuning_measure
from voxax.tuning import record_choices, tuner
from voxax.tuning.entry import Measured


@functools.cache
def planned():
    """The small voxels with their map attached, so that no program has to build it."""
    with jax.ensure_compile_time_eval():
        host = jax.tree.map(np.asarray, small_voxels())
        layer = functools.partial(spatially_sparse_conv, weight=dense_weight())
        return jax.tree.map(jnp.asarray, vx.plan(layer, host))


@pytest.fixture(scope="module")
def known():
    """``(x, w, y, dx, dw)`` of ``sum(y**2) / 2``, in NumPy."""
    x, w = planned().features, dense_weight()
    wide, kernel = np.asarray(x, np.float64), np.asarray(w, np.float64)
    index = np.asarray(planned().geometry.attached.views[0][0])
    found = (index >= 0)[..., None]
    gathered = np.where(found, wide[index], 0)
    y = np.einsum("mkc,kcd->md", gathered, kernel)
    dx = np.zeros_like(wide)
    np.add.at(dx, index, np.where(found, np.einsum("md,kcd->mkc", y, kernel), 0))
    return x, w, y, dx, np.einsum("mkc,md->kcd", gathered, y)


class OnTheSpot:
    """Measures by computing with the sample, eagerly and compiled, and prefers im2col."""

    def __init__(self):
        self.problems = []

    def __call__(self, problem, candidates, reference, sample, budget):
        assert not _compat.is_traced(sample.a, sample.b, sample.views)
        total = jax.jit(lambda a: (a * a).sum())(sample.a) + jnp.abs(sample.b).sum()
        assert float(total) > 0
        self.problems.append(problem)
        return tuple(
            Measured(*c.identity, 1.0 if c.parameters == IM2COL else 2.0, "ok") for c in candidates
        )


@pytest.fixture
def spot(monkeypatch, tmp_path):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning_measure, "_spent", 0.0)
    measure = OnTheSpot()
    monkeypatch.setattr(tuner, "measure", measure)
    # What was compiled before must not be found again.
    with _compat.fresh_trace():
        yield measure


def conv(x, w, voxels=None):
    """On a concrete map, or on the map of traced ``voxels``."""
    voxels = planned() if voxels is None else voxels
    return spatially_sparse_conv(voxels.replace_features(x), w).features


def loss(x, w):
    return (conv(x, w) ** 2).sum() / 2


def two(w):
    return np.stack([w, 2 * w]) if isinstance(w, np.ndarray) else jnp.stack([w, 2 * w])


def in_scan(x, w):
    return jax.lax.scan(lambda c, w: (c + 1, conv(x, w)), 0, two(w))[1]


def in_cond(x, w):
    return jax.lax.cond(w[0, 0, 0] > 1e9, lambda w: 0 * conv(x, w), lambda w: conv(x, w), w)


def in_loop(x, w):
    return jax.lax.fori_loop(0, 2, lambda i, y: y + conv(x, w), jnp.zeros((48, 4)))


def in_shards(x, w):
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = PartitionSpec()

    def shard(x, w):
        return jax.lax.psum(conv(x, w), "d")

    return jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)(x, w)


def with_traced_map(x, w):
    return jax.jit(lambda v, x, w: conv(x, w, v))(planned(), x, w)


def in_module(x, w):
    layer = SpatiallySparseConv(3, 4, 3, use_bias=False)
    layer.weight[...] = w
    voxels = planned().replace_features(x)
    return nnx.jit(lambda layer, voxels: layer(voxels).features)(layer, voxels)


def grads(x, w):
    return jax.grad(loss, (0, 1))(x, w)


def grads_of_checkpoint(x, w):
    return jax.grad(jax.checkpoint(loss), (0, 1))(x, w)


def tangent(x, w):
    return jax.jvp(conv, (x, w), (x, w))[1]


def mapped(x, w):
    return jax.vmap(conv, (None, 0))(x, two(w))


EVERY = {"forward", "dgrad", "wgrad"}
# By name: the function of (x, w), what it gives of (y, dx, dw), and the products in it.
CONTEXTS = {
    "eager": (conv, lambda y, dx, dw: y, {"forward"}),
    "jit": (jax.jit(conv), lambda y, dx, dw: y, {"forward"}),
    "jit of jit": (jax.jit(lambda x, w: jax.jit(conv)(x, w)), lambda y, dx, dw: y, {"forward"}),
    "traced map": (with_traced_map, lambda y, dx, dw: y, {"forward"}),
    "grad": (jax.jit(grads), lambda y, dx, dw: (dx, dw), EVERY),
    "eager grad": (grads, lambda y, dx, dw: (dx, dw), EVERY),
    "remat": (jax.jit(grads_of_checkpoint), lambda y, dx, dw: (dx, dw), EVERY),
    "jvp": (jax.jit(tangent), lambda y, dx, dw: 2 * y, {"forward"}),
    "vmap": (jax.jit(mapped), lambda y, dx, dw: two(y), {"forward"}),
    "eager vmap": (mapped, lambda y, dx, dw: two(y), {"forward"}),
    "scan": (jax.jit(in_scan), lambda y, dx, dw: two(y), {"forward"}),
    "eager scan": (in_scan, lambda y, dx, dw: two(y), {"forward"}),
    "cond": (jax.jit(in_cond), lambda y, dx, dw: y, {"forward"}),
    "loop": (in_loop, lambda y, dx, dw: 2 * y, {"forward"}),
    "shards": (jax.jit(in_shards), lambda y, dx, dw: y, {"forward"}),
    "eager shards": (in_shards, lambda y, dx, dw: y, {"forward"}),
    "nnx.jit": (in_module, lambda y, dx, dw: y, {"forward"}),
}
SLOW = {
    "eager", "jit of jit", "eager grad", "eager vmap", "jvp", "loop", "eager shards", "eager scan",
    "jit",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CONTEXTS]
)
def test_tuning_inside(name, spot, known):
    x, w, *values = known
    function, expected, products = CONTEXTS[name]
    with record_choices() as heard:
        result = function(x, w)
    assert {p.product for p in spot.problems} == products
    assert {c.source for c in heard} <= {"measured", "cached"}
    assert {str(c) for c in heard} == {"explicit_gemm(formulation=im2col)"}
    wanted = expected(*values)
    for got, want in zip(jax.tree.leaves(result), jax.tree.leaves(wanted), strict=True):
        assert relative_error(got, want) < 1e-5
    # Problems are equal, so each is measured once.
    assert len({(p.product, p.layer.kind, p.layer.density) for p in spot.problems}) == len(
        spot.problems
    )


@pytest.mark.parametrize(
    "name", ["grad", *(pytest.param(n, marks=pytest.mark.slow) for n in ("scan", "vmap", "shards"))]
)
def test_no_tracer_leaks(name, spot, known):
    x, w, *_ = known
    with jax.checking_leaks():
        CONTEXTS[name][0](x, w)
    assert spot.problems


def test_abstract_evaluation_measures_nothing(spot, known):
    """Only lowering does: a shape may be asked for where there is no time, and no device."""
    x, w, *_ = known
    with record_choices() as heard:
        assert jax.eval_shape(conv, x, w).shape == (48, 4)
        jax.make_jaxpr(grads)(x, w)
        jax.linearize(jax.jit(conv), x, w)
    assert heard == [] or {c.problem.product for c in heard} == {"forward"}
    assert len(spot.problems) <= 1


def test_without_jit(spot, known):
    x, w, y, *_ = known
    with jax.disable_jit():
        assert relative_error(conv(x, w), y) < 1e-5
    assert len(spot.problems) == 1


@pytest.mark.parametrize(
    ("setting", "value"), [("jax_disable_jit", True), ("jax_transfer_guard", "disallow")]
)
def test_debugging_settings_of_the_whole_process(setting, value, known, monkeypatch, tmp_path):
    """Measured for real: these reach the threads that measure."""
    monkeypatch.setattr(tuning_measure, "_spent", 0.0)
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    x, w, y, *_ = known

    def run(x, w):
        voxels = planned().replace_features(x)
        return spatially_sparse_conv(voxels, w, fwd_algo=["one", "other"]).features

    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        with registered(fake("one"), fake("other")), record_choices() as heard:
            result = jax.jit(run)(x, w)
    finally:
        jax.config.update(setting, before)
    assert [c.source for c in heard] == ["measured"]
    assert {m.verdict for m in heard[0].entry.measured} <= {"ok", "slow"}
    assert relative_error(result, y) < 1e-5


def test_in_64_bits(spot, known, monkeypatch):
    """The thread that measures has the same types."""
    seen = []
    inner = tuner.measure

    def measure(problem, candidates, reference, sample, budget):
        seen.append((sample.a.dtype, jnp.arange(3.0).dtype))
        return inner(problem, candidates, reference, sample, tuning_measure)

    monkeypatch.setattr(tuner, "measure", measure)
    x, w, y, *_ = known
    with jax.enable_x64(True):
        x, w = x.astype(jnp.float64), w.astype(jnp.float64)
        got = jax.jit(conv)(x, w)
    assert got.dtype == jnp.float64
    assert seen == [(jnp.float64, jnp.float64)]
    assert relative_error(got, y) < 1e-5


def test_two_threads_compile_at_once(spot, known):
    x, w, y, *_ = known
    token = _compat.fresh_trace

    def work(factor):
        with token(), record_choices() as heard:
            result = jax.jit(lambda x, w: factor * conv(x, w))(x, w)
        return result, [c.algorithm for c in heard]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        (one, first), (other, second) = pool.map(work, (1.0, 3.0))
    assert first == second == ["explicit_gemm"]
    assert len(spot.problems) == 1
    assert relative_error(one, y) < 1e-5
    assert relative_error(other, 3 * y) < 1e-5


def test_a_compiled_function_asks_no_more(spot, known, monkeypatch):
    x, w, *_ = known
    function = jax.jit(conv)
    function(x, w)
    Timer(monkeypatch)
    with record_choices() as heard:
        function(x, w)
    assert heard == []
    with _compat.fresh_trace(), record_choices() as heard:
        function(x, w)
    assert [c.source for c in heard] == ["cached"]


SHARDED = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from test_tracing import dense_weight, planned
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import record_choices

assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()), ("d",))
weight = dense_weight()
stack = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), planned())

def shard(weight, voxels):
    voxels = jax.tree.map(lambda leaf: leaf[0], voxels)
    y = spatially_sparse_conv(voxels, weight).features
    return jax.lax.psum((y ** 2).sum(), "d")

def step(weight, voxels):
    specs = {"in_specs": (P(), P("d")), "out_specs": P(), "check_vma": False}
    run = jax.shard_map(shard, mesh=mesh, **specs)
    return run(weight, voxels)

with record_choices() as heard:
    tuned = jax.jit(jax.value_and_grad(step))(weight, stack)
assert {c.source for c in heard} == {"measured"}, heard
assert {c.problem.product for c in heard} == {"forward", "wgrad"}, heard
os.environ["VOXAX_AUTOTUNE"] = "off"
off = jax.jit(jax.value_and_grad(lambda *a: step(*a)))(weight, stack)
for a, b in zip(jax.tree.leaves(tuned), jax.tree.leaves(off)):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
print("done")
"""


@pytest.mark.slow
def test_four_devices(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SHARDED],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "VOXAX_AUTOTUNE": "on",
            "VOXAX_CACHE_DIR": str(tmp_path),
        },
    )
    assert done.stdout == "done\n", done.stderr
