"""Networks of JAX against the public ones of PyTorch: same weights, same numbers.

The public networks run in a process of their own (``reference.py``) on two real scans, with random
weights and the statistics of the scan, through spconv 2.3.8 on one thread where it is installed,
and otherwise through spconv's door of voxax. Their files are unmodified.

Gradients have PyTorch's in float64 as their measure: in float64 on both sides to 1e-7, with
statistics of the batch and in evaluation mode, and in float32 on ours to 1e-3.

The gradient of a network of ReLUs jumps where the input of one passes zero, and rounding moves some
across: on 48 cells of ground one such flip, of the 6,144 numbers of its layer, changed the gradient
of SECOND's first layer by up to 1.7e-2 of the largest value, and PyTorch's own gradient of
SpUNet34C's in float32 is 1.3e-3 from its float64. So the float32 run takes, at each ReLU, the
derivative on that side of zero where float64 is; nothing else is changed, and its outputs are those
of the plain program. That what it takes elsewhere than its own side lies within rounding of zero is
part of the test.
"""

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
import reference
import torch
from flax import nnx
from test_spconv_networks import SCANS, inputs, require  # noqa: F401

import voxax as vx
from own_process import run_python
from voxax.models import (
    SECOND,
    PTv3,
    SpUNet,
    VoxelBackBone8x,
    VoxelNeXt,
    VoxelNeXtBackbone,
    VoxelResBackBone8x,
)
from voxax.nn.modules import pointwise, sequential

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PTV3 = {"shuffle_orders": False, "drop_path": 0.0, "patch_size": reference.PATCH}
LEGACY = {**PTV3, **reference.SMALL, "legacy": True, "position": "relative"}
SONATA = {
    **PTV3,
    **reference.SMALL,
    "norm": "layer",
    "norm_epsilon": 1e-5,
    "stem": "linear",
    "positional_skip": False,
}
# With what no file holds as the source has it; and one network with batch norms of its own.
DEFAULTS, RELEASED = {"source": "torch-pointcloud"}, {"source": "torch-pointcloud-released"}
FORMS = {
    "SpUNet-defaults": DEFAULTS,
    "SpUNet-released": RELEASED,
    "SpUNet-v1m1": {"source": "pointcept"},
    "SECOND-defaults": DEFAULTS,
    "SECOND-released": RELEASED,
    "VoxelNeXt-defaults": DEFAULTS,
    "VoxelNeXt-released": RELEASED,
    "PTv3-base": {**DEFAULTS, "settings": "model"},
    "PTv3-legacy": RELEASED,
    "PTv3-defaults": DEFAULTS,
    "PTv3-sonata": DEFAULTS,
}


def voxelnext(grid):
    return VoxelNeXt(6, 3, grid, groups=[[0], [1, 2]])


def second(grid):
    return SECOND(6, 1, grid)


# How a network is made for the grid of a scan, and its first layer there.
CASES = {
    "SpUNet-defaults": (lambda grid: SpUNet(6, 13), "encoder.conv_input.0.weight"),
    "SpUNet-released": (lambda grid: SpUNet(6, 13), "encoder.conv_input.0.weight"),
    "SpUNet-v1m1": (lambda grid: SpUNet(6, 13), "conv_input.0.weight"),
    "SECOND-defaults": (second, "backbone_3d.conv_input.0.weight"),
    "SECOND-released": (second, "backbone_3d.conv_input.0.weight"),
    "VoxelNeXt-defaults": (voxelnext, "backbone_3d.conv_input.0.weight"),
    "VoxelNeXt-released": (voxelnext, "backbone_3d.conv_input.0.weight"),
    "PTv3-base": (lambda grid: PTv3(6, 13, **PTV3, fill="cycle"), "encoder.stem.stem.weight"),
    "PTv3-defaults": (
        lambda grid: PTv3(6, 13, **PTV3, **reference.SMALL),
        "encoder.stem.stem.weight",
    ),
    "PTv3-legacy": (lambda grid: PTv3(6, 13, **LEGACY), "encoder.stem.stem.weight"),
    "PTv3-sonata": (lambda grid: PTv3(6, 13, **SONATA), "encoder.stem.stem.weight"),
    "VoxelBackBone8x": (lambda grid: VoxelBackBone8x(6, grid), "conv_input.0.weight"),
    "VoxelResBackBone8x": (lambda grid: VoxelResBackBone8x(6, grid), "conv_input.0.weight"),
    "VoxelResBackBone8xVoxelNeXt": (lambda grid: VoxelNeXtBackbone(6, grid), "conv_input.0.weight"),
}

RELU = jax.nn.relu
# The scans are small: most of the time is the compiler's.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def outputs_of(name, model, voxels):
    """Arrays by the names of the reference, without its indices, and the voxels of sparse ones."""
    if name.startswith(("SpUNet", "PTv3")):
        return {"out": model(voxels)}
    if name.startswith("SECOND"):
        out = model(voxels)
        return {"out.box": out.boxes, "out.cls": out.classes, "out.dir_cls": out.directions}
    if name.startswith("VoxelNeXt"):
        out = model(voxels)
        return {
            f"out.{key}.{number}": out.voxels.replace_features(value)
            for number, group in enumerate(out.groups)
            for key, value in group.items()
        }
    first, second, third, *_, last = model.levels(voxels)
    return {"out.x_conv1": first, "out.x_conv2": second, "out.x_conv3": third, "out.encoded": last}


def loss_of(outputs):
    """The loss of the reference: means over all values but padding, which is zero."""
    total = 0.0
    for value in outputs.values():
        if isinstance(value, vx.Voxels):
            number = value.count.astype(value.features.dtype) * value.num_channels
            total += jnp.sum(value.features**2) / number
        else:
            total += jnp.mean(value**2)
    return total


def same(ours, theirs, row, limit):
    """Compare each output by its sites; ``row`` is the voxel of each of the scan's rows."""
    for name, value in ours.items():
        if not isinstance(value, vx.Voxels):  # theirs is [B, Y, X, C]
            found, expected = np.asarray(value).swapaxes(1, 2), theirs[name].numpy()
        elif name == "out":
            found, expected = np.asarray(value.features)[row], theirs[name].numpy()
        else:
            features = theirs.get(f"{name}.features", theirs.get(name)).numpy()
            sites = theirs.get(f"{name}.indices", theirs.get("out.voxel_indices")).numpy()
            rows = np.concatenate([sites[:, :1], sites[:, :0:-1]], axis=1)  # b, x, y, z
            order = np.lexsort(rows.T[::-1])
            np.testing.assert_array_equal(value.valid_coords(), rows[order])
            found, expected = value.valid_features(), features[order]
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= limit * np.abs(expected).max(), name


def voxels_of(arrays, dtype):
    coords = np.pad(arrays["coords"], ((0, 0), (1, 0))).astype(np.int32)
    features = arrays["features"].astype(dtype)
    return vx.Voxels.from_coords(coords, features, batch_size=1, return_inverse=True)


@jax.custom_vjp
def relu_with_slope(x, positive):
    """ReLU, with a derivative of one where ``positive`` and of zero elsewhere."""
    return RELU(x)


relu_with_slope.defvjp(
    lambda x, positive: (RELU(x), positive),
    lambda positive, g: (jnp.where(positive, g, jnp.zeros_like(g)), None),
)


def first_layer_gradient(name, model, voxels, source, tensor, slopes=None):
    """The gradient of the loss in the layout of the codebase, the outputs, the inputs of all ReLUs.

    ``slopes`` has for each ReLU where its derivative is one; None is the usual one.
    """
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(params, voxels, slopes):
        def loss(params):
            seen = []

            def relu(x):
                seen.append(x)
                return RELU(x) if slopes is None else relu_with_slope(x, slopes[len(seen) - 1])

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(jax.nn, "relu", relu)
                patch.setattr(pointwise, "relu", relu)
                patch.setattr(sequential, "_fuses", lambda *layers: False)  # norms with ReLUs
                out = outputs_of(name, nnx.merge(graph, params, rest, copy=True), voxels)
            return loss_of(out), (out, seen)

        return jax.grad(loss, has_aux=True)(params)

    grads, (out, seen) = run(params, voxels, slopes)
    gradient = vx.interop.sources.weights_of(nnx.merge(graph, grads, rest), source)[tensor]
    return gradient, out, seen


def run(name, model, voxels):
    """The outputs."""
    graph, state = nnx.split(model)
    forward = lambda state, voxels: outputs_of(name, nnx.merge(graph, state), voxels)  # noqa: E731
    return jax.jit(forward, compiler_options=QUICK)(state, voxels)


def near(found, expected, limit):
    """Compare gradients, on the scale of the largest value."""
    expected = expected.numpy()
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max()


@pytest.fixture(scope="module")
def references(inputs):  # noqa: F811
    """Run the reference of a network once, and return its results by scan."""
    kept = {}

    def get(name):
        if name not in kept:
            network = reference.NETWORKS[name]
            door = importlib.util.find_spec("spconv") is None
            if door and network.package == "torch_pointcloud":
                pytest.importorskip("torch_pointcloud", reason="torch-pointcloud is not installed")
            elif not door:
                require(network.package)
            by = "voxax" if door else "spconv"
            run_python(reference.__file__, inputs, by, name)
            kept[name] = {
                path.stem: torch.load(
                    inputs / f"{name}.{path.stem}.reference.pt", weights_only=True
                )
                for path in sorted(inputs.glob("*.npz"))
            }
        return kept[name]

    return get


@pytest.mark.lax_promotion  # flax's layers on grids promote float64
@pytest.mark.parametrize("scan", [Path(name).stem for name in SCANS])
@pytest.mark.parametrize("name", CASES)
def test_same_numbers(references, inputs, name, scan, tmp_path):  # noqa: F811
    theirs = references(name)[scan]
    make, tensor = CASES[name]
    with np.load(inputs / f"{scan}.npz") as file:
        arrays = dict(file)
    grid = networks.read_scan(inputs / f"{scan}.npz").grid
    package = reference.NETWORKS[name].package.replace("_", "-")

    def loaded(state):
        torch.save(state, tmp_path / "model.pth")
        form = FORMS.get(name, {"source": package})
        return vx.models.load(make(grid), tmp_path / "model.pth", **form)

    def taken(dtype, training):
        """The network in a mode, the planned voxels, and the voxel of each row of the scan."""
        state = theirs["state"]
        if dtype == np.float64:
            state = {k: v.double() if v.is_floating_point() else v for k, v in state.items()}
        model = loaded(state)
        voxels, row = voxels_of(arrays, dtype)
        planned = vx.plan(model, voxels)
        model.train() if training else model.eval()
        return model, planned, row

    with jax.enable_x64(True):
        model, voxels, row = taken(np.float64, training=True)
        gradient, out, _ = first_layer_gradient(name, model, voxels, package, tensor)
        same(out, theirs["train64"]["outputs"], row, 1e-9)
        near(gradient, theirs["train64"]["grads"][tensor], 1e-7)

        model, voxels, row = taken(np.float64, training=False)
        gradient, _, exact = first_layer_gradient(name, model, voxels, package, tensor)
        near(gradient, theirs["eval"]["grads"][tensor], 1e-7)
        exact = [np.asarray(x) for x in exact]

    model, voxels, row = taken(np.float32, training=False)
    slopes = [x > 0 for x in exact]
    gradient, out, seen = first_layer_gradient(name, model, voxels, package, tensor, slopes)
    same(out, theirs["eval"]["outputs"], row, 1e-4)
    near(gradient, theirs["eval"]["grads"][tensor], 1e-3)
    assert seen or not name.startswith(("SpUNet", "Voxel", "SECOND"))
    for x, wide in zip(seen, exact, strict=True):
        flipped = (np.asarray(x) > 0) != (wide > 0)
        assert np.abs(wide[flipped]).max(initial=0) <= 1e-4 * np.abs(wide).max()
    model.train()
    same(run(name, model, voxels), theirs["train"]["outputs"], row, 1e-4)
