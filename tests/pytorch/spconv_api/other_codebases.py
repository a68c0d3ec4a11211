"""Networks of mmdetection3d, and CenterPoint of its authors, unmodified, in its own process.

    python other_codebases.py mmdetection3d|centerpoint|minkunet|spunet_v1m2 FOLDER

``FOLDER/scan.npz`` has the inputs, ``coords int64[N, 3]`` along x, y and z and ``features
float32[N, 5]``. It writes ``FOLDER/state.pth``, of random weights, and ``FOLDER/outputs.pt``: for
each group of classes what the head predicts, ``[1, channels, Y, X]``, by its names there; of
``minkunet``, mmdetection3d's on spconv, and of Pointcept's SpUNet-v1m2 the logits by ``logits``.
Clones are named by ``VOXAX_TEST_MMDETECTION3D``, ``_CENTERPOINT`` and ``_POINTCEPT``.
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch
from torch import nn

GRID = (64, 32, 40)
GROUPS = (1, 2, 2, 1, 2, 2)
BEV = {"layers": (1, 1), "channels": (8, 12), "up_channels": (8, 8)}
BRANCHES = {"reg": (2, 2), "height": (1, 2), "dim": (3, 2), "rot": (2, 2), "vel": (2, 2)}
NORM = {"eps": 1e-3, "momentum": 0.01}


class Loose(networks.ModuleType):
    """A stub that has every name: nothing of it runs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def loose(*names: str) -> None:
    for name in names:
        sys.modules[name] = Loose(name)


class ConvModule(nn.Module):
    """mmcv's: a convolution without a bias, a norm and a ReLU."""

    def __init__(self, c_in: int, c_out: int, *, bias: Any, norm_cfg: Any, **options: Any) -> None:
        super().__init__()
        assert bias == "auto"
        assert norm_cfg == {"type": "BN2d"}
        del options["conv_cfg"]
        self.conv = nn.Conv2d(c_in, c_out, bias=False, **options)
        self.bn = nn.BatchNorm2d(c_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(self.conv(x)).relu()


class Base(nn.Module):
    """mmengine's ``BaseModule``."""

    def __init__(self, init_cfg: Any = None) -> None:
        super().__init__()
        self.init_cfg = init_cfg


def mmdetection3d() -> nn.Module:
    networks.mmdetection3d()
    registry = sys.modules["mmdet3d.registry"].MODELS
    cnn = sys.modules["mmcv.cnn"]

    def conv(config: Any, *args: Any, **options: Any) -> nn.Module:
        config = dict(config)
        kinds = {"Conv2d": nn.Conv2d, "deconv": nn.ConvTranspose2d}
        kind = kinds.get(config.pop("type"))
        return kind(*args, **options, **config)

    def norm(config: Any, channels: int) -> tuple[str, nn.Module]:
        options = {k: v for k, v in config.items() if k != "type"}
        return "bn", nn.BatchNorm2d(channels, **options)

    before = cnn.build_conv_layer, cnn.build_norm_layer
    cnn.build_conv_layer, cnn.build_norm_layer = conv, norm
    cnn.build_upsample_layer, cnn.ConvModule = conv, ConvModule
    root = networks.clone_of("VOXAX_TEST_MMDETECTION3D")
    parts = "backbones", "necks", "dense_heads"
    networks.packages_without_init(root, *(f"mmdet3d.models.{part}" for part in parts))
    loose("mmengine.structures", "mmdet.models.utils", "mmdet3d.models.utils")
    networks.stub("mmengine.model", BaseModule=Base)
    for name in ("ConfigType", "OptMultiConfig"):
        setattr(sys.modules["mmdet3d.utils"], name, object)
    for name in ("Det3DDataSample", "xywhr2xyxyr"):
        setattr(sys.modules["mmdet3d.structures"], name, None)
    for name in ("circle_nms", "nms_bev"):
        setattr(sys.modules["mmdet3d.models.layers"], name, None)
    sys.modules["mmdet3d.registry"].TASK_UTILS = type("_", (), {"build": staticmethod(id)})

    def build(config: dict[str, Any]) -> nn.Module:
        config = dict(config)
        kind = config.pop("type")
        return registry.kinds[kind](**config) if kind == "SeparateHead" else nn.Identity()

    registry.build = build
    ground = importlib.import_module("mmdet3d.models.backbones.second").SECOND
    neck = importlib.import_module("mmdet3d.models.necks.second_fpn").SECONDFPN
    head = importlib.import_module("mmdet3d.models.dense_heads.centerpoint_head").CenterHead
    model = nn.Module()
    model.pts_backbone = ground(256, list(BEV["channels"]), list(BEV["layers"]), [1, 2])
    model.pts_neck = neck(
        list(BEV["channels"]), list(BEV["up_channels"]), [1, 2], use_conv_for_no_stride=True
    )
    model.pts_bbox_head = head(
        sum(BEV["up_channels"]),
        tasks=[{"num_class": n, "class_names": ["?"] * n} for n in GROUPS],
        common_heads=dict(BRANCHES),
        separate_head={"type": "SeparateHead", "init_bias": -2.19, "final_kernel": 3},
    )
    cnn.build_conv_layer, cnn.build_norm_layer = before
    from mmdet3d.models.middle_encoders import SparseEncoder  # type: ignore[import-not-found]

    model.pts_middle_encoder = SparseEncoder(
        *(5, [GRID[2] + 1, GRID[1], GRID[0]]),
        encoder_channels=((16, 16, 32), (32, 32, 64), (64, 64, 128), (128, 128)),
        encoder_paddings=((0, 0, 1), (0, 0, 1), (0, 0, [0, 1, 1]), (0, 0)),
        block_type="basicblock",
    )
    return model


def run_mmdetection3d(model: Any, rows: torch.Tensor, features: torch.Tensor) -> Any:
    grid = model.pts_middle_encoder(features, rows, 1)
    (grid,) = model.pts_neck(model.pts_backbone(grid))
    return model.pts_bbox_head.forward_single(grid)


def minkunet() -> nn.Module:
    networks.mmdetection3d()
    registry = sys.modules["mmdet3d.registry"].MODELS
    networks.stub("mmengine.model", BaseModule=Base)
    sys.modules["mmengine.registry"].MODELS = registry
    sys.modules["mmdet3d.utils"].OptMultiConfig = object
    layers = "mmdet3d.models.layers"
    loose(
        f"{layers}.minkowski_engine_block", f"{layers}.torchsparse_block", f"{layers}.torchsparse"
    )
    root = networks.clone_of("VOXAX_TEST_MMDETECTION3D")
    networks.packages_without_init(root, "mmdet3d.models.backbones")
    file = importlib.import_module("mmdet3d.models.backbones.minkunet_backbone")
    model = nn.Module()
    model.backbone = file.MinkUNetBackbone(
        in_channels=5,
        base_channels=8,
        encoder_channels=[8, 12, 16, 16],
        decoder_channels=[16, 12, 8, 8],
        encoder_blocks=[1, 2, 1, 1],
        decoder_blocks=[1, 1, 1, 2],
        sparseconv_backend="spconv",
    )
    model.decode_head = nn.Module()
    model.decode_head.conv_seg = nn.Linear(8, 4)  # of MinkUNetHead
    return model


def run_minkunet(model: Any, rows: torch.Tensor, features: torch.Tensor) -> Any:
    rows = torch.cat([rows[:, :1], rows[:, 1:].flip(1)], 1)
    return [{"logits": model.decode_head.conv_seg(model.backbone(features, rows))}]


def spunet_v1m2() -> nn.Module:
    networks.pointcept()
    networks.stub("torch_geometric")
    networks.stub("torch_geometric.utils", scatter=None)
    file, name = "sparse_unet.spconv_unet_v1m2_bn_momentum", "SpUNet-v1m2"
    sizes = {"channels": (8,) * 4, "layers": (1,) * 4, "base_channels": 8, "num_classes": 4}
    scan = networks.Scan(torch.zeros((1, 3), dtype=torch.long), torch.zeros((1, 5)), GRID)
    return networks.registered(file, name, **sizes)(scan)


def run_spunet_v1m2(model: Any, rows: torch.Tensor, features: torch.Tensor) -> Any:
    scan = networks.Scan(rows[:, 1:].flip(1).long(), features, GRID)
    return [{"logits": networks.call_pointcept(model, scan, features)}]


def centerpoint() -> nn.Module:
    root = networks.clone_of("VOXAX_TEST_CENTERPOINT")
    models = "det3d.models"
    names = ("det3d", models, *(f"{models}.{p}" for p in ("backbones", "necks", "bbox_heads")))
    networks.packages_without_init(root, *names)
    loose(
        *("torchvision", "torchvision.models", "det3d.torchie", "det3d.torchie.cnn"),
        *("det3d.torchie.trainer", "det3d.core", "det3d.models.losses", "det3d.models.builder"),
        *("det3d.models.losses.centernet_loss", "det3d.ops", "det3d.ops.dcn"),
        *("det3d.core.utils", "det3d.core.utils.circle_nms_jit", "det3d.utils"),
    )
    register = type("_", (), {"register_module": staticmethod(lambda kind: kind)})
    registries = dict.fromkeys(("BACKBONES", "NECKS", "HEADS"), register)
    networks.stub("det3d.models.registry", **registries)
    sys.modules["det3d.torchie.cnn"].kaiming_init = lambda module: None
    losses = sys.modules["det3d.models.losses.centernet_loss"]
    losses.FastFocalLoss = losses.RegLoss = nn.Identity

    def norm(config: Any, channels: int) -> tuple[str, nn.Module]:
        kinds = {"BN1d": nn.BatchNorm1d, "BN": nn.BatchNorm2d}
        options = {k: v for k, v in config.items() if k != "type"}
        return "bn", kinds[config["type"]](channels, **options)

    class Sequential(nn.Sequential):
        def add(self, module: nn.Module) -> None:
            self.add_module(str(len(self)), module)

    contents = {"build_norm_layer": norm, "Sequential": Sequential, "Empty": None}
    contents |= {"GroupNorm": None, "change_default_args": None}
    networks.stub("det3d.models.utils", **contents)
    model = nn.Module()
    sparse = importlib.import_module("det3d.models.backbones.scn").SpMiddleResNetFHD
    ground = importlib.import_module("det3d.models.necks.rpn").RPN
    head = importlib.import_module("det3d.models.bbox_heads.center_head").CenterHead
    model.backbone = sparse(5)
    ups = [1, 2], list(BEV["up_channels"])
    model.neck = ground(
        *(list(BEV["layers"]), [1, 2], list(BEV["channels"]), *ups, 256),
        logger=logging.getLogger("RPN"),
    )
    model.bbox_head = head(
        in_channels=sum(BEV["up_channels"]),
        tasks=[{"num_class": n, "class_names": ["?"] * n} for n in GROUPS],
        common_heads=dict(BRANCHES),
        code_weights=[1.0],
    )
    return model


def run_centerpoint(model: Any, rows: torch.Tensor, features: torch.Tensor) -> Any:
    grid, _ = model.backbone(features, rows, 1, np.array(GRID))
    return model.bbox_head(model.neck(grid))[0]


def main() -> None:
    package, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    networks.start("spconv")
    torch.manual_seed(0)
    model = globals()[package]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.01)
            module.running_var.uniform_(1e-3, 1e-2)  # so that epsilons count
            module.weight.data.uniform_(0.05, 0.2)
            module.bias.data.normal_(0, 0.1)
    networks.allow_bias(model)
    with np.load(folder / "scan.npz") as file:
        coords, features = (torch.from_numpy(file[name]) for name in ("coords", "features"))
    rows = torch.cat([torch.zeros(len(coords), 1), coords.flip(1)], 1).int()
    with torch.no_grad():
        outputs = globals()[f"run_{package}"](model, rows, features)
    torch.save({"state_dict": model.state_dict()}, folder / "state.pth")
    torch.save([dict(group) for group in outputs], folder / "outputs.pt")


if __name__ == "__main__":
    main()
