"""Building a network and its optimizer: programs compiled, and keys computed on the host."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from own_process import run_python
from voxax._native.random import fold_in_on_host
from voxax.models import MinkUNet18
from voxax.models.training import Trainer, starting_on_host
from voxax.nn.modules import Linear, SubMConv3d
from voxax.nn.modules.keys import next_key, rngs_of

FRESH = """
import jax
import jax.monitoring
import optax
from flax import nnx

from voxax.models import MinkUNet18
from voxax.models.training import Trainer, starting_on_host

compiled = []

def listen(event, duration, **more):
    if event.endswith("/backend_compile_duration"):
        compiled.append(more.get("fun_name"))

jax.monitoring.register_event_duration_secs_listener(listen)
{lines}
print(len(compiled), compiled)
"""


def programs(*lines: str) -> int:
    """The programs that a fresh process compiles in these lines."""
    return int(run_python("-c", FRESH.format(lines="\n".join(lines))).split()[0])


def test_building_compiles_two_programs_at_most():
    assert programs("Trainer(MinkUNet18(4, 20), optax.adamw(1e-3))") <= 2


def test_streams_of_a_user_add_their_own_alone():
    streams = programs("nnx.Rngs(0)")
    built = programs(
        "model = MinkUNet18(4, 20, rngs=nnx.Rngs(0))",
        "Trainer(model, optax.adamw(1e-3))",
        "nnx.Optimizer(model, starting_on_host(optax.adamw(1e-3)), wrt=nnx.Param)",
    )
    # The counter of steps of nnx.Optimizer is one.
    assert built <= streams + 1


def same_keys(a, b):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**31 - 1])
def test_keys_are_those_of_jax(seed):
    key = jax.random.key(seed)
    words = np.asarray(jax.random.key_data(key))
    for data in (0, 1, 77, 2**32 - 1):
        key, words = jax.random.fold_in(key, np.uint32(data)), fold_in_on_host(words, data)
        np.testing.assert_array_equal(words, jax.random.key_data(key))
    theirs, ours = nnx.Rngs(seed), rngs_of(seed)
    for _ in range(3):
        same_keys(theirs.params(), next_key(ours.params))
    assert theirs.params.count == ours.params.count


def drawn(draw, key):
    """Words of two keys of a stream, and its count."""
    stream = nnx.Rngs(key).params
    keys = [jax.random.key_data(draw(stream)) for _ in range(2)]
    return jnp.stack(keys), stream.count[...]


@pytest.mark.parametrize(
    "way",
    [
        jax.jit,
        jax.vmap,
        lambda f: lambda key: jax.jvp(lambda x: (x, f(key)), (1.0,), (1.0,))[0][1],
        lambda f: lambda key: f(jax.device_put(key, jax.devices()[0])),
    ],
    ids=["jit", "vmap", "jvp", "committed"],
)
def test_keys_are_those_of_flax_in_every_trace(way):
    key = jax.random.key(5) if way is not jax.vmap else jax.random.split(jax.random.key(5), 3)
    ours, theirs = (way(functools.partial(drawn, draw))(key) for draw in (next_key, lambda s: s()))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.map(lambda x: x.committed, ours) == jax.tree.map(lambda x: x.committed, theirs)


def test_layers_take_turns_with_flax():
    """One stream gives the same keys, whoever draws them."""
    ours, theirs = nnx.Rngs(params=3), nnx.Rngs(params=3)
    Linear(2, 3, rngs=ours)
    SubMConv3d(2, 2, 3, rngs=ours)
    for _ in range(4):  # weight and bias of both
        theirs.params()
    same_keys(ours.params(), theirs.params())


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_keys_of_other_kinds_are_drawn_by_jax(kind):
    ours, theirs = (nnx.Rngs(jax.random.key(3, impl=kind)) for _ in range(2))
    same_keys(next_key(ours.params), theirs.params())
    assert SubMConv3d(2, 2, 3, rngs=ours).weight.shape == (27, 2, 2)


def test_layers_are_built_inside_of_traces():
    def weight(seed):
        return SubMConv3d(2, 2, 3, rngs=nnx.Rngs(jax.random.key(seed))).weight[...]

    assert jax.jit(weight)(0).shape == jax.vmap(weight)(jnp.arange(3)).shape[1:] == (27, 2, 2)
    assert jax.eval_shape(lambda: SubMConv3d(2, 2, 3).weight[...]).shape == (27, 2, 2)
    outer = nnx.Rngs(0)
    with pytest.raises(Exception, match="different trace level"):
        jax.eval_shape(lambda: SubMConv3d(2, 2, 3, rngs=outer).weight[...])


@pytest.mark.parametrize("optimizer", [optax.adamw(1e-3), optax.sgd(0.1, 0.9), optax.lbfgs()])
def test_states_that_start_on_the_host_are_the_same(optimizer):
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2, jnp.bfloat16)}
    ours, theirs = starting_on_host(optimizer).init(params), optimizer.init(params)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert type(starting_on_host(optimizer)) is type(optimizer)
    traced = jax.jit(starting_on_host(optimizer).init)(params)
    assert jax.tree.structure(traced) == jax.tree.structure(theirs)


def test_a_trainer_starts_as_its_optimizer():
    trainer = Trainer(MinkUNet18(4, 20, width=0.125), optax.adamw(1e-3))
    wanted = optax.adamw(1e-3).init(trainer.params)
    jax.tree.map(np.testing.assert_array_equal, trainer.optimizer_state, wanted)
