"""Mistakes that users make often: each message names the value and the fix, and none comes from
inside.
"""

import importlib
import sys

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import voxax as vx
import voxax.nn.functional as F
from voxax import io, models
from voxax.cli import main
from voxax.models.checkpoint import load_arrays, save_checkpoint
from voxax.models.training import Trainer, masked_cross_entropy
from voxax.nn.modules import (
    BatchNorm,
    GlobalPool,
    Linear,
    MaxPool,
    ReLU,
    Sequential,
    SparseConv3d,
    SubMConv3d,
)

POSITIONS = np.random.default_rng(0).uniform(0, 4, (40, 3)).astype(np.float32)
FEATURES = np.ones((40, 4), np.float32)
ROWS = np.concatenate([POSITIONS, FEATURES[:, :1]], axis=1)  # x, y, z, intensity
COORDS = np.random.default_rng(0).integers(3, 30, (40, 3))


def voxels(channels=4, size=0.5):
    return vx.voxelize(POSITIONS, FEATURES[:, :channels], voxel_size=size)


def with_intensities():
    """Voxels of four axes, which are legal."""
    return vx.voxelize(ROWS, None, 0.5)


def conv(**options):
    return F.spatially_sparse_conv(voxels(), np.ones((27, 4, 8), np.float32), **options)


def depthwise(weight=None, **options):
    given = voxels()
    kernel_map = vx.kernel_map(given, kernel_size=3)
    weight = np.ones((27, 4), np.float32) if weight is None else weight
    return F.spatially_sparse_depthwise_conv(given.features, weight, kernel_map, **options)


def train(labels, model=None):
    model = Sequential(Linear(4, 5)) if model is None else model
    return Trainer(model, optax.sgd(0.1)).step(voxels(), labels)


def convert(**options):
    return lambda: vx.voxelize(POSITIONS, FEATURES, **options)


CAPACITY = voxels().capacity
COUNT = int(voxels().count)
# By mistake: the call, then what its message says: the value, then the fix.
MISTAKES = {
    "no voxel size": (convert(), "voxel_size is required.*voxel_size=0.1 for 10 cm"),
    "a voxel size of zero": (convert(voxel_size=0.0), "voxel_size=0.0.*must be positive"),
    "integer positions": (
        lambda: vx.voxelize(COORDS, FEATURES, 0.5),
        "got int64.*Voxels.from_coords",
    ),
    "positions that are NaN": (
        lambda: vx.voxelize(POSITIONS * np.float32("nan"), FEATURES, 0.5),
        "40 of 40 positions are NaN.*drop them with",
    ),
    "positions with five axes": (
        lambda: vx.voxelize(np.zeros((2, 5), np.float32), None, 0.5),
        r"D from 1 to 4.*\(2, 5\)",
    ),
    "features of other points": (
        lambda: vx.voxelize(POSITIONS, FEATURES[:-1], 0.5),
        r"\(39, 4\).*expected \[40, C\]",
    ),
    "coordinates without a batch column": (
        lambda: vx.Voxels.from_coords(COORDS, FEATURES),
        r"span \d+ to \d+ but batch_size=1.*int\[40, 3\].*without one.*need a column of zeros",
    ),
    "a batch index of floats": (
        convert(voxel_size=0.5, batch_index=np.zeros(40)),
        r"int\[40\], one per position.*got float64\[40\]",
    ),
    "no batch size under jit": (
        lambda: jax.jit(lambda b: vx.voxelize(POSITIONS, None, 0.5, b))(np.zeros(40, int)),
        "batch_size= must be given.*traced batch_index",
    ),
    "a small capacity": (
        convert(voxel_size=0.5, capacity=3),
        f"{COUNT} voxels .* capacity 3.*give capacity={vx.bucket_capacity(COUNT)}",
    ),
    "a capacity of floats": (
        convert(voxel_size=0.5, capacity=64.0),
        "capacity=64.0.*give an integer",
    ),
    "an unknown reduction": (convert(voxel_size=0.5, reduction="avg"), "'avg'.*known: mean, sum"),
    "other channels": (lambda: SubMConv3d(3, 8)(voxels()), "expects 3 channels.*the voxels have 4"),
    "half a kernel": (lambda: SubMConv3d(4, 8, 2.5), "kernel_size=2.5.*give an integer"),
    "half a stride": (
        lambda: conv(kernel_size=3, stride=(1, 1.5, 1)),
        r"stride=\(1, 1.5, 1\).*give an integer",
    ),
    "padding": (lambda: SparseConv3d(4, 8, 3, 2, padding=1), "padding=1.*leave it out.*spconv.md"),
    "indice_key": (
        lambda: SubMConv3d(4, 8, 3, indice_key="a"),
        "indice_key='a'.*leave it out.*share one kernel map",
    ),
    "bias": (lambda: SubMConv3d(4, 8, 3, bias=False), "bias=False.*use_bias="),
    "a bias that is no array": (
        lambda: conv(kernel_size=3, bias=True),
        r"bias=True.*give the array \[8\]",
    ),
    "groups": (lambda: SubMConv3d(4, 8, groups=3), "groups=3.*must divide in_channels=4"),
    "a model of arrays": (
        lambda: models.MinkUNet14(4, 5, planes=(8,) * 8, stem=8)(FEATURES),
        r"an array \[40, 4\].*vx.voxelize",
    ),
    "a normalization of arrays": (lambda: BatchNorm(4)(FEATURES), r"\[40, 4\].*vx.voxelize"),
    "an activation of a tuple": (lambda: ReLU()((1, 2)), "ReLU.*got tuple.*vx.voxelize"),
    "a function of arrays": (
        lambda: F.spatially_sparse_conv(FEATURES, np.ones((27, 4, 8), np.float32)),
        r"\[40, 4\].*vx.voxelize",
    ),
    "Linear behind GlobalPool": (
        lambda: Sequential(GlobalPool(), Linear(4, 5))(voxels()),
        r"an array \[1, 4\].*nnx.Linear",
    ),
    "a sum of other voxels": (
        lambda: voxels() + voxels(size=0.7),
        r"VoxelGeometry\(.*vx.union\(a, b\)",
    ),
    "an unknown algorithm": (
        lambda: SubMConv3d(4, 8, fwd_algo="implict"),
        "'implict'.*known: explicit_gemm, implicit_gemm",
    ),
    "a label of 255": (
        lambda: masked_cross_entropy(np.zeros((3, 5), np.float32), np.array([0, 255, 255])),
        "2 of 3 labels are 255.*ignore_label=255",
    ),
    "a label outside the classes": (
        lambda: train(np.full(CAPACITY, 5)),
        "labels are 5, outside the 5 classes.*count classes from 0",
    ),
    "labels of points": (
        lambda: train(np.zeros(CAPACITY + 1, int)),
        rf"\[{CAPACITY + 1}\] for logits of shape \[{CAPACITY}, 5\].*give \[N\]",
    ),
    "a model that returns a sum": (
        lambda: train(np.zeros(CAPACITY, int), Sequential(lambda v: v.features.sum())),
        r"returned \S+ \[\].*logits",
    ),
    "a wrong number of outputs": (
        lambda: depthwise(num_out_coords=COUNT - 1),
        f"num_out_coords={COUNT - 1}.*capacity is {CAPACITY}, its number of output voxels {COUNT}. "
        "Give one of the two",
    ),
    "features that are text": (
        lambda: vx.voxelize(POSITIONS, np.full((40, 1), "a"), 0.5),
        "dtype <U1.*give numbers",
    ),
    "features that are a list": (
        lambda: voxels().replace_features([[1.0]]),
        "of type list.*give an array",
    ),
    "half a scene": (convert(voxel_size=0.5, batch_size=1.5), "batch_size=1.5.*give an integer"),
    "half a neighbor": (
        lambda: vx.knn_search(vx.Points.make(POSITIONS), k=2.5),
        "k=2.5.*give an integer",
    ),
    "half a row": (lambda: vx.bucket_capacity(2.5), "n=2.5.*give an integer"),
    "half of the best": (
        lambda: vx.top_k(voxels(), voxels().features[:, 0], 2.5),
        "k=2.5.*give an integer",
    ),
    "strides of flax": (lambda: SparseConv3d(4, 8, 3, strides=2), "strides=2.*give stride="),
    "an algorithm": (
        lambda: SubMConv3d(4, 8, 3, algorithm="tiles"),
        "algorithm='tiles'.*give fwd_algo= and bwd_algo=",
    ),
    "a function's padding": (
        lambda: conv(kernel_size=3, padding=1),
        "spatially_sparse_conv has no argument padding=1.*leave it out.*spconv.md",
    ),
    "a map's padding": (lambda: vx.kernel_map(voxels(), padding=1), "padding=1.*spconv.md"),
    "a pooling's indice_key": (
        lambda: F.max_pool(voxels(), 2, indice_key="a"),
        "max_pool has no argument indice_key='a'.*leave it out",
    ),
    "a pooling module's padding": (lambda: MaxPool(2, padding=0), "padding=0.*leave it out"),
    "a linear layer's bias": (lambda: Linear(4, 8, bias=False), "bias=False.*use_bias="),
    "eps": (lambda: BatchNorm(4, eps=1e-3), "eps=0.001.*give epsilon="),
    "inplace": (lambda: ReLU(inplace=True), "inplace=True.*arrays are immutable"),
    "half a window": (lambda: MaxPool(2.5), "kernel_size=2.5.*give an integer"),
    "a function's half window": (lambda: F.max_pool(voxels(), 2.5), "=2.5.*give an integer"),
    "a kernel of a million taps": (
        lambda: SubMConv3d(4, 8, 100),
        r"kernel_size=\(100, 100, 100\) has 1000000 taps.*dilation=",
    ),
    "channels that are floats": (lambda: Linear(4.0, 8), "in_channels=4.0.*give an integer"),
    "no channels": (lambda: SubMConv3d(4, 0), "out_channels=0.*at least 1"),
    "a number for rngs": (lambda: SubMConv3d(4, 8, rngs=0), r"rngs=0.*nnx.Rngs\(0\)"),
    "an unknown dtype": (lambda: Linear(4, 8, dtype="float3"), "'float3'.*jnp.float32"),
    "a weight that is a list": (
        lambda: F.spatially_sparse_conv(voxels(), [[1.0]]),
        r"weight of type list.*give an array \[27, 4, C_out\]",
    ),
    "a weight in a dense layout": (
        lambda: F.spatially_sparse_conv(voxels(), np.ones((3, 3, 3, 4, 8), np.float32)),
        r"\(3, 3, 3, 4, 8\).*\[27, 4, C_out\]; weight.reshape\(27, \*weight.shape\[-2:\]\)",
    ),
    "a grouped weight in a dense layout": (
        lambda: F.spatially_sparse_conv(
            voxels(), np.ones((3, 3, 3, 2, 2, 8), np.float32), groups=2
        ),
        r"expected \[27, 2, 2, C_out / groups\].*weight.reshape\(27, \*weight.shape\[-3:\]\)",
    ),
    "a weight of other channels": (
        lambda: F.spatially_sparse_conv(voxels(), np.ones((3, 3, 3, 5, 8), np.float32)),
        r"\(3, 3, 3, 5, 8\).*expected \[27, 4, C_out\]$",
    ),
    "a depthwise weight in a dense layout": (
        lambda: depthwise(np.ones((3, 3, 3, 4), np.float32)),
        r"\(3, 3, 3, 4\): expected \[27, 4\].*depthwise_weight.reshape\(27, 4\)",
    ),
    "a convolution of points": (
        lambda: SubMConv3d(4, 8)(vx.Points.make(POSITIONS, FEATURES)),
        "SubMConv3d takes vx.Voxels, got Points.*vx.voxelize",
    ),
    "a batch of arrays": (
        lambda: vx.batch([POSITIONS, POSITIONS]),
        r"batch takes vx.Voxels as scenes, got an array \[40, 3\].*vx.voxelize",
    ),
    "a batch without a list": (lambda: vx.batch(voxels()), r"got one Voxels.*write \[a, b\]"),
    "a union of an array": (
        lambda: vx.union(voxels(), POSITIONS),
        r"as b, got an array \[40, 3\].*vx.voxelize",
    ),
    "neighbors of an array": (
        lambda: vx.knn_search(POSITIONS, k=2),
        r"knn_search takes vx.Points as points, got an array \[40, 3\].*vx.Points.make",
    ),
    "a plan of swapped arguments": (
        lambda: vx.plan(voxels(), Linear(4, 8)),
        "as model, got Voxels.*give it first",
    ),
    "tuning nothing": (lambda: vx.tune(voxels()), "as fn, got Voxels.*give it first"),
    "a sum with rows": (
        lambda: voxels() + np.ones((40, 4), np.float32),
        r"an array \[40, 4\].*voxels.map",
    ),
    "a tensor's shape": (lambda: voxels().shape, "no shape.*voxels.features"),
    "MinkowskiEngine's features": (lambda: voxels().F, "no F.*voxels.features"),
    "spconv's indices": (lambda: voxels().indices, "no indices.*voxels.coords"),
    "PyTorch's device": (lambda: voxels().cuda(), "no cuda.*jax.device_put"),
    "a grid of the whole world": (
        lambda: vx.Voxels.from_coords(
            np.array([[0] * 4, [0] + [10**6] * 3]), FEATURES[:2]
        ).to_dense(),
        r"\(1000001, 1000001, 1000001\).*give shape= and origin=",
    ),
    "a grid of other axes": (lambda: voxels().to_dense((8, 8)), r"\(8, 8\).*for each axis"),
    "a list of layers": (lambda: Sequential([Linear(4, 8)]), "layer 0 is a list.*one by one"),
    "a class for a layer": (
        lambda: Sequential(Linear(4, 8), ReLU),
        r"layer 1 is the class ReLU.*ReLU\(...\)",
    ),
    "a layer of flax": (
        lambda: Sequential(nnx.Linear(4, 8, rngs=nnx.Rngs(0)))(voxels()),
        "layer 0, nnx.Linear, takes arrays.*v.map",
    ),
    "a function of JAX": (
        lambda: Sequential(jax.nn.relu)(voxels()),
        "layer 0, jax.*relu, takes arrays.*v.map",
    ),
    "a trainer of swapped arguments": (
        lambda: Trainer(optax.sgd(0.1), Linear(4, 5)),
        "GradientTransformation.* and Linear.*then an optimizer of optax",
    ),
    "an optimizer's name": (lambda: Trainer(Linear(4, 5), "adam"), "Linear and str.*optax.adamw"),
    "no labels": (lambda: train(None), "labels of type NoneType.*give an array"),
    "labels that are text": (lambda: train("a"), "labels of type str.*give an array"),
    "no path": (lambda: io.read(None), "path=None.*give the path of a file"),
    "intensities as a fourth axis": (
        lambda: SubMConv3d(1, 8)(with_intensities()),
        r"SubMConv3d has ndim=3, the voxels are 4-D.*"
        r"the last one is none, but an intensity.*positions\[:, :3\] \(of coords\[:, :4\]\)",
    ),
    "intensities in a functional layer": (
        lambda: F.spatially_sparse_conv(with_intensities(), np.ones((27, 1, 8), np.float32)),
        r"expected \[81, 1, C_out\].*positions\[:, :3\]",
    ),
    "intensities under a kernel of three axes": (
        lambda: F.max_pool(with_intensities(), (2, 2, 2), 2),
        r"\(2, 2, 2\) has 3 entries for 4.*positions\[:, :3\]",
    ),
    "intensities in voxels of three sides": (
        lambda: vx.voxelize(ROWS, None, (0.5, 0.5, 0.5)),
        r"has 3 entries for 4 axes.*positions\[:, :3\]",
    ),
    "intensities on a grid": (
        lambda: with_intensities().to_dense((8, 8, 8)),
        r"\(8, 8, 8\).*4-D.*positions\[:, :3\]",
    ),
    "intensities of points on voxels": (
        lambda: vx.devoxelize(voxels(), ROWS),
        r"4-D positions and 3-D voxels.*positions\[:, :3\]",
    ),
    "rows of a scan for coordinates": (
        lambda: vx.Voxels.from_coords(ROWS, FEATURES),
        r"must be integers, got float32.*vx.voxelize\(rows\[:, :3\], rows\[:, 3:\], voxel_size\)",
    ),
    "a sum on other coordinates": (
        lambda: voxels() + convert(voxel_size=0.5, origin=(0.25, 0.0, 0.0))(),
        r"VoxelGeometry.* and VoxelGeometry.* \(\d+ voxels are in both; the first others are \[0, "
        r".*vx.union\(a, b\)",
    ),
    "a network without its sizes": (
        lambda: models.create("minkunet-14"),
        r"\('minkunet-14'\) without in_channels= and num_classes=.*in_channels=4, num_classes=20",
    ),
    "a network's name without its sizes": (
        lambda: models.create("minkunet14"),
        "'minkunet14'.*Did you mean 'minkunet-14'",
    ),
    "an unknown network": (
        lambda: models.create("minkunet", in_channels=3, num_classes=4),
        "'minkunet'.*Did you mean",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_by_the_value_and_the_fix(name):
    call, value_and_fix = MISTAKES[name]
    with pytest.raises(vx.VoxaxError, match=f"(?s){value_and_fix}"):
        call()


def test_a_checkpoint_of_another_network(tmp_path):
    tree = {"params": {"head": np.zeros((8, 5))}, "steps": np.asarray(1)}
    save_checkpoint(tmp_path, tree, {}, 1)
    other = {"params": {"head": np.zeros((8, 6))}, "steps": np.asarray(1)}
    with pytest.raises(vx.FileFormatError, match=r"params/head is \[8, 5\], here it is \[8, 6\]"):
        load_arrays(tmp_path, other)
    with pytest.raises(vx.FileFormatError, match="holds no complete checkpoint step"):
        load_arrays(tmp_path / "none", tree)


def test_networks_without_flax(monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    monkeypatch.delitem(sys.modules, "voxax.models")
    with pytest.raises(vx.MissingExtraError, match=r'needs flax: pip install "voxax\[nn\]"'):
        importlib.import_module("voxax.models")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "--cpu", "--capacity", "64"], "give a model, or --checkpoint FOLDER"),
        (["demo", "--resume", "--overwrite"], "give one of them"),
        (["demo", "--steps", "0"], "--steps 0 must be at least 1"),
        (["segment", "none.ply", "--checkpoint", "none"], "no voxax checkpoint in none"),
    ],
)
def test_commands_say_what_to_give(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_command_line_knows_its_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"voxax {vx.__version__}\n"
