"""A PyTorch loop trains spconv's layers as a JAX one trains ours, from the same weights."""

import numpy as np
import optax
import pytest
from flax import nnx

import voxax as vx
from voxax.interop import from_spconv
from voxax.io.simulator import simulate_sweep
from voxax.models.training import Trainer
from voxax.nn import modules

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
spconv = pytest.importorskip("voxax.torch.spconv")

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.lax_promotion]

STEPS, CLASSES = 25, 6


class Theirs(torch.nn.Module):
    """Two levels with a skip connection."""

    def __init__(self):
        super().__init__()
        self.stem = spconv.SubMConv3d(2, 8, 3, indice_key="fine")
        self.norm = torch.nn.BatchNorm1d(8)
        self.down = spconv.SparseConv3d(8, 16, 2, 2, indice_key="down")
        self.deep = spconv.SubMConv3d(16, 16, 3)
        self.deep_norm = torch.nn.BatchNorm1d(16)
        self.up = spconv.SparseInverseConv3d(16, 8, 2, indice_key="down")
        self.head = torch.nn.Linear(16, CLASSES)

    def forward(self, x):
        fine = self.stem(x)
        fine = fine.replace_feature(self.norm(fine.features).relu())
        coarse = self.deep(self.down(fine))
        coarse = coarse.replace_feature(self.deep_norm(coarse.features).relu())
        return self.head(torch.cat([fine.features, self.up(coarse).features], 1))


class Ours(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.stem = modules.SubMConv3d(2, 8, 3, rngs=rngs)
        self.norm = modules.BatchNorm(8, rngs=rngs)
        self.down = modules.SparseConv3d(8, 16, 2, 2, rngs=rngs)
        self.deep = modules.SubMConv3d(16, 16, 3, rngs=rngs)
        self.deep_norm = modules.BatchNorm(16, rngs=rngs)
        self.up = modules.SparseConvTranspose3d(16, 8, 2, 2, rngs=rngs)
        self.head = modules.Linear(16, CLASSES, rngs=rngs)

    def __call__(self, voxels):
        fine = self.norm(self.stem(voxels)).map(nnx.relu)
        coarse = self.deep_norm(self.deep(self.down(fine))).map(nnx.relu)
        return self.head(vx.cat([fine, self.up(coarse, fine)]))


def test_training_converges_like_jax():
    torch.manual_seed(0)
    cloud = simulate_sweep(3)
    near = np.abs(cloud.positions[:, :2]).max(axis=1) < 8
    rows = np.floor(cloud.positions[near] / 0.4).astype(np.int32)
    rows, first = np.unique(rows, axis=0, return_index=True)
    rows -= rows.min(0) // 2 * 2  # from 0 on, on the same coarse cells
    features = np.column_stack([rows[:, 2:] / 8, np.ones(len(rows))]).astype(np.float32)
    coords = np.column_stack([np.zeros(len(rows), np.int32), rows])
    shape = (rows.max(0) // 2 * 2 + 2).tolist()
    x = spconv.SparseConvTensor(torch.from_numpy(features), torch.from_numpy(coords), shape, 1)
    labels = torch.from_numpy(cloud.labels[near][first]).long()

    net, model = Theirs(), Ours()
    from_spconv(net.state_dict(), model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    theirs = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels, ignore_index=-1)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())

    trainer = Trainer(model, optax.sgd(0.05, momentum=0.9))
    voxels = vx.Voxels.from_coords(coords, features)
    padded = np.full(voxels.capacity, -1, np.int32)
    padded[: len(rows)] = labels.numpy()
    ours = [float(trainer.step(voxels, padded)[0]) for _ in theirs]
    # The same numbers at first; later, rounding has grown, and both have learned the sweep.
    np.testing.assert_allclose(ours[:5], theirs[:5], rtol=1e-3)
    assert ours[-1] < 0.5 * ours[0]
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=0.1)
