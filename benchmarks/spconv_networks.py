"""Whole spconv networks on a CPU: voxax.torch.spconv against spconv, and against voxax from JAX.

    python benchmarks/spconv_networks.py --data FOLDER [--rounds 7] [--scans NAME:SIZE ...]

Each contestant has a process of its own and is stopped (SIGSTOP) when it is not its turn; they take
turns, forwards and backwards. In a turn a network runs once to warm up and once that counts; the
median of the rounds is the result. Same coordinates, same weights by seed; kernel maps are made in
every call, as in a data loader's loop, but in the row "maps kept". Training of more than 100,000
voxels is left out: four processes do not fit in 24 GB.

spconv 2.3.8 is right with one thread only (`GatherCPU::scatter_add`); with two it is timed
although wrong. spconv, torch-pointcloud and PyTorch are needed:

    pip install spconv==2.3.8 torch-pointcloud==0.0.18
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from own_process import KEEP_HEAP
from turns import Contestant, answer, medians, write_results

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"
sys.path[:0] = [str(ROOT.parent), str(ROOT / "peers")]

CONTESTANTS = {
    "voxax": ("voxax", 2),
    "spconv, 1 thread": ("spconv", 1),
    "spconv, 2 threads": ("spconv", 2),
    "voxax from JAX": ("jax", 2),
}
NETWORKS = ("SpUNet34C", "VoxelBackBone8x", "MinkUNet18")
# Sizes at which outdoor networks are trained, and a dense scan.
SCANS = ("lidar_os0_128.npz:0.05", "tls_lone_star.npz:0.1")
MOST_TRAINED = 100_000  # voxels
WAYS = ("inference", "training", "inference, maps kept", "training, maps kept")


def read_scan(folder: Path, name: str, size: float) -> Any:
    """Return distinct cells from 0 on, shuffled, as an ``int32[N, 3]`` array."""
    import numpy as np

    import voxax.io

    positions = np.asarray(voxax.io.read(folder / name).positions, np.float64)
    positions = positions[np.isfinite(positions).all(1)]
    cells = np.unique(np.floor(positions / size).astype(np.int64), axis=0)
    cells -= cells.min(0) // 16 * 16
    return np.random.default_rng(0).permutation(cells).astype(np.int32)


def torch_runs(cells: Any, by: str, threads: int) -> dict[str, Callable[[], Any]]:
    """Return every network and way on the layers that are called spconv."""
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    if by == "voxax":
        from voxax.torch import spconv as ours

        ours.install()
    else:
        from spconv.pytorch import ops

        ops.get_current_stream = lambda: 0
    import spconv.pytorch as spconv
    import spconv_minkunet
    from torch_pointcloud.models import SparseUNetSegmentation
    from torch_pointcloud.models.second import VoxelBackbone8x

    torch.manual_seed(0)
    shape = [int(-(-(high + 1) // 16) * 16) for high in cells.max(0)]
    flat = shape[::-1]
    flat[0] = max(flat[0], 40) + 1
    coords = torch.from_numpy(cells)
    features = torch.randn(len(cells), 4)
    rows = torch.cat([torch.zeros(len(cells), 1, dtype=torch.int32), coords], 1)
    batch = torch.zeros(len(cells), dtype=torch.int64)
    backbone, minkunet = VoxelBackbone8x(4), spconv_minkunet.MinkUNet(4, 13)
    spunet = SparseUNetSegmentation(4, 13)
    upright = np.ascontiguousarray(cells[:, ::-1])
    upright_rows = torch.cat([rows[:, :1], torch.from_numpy(upright)], 1)

    def tensor(indices: torch.Tensor, spatial_shape: list[int]) -> Any:
        return spconv.SparseConvTensor(features, indices.clone(), spatial_shape, 1)

    kept = tensor(rows, shape)
    calls: dict[str, tuple[torch.nn.Module, Callable[[], torch.Tensor]]] = {
        "SpUNet34C": (spunet, lambda: spunet(features, coords.long(), batch)),
        "VoxelBackBone8x": (backbone, lambda: backbone(tensor(upright_rows, flat)).features),
        "MinkUNet18": (minkunet, lambda: minkunet(tensor(rows, shape))),
    }

    def inference(model: torch.nn.Module, call: Callable[[], torch.Tensor]) -> None:
        model.eval()
        if by == "spconv":  # which refuses a bias in evaluation mode
            for module in model.modules():
                if isinstance(module, spconv.conv.SparseConvolution):
                    module.training = True
        with torch.no_grad():
            call()

    def training(model: torch.nn.Module, call: Callable[[], torch.Tensor]) -> None:
        model.train()
        model.zero_grad()
        call().square().mean().backward()

    runs = {}
    for name, (model, call) in calls.items():
        for way, run in (("inference", inference), ("training", training)):
            runs[f"{name}, {way}"] = lambda run=run, model=model, call=call: run(model, call)
            if name == "MinkUNet18" and by == "voxax":
                again = lambda: minkunet(kept)  # noqa: E731
                runs[f"{name}, {way}, maps kept"] = lambda run=run, model=model, again=again: run(
                    model, again
                )
    return runs


def jax_runs(cells: Any) -> dict[str, Callable[[], Any]]:
    """Return MinkUNet18 of ``voxax.models``, planned, compiled."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    import voxax as vx
    from voxax.geometry import Plan
    from voxax.models import MinkUNet18

    model = MinkUNet18(4, 13)
    rows = np.column_stack([np.zeros(len(cells), np.int32), cells])
    features = np.random.default_rng(0).normal(size=(len(cells), 4)).astype(np.float32)
    voxels = vx.Voxels.from_coords(rows, features)
    plan = Plan.record(model, voxels)
    forms = {"": plan.attach(voxels, maps=False), ", maps kept": plan.attach(voxels)}

    def split(train: bool) -> Any:
        model.train() if train else model.eval()
        return nnx.split(model, nnx.Param, ...)

    runs = {}
    for mark, planned in forms.items():
        graph, params, rest = split(False)

        def infer(params: Any, rest: Any, voxels: vx.Voxels, graph: Any = graph) -> Any:
            return nnx.merge(graph, params, rest, copy=True)(voxels).features

        train_graph, train_params, train_rest = split(True)

        def step(params: Any, rest: Any, voxels: vx.Voxels, graph: Any = train_graph) -> Any:
            def loss_of(params: Any) -> Any:
                module = nnx.merge(graph, params, rest, copy=True)
                out = module(voxels).features
                return jnp.sum(out**2) / out.shape[1], nnx.split(module, nnx.Param, ...)[2]

            return jax.value_and_grad(loss_of, has_aux=True)(params)

        infer, step = jax.jit(infer), jax.jit(step)
        given = (params, rest, planned)
        runs[f"MinkUNet18, inference{mark}"] = lambda infer=infer, given=given: (
            jax.block_until_ready(infer(*given))
        )
        taught = (train_params, train_rest, planned)
        runs[f"MinkUNet18, training{mark}"] = lambda step=step, given=taught: jax.block_until_ready(
            step(*given)
        )
    return runs


def worker(by: str, threads: int, path: str) -> None:
    """Answer each line, a network and way, with the seconds of one run."""
    import numpy as np

    cells = np.load(path)
    answer(lambda: jax_runs(cells) if by == "jax" else torch_runs(cells, by, threads))


def table(times: dict[str, dict[str, float]]) -> list[str]:
    lines = [
        "| network | voxax | spconv, 1 thread (right) | faster | spconv, 2 (wrong) | faster |",
        "|---|---|---|---|---|---|",
    ]
    for name, by in times.items():
        if "spconv, 1 thread" not in by:
            continue
        ours, right = by["voxax"], by["spconv, 1 thread"]
        cells = [f"{1e3 * ours:.0f} ms", f"{1e3 * right:.0f} ms", f"{right / ours:.1f}x"]
        wrong = by.get("spconv, 2 threads")
        cells += [f"{1e3 * wrong:.0f} ms", f"{wrong / ours:.1f}x"] if wrong else ["", ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| network | PyTorch layers | from JAX | ratio |", "|---|---|---|---|"]
    for name, by in times.items():
        if "voxax from JAX" in by and "voxax" in by:
            ours, other = by["voxax"], by["voxax from JAX"]
            cells = [f"{1e3 * ours:.0f} ms", f"{1e3 * other:.0f} ms", f"{ours / other:.2f}"]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA"))
    parser.add_argument("--scans", nargs="+", default=SCANS, metavar="NAME:SIZE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep-heap", action="store_true", help="as docs/cpu.md advises")
    parser.add_argument("--only", default="", help="networks and ways with these words")
    parser.add_argument("--out", type=Path, default=RESULTS / "spconv")
    options = parser.parse_args()

    if options.keep_heap:  # of the contestants
        os.environ.update(KEEP_HEAP)
    heap = " glibc keeps its heap." if options.keep_heap else ""
    results = []
    text = [
        "# spconv networks on a CPU",
        "",
        f"`benchmarks/spconv_networks.py`: medians of {options.rounds} rounds, 2 threads, float32; "
        f"kernel maps are made in every call, unless they are kept.{heap}",
        "",
    ]
    for scan in options.scans:
        name, size = scan.rsplit(":", 1)
        cells = read_scan(Path(options.data), name, float(size))
        times = measured(cells, options.only.split(), options.rounds)
        facts = {"scan": name, "voxel_size": float(size), "voxels": len(cells)}
        results.append({**facts, "rounds": options.rounds, "seconds": times})
        text += [f"## {name}: {len(cells)} voxels of {size}", "", *table(times), ""]
        write_results(options.out, text, results)  # after each scan, so that nothing is lost
    print("\n".join(text))


def measured(cells: Any, only: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each network and way, by contestant."""
    import numpy as np

    names = [f"{network}, {way}" for network in NETWORKS for way in WAYS]
    names = [name for name in names if all(word in name for word in only)]
    if len(cells) > MOST_TRAINED:
        names = [name for name in names if "training" not in name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cells.npy")
        np.save(path, cells)
        crew = {
            name: Contestant(__file__, "--worker", by, threads, path, threads=threads)
            for name, (by, threads) in CONTESTANTS.items()
        }
        try:
            return medians(crew, names, rounds)
        finally:
            for one in crew.values():
                one.end()


if __name__ == "__main__":
    main()
