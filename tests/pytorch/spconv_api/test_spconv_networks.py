"""Public networks, their files unmodified, against spconv 2.3.8 on one CPU thread.

Each package runs twice in processes of its own, once with spconv and once with
``voxax.torch.spconv.install()``, on two real scans, with the same weights: outputs, gradients of
the input and of every weight. What is stubbed in front of the networks, nearly all for imports
that they do not need here, stands in ``networks.py``. An ``__init__`` that imports CUDA extensions
or data sets is left out, in every clone. Besides:

- Pointcept: ``torch_scatter`` (``segment_csr`` in PyTorch), ``timm.layers`` (which needs
  torchvision), ``torch_geometric.nn.pool.voxel_grid`` (which needs a CUDA or C++ extension),
  ``pointcept.models.point_prompt_training`` and ``pointcept.engines.hooks``.
- mmdetection3d: mmengine's registry, ``build_conv_layer`` and ``build_norm_layer`` of mmcv, the
  constructor of mmdet's ``BasicBlock``; names of mmcv's and mmdet's operators; ``mmdet3d.utils``,
  ``mmdet3d.structures``.
- VirConv: ``X_TRANS``, which takes augmentation back; the calibration is a camera of ours.
- FocalsConv: ``points_in_boxes_gpu`` in PyTorch, ``Tensor.cuda`` (does nothing),
  ``pcdet.utils.common_utils`` and ``SemanticSeg`` (both for images).
- LargeKernel3D: ``pcdet.utils.spconv_utils``, which the repository lacks; ``timm.models.layers``.
  Weights are not averaged in training: the code for it was written for weights of another layout,
  and fails with spconv 2.3.8. ``SpatialGroupConv3d`` is in the authors' own spconv only.
- SphereFormer: ``torch_scatter.scatter_mean`` in PyTorch; attention, on CUDA kernels, is left out.
- OneFormer3D: the registry of mmdet3d.
- TRELLIS: ``flash_attn``, ``trellis.representations`` and ``trellis.utils.elastic_utils``, for
  other blocks than these; ``Tensor.float`` keeps float64, for norms that compute in float32.
- Sonata, Concerto, Utonia: ``torch_scatter`` (``segment_csr`` in PyTorch) and ``timm.layers``.
  ``flash_attn`` is absent, and attention is PyTorch's. Weights are random.

SPVCNN of torch-pointcloud is written with torchsparse, not spconv, and is not here.
"""

import importlib.util
import os
from pathlib import Path

import networks
import numpy as np
import pytest
import torch

import voxax.io
from own_process import run_python

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Occupied cells of a corner of at most 64 x 64 x 40 cells, high enough to be halved four times.
SCANS = {"room_scan1.pcd": 0.15, "lidar_hdl32e_target.ply": 0.4}
NAMES = sorted(networks.NETWORKS)
IMPORTED = {
    "pointcept": ("addict", "torch_geometric"),
    **dict.fromkeys(("sonata", "concerto", "utonia"), ("addict", "huggingface_hub", "scipy")),
}


@pytest.fixture(scope="module")
def inputs(scans, tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    for name, size in SCANS.items():
        if not (scans / name).exists():
            pytest.skip(f"no scan {scans / name}")
        positions = np.asarray(voxax.io.read(scans / name).positions, np.float64)
        positions = positions[np.isfinite(positions).all(1)]
        places = (positions - np.percentile(positions, 1, axis=0)) / size
        places = places[((places >= 0) & (places < [64, 64, 40])).all(1)]
        cells = np.floor(places).astype(np.int64)
        coords, first = np.unique(cells, axis=0, return_index=True)
        rng = np.random.default_rng(0)
        order = rng.permutation(len(coords))  # spconv's users do not sort
        coords, first = coords[order], first[order]
        inside = places[first] - coords
        features = np.concatenate([inside, rng.normal(size=inside.shape)], 1)
        path = folder / f"{Path(name).stem}.npz"
        np.savez(path, coords=coords, features=features.astype(np.float32))
    return folder


def require(package):
    if importlib.util.find_spec("spconv") is None:
        pytest.skip("spconv is not installed: pip install spconv==2.3.8")
    if package == "torch_pointcloud":
        if importlib.util.find_spec(package) is None:
            pytest.skip("torch-pointcloud is not installed: pip install torch-pointcloud==0.0.18")
        return
    variable = f"VOXAX_TEST_{package.upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} does not name a clone of the repository")
    for module in IMPORTED.get(package, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed, which {package} imports")


@pytest.mark.parametrize("name", NAMES)
def test_same_results(inputs, name):
    require(networks.NETWORKS[name].package)
    for by in ("spconv", "voxax"):
        run_python(networks.__file__, inputs, by, name)
    for scan in sorted(inputs.glob("*.npz")):
        theirs, ours = (
            torch.load(inputs / f"{name}.{scan.stem}.{by}.pt", weights_only=True)
            for by in ("spconv", "voxax")
        )
        same_outputs(ours["eval"], theirs["eval"], 1e-4)
        same_outputs(ours["train"], theirs["train"], 1e-9)
        assert ours["loss"].item() == pytest.approx(theirs["loss"].item(), rel=1e-9)
        assert set(ours["grads"]) == set(theirs["grads"])
        whole = sum(g.square().sum() for g in theirs["grads"].values()).sqrt()
        for weight, expected in theirs["grads"].items():
            # A bias before batch norm has no gradient, but for rounding.
            error = (ours["grads"][weight] - expected).norm()
            assert error <= 1e-8 * expected.norm() + 1e-12 * whole, (weight, error)


def same_outputs(ours, theirs, limit):
    """Rows too: the order of voxels is spconv's."""
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        if expected.is_floating_point():
            error = (ours[name] - expected).abs().max()
            assert error <= limit * expected.abs().max(), (name, error)
        else:
            assert torch.equal(ours[name], expected), name
