"""Modules hash, compare, copy and pickle, whatever their sizes were given as; without ``rngs`` each
draws weights of its own."""

import copy
import functools
import inspect
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from voxax import models
from voxax.nn import modules

# How a user may write three sizes, and the number 2.
SPELLINGS = {
    "tuple": (tuple, int),
    "list": (list, int),
    "NumPy array": (np.asarray, np.int32),
    "list of NumPy integers": (lambda v: [np.int64(n) for n in v], np.int64),
    "array of JAX": (jnp.asarray, int),
    "range": (lambda v: range(v[0], v[-1] + 1) if list(v) == [2, 3, 4] else tuple(v), int),
}
MADE = {
    "Activation": lambda s, n: modules.Activation(jax.nn.relu6),
    "Batch": lambda s, n: modules.Batch(),
    "BatchNorm": lambda s, n: modules.BatchNorm(4, axis_name=["data", "model"]),
    "Cat": lambda s, n: modules.Cat("outer"),
    "ChannelToSpace": lambda s, n: modules.ChannelToSpace(s([2, 2, 1])),
    "Coarsen": lambda s, n: modules.Coarsen(s([2, 2, 1])),
    "ContinuousConv": lambda s, n: modules.ContinuousConv(4, 4, radius=1.0),
    "Crop": lambda s, n: modules.Crop(s([0, 0, 0]), s([2, 3, 4])),
    "DeformConv": lambda s, n: modules.DeformConv(4, 4, s([3, 3]), s([1, 2])),
    "Devoxelize": lambda s, n: modules.Devoxelize(),
    "Dilate": lambda s, n: modules.Dilate(s([2, 3, 4]), dilation=n(2)),
    "Dropout": lambda s, n: modules.Dropout(0.5, rngs=nnx.Rngs(0)),
    "DynamicConv": lambda s, n: modules.DynamicConv(4, 4, s([3, 3]), stride=s([1, 2])),
    "FocalConv": lambda s, n: modules.FocalConv(4, 4, s([3, 3, 3])),
    "GELU": lambda s, n: modules.GELU(),
    "GlobalPool": lambda s, n: modules.GlobalPool(),
    "GroupNorm": lambda s, n: modules.GroupNorm(4, 2),
    "Inject": lambda s, n: modules.Inject(),
    "InstanceNorm": lambda s, n: modules.InstanceNorm(4),
    "Intersection": lambda s, n: modules.Intersection(),
    "KernelPointConv": lambda s, n: modules.KernelPointConv(4, 4, extent=1.0),
    "LayerNorm": lambda s, n: modules.LayerNorm(4),
    "LeakyReLU": lambda s, n: modules.LeakyReLU(),
    "Linear": lambda s, n: modules.Linear(4, 4),
    "MaxPool": lambda s, n: modules.MaxPool(s([2, 3, 4]), s([2, 2, 1])),
    "MeanPool": lambda s, n: modules.MeanPool(n(2), s([2, 2, 1]), dilation=s([1, 1, 2])),
    "MinPool": lambda s, n: modules.MinPool(s([2, 2, 1])),
    "PillarEncoder": lambda s, n: modules.PillarEncoder(4, s([8, 8]), s([1, 1])),
    "Prune": lambda s, n: modules.Prune(),
    "ReLU": lambda s, n: modules.ReLU(),
    "Refine": lambda s, n: modules.Refine(s([2, 2, 1])),
    "Remat": lambda s, n: modules.Remat(modules.SubMConv3d(4, 4, s([3, 3, 3]))),
    "RMSNorm": lambda s, n: modules.RMSNorm(4),
    "Sequential": lambda s, n: modules.Sequential(modules.Linear(4, 4), modules.SiLU()),
    "SiLU": lambda s, n: modules.SiLU(),
    "SpaceToChannel": lambda s, n: modules.SpaceToChannel(s([2, 2, 1])),
    "Splat": lambda s, n: modules.Splat(),
    "SumPool": lambda s, n: modules.SumPool(s([2, 2, 1]), n(2)),
    "ToBEV": lambda s, n: modules.ToBEV(extent=s([2, 3, 4])),
    "TopK": lambda s, n: modules.TopK(5),
    "Union": lambda s, n: modules.Union(),
    "Unpool": lambda s, n: modules.Unpool(s([2, 2, 1]), n(2)),
    "VoxelFeatureEncoder": lambda s, n: modules.VoxelFeatureEncoder(4, s([8, 8]), s([1, 1, 2])),
    "Voxelize": lambda s, n: modules.Voxelize(s([1, 1, 2]), origin=s([0, 0, 1])),
    "ColumnBackbone": lambda s, n: models.ColumnBackbone(n(4), s([32, 16, 24])),
    "ConditionalPosition": lambda s, n: modules.ConditionalPosition(4, s([3, 3, 3])),
    "CrossAttention": lambda s, n: modules.CrossAttention(n(4), n(2)),
    "CylinderAttention": lambda s, n: modules.CylinderAttention(4, n(2), s([2, 3, 4])),
    "DropPath": lambda s, n: modules.DropPath(0.5, rngs=nnx.Rngs(0)),
    "GridPool": lambda s, n: modules.GridPool(4, 4, s([2, 2, 1])),
    "GridUnpool": lambda s, n: modules.GridUnpool(4, 4, 4, s([2, 2, 1])),
    "LayerScale": lambda s, n: modules.LayerScale(n(4)),
    "MLP": lambda s, n: modules.MLP(n(4), n(8)),
    "RelativeTable": lambda s, n: modules.RelativeTable(n(2), n(3)),
    "SceneAttention": lambda s, n: modules.SceneAttention(n(4), n(2)),
    "SerialOrders": lambda s, n: modules.SerialOrders(["z", "hilbert"], rngs=nnx.Rngs(0)),
    "SerializedAttention": lambda s, n: modules.SerializedAttention(n(4), n(2), n(16)),
    "WindowAttention": lambda s, n: modules.WindowAttention(4, 2, s([2, 3, 4]), shift=s([1, 1, 2])),
    "ConvNormAct": lambda s, n: models.ConvNormAct(4, 4, s([3, 3, 3]), rngs=nnx.Rngs(0)),
    "ResidualBlock": lambda s, n: models.ResidualBlock(n(4), n(8), rngs=nnx.Rngs(0)),
    "MinkUNet14": lambda s, n: models.MinkUNet14(4, 3, width=0.125),
    "VoxelMLP": lambda s, n: models.VoxelMLP(4, 3),
    "AnchorHead": lambda s, n: models.AnchorHead(n(4), n(2), n(2)),
    "BEVBackbone": lambda s, n: models.BEVBackbone(n(4), **bev(s)),
    "CenterHead": lambda s, n: models.CenterHead(n(4), [s([0, 1])], shared=n(4)),
    "CenterPoint": lambda s, n: models.CenterPoint(
        4, 2, s([32, 16, 24]), channels=s([2, 3, 4, 5]), bev=bev(s), shared=4
    ),
    "PTv3": lambda s, n: models.PTv3(4, 3, **ptv3(s)),
    "PTv3Block": lambda s, n: models.PTv3Block(n(4), n(2), n(16)),
    "PTv3Stage": lambda s, n: models.PTv3Stage(None, [], modules.SerialOrders(shuffle=False)),
    "MultiHeadSECOND": lambda s, n: models.MultiHeadSECOND(
        4, 2, s([32, 16, 24]), channels=s([2, 3, 4, 5]), bev=bev(s), shared=4
    ),
    "SECOND": lambda s, n: models.SECOND(4, 2, s([32, 16, 24]), bev=bev(s)),
    "SmallCenterPoint": lambda s, n: models.SmallCenterPoint(4, 2, s([32, 16, 24]), width=0.125),
    "SpUNet": lambda s, n: models.SpUNet(4, 3, blocks=s([1, 1]), channels=s([4, 5]), stem=n(4)),
    "VoxelBackBone8x": lambda s, n: models.VoxelBackBone8x(
        4, s([32, 16, 24]), channels=s([2, 3, 4, 5])
    ),
    "VoxelNeXt": lambda s, n: models.VoxelNeXt(
        4, 2, s([32, 16, 24]), channels=s([2, 3, 4, 4, 4]), out_channels=4
    ),
    "VoxelNeXtBackbone": lambda s, n: models.VoxelNeXtBackbone(
        4, s([32, 16, 24]), channels=s([2, 3, 4, 4, 4]), out_channels=4
    ),
}


def bev(s):
    """Arguments of a small backbone of the ground plane."""
    sizes = {"strides": [1, 2], "up_strides": [1, 2]}
    sizes |= {"layers": [1, 2], "channels": [3, 4], "up_channels": [3, 4]}
    return {name: s(size) for name, size in sizes.items()}


def ptv3(s):
    """Arguments of a small Point Transformer."""
    names = ("strides", "decoder_depths", "decoder_channels", "decoder_num_heads")
    sizes = dict(zip(names, ([2], [1], [4], [2]), strict=True))
    sizes |= {key: [1, 2] for key in ("encoder_depths", "encoder_num_heads")}
    return {name: s(size) for name, size in sizes.items()} | {"encoder_channels": s([4, 6])}


def conv(cls, s, n):
    how = (s([2, 3, 4]), s([2, 2, 1]), s([1, 2, 1]))
    if cls.NDIM not in (None, 3):
        how = (n(2), n(2), n(1))
    if issubclass(cls, modules.SubMConv):
        how = (how[0], n(1), n(1))
    return cls(n(4), n(4), *how)


for _name, _cls in inspect.getmembers(modules):
    if isinstance(_cls, type) and issubclass(_cls, modules.SpatiallySparseConv):
        MADE[_name] = functools.partial(conv, _cls)
MADE["SpatiallySparseConv"] = lambda s, n: modules.SpatiallySparseConv(
    4, 4, s([2, 3, 4]), s([2, 2, 1]), generative=True, spatial_shape=s([2, 3, 4])
)
MADE["SpatiallySparseDepthwiseConv"] = lambda s, n: modules.SpatiallySparseDepthwiseConv(
    4, s([2, 3, 4]), n(2), kernel_shape=[[0, 0, 0], [0, 0, 1]]
)
for _name in ("SparseDynamicConv", "SparseDynamicConv2d", "SparseDynamicConv3d"):
    _cls = getattr(modules, _name)
    MADE[_name] = lambda s, n, cls=_cls: cls(4, 4, 3, learn_size=True)


def test_every_module_is_here():
    public = {
        name
        for package in (modules, models)
        for name, value in ((name, getattr(package, name)) for name in package.__all__)
        if isinstance(value, type) and issubclass(value, nnx.Module)
    }
    assert public - set(MADE) == {"CenterDetector", "GroundDetector", "MinkUNet", "UNet"}


@pytest.mark.parametrize("name", MADE)
def test_they_hash_compare_copy_and_pickle(name):
    module = MADE[name](tuple, int)
    graph, state = nnx.split(module)
    assert isinstance(hash(graph), int)
    assert isinstance(hash(jax.tree.structure(module)), int)
    for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert nnx.split(other)[0] == graph
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(nnx.state(other)), strict=True):
            assert a.dtype == b.dtype
            if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                np.testing.assert_array_equal(a, b)
    count = functools.partial(jax.jit, static_argnums=0)(
        lambda graph, state: len(jax.tree.leaves(nnx.merge(graph, state, copy=True)))
    )
    assert count(graph, state) == len(jax.tree.leaves(module))


# Their entries above give rngs.
SEEDED = ("ConvNormAct", "ResidualBlock")


def drawn(module):
    """The random parameters of a module: those whose entries differ."""
    leaves = map(np.asarray, jax.tree.leaves(nnx.state(module, nnx.Param)))
    return [leaf for leaf in leaves if leaf.size > 1 and np.ptp(leaf) > 0]


@pytest.mark.parametrize("name", [name for name in MADE if name not in SEEDED])
def test_without_rngs_no_two_layers_share_weights(name):
    made = [drawn(MADE[name](tuple, int)) for _ in range(2)]
    assert len(made[0]) == len(made[1])
    for one, other in itertools.combinations([*made[0], *made[1]], 2):
        if one.shape == other.shape:
            assert not np.array_equal(one, other)


def test_without_rngs_weights_follow_from_the_order_of_building(monkeypatch):
    """Also in traces, whose results are constants of the process that traced."""

    def build():
        return [nnx.state(modules.Linear(4, 4), nnx.Param) for _ in range(2)]

    def kernels(states):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(states) if leaf.ndim == 2]

    runs = []
    for _ in range(2):
        monkeypatch.setattr(modules.constructor, "_made", itertools.count(1))
        jax.eval_shape(lambda: build())  # takes two keys
        runs.append([*kernels(build()), *kernels(jax.jit(lambda: build())())])
    np.testing.assert_array_equal(*runs)
    for one, other in itertools.combinations(runs[0], 2):
        assert not np.array_equal(one, other)
    seeded = kernels(nnx.state(modules.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Param))
    assert not any(np.array_equal(seeded[0], other) for other in runs[0])


WITH_CAPACITY = [
    name
    for name, cls in inspect.getmembers(modules)
    if isinstance(cls, type) and "capacity" in inspect.signature(cls).parameters
]
ARGUMENTS = {
    "TopK": (5,),
    "Crop": (0, 2),
    "Voxelize": (1.0,),
    "PillarEncoder": (4, (8, 8), 1.0),
    "VoxelFeatureEncoder": (4, (8, 8), 1.0),
    **{name: (4, 4) for name in WITH_CAPACITY if "Conv" in name},
    "SpatiallySparseDepthwiseConv": (4,),
    "ConditionalPosition": (4,),
    "GridPool": (4, 4),
}


@pytest.mark.parametrize("name", WITH_CAPACITY)
def test_capacities_given_as_arrays_are_the_same_module(name):
    make = functools.partial(getattr(modules, name), *ARGUMENTS.get(name, ()))
    plain = nnx.split(make(capacity=64))[0]
    for capacity in (np.int64(64), np.asarray(64), jnp.asarray(64)):
        other = nnx.split(make(capacity=capacity))[0]
        assert (other == plain, hash(other) == hash(plain)) == (True, True)


@pytest.mark.parametrize("spelling", list(SPELLINGS)[1:])
@pytest.mark.parametrize("name", MADE)
def test_other_spellings_are_the_same_module(name, spelling):
    plain, other = MADE[name](tuple, int), MADE[name](*SPELLINGS[spelling])
    ours, theirs = nnx.split(plain)[0], nnx.split(other)[0]
    assert (ours == theirs, hash(ours) == hash(theirs)) == (True, True)
