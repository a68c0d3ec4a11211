"""Public networks of PyTorch, in a process of their own, which networks of JAX are compared with.

    python reference.py FOLDER spconv|voxax NAME

``FOLDER/SCAN.npz`` has the inputs, as for ``networks.py``, which makes most of the networks. For
each scan it writes ``FOLDER/NAME.SCAN.reference.pt``: the state dict, the outputs in float32 in
evaluation and in training mode, and in float64 the gradient of a loss (:func:`loss_of`) with
respect to the first layer's weights in both modes, and the outputs in training mode.

With ``voxax`` spconv's door of voxax takes the place of spconv.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import torch
from torch import nn

# Of Point Transformer V3: two patches and a rest even on the second level of small scans.
PATCH = 128
SMALL = {
    "encoder_depths": (2, 2, 2, 3),
    "encoder_channels": (24, 48, 48, 96),
    "encoder_num_heads": (2, 4, 4, 8),
    "strides": (2, 2, 2),
    "decoder_depths": (2, 1, 2),
    "decoder_channels": (48, 48, 24),
    "decoder_num_heads": (4, 4, 2),
}


def z_key(x: Any, y: Any, z: Any, b: Any = None, depth: int = 16) -> torch.Tensor:
    """ocnn's ``xyz2key``, which is on no package index."""
    key = torch.zeros_like(x)
    for bit in range(depth):
        for place, axis in enumerate((z, y, x)):
            key |= ((axis >> bit) & 1) << (3 * bit + place)
    return key


def ptv3(levels: int = 5, **options: Any) -> Callable[[networks.Scan], nn.Module]:
    """Point Transformer V3 without what is random: the base network, or one of other sizes."""

    def build(scan: networks.Scan) -> nn.Module:
        from torch_pointcloud.models import PointTransformerV3Segmentation
        from torch_pointcloud.ops import serialization

        serialization.octree_encode = z_key
        fixed = {
            "serialization_orders": ("z", "z-trans", "hilbert", "hilbert-trans"),
            "shuffle_serialization_orders": False,
            "encoder_patch_size": (PATCH,) * levels,
            "decoder_patch_size": (PATCH,) * (levels - 1),
            "use_flash_attn": False,
            "drop_path": 0.0,
            "norm_kwargs": {"eps": 1e-3, "momentum": 0.01},
        }
        return PointTransformerV3Segmentation(
            scan.features.shape[1], networks.CLASSES, **{**fixed, **options}
        )

    return build


SONATA = {
    "norm": "layer_norm",
    "norm_kwargs": {"mode": "node"},
    "pooling": "grid",
    "stem_type": "linear",
}
_PTV3 = {
    "PTv3-base": ptv3(),
    "PTv3-legacy": ptv3(4, **SMALL, legacy=True, attn_kind="rpe"),
    "PTv3-sonata": ptv3(4, **SMALL, **SONATA),
    "PTv3-defaults": ptv3(4, **SMALL, norm_kwargs=None),
}


def with_norm(build: Callable[[networks.Scan], nn.Module], **norm: Any) -> Any:
    """The network with other batch norms: none are the defaults of its class."""

    def built(scan: networks.Scan) -> nn.Module:
        import torch_pointcloud.models

        found = [(c, getattr(torch_pointcloud.models, c)) for c in _CLASSES]
        try:
            for name, kind in found:
                make = functools.partial(_with_norm, kind, norm)
                setattr(torch_pointcloud.models, name, make)
            return build(scan)
        finally:
            for name, kind in found:
                setattr(torch_pointcloud.models, name, kind)

    return built


_CLASSES = ("SparseUNetSegmentation", "SECONDDetection", "VoxelNeXtDetection")


def _with_norm(kind: Any, norm: dict[str, Any], *arguments: Any, **options: Any) -> nn.Module:
    return kind(*arguments, **{**options, "norm_kwargs": norm})


RELEASED = {"eps": 1e-3, "momentum": 0.01}  # of every network with registered weights
NETWORKS = networks.NETWORKS | {
    name: networks.Network("torch_pointcloud", build, networks.call_packed)
    for name, build in _PTV3.items()
}
NETWORKS |= {
    f"{name}-{kind}": dataclasses.replace(
        NETWORKS[name], build=with_norm(NETWORKS[name].build, **norm)
    )
    for name in ("SpUNet", "SECOND", "VoxelNeXt")
    for kind, norm in (("defaults", {}), ("released", RELEASED))
}


def compared(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the outputs that the networks of JAX have too, in one order."""
    left_out = {"SECOND": ("out.batch_cls", "out.batch_box")}.get(name.partition("-")[0], ())
    return {key: tensors[key] for key in sorted(tensors) if key not in left_out}


def loss_of(outputs: dict[str, Any]) -> Any:
    """Return the sum of the mean squares: it does not depend on the order of rows and cells."""
    return sum((value**2).mean() for name, value in outputs.items() if "indices" not in name)


def run(name: str, scan: networks.Scan) -> dict[str, Any]:
    network = NETWORKS[name]
    torch.manual_seed(0)
    model = network.build(scan)
    networks.take_statistics(network, model, scan)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    first = next(iter(model.named_parameters()))[0]

    def outputs(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        x = scan.features.to(dtype)
        found = networks.tensors(networks.seeded(lambda: network.call(model, scan, x)))
        return compared(name, found)

    def gradients(dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        found = outputs(dtype)
        (grad,) = torch.autograd.grad(loss_of(found), model.get_parameter(first))
        return {key: value.detach() for key, value in found.items()}, {first: grad}

    model.eval()
    if "voxax" not in sys.modules:
        networks.allow_bias(model)
    with torch.no_grad():
        plain = outputs(torch.float32)
    model.double()
    _, plain_grads = gradients(torch.float64)
    model.float().train()
    with torch.no_grad():
        trained = outputs(torch.float32)
    model.load_state_dict(state)
    model.double()
    wide, wide_grads = gradients(torch.float64)
    return {
        "state": state,
        "eval": {"outputs": plain, "grads": plain_grads},
        "train": {"outputs": trained},
        "train64": {"outputs": wide, "grads": wide_grads},
    }


def main() -> None:
    folder, by, name = sys.argv[1:]
    torch.set_num_threads(1 if by == "spconv" else 2)
    networks.start(by)
    networks.PACKAGES[NETWORKS[name].package]()
    for path in sorted(Path(folder).glob("*.npz")):
        result = run(name, networks.read_scan(path))
        torch.save(result, Path(folder, f"{name}.{path.stem}.reference.pt"))


if __name__ == "__main__":
    main()
