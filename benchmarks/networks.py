"""Networks of voxax.models on a CPU against those of torch-pointcloud, which run on spconv.

    python benchmarks/networks.py --data FOLDER [--rounds 5] [--scans NAME:SIZE ...]

Inference in float32, kernel maps and orders made in every call; same coordinates and sizes, random
weights (``tests/pytorch`` and ``tests/models`` compare the numbers). Contestants take turns as in
``turns.py``. spconv 2.3.8 is right with one thread only (`GatherCPU::scatter_add`); with two it is
timed although wrong. PTv3 uses it for its position encoding only. It has four orders and patches of
1,024 rows, as Pointcept's base network, without flash attention, which is for GPUs.

    pip install spconv==2.3.8 torch-pointcloud==0.0.18
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from own_process import KEEP_HEAP
from spconv_networks import read_scan
from turns import Contestant, answer, medians, write_results

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"
CONTESTANTS = {"voxax": 2, "torch-pointcloud, 1 thread": 1, "torch-pointcloud, 2 threads": 2}
NETWORKS = ("SpUNet34C", "VoxelNeXt backbone", "PTv3")
# Sizes at which outdoor networks are trained, and a dense scan.
SCANS = ("lidar_os0_128.npz:0.05", "tls_lone_star.npz:0.1")
CHANNELS, CLASSES = 4, 13
PATCH, ORDERS = 1024, ("z", "z-trans", "hilbert", "hilbert-trans")


def grid_of(cells: Any) -> tuple[int, int, int]:
    """Return the cells along x, y and z of the grid around a scan, in multiples of 16."""
    x, y, z = (int(-(-(high + 1) // 16) * 16) for high in cells.max(0))
    return x, y, max(z, 40)


def torch_run(network: str, cells: Any, threads: int) -> Callable[[], Any]:
    """Return a call of torch-pointcloud's network."""
    import spconv.pytorch as spconv
    import torch
    import torch_pointcloud.ops.serialization as serialization
    from spconv.pytorch import ops
    from torch_pointcloud.models import PointTransformerV3Segmentation, SparseUNetSegmentation
    from torch_pointcloud.models.voxelnext import VoxelResBackbone8xVoxelNeXt

    sys.path.insert(0, str(ROOT.parent / "tests/pytorch/spconv_api"))
    import networks

    def z_key(x: Any, y: Any, z: Any, b: Any = None, depth: int = 16) -> Any:
        key = torch.zeros_like(x)  # of ocnn, which is not needed otherwise
        for bit in range(depth):
            for place, axis in enumerate((z, y, x)):
                key |= ((axis >> bit) & 1) << (3 * bit + place)
        return key

    ops.get_current_stream = lambda: 0  # asked for on CPUs too, where PyTorch has none
    serialization.octree_encode = z_key
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y, z = grid_of(cells)
    coords = torch.from_numpy(cells).long()
    features = torch.randn(len(cells), CHANNELS)
    scene = torch.zeros(len(cells), dtype=torch.int64)
    upright = torch.cat([scene[:, None], coords.flip(1)], 1).int()
    if network == "SpUNet34C":
        model = SparseUNetSegmentation(CHANNELS, CLASSES)
    elif network == "PTv3":
        model = PointTransformerV3Segmentation(
            CHANNELS,
            CLASSES,
            serialization_orders=ORDERS,
            encoder_patch_size=(PATCH,) * 5,
            decoder_patch_size=(PATCH,) * 4,
            shuffle_serialization_orders=False,
            use_flash_attn=False,
        )
    else:
        model = VoxelResBackbone8xVoxelNeXt(CHANNELS)
    model.eval()
    networks.allow_bias(model)

    @torch.no_grad()
    def infer() -> Any:
        if network == "VoxelNeXt backbone":
            return model(spconv.SparseConvTensor(features, upright, [z + 1, y, x], 1))
        return model(features, coords, scene)

    return infer


def jax_run(network: str, cells: Any) -> Callable[[], Any]:
    """Return a call of the network of ``voxax.models``, compiled for the scan's capacities."""
    import jax
    import numpy as np
    from flax import nnx

    import voxax as vx
    from voxax.geometry import Plan
    from voxax.models import PTv3, SpUNet, VoxelNeXtBackbone

    rows = np.column_stack([np.zeros(len(cells), np.int32), cells])
    features = np.random.default_rng(0).normal(size=(len(cells), CHANNELS)).astype(np.float32)
    voxels = vx.Voxels.from_coords(rows, features, batch_size=1)
    if network == "SpUNet34C":
        model = SpUNet(CHANNELS, CLASSES)
    elif network == "PTv3":
        model = PTv3(
            CHANNELS, CLASSES, orders=ORDERS, shuffle_orders=False, patch_size=PATCH, fill="cycle"
        )
    else:
        model = VoxelNeXtBackbone(CHANNELS, grid_of(cells))
        model.eval()
        model.capacity = model(voxels).capacity  # else the most that its ground can have
    model.eval()
    planned = Plan.record(model, voxels).attach(voxels, maps=False)
    graph, state = nnx.split(model)
    infer = jax.jit(lambda state, v: nnx.merge(graph, state, copy=True)(v).features)
    return lambda: jax.block_until_ready(infer(state, planned))


def table(times: dict[str, dict[str, float]]) -> list[str]:
    lines = [
        "| network | voxax | 1 thread (right) | faster | 2 threads (wrong) | faster |",
        "|---|---|---|---|---|---|",
    ]
    for name, by in times.items():
        ours, *others = (by[who] for who in CONTESTANTS)
        cells = [f"{1e3 * ours:.0f} ms"]
        for other in others:
            cells += [f"{1e3 * other:.0f} ms", f"{other / ours:.1f}x"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def worker(network: str, name: str, threads: int, path: str) -> None:
    """Answer each line, the network's name, with the seconds of one run."""
    import numpy as np

    cells = np.load(path)
    made = functools.partial(jax_run, network, cells)
    if name != "voxax":
        made = functools.partial(torch_run, network, cells, threads)
    answer(lambda: {network: made()})


def measured(network: str, cells: Any, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of a network by contestant, whose processes end with it."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cells.npy")
        np.save(path, cells)
        crew: dict[str, Contestant] = {}
        try:
            for who, threads in CONTESTANTS.items():
                given = ("--worker", network, who, threads, path)
                crew[who] = Contestant(__file__, *given, threads=threads)
            return medians(crew, [network], rounds)
        finally:
            for one in crew.values():
                one.end()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:4], int(sys.argv[4]), sys.argv[5])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA"))
    parser.add_argument("--scans", nargs="+", default=SCANS, metavar="NAME:SIZE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="networks with this in their names")
    parser.add_argument("--out", type=Path, default=RESULTS / "networks")
    options = parser.parse_args()

    os.environ.update(KEEP_HEAP)  # of all contestants, as docs/cpu.md advises
    results = []
    text = [
        "# Networks on a CPU",
        "",
        f"`benchmarks/networks.py`: inference, medians of {options.rounds} rounds, 2 threads, "
        "float32; kernel maps and orders are made in every call; glibc keeps its heap. The others "
        "are torch-pointcloud's on spconv, whose sums are right with one thread only.",
        "",
    ]
    names = [name for name in NETWORKS if options.only in name]
    for scan in options.scans:
        file, size = scan.rsplit(":", 1)
        cells = read_scan(Path(options.data), file, float(size))
        times: dict[str, dict[str, float]] = {}
        for name in names:
            times |= measured(name, cells, options.rounds)
        facts = {"scan": file, "voxel_size": float(size), "voxels": len(cells)}
        results.append({**facts, "rounds": options.rounds, "seconds": times})
        text += [f"## {file}: {len(cells)} voxels of {size}", "", *table(times), ""]
        write_results(options.out, text, results)  # after each scan, so that nothing is lost
    print("\n".join(text))


if __name__ == "__main__":
    main()
