"""``vx.tune``: everything a function needs is measured, on the real maps, before it runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_find_products import conv, loss, sharded, voxels, weight

import voxax as vx
from voxax import _compat
from voxax.errors import InputError
from voxax.hardware import hardware_of
from voxax.nn.functional import spatially_sparse_conv
from voxax.nn.modules import SpatiallySparseConv
from voxax.tuning import measure, record_choices, tuner
from voxax.tuning.cache import cache_for, device_name
from voxax.tuning.entry import Measured

pytestmark = pytest.mark.usefixtures("portable")


class Quick:
    """Makes up times; im2col wins. Notes what was measured, and on what."""

    def __init__(self):
        self.calls = []

    def __call__(self, problem, candidates, reference, sample, budget):
        assert budget == float("inf"), "there is no time budget"
        assert not _compat.is_traced(sample.a, sample.views)
        self.calls.append((problem, sample))
        return tuple(
            Measured(*c.identity, 1e-3 if "im2col" in str(c) else 2e-3, "ok") for c in candidates
        )

    @property
    def measured(self):
        return [(p.product, s.name) for p, s in self.calls]


@pytest.fixture
def quick(monkeypatch, tmp_path):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "_spent", 0.0)
    made = Quick()
    monkeypatch.setattr(tuner, "measure", made)
    return made


def choices_of(function, *args):
    with _compat.fresh_trace(), record_choices() as heard:
        jax.jit(function).lower(*args)
    return [(c.problem.product, str(c), c.source) for c in heard]


IM2COL = "explicit_gemm(formulation=im2col)"


def test_concrete_arguments_are_measured_on_their_own_maps(quick):
    """Check that the compiled function uses the result without measuring."""

    def step(w, v):
        return jax.value_and_grad(loss)(w, v)

    report = vx.tune(step, weight(), voxels())
    assert [(r.choice.problem.product, r.choice.source) for r in report] == [
        ("forward", "cached"), ("wgrad", "cached"),
    ]  # fmt: skip
    assert {str(r.choice) for r in report} == {IM2COL}
    assert {name for _, name in quick.measured} == {"caller's map"}
    real = vx.kernel_map(voxels(), 3).neighbors
    for problem, sample in quick.calls:
        np.testing.assert_array_equal(sample.views["neighbors"], real)
        assert problem.product in ("forward", "wgrad")
    assert report.seconds > 0
    assert "s of measuring" in str(report)

    count = len(quick.calls)
    assert choices_of(step, weight(), voxels()) == [
        ("forward", IM2COL, "cached"), ("wgrad", IM2COL, "cached"),
    ]  # fmt: skip
    # Eager calls, and functions that close over such a map, know its density.
    assert choices_of(loss, weight()) == [("forward", IM2COL, "cached")]
    assert len(quick.calls) == count


def test_abstract_arguments_are_measured_on_a_recorded_occupancy(quick):
    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weight(), voxels()))
    (row,) = vx.tune(loss, *abstract)
    assert quick.measured == [("forward", "lidar")]
    assert row.choice.problem.layer.density is None
    assert choices_of(loss, weight(), voxels()) == [("forward", IM2COL, "cached")]
    assert len(quick.calls) == 1


def step_in(name, w, v=None):
    """The loss in a loop, a branch or a shard, on ``v``'s map or on one that is closed over."""
    if name == "scan":
        return jax.lax.scan(lambda c, w: (c + loss(w, v), None), 0.0, jnp.stack([w, w]))[0]
    if name == "cond":
        one, other = (lambda w, by=by: by * loss(w, v) for by in (1.0, 2.0))
        return jax.lax.cond(w[0, 0, 0] > 0, one, other, w)
    return sharded(w)


@pytest.mark.parametrize("name", ["scan", "cond"])
def test_products_in_loops_are_measured_on_a_recorded_occupancy(name, quick):
    function = functools.partial(step_in, name)
    report = vx.tune(function, weight(), voxels())
    assert quick.measured == [("forward", "lidar")], "equal problems once"
    assert {r.choice.source for r in report} == {"cached"}
    assert len(report) == {"scan": 1, "cond": 2}[name]
    assert {c[1:] for c in choices_of(function, weight(), voxels())} == {(IM2COL, "cached")}


@pytest.mark.parametrize("name", ["scan", "cond", "shards"])
def test_products_in_loops_on_a_map_that_is_closed_over(name, quick):
    function = functools.partial(step_in, name)
    vx.tune(function, weight())
    assert quick.measured == [("forward", "caller's map")]
    assert {c[1:] for c in choices_of(function, weight())} == {(IM2COL, "cached")}


def test_the_real_map_has_the_last_word(quick):
    """Check that a result for a recorded occupancy is not used for the caller's map."""
    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weight(), voxels()))
    vx.tune(loss, *abstract)
    (row,) = vx.tune(loss, weight(), voxels())
    assert quick.measured == [("forward", "lidar"), ("forward", "caller's map")]
    assert row.choice.entry.sample == "caller's map"
    vx.tune(loss, weight(), voxels())
    vx.tune(loss, *abstract)
    assert len(quick.calls) == 2


def test_it_measures_what_is_unknown_or_asked_for_anew(quick):
    vx.tune(loss, weight())
    assert len(quick.calls) == 1
    vx.tune(loss, weight())
    assert len(quick.calls) == 1
    vx.tune(loss, weight(), anew=True)
    assert len(quick.calls) == 2


def test_equal_problems_with_different_requests_are_all_measured(quick):
    """A pinned layer comes first, and has nothing to measure."""

    def fn(w):
        pinned = conv(w, fwd_algo="implicit_gemm")
        return pinned + conv(w, fwd_algo="explicit_gemm") + conv(w)

    report = vx.tune(fn, weight())
    assert [(r.choice.algorithm, r.choice.source) for r in report] == [
        ("implicit_gemm", "pinned"),
        ("explicit_gemm", "cached"),
        ("explicit_gemm", "cached"),
    ]
    sizes = [len(cache.get(k).measured) for cache, k in everything_known()]
    assert sizes == [3]


def everything_known():
    cache = cache_for(device_name(hardware_of("cpu")[0]))
    return [(cache, key) for key, _ in cache.items()]


def test_modules_and_training_steps(quick):
    layer = SpatiallySparseConv(3, 3, 3)
    (row,) = vx.tune(layer, voxels())
    assert row.scope == "SpatiallySparseConv/spatially_sparse_conv"
    before = jax.tree.map(np.asarray, nnx.state(layer))

    @nnx.jit
    def step(layer, v):
        value, slope = nnx.value_and_grad(lambda m: (m(v).features ** 2).sum())(layer)
        layer.weight[...] -= slope.weight[...]
        return value

    report = vx.tune(step, layer, voxels())
    assert [r.choice.problem.product for r in report] == ["forward", "wgrad"]
    assert [p.product for p, _ in quick.calls] == ["forward", "wgrad"], "forward was known"
    after = jax.tree.map(np.asarray, nnx.state(layer))
    assert jax.tree.all(jax.tree.map(np.array_equal, before, after)), "a step was not taken"
    count = len(quick.calls)
    step(layer, voxels())
    assert len(quick.calls) == count


def test_maps_that_the_function_makes_itself(quick):
    """Check strided levels, whose maps are not arguments of the function."""

    def fn(v, w):
        down = spatially_sparse_conv(v, w[:8], 2, 2, capacity=48)
        return spatially_sparse_conv(down, w, 3).features

    report = vx.tune(fn, voxels(), weight())
    assert [r.choice.problem.layer.level for r in report] == [(1, 1, 1), (2, 2, 2)]
    assert {name for _, name in quick.measured} == {"caller's map"}
    tables = {s.views["neighbors"].shape for _, s in quick.calls}
    assert tables == {(48, 8), (48, 27)}


@pytest.mark.slow
def test_for_real(monkeypatch, tmp_path):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "_spent", 0.0)
    report = vx.tune(jax.grad(loss), weight())
    assert {r.choice.source for r in report} == {"cached"}
    for row in report:
        entry = row.choice.entry
        assert entry.sample == "caller's map"
        assert {m.verdict for m in entry.measured} <= {"ok", "slow"}
        assert row.choice.seconds == min(m.seconds for m in entry.measured)
    assert 0 < measure.spent() <= report.seconds
    spent = measure.spent()
    jax.jit(jax.grad(loss))(weight())
    assert measure.spent() == spent


def test_functions_without_convolutions_are_errors(quick):
    with pytest.raises(InputError, match="no sparse convolution"):
        vx.tune(jnp.sin, weight())
    with pytest.raises(InputError, match="no sparse convolution"):
        vx.tune(functools.partial(jnp.add, 1.0), weight())
    assert quick.calls == []


@pytest.mark.parametrize("budget", ["3", float("nan"), -1])
def test_budgets_that_are_none(quick, budget):
    with pytest.raises(InputError, match=r"budget .* must be"):
        vx.tune(loss, weight(), budget=budget)
    assert quick.calls == []
