"""Tensor fields: points with features, their sparse tensors, and values given back."""

from __future__ import annotations

import torch

from . import inputs

MODES = ("UNWEIGHTED_AVERAGE", "UNWEIGHTED_SUM", "RANDOM_SUBSAMPLE", "MAX_POOL")


def points(dimension=3, scenes=(0, 1), seed=3):
    """Points near sites, several at some of them, none half way between two."""
    rows = inputs.scene(dimension, scenes)
    rng = inputs.generator(seed)
    twice = rows[torch.from_numpy(rng.randint(0, len(rows), 2 * len(rows)))]
    shifts = torch.from_numpy(rng.randint(-7, 8, twice[:, 1:].shape) / 16).float()
    found = twice.float()
    found[:, 1:] += shifts
    return found


def field(me, dtype, dimension=3, scenes=(0, 1), channels=3, **arguments):
    rows = points(dimension, scenes)
    leaf = inputs.features(len(rows), channels, dtype).requires_grad_()
    return me.TensorField(leaf, coordinates=rows, **arguments), leaf


def finish(leaf, out, layer=None, **named):
    inputs.backward(out)
    return {"out": out, "grad": inputs.gradients(leaf, layer), **named}


def to_sparse(me, dtype, mode=None, late=False, dimension=3, **arguments):
    named = {}
    if mode is not None:
        named = {"quantization_mode": getattr(me.SparseTensorQuantizationMode, mode)}
    x, leaf = field(me, dtype, dimension, **({} if late else named))
    out = x.sparse(**arguments, **(named if late else {}))
    inverse = x.inverse_mapping(out.coordinate_map_key)
    return finish(leaf, out, field={"C": x.C}, inverse=inverse.long())


def at_key(me, dtype, mode):
    """The sparse tensor of one field at the sites of another tensor's key."""
    named = {"quantization_mode": getattr(me.SparseTensorQuantizationMode, mode)}
    x, leaf = field(me, dtype, **named)
    first = x.sparse()
    again = x.sparse(coordinate_map_key=first.coordinate_map_key)
    return finish(leaf, again)


def given_back(me, dtype, how, stride=1, mode="UNWEIGHTED_AVERAGE"):
    """A layer between the sparse tensor and the points."""
    named = {"quantization_mode": getattr(me.SparseTensorQuantizationMode, mode)}
    x, leaf = field(me, dtype, **named)
    layer = me.MinkowskiConvolution(3, 2, kernel_size=3, stride=stride, dimension=3)
    inputs.fill(layer, dtype)
    out = getattr(layer(x.sparse()), how)(x)
    inputs.backward_rows(out.F)
    return {"F": out.F, "C": out.C, "grad": inputs.gradients(leaf, layer)}


def splat(me, dtype, dimension):
    """Linear splatting to sites and interpolation back."""
    x, leaf = field(me, dtype, dimension)
    layer = inputs.fill(me.MinkowskiConvolution(3, 2, kernel_size=3, dimension=dimension), dtype)
    sites = x.splat()
    out = layer(sites).interpolate(x)
    inputs.backward_rows(out.F)
    return {"sites": sites, "F": out.F, "grad": inputs.gradients(leaf, layer)}


def interpolate(me, dtype):
    x, leaf = field(me, dtype)
    out = x.sparse().interpolate(x)
    inputs.backward_rows(out.F)
    return {"F": out.F, "grad": inputs.gradients(leaf)}


def attributes(me, dtype, scenes=(0, 1)):
    x, _ = field(me, dtype, scenes=scenes)
    key = x.coordinate_field_map_key
    return {
        "C": x.C,
        "coordinates_dtype": str(x.C.dtype),
        "F": x.F,
        "D": x.D,
        "length": len(x),
        "shape": list(x.shape),
        "dtype": str(x.dtype),
        "key": repr(key),
        "key_tuple": repr(key.get_key()),
        "mode": str(x.quantization_mode),
        "decomposed_features": list(x.decomposed_features),
        "decomposed_coordinates": list(x.decomposed_coordinates),
    }


def layers(me, dtype, name):
    """Layers that work on points as on sites."""
    x, leaf = field(me, dtype)
    if name == "linear":
        layer = me.MinkowskiLinear(3, 4)
    elif name == "batch_norm":
        layer = me.MinkowskiBatchNorm(3)
    elif name == "relu":
        layer = me.MinkowskiReLU()
    elif name == "sinusoidal":
        layer = me.MinkowskiSinusoidal(3, 4)
    else:
        layer = torch.nn.Sequential(
            me.MinkowskiLinear(3, 4, bias=False),
            me.MinkowskiBatchNorm(4),
            me.MinkowskiLeakyReLU(),
            me.MinkowskiToSparseTensor(),
            me.MinkowskiConvolution(4, 2, kernel_size=3, dimension=3),
        )
    inputs.fill(layer, dtype)
    out = layer(x)
    if hasattr(out, "coordinate_map_key"):
        return finish(leaf, out, layer)
    inputs.backward_rows(out.F)
    return {"F": out.F, "class": type(out).__name__, "grad": inputs.gradients(leaf, layer)}


def arithmetic(me, dtype, name):
    x, _ = field(me, dtype)
    y = me.MinkowskiReLU()(x)
    if name == "add":
        return {"F": (x + y).F}
    if name == "array":
        return {"F": (x + torch.ones(1, 3, dtype=dtype)).F}
    if name == "in_place":
        y += x
        return {"F": y.F}
    return {"F": getattr(me, name)(x, y).F}


def pooled(me, dtype, name, scenes=(0, 1)):
    x, leaf = field(me, dtype, scenes=scenes)
    return finish(leaf, getattr(me, f"MinkowskiGlobal{name}Pooling")()(x))


def shared(me, dtype):
    """Two fields' sparse tensors in one manager."""
    x, leaf = field(me, dtype)
    y = me.TensorField(
        inputs.features(len(x), 3, dtype, seed=4),
        coordinates=points(seed=8),
        coordinate_manager=x.coordinate_manager,
    )
    a, b = x.sparse(), y.sparse()
    return {"equal": a.coordinate_map_key == b.coordinate_map_key, **finish(leaf, a + b)}


def cases():
    """Return each case by name: a function of the library and the dtype."""
    found = inputs.Cases()
    add = found.add

    for mode in MODES:
        add(f"sparse_{mode}", to_sparse, mode=mode)
        add(f"sparse_{mode}_late", to_sparse, mode=mode, late=True)
        add(f"sparse_{mode}_stride2", to_sparse, mode=mode, tensor_stride=2)
        add(f"at_key_{mode}", at_key, mode=mode)
    add("sparse_default", to_sparse)
    for dimension in (1, 2, 3, 4):
        add(f"sparse{dimension}", to_sparse, dimension=dimension)
        add(f"splat{dimension}", splat, dimension=dimension)
    for how in ("slice", "cat_slice"):
        add(how, given_back, how=how)
        add(f"{how}_coarse", given_back, how=how, stride=2)
        for mode in MODES[1:]:
            add(f"{how}_{mode}", given_back, how=how, mode=mode)
    add("interpolate", interpolate)
    add("attributes", attributes)
    add("attributes_empty_scene", attributes, scenes=(0, 2))
    for name in ("linear", "batch_norm", "relu", "sinusoidal", "network"):
        add(f"layer_{name}", layers, name=name)
    for name in ("add", "array", "in_place", "cat", "sum", "mean"):
        add(f"arithmetic_{name}", arithmetic, name=name)
    for name in ("Sum", "Avg", "Max"):
        add(f"global{name}", pooled, name=name)
    add("globalMax_empty_scene", pooled, name="Max", scenes=(0, 2))
    add("shared", shared)
    return found
