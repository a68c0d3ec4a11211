"""Whole spconv networks on a CPU: voxax.torch.spconv against spconv, and against voxax from JAX.

    python benchmarks/spconv_networks.py --data FOLDER [--rounds 7] [--scans NAME:SIZE ...]

How contestants take turns stands in ``whole_networks.py``. In the rows "maps kept" kernel maps are
not made anew. Training of more than 100,000 voxels is left out: four processes do not fit in 24 GB.

spconv 2.3.8 is right with one thread only (`GatherCPU::scatter_add`); with two it is timed
although wrong. spconv, torch-pointcloud and PyTorch are needed:

    pip install spconv==2.3.8 torch-pointcloud==0.0.18
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.whole_networks import Runs, Times, compare, grid_of, milliseconds, training_of

CONTESTANTS = {
    "voxax": ("voxax", 2),
    "spconv, 1 thread": ("spconv", 1),
    "spconv, 2 threads": ("spconv", 2),
    "voxax from JAX": ("jax", 2),
}
CHANNELS, CLASSES = 4, 13
WAYS = ("inference", "training", "inference, maps kept", "training, maps kept")


def load(by: str, threads: int, network: str, cells: Any) -> tuple[Runs, None]:
    """Return every way of a network; from JAX there is MinkUNet18 alone."""
    if by == "jax":
        return (jax_runs(cells) if network == "MinkUNet18" else {}), None
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if by == "voxax":
        from voxax.torch import spconv as ours

        ours.install()
    import spconv.pytorch as spconv
    from benchmarks.peers import spconv_minkunet

    spconv_minkunet.let_backward_run_on_cpu()
    features = torch.randn(len(cells), CHANNELS)
    scene = torch.zeros(len(cells), 1, dtype=torch.int32)

    def tensor(cells: Any, shape: Any) -> Any:
        indices = torch.cat([scene, torch.from_numpy(np.ascontiguousarray(cells))], 1)
        return spconv.SparseConvTensor(features, indices, list(shape), 1)

    if network == "SpUNet34C":
        from torch_pointcloud.models import SparseUNetSegmentation

        model = SparseUNetSegmentation(CHANNELS, CLASSES)
        coords, batch = torch.from_numpy(cells).long(), scene[:, 0].long()
        return training_of(model, lambda: model(features, coords, batch)), None
    if network == "VoxelBackBone8x":
        from torch_pointcloud.models.second import VoxelBackbone8x

        x, y, z = grid_of(cells)
        model, shape = VoxelBackbone8x(CHANNELS), (max(z, 40) + 1, y, x)
        return training_of(model, lambda: model(tensor(cells[:, ::-1], shape)).features), None
    model, shape = spconv_minkunet.build(None, CHANNELS, CLASSES), grid_of(cells)
    runs = training_of(model, lambda: model(tensor(cells, shape)))
    if by == "voxax":
        kept = tensor(cells, shape)
        again = training_of(model, lambda: model(kept))
        runs.update({f"{way}, maps kept": run for way, run in again.items()})
    return runs, None


def jax_runs(cells: Any) -> Runs:
    """Return MinkUNet18 of ``voxax.models``, planned, compiled."""
    import jax
    import jax.numpy as jnp
    from benchmarks.whole_networks import voxels_of
    from flax import nnx

    from voxax.geometry import Plan
    from voxax.models import MinkUNet18

    model, voxels = MinkUNet18(CHANNELS, CLASSES), voxels_of(cells, CHANNELS)
    plan = Plan.record(model, voxels)
    graph, state = nnx.split(model.eval() or model)
    train_graph, params, rest = nnx.split(model.train() or model, nnx.Param, ...)

    @jax.jit
    def infer(state: Any, voxels: Any) -> Any:
        return nnx.merge(graph, state, copy=True)(voxels).features

    @jax.jit
    def step(params: Any, rest: Any, voxels: Any) -> Any:
        def loss_of(params: Any) -> Any:
            module = nnx.merge(train_graph, params, rest, copy=True)
            out = module(voxels).features
            return jnp.sum(out**2) / out.shape[1], nnx.split(module, nnx.Param, ...)[2]

        return jax.value_and_grad(loss_of, has_aux=True)(params)

    runs = {}
    for mark, maps in (("", False), (", maps kept", True)):
        v = plan.attach(voxels, maps=maps)
        runs[f"inference{mark}"] = lambda v=v: jax.block_until_ready(infer(state, v))
        runs[f"training{mark}"] = lambda v=v: jax.block_until_ready(step(params, rest, v))
    return runs


def table(times: Times) -> list[str]:
    others = {"spconv, 1 thread": "1 thread (right)", "spconv, 2 threads": "2 threads (wrong)"}
    rows = []
    for run, took in times.items():
        if {"voxax", "voxax from JAX"} <= set(took):
            ours, other = took["voxax"], took["voxax from JAX"]
            cells = (f"{1e3 * ours:.0f} ms", f"{1e3 * other:.0f} ms", f"{ours / other:.2f}")
            rows.append([run, *cells])
    doors = report.table(["network", "PyTorch layers", "from JAX", "ratio"], rows)
    return [*milliseconds(times, others, ours="voxax"), "", *doors]


if __name__ == "__main__":
    compare(
        __file__,
        __doc__ or "",
        load,
        table,
        CONTESTANTS,
        ["SpUNet34C", "VoxelBackBone8x", "MinkUNet18"],
        ways=WAYS,
        out="spconv",
        title="spconv networks on a CPU",
        words="2 threads, float32; kernel maps are made in every call, unless they are kept.",
        most_trained=100_000,
    )
