"""Public networks, their files unmodified, against results recorded from MinkowskiEngine.

Each runs with weights by seed in training and in evaluation mode: outputs, gradients of the input
and of every weight, statistics of batch norm. The state is made from the recorded names and shapes
and is loaded strictly. ``record.py`` records, with the same clones:

| package | clone of | network | stubs |
|---|---|---|---|
| fcgf | chrischoy/FCGF | ``ResUNetBN2C`` | a codec, of the package ``future_fstrings`` |
| mask3d | JonasSchult/Mask3D | ``Res16UNet34C``, ``Mask3D`` | ``hydra.utils.instantiate`` calls \
its argument; pointnet2's ``furthest_point_sample`` and torch_scatter's ``scatter_mean`` in \
PyTorch; ``Tensor.float`` keeps float64, for positions that are encoded in float32 |
| openscene | pengsongyou/openscene | ``DisNet``, of a ``MinkUNet34C`` | none |
| 4dmos | PRBonn/4DMOS | ``MOS4DNet``, in four dimensions | ``LightningModule`` is a ``Module`` |
| mapmos | PRBonn/MapMOS | ``MapMOSNet``, in four dimensions | as above |
| minkloc3d | jac99/MinkLoc3D | ``MinkLoc`` with GeM and NetVLAD | none |
| pointcontrast | facebookresearch/PointContrast | ``Res16UNet34C`` | names of MinkowskiEngine \
0.4, for which it is written, and ``collections.Sequence`` |

A clone is named by ``VOXAX_TEST_`` and its package in capitals. ``VOXAX_TEST_MINKOWSKI_PYTHON``
names a Python that imports MinkowskiEngine (``build_minkowski.py``): it loads what the door saves.
"""

import ast
import os
import subprocess
from pathlib import Path

import exchange
import minkowski_golden as golden
import numpy as np
import pytest
import torch
from minkowski_cases import inputs, public

import voxax.torch.minkowski as ME

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Relative errors. In float32 a ReLU near 0 may switch, which gradients show, and statistics of few
# rows: outputs alone are compared.
EXACT, ROUNDED = 1e-10, 1e-5
# Batch norm of two descriptors enlarges rounding.
ROUGH = {"MinkLoc3D_NetVlad_train": 1e-4}


@pytest.fixture(autouse=True)
def _installed():
    ME.install()
    yield
    ME.uninstall()


def require(name):
    variable = f"VOXAX_TEST_{public.NETWORKS[name].package.upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} does not name a clone of the repository")


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", public.NETWORKS)
def test_a_network_gives_what_minkowskiengine_gave(name, mode):
    require(name)
    case = f"{name}_{mode}"
    expected = golden.result("public", case)
    shapes = [ast.literal_eval(shape) for shape in expected["shapes"]]
    weights = public.state(expected["names"], shapes)
    run = public.cases()[case]
    same(inputs.flat(run(ME, torch.float64, weights=weights)), expected)
    rounded = inputs.flat(run(ME, torch.float32, weights=weights))
    same_outputs(rounded, golden.result("public", case, "float32"), ROUGH.get(case, ROUNDED))


def same(found, expected):
    same_outputs(found, expected, EXACT)
    for kind in ("grad", "statistics"):
        if f"{kind}.rows" in expected:
            same_rows(found, expected, kind)


def same_outputs(found, expected, tolerance):
    """Names, numbers and checksums of sites are equal, and outputs are near."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        if name.endswith(".digest"):
            norm, samples = array[0], np.abs(array[9:]).max()
            np.testing.assert_allclose(found[name][:9], array[:9], 0, tolerance * norm, name)
            np.testing.assert_allclose(found[name][9:], array[9:], 0, tolerance * samples, name)
        elif not name.endswith(".rows") or array.ndim == 0:
            np.testing.assert_array_equal(found[name], array, name)


def same_rows(found, expected, kind):
    names, rows = expected[f"{kind}.names"], expected[f"{kind}.rows"]
    norms = rows[:, 0]
    # A bias before batch norm has no gradient, but for rounding.
    limits = EXACT * norms + 1e-12 * np.linalg.norm(norms)
    errors = np.abs(found[f"{kind}.rows"] - rows).max(1)
    wrong = [(str(names[i]), errors[i], norms[i]) for i in np.flatnonzero(errors > limits)]
    assert not wrong


@pytest.mark.parametrize("name", public.NETWORKS)
def test_checkpoints_go_both_ways(name, tmp_path):
    require(name)
    python = os.environ.get("VOXAX_TEST_MINKOWSKI_PYTHON")
    if not python:
        pytest.skip("VOXAX_TEST_MINKOWSKI_PYTHON does not name a Python with MinkowskiEngine")
    exchange.saved(tmp_path / "voxax.pt", name)
    script = str(Path(exchange.__file__))
    # One thread: its order of new rows is the one that repeats.
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [python, "-W", "ignore", script, str(tmp_path), name]
    subprocess.run(command, check=True, env=variables)
    for by in ("voxax", "MinkowskiEngine"):
        with np.load(tmp_path / f"{by}.npz") as expected:
            same(exchange.results(ME, tmp_path / f"{by}.pt", name), dict(expected))
