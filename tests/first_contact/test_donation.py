"""A training step needs the memory of its parameters and of the optimizer's state once."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.workloads import random_cube
from flax import nnx

from samples import make_voxels
from voxax.models.training import Trainer
from voxax.nn.modules import BatchNorm, Linear, Sequential, SubMConv3d

OPTIMIZERS = {
    "adamw": optax.adamw(1e-2),
    "flattened": optax.flatten(optax.adamw(1e-2)),
    "keeps the parameters": optax.contrib.schedule_free_sgd(1e-2),
}


def network():
    rngs = nnx.Rngs(0)
    return Sequential(
        SubMConv3d(3, 8, 3, rngs=rngs), BatchNorm(8, rngs=rngs), Linear(8, 2, rngs=rngs)
    )


def given():
    voxels = make_voxels(random_cube(40), capacity=48)
    return voxels, np.where(np.arange(voxels.capacity) < 40, np.arange(voxels.capacity) % 2, -1)


def kept(trainer):
    return jax.tree.leaves((trainer.params, trainer.optimizer_state))


@pytest.mark.lax_promotion  # optax relies on it
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_writes_into_the_memory_of_what_it_was_given(name):
    trainer = Trainer(network(), OPTIMIZERS[name])
    before = kept(trainer)
    given_to = trainer.params, trainer.optimizer_state, trainer.params
    memory = trainer._update.lower(*given_to).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= sum(x.nbytes for x in before)
    trainer.step(*given())
    assert all(x.is_deleted() for x in before)
    assert not any(x.is_deleted() for x in kept(trainer))


def test_what_others_hold_stays():
    """The model that came in, and what the trainer gave out or was given."""
    model = network()
    first, second = (Trainer(model, optax.adamw(1e-2)) for _ in range(2))
    for _ in range(2):
        tree, copied = first.tree(), first.model()
        second.load_tree(tree)
        first.step(*given())
        second.step(*given())
        held = nnx.state(model), nnx.state(copied), tree
        assert not any(x.is_deleted() for x in jax.tree.leaves(held) if isinstance(x, jax.Array))
    jax.tree.map(np.testing.assert_array_equal, first.tree(), second.tree())


def test_compiling_runs_no_step_and_steps_compile_nothing():
    trainer = Trainer(network(), optax.adamw(1e-2))
    before = kept(trainer)
    trainer.compile(*given())
    assert not any(x.is_deleted() for x in before)
    trainer.step(*given())
    trainer.step(*given())
    assert trainer.programs == 1
    assert [trainer._gradients._cache_size(), trainer._update._cache_size()] == [1, 1]


def test_one_program_updates_after_batches_of_every_size():
    trainer = Trainer(network(), optax.adamw(1e-2))
    for rows in (48, 64, 80):
        voxels = make_voxels(random_cube(40), capacity=rows)
        trainer.step(voxels, np.where(np.arange(rows) < 40, 1, -1))
    assert [trainer._gradients._cache_size(), trainer._update._cache_size()] == [3, 1]


@pytest.mark.lax_promotion  # optax relies on it
@pytest.mark.parametrize("name", [*OPTIMIZERS, "schedule"])
def test_the_optimizer_begins_as_it_would(name):
    """Whether its state is constant, or holds the parameters."""
    schedule = optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(0.1, 0, 9), momentum=0.9)
    optimizer = OPTIMIZERS.get(name, schedule)
    trainer = Trainer(network(), optimizer)
    wanted = optimizer.init(trainer.params)
    assert jax.tree.structure(wanted) == jax.tree.structure(trainer.optimizer_state)
    for got, want in zip(*map(jax.tree.leaves, (trainer.optimizer_state, wanted)), strict=True):
        assert (got.dtype, got.shape, got.weak_type) == (want.dtype, want.shape, want.weak_type)
        np.testing.assert_allclose(got, want, 1e-6)


def test_donation_changes_no_bit():
    trainer = Trainer(network(), optax.adamw(1e-2))
    twin = Trainer(network(), optax.adamw(1e-2))
    twin._update = jax.jit(twin._update.__wrapped__)
    for _ in range(3):
        losses = [float(t.step(*given())[0]) for t in (trainer, twin)]
        assert losses[0] == losses[1]
    jax.tree.map(np.testing.assert_array_equal, trainer.tree(), twin.tree())
    assert jnp.isfinite(losses[0])
