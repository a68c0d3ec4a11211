"""Networks of voxax.models on a CPU against those of torch-pointcloud, which run on spconv.

    python benchmarks/networks.py --data FOLDER [--rounds 5] [--scans NAME:SIZE ...]

Inference in float32, kernel maps and orders made in every call; same coordinates and sizes, random
weights (``tests/pytorch`` and ``tests/models`` compare the numbers). Contestants take turns as in
``whole_networks.py``. spconv 2.3.8 is right with one thread only (`GatherCPU::scatter_add`); with
two it is timed although wrong. PTv3 uses it for its position encoding only. It has four orders and
patches of 1,024 rows, as Pointcept's base network, without flash attention, which is for GPUs.

    pip install spconv==2.3.8 torch-pointcloud==0.0.18
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.own_process import KEEP_HEAP
from benchmarks.whole_networks import Runs, compare, grid_of, milliseconds, training_of, voxels_of

CONTESTANTS = {
    "voxax": ("voxax", 2),
    "torch-pointcloud, 1 thread": ("spconv", 1),
    "torch-pointcloud, 2 threads": ("spconv", 2),
}
CHANNELS, CLASSES = 4, 13
PATCH, ORDERS = 1024, ("z", "z-trans", "hilbert", "hilbert-trans")


def load(by: str, threads: int, network: str, cells: Any) -> tuple[Runs, None]:
    """Return inference of a network."""
    x, y, z = grid_of(cells)
    if by == "voxax":
        return {"inference": jax_run(network, cells, (x, y, max(z, 40)))}, None
    import spconv.pytorch as spconv
    import torch
    import torch_pointcloud.ops.serialization as serialization
    from torch_pointcloud.models import PointTransformerV3Segmentation, SparseUNetSegmentation
    from torch_pointcloud.models.voxelnext import VoxelResBackbone8xVoxelNeXt

    def z_key(x: Any, y: Any, z: Any, b: Any = None, depth: int = 16) -> Any:
        key = torch.zeros_like(x)  # of ocnn, which is not needed otherwise
        for bit in range(depth):
            for place, axis in enumerate((z, y, x)):
                key |= ((axis >> bit) & 1) << (3 * bit + place)
        return key

    serialization.octree_encode = z_key
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    coords = torch.from_numpy(cells).long()
    features = torch.randn(len(cells), CHANNELS)
    scene = torch.zeros(len(cells), dtype=torch.int64)
    if network == "VoxelNeXt backbone":
        model, shape = VoxelResBackbone8xVoxelNeXt(CHANNELS), [max(z, 40) + 1, y, x]
        upright = torch.cat([scene[:, None], coords.flip(1)], 1).int()
        runs = training_of(
            model, lambda: model(spconv.SparseConvTensor(features, upright, shape, 1))
        )
        return runs, None
    if network == "SpUNet34C":
        model = SparseUNetSegmentation(CHANNELS, CLASSES)
    else:
        model = PointTransformerV3Segmentation(
            CHANNELS,
            CLASSES,
            serialization_orders=ORDERS,
            encoder_patch_size=(PATCH,) * 5,
            decoder_patch_size=(PATCH,) * 4,
            shuffle_serialization_orders=False,
            use_flash_attn=False,
        )
    return training_of(model, lambda: model(features, coords, scene)), None


def jax_run(network: str, cells: Any, grid: tuple[int, ...]) -> Any:
    """Return a call of the network of ``voxax.models``, compiled for the scan's capacities."""
    import jax
    from flax import nnx

    from voxax.geometry import Plan
    from voxax.models import PTv3, SpUNet, VoxelNeXtBackbone

    voxels = voxels_of(cells, CHANNELS)
    if network == "SpUNet34C":
        model = SpUNet(CHANNELS, CLASSES)
    elif network == "PTv3":
        model = PTv3(
            CHANNELS, CLASSES, orders=ORDERS, shuffle_orders=False, patch_size=PATCH, fill="cycle"
        )
    else:
        model = VoxelNeXtBackbone(CHANNELS, grid)
        model.eval()
        model.capacity = model(voxels).capacity  # else the most that its ground can have
    model.eval()
    planned = Plan.record(model, voxels).attach(voxels, maps=False)
    graph, state = nnx.split(model)
    infer = jax.jit(lambda state, v: nnx.merge(graph, state, copy=True)(v).features)
    return lambda: jax.block_until_ready(infer(state, planned))


if __name__ == "__main__":
    others = {"torch-pointcloud, 1 thread": "1 thread (right)"}
    others["torch-pointcloud, 2 threads"] = "2 threads (wrong)"
    compare(
        __file__,
        __doc__ or "",
        load,
        lambda times: milliseconds(times, others, ours="voxax"),
        CONTESTANTS,
        ["SpUNet34C", "VoxelNeXt backbone", "PTv3"],
        ways=["inference"],
        out="networks",
        title="Networks on a CPU",
        words="inference, 2 threads, float32; kernel maps and orders are made in every call; "
        "glibc keeps its heap. The others are torch-pointcloud's on spconv, whose sums are right "
        "with one thread only.",
        rounds=5,
        environment=KEEP_HEAP,  # as docs/cpu.md advises
    )
