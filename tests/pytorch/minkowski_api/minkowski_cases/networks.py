"""Networks of MinkowskiEngine's own examples, unmodified, with weights by seed.

``VOXAX_TEST_MINKOWSKIENGINE`` names a clone of its repository. Some examples import ``open3d`` and
``sklearn``, which get empty stand-ins, and download a point cloud unless ``1.ply`` lies in the
working folder: an empty file stands there. Dropout is off: its numbers are PyTorch's own.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
import types

import numpy as np
import torch

from . import inputs
from .initial import initial, short


def example(module):
    """Import one of the examples."""
    clone = os.environ["VOXAX_TEST_MINKOWSKIENGINE"]
    if clone not in sys.path:
        sys.path.insert(0, clone)
    for name in ("open3d", "sklearn", "sklearn.metrics"):
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
    sys.modules["open3d"].__version__ = "0.18.0"
    sys.modules["sklearn"].metrics = sys.modules["sklearn.metrics"]
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        open("1.ply", "w").close()
        try:
            return importlib.import_module(f"examples.{module}")
        finally:
            os.chdir(here)


def clusters(dimension, extent, groups=40, each=25, spread=5, scenes=2, seed=21):
    """Distinct sites in groups: neighbors exist, and the coarsest level has several sites."""
    rng = inputs.generator(seed)
    parts = []
    for scene in range(scenes):
        centers = rng.randint(0, extent, (groups, 1, dimension))
        sites = centers + rng.randint(-spread, spread + 1, (groups, each, dimension))
        sites = np.unique(sites.reshape(-1, dimension), axis=0)
        parts.append(np.concatenate([np.full((len(sites), 1), scene), sites], 1))
    rows = np.concatenate(parts)
    return torch.from_numpy(rows[rng.permutation(len(rows))].astype(np.int32))


def build(module, name, *sizes, small=None, **arguments):
    """Make a network of an example; ``small`` replaces class attributes, such as widths."""
    kind = getattr(example(module), name)
    if small:
        kind = type(name, (kind,), small)
    return kind(*sizes, **arguments)


def prepared(make, dtype):
    net = inputs.fill(make(), dtype)
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return net.train()


def gradients(net, leaf=None):
    found = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    if leaf is not None and leaf.grad is not None:
        found["x"] = leaf.grad
    return {name: short(grad, limit=32) for name, grad in found.items()}


def names(net):
    """Return the names and shapes of a network's state."""
    state = net.state_dict()
    return {"names": list(state), "shapes": [str(tuple(value.shape)) for value in state.values()]}


def constructed(me, dtype, make):
    net = make()
    return {**names(net), "repr": repr(net)}


def seeded(me, dtype, make):
    """The initial values that a seed gives a whole network."""
    return initial(me, dtype, lambda _: make())


def segmented(me, dtype, make, dimension=3, extent=300, training=True):
    """A network from sites to sites, or to one row of each scene."""
    net = prepared(make, dtype).train(training)
    x, leaf = inputs.tensor(me, dtype, clusters(dimension, extent))
    out = net(x)
    inputs.backward(out)
    return {**names(net), "out": out, "grad": gradients(net, leaf)}


def classified(me, dtype, make, extent=300, channels=3, scale=1.0):
    """A network from points to classes of each scene."""
    net = prepared(make, dtype)
    rows = clusters(3, extent).float()
    rows[:, 1:] += inputs.features(len(rows), 3, torch.float32, seed=22) / 3
    rows[:, 1:] *= scale
    leaf = inputs.features(len(rows), channels, dtype).requires_grad_()
    out = net(me.TensorField(leaf, coordinates=rows))
    values = out if isinstance(out, torch.Tensor) else out.F
    inputs.backward_rows(values)
    found = {"values": values, "grad": gradients(net, leaf)}
    if not isinstance(out, torch.Tensor):
        found["C"] = out.C
    return {**names(net), **found}


def single(me, dtype, **arguments):
    """A splatted field: its weights are in float32."""
    return classified(me, torch.float32, **arguments)


def moments(out):
    """Return what many rows amount to in any order: their number, their sum, and their product
    with ``inputs.upstream``."""
    weights = inputs.upstream(out.C, out.F.shape[1], out.F.dtype)
    return {"rows": len(out), "sum": out.F.sum(0), "product": (out.F * weights).sum(0)}


def grown(me, dtype, make, kind, training=True):
    """A generative network, with the sites that it has to reach."""
    net = prepared(make, dtype).train(training)
    target = clusters(3, 60, groups=6, each=20, spread=2)
    if kind == "reconstruction":
        rows = torch.IntTensor([[0, 0, 0, 0], [1, 0, 0, 0]])
        x, leaf = inputs.tensor(me, dtype, rows, channels=4, tensor_stride=128)
    else:
        x, leaf = inputs.tensor(me, dtype, target[::2].clone(), channels=1)
    key, _ = x.coordinate_manager.insert_and_map(target, string_id="target")
    levels, targets, out = net(x, key)
    criterion = torch.nn.BCEWithLogitsLoss()
    losses, reached = [], []
    for place, level in enumerate(levels):
        aim = targets[place]
        losses.append(criterion(level.F.squeeze(), aim.to(dtype)))
        reached.append(level.C[aim])
    loss = torch.stack(losses).mean()
    loss.backward()
    return {
        **names(net),
        "loss": loss,
        "first_levels": levels[:2],
        "levels": [moments(level) for level in levels],
        "reached": reached,
        "out": moments(out),
        "grad": gradients(net, leaf),
    }


WIDTHS = [8, 8, 8, 16, 16, 16, 16]


def cases():
    """Return each case by name: a function of the library and the dtype."""
    found = {}

    def add(case, function, module, name, *sizes, small=None, of=None, **named):
        make = functools.partial(build, module, name, *sizes, small=small, **(of or {}))
        found[case] = functools.partial(function, make=make, **named)

    for name in ("ResNet14", "ResNet18", "ResNet34", "ResNet50", "ResNet101"):
        add(f"names_{name}", constructed, "resnet", name, 3, 5, of={"D": 3})
    for name in ("14A", "18A", "34C", "50", "101"):
        add(f"names_MinkUNet{name}", constructed, "minkunet", f"MinkUNet{name}", 3, 5, of={"D": 3})
    add("names_MinkUNet18A_4d", constructed, "minkunet", "MinkUNet18A", 3, 5, of={"D": 4})
    add("names_ResFieldNet18", constructed, "resnet", "ResFieldNet18", 3, 5, of={"D": 3})
    add("names_CompletionNet", constructed, "completion", "CompletionNet", 128)
    add("names_GenerativeNet", constructed, "reconstruction", "GenerativeNet", 128)
    for name in ("MinkowskiFCNN", "MinkowskiSplatFCNN", "MinkowskiPointNet"):
        add(f"names_{name}", constructed, "classification_modelnet40", name, 3, 5)
    add("seeded_ResNet14", seeded, "resnet", "ResNet14", 3, 5, of={"D": 2})
    add("seeded_MinkUNet14A", seeded, "minkunet", "MinkUNet14A", 3, 5, of={"D": 2})
    add(
        "seeded_GenerativeNet",
        seeded,
        "reconstruction",
        "GenerativeNet",
        128,
        4,
        small={"CHANNELS": WIDTHS},
    )

    for name in ("14A", "18A", "34C", "50"):
        add(f"MinkUNet{name}", segmented, "minkunet", f"MinkUNet{name}", 3, 5, of={"D": 3})
    add("MinkUNet18A_eval", segmented, "minkunet", "MinkUNet18A", 3, 5, of={"D": 3}, training=False)
    add("MinkUNet14A_2d", segmented, "minkunet", "MinkUNet14A", 3, 5, of={"D": 2}, dimension=2)
    add(
        "MinkUNet14A_4d",
        segmented,
        "minkunet",
        "MinkUNet14A",
        3,
        5,
        small={"PLANES": (8, 8, 16, 16, 16, 16, 8, 8), "INIT_DIM": 8},
        of={"D": 4},
        dimension=4,
        extent=60,
    )
    for name in ("ResNet14", "ResNet50"):
        add(name, segmented, "resnet", name, 3, 5, of={"D": 3}, extent=900)
    add("ResFieldNet14", classified, "resnet", "ResFieldNet14", 3, 5, of={"D": 3}, extent=900)
    add("MinkowskiFCNN", classified, "classification_modelnet40", "MinkowskiFCNN", 3, 5)
    add("MinkowskiPointNet", classified, "classification_modelnet40", "MinkowskiPointNet", 3, 5)
    add("MinkowskiSplatFCNN", single, "classification_modelnet40", "MinkowskiSplatFCNN", 3, 5)
    add(
        "CompletionNet",
        grown,
        "completion",
        "CompletionNet",
        64,
        kind="completion",
        small={"ENC_CHANNELS": WIDTHS, "DEC_CHANNELS": WIDTHS},
    )
    add(
        "GenerativeNet",
        grown,
        "reconstruction",
        "GenerativeNet",
        128,
        4,
        kind="reconstruction",
        small={"CHANNELS": WIDTHS},
    )
    return found
