"""Voxels, sites and round trips that the tests of each library's weights share."""

import numpy as np

import voxax as vx
from oracle.sites import make_sites
from samples import make_voxels

SHAPE = (9, 6, 4)
C_IN, C_OUT = 3, 5


def grid_voxels(rng, share=0.4):
    """A random part of a grid that is no cube, in two scenes on both sides of the origin."""
    occupied = np.argwhere(rng.random((2, *SHAPE)) < share).astype(np.int32)
    occupied[:, 1:] -= np.array([4, 2, 1], np.int32)
    return make_voxels(rng.permutation(occupied), C_IN)


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def sites_of(voxels):
    return make_sites(voxels.valid_coords(), voxels.valid_features())


def check(voxels, expected):
    actual = sites_of(voxels)
    assert set(actual) == set(expected)
    for site, value in expected.items():
        np.testing.assert_allclose(actual[site], value, rtol=2e-5, atol=2e-5)


def round_trip(layer, state, read, write, **options):
    """Load tensors named ``peer.*`` into the layer, and find the same tensors in what it writes."""
    assert read(state, layer, names={"": "peer"}, **options) == {"": "peer"}
    back = write(layer, names={"": "peer"}, **options)
    assert list(back) == list(state)
    for name, value in state.items():
        assert back[name].dtype == value.dtype
        np.testing.assert_array_equal(back[name], value)


def check_taps(layer, taps):
    """The layer multiplies the input at each offset by the peer's matrix for it, and no other."""
    spec = vx.KernelSpec.make(3, **layer.relation)
    offsets = [tuple(offset) for offset in spec.dilated_offsets.tolist()]
    assert set(offsets) == set(taps)
    for offset, matrix in zip(offsets, np.asarray(layer.weight[...]), strict=True):
        np.testing.assert_array_equal(matrix, taps[offset])


def loader(name, read, write):
    """A function that checks the round trip of a peer's tensor, and returns the layer's bias."""

    def loaded(layer, weight, **options):
        state = {f"peer.{name}": weight}
        if layer.bias is not None:
            state["peer.bias"] = np.linspace(-1, 1, layer.bias[...].size, dtype=np.float32)
        round_trip(layer, state, read, write, **options)
        return state.get("peer.bias", 0.0)

    return loaded
