"""Concrete maps, remembered weakly until a product on one like them is measured."""

import collections
import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_algorithms import make_problem
from lowered import dense_weight, small_voxels

import voxax as vx
from voxax import _compat
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import measure as tuning_measure
from voxax.tuning import record_choices, tuner
from voxax.tuning import sample as tuning_sample
from voxax.tuning.entry import Measured
from voxax.tuning.sample import concrete_map, note_map

PROBLEM = make_problem(density=4.0)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(tuning_sample, "_maps", collections.OrderedDict())


def key(problem=PROBLEM):
    p = problem
    return tuning_sample.map_key(p.layer)


def table(value=0, make=jnp.full):
    return make((48, 27), value, np.int32)


def test_what_was_noted_is_found():
    neighbors, pairs = table(1), jnp.zeros((2, 9), jnp.int32)
    assert concrete_map(PROBLEM) is None
    note_map(key(), {"neighbors": neighbors, "pairs": pairs})
    found = concrete_map(PROBLEM)
    assert found["neighbors"] is neighbors
    assert found["pairs"] is pairs
    for product in ("dgrad", "wgrad"):  # the layer's three products run on one map
        assert concrete_map(make_problem(product, density=4.0))["neighbors"] is neighbors


@pytest.mark.parametrize(
    "change",
    [{"density": None}, {"density": 8.0}, {"rows": 49}, {"spec": None}, {"level": (2, 2, 2)}],
    ids=str,
)
def test_another_map_is_not(change):
    kept = table()
    note_map(key(), {"neighbors": kept})
    assert concrete_map(make_problem(**{"density": 4.0, **change})) is None
    del kept


def test_the_newest_wins():
    one, two = table(1), table(2)
    note_map(key(), {"neighbors": one})
    note_map(key(), {"neighbors": two})
    assert concrete_map(PROBLEM)["neighbors"] is two


def test_a_view_of_a_trace_is_left_out():
    neighbors = table()

    @jax.jit
    def traced(starts):
        note_map(key(), {"neighbors": neighbors, "starts": starts})
        assert set(concrete_map(PROBLEM)) == {"neighbors"}
        return starts

    traced(jnp.zeros((28,), jnp.int32))


def test_nothing_is_kept_alive():
    neighbors = table()
    note_map(key(), {"neighbors": neighbors})
    del neighbors
    gc.collect()
    assert concrete_map(PROBLEM) is None


def test_deleted_arrays_are_not_found():
    neighbors, pairs = table(), jnp.zeros((2, 9), jnp.int32)
    note_map(key(), {"neighbors": neighbors, "pairs": pairs})
    pairs.delete()
    assert list(concrete_map(PROBLEM)) == ["neighbors"]
    neighbors.delete()
    assert concrete_map(PROBLEM) is None


def test_one_of_the_two_tables_is_enough_but_needed():
    transposed, pairs = table(), jnp.zeros((2, 9), jnp.int32)
    note_map(key(), {"transposed_neighbors": transposed, "pairs": pairs})
    assert set(concrete_map(PROBLEM)) == {"transposed_neighbors", "pairs"}
    note_map(key(), {"pairs": pairs})
    assert concrete_map(PROBLEM) is None


def test_maps_of_the_host_are_found_too():
    neighbors = table(make=np.full)
    note_map(key(), {"neighbors": neighbors})
    assert concrete_map(PROBLEM)["neighbors"] is neighbors


def test_only_the_last_ones_are_remembered():
    kept = [table() for _ in range(tuning_sample._MOST_MAPS + 1)]
    for number, neighbors in enumerate(kept):
        note_map(key(make_problem(density=float(number))), {"neighbors": neighbors})
    assert len(tuning_sample._maps) == tuning_sample._MOST_MAPS
    assert concrete_map(make_problem(density=0.0)) is None
    assert concrete_map(make_problem(density=1.0)) is not None


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
