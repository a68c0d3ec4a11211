"""Check which tensors go to which layer: names, order, and errors."""

import copy
import pickle

import jax
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.interop import from_minkowski, from_spconv, to_minkowski, to_spconv
from voxax.interop.peer import find_layers
from voxax.models import ConvNormAct, MinkUNet14
from voxax.nn.modules import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    Linear,
    ReLU,
    RMSNorm,
    Sequential,
    SparseConvTranspose3d,
    SpatiallySparseDepthwiseConv,
    SubMConv3d,
)


def small(seed=0):
    rngs = nnx.Rngs(seed)
    return Sequential(
        SubMConv3d(2, 4, rngs=rngs),
        BatchNorm(4),
        ReLU(),
        SubMConv3d(4, 4, rngs=rngs),
        Linear(4, 3, rngs=rngs),
    )


def arrays(model):
    return {path: np.asarray(v[...]) for path, v in nnx.to_flat_state(nnx.state(model))}


def assert_same(first, second):
    first, second = arrays(first), arrays(second)
    assert list(first) == list(second)
    for path, value in first.items():
        np.testing.assert_array_equal(value, second[path], err_msg=str(path))


RENAMED = {"layers.0": "conv1", "layers.1": "bn1", "layers.3": "net.0", "layers.4": "head"}


@pytest.mark.parametrize("names", [None, "order", RENAMED, RENAMED.__getitem__])
@pytest.mark.parametrize(
    ("load", "dump"), [(from_spconv, to_spconv), (from_minkowski, to_minkowski)]
)
def test_round_trip(names, load, dump):
    first, second = small(0), small(1)
    state = dump(first, names=None if names == "order" else names)
    found = load(state, second, names=names)
    assert list(found) == ["layers.0", "layers.1", "layers.3", "layers.4"]
    assert_same(first, second)
    again = dump(
        second, names=names, like=dict(reversed(state.items())) if names is None else state
    )
    assert set(again) == set(state)
    for name, value in state.items():
        np.testing.assert_array_equal(again[name], value)
        assert again[name].flags.writeable


@pytest.mark.parametrize("dump", [to_spconv, to_minkowski])
def test_every_array_of_minkunet_makes_the_round_trip(rng, dump):
    first, second = (MinkUNet14(2, 3, width=0.125, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    state = dump(first)
    state = {name: rng.normal(size=x.shape).astype(x.dtype) for name, x in state.items()}
    load = from_spconv if dump is to_spconv else from_minkowski
    load(state, first)
    load(dump(first), second)
    assert_same(first, second)
    for name, value in dump(second).items():
        np.testing.assert_array_equal(value, state[name])


def test_a_name_for_a_part_of_the_model():
    """Prefix all names with ``module``, as a wrapped PyTorch model does."""
    first, second = ConvNormAct(2, 4, rngs=nnx.Rngs(0)), ConvNormAct(2, 4, rngs=nnx.Rngs(1))
    state = to_spconv(first, names={"": "module", "norm": "other.bn"})
    assert list(state)[:2] == ["module.conv.weight", "other.bn.weight"]
    found = from_spconv(state, second, names={"": "module", "norm": "other.bn"})
    assert found == {"conv": "module.conv", "norm": "other.bn"}
    assert_same(first, second)


def rejected(match, state, model=None, **options):
    model = small(1) if model is None else model
    before = arrays(model)
    with pytest.raises(vx.InputError, match=match):
        from_spconv(state, model, **options)
    for path, value in arrays(model).items():
        np.testing.assert_array_equal(value, before[path])


def test_tensors_that_do_not_fit_change_nothing():
    state = to_spconv(small())
    missing = {k: v for k, v in state.items() if not k.startswith("layers.3")}
    rejected(r"'layers.3' \(conv: .*has no tensors layers.3\.\*.*names=\{\"layers.3\"", missing)
    rejected("no layer of the model takes 'extra'", state | {"extra.weight": np.zeros(3)})
    no_bias = {k: v for k, v in state.items() if k != "layers.4.bias"}
    rejected(r"'layers.4' .* needs bias, and 'layers.4' .* has weight", no_bias)
    narrow = state | {"layers.3.weight": np.zeros((4, 3, 3, 3, 5), np.float32)}
    rejected(r"'layers.3.weight' .* shape \(4, 3, 3, 3, 5\).* takes \(4, 3, 3, 3, 4\)", narrow)
    rejected("no place for 'layers.4.running_mean'", state | {"layers.4.running_mean": np.zeros(3)})
    rejected("'layers.4.bias' of the state dict is", state | {"layers.4.bias": np.array(["a"] * 3)})


def test_a_bias_that_the_model_lacks():
    state = to_spconv(SubMConv3d(2, 2))
    rejected("no place for 'bias'.*use_bias=True", state, SubMConv3d(2, 2, use_bias=False))


def test_names_that_do_not_fit():
    state = to_spconv(small())
    rejected("names has 'layers.9', which is no layer", state, names={"layers.9": "head"})
    rejected("'layers.0', 'layers.3' are all named 'conv'", state,
             names={"layers.0": "conv", "layers.3": "conv"})  # fmt: skip
    rejected("names='other' must be None, a dict", state, names="other")
    with pytest.raises(vx.InputError, match=r"give like=peer.state_dict\(\)"):
        to_spconv(small(), names="order")


def test_order_needs_as_many_layers_in_their_own_order():
    state = to_spconv(small())
    fewer = {k: v for k, v in state.items() if not k.startswith("layers.4")}
    rejected("the model has 4 layers, the spconv state dict 3", fewer, names="order")
    swapped = {k: state[k] for k in sorted(state, reverse=True)}
    rejected("layer 'layers.0'", swapped, names="order")
    # Cloning sorts attributes by name: matching by order would then mix layers up.
    rejected("as its constructor left it", state, nnx.clone(small()), names="order")
    assert from_spconv(state, nnx.clone(small()))  # names do not depend on it


class TwoConvolutions(nnx.Module):
    """Defined against the order of their names; without bias and norm."""

    def __init__(self, seed=0):
        self.stem = SubMConv3d(2, 2, use_bias=False, rngs=nnx.Rngs(seed))
        self.block = SubMConv3d(2, 2, use_bias=False, rngs=nnx.Rngs(seed + 1))


def through_jit(model):
    nnx.jit(lambda module: None)(model)
    return model


@pytest.mark.parametrize(
    "rebuilt",
    [
        nnx.clone,
        lambda model: nnx.merge(*nnx.split(model)),
        through_jit,
        copy.deepcopy,
        lambda model: jax.tree.map(lambda leaf: leaf, model),
    ],
    ids=["clone", "merge", "jit", "deepcopy", "tree"],
)
def test_order_is_lost_where_attributes_are_sorted(rebuilt):
    state = to_spconv(TwoConvolutions(3))
    for model in (TwoConvolutions(), pickle.loads(pickle.dumps(TwoConvolutions()))):
        found = from_spconv(state, model, names="order")
        assert found == {"stem": "stem", "block": "block"}
    model = rebuilt(TwoConvolutions())
    rejected("attributes of '(stem|block)' are sorted by name", state, model, names="order")
    assert from_spconv(state, model)


@pytest.mark.parametrize("use_bias", [False, True])
def test_every_layer_shows_whether_it_was_rebuilt(use_bias):
    make = [
        SubMConv3d(4, 4, use_bias=use_bias),
        SparseConvTranspose3d(4, 4, 2, 2, use_bias=use_bias),
        SpatiallySparseDepthwiseConv(4, use_bias=use_bias),
        Linear(4, 4, use_bias=use_bias),
        nnx.Linear(4, 4, use_bias=use_bias, rngs=nnx.Rngs(0)),
        BatchNorm(4), LayerNorm(4), GroupNorm(4, 2), InstanceNorm(4), RMSNorm(4),
    ]  # fmt: skip
    for layer in make:
        (found,), (cloned,) = find_layers(layer), find_layers(nnx.clone(layer))
        assert (found.in_order, cloned.in_order) == (True, False), layer
        (mapped,) = find_layers(jax.tree.map(lambda leaf: leaf, layer))
        assert not mapped.in_order, layer


def test_parameters_that_have_no_counterpart():
    class Odd(nnx.Module):
        def __init__(self):
            self.conv = SubMConv3d(2, 2)
            self.temperature = nnx.Param(np.ones(1, np.float32))

    with pytest.raises(vx.InputError, match="'temperature' is a Param of Odd"):
        to_spconv(Odd())


def test_a_shared_layer_comes_once():
    conv = SubMConv3d(2, 2)
    assert list(to_spconv(Sequential(conv, ReLU(), conv))) == ["layers.0.weight", "layers.0.bias"]
