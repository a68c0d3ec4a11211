"""Names and shapes of the state dicts of public networks, in a process of its own.

    python released.py PACKAGE

The classes are those of the clone that ``networks.py`` names an environment variable for, or of an
installed package. Prints JSON: for each network the shape of every tensor by its name.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import networks
import torch
from torch import nn

GRID = (32, 32, 40)
SCAN = networks.Scan(torch.zeros((1, 3), dtype=torch.long), torch.zeros((1, 6)), GRID)
SMALL_PTV3 = {
    "stride": (2,),
    "enc_depths": (1, 2),
    "enc_channels": (16, 32),
    "enc_num_head": (2, 4),
    "enc_patch_size": (64, 64),
    "dec_depths": (1,),
    "dec_channels": (16,),
    "dec_num_head": (2,),
    "dec_patch_size": (64,),
    "enable_flash": False,
}


def pointcept() -> dict[str, nn.Module]:
    unet = networks.registered(*networks._SPUNET, num_classes=13)
    second = networks.registered(
        "sparse_unet.spconv_unet_v1m2_bn_momentum", "SpUNet-v1m2", num_classes=13
    )
    attention = networks.registered(*networks._PTV3, **SMALL_PTV3)
    relative = {"upcast_attention": True, "upcast_softmax": True, "enable_rpe": True}
    tables = networks.registered(*networks._PTV3, **SMALL_PTV3, **relative)
    found = {"SpUNet-v1m1": unet, "SpUNet-v1m2": second, "PTv3": attention, "PTv3-rpe": tables}
    return {name: build(SCAN) for name, build in found.items()}


def openpcdet() -> dict[str, nn.Module]:
    large = {
        "SPCONV_KERNEL_SIZES": [5, 5, 3, 3],
        "OUT_CHANNEL": 256,
        "CHANNELS": [32, 64, 128, 256, 256],
    }
    next_file, next_name = networks._NEXT
    kinds: dict[str, tuple[str, str, dict[str, Any]]] = {
        "VoxelBackBone8x": ("spconv_backbone", "VoxelBackBone8x", {}),
        "VoxelResBackBone8x": ("spconv_backbone", "VoxelResBackBone8x", {}),
        "VoxelNeXt": (next_file, next_name, {}),
        "VoxelNeXt-large": (next_file, next_name, large),
    }
    return {
        name: networks.backbone(file, kind, **options)(SCAN)
        for name, (file, kind, options) in kinds.items()
    }


def mmdetection3d() -> dict[str, nn.Module]:
    from mmdet3d.models.middle_encoders import SparseEncoder  # type: ignore[import-not-found]

    shape = [GRID[2] + 1, GRID[1], GRID[0]]
    return {"middle_encoder": SparseEncoder(6, shape)}


def torch_pointcloud() -> dict[str, nn.Module]:
    names = "SpUNet", "SECOND", "VoxelNeXt", "PTv3"
    return {name: networks.NETWORKS[name].build(SCAN) for name in names}


def main() -> None:
    package = sys.argv[1]
    networks.PACKAGES[package]()
    found = {
        name: {key: list(value.shape) for key, value in model.state_dict().items()}
        for name, model in globals()[package]().items()
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
