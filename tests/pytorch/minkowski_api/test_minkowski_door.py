"""voxax.torch.minkowski beside what MinkowskiEngine itself gave, case by case."""

import importlib
import os
import re
from fnmatch import fnmatchcase as fnmatch

import minkowski_golden as golden
import numpy as np
import pytest
import torch
from minkowski_cases import inputs
from record import MODULES, ONE_DTYPE

import voxax.torch.minkowski as ME

pytestmark = pytest.mark.torch

DTYPES = ("float64", "float32")
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "splatted": 1e-3}


@pytest.fixture(autouse=True)
def _installed():
    ME.install()
    yield
    ME.uninstall()


def _cases():
    for module in MODULES:
        if module == "public":  # test_minkowski_networks.py
            continue
        if module == "networks" and "VOXAX_TEST_MINKOWSKIENGINE" not in os.environ:
            continue
        for case in importlib.import_module(f"minkowski_cases.{module}").cases():
            for dtype in DTYPES[: 1 if module in ONE_DTYPE else 2]:
                yield pytest.param(module, case, dtype, id=f"{module}-{case}-{dtype}")


# Calls that MinkowskiEngine refuses, and the door answers.
ANSWERED = (
    "pooling/mode_GLOBAL_???_POOLING_DEFAULT*",
    "layers/SEBottleneck*",
    "layers/join_add_twice",
    "tensors/quantized_MAX_POOL",
    "tensors/arithmetic_scalar",
    "tensors/refused_float16",
    "tensors/to_sparse_with_zeros",
    "fields/splat*",
    "fields/interpolate",
    "utilities/hybrid",
)
# Results that differ, each with the reason.
DIFFERENT = {
    "convolution/back1_k1": "in one dimension a kernel of 1 ignores its stride",
    "pooling/max3_ties_k2_s2": "of equal values it is the first in a hash table",
    "pooling/globalMax_one_*": "the gradient of all channels goes to the first ones",
    "pooling/globalMax_scene3_alone": "as above",
    "layers/MinkowskiBroadcast*_many_scenes": "scenes are pooled in another order",
    "layers/products": "a maximum of negative values is 0",
    "fields/*_MAX_POOL*": "as above",
    "tensors/dense_layers": "the repository keeps zeros with remove_zeros=True, and documents else",
    "fields/*slice_coarse": "the map to coarse sites is read in another order than it has",
    "utilities/quantize_*_labels": "sites whose labels differ are mistaken for others",
    "networks/MinkowskiFCNN": "it slices coarse sites",
    "utilities/printed": "the public names are compared in test_minkowski_habits.py",
}
# Averages in float64 whose divisor MinkowskiEngine rounds to float32.
ROUGH = ("tensors/quantized_UNWEIGHTED_AVERAGE", "tensors/slice", "fields/*")
# Networks whose gradients begin at rows of scenes: MinkowskiEngine's come in a hash table's order.
BY_ROW = ("networks/ResFieldNet14", "networks/MinkowskiPointNet", "networks/MinkowskiSplatFCNN")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("module", "case", "dtype"), list(_cases()))
def test_as_recorded(module, case, dtype):
    run = importlib.import_module(f"minkowski_cases.{module}").cases()[case]
    expected = golden.result(module, case, dtype)
    name = f"{module}/{case}"
    refused = "error" in expected and not golden.defect(module, case)
    if refused and not any(fnmatch(name, pattern) for pattern in ANSWERED):
        with pytest.raises((ValueError, AttributeError, TypeError, RuntimeError)):
            run(ME, getattr(torch, dtype))
        return
    found = inputs.flat(run(ME, getattr(torch, dtype)))
    patterns = [*golden.DEFECTS, *DIFFERENT]
    if "error" in expected or any(fnmatch(name, pattern) for pattern in patterns):
        assert all(np.isfinite(v).all() for v in found.values() if v.dtype.kind == "f")
        return
    if name in BY_ROW:
        expected = {key: value for key, value in expected.items() if "grad" not in key}
    if name == "networks/MinkowskiSplatFCNN":
        dtype = "splatted"
    rough = any(fnmatch(name, pattern) for pattern in ROUGH)
    same(found, expected, 1e-6 if rough and dtype == "float64" else TOLERANCE[dtype])


def same(found, expected, tolerance):
    found, expected = (ordered(dict(arrays)) for arrays in (found, expected))
    expected.pop("kernel_map" if "kernel_map" not in found else "", None)  # of float64 alone
    assert set(found) >= set(expected), set(expected) - set(found)
    for name, array in expected.items():
        own = found[name]
        assert own.shape == array.shape, name
        if array.dtype.kind == "f":
            scale = np.abs(array).max(initial=0)
            np.testing.assert_allclose(own, array, rtol=0, atol=tolerance * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(own, array, err_msg=name)


# Arrays of rows whose last two columns are rows of these sites, "" of inputs.
INDICES = {
    "stride_map": ("", "coarse.C"),
    "down": ("", "coarse.C"),
    "old_name": ("", "coarse.C"),
    "pool": ("", "coarse.C"),
    "fine_to_coarse_one": ("", "coarse.C"),
    "up": ("coarse.C", ""),
    "coarse_to_coarse": ("coarse.C", "coarse.C"),
    "x": ("", "out.C"),
    "y": ("", "out.C"),
}


def ordered(arrays):
    """Return the arrays with the rows of sparse tensors by coordinate."""
    if "kernel_map" in arrays:
        taps, ins, outs = arrays["kernel_map"].T
        rows = [taps[:, None], arrays["x.C"][ins], arrays["out.C"][outs]]
        rows = np.concatenate(rows, 1)
        arrays["kernel_map"] = rows[np.lexsort(rows.T[::-1])]
    for name, (ins, outs) in INDICES.items():
        if name in arrays and arrays[name].ndim == 2:
            if name in "xy":
                arrays[name] = arrays[name].T
            columns = list(arrays[name].T[:, :, None])
            for place, sites in ((-2, ins), (-1, outs)):
                if sites in arrays:
                    columns[place] = arrays[sites][columns[place][:, 0]]
            rows = np.concatenate(columns, 1)
            arrays[name] = rows[np.lexsort(rows.T[::-1])]
    for name in arrays:
        if re.match(
            r"(decomposed_|both_|at_)?(coordinates|features|permutations)\.\d|origin_[br]|reached|values$",
            name,
        ):
            rows = arrays[name].reshape(len(arrays[name]), *arrays[name].shape[1:] or (1,))
            arrays[name] = rows[np.lexsort(rows.T[::-1])]
    for name in [name for name in arrays if re.search(r"(^|\.)C$", name)]:
        stem = name[:-1]
        rows = arrays[name]
        if f"{stem}stride" in arrays or f"{stem}F" not in arrays:
            order = np.lexsort(rows.T[::-1])
            arrays[name] = rows[order]
            if f"{stem}F" in arrays:
                arrays[f"{stem}F"] = arrays[f"{stem}F"][order]
    return arrays
