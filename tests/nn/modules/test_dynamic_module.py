"""The module is the function with parameters of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from oracle.dynamic import dynamic_conv as oracle
from voxax.errors import InputError
from voxax.nn.functional import choose_size, dynamic_conv
from voxax.nn.modules import DynamicConv


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")


def test_module():
    rng = np.random.default_rng(0)
    conv = DynamicConv(3, 4, (5, 3), stride=2, algorithm=["tiled", "masked"], rngs=nnx.Rngs(1))
    x = jnp.asarray(rng.standard_normal((2, 7, 6, 3)), jnp.float32)
    size = jnp.asarray(rng.integers(1, 6, (2, 4, 3)))
    y = nnx.jit(lambda conv, x, size: conv(x, size=size))(conv, x, size)
    assert conv.weight[...].shape == (5, 3, 3, 4)
    np.testing.assert_allclose(y, oracle(x, conv.weight[...], size, stride=2), atol=1e-5)
    gradient = nnx.grad(lambda conv: jnp.sum(conv(x, size=size) ** 2))(conv)
    assert np.abs(np.asarray(gradient.weight[...])).max() > 0
    assert np.abs(np.asarray(gradient.bias[...])).max() > 0


def test_module_with_two_weights_in_half_precision():
    conv = DynamicConv(3, 4, 3, ndim=1, num_weights=2, use_bias=False, dtype=jnp.bfloat16)
    x, mixture = jnp.ones((2, 5, 3)), jnp.asarray([[1.0, 0.0], [0.5, 0.5]])
    y = conv(x, mixture=mixture)
    assert y.dtype == jnp.bfloat16
    want = oracle(x, conv.weight[...], mixture=mixture)
    np.testing.assert_allclose(np.asarray(y, np.float32), want, atol=0.1)


@pytest.mark.parametrize("bank", [(1, 3), [3, 1], np.int64(2), None], ids=str)
def test_a_bank_of_sizes_and_several_weights(bank):
    rng = np.random.default_rng(0)
    conv = DynamicConv(
        3, 4, 3, ndim=1, num_weights=2, bank=bank, algorithm="bank", rngs=nnx.Rngs(0)
    )
    x, mixture = jnp.asarray(rng.standard_normal((2, 9, 3))), jnp.asarray([[0.3, 0.7], [0.5, 0.5]])
    size = jnp.asarray(rng.choice([1, 3], (2, 9)))
    y = nnx.jit(lambda conv, x: conv(x, size=size, mixture=mixture))(conv, x)
    want = oracle(x, conv.weight[...], size, mixture=mixture)
    np.testing.assert_allclose(y, want, atol=1e-5)
    assert hash(nnx.split(conv)[0]) is not None


def test_a_hierarchical_bank_is_that_of_the_function():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 8, 6, 3)), jnp.float32)
    options = {"algorithm": "bank", "bank": [2, 5], "coarse_from": 4}
    conv = DynamicConv(3, 4, 5, use_bias=False, rngs=nnx.Rngs(0), **options)
    y = dynamic_conv(x, conv.weight[...], size=5, **options)
    np.testing.assert_allclose(conv(x, size=5), y, atol=1e-6)
    exact = dynamic_conv(x, conv.weight[...], size=5)
    assert float(jnp.abs(y - exact).max()) > 1e-2


def test_what_bank_does_not_mean():
    with pytest.raises(
        InputError, match=r"bank=2 are the sizes of algorithm='bank'.*num_weights=2"
    ):
        DynamicConv(3, 4, 3, bank=2)
    with pytest.raises(
        InputError, match="coarse_from=3 is of algorithm='bank', got algorithm='tiled'"
    ):
        DynamicConv(3, 4, 3, algorithm="tiled", coarse_from=3)
    with pytest.raises(InputError, match="bank=0: give an integer of at least 1"):
        DynamicConv(3, 4, 3, algorithm="bank", bank=0)


def test_choose_size():
    scores = jnp.asarray([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [jnp.nan, 9.0, 0.0]])
    size, gate = choose_size(scores, (3, 5, 7), fallback=7)
    np.testing.assert_array_equal(size, [5, 3, 7])
    np.testing.assert_allclose(gate, 1)
    slope = jax.grad(lambda s: choose_size(s, (3, 5, 7), fallback=3)[1].sum())(scores)
    chance = np.exp(scores[0]) / np.exp(scores[0]).sum()
    # d softmax_1 / d scores
    np.testing.assert_allclose(slope[0], chance[1] * (np.eye(3)[1] - chance), atol=1e-6)
    np.testing.assert_array_equal(slope[2], 0)
    same, _ = choose_size(scores, np.array([3, 5, 7]), fallback=np.int64(7))
    np.testing.assert_array_equal(same, size)
    with pytest.raises(InputError, match="one a size"):
        choose_size(scores, (3, 5), fallback=3)
    for sizes, fallback in (((), 3), ((3, 5.5, 7), 3), ((3, 5, 7), 4.5)):
        with pytest.raises(InputError, match="give integers, 1 size or more"):
            choose_size(scores, sizes, fallback=fallback)


def test_the_choice_trains_through_the_selected_kernel():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, 8, 2)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((5, 2, 2)), jnp.float32)

    @jax.jit
    @jax.grad
    def slope_of(scores):
        size, gate = choose_size(scores, (3, 5), fallback=3)
        return jnp.sum(
            (dynamic_conv(x, w, size=size, algorithm="selected") * gate[:, None, None]) ** 2
        )

    for scores in ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]):
        slope = slope_of(jnp.asarray(scores))
        assert (np.abs(np.asarray(slope)).max(axis=1) > 0).all()
    assert slope_of._cache_size() == 1
