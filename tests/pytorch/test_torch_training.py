"""A PyTorch loop trains a MinkUNet as the JAX one does, from the same weights on the same sweep."""

import numpy as np
import optax
import pytest

from voxax.interop import from_torch
from voxax.io.simulator import simulate_sweep
from voxax.models import MinkUNet14
from voxax.models.training import Trainer

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
vxt = pytest.importorskip("voxax.torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.lax_promotion]

STEPS, CLASSES = 25, 6


def test_training_converges_like_jax():
    torch.manual_seed(0)
    cloud = simulate_sweep(3)
    near = np.abs(cloud.positions[:, :2]).max(axis=1) < 8
    rows = np.floor(cloud.positions[near] / 0.4).astype(np.int32)
    rows, first = np.unique(rows, axis=0, return_index=True)
    features = np.column_stack([rows[:, 2:] / 8, np.ones(len(rows))]).astype(np.float32)
    coords = np.column_stack([np.zeros(len(rows), np.int32), rows])
    voxels = vxt.Voxels.from_coords(coords, torch.from_numpy(features))
    labels = torch.full((voxels.capacity,), -1)
    labels[: len(rows)] = torch.from_numpy(cloud.labels[near][first]).long()

    net = vxt.MinkUNet14(2, CLASSES, width=0.125)
    model = MinkUNet14(2, CLASSES, width=0.125)
    from_torch(net.state_dict(), model)

    voxels = vxt.plan(net, voxels)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    ours = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = net(voxels).features
        loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-1)
        loss.backward()
        optimizer.step()
        ours.append(loss.item())

    trainer = Trainer(model, optax.sgd(0.05, momentum=0.9))
    jax_voxels = voxels.to_jax()
    theirs = [float(trainer.step(jax_voxels, labels.numpy().astype(np.int32))[0]) for _ in ours]
    # The same numbers at first; later, rounding has grown, and both have learned the sweep.
    np.testing.assert_allclose(ours[:5], theirs[:5], rtol=1e-3)
    assert ours[-1] < 0.5 * ours[0]
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=0.1)
