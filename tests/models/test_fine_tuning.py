"""Optimizers by part, frozen parts, averages and accumulated gradients, against sums by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import voxax as vx
from voxax.models.fine_tuning import average_in, averaged, by_part, check_parts
from voxax.models.training import Trainer
from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential, SubMConv3d

pytestmark = pytest.mark.lax_promotion  # optax promotes step counts


class Net(nnx.Module):
    """A stem with a batch norm, a list of layers, and a head."""

    def __init__(self, classes=3, seed=0):
        rngs = nnx.Rngs(seed)
        self.stem = Sequential(SubMConv3d(2, 4, 3, rngs=rngs), BatchNorm(4), ReLU())
        self.blocks = nnx.List([Linear(4, 4, rngs=rngs), Linear(4, 4, rngs=rngs)])
        self.head = Linear(4, classes, rngs=rngs)

    def __call__(self, voxels):
        voxels = self.stem(voxels)
        for block in self.blocks:
            voxels = block(voxels)
        return self.head(voxels)


def scene(seed=0):
    rng = np.random.default_rng(seed)
    coords = np.unique(rng.integers(0, 5, (60, 3)), axis=0)
    coords = np.pad(coords, ((0, 0), (1, 0))).astype(np.int32)
    features = rng.normal(size=(len(coords), 2)).astype(np.float32)
    voxels = vx.Voxels.from_coords(coords, features, batch_size=1, capacity=64)
    labels = np.full(64, -1, np.int32)
    labels[: len(coords)] = rng.integers(0, 3, len(coords))
    return voxels, labels


def arrays(tree):
    return {jax.tree_util.keystr(p): np.asarray(v) for p, v in jax.tree.leaves_with_path(tree)}


def params_of(trainer):
    return arrays(trainer.params)


def test_each_part_has_its_own_optimizer():
    trainer = Trainer(
        Net(), by_part({"head": optax.sgd(0.5), "blocks.1": optax.set_to_zero()}, optax.sgd(0.1))
    )
    before, (voxels, labels) = params_of(trainer), scene()
    plain = Trainer(Net(), optax.sgd(1.0))
    plain.step(voxels, labels)
    trainer.step(voxels, labels)
    after, moved = params_of(trainer), params_of(plain)
    for name, old in before.items():
        rate = 0.5 if "head" in name else 0.0 if "['blocks'][1]" in name else 0.1
        np.testing.assert_allclose(after[name] - old, rate * (moved[name] - old), atol=1e-6)
    assert any(np.any(moved[name] != old) for name, old in before.items() if "blocks'][1" in name)


def test_the_inner_part_counts():
    tx = by_part({"blocks": optax.sgd(1.0), "blocks.0": optax.set_to_zero()}, optax.sgd(1.0))
    params = nnx.state(Net(), nnx.Param)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)
    for name, value in arrays(updates).items():
        assert np.all(value == (0 if "['blocks'][0]" in name else -1)), name


def test_frozen_parts_keep_weights_and_statistics():
    trainer = Trainer(Net(), by_part({"stem": optax.set_to_zero()}, optax.adamw(0.1)))
    trainer.freeze(["stem"])
    before, state = params_of(trainer), arrays(trainer.state)
    voxels, labels = scene()
    for _ in range(3):
        trainer.step(voxels, labels)
    for name, old in before.items():
        assert np.array_equal(params_of(trainer)[name], old) == ("stem" in name), name
    for name, old in state.items():  # the running statistics of the stem's norm
        np.testing.assert_array_equal(arrays(trainer.state)[name], old)
    free = Trainer(Net(), optax.adamw(0.1))
    free.step(voxels, labels)
    assert any(np.any(arrays(free.state)[name] != old) for name, old in state.items())


def test_an_average_is_the_weighted_mean_of_what_training_passed_through():
    decay, trainer = 0.7, Trainer(Net(), averaged(optax.sgd(0.3), 0.7))
    first = params_of(trainer)
    same = arrays(average_in(trainer.optimizer_state, trainer.params))
    assert all(np.array_equal(same[name], first[name]) for name in first)  # nothing to average yet
    passed = []
    for step in range(4):
        trainer.step(*scene(step))
        passed.append(params_of(trainer))
    weights = decay ** np.arange(3, -1, -1)
    found = arrays(average_in(trainer.optimizer_state, trainer.params))
    for name in first:
        mean = np.average([p[name] for p in passed], axis=0, weights=weights)
        np.testing.assert_allclose(found[name], mean, rtol=2e-5, atol=1e-6)
    # Evaluation and the returned module have the average, with the statistics of the last step.
    voxels, _ = scene(9)
    module = trainer.model()
    module.eval()
    np.testing.assert_allclose(trainer.logits(voxels), module(voxels).features, atol=1e-5)
    last = nnx.merge(trainer._eval_graph, trainer.params, trainer.state, copy=True)
    assert np.abs(trainer.logits(voxels) - np.asarray(last(voxels).features)).max() > 1e-4


def test_accumulated_gradients_are_one_update_by_their_mean():
    steps = optax.MultiSteps(averaged(optax.sgd(0.2), 0.5), 3).gradient_transformation()
    trainer, before = Trainer(Net(), steps), params_of(Trainer(Net(), steps))
    gradients = []
    for seed in range(3):
        voxels, labels = scene(seed)
        alone = Trainer(Net(), optax.sgd(1.0))
        alone.step(voxels, labels)
        gradients.append({n: before[n] - v for n, v in params_of(alone).items()})
        assert seed == 0 or all(np.array_equal(params_of(trainer)[n], before[n]) for n in before)
        trainer.step(voxels, labels)
    after = params_of(trainer)
    for name, old in before.items():
        mean = np.mean([g[name] for g in gradients], axis=0)
        np.testing.assert_allclose(after[name], old - 0.2 * mean, atol=1e-6)
    average = arrays(average_in(trainer.optimizer_state, trainer.params))
    for name, value in after.items():  # of one update
        np.testing.assert_allclose(average[name], value, rtol=1e-5, atol=1e-7)


def test_a_trainer_starts_from_a_module():
    trainer, other = Trainer(Net(), optax.adam(0.1)), Net(seed=1)
    trainer.start_from(other)
    found, expected = arrays(nnx.state(trainer.model())), arrays(nnx.state(other))
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    trainer.step(*scene())
    assert all(np.array_equal(arrays(nnx.state(other))[n], v) for n, v in expected.items())
    with pytest.raises(vx.InputError, match="the tree to load"):
        trainer.start_from(Net(classes=5))


def test_bad_parts_and_decays():
    with pytest.raises(vx.InputError, match=r"'haed' is no part of Net .* are .*'head', .*'stem'"):
        check_parts(nnx.eval_shape(Net), ["head", "haed"])
    with pytest.raises(vx.InputError, match=r"'stem\.layers\.2' is no part"):
        check_parts(Net(), ["stem.layers.2"])  # a ReLU
    with pytest.raises(vx.InputError, match=r"'blocks\.7' is no part"):
        Trainer(Net(), optax.sgd(1.0)).freeze(["blocks.7"])
    with pytest.raises(vx.InputError, match=r"decay=1 must be at least 0 and below 1"):
        averaged(optax.sgd(1.0), 1)
