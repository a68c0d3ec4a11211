"""Compare the taps of a size with the rule written out."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from voxax import coords
from voxax.errors import InputError
from voxax.geometry import nested_sizes


def box_offsets(size, stride):
    return np.asarray(coords.box_offsets(size, stride))


def has(size: int, offset) -> bool:
    return all(-((size - 1) // 2) <= o <= size // 2 for o in offset)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_a_size_has_the_taps_of_the_rule(ndim):
    offsets = np.array(list(itertools.product(range(-4, 5), repeat=ndim)))
    sizes = np.arange(1, 10)
    mask = np.asarray(nested_sizes.hard_mask(jnp.asarray(sizes), offsets))
    want = [[has(s, o) for o in offsets] for s in sizes]
    np.testing.assert_array_equal(mask, want)
    # Sizes nest, and every reaching size is the smallest.
    assert (mask[1:] >= mask[:-1]).all()
    first = sizes[np.argmax(mask, axis=0)]
    np.testing.assert_array_equal(nested_sizes.reaching_size(offsets), first)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7])
def test_taps_of_a_box(size):
    """The box of a size is exactly what that size has of a larger box."""
    larger = box_offsets((7, 7), (1, 1))
    own = larger[np.asarray(nested_sizes.hard_mask(jnp.asarray(size), larger))]
    np.testing.assert_array_equal(own, box_offsets((size, size), (1, 1)))
    assert nested_sizes.taps_within(larger)[size] == size**2


def test_ordered_taps_are_prefixes():
    offsets = box_offsets((5, 5, 5), (1, 1, 1))
    order = nested_sizes.taps_by_size(offsets)
    counts = nested_sizes.taps_within(offsets)
    np.testing.assert_array_equal(counts, [0, 1, 8, 27, 64, 125])
    for size, count in enumerate(counts):
        mask = np.asarray(nested_sizes.hard_mask(jnp.asarray(size), offsets[order]))
        assert mask[:count].all()
        assert not mask[count:].any()
    np.testing.assert_array_equal(nested_sizes.taps_within(offsets, 7)[5:], [125] * 3)


def test_sizes_outside():
    offsets = box_offsets((3,), (1,))
    mask = nested_sizes.hard_mask(jnp.asarray([-1, 0, 99, 2]), offsets)
    np.testing.assert_array_equal(mask, [[0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 1]])


@pytest.mark.parametrize("tau", [0.25, 1.0, 2.5])
def test_ramp(tau):
    offsets = box_offsets((5, 5), (1, 1))
    sizes = np.linspace(0, 6, 41, dtype=np.float32)
    got = np.asarray(nested_sizes.soft_mask(jnp.asarray(sizes), offsets, tau))
    reach = [min(s for s in range(1, 9) if has(s, o)) for o in offsets]
    want = np.clip((sizes[:, None] - np.asarray(reach)[None]) / tau + 1, 0, 1)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_ramp_at_whole_sizes_is_the_hard_mask():
    offsets = box_offsets((7,), (1,))
    sizes = jnp.arange(0, 9)
    soft = nested_sizes.soft_mask(sizes.astype(jnp.float32), offsets, 1.0)
    np.testing.assert_array_equal(soft, nested_sizes.hard_mask(sizes, offsets))


def test_ramp_has_a_gradient_under_jit():
    offsets = box_offsets((5,), (1,))

    @jax.jit
    def total(size):
        return nested_sizes.soft_mask(size, offsets, 1.0).sum()

    # Between two sizes exactly one tap fades in.
    assert jax.grad(total)(jnp.float32(3.4)) == pytest.approx(1.0)
    assert jax.grad(total)(jnp.float32(7.5)) == 0


def test_refused():
    offsets = box_offsets((3,), (1,))
    with pytest.raises(InputError, match="tau=0"):
        nested_sizes.soft_mask(jnp.zeros(3), offsets, 0)
    with pytest.raises(InputError, match="int32"):
        nested_sizes.soft_mask(jnp.zeros(3, jnp.int32), offsets)
    with pytest.raises(InputError, match="float64"):
        nested_sizes.reaching_size(np.zeros((3, 2)))
