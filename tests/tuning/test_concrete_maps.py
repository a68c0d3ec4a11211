"""Concrete maps, remembered weakly until a product on one like them is measured."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_algorithms import make_problem
from lowered import dense_weight, small_voxels

import voxax as vx
from voxax import _compat
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import concrete_maps, record_choices, tuner
from voxax.tuning import measure as tuning_measure
from voxax.tuning.concrete_maps import concrete_map, note_map
from voxax.tuning.entry import Measured

PROBLEM = make_problem(density=4.0)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(concrete_maps, "_maps", weakref.WeakValueDictionary())


def table(value=0, make=jnp.full):
    return make((48, 27), value, np.int32)


@pytest.mark.parametrize("make", [jnp.full, np.full])
def test_what_was_noted_is_found(make):
    neighbors = table(1, make)
    assert concrete_map(PROBLEM) is None
    note_map(PROBLEM.layer, neighbors)
    for product in ("forward", "dgrad", "wgrad"):  # the layer's three products run on one map
        assert concrete_map(make_problem(product, density=4.0))["neighbors"] is neighbors


@pytest.mark.parametrize(
    "change",
    [{"density": None}, {"density": 8.0}, {"rows": 49}, {"spec": None}, {"level": (2, 2, 2)}],
    ids=str,
)
def test_another_map_is_not(change):
    kept = table()
    note_map(PROBLEM.layer, kept)
    assert concrete_map(make_problem(**{"density": 4.0, **change})) is None
    del kept


def test_the_newest_wins():
    one, two = table(1), table(2)
    note_map(PROBLEM.layer, one)
    note_map(PROBLEM.layer, two)
    assert concrete_map(PROBLEM)["neighbors"] is two


def test_nothing_is_kept_alive():
    neighbors = table()
    note_map(PROBLEM.layer, neighbors)
    del neighbors
    gc.collect()
    assert concrete_map(PROBLEM) is None
    assert not concrete_maps._maps


def test_deleted_arrays_are_not_found():
    neighbors = table()
    note_map(PROBLEM.layer, neighbors)
    neighbors.delete()
    assert concrete_map(PROBLEM) is None


@functools.cache
def planned():
    """Return voxels with the map attached, on the host in NumPy."""
    with jax.ensure_compile_time_eval():
        layer = functools.partial(spatially_sparse_conv, weight=dense_weight())
        return vx.plan(layer, jax.tree.map(np.asarray, small_voxels()))


@pytest.mark.parametrize("how", ["eager", "closed over", "planned on the host", "argument"])
def test_a_layer_is_measured_on_the_callers_map_where_there_is_one(how, monkeypatch, tmp_path):
    """Check a map that is an argument of a compiled function: only its level is known."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning_measure, "_spent", 0.0)

    def measure(problem, candidates, reference, sample, budget):
        return tuple(
            Measured(*c.identity, 1e-3 if "im2col" in str(c) else 1.0, "ok") for c in candidates
        )

    monkeypatch.setattr(tuner, "measure", measure)
    host, weight = planned(), dense_weight()
    assert isinstance(host.coords, np.ndarray)
    voxels = host if how == "planned on the host" else jax.tree.map(jnp.asarray, host)

    def layer(v):
        return spatially_sparse_conv(v, weight).features

    with _compat.fresh_trace(), record_choices() as heard:
        if how == "closed over":
            jax.jit(lambda f: layer(voxels.replace_features(f))).lower(voxels.features)
        elif how == "argument":
            jax.jit(layer).lower(voxels)
        else:
            layer(voxels)
    (choice,) = heard
    assert choice.source == "measured"
    assert choice.entry.sample == ("lidar" if how == "argument" else "caller's map")
    assert (choice.problem.layer.density is None) == (how == "argument")
