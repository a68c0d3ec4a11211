"""The golden results of MinkowskiEngine: every case is there, and a NumPy loop gives them too."""

import importlib
from fnmatch import fnmatchcase

import minkowski_golden as golden
import numpy as np
import pytest
import torch
from minkowski_cases import convolution, inputs, pooling
from record import MODULES

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("module", MODULES)
def test_every_case_is_recorded(module):
    names = set(importlib.import_module(f"minkowski_cases.{module}").cases())
    assert names == set(golden.load(module, release=True))
    assert names == set(golden.load(module))


def test_every_defect_is_one_of_a_case():
    names = [f"{m}/{case}" for m in MODULES for case in golden.load(m)]
    assert all(any(fnmatchcase(name, pattern) for name in names) for pattern in golden.DEFECTS)
    found = [case for case in golden.load("pooling") if golden.defect("pooling", case)]
    assert "max3_k2_s4" in found
    assert "max3_k2_s2" not in found


PLAIN = [
    name
    for name in convolution.cases()
    if name.startswith(("conv", "generative", "alone", "onto", "one_voxel", "far"))
    and not name.startswith("generate_and")
]


@pytest.mark.parametrize("name", PLAIN)
def test_a_loop_over_the_kernel_map_gives_the_outputs(name):
    found = golden.result("convolution", name)
    named = convolution.cases()[name].keywords
    step = named.get("step", 1)
    if "coordinates" in named:
        rows = torch.IntTensor(named["coordinates"])
    else:
        rows = inputs.scene(named["dimension"], named.get("scenes", (0, 1)), step=step)
    assert np.array_equal(rows.numpy(), found["x.C"])
    features = inputs.features(len(rows), 3, torch.float64).numpy()
    weights = _weights(found)
    expected = np.zeros((len(found["out.C"]), 2))
    for tap, source, target in found["kernel_map"]:
        expected[target] += features[source] @ weights["kernel"].reshape(-1, 3, 2)[tap]
    expected += weights.get("bias", 0)
    np.testing.assert_allclose(found["out.F"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", pooling.KINDS)
@pytest.mark.parametrize("window", ["k2_s2", "k3_s2", "k3", "k3_d2"])
@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
def test_a_loop_over_windows_gives_the_pooled_rows(kind, window, dimension):
    found = golden.result("pooling", f"{kind}{dimension}_{window}")
    features = inputs.features(len(found["x.C"]), 3, torch.float64).numpy()
    rows = found["kernel_map"]
    reduce = {"sum": np.sum, "avg": np.mean, "max": np.max}[kind]
    for place, values in enumerate(found["out.F"]):
        inside = features[rows[rows[:, 2] == place, 1]]
        np.testing.assert_allclose(values, reduce(inside, axis=0), rtol=0, atol=1e-12)


class _Shapes(torch.nn.Module):
    """Parameters of given shapes, for ``inputs.fill``."""

    def __init__(self, shapes):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape)))


def _weights(found):
    shapes = {
        name: found[f"grad.{name}"].shape for name in ("kernel", "bias") if f"grad.{name}" in found
    }
    module = inputs.fill(_Shapes(shapes), torch.float64)
    return {name: p.detach().numpy() for name, p in module.named_parameters()}
