"""Sparse tensors and their manager: quantization, arithmetic, decomposition, dense, keys, maps."""

from __future__ import annotations

import torch

from . import inputs

DUPLICATES = [
    [0, 1, 1, 1],
    [1, 0, 0, 0],
    [0, -1, 2, 0],
    [0, 1, 1, 1],
    [1, 0, 0, 0],
    [1, 0, 0, 1],
    [0, 1, 1, 1],
]
MODES = ("RANDOM_SUBSAMPLE", "UNWEIGHTED_AVERAGE", "UNWEIGHTED_SUM", "NO_QUANTIZATION", "MAX_POOL")


def sample(me, dtype, dimension=3, scenes=(0, 1), **arguments):
    return inputs.tensor(me, dtype, inputs.scene(dimension, scenes), **arguments)


def finish(leaf, out, **named):
    inputs.backward(out)
    return {"out": out, "grad": inputs.gradients(leaf), **named}


def quantized(me, dtype, mode):
    """Rows of one site: which features remain."""
    leaf = inputs.features(len(DUPLICATES), 3, dtype).requires_grad_()
    mode = getattr(me.SparseTensorQuantizationMode, mode)
    rows = torch.IntTensor(DUPLICATES)
    x = me.SparseTensor(leaf, coordinates=rows, quantization_mode=mode)
    return finish(
        leaf, x, unique_index=x.unique_index.long(), inverse_mapping=x.inverse_mapping.long()
    )


def sliced(me, dtype, how, mode="UNWEIGHTED_AVERAGE"):
    """Values of sites given back to the rows that were quantized to them."""
    leaf = inputs.features(len(DUPLICATES), 3, dtype).requires_grad_()
    mode = getattr(me.SparseTensorQuantizationMode, mode)
    rows = torch.IntTensor(DUPLICATES)
    x = me.SparseTensor(leaf, coordinates=rows, quantization_mode=mode)
    layer = inputs.fill(me.MinkowskiConvolution(3, 2, kernel_size=3, dimension=3), dtype)
    out = getattr(layer(x), how)(x)
    inputs.backward_rows(out.F)
    return {"F": out.F, "C": out.C, "grad": inputs.gradients(leaf, layer)}


def float_coordinates(me, dtype):
    """Coordinates of another dtype are floored."""
    rows = torch.tensor([[0, 1.7, -0.2, 2.0], [1, -1.5, 0.0, 0.9], [0, 1.1, -0.9, 2.5]])
    leaf = inputs.features(3, 2, dtype).requires_grad_()
    x = me.SparseTensor(leaf, coordinates=rows)
    return {"x": x, "coordinates_dtype": str(x.C.dtype)}


def attributes(me, dtype, dimension, scenes=(0, 1)):
    x, _ = sample(me, dtype, dimension, scenes)
    key = x.coordinate_map_key
    return {
        "coordinates": x.coordinates,
        "coordinates_dtype": str(x.C.dtype),
        "features": x.features,
        "D": x.D,
        "dimension": x.dimension,
        "stride": list(x.tensor_stride),
        "length": len(x),
        "shape": list(x.shape),
        "size": list(x.size()),
        "dtype": str(x.dtype),
        "device": str(x.device),
        "requires_grad": x.requires_grad,
        "key": repr(key),
        "key_tuple": repr(key.get_key()),
        "key_size": key.get_coordinate_size(),
        "key_set": key.is_key_set(),
        "key_is_its_own": key == x.coordinate_key,
        "quantization_mode": str(x.quantization_mode),
        "manager_D": x.coordinate_manager.D,
        "scenes": x.coordinate_manager.number_of_unique_batch_indices(),
    }


def decomposed(me, dtype, scenes):
    x, _ = sample(me, dtype, scenes=scenes)
    coordinates, features = x.decomposed_coordinates_and_features
    batch, rows = x.coordinate_manager.origin_map(x.coordinate_map_key)
    places = range(len(features))
    return {
        "x": x,
        "coordinates": list(x.decomposed_coordinates),
        "features": list(x.decomposed_features),
        "both_coordinates": list(coordinates),
        "both_features": list(features),
        "permutations": list(x.decomposition_permutations),
        "at_coordinates": [x.coordinates_at(place) for place in places],
        "at_features": [x.features_at(place) for place in places],
        "origin_batch": batch,
        "origin_rows": list(rows),
    }


def arithmetic(me, dtype, name):
    """Two tensors of one key, or a tensor and an array."""
    x, leaf = sample(me, dtype)
    layer = inputs.fill(me.MinkowskiConvolution(3, 3, kernel_size=3, dimension=3), dtype)
    y = layer(x)
    if name == "add":
        out = x + y
    elif name == "subtract":
        out = x - y
    elif name == "multiply":
        out = x * y
    elif name == "divide":
        out = x / (y * y + torch.ones(1, 3, dtype=dtype))
    elif name == "array":
        out = (y * torch.arange(1, 4).to(dtype)) - torch.ones(3, dtype=dtype)
    elif name == "power":
        out = y**2
    elif name == "scalar":
        out = y * 2.0
    elif name == "in_place":
        out = layer(x)
        out += x
        out *= x
        out -= y
    return finish(leaf, out)


def dense(me, dtype, dimension, negative=False, step=1, **arguments):
    rows = inputs.scene(dimension)
    if not negative:
        rows[:, 1:] += inputs.REACH[dimension]
    rows[:, 1:] *= step
    x, leaf = inputs.tensor(me, dtype, rows, tensor_stride=step)
    if "shape" in arguments:
        arguments["shape"] = torch.Size(arguments["shape"])
    if "min_coordinate" in arguments:
        arguments["min_coordinate"] = torch.IntTensor(arguments["min_coordinate"])
    values, lowest, stride = x.dense(**arguments)
    weights = torch.arange(values.numel()).to(dtype).reshape(values.shape) % 7
    (values * weights).sum().backward()
    return {
        "x": {"C": x.C},
        "dense": values,
        "min_coordinate": lowest,
        "stride": stride,
        "grad": inputs.gradients(leaf),
    }


def dense_layers(me, dtype):
    """From an array to a sparse tensor and back, by layers and functions."""
    array = inputs.features(2 * 3 * 4 * 4, 1, dtype).reshape(2, 3, 4, 4).clone()
    array[0, :, 1] = 0
    array[1, :, :, 2] = 0
    return {
        "to_sparse": me.to_sparse(array),
        "to_sparse_last": me.to_sparse(array.permute(0, 2, 3, 1), format="BXXC"),
        "to_sparse_all": me.to_sparse_all(array),
        "layer": me.MinkowskiToSparseTensor()(array),
        "back": me.MinkowskiToDenseTensor(torch.Size([2, 3, 4, 4]))(me.to_sparse(array)),
        "feature": me.MinkowskiToFeature()(me.to_sparse(array)),
        "dense_coordinates": me.dense_coordinates([2, 3, 4, 2]),
    }


def without_zeros(me, dtype):
    """``MinkowskiToSparseTensor`` that keeps zeros: 0.5.4 of the package index refuses it."""
    array = inputs.features(2 * 3 * 4 * 4, 1, dtype).reshape(2, 3, 4, 4)
    return {"out": me.MinkowskiToSparseTensor(remove_zeros=False)(array)}


def torch_sparse(me, dtype, **arguments):
    x, _ = sample(me, dtype, 2)
    arguments = {name: torch.IntTensor(value) for name, value in arguments.items()}
    values, lowest, stride = x.sparse(**arguments)
    values = values.coalesce()
    return {
        "indices": values.indices(),
        "values": values.values(),
        "shape": list(values.shape),
        "min_coordinate": lowest,
        "stride": stride,
    }


def manager(me, dtype):
    """Strides, sizes, maps and string ids of a coordinate manager."""
    rows = torch.IntTensor(DUPLICATES)
    cm = me.CoordinateManager(D=3)
    key, (unique, inverse) = cm.insert_and_map(rows, 1, "own")
    other, (other_unique, other_inverse) = cm.insert_and_map(inputs.scene(3), [1, 1, 1])
    again, _ = cm.insert_and_map(rows, [1, 1, 1], "own")
    coarse = cm.stride(other, 2)
    coarse_again = cm.stride(other, [2, 2, 2])
    fine, wide = cm.stride_map(other, coarse)
    order = torch.argsort(fine)
    single = cm.get_unique_coordinate_map_key([1, 1, 1])
    return {
        "key": repr(key.get_key()),
        "unique": unique.long(),
        "inverse": inverse.long(),
        "other": repr(other.get_key()),
        "other_unique": other_unique.long(),
        "other_inverse": other_inverse.long(),
        "again_stride": list(again.get_key()[0]),
        "coarse": {"C": cm.get_coordinates(coarse)},
        "coarse_key": repr(coarse.get_key()),
        "coarse_same": coarse == coarse_again,
        "sizes": [cm.size(key) * 1.0, cm.size(other) * 1.0, cm.size(coarse) * 1.0],
        "origin_stride": list(cm.origin().get_tensor_stride()),
        "origin_size": cm.size(cm.origin()),
        "scenes": cm.number_of_unique_batch_indices(),
        "stride_map": torch.stack([fine[order], wide[order]], 1),
        "by_stride": {"C": cm.get_coordinates(2)},
        "single_set": single.get_key()[0] if isinstance(single, me.CoordinateMapKey) else single[0],
    }


def kernel_maps(me, dtype, **arguments):
    """Kernel maps asked of a manager, by key and by stride."""
    cm = me.CoordinateManager(D=3)
    key, _ = cm.insert_and_map(inputs.scene(3), 1, "")
    coarse = cm.stride(key, 2)
    cross = me.RegionType.HYPER_CROSS
    return {
        "fine": {"C": cm.get_coordinates(key)},
        "coarse": {"C": cm.get_coordinates(coarse)},
        "same": inputs.pairs(cm.kernel_map(key, key, kernel_size=3)),
        "cross": inputs.pairs(cm.kernel_map(key, key, kernel_size=3, region_type=cross)),
        "down": inputs.pairs(cm.kernel_map(key, coarse, stride=2, kernel_size=2)),
        "up": inputs.pairs(cm.kernel_map(coarse, key, stride=2, kernel_size=2, is_transpose=True)),
        "pool": inputs.pairs(cm.kernel_map(key, coarse, stride=2, kernel_size=3, is_pool=True)),
        "one": inputs.pairs(cm.kernel_map(key, key, kernel_size=1)),
        "coarse_to_coarse": inputs.pairs(cm.kernel_map(coarse, coarse, kernel_size=3)),
        "fine_to_coarse_one": inputs.pairs(cm.kernel_map(key, coarse, kernel_size=1)),
        "old_name": inputs.pairs(cm.get_kernel_map(1, 2, stride=2, kernel_size=2)),
    }


def union_map(me, dtype):
    x, _ = sample(me, dtype)
    y, _ = inputs.tensor(
        me, dtype, inputs.scene(3, seed=5), coordinate_manager=x.coordinate_manager
    )
    key = me.CoordinateMapKey(4)
    maps = x.coordinate_manager.union_map([x.coordinate_map_key, y.coordinate_map_key], key)
    found = {"out": {"C": x.coordinate_manager.get_coordinates(key)}}
    for name, rows in (("x", maps[0]), ("y", maps[1])):
        found[name] = rows[:, torch.argsort(rows[0])].long()
    return {**found, "C": [x.C, y.C], "stride": list(key.get_tensor_stride())}


def shared_manager(me, dtype):
    """Tensors that share the global manager."""
    modes = me.SparseTensorOperationMode
    me.set_sparse_tensor_operation_mode(modes.SHARE_COORDINATE_MANAGER)
    x, _ = sample(me, dtype)
    y, _ = inputs.tensor(me, dtype, inputs.scene(3, seed=5))
    out = x + y
    same = x.coordinate_manager is me.global_coordinate_manager()
    me.clear_global_coordinate_manager()
    me.set_sparse_tensor_operation_mode(modes.SEPARATE_COORDINATE_MANAGER)
    return {"out": out, "same": same, "cleared": me.global_coordinate_manager() is None}


def equal_sites(me, dtype):
    """Two tensors of the same sites in one manager: are their keys equal?"""
    x, _ = sample(me, dtype)
    y, _ = inputs.tensor(
        me, dtype, inputs.scene(3), seed=4, coordinate_manager=x.coordinate_manager
    )
    return {
        "equal": x.coordinate_map_key == y.coordinate_map_key,
        "stride": list(y.tensor_stride),
        "sum": x + y,
    }


def refused(me, dtype, what):
    """Calls that the library refuses: the error's type is what counts."""
    rows = inputs.scene(3)
    x, _ = sample(me, dtype)
    features = inputs.features(len(rows), 3, dtype)
    if what == "other_manager":
        y, _ = sample(me, dtype)
        return {"out": x + y}
    if what == "nothing":
        return {"out": me.SparseTensor(features)}
    if what == "rows":
        return {"out": me.SparseTensor(features[:-1], coordinates=rows)}
    if what == "one_axis":
        return {"out": me.SparseTensor(features[:, 0], coordinates=rows)}
    if what == "channels":
        layer = me.MinkowskiConvolution(4, 2, kernel_size=3, dimension=3).to(dtype)
        return {"out": layer(x)}
    if what == "dimension":
        layer = me.MinkowskiConvolution(3, 2, kernel_size=3, dimension=2).to(dtype)
        return {"out": layer(x)}
    if what == "no_dimension":
        return {"out": repr(me.MinkowskiConvolution(3, 2, kernel_size=3))}
    if what == "even_cross":
        cross = me.RegionType.HYPER_CROSS
        return {"out": repr(me.KernelGenerator(kernel_size=2, region_type=cross, dimension=3))}
    if what == "set_stride":
        x.tensor_stride = 2
    if what == "set_coordinates":
        x.C = rows
    if what == "no_rows":
        return {"out": me.SparseTensor(features[:0], coordinates=rows[:0])}
    if what == "float16":
        return {"out": me.MinkowskiReLU()(me.SparseTensor(features.half(), coordinates=rows))}
    if what == "dtype_of_weights":
        other = torch.float32 if dtype == torch.float64 else torch.float64
        layer = me.MinkowskiConvolution(3, 2, kernel_size=3, dimension=3).to(other)
        return {"out": layer(x)}
    return {"x": x}


REFUSED = (
    "other_manager",
    "nothing",
    "rows",
    "one_axis",
    "channels",
    "dimension",
    "no_dimension",
    "even_cross",
    "set_stride",
    "set_coordinates",
    "no_rows",
    "float16",
    "dtype_of_weights",
)


def cases():
    """Return each case by name: a function of the library and the dtype."""
    found = inputs.Cases()
    add = found.add

    for mode in MODES:
        add(f"quantized_{mode}", quantized, mode=mode)
    for how in ("slice", "cat_slice"):
        add(how, sliced, how=how)
    add("slice_subsample", sliced, how="slice", mode="RANDOM_SUBSAMPLE")
    add("slice_sum", sliced, how="slice", mode="UNWEIGHTED_SUM")
    add("float_coordinates", float_coordinates)
    for dimension in (1, 2, 3, 4):
        add(f"attributes{dimension}", attributes, dimension=dimension)
        add(f"dense{dimension}", dense, dimension=dimension)
    add("attributes_empty_scene", attributes, dimension=3, scenes=(0, 2))
    for name, scenes in (("two", (0, 1)), ("one", (0,)), ("gap", (0, 2)), ("many", range(9))):
        add(f"decomposed_{name}", decomposed, scenes=tuple(scenes))
    for name in ("add", "subtract", "multiply", "divide", "array", "power", "scalar", "in_place"):
        add(f"arithmetic_{name}", arithmetic, name=name)
    add("dense_negative", dense, dimension=2, negative=True)
    add("dense_lowest", dense, dimension=2, negative=True, min_coordinate=[-4, -4])
    add("dense_shape", dense, dimension=2, shape=(3, 3, 12, 10))
    add("dense_shape_channels", dense, dimension=2, shape=(2, 1, 12, 10))
    add("dense_stride2", dense, dimension=2, step=2)
    add("dense_stride2_spread", dense, dimension=2, step=2, contract_stride=False)
    add("dense_layers", dense_layers)
    add("to_sparse_with_zeros", without_zeros)
    add("torch_sparse", torch_sparse)
    add("torch_sparse_lowest", torch_sparse, min_coords=[-4, -4])
    add("torch_sparse_bounds", torch_sparse, min_coords=[-4, -4], max_coords=[5, 5])
    add("manager", manager)
    add("kernel_maps", kernel_maps)
    add("union_map", union_map)
    add("shared_manager", shared_manager)
    add("equal_sites", equal_sites)
    for what in REFUSED:
        add(f"refused_{what}", refused, what=what)
    return found
