"""Public networks on MinkowskiEngine, their files unmodified, with weights and inputs by seed.

They are read from clones of their repositories, which ``VOXAX_TEST_FCGF``, ``VOXAX_TEST_MASK3D``,
``VOXAX_TEST_OPENSCENE``, ``VOXAX_TEST_4DMOS``, ``VOXAX_TEST_MAPMOS``, ``VOXAX_TEST_MINKLOC3D`` and
``VOXAX_TEST_POINTCONTRAST`` name. Each case runs in training and in evaluation mode; its result is
``names`` and ``shapes`` of the state, the ``digest`` of outputs and gradients, and the statistics
of batch norm after training.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import enum
import functools
import importlib
import os
import sys
import types
import warnings
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

from . import inputs
from .networks import clusters

CLASSES = 13
VOXEL = 0.25  # of 4DMOS and MapMOS; a binary fraction divides alike in every dtype


# Weights by name, so that they do not depend on the order of the state.


def values(name, shape, seed=0):
    """Return the values of one entry of a state."""
    rng = inputs.generator(zlib.crc32(name.encode()) + seed)
    if not shape:
        return np.zeros((), np.int64)  # `num_batches_tracked`
    drawn = rng.uniform(-1, 1, shape)
    if len(shape) > 1 and shape[0] > 1:
        return drawn * np.sqrt(3 / np.prod(shape[:-1]))
    return 0.1 * drawn + (name.rpartition(".")[2] in ("weight", "running_var", "p"))


def state(names, shapes):
    """Return a state by the names and shapes of a network's entries."""
    return collections.OrderedDict(
        (str(name), torch.from_numpy(np.asarray(values(str(name), tuple(shapes[place])))))
        for place, name in enumerate(names)
    )


def described(net):
    """Return the names and the shapes of a network's state."""
    entries = net.state_dict()
    return {"names": list(entries), "shapes": [str(tuple(v.shape)) for v in entries.values()]}


# What an array amounts to.


def digest(array, samples=16):
    """Return an array's norm, 8 projections, none longer than it, and some of its values."""
    flat = np.asarray(array, np.float64).reshape(-1)
    place = np.arange(len(flat), dtype=np.uint64)
    drawn = (place * np.uint64(2654435761)) % np.uint64(2**32)
    found = [np.sqrt(flat @ flat)]
    for bit in range(8):
        signs = 1.0 - 2.0 * ((drawn >> np.uint64(bit + 12)) & np.uint64(1))
        found.append(flat @ signs / max(len(flat), 1) ** 0.5)
    chosen = np.linspace(0, len(flat) - 1, min(samples, len(flat))).astype(np.int64)
    return np.concatenate([found, flat[chosen]])


def digests(arrays):
    """Return the names of arrays and a row for each."""
    rows = np.zeros((len(arrays), 25))
    for place, array in enumerate(arrays.values()):
        short = digest(array)
        rows[place, : len(short)] = short
    return {"names": list(arrays), "rows": rows}


def by_coordinate(out):
    """Return a sparse tensor's coordinates and rows in lexicographic order."""
    sites, rows = out.C.detach().numpy(), out.F.detach().numpy()
    order = np.lexsort(sites.T[::-1])
    return sites[order], rows[order]


def summary(out):
    """Return the digest of rows, and of a sparse tensor's sites the number and a checksum."""
    if isinstance(out, torch.Tensor):
        return {"rows": len(out), "digest": digest(out.detach().numpy(), samples=256)}
    sites, rows = by_coordinate(out)
    return {
        "rows": len(rows),
        "sites": zlib.crc32(np.ascontiguousarray(sites, np.int32).tobytes()),
        "stride": list(out.tensor_stride),
        "digest": digest(rows, samples=256),
    }


def product(out):
    """Return a number that all rows of an output decide, with gradients of both signs."""
    if isinstance(out, torch.Tensor):
        rows = torch.arange(len(out)).reshape(-1, 1)
        return (out.flatten(1) * inputs.upstream(rows, out[0].numel(), out.dtype)).mean()
    return (out.F * inputs.upstream(out.C, out.F.shape[1], out.F.dtype)).mean()


# Stubs: what a file imports beside the network, and what its interpreter no longer has.


class Workspace:
    """Modules, paths and attributes as they were before, when it is left."""

    def __init__(self):
        self.undo = contextlib.ExitStack()

    def __enter__(self):
        before, path = dict(sys.modules), list(sys.path)

        def restore():
            # The path last: a package without a file finds its folder by it.
            for name in set(sys.modules) - set(before):
                if getattr(sys.modules[name], "_of_a_workspace", False) or self.of_clone(name):
                    del sys.modules[name]
            sys.modules.update(before)
            sys.path[:] = path

        self.root = None
        self.undo.callback(restore)
        return self

    def __exit__(self, *error):
        return self.undo.__exit__(*error)

    def of_clone(self, name):
        """Was this module, or package without a file, read from the clone?"""
        module = sys.modules[name]
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
        return self.root is not None and any(str(self.root) in str(place) for place in places)

    def clone(self, variable, *folders):
        """Put a folder of a clone before all others on the path, and return the clone."""
        folder = os.environ.get(variable)
        if not folder:
            raise SystemExit(f"set {variable} to a clone of the repository")
        self.root = Path(folder).resolve()
        sys.path.insert(0, str(self.root.joinpath(*folders)))
        return self.root

    def stub(self, name, **contents):
        """Register a module of these contents."""
        module = types.ModuleType(name)
        module._of_a_workspace = True
        vars(module).update(contents)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            self.set(sys.modules[parent], last, module)
        return module

    def set(self, owner, name, value):
        """Set an attribute for as long as the workspace."""
        missing = object()
        before = vars(owner).get(name, missing)
        setattr(owner, name, value)

        def restore():
            if before is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self.undo.callback(restore)


def fcgf(workspace):
    workspace.clone("VOXAX_TEST_FCGF")
    utf8 = codecs.lookup("utf-8")

    def search(name):
        return utf8 if name == "future_fstrings" else None

    codecs.register(search)  # a package's codec, for f-strings before Python 3.6


def mask3d(workspace):
    workspace.clone("VOXAX_TEST_MASK3D")
    workspace.stub("hydra").utils = types.SimpleNamespace(instantiate=lambda make: make())
    for name in ("third_party", "third_party.pointnet2"):
        workspace.stub(name)
    functions = {"furthest_point_sample": furthest_point_sample}
    workspace.stub("third_party.pointnet2.pointnet2_utils", **functions)
    names = {"scatter_max": None, "scatter_min": None}
    workspace.stub("torch_scatter", scatter_mean=scatter_mean, **names)
    # Positions are encoded in float32, which hides what float64 shows: `float()` keeps float64.
    to_float = torch.Tensor.float
    workspace.set(torch.Tensor, "float", lambda x: x if x.dtype is torch.float64 else to_float(x))
    workspace.undo.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")  # autocast, without CUDA
    import MinkowskiEngine

    # It joins the decomposed rows of scenes as if they were in the order of rows. They are in that
    # of a hash table in MinkowskiEngine on a CPU.
    if hasattr(MinkowskiEngine.SparseTensor, "_batchwise_row_indices"):

        def in_order(x):
            _, scenes = x.coordinate_manager.origin_map(x.coordinate_map_key)
            return [rows.sort()[0] for rows in scenes]

        name = "_batchwise_row_indices"
        workspace.set(MinkowskiEngine.SparseTensor, name, property(in_order))


def furthest_point_sample(points, number):
    """pointnet2's, in PyTorch: each time the point furthest from all.

    The first, and one of several as far, is that of the lowest coordinate: a scene's rows come in
    the order of a hash table in MinkowskiEngine.
    """
    found = torch.zeros(len(points), number, dtype=torch.int32)
    for scene, rows in enumerate(points):
        order = torch.from_numpy(np.lexsort(rows.numpy().T[::-1]))
        rows, last = rows[order], 0
        distance = torch.full((len(rows),), float("inf"), dtype=rows.dtype)
        for place in range(number):
            found[scene, place] = order[last]
            distance = torch.minimum(distance, ((rows - rows[last]) ** 2).sum(1))
            last = int(distance.numpy().argmax())
    return found


def scatter_mean(src, index, dim):
    """torch_scatter's, along axis 0."""
    assert dim == 0
    number = int(index.max()) + 1
    total = src.new_zeros((number, src.shape[1])).index_add(0, index, src)
    return total / torch.bincount(index, minlength=number).clamp(min=1)[:, None].to(src.dtype)


def openscene(workspace):
    workspace.clone("VOXAX_TEST_OPENSCENE")


def lightning(workspace):
    workspace.stub("pytorch_lightning", LightningModule=nn.Module)


def mos4d(workspace):
    workspace.clone("VOXAX_TEST_4DMOS", "src")
    lightning(workspace)


def mapmos(workspace):
    workspace.clone("VOXAX_TEST_MAPMOS", "src")
    lightning(workspace)


def minkloc3d(workspace):
    workspace.clone("VOXAX_TEST_MINKLOC3D")


def pointcontrast(workspace):
    """It is written for MinkowskiEngine 0.4: those of its names that 0.5 renamed."""
    workspace.clone("VOXAX_TEST_POINTCONTRAST", "pretrain", "pointcontrast")
    workspace.set(collections, "Sequence", collections.abc.Sequence)  # until Python 3.9
    import MinkowskiEngine as new

    regions = enum.Enum("RegionType", ["HYPERCUBE", "HYPERCROSS", "CUSTOM", "HYBRID"])

    def kernel_generator(kernel_size, stride, dilation, region_type, axis_types, dimension):
        assert region_type is regions.HYPERCUBE or set(axis_types) == {regions.HYPERCUBE}
        return new.KernelGenerator(kernel_size, stride, dilation, dimension=dimension)

    def layer(kind):
        return lambda has_bias, **named: kind(bias=has_bias, **named)

    def sparse_tensor(features, coords_key, coords_manager):
        named = {"coordinate_map_key": coords_key, "coordinate_manager": coords_manager}
        return new.SparseTensor(features, **named)

    key = property(lambda x: x.coordinate_map_key)
    manager = property(lambda x: x.coordinate_manager)
    workspace.set(new.SparseTensor, "coords_key", key)
    workspace.set(new.SparseTensor, "coords_man", manager)
    names = {**vars(new), "RegionType": regions, "KernelGenerator": kernel_generator}
    for name in ("MinkowskiConvolution", "MinkowskiConvolutionTranspose"):
        names[name] = layer(getattr(new, name))
    names["SparseTensor"] = sparse_tensor
    workspace.stub("MinkowskiEngine", **names)


# Networks: how to make one, and how to call it with a leaf.


class Network:
    """A network of a package; ``channels`` are those of its input."""

    def __init__(self, package, build, call, channels=3, **scan):
        self.package, self.build, self.call = package, build, call
        self.channels, self.scan = channels, scan


def imported(module, name):
    return getattr(importlib.import_module(module), name)


def config(**named):
    return types.SimpleNamespace(**named)


def call_sparse(me, net, rows, leaf):
    return {"out": net(me.SparseTensor(leaf, coordinates=rows))}


def call_levels(me, net, rows, leaf):
    out, levels = net(me.SparseTensor(leaf, coordinates=rows))
    return {"out": out, **{f"level{place}": level for place, level in enumerate(levels)}}


def res_unet():
    kind = imported("model.resunet", "ResUNetBN2C")
    return kind(1, 32, bn_momentum=0.05, normalize_feature=True, conv1_kernel_size=7, D=3)


def res16_unet():
    named = config(dilations=[1, 1, 1, 1], conv1_kernel_size=5, bn_momentum=0.02)
    return imported("models", "Res16UNet34C")(3, CLASSES, named, out_fpn=True)


def segmenter():
    """With ``conf/model/mask3d.yaml``, fewer queries."""
    return imported("models", "Mask3D")(
        config=config(backbone=res16_unet),
        hidden_dim=128,
        dim_feedforward=1024,
        num_queries=20,
        num_heads=8,
        num_decoders=3,
        dropout=0.0,
        pre_norm=False,
        use_level_embed=False,
        normalize_pos_enc=True,
        positional_encoding_type="fourier",
        gauss_scale=1.0,
        hlevels=[0, 1, 2, 3],
        non_parametric_queries=True,
        random_query_both=False,
        random_normal=False,
        random_queries=False,
        use_np_features=False,
        sample_sizes=[200, 800, 3200, 12800, 51200],
        max_sample_size=False,
        shared_decoder=True,
        num_classes=CLASSES,
        train_on_segments=True,
        scatter_type="mean",
        voxel_size=0.02,
    )


def call_segmenter(me, net, rows, leaf):
    x = me.SparseTensor(leaf, coordinates=rows)
    places = rows[:, 1:].to(leaf.dtype) * 0.02
    cells = [torch.floor(sites / 16) for sites in x.decomposed_coordinates]
    segments = [torch.unique(cell, dim=0, return_inverse=True)[1] for cell in cells]
    out = net(x, point2segment=segments, raw_coordinates=places)
    found = {"features": out["backbone_features"]}
    for place, level in enumerate([*out["aux_outputs"], out]):
        found[f"logits{place}"] = level["pred_logits"].flatten(0, 1)
        found[f"masks{place}"] = torch.cat(list(level["pred_masks"]))
    return found


def distilled():
    named = config(feature_2d_extractor="lseg", arch_3d="MinkUNet34C")
    return imported("models.disnet", "DisNet")(named)


def moving():
    return imported("mos4d.mos4d", "MOS4DNet")(VOXEL)


def places(rows, dtype):
    """Return a point in each cell, a fifth of a cell from its walls or further."""
    inside = 0.5 + 0.3 * inputs.features(len(rows), 3, torch.float64, seed=23)
    points = rows.double()
    points[:, 1:4] = (points[:, 1:4] + inside) * VOXEL
    return points.to(dtype)


def call_moving(me, net, rows, leaf):
    out = net(places(torch.cat([rows, rows[: len(rows) // 2]]), leaf.dtype))
    return {"out": out[:, 1:]}  # the first is infinite


def mapped():
    return imported("mapmos.mapmos_net", "MapMOSNet")(VOXEL)


def call_mapped(me, net, rows, leaf):
    """Half of the cells have two points: MinkowskiEngine rounds 1/3 to float32."""
    points = places(torch.cat([rows, rows[: len(rows) // 2]]), leaf.dtype)
    return {"out": net(points, torch.cat([leaf, leaf[: len(rows) // 2] / 2]))[:, None]}


def located(kind="MinkFPN_GeM"):
    """With ``models/minkloc3d.txt``."""
    planes, layers = [32, 64, 64], [1, 1, 1]
    return imported("models.minkloc", "MinkLoc")(kind, 1, 256, 256, planes, layers, 1, 5)


def call_located(me, net, rows, leaf):
    return {"out": net({"features": leaf, "coords": rows})}


def contrasted():
    net = config(normalize_feature=True, conv1_kernel_size=3)
    named = config(net=net, opt=config(bn_momentum=0.05))
    return imported("model.res16unet", "Res16UNet34C")(3, 32, named)


PACKAGES = {
    "fcgf": fcgf,
    "mask3d": mask3d,
    "openscene": openscene,
    "4dmos": mos4d,
    "mapmos": mapmos,
    "minkloc3d": minkloc3d,
    "pointcontrast": pointcontrast,
}
NETWORKS = {
    "ResUNetBN2C": Network("fcgf", res_unet, call_sparse, channels=1),
    "Res16UNet34C": Network("mask3d", res16_unet, call_levels),
    "Mask3D": Network("mask3d", segmenter, call_segmenter, in_order=True),
    "DisNet": Network("openscene", distilled, call_sparse),
    "MOS4DNet": Network("4dmos", moving, call_moving, channels=1, dimension=4),
    "MapMOSNet": Network("mapmos", mapped, call_mapped, channels=1, dimension=4),
    "MinkLoc3D": Network("minkloc3d", located, call_located, channels=1),
    "MinkLoc3D_NetVlad": Network(
        "minkloc3d", functools.partial(located, "MinkFPN_NetVlad"), call_located, channels=1
    ),
    "PointContrast": Network("pointcontrast", contrasted, call_sparse),
}


def scan(dimension=3, in_order=False):
    """Return sites that are dense enough to have neighbors, of two scenes."""
    rows = clusters(3, 100, groups=30, each=40, spread=4)
    if dimension == 4:
        time = torch.from_numpy(inputs.generator(24).randint(0, 3, (len(rows), 1)))
        rows = torch.cat([rows, time.int()], 1)
        rows = torch.cat([rows, rows[::2] + torch.IntTensor([0, 0, 0, 0, 1])])
    order = np.argsort(rows[:, 0].numpy(), kind="stable")
    return rows[torch.from_numpy(order)] if in_order else rows


@contextlib.contextmanager
def opened(package):
    """Import from a package's clone inside."""
    with Workspace() as workspace:
        PACKAGES[package](workspace)
        yield workspace


def run(me, dtype, name, training, weights=None):
    """Return what a network gives, with weights by seed or with a state."""
    network = NETWORKS[name]
    with opened(network.package):
        net = network.build()
        found = described(net)
        if weights is None:
            shapes = [tuple(value.shape) for value in net.state_dict().values()]
            weights = state(found["names"], shapes)
        net.load_state_dict(weights, strict=True)
        net.to(dtype).train(training)
        rows = scan(**network.scan)
        leaf = inputs.features(len(rows), network.channels, dtype, seed=25)
        leaf = (leaf + 1.5).requires_grad_()
        outs = network.call(me, net, rows, leaf)
        sum(product(out) for out in outs.values()).backward()
    found["out"] = {key: summary(out) for key, out in outs.items()}
    grads = {key: p.grad for key, p in net.named_parameters() if p.grad is not None}
    if leaf.grad is not None:
        grads["x"] = leaf.grad
    found["grad"] = digests(grads)
    if training:
        found["statistics"] = digests(dict(net.named_buffers()))
    return found


def cases():
    """Return each case by name: a function of the library and the dtype."""
    return {
        f"{name}_{mode}": functools.partial(run, name=name, training=mode == "train")
        for name in NETWORKS
        for mode in ("train", "eval")
    }
