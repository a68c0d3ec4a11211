"""Public spconv networks, their files unmodified, run in a process of its own.

    python networks.py FOLDER voxax|spconv NAME...

``FOLDER/SCAN.npz`` has the inputs (``coords int64[N, 3]`` from 0 on, distinct, ``features
float32[N, 6]``). For each scan and network it writes ``FOLDER/NAME.SCAN.BY.pt``: the outputs in
evaluation mode, and in training mode in float64, where no rounding flips a ReLU, with the gradients
of the inputs and the weights; and the seconds.
``spconv`` runs first, on one thread, where alone it is right on a CPU. It leaves the weights and
the statistics of batch norm as ``NAME.SCAN.state.pt``, which ``voxax`` loads.

OpenPCDet and Pointcept are read from clones: ``VOXAX_TEST_OPENPCDET`` and ``VOXAX_TEST_POINTCEPT``.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

CLASSES = 13


@dataclass(frozen=True)
class Scan:
    """One scan as the networks take it; ``grid`` along x, y and z, as the detectors need it."""

    coords: torch.Tensor
    features: torch.Tensor
    grid: tuple[int, int, int]

    @property
    def batch(self) -> torch.Tensor:
        return torch.zeros(len(self.coords), dtype=torch.int64)


@dataclass(frozen=True)
class Network:
    """How to make a network for a scan, and how to call it; ``x`` are the scan's features."""

    package: str
    build: Callable[[Scan], nn.Module]
    call: Callable[[nn.Module, Scan, torch.Tensor], Any]


# Stubs: what a file imports beside the network, and no network here needs.


def package_without_init(name: str, folder: Path) -> None:
    """Its modules can be imported, and its ``__init__``, which imports everything, does not run."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)


def stub(name: str, **contents: Any) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def clone_of(variable: str) -> Path:
    folder = os.environ.get(variable)
    if not folder:
        raise SystemExit(f"set {variable} to a clone of the repository")
    return Path(folder)


def openpcdet() -> None:
    root = clone_of("VOXAX_TEST_OPENPCDET")
    for name in ("pcdet", "pcdet.utils", "pcdet.models", "pcdet.models.backbones_3d"):
        package_without_init(name, root / name.replace(".", "/"))


def segment_csr(src: torch.Tensor, indptr: torch.Tensor, reduce: str) -> torch.Tensor:
    """torch_scatter's: reduce the rows of each segment."""
    lengths = indptr.diff()
    rows = torch.arange(len(lengths)).repeat_interleave(lengths)
    index = rows[:, None].expand(src.shape)
    kind = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    out = src.new_zeros((len(lengths), src.shape[1]))
    return out.scatter_reduce(0, index, src, kind, include_self=False)


def pointcept() -> None:
    root = clone_of("VOXAX_TEST_POINTCEPT")
    models = "pointcept.models"
    for name in ("", ".utils"):
        package_without_init(f"pointcept{name}", root / f"pointcept{name}".replace(".", "/"))
    for name in ("", ".sparse_unet", ".oacnns", ".point_transformer_v3"):
        package_without_init(models + name, root / (models + name).replace(".", "/"))
    stub("torch_scatter", segment_csr=segment_csr)
    stub("pointcept.models.point_prompt_training", PDNorm=nn.Identity)
    stub("pointcept.engines")
    stub("pointcept.engines.hooks", HookBase=object)
    stub("timm")  # which needs torchvision
    stub("timm.layers", trunc_normal_=nn.init.trunc_normal_, DropPath=DropPath)


class DropPath(nn.Module):
    """timm's: leave out the branch for some rows in training."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.share:
            return x
        keep = torch.rand(x.shape[0], *[1] * (x.dim() - 1)) >= self.share
        return x * keep / (1 - self.share)


def voxel_grid(pos: torch.Tensor, size: int, batch: torch.Tensor) -> torch.Tensor:
    """torch_cluster's: a number for each cell and scene."""
    cells = (pos / size).floor().long()
    shape = cells.amax(0) + 1
    number = batch.long()
    for axis in range(cells.shape[1]):
        number = number * shape[axis] + cells[:, axis]
    return number


# torch-pointcloud


def spunet(scan: Scan) -> nn.Module:
    from torch_pointcloud.models import SparseUNetSegmentation

    norm = {"eps": 1e-3, "momentum": 0.01}
    return SparseUNetSegmentation(scan.features.shape[1], CLASSES, norm_kwargs=norm)


def spformer(scan: Scan) -> nn.Module:
    from torch_pointcloud.models import SPFormerUNetSegmentation

    return SPFormerUNetSegmentation(scan.features.shape[1], CLASSES)


def ptv3(scan: Scan) -> nn.Module:
    from torch_pointcloud.models import PointTransformerV3Segmentation

    return PointTransformerV3Segmentation(scan.features.shape[1], CLASSES, use_flash_attn=False)


def call_packed(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    return model(x, scan.coords, scan.batch)


def extent(scan: Scan) -> dict[str, Any]:
    return {"voxel_size": (1.0,) * 3, "point_cloud_range": (0.0, 0.0, 0.0, *map(float, scan.grid))}


def second(scan: Scan) -> nn.Module:
    from torch_pointcloud.models import SECONDDetection

    return SECONDDetection(
        6,
        1,
        **extent(scan),
        anchor_sizes=[[3.9, 1.6, 1.56]],
        anchor_bottom_heights=[-1.78],
        feature_map_stride=8,
        norm_kwargs={"eps": 1e-3, "momentum": 0.01},
    )


def voxelnext(scan: Scan) -> nn.Module:
    from torch_pointcloud.models import VoxelNeXtDetection

    groups = [[0], [1, 2]]
    shape = extent(scan)
    return VoxelNeXtDetection(6, 3, **shape, head_class_groups=groups, feature_map_stride=8)


def call_voxels(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    return model(x[:, None], scan.coords.flip(1), x.new_ones(len(x)), scan.batch)


# OpenPCDet


def backbone(module: str, name: str) -> Callable[[Scan], nn.Module]:
    def build(scan: Scan) -> nn.Module:
        file = __import__(f"pcdet.models.backbones_3d.{module}", fromlist=[name])
        return getattr(file, name)({}, scan.features.shape[1], np.array(scan.grid))

    return build


def call_openpcdet(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    rows = torch.cat([scan.batch[:, None], scan.coords.flip(1)], 1)
    batch = {"voxel_features": x, "voxel_coords": rows, "batch_size": 1}
    out = model(batch)
    levels = {k: v for k, v in out["multi_scale_3d_features"].items() if k != "x_conv4"}
    return {"encoded": out["encoded_spconv_tensor"], **levels}


# Pointcept


def registered(module: str, name: str, **options: Any) -> Callable[[Scan], nn.Module]:
    def build(scan: Scan) -> nn.Module:
        file = __import__(f"pointcept.models.{module}", fromlist=["MODELS"])
        if hasattr(file, "voxel_grid"):  # needs torch_cluster
            file.voxel_grid = voxel_grid
        arguments = {"type": name, "in_channels": scan.features.shape[1], **options}
        return file.MODELS.build(arguments)

    return build


def call_pointcept(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    offset = torch.tensor([len(x)])
    data = {"grid_coord": scan.coords, "coord": scan.coords.float(), "feat": x, "offset": offset}
    out = model(data)
    return out.feat if isinstance(out, dict) else out


PACKAGES: dict[str, Callable[[], None]] = {
    "torch_pointcloud": lambda: None,
    "openpcdet": openpcdet,
    "pointcept": pointcept,
}
_SPUNET = ("sparse_unet.spconv_unet_v1m1_base", "SpUNet-v1m1")
_PTV3 = ("point_transformer_v3.point_transformer_v3m1_base", "PT-v3m1")
_NEXT = ("spconv_backbone_voxelnext", "VoxelResBackBone8xVoxelNeXt")
NETWORKS = {
    "SpUNet": Network("torch_pointcloud", spunet, call_packed),
    "SPFormerUNet": Network("torch_pointcloud", spformer, call_packed),
    "PTv3": Network("torch_pointcloud", ptv3, call_packed),
    "SECOND": Network("torch_pointcloud", second, call_voxels),
    "VoxelNeXt": Network("torch_pointcloud", voxelnext, call_voxels),
    "VoxelBackBone8x": Network(
        "openpcdet", backbone("spconv_backbone", "VoxelBackBone8x"), call_openpcdet
    ),
    "VoxelResBackBone8x": Network(
        "openpcdet", backbone("spconv_backbone", "VoxelResBackBone8x"), call_openpcdet
    ),
    "VoxelResBackBone8xVoxelNeXt": Network("openpcdet", backbone(*_NEXT), call_openpcdet),
    "SpUNet-v1m1": Network("pointcept", registered(*_SPUNET, num_classes=CLASSES), call_pointcept),
    "OACNNs": Network(
        "pointcept",
        registered("oacnns.oacnns_v1m1_base", "OACNNs", num_classes=CLASSES),
        call_pointcept,
    ),
    "PT-v3m1": Network("pointcept", registered(*_PTV3, enable_flash=False), call_pointcept),
}


def read_scan(path: Path) -> Scan:
    arrays = np.load(path)
    coords = torch.from_numpy(arrays["coords"])
    x, y, _ = (int(-(-(high + 1) // 16) * 16) for high in arrays["coords"].max(0))
    return Scan(coords, torch.from_numpy(arrays["features"]), (x, y, 40))


def tensors(value: Any, name: str = "out") -> dict[str, torch.Tensor]:
    """Return every tensor in a network's result; a sparse one as its features and indices."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    if hasattr(value, "indices") and hasattr(value, "features"):
        return {f"{name}.features": value.features, f"{name}.indices": value.indices}
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    found = {}
    for key, part in items:
        found |= tensors(part, f"{name}.{key}")
    return found


def seeded(run: Callable[[], Any]) -> Any:
    """Dropout and shuffled orders are the same for both libraries."""
    torch.manual_seed(1)
    return run()


def run_on(network: Network, model: nn.Module, scan: Scan) -> dict[str, Any]:
    model.eval()
    if sys.modules["spconv"].__name__ == "spconv" and "voxax" not in sys.modules:
        allow_bias(model)
    begin = time.perf_counter()
    with torch.no_grad():
        plain = tensors(seeded(lambda: network.call(model, scan, scan.features)))
    middle = time.perf_counter()
    model.train().double()
    x = scan.features.double().requires_grad_()
    trained = tensors(seeded(lambda: network.call(model, scan, x)))
    generator = torch.Generator().manual_seed(2)
    loss = torch.zeros((), dtype=torch.float64)
    for name in sorted(trained):  # does not depend on the order of rows
        value = trained[name]
        if value.requires_grad:
            axis = 1 if value.dim() > 1 else 0
            shape = [-1 if number == axis else 1 for number in range(value.dim())]
            weights = torch.rand(value.shape[axis], generator=generator, dtype=x.dtype)
            loss = loss + (value.square() * weights.view(shape)).mean()
    loss.backward()
    end = time.perf_counter()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {
        "eval": plain,
        "train": {name: value.detach() for name, value in trained.items()},
        "loss": loss.detach(),
        "grads": {"x": x.grad, **grads},
        "seconds": (middle - begin, end - middle),
    }


def allow_bias(model: nn.Module) -> None:
    """spconv 2.3.8 refuses a bias in evaluation mode on a CPU."""
    from spconv.pytorch.conv import SparseConvolution

    for module in model.modules():
        if isinstance(module, SparseConvolution):
            module.training = True


def main() -> None:
    folder, by, *names = sys.argv[1:]
    torch.set_num_threads(1 if by == "spconv" else 2)
    if by == "voxax":
        from voxax.torch import spconv

        spconv.install()
    else:
        from spconv.pytorch import ops

        ops.get_current_stream = lambda: 0  # asked for on CPUs too, where PyTorch has none
    for package in {NETWORKS[name].package for name in names}:
        PACKAGES[package]()
    for path in sorted(Path(folder).glob("*.npz")):
        scan = read_scan(path)
        for name in names:
            network = NETWORKS[name]
            torch.manual_seed(0)
            model = network.build(scan)
            state = Path(folder, f"{name}.{path.stem}.state.pt")
            if by == "spconv":
                initial = digests(model)
                take_statistics(network, model, scan)
                torch.save({"initial": initial, "used": model.state_dict()}, state)
            else:
                saved = torch.load(state, weights_only=True)
                if digests(model) != saved["initial"]:  # in this order
                    raise SystemExit(f"{name}: other names or initial values than spconv's")
                model.load_state_dict(saved["used"])
            torch.save(run_on(network, model, scan), Path(folder, f"{name}.{path.stem}.{by}.pt"))


def take_statistics(network: Network, model: nn.Module, scan: Scan) -> None:
    """Give batch norm the scan's own statistics, so that evaluation has values of usual size."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()
    with torch.no_grad():
        seeded(lambda: network.call(model, scan, scan.features))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def digests(model: nn.Module) -> list[tuple[str, str]]:
    """Names and values of a state, without the memory of a copy."""
    return [
        (name, hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest())
        for name, value in model.state_dict().items()
    ]


if __name__ == "__main__":
    main()
