"""Public spconv networks, their files unmodified, run in a process of its own.

    python networks.py FOLDER voxax|spconv NAME...

``FOLDER/SCAN.npz`` has the inputs (``coords int64[N, 3]`` from 0 on, distinct, ``features
float32[N, 6]``). For each scan and network it writes ``FOLDER/NAME.SCAN.BY.pt``: the outputs in
evaluation mode, and in training mode in float64, where no rounding flips a ReLU, with the gradients
of the inputs and the weights; and the seconds.
``spconv`` runs first, on one thread, where alone it is right on a CPU. It leaves the weights and
the statistics of batch norm as ``NAME.SCAN.state.pt``, which ``voxax`` loads.

Most packages are read from clones of their repositories, which ``VOXAX_TEST_OPENPCDET``,
``VOXAX_TEST_POINTCEPT``, ``VOXAX_TEST_MMDETECTION3D``, ``VOXAX_TEST_VIRCONV``,
``VOXAX_TEST_SPHEREFORMER``, ``VOXAX_TEST_SOFTGROUP``, ``VOXAX_TEST_ONEFORMER3D``,
``VOXAX_TEST_LARGEKERNEL3D``, ``VOXAX_TEST_FOCALSCONV``, ``VOXAX_TEST_TRELLIS``,
``VOXAX_TEST_SONATA``, ``VOXAX_TEST_CONCERTO`` and ``VOXAX_TEST_UTONIA`` name.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

CLASSES = 13
PCDET = "pcdet.models.backbones_3d"


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


def packages_without_init(root: Path, *names: str) -> None:
    for name in names:
        package_without_init(name, root / name.replace(".", "/"))


def openpcdet() -> None:
    root = clone_of("VOXAX_TEST_OPENPCDET")
    packages_without_init(root, "pcdet", "pcdet.utils", "pcdet.models", PCDET)


def virconv() -> None:
    root = clone_of("VOXAX_TEST_VIRCONV")
    names = "pcdet", "pcdet.utils", "pcdet.models", PCDET, "pcdet.datasets"
    packages_without_init(root, *names)
    stub("pcdet.datasets.augmentor")
    # Takes augmentation back, of which there is none here.
    stub("pcdet.datasets.augmentor.X_transform", X_TRANS=object)


def focalsconv() -> None:
    root = clone_of("VOXAX_TEST_FOCALSCONV") / "OpenPCDet"
    names = "pcdet", "pcdet.utils", "pcdet.models", PCDET
    packages_without_init(root, *names, f"{PCDET}.focal_sparse_conv")
    stub("pcdet.utils.common_utils")  # needs SharedArray; only for images
    stub(f"{PCDET}.SemanticSeg")
    stub(f"{PCDET}.SemanticSeg.pyramid_ffn", PyramidFeat2D=None)  # for images
    stub("pcdet.ops")
    stub("pcdet.ops.roiaware_pool3d")
    boxes = "pcdet.ops.roiaware_pool3d.roiaware_pool3d_utils"
    stub(boxes, points_in_boxes_gpu=points_in_boxes)
    torch.Tensor.cuda = lambda self: self  # type: ignore[method-assign]


def points_in_boxes(points: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """OpenPCDet's, for boxes without a heading: the box that each point is in, or -1."""
    apart = (points[:, :, None] - boxes[:, None, :, :3]).abs()
    inside = (apart <= boxes[:, None, :, 3:6] / 2).all(-1)
    return torch.where(inside.any(-1), inside.int().argmax(-1), -1)


def largekernel3d() -> None:
    root = clone_of("VOXAX_TEST_LARGEKERNEL3D")
    names = "pcdet", "pcdet.models", PCDET
    packages_without_init(root / "object-detection", *names)
    stub("pcdet.utils")
    import spconv.pytorch as spconv

    # The repository has no copy of OpenPCDet's file, whose function does this.
    module = "pcdet.utils.spconv_utils"
    stub(module, spconv=spconv, replace_feature=lambda x, features: x.replace_feature(features))
    stub_timm()
    sys.path.append(str(root / "semantic-segmentation"))


def stub_timm() -> None:
    """timm needs torchvision."""
    layers = {"trunc_normal_": nn.init.trunc_normal_, "DropPath": DropPath}
    stub("timm")
    stub("timm.layers", **layers)
    stub("timm.models")
    stub("timm.models.layers", **layers)


def sphereformer() -> None:
    package_without_init("model", clone_of("VOXAX_TEST_SPHEREFORMER") / "model")
    stub("torch_scatter", scatter_mean=scatter_mean)
    # Attention on CUDA kernels, which is left out: only sparse blocks run.
    stub("model.spherical_transformer", SphereFormer=None)


def scatter_mean(src: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    """torch_scatter's, along axis 0."""
    assert dim == 0
    out = src.new_zeros((int(index.max()) + 1, *src.shape[1:]))
    rows = index.reshape(-1, *[1] * (src.dim() - 1)).expand(src.shape)
    return out.scatter_reduce(0, rows, src, "mean", include_self=False)


def softgroup() -> None:
    root = clone_of("VOXAX_TEST_SOFTGROUP")
    packages_without_init(root, "softgroup", "softgroup.model")


class Registry:
    """mmengine's: classes by name."""

    def __init__(self) -> None:
        self.kinds: dict[str, Any] = {}

    def _register_module(self, kind: Any, name: str, force: bool = False) -> None:
        del force
        self.kinds[name] = kind

    def register_module(self) -> Callable[[type], type]:
        def register(kind: type) -> type:
            self.kinds[kind.__name__] = kind
            return kind

        return register

    def conv(self, config: dict[str, Any], *args: Any, **options: Any) -> nn.Module:
        """mmcv's ``build_conv_layer``."""
        config = dict(config)
        return self.kinds[config.pop("type")](*args, **options, **config)


def norm(config: dict[str, Any], channels: int, postfix: int | str = "") -> tuple[str, nn.Module]:
    """mmcv's ``build_norm_layer``, for ``BN1d``."""
    options = dict(config)
    assert options.pop("type") == "BN1d"
    return f"bn{postfix}", nn.BatchNorm1d(channels, **options)


def basic_block(conv: Callable[..., nn.Module]) -> type[nn.Module]:
    """mmdet's ``BasicBlock``: its layers, whose forward mmdetection3d writes anew."""

    class BasicBlock(nn.Module):
        def __init__(
            self,
            inplanes: int,
            planes: int,
            stride: int = 1,
            downsample: nn.Module | None = None,
            conv_cfg: Any = None,
            norm_cfg: Any = None,
        ) -> None:
            super().__init__()
            options = {"padding": 1, "bias": False}
            self.conv1 = conv(conv_cfg, inplanes, planes, 3, stride=stride, **options)
            self.bn1, self.bn2 = (norm(norm_cfg, planes)[1] for _ in range(2))
            self.conv2 = conv(conv_cfg, planes, planes, 3, **options)
            self.relu = nn.ReLU(inplace=True)
            self.downsample = downsample

        norm1 = property(lambda self: self.bn1)
        norm2 = property(lambda self: self.bn2)

    return BasicBlock


def mmdetection3d() -> None:
    root = clone_of("VOXAX_TEST_MMDETECTION3D")
    registry = Registry()
    stub("mmengine")
    stub("mmengine.registry", MODELS=registry)
    amp = type("amp", (), {"autocast": staticmethod(lambda enabled: lambda function: function)})
    stub("mmengine.runner", amp=amp)
    stub("mmcv")
    stub("mmcv.cnn", build_conv_layer=registry.conv, build_norm_layer=norm)
    stub("mmcv.ops", points_in_boxes_all=None, three_interpolate=None, three_nn=None)
    stub("mmdet")
    stub("mmdet.models")
    stub("mmdet.models.losses", sigmoid_focal_loss=None, smooth_l1_loss=None)
    stub("mmdet.models.backbones")
    blocks = {"BasicBlock": basic_block(registry.conv), "Bottleneck": type("_", (nn.Module,), {})}
    stub("mmdet.models.backbones.resnet", **blocks)
    models = "mmdet3d.models"
    names = "mmdet3d", models, f"{models}.layers", f"{models}.middle_encoders"
    packages_without_init(root, *names)
    stub("mmdet3d.registry", MODELS=registry)
    stub("mmdet3d.utils", OptConfigType=object)
    stub("mmdet3d.structures", BaseInstance3DBoxes=object)
    from mmdet3d.models.layers import sparse_block

    for name in ("SparseBasicBlock", "make_sparse_convmodule"):
        setattr(sys.modules[f"{models}.layers"], name, getattr(sparse_block, name))
    from mmdet3d.models.middle_encoders import sparse_encoder

    sys.modules[f"{models}.middle_encoders"].SparseEncoder = sparse_encoder.SparseEncoder
    package_without_init("bevfusion", root / "projects" / "BEVFusion" / "bevfusion")


def oneformer3d() -> None:
    package_without_init("oneformer3d", clone_of("VOXAX_TEST_ONEFORMER3D") / "oneformer3d")
    stub("mmdet3d")
    stub("mmdet3d.registry", MODELS=Registry())


def trellis() -> None:
    root = clone_of("VOXAX_TEST_TRELLIS")
    names = "trellis", "trellis.models", "trellis.models.structured_latent_vae"
    packages_without_init(root, *names)
    stub("flash_attn")  # of the transformers in between, which do not run here
    stub("trellis.representations", MeshExtractResult=None)
    stub("trellis.representations.mesh", SparseFeatures2Mesh=None)
    stub("trellis.utils")
    stub("trellis.utils.elastic_utils", ElasticModuleMixin=object)
    # Norms compute in float32, which hides what float64 shows: `float()` keeps float64.
    to_float = torch.Tensor.float

    def keep_wide(x: torch.Tensor) -> torch.Tensor:
        return x if x.dtype is torch.float64 else to_float(x)

    torch.Tensor.float = keep_wide  # type: ignore[method-assign]


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
    stub_timm()


def encoder(name: str) -> None:
    """The package itself: its ``__init__`` imports nothing that is not here."""
    sys.path.append(str(clone_of(f"VOXAX_TEST_{name.upper()}")))
    stub("torch_scatter", segment_csr=segment_csr)
    stub_timm()


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


class Options(dict):
    """A configuration, whose entries are attributes too."""

    __getattr__ = dict.__getitem__


def backbone(module: str, name: str, **options: Any) -> Callable[[Scan], nn.Module]:
    def build(scan: Scan) -> nn.Module:
        file = __import__(f"{PCDET}.{module}", fromlist=[name])
        return getattr(file, name)(Options(options), scan.features.shape[1], np.array(scan.grid))

    return build


def call_openpcdet(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    rows = torch.cat([scan.batch[:, None], scan.coords.flip(1)], 1)
    batch = {"voxel_features": x, "voxel_coords": rows, "batch_size": 1}
    return multi_scale(model(batch))


def multi_scale(out: dict[str, Any]) -> dict[str, Any]:
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


# Sonata, Concerto, Utonia


def pretrained(name: str, **options: Any) -> Callable[[Scan], nn.Module]:
    """The encoder that ``NAME.load`` makes, with the options of its file, and random weights."""

    def build(scan: Scan) -> nn.Module:
        file = __import__(f"{name}.model", fromlist=["PointTransformerV3"])
        fixed = {"enc_mode": True, "enable_flash": False, "mask_token": True}
        return file.PointTransformerV3(scan.features.shape[1], **fixed, **options)

    return build


def call_encoder(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    """Return each level's features and cells, the finest first."""
    offset = torch.tensor([len(x)])
    coord = scan.coords.to(x.dtype) * 0.02
    data = {"grid_coord": scan.coords, "coord": coord, "feat": x, "offset": offset}
    point, levels = model(data), []
    while point is not None:
        levels.insert(0, [point.feat, point.grid_coord])
        point = point.get("pooling_parent")
    return levels


# VirConv, FocalsConv, LargeKernel3D: on OpenPCDet


class Camera:
    """What VirConv asks of a calibration: the scan, of edge 0.05, before a camera of 700 pixels."""

    def lidar_to_rect_cuda(self, points: torch.Tensor) -> torch.Tensor:
        x, y, z = points.unbind(1)
        return torch.stack([-(y + 38.4), -(z + 2.0), x + 5.0], 1)

    def rect_to_img_cuda(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y, depth = points.unbind(1)
        return torch.stack([600 + 700 * x / depth, 300 + 700 * y / depth], 1), depth


def virconv_l(scan: Scan) -> nn.Module:
    from pcdet.models.backbones_3d.spconv_backbone import VirConvL8x

    config = {"NUM_FILTERS": [16, 32, 64, 64], "OUT_FEATURES": 64}
    config |= {"RETURN_NUM_FEATURES_AS_DICT": True, "LAYER_DISCARD_RATE": 0.1}
    return VirConvL8x(Options(config), 8, np.array(scan.grid))


def call_virconv(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    """Pixels of its images repeat: many voxels are behind one."""
    rows = torch.cat([scan.batch[:, None], scan.coords.flip(1)], 1)
    features = torch.cat([x, x[:, :2]], 1)
    batch = {"voxel_features": features, "voxel_coords": rows, "batch_size": 1}
    return multi_scale(model({**batch, "calib": [Camera()]}))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """For files that make tensors of PyTorch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


def call_focals(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    rows = torch.cat([scan.batch[:, None], scan.coords.flip(1)], 1)
    boxes = torch.tensor([[[0.5, -39.0, -1.0, 1.0, 2.0, 4.0, 0.0, 1.0]]])
    batch = {"voxel_features": x, "voxel_coords": rows, "batch_size": 1, "gt_boxes": boxes}
    with default_dtype(x.dtype):
        out = model(batch)
    losses = {"loss": out["loss_box_of_pts"][None]} if model.training else {}
    return multi_scale(out) | losses


def large_kernel(scan: Scan) -> nn.Module:
    build = backbone("spconv_backbone_largekernel", "VoxelResBackBone8xLargeKernel3D")
    return without_averages(build(scan))


def without_averages(model: nn.Module) -> nn.Module:
    """Weights are not averaged in training, which was written for another layout than KRSC."""

    def train(module: nn.Module, mode: bool = True) -> nn.Module:
        for child in module.children():
            child.train(mode)
        return module

    for module in model.modules():
        if type(module).__name__ == "SpatialGroupConv":
            module.training = False
            module.train = functools.partial(train, module)  # type: ignore[method-assign]
    return model


def large_kernel_unet(scan: Scan) -> nn.Module:
    import model

    class Small(model.LargeKernel3D):
        LAYERS = (1,) * 8
        PLANES = (16, 16, 32, 32, 32, 32, 16, 16)
        INIT_DIM = 16

    return without_averages(Small(scan.features.shape[1], CLASSES))


def sparse(scan: Scan, x: torch.Tensor) -> Any:
    import spconv.pytorch as spconv

    rows = torch.cat([scan.batch[:, None], scan.coords], 1).int()
    shape = [*map(int, scan.coords.amax(0) + 1)]
    return spconv.SparseConvTensor(x, rows, shape, 1)


def call_sparse(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    return model(sparse(scan, x))


# SphereFormer, SoftGroup, OneFormer3D


def sphere(scan: Scan) -> nn.Module:
    from model.unet_spherical_transformer import Semantic

    size = np.ones(3)
    return Semantic(
        *(scan.features.shape[1], 32, CLASSES),
        block_reps=2,
        block_residual=True,
        layers=[32, 64, 96],
        **dict.fromkeys(("window_size", "window_size_sphere"), size),
        **dict.fromkeys(("quant_size", "quant_size_sphere"), size),
        window_size_scale=[2.0, 2.0],
        sphere_layers=[],
    )


def call_sphere(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    return model(sparse(scan, x), scan.coords.to(x.dtype), scan.batch)


class UNet(nn.Module):
    """A U-Net between a first layer and a last norm, as SoftGroup and OneFormer3D build it."""

    def __init__(self, channels: int, unet: nn.Module, width: int = 32) -> None:
        super().__init__()
        import spconv.pytorch as spconv

        first = spconv.SubMConv3d(channels, width, 3, padding=1, bias=False, indice_key="subm1")
        self.input_conv = spconv.SparseSequential(first)
        self.unet = unet
        norm = nn.BatchNorm1d(width, eps=1e-4, momentum=0.1)
        self.output_layer = spconv.SparseSequential(norm, nn.ReLU())

    def forward(self, x: Any) -> Any:
        out = self.unet(self.input_conv(x))
        levels = out[1] if isinstance(out, tuple) else []
        out = out[0] if isinstance(out, tuple) else out
        return [self.output_layer(out), *levels]


def soft(scan: Scan) -> nn.Module:
    from softgroup.model.blocks import ResidualBlock, UBlock

    norm = functools.partial(nn.BatchNorm1d, eps=1e-4, momentum=0.1)
    unet = UBlock([32, 64, 96, 128], norm, 2, ResidualBlock, indice_key_id=1)
    return UNet(scan.features.shape[1], unet)


def one_former(scan: Scan) -> nn.Module:
    from oneformer3d.spconv_unet import SpConvUNet

    return UNet(scan.features.shape[1], SpConvUNet([32, 64, 96, 128], return_blocks=True))


# BEVFusion, TRELLIS


def bevfusion(scan: Scan) -> nn.Module:
    from bevfusion.sparse_encoder import BEVFusionSparseEncoder

    return BEVFusionSparseEncoder(
        scan.features.shape[1],
        [*scan.grid[:2], 41],
        encoder_channels=((16, 16, 32), (32, 32, 64), (64, 64, 128), (128, 128)),
        encoder_paddings=((0, 0, 1), (0, 0, 1), (0, 0, (1, 1, 0)), (0, 0)),
        block_type="basicblock",
        return_middle_feats=True,
    )


def call_bevfusion(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    rows = torch.cat([scan.batch[:, None], scan.coords], 1).int()
    return model(x, rows, rows[-1, 0] + 1)


def slat(scan: Scan) -> nn.Module:
    from trellis.models.structured_latent_flow import SparseResBlock3d
    from trellis.models.structured_latent_vae.decoder_mesh import SparseSubdivideBlock3d
    from trellis.modules import sparse

    class Blocks(nn.Module):
        """Blocks of the flow model, down and up, and of the decoder."""

        def __init__(self) -> None:
            super().__init__()
            self.first = sparse.SparseLinear(scan.features.shape[1], 32)
            self.down = SparseResBlock3d(32, 16, 48, downsample=True)
            self.up = SparseResBlock3d(48, 16, 32, upsample=True)
            self.divide = SparseSubdivideBlock3d(32, 64, 16, num_groups=8)
            for parameter in self.parameters():
                if not parameter.any():  # last layers begin at 0
                    nn.init.normal_(parameter, std=0.1)

        def forward(self, x: Any) -> Any:
            embedding = torch.linspace(-1, 1, 16, dtype=x.dtype)[None]
            low = self.down(self.first(x), embedding)
            high = self.up(low, embedding)
            return [part.data for part in (low, high, self.divide(high))]

    return Blocks()


def call_slat(model: nn.Module, scan: Scan, x: torch.Tensor) -> Any:
    from trellis.modules.sparse import SparseTensor

    rows = torch.cat([scan.batch[:, None], scan.coords], 1).int()
    return model(SparseTensor(x, rows))


PACKAGES: dict[str, Callable[[], None]] = {
    "torch_pointcloud": lambda: None,
    "openpcdet": openpcdet,
    "pointcept": pointcept,
    "mmdetection3d": mmdetection3d,
    "virconv": virconv,
    "sphereformer": sphereformer,
    "softgroup": softgroup,
    "oneformer3d": oneformer3d,
    "largekernel3d": largekernel3d,
    "focalsconv": focalsconv,
    "trellis": trellis,
    **{name: functools.partial(encoder, name) for name in ("sonata", "concerto", "utonia")},
}
_SPUNET = ("sparse_unet.spconv_unet_v1m1_base", "SpUNet-v1m1")
_PTV3 = ("point_transformer_v3.point_transformer_v3m1_base", "PT-v3m1")
_NEXT = ("spconv_backbone_voxelnext", "VoxelResBackBone8xVoxelNeXt")
_HEADS = (4, 8, 16, 32, 48)
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
    "BEVFusionSparseEncoder": Network("mmdetection3d", bevfusion, call_bevfusion),
    "VirConvL8x": Network("virconv", virconv_l, call_virconv),
    "SphereFormer": Network("sphereformer", sphere, call_sphere),
    "SoftGroup": Network("softgroup", soft, call_sparse),
    "OneFormer3D": Network("oneformer3d", one_former, call_sparse),
    "VoxelResBackBone8xLargeKernel3D": Network("largekernel3d", large_kernel, call_openpcdet),
    "LargeKernel3D": Network("largekernel3d", large_kernel_unet, call_sparse),
    "VoxelBackBone8xFocal": Network(
        "focalsconv",
        backbone("spconv_backbone_focal", "VoxelBackBone8xFocal", TOPK=False),
        call_focals,
    ),
    "TRELLIS": Network("trellis", slat, call_slat),
    "Sonata": Network("sonata", pretrained("sonata"), call_encoder),
    "Concerto": Network(
        "concerto",
        pretrained("concerto", enc_channels=(64, 128, 256, 512, 768), enc_num_head=_HEADS),
        call_encoder,
    ),
    # Its rotary embedding divides a head's channels by 3 and 2.
    "Utonia": Network(
        "utonia", pretrained("utonia", enc_channels=(54, 108, 216, 432, 576)), call_encoder
    ),
}


def read_scan(path: Path) -> Scan:
    with np.load(path) as file:
        arrays = dict(file)
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


def start(by: str) -> None:
    """Make ``import spconv`` work in this process, with ``"voxax"`` behind it or ``"spconv"``."""
    if by == "voxax":
        from voxax.torch import spconv

        spconv.install()
    else:
        from spconv.pytorch import ops

        ops.get_current_stream = lambda: 0  # asked for on CPUs too, where PyTorch has none


def main() -> None:
    folder, by, *names = sys.argv[1:]
    torch.set_num_threads(1 if by == "spconv" else 2)
    start(by)
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
