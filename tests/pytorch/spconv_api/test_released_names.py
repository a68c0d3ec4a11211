"""Names and shapes of our networks against state dicts of the codebases' own classes."""

import json

import pytest
import released
from flax import nnx
from test_spconv_networks import require

from own_process import run_python
from voxax import models
from voxax.interop.sources import weights_of
from voxax.interop.state_dict import COUNTERS
from voxax.models import VoxelBackBone8x, VoxelNeXtBackbone, VoxelResBackBone8x

pytestmark = [pytest.mark.torch, pytest.mark.slow]

GRID = released.GRID
PTV3 = {
    "strides": (2,),
    "encoder_depths": (1, 2),
    "encoder_channels": (16, 32),
    "encoder_num_heads": (2, 4),
    "patch_size": 64,
    "decoder_depths": (1,),
    "decoder_channels": (16,),
    "decoder_num_heads": (2,),
}
LARGE = {"channels": (32, 64, 128, 256, 256), "out_channels": 256, "kernel_sizes": (5, 5, 3, 3)}


def network(name, **options):
    return models.create(name, in_channels=6, num_classes=13, rngs=nnx.Rngs(0), **options)


# By the package and the network there: ours, its source, and what precedes all names there.
CASES = {
    ("pointcept", "SpUNet-v1m1"): (lambda: network("spunet-34c"), "pointcept", ""),
    ("pointcept", "PTv3"): (lambda: network("ptv3-base", **PTV3), "pointcept", "backbone."),
    ("pointcept", "PTv3-rpe"): (
        lambda: network("ptv3-base-v1-s3dis", **PTV3),
        "pointcept-v1.5.1",
        "backbone.",
    ),
    ("openpcdet", "VoxelBackBone8x"): (lambda: VoxelBackBone8x(6, GRID), "openpcdet", ""),
    ("openpcdet", "VoxelResBackBone8x"): (lambda: VoxelResBackBone8x(6, GRID), "openpcdet", ""),
    ("openpcdet", "VoxelNeXt"): (lambda: VoxelNeXtBackbone(6, GRID), "openpcdet", ""),
    ("openpcdet", "VoxelNeXt-large"): (
        lambda: VoxelNeXtBackbone(6, GRID, **LARGE),
        "openpcdet",
        "",
    ),
    ("mmdetection3d", "middle_encoder"): (
        lambda: network("second", grid=GRID),
        "mmdetection3d",
        "middle_encoder.",
    ),
    ("torch_pointcloud", "SpUNet"): (lambda: network("spunet-34c"), "torch-pointcloud", ""),
    ("torch_pointcloud", "PTv3"): (lambda: network("ptv3-base"), "torch-pointcloud", ""),
    ("torch_pointcloud", "SECOND"): (
        lambda: models.create("second", in_channels=6, num_classes=1, grid=GRID),
        "torch-pointcloud",
        "",
    ),
    ("torch_pointcloud", "VoxelNeXt"): (
        lambda: models.create(
            "voxelnext", in_channels=6, num_classes=3, grid=GRID, groups=[[0], [1, 2]]
        ),
        "torch-pointcloud",
        "",
    ),
}


@pytest.fixture(scope="module")
def shapes():
    """Return the shapes by network of a package, whose classes are built once."""
    kept = {}

    def get(package):
        if package not in kept:
            require(package)
            said = run_python(released.__file__, package)
            kept[package] = json.loads(said.splitlines()[-1])
        return kept[package]

    return get


@pytest.mark.parametrize(("package", "name"), CASES)
def test_names_and_shapes(shapes, package, name):
    make, source, prefix = CASES[package, name]
    theirs = {
        prefix + key: tuple(shape)
        for key, shape in shapes(package)[name].items()
        if key.rpartition(".")[2] not in COUNTERS
    }
    ours = {key: value.shape for key, value in weights_of(make(), source).items()}
    if prefix:  # a part of the network: its head and the like are other classes there
        ours = {key: shape for key, shape in ours.items() if key.startswith(prefix)}
    assert ours == theirs


def test_two_versions_of_one_name(shapes):
    """SpUNet-v1m2 has the names of v1m1: a file cannot tell, and a warning says so."""
    found = shapes("pointcept")
    assert found["SpUNet-v1m1"] == found["SpUNet-v1m2"]
