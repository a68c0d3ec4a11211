"""Kernels that programs start on an NVIDIA GPU that is not present, passes of loops counted.

    pip install -e ".[cuda,nn]" && JAX_PLATFORMS=cpu python benchmarks/gpu/launches.py CLOUD.npz

XLA compiles for the description of a GPU below. It compares where it would sort by radix on a GPU
that is there, see :data:`RADIX_MODE`.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.gpu.lowered import CHIPS, as_if_here
from benchmarks.workloads import surface
from flax import nnx
from jax.experimental import topologies

import voxax as vx
from voxax.geometry import Plan
from voxax.geometry.build import MapRequest, recording_maps
from voxax.models import MinkUNet, MinkUNet18, MinkUNet34
from voxax.models.training import masked_cross_entropy
from voxax.nn.functional import spatially_sparse_conv

# NVIDIA's data sheet and CUDA's device attributes of an H100.
TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84978434048 cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# Operations of a compiled program that start no kernel.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
# Shared memory in which XLA's sort compares rows; of steps beyond it each is a kernel.
_SORT_BYTES = 49152
_SIZES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4}
RADIX_MODE = {"xla_gpu_deviceless_cub_mode": "DEVICELESS_CUB_NO_FALLBACK"}
"""An option with which a compilation fails that would sort by radix: the size of CUB's memory is
unknown without a GPU. Without it XLA compares, and says nothing in the program."""


def _bodies(text: str) -> tuple[str, dict[str, list[str]]]:
    """Return the entry's name, and the lines of each computation of a compiled program."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = head[2]
            entry = name if head[1] else entry
            bodies[name] = []
        elif name:
            bodies[name].append(line)
    return entry, bodies


def launches(text: str) -> collections.Counter[str]:
    """Return the kernels that a compiled program starts, by kind.

    Raises:
      ValueError: a loop whose passes are known at run time only.
    """
    entry, lines = _bodies(text)
    operation = re.compile(r"\s+(?:ROOT )?%?[\w.\-]+ = .*?\s([a-z][\w\-]*)\(")
    bodies = {
        name: [(found[1], line) for line in own if (found := operation.match(line))]
        for name, own in lines.items()
    }

    def count(name: str) -> collections.Counter[str]:
        found: collections.Counter[str] = collections.Counter()
        for kind, line in bodies[name]:
            if kind == "while":
                passes = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                body = re.search(r"body=%?([\w.\-]+)", line)
                if passes is None or body is None:
                    raise ValueError(f"a loop of unknown passes: {line.strip()[:200]}")
                for inner, number in count(body[1]).items():
                    found[inner] += number * int(passes[1])
                continue
            sort = _sort_of(kind, line, bodies)
            if sort is not None:
                found["sort"] += sort_kernels(sort)
            elif kind not in _FREE:
                target = re.search(r'custom_call_target="([^"]+)"', line)
                found[target[1] if target else kind] += 1
        return found

    return count(entry)


def sorts(text: str) -> list[str]:
    """The shapes of each sort of a compiled program: its keys, then what moves with them."""
    return [line for line in map(_sort_shapes, text.splitlines()) if line]


_STAGES = {
    "sort": "sorts",
    "scatter": "scatters",
    "reduce-window": "scans",
    "gather": "searches and gathers",
    "reduce": "reductions",
    "while": "loops",
}


def stages(text: str) -> collections.Counter[str]:
    """Return the kernels that a compiled program starts by what is in them, the first that fits.

    Programs without loops.
    """
    entry, bodies = _bodies(text)
    found: collections.Counter[str] = collections.Counter()
    for line in bodies[entry]:
        number = sum(launches(f"ENTRY %one () {{\n{line}\n}}\n").values())
        called = re.search(r"calls=%?([\w.\-]+)", line)
        inside = "\n".join([line, *(bodies[called[1]] if called else ())])
        stage = next((kind for kind in _STAGES if f" {kind}(" in inside), None)
        if stage == "sort":
            number = next(sort_kernels(shapes) for shapes in sorts(inside) if shapes)
        found[_STAGES[stage] if stage else "elementwise"] += number
    return +found


def _sort_shapes(line: str) -> str:
    found = re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (.*?) sort\(", line)
    return found[1] if found else ""


def _sort_of(kind: str, line: str, bodies: dict[str, list[tuple[str, str]]]) -> str | None:
    """The shapes of the sort that an operation is, or that is in it as a fusion."""
    if kind == "sort":
        return _sort_shapes(line)
    called = re.search(r"calls=%?([\w.\-]+)", line)
    inside = bodies.get(called[1], []) if kind == "fusion" and called else []
    return next((_sort_shapes(text) for name, text in inside if name == "sort"), None)


def sort_kernels(shapes: str) -> int:
    """Kernels of XLA's sort by comparing, a bitonic network (PTX of four sorts had these)."""
    found = re.findall(r"([a-z]+\d*)\[(\d+)", shapes)
    row = sum(_SIZES.get(name, 8) for name, _ in found)
    within = (_SORT_BYTES // row).bit_length() - 1
    beyond = (int(found[0][1]) - 1).bit_length() - within
    return 1 + sum(step + 1 for step in range(1, beyond + 1))


def pinned() -> Any:
    """A context in which all layers take ``implicit_gemm``."""
    return vx.algorithms(forward="implicit_gemm", backward="implicit_gemm")


def compiled(function: Any, *arguments: Any, options: Any = None) -> str:
    """A program for the GPU above, its layers' algorithm :func:`pinned`.

    Args:
      function, arguments: of the arguments only shapes count.
      options: of XLA, as :data:`RADIX_MODE`.
    """
    device = topologies.get_topology_desc("", "cuda", target_config=TARGET, topology="1x1x1")
    one = jax.sharding.SingleDeviceSharding(device.devices[0])
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
    with as_if_here(CHIPS["cuda"]), pinned():
        lowered = jax.jit(function, in_shardings=one, out_shardings=one).lower(*shapes)
    return lowered.compile(options).as_text() or ""


def way_back(voxels: vx.Voxels) -> tuple[jax.Array, jax.Array]:
    """The tables of a map of stride 2 and of the one back."""
    down = vx.kernel_map(voxels, 2, stride=2)
    coarse = vx.Voxels(down.out_geometry, jnp.zeros((down.out_capacity, 1)))
    up = vx.kernel_map(coarse, 2, stride=2, transposed=True, out_voxels=voxels)
    return down.neighbors, up.neighbors


def made(coords: jax.Array, features: jax.Array) -> tuple[jax.Array, ...]:
    """What voxels of these coordinates consist of, duplicates merged."""
    voxels = vx.Voxels.from_coords(coords, features, capacity=len(coords))
    return voxels.coords, voxels.features, voxels.count, voxels.num_dropped


def unet(voxels: vx.Voxels) -> MinkUNet:
    """A MinkUNet18 for the voxels."""
    model = MinkUNet18(voxels.num_channels, 20, rngs=nnx.Rngs(0))
    model.eval()
    return model


def all_maps(voxels: vx.Voxels) -> list[jax.Array]:
    """The tables of all maps of MinkUNet18; XLA leaves its convolutions out."""
    tables: list[jax.Array] = []

    def noted(request: MapRequest, kernel_map: vx.KernelMap) -> vx.KernelMap:
        del request
        tables.append(kernel_map.neighbors)
        return kernel_map

    with recording_maps(noted):
        unet(voxels)(voxels)
    return list({id(table): table for table in tables}.values())


def layer(w: jax.Array, voxels: vx.Voxels) -> jax.Array:
    """A 3x3x3 layer."""
    return spatially_sparse_conv(voxels, w, 3).features


def layer_with_gradients(w: jax.Array, voxels: vx.Voxels, dy: jax.Array) -> Any:
    """Gradients of both operands of a layer."""

    def of(w: jax.Array, x: jax.Array) -> jax.Array:
        return layer(w, voxels.replace_features(x))

    out, pull = jax.vjp(of, w, voxels.features)
    return out, pull(dy)


def network(voxels: vx.Voxels, trains: bool, make: Any = MinkUNet34) -> tuple[Any, Any, Any]:
    """A network in float16 with its maps: the function, its parameters, and the voxels.

    Inference with weights that are float16 too; else each is converted in every call. In training
    the loss and all gradients, without an optimizer.
    """
    model = make(4, 20, dtype=jnp.float16, rngs=nnx.Rngs(0))
    model.train() if trains else model.eval()
    voxels = Plan.record(model, voxels).attach(voxels, maps=False)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    if not trains:
        params = jax.tree.map(lambda p: p.astype(jnp.float16), params)
    labels = jnp.zeros(voxels.capacity, jnp.int32)

    def forward(state: Any, voxels: vx.Voxels) -> jax.Array:
        return nnx.merge(graph, *state, copy=True)(voxels).features

    def loss(params: Any, voxels: vx.Voxels) -> jax.Array:
        return masked_cross_entropy(forward((params, rest), voxels), labels)

    if trains:
        return jax.value_and_grad(loss), params, voxels
    return forward, (params, rest), voxels


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("cloud", type=Path, nargs="?", help="a file of --clouds of run.py")
    given.add_argument("--rows", type=int, help="voxels of a sphere's surface, in place of a cloud")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--network", choices=("forward", "training"), help="only MinkUNet34")
    chosen.add_argument("--maps", action="store_true", help="only voxels and maps")
    options = parser.parse_args()
    if options.rows:
        coords = surface(options.rows)
    else:
        with np.load(options.cloud) as file:
            coords = file["coords"]

    def show(name: str, function: Any, *arguments: Any) -> None:
        text = compiled(function, *arguments)
        kernels = sum(launches(text).values())
        print(f"| {name} | {kernels} | {dict(stages(text))} |", flush=True)

    capacity = vx.bucket_capacity(len(coords))
    voxels = vx.Voxels.from_coords(coords, jnp.ones((len(coords), 4)), capacity=capacity)
    print(f"{voxels.capacity} rows\n\n| program | kernels | stages |\n|---|---:|---|")
    if options.network:
        trains = options.network == "training"
        show(f"MinkUNet34 {options.network}", *network(voxels, trains))
        return
    show("from_coords", made, voxels.coords, voxels.features)
    show("3x3x3 map", lambda v: vx.kernel_map(v, 3).neighbors, voxels)
    show("3x3x3 map of stride 2", lambda v: vx.kernel_map(v, 3, stride=2).neighbors, voxels)
    show("2x2x2 map of stride 2", lambda v: vx.kernel_map(v, 2, stride=2).neighbors, voxels)
    show("2x2x2 maps of stride 2 and back", way_back, voxels)
    planned = Plan.record(unet(voxels), voxels).attach(voxels, maps=False)
    show("all maps of MinkUNet18", all_maps, planned)
    if options.maps:
        return
    x = jnp.ones((voxels.capacity, 64), jnp.float16)
    w = jnp.ones((27, 64, 64), jnp.float16)
    wide = voxels.replace_features(x)
    with as_if_here(CHIPS["cuda"]), pinned():
        plan = Plan.record(lambda v: layer_with_gradients(w, v, x), wide)
    wide = plan.attach(wide)
    show("3x3x3 layer, map given", layer, w, wide)
    show("3x3x3 layer with gradients, map given", layer_with_gradients, w, wide, x)


if __name__ == "__main__":
    main()
