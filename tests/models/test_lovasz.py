"""The Lovász softmax loss against its definition, and against its authors' own code."""

import importlib.util
import os
import warnings
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import voxax as vx
from voxax.errors import InputError
from voxax.models.lovasz import lovasz_softmax
from voxax.models.training import Trainer, masked_cross_entropy
from voxax.nn.modules import SubMConv3d


def made(seed, number=400, classes=7, absent=2):
    """Logits and labels; the last classes have no label, and some rows are unlabeled."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (number, classes)).astype(np.float32)
    labels = rng.integers(-1, classes - absent, number).astype(np.int32)
    return logits, labels


def by_sets(logits, labels, classes="present"):
    """The extension from its definition: losses of the growing sets of the worst rows."""
    kept = labels >= 0
    logits, labels = logits[kept].astype(float), labels[kept]
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    losses = []
    for name in range(logits.shape[1]):
        truth = labels == name
        if classes == "present" and not truth.any():
            continue
        errors = np.abs(truth - chances[:, name])
        wrong, before, total = np.zeros(len(labels), bool), 0.0, 0.0
        for row in np.argsort(-errors):
            wrong[row] = True
            # IoU of the class where exactly these rows are wrong.
            predicted = truth ^ wrong
            loss = 1 - (truth & predicted).sum() / (truth | predicted).sum()
            total += errors[row] * (loss - before)
            before = loss
        losses.append(total)
    return np.mean(losses) if losses else 0.0


@pytest.mark.parametrize("classes", ["present", "all"])
@pytest.mark.parametrize("seed", [0, 1])
def test_definition(classes, seed):
    logits, labels = made(seed)
    loss = jax.jit(lambda a, b: lovasz_softmax(a, b, classes))(logits, labels)
    np.testing.assert_allclose(loss, by_sets(logits, labels, classes), atol=2e-6)


@pytest.fixture(scope="module")
def authors():
    root = os.environ.get("VOXAX_TEST_LOVASZ")
    if not root:
        pytest.skip("set VOXAX_TEST_LOVASZ to a clone of LovaszSoftmax")
    pytest.importorskip("torch")
    path = Path(root) / "pytorch" / "lovasz_losses.py"
    spec = importlib.util.spec_from_file_location("lovasz_losses", path)
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `is` with a string
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("classes", ["present", "all"])
@pytest.mark.parametrize("seed", range(10))
def test_the_authors_have_the_same_loss_and_gradient(authors, seed, classes):
    import torch

    logits, labels = made(seed)
    tensor = torch.from_numpy(logits).requires_grad_()
    kept = torch.from_numpy(labels >= 0)
    chances = torch.softmax(tensor, dim=1)[kept]
    theirs = authors.lovasz_softmax_flat(chances, torch.from_numpy(labels)[kept], classes)
    theirs.backward()
    loss, gradient = jax.value_and_grad(lovasz_softmax)(logits, labels, classes)
    np.testing.assert_allclose(loss, theirs.item(), atol=1e-6)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-6)


def test_rows_without_a_label_may_hold_anything():
    logits, labels = made(3)
    spoilt = np.where(labels[:, None] < 0, np.float32(np.nan), logits)
    other = np.where(labels < 0, 255, labels)
    value, gradient = jax.value_and_grad(lovasz_softmax)(logits, labels)
    again, own = jax.value_and_grad(lovasz_softmax)(spoilt, other, ignore_label=255)
    assert value == again
    np.testing.assert_array_equal(gradient, own)
    np.testing.assert_array_equal(np.asarray(own)[labels < 0], 0)
    assert lovasz_softmax(spoilt, np.full_like(labels, -1)) == 0


def test_extremes():
    labels = np.array([0, 1, 2, 1], np.int32)
    right = 200 * np.eye(3, dtype=np.float32)[labels]
    assert lovasz_softmax(right, labels) == 0
    assert lovasz_softmax(np.roll(right, 1, axis=1), labels) == 1
    gradient = jax.grad(lovasz_softmax)(right, labels)
    np.testing.assert_array_equal(gradient, 0)


def test_mistakes():
    logits, labels = made(0)
    with pytest.raises(InputError, match=r"labels of shape \[3\] for logits of shape \[400, 7\]"):
        lovasz_softmax(logits, labels[:3])
    with pytest.raises(InputError, match="labels of float32"):
        lovasz_softmax(logits, labels.astype(np.float32))
    with pytest.raises(InputError, match="outside the 7 classes"):
        lovasz_softmax(logits, np.where(labels < 0, 9, labels))
    voxels = vx.voxelize(np.zeros((3, 3)), np.ones((3, 7)), 1.0)
    for loss in (lovasz_softmax, masked_cross_entropy):
        with pytest.raises(InputError, match=r"logits is an array, got Voxels.*voxels\.features"):
            loss(voxels, labels)
    with pytest.raises(InputError, match="known: present, all"):
        lovasz_softmax(logits, labels, "some")


def test_a_trainer_adds_it_to_the_cross_entropy():
    logits, labels = made(3)
    voxels = vx.voxelize(np.arange(1200.0).reshape(400, 3), logits, voxel_size=1.0, capacity=512)
    shown = np.full(512, -1, np.int32)
    shown[:400] = labels
    losses = []
    for added in (None, lambda *a, **more: 0.5 * lovasz_softmax(*a, **more)):
        trainer = Trainer(SubMConv3d(7, 7, 1, rngs=nnx.Rngs(0)), optax.sgd(0.1), added_loss=added)
        own = trainer.logits(voxels)[:400]
        loss, _, _ = trainer.step(voxels, shown)
        losses.append(float(loss))
    expected = losses[0] + 0.5 * by_sets(own, shown[:400])
    np.testing.assert_allclose(losses[1], expected, rtol=1e-5)
