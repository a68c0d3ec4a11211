"""The loss that ignores padding, and the trainer on a problem small enough to learn."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from voxax.errors import CapacityError, InputError
from voxax.geometry import Plan
from voxax.io.examples import Example, Preparation
from voxax.io.point_cloud import PointCloud
from voxax.models import VoxelMLP
from voxax.models.training import Trainer, count_outside, masked_cross_entropy
from voxax.nn.modules import Linear, ReLU, Sequential, SparseConv3d, SubMConv3d


def test_loss_by_hand():
    logits = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]], jnp.float32))
    loss = masked_cross_entropy(logits, jnp.array([0, 1]))
    np.testing.assert_allclose(loss, -(np.log(0.5) + np.log(0.75)) / 2, rtol=1e-6)


def test_unlabeled_rows_count_for_nothing_even_if_nan():
    logits = jnp.array([[1.0, -1.0], [0.3, 0.2], [jnp.nan, jnp.inf], [2.0, 5.0]], jnp.float32)
    labels = jnp.array([0, 1, -1, -1])
    value, gradient = jax.value_and_grad(masked_cross_entropy)(logits, labels)
    np.testing.assert_allclose(value, masked_cross_entropy(logits[:2], labels[:2]), rtol=1e-6)
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[2:] == 0).all()


def test_no_label_at_all_is_no_loss():
    value, gradient = jax.value_and_grad(masked_cross_entropy)(
        jnp.ones((3, 2), jnp.float32), jnp.full(3, -1)
    )
    assert float(value) == 0.0
    assert (np.asarray(gradient) == 0).all()


def test_class_weights_weigh_the_mean():
    logits = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]], jnp.float32))
    weights = jnp.array([3.0, 1.0], jnp.float32)
    loss = masked_cross_entropy(logits, jnp.array([0, 1]), weights)
    np.testing.assert_allclose(loss, -(3 * np.log(0.5) + np.log(0.75)) / 4, rtol=1e-6)


@pytest.mark.parametrize("ways", [[], ["portable"]], ids=["native", "portable"])
def test_the_weight_of_an_ignored_class_is_not_read(ways, request):
    """An inverse frequency of a class without rows is infinite."""
    for way in ways:
        request.getfixturevalue(way)
    logits = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]], jnp.float32))
    weights, labels = jnp.array([jnp.inf, 2.0], jnp.float32), jnp.array([1, 1, 0])
    loss = functools.partial(masked_cross_entropy, ignore_label=0)
    value, gradient = jax.value_and_grad(loss)(logits, labels, weights)
    np.testing.assert_allclose(value, -(np.log(0.5) + np.log(0.75)) / 2, rtol=1e-6)
    assert np.isfinite(gradient).all()


def test_bfloat16_logits_are_summed_in_float32():
    loss = masked_cross_entropy(jnp.ones((4, 3), jnp.bfloat16), jnp.zeros(4, jnp.int32))
    assert loss.dtype == jnp.float32


def scene(seed=0, count=120) -> Example:
    """Low and high points: the height feature alone tells the classes apart."""
    rng = np.random.default_rng(seed)
    positions = rng.uniform(0, 6, (count, 3))
    labels = (positions[:, 2] > 3).astype(int)
    labels[:5] = -1
    cloud = PointCloud(positions, {}, labels)
    return Preparation(0.5, min_capacity=128)(cloud, positions[:, 2])


def trainer(seed=0, rate=0.2, model=None) -> Trainer:
    model = VoxelMLP(5, 2, width=16, depth=2, rngs=nnx.Rngs(seed)) if model is None else model
    return Trainer(model, optax.sgd(rate, momentum=0.8), np.array([1.0, 1.5]))


@pytest.fixture(scope="module")
def trained() -> Trainer:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        learner = trainer()
        for step in range(60):
            example = scene(step % 6)
            learner.step(example.voxels, example.labels)
    return learner


def test_trainer_learns(trained):
    held_out = scene(99)
    predicted = trained.logits(held_out.voxels).argmax(-1)
    known = held_out.labels >= 0
    assert (predicted == held_out.labels)[known].mean() > 0.95
    assert trained.steps == 60
    # One training and one evaluation program.
    assert trained.programs == 2


def test_step_says_loss_prediction_and_drops():
    learner, example = trainer(), scene()
    losses = [learner.step(example.voxels, example.labels) for _ in range(15)]
    loss, prediction, dropped = losses[-1]
    assert float(loss) < 0.7 * float(losses[0][0])
    assert prediction.shape == (example.voxels.capacity,)
    assert int(dropped) == 0
    assert learner.programs == 1


def test_logits_refuse_what_a_level_inside_the_network_lost():
    model = SparseConv3d(5, 2, 2, 2, rngs=nnx.Rngs(0))
    voxels = jax.tree.map(jnp.asarray, scene().voxels)
    geometry = dataclasses.replace(voxels.geometry, level_capacities=(((2, 2, 2), 1),))
    assert int(voxels.num_dropped) == 0
    with pytest.raises(CapacityError, match=r"stride \(2, 2, 2\): \d+ rows lost"):
        trainer(model=model).logits(dataclasses.replace(voxels, geometry=geometry))


def test_compile_changes_nothing():
    learner, example = trainer(), scene()
    before = jax.tree.map(np.asarray, learner.tree())
    learner.compile(example.voxels, example.labels)
    assert learner.programs == 1
    jax.tree.map(np.testing.assert_array_equal, learner.tree(), before)
    learner.step(example.voxels, example.labels)
    assert learner.programs == 1


def test_tree_round_trips(trained):
    tree = jax.tree.map(np.asarray, trained.tree())
    restored = trainer(seed=7)
    restored.load_tree(tree)
    assert restored.steps == trained.steps
    jax.tree.map(np.testing.assert_array_equal, restored.tree(), tree)
    example = scene(50)
    np.testing.assert_array_equal(restored.logits(example.voxels), trained.logits(example.voxels))
    # The optimizer's state came along too: the next step is the same.
    loss, _, _ = restored.step(example.voxels, example.labels)
    twin = trainer(seed=8)
    twin.load_tree(tree)
    np.testing.assert_array_equal(loss, twin.step(example.voxels, example.labels)[0])
    jax.tree.map(np.testing.assert_array_equal, twin.tree(), restored.tree())


def test_a_tree_of_other_arrays_is_refused(trained):
    tree = jax.tree.map(np.asarray, trained.tree())
    learner = trainer(seed=7)
    before = jax.tree.map(np.asarray, learner.tree())
    changes = {
        "float64, here it is float32": lambda array: array.astype(np.float64),
        "int32, here it is float32": lambda array: array.astype(np.int32),
        "is of another network": lambda array: array[..., None],
    }
    for said, change in changes.items():
        with pytest.raises(InputError, match=said):
            learner.load_tree({**tree, "params": jax.tree.map(change, tree["params"])})
    with pytest.raises(InputError, match="here it is not there"):
        learner.load_tree({**tree, "more": np.zeros(3)})
    jax.tree.map(np.testing.assert_array_equal, learner.tree(), before)


def test_model_is_a_copy_with_the_current_parameters(trained):
    example = scene(3)
    model = trained.model()
    model.eval()
    np.testing.assert_allclose(
        np.asarray(model(jax.tree.map(jnp.asarray, example.voxels)).features),
        trained.logits(example.voxels),
        rtol=1e-5,
        atol=1e-5,
    )


def test_planned_convolutions_train():
    rngs = nnx.Rngs(0)
    model = Sequential(SubMConv3d(5, 8, 3, rngs=rngs), ReLU(), Linear(8, 2, rngs=rngs))
    examples = [scene(seed) for seed in range(3)]
    plan = Plan.record(model, examples[0].voxels).fitted([e.voxels for e in examples], 1.1)
    learner = trainer(model=model)
    losses = [
        float(learner.step(plan.attach(e.voxels), e.labels)[0]) for _ in range(8) for e in examples
    ]
    assert np.mean(losses[-3:]) < 0.5 * np.mean(losses[:3])
    assert learner.programs == 1


LOGITS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "int64", "uint32"])
@pytest.mark.parametrize("label", [3, 100, 255, 2**32 + 1])
def test_a_label_of_no_class_is_an_error_with_its_value(dtype, label):
    if label > np.iinfo(dtype).max:
        pytest.skip(f"{dtype} holds no {label}")
    labels = np.array([0, 1, 2, 0, 1, 2, label, label], np.dtype(dtype))
    message = f"2 of 8 labels are {label}, outside the 3 classes 0 to 2.*ignore_label={label}"
    with pytest.raises(InputError, match=message):
        masked_cross_entropy(jnp.asarray(LOGITS), labels)
    known = masked_cross_entropy(jnp.asarray(LOGITS[:6]), labels[:6])
    ignored = masked_cross_entropy(jnp.asarray(LOGITS), labels, ignore_label=label)
    np.testing.assert_array_equal(ignored, known)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("labels", [[0, 1, 255], [0, 3, 7], [-1, -5, 2]])
def test_traced_rows_of_no_class_do_not_count(labels, weights):
    labels = np.array([*labels, 0, 1, 2, 1, 0], np.int32)
    weights = None if weights is None else jnp.asarray(weights, jnp.float32)
    cleared = np.where((labels >= 0) & (labels < 3), labels, -1)
    given = jax.jit(jax.value_and_grad(masked_cross_entropy))
    want = given(jnp.asarray(LOGITS), jnp.asarray(cleared), weights)
    got = given(jnp.asarray(LOGITS), jnp.asarray(labels), weights)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert np.isfinite(got[1]).all()
    outside = (labels >= 3).sum()
    assert int(count_outside(jnp.asarray(labels), 3)) == outside
    assert int(count_outside(jnp.asarray(labels), 3, 255)) == outside - (labels == 255).sum()


def test_a_named_class_does_not_count():
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 0], np.int32)
    loss = masked_cross_entropy(jnp.asarray(LOGITS), labels, ignore_label=0)
    np.testing.assert_allclose(
        loss, masked_cross_entropy(jnp.asarray(LOGITS), np.where(labels == 0, -1, labels))
    )


@pytest.mark.parametrize("weights", [[1, 2], [1, 2, 3, 4], 1.0, [[1, 2, 3]], []])
def test_one_weight_for_each_class(weights):
    logits, labels = jnp.ones((4, 3)), jnp.array([0, 1, 2, -1])
    weights = jnp.asarray(weights)
    for call in (masked_cross_entropy, jax.jit(masked_cross_entropy)):
        with pytest.raises(InputError, match=r"class_weights of shape .* for 3 classes"):
            call(logits, labels, weights)


def test_labels_are_integers():
    with pytest.raises(InputError, match="labels of float32: expected integers"):
        masked_cross_entropy(jnp.asarray(LOGITS), jnp.zeros(8, jnp.float32))


def test_the_trainer_refuses_labels_of_no_class_before_it_changes():
    learner, example = trainer(), scene()
    labels = np.array(example.labels)
    learner.step(example.voxels, labels)
    before = jax.tree.map(np.asarray, learner.tree())
    labels[3] = 255
    with pytest.raises(InputError, match=r"1 of .* labels are 255, outside the 2 classes"):
        learner.step(example.voxels, labels)
    jax.tree.map(np.testing.assert_array_equal, learner.tree(), before)
    # On a device they are counted: to read them would stop the device.
    loss = learner.step(example.voxels, jnp.asarray(labels, jnp.int32))[0]
    assert int(learner.outside) == 1
    assert np.isfinite(loss)


def test_the_trainer_ignores_the_named_label():
    example = scene()
    losses = []
    for unknown, options in ((-1, {}), (255, {"ignore_label": 255})):
        labels = np.where(np.arange(len(example.labels)) % 3 == 0, unknown, example.labels)
        model = VoxelMLP(5, 2, width=16, depth=2, rngs=nnx.Rngs(0))
        learner = Trainer(model, optax.sgd(0.2), **options)
        losses.append(float(learner.step(example.voxels, labels)[0]))
        assert int(learner.outside) == 0
    assert losses[0] == losses[1]


@pytest.mark.parametrize("optimizer", [optax.adamw(1e-3), optax.adam(1e-3), optax.lamb(1e-3)])
def test_optimizers_that_mix_dtypes_work_under_strict_promotion(optimizer):
    example = scene()
    learner = Trainer(VoxelMLP(5, 2, width=16, depth=2, rngs=nnx.Rngs(0)), optimizer)
    assert np.isfinite(learner.step(example.voxels, example.labels)[0])
