"""``utils`` and kernel generators: quantization of points, collation, volumes, printed names."""

from __future__ import annotations

import numpy as np
import torch

from . import inputs


def cloud(dimension=3, rows=60, seed=11, extent=4):
    return inputs.generator(seed).uniform(-extent, extent, (rows, dimension)) / 2


def described(values):
    """Return values with their classes and dtypes, which callers see too."""
    values = values if isinstance(values, tuple) else (values,)
    kinds = [f"{type(value).__name__} {getattr(value, 'dtype', '')}" for value in values]
    arrays = [torch.as_tensor(np.asarray(v)) for v in values]
    return {"values": arrays, "kinds": "; ".join(kinds)}


def quantize(me, dtype, array="numpy", label=False, feature=False, dimension=3, **arguments):
    points = cloud(dimension)
    values = inputs.generator(12).uniform(-1, 1, (len(points), 2)).astype(np.float32)
    labels = (np.arange(len(points)) % 3).astype(np.int32)
    if array == "torch":
        points, values, labels = map(torch.from_numpy, (points, values, labels))
    if array == "torch_int":
        points = torch.from_numpy(np.floor(points).astype(np.int32))
        values, labels = torch.from_numpy(values), torch.from_numpy(labels)
    if feature:
        arguments["features"] = values
    if label:
        arguments["labels"] = labels
        arguments["ignore_label"] = -100
    return described(me.utils.sparse_quantize(points, **arguments))


def same_labels(me, dtype, array):
    """Points of one site whose labels agree, and others whose labels do not."""
    rows = np.array([[0, 0], [1, 1], [0, 0], [1, 1], [2, 2], [1, 1]], np.float32) + 0.25
    labels = np.array([3, 4, 3, 5, 6, 5], np.int32)
    if array == "torch":
        rows, labels = torch.from_numpy(rows), torch.from_numpy(labels)
    found = me.utils.sparse_quantize(
        rows, labels=labels, ignore_label=255, return_index=True, return_inverse=True
    )
    return described(found)


def batched(me, dtype, kind="int", rows=torch.int32):
    parts = [cloud(rows=5, seed=1), cloud(rows=3, seed=2), cloud(rows=4, seed=3)]
    if kind == "int":
        parts = [torch.from_numpy(np.floor(part)).int() for part in parts]
    elif kind == "torch":
        parts = [torch.from_numpy(part) for part in parts]
    elif kind == "empty":
        parts[1] = parts[1][:0]
    return described(me.utils.batched_coordinates(parts, dtype=rows))


def scenes(kind, labels=True):
    found = []
    for seed, rows in ((1, 5), (2, 3), (3, 4)):
        part = [cloud(rows=rows, seed=seed), cloud(2, rows=rows, seed=seed + 10)]
        if labels:
            part.append(np.arange(rows) + 10 * seed)
        if kind == "torch":
            part = [torch.from_numpy(values) for values in part]
        elif kind == "int":
            part[0] = np.floor(part[0]).astype(np.int32)
            part = [torch.from_numpy(values) for values in part]
        found.append(tuple(part))
    return found


def collate(
    me, dtype, kind="torch", labels=True, how="sparse_collate", rows=torch.int32, **arguments
):
    data = scenes(kind, labels)
    if how == "sparse_collate":
        found = me.utils.sparse_collate(*map(list, zip(*data)), dtype=rows)  # noqa: B905
    elif how == "batch_sparse_collate":
        found = me.utils.batch_sparse_collate(data, dtype=rows)
    else:
        found = me.utils.SparseCollation(dtype=rows, **arguments)(data)
    return described(found)


def unique(me, dtype):
    rows = torch.IntTensor([[0, 1, 1], [0, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 1]])
    return described(me.utils.unique_coordinate_map(rows))


def hashes(me, dtype):
    rows = np.floor(cloud(rows=8)).astype(np.int64)
    return {
        "ravel": torch.from_numpy(me.utils.ravel_hash_vec(rows).astype(np.int64)),
        "fnv": torch.from_numpy(me.utils.fnv_hash_vec(rows).view(np.int64)),
    }


def generators(me, dtype):
    """Kernel generators: volumes, attributes, printed forms."""
    cube, cross = me.RegionType.HYPER_CUBE, me.RegionType.HYPER_CROSS
    found = {}
    for name, arguments in {
        "k3": {"kernel_size": 3},
        "k2_s2": {"kernel_size": 2, "stride": 2},
        "axes": {"kernel_size": (3, 1, 2), "stride": [1, 2, 1], "dilation": 2},
        "cross": {"kernel_size": 3, "region_type": cross},
        "expand": {"kernel_size": 3, "expand_coordinates": True},
    }.items():
        made = me.KernelGenerator(**arguments, dimension=3)
        found[name] = {
            "repr": repr(made),
            "volume": made.kernel_volume,
            "size": list(made.kernel_size),
            "stride": list(made.kernel_stride),
            "dilation": list(made.kernel_dilation),
            "same_sites": bool(made.requires_strided_coordinates),
            "offsets": made.region_offsets,
        }
    kernel = me.KernelGenerator(kernel_size=3, dimension=2).get_kernel([1, 1], False)
    return {
        **found,
        "get_kernel": [str(kernel[0]), str(tuple(kernel[1].shape)), str(int(kernel[2]))],
        "volume_cube": me.get_kernel_volume(cube, [3, 2, 1], None, None, 3),
        "volume_cross": me.get_kernel_volume(cross, [3, 5, 1], None, None, 3),
    }


def hybrid(me, dtype):
    """A region of cubes on some axes and crosses on others."""
    cube, cross = me.RegionType.HYPER_CUBE, me.RegionType.HYPER_CROSS
    made = me.KernelGenerator(
        kernel_size=3, region_type=me.RegionType.HYBRID, axis_types=[cube, cube, cross], dimension=3
    )
    return {"repr": repr(made)}


def printed(me, dtype):
    """What modules, enumerations and keys print."""
    kernel = {"kernel_size": 3, "stride": 2, "dimension": 3}
    modules = [
        me.MinkowskiConvolution(3, 4, **kernel, dilation=2, bias=True),
        me.MinkowskiConvolutionTranspose(3, 4, **kernel),
        me.MinkowskiGenerativeConvolutionTranspose(3, 4, **kernel),
        me.MinkowskiChannelwiseConvolution(3, **kernel),
        me.MinkowskiSumPooling(**kernel),
        me.MinkowskiAvgPooling(**kernel),
        me.MinkowskiMaxPooling(**kernel),
        me.MinkowskiPoolingTranspose(**kernel),
        me.MinkowskiGlobalPooling(),
        me.MinkowskiGlobalSumPooling(),
        me.MinkowskiGlobalAvgPooling(),
        me.MinkowskiGlobalMaxPooling(),
        me.MinkowskiBatchNorm(4),
        me.MinkowskiInstanceNorm(4),
        me.MinkowskiStableInstanceNorm(4),
        me.MinkowskiLinear(3, 4),
        me.MinkowskiDropout(0.3),
        me.MinkowskiReLU(inplace=True),
        me.MinkowskiSinusoidal(3, 4),
        me.MinkowskiInterpolation(),
        me.MinkowskiPruning(),
        me.MinkowskiUnion(),
        me.MinkowskiToFeature(),
        me.MinkowskiToSparseTensor(),
        me.MinkowskiToDenseTensor(),
        me.MinkowskiStackCat(me.MinkowskiReLU()),
    ]
    enumerations = {}
    for name in (
        "RegionType",
        "PoolingMode",
        "BroadcastMode",
        "CoordinateMapType",
        "GPUMemoryAllocatorType",
        "MinkowskiAlgorithm",
    ):
        members = getattr(me, name).__members__
        enumerations[name] = [f"{key} {value!r} {int(value)}" for key, value in members.items()]
    for name in ("SparseTensorQuantizationMode", "SparseTensorOperationMode"):
        enumerations[name] = [f"{e.name} {e} {e.value}" for e in getattr(me, name)]
    return {
        "modules": [repr(module) for module in modules],
        "enumerations": enumerations,
        "public": sorted(name for name in vars(me) if not name.startswith("_")),
        "functional": sorted(n for n in vars(me.MinkowskiFunctional) if not n.startswith("_")),
        "utils": sorted(name for name in vars(me.utils) if not name.startswith("_")),
        "sparse_tensor": sorted(n for n in dir(me.SparseTensor) if not n.startswith("__")),
        "tensor_field": sorted(n for n in dir(me.TensorField) if not n.startswith("__")),
        "manager": sorted(n for n in dir(me.CoordinateManager) if not n.startswith("__")),
        "key": sorted(n for n in dir(me.CoordinateMapKey) if not n.startswith("__")),
    }


def cases():
    """Return each case by name: a function of the library and the dtype."""
    found = inputs.Cases()
    add = found.add

    both = {"return_index": True, "return_inverse": True}
    for array in ("numpy", "torch", "torch_int"):
        add(f"quantize_{array}", quantize, array=array)
        add(f"quantize_{array}_maps", quantize, array=array, **both)
        add(f"quantize_{array}_features", quantize, array=array, feature=True, **both)
        add(f"quantize_{array}_labels", quantize, array=array, label=True, feature=True, **both)
        add(f"quantize_{array}_size", quantize, array=array, quantization_size=0.5, **both)
        add(f"quantize_{array}_only", quantize, array=array, return_maps_only=True, **both)
    add("quantize_sizes", quantize, quantization_size=(0.5, 1.0, 0.3), **both)
    add("quantize_size_1", quantize, quantization_size=1, **both)
    add("quantize_4d", quantize, dimension=4, **both)
    add("quantize_one_map", quantize, return_maps_only=True, return_index=True)
    for array in ("numpy", "torch"):
        add(f"same_labels_{array}", same_labels, array=array)
    for kind in ("int", "torch", "numpy", "empty"):
        add(f"batched_{kind}", batched, kind=kind)
        add(f"batched_{kind}_float", batched, kind=kind, rows=torch.float32)
    for how in ("sparse_collate", "batch_sparse_collate", "SparseCollation"):
        for kind in ("torch", "numpy", "int"):
            add(f"{how}_{kind}", collate, how=how, kind=kind)
        add(f"{how}_float", collate, how=how, rows=torch.float32)
    add("sparse_collate_without_labels", collate, labels=False)
    add("batch_sparse_collate_without_labels", collate, how="batch_sparse_collate", labels=False)
    add("SparseCollation_limit", collate, how="SparseCollation", limit_numpoints=9)
    add("unique", unique)
    add("hashes", hashes)
    add("generators", generators)
    add("hybrid", hybrid)
    add("printed", printed)
    return found
