"""The U-Net of the frozen data: outputs and all gradients of spconv 2.3.8 on a GPU.

Every difference has the tolerance that is stored with the result, which comes from the noise of
spconv's own repeated runs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.interop import from_spconv, spconv_offsets, to_spconv
from voxax.nn.modules import (
    BatchNorm,
    Linear,
    ReLU,
    Sequential,
    SparseConv3d,
    SparseConvTranspose3d,
    SubMConv3d,
)


class UNet(nnx.Module):
    """Submanifold, strided and inverse layers with shared pairs."""

    def __init__(self, grid):
        plain = {"use_bias": False}
        second = SubMConv3d(16, 16, **plain)
        self.stem = Sequential(SubMConv3d(6, 16, **plain), BatchNorm(16), ReLU(), second)
        growing = {"generative": True, "spatial_shape": grid}
        self.down = SparseConv3d(16, 32, 3, 2, **growing, **plain)
        self.mid = Sequential(SubMConv3d(32, 32, **plain), BatchNorm(32), ReLU())
        self.up = SparseConvTranspose3d(32, 16, kernel_shape=spconv_offsets(3, 1), **plain)
        self.head = Linear(32, 8)

    def __call__(self, voxels):
        fine = self.stem(voxels)
        up = self.up(self.mid(self.down(fine)), fine)
        return self.head(vx.cat([up, fine]))


def names(path):
    return path.replace(".layers", "")


def near(found, expected, tolerance):
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64))
    assert difference.max() <= tolerance


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_output_and_all_gradients(scans, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; it reads the data")
    path = scans / "golden" / "golden_net.pt"
    if not path.exists():
        pytest.skip(f"no golden data at {path}")
    cases = torch.load(path, weights_only=True)["cases"]
    (case,) = [case for case in cases if case["id"] == f"unet3d_{dtype}"]
    given, expected, state = case["input"], case["expect"], case["state_dict"]
    model = UNet(given["spatial_shape"])
    from_spconv(state, model, names=names)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    coords, features = given["indices"].numpy(), given["features"].numpy()
    size = {"batch_size": given["batch_size"]}
    voxels, rows = vx.Voxels.from_coords(coords, features, return_inverse=True, **size)
    targets = vx.Voxels.from_coords(
        expected["out_indices"].numpy(), expected["grad_out"].numpy(), **size
    )

    @jax.jit
    def run(params, features, voxels, upstream):
        def apply(params, features):
            module = nnx.merge(graph, params, rest, copy=True)
            return module(voxels.replace_features(features)).features

        out, pull = jax.vjp(apply, params, features)
        return out, *pull(upstream.astype(out.dtype))

    planned = vx.plan(model, voxels)
    out, grads, of_input = run(params, voxels.features, planned, targets.features)
    np.testing.assert_array_equal(targets.valid_coords(), voxels.valid_coords())
    count = int(voxels.count)
    near(np.asarray(out)[:count], expected["out_features"].numpy(), expected["atol_out"])
    near(
        np.asarray(of_input)[np.asarray(rows)],
        expected["grad_input"].numpy(),
        expected["atol_grad_input"],
    )
    found = to_spconv(nnx.merge(graph, grads, rest), names=names, like=state)
    for name, stored in expected["grad_params"].items():
        near(jnp.asarray(found[name]), stored["grad"].numpy(), stored["atol"])
