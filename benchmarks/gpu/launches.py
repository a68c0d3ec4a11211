"""Kernels that programs start on an NVIDIA GPU that is not present, passes of loops counted.

    pip install "jax[cuda13]" && JAX_PLATFORMS=cpu python benchmarks/gpu/launches.py CLOUD.npz

XLA compiles for the description of a GPU below. The network takes minutes.
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
from benchmarks.gpu.lowered import CHIPS
from flax import nnx
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import voxax as vx
from voxax import _compat
from voxax.geometry import Plan
from voxax.hardware import targeting
from voxax.models import MinkUNet34

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


def launches(text: str) -> collections.Counter[str]:
    """Return the kernels that a compiled program starts, by kind.

    Raises:
      ValueError: a loop whose passes are known at run time only.
    """
    bodies: dict[str, list[tuple[str, str]]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = head[2]
            entry = name if head[1] else entry
            bodies[name] = []
        elif operation := re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = .*?\s([a-z][\w\-]*)\(", line):
            bodies[name].append((operation[1], line))

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
            elif kind not in _FREE:
                target = re.search(r'custom_call_target="([^"]+)"', line)
                found[target[1] if target else kind] += 1
        return found

    return count(entry)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cloud", type=Path, help="a file of --clouds of run.py")
    parser.add_argument("--network", action="store_true", help="MinkUNet34 too")
    options = parser.parse_args()
    with np.load(options.cloud) as file:
        coords = file["coords"]
    device = topologies.get_topology_desc("", "cuda", target_config=TARGET, topology="1x1x1")
    one = jax.sharding.SingleDeviceSharding(device.devices[0])
    chip = CHIPS["cuda"]
    mesh = AbstractMesh(
        (), (), abstract_device=AbstractDevice(chip.kind, None, platform=chip.platform)
    )

    def show(name: str, function: Any, *arguments: Any) -> None:
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
        pinned = vx.algorithms(forward="implicit_gemm", backward="implicit_gemm")
        with use_abstract_mesh(mesh), targeting(chip.info), _compat.fresh_trace(), pinned:
            lowered = jax.jit(function, in_shardings=one, out_shardings=one).lower(*shapes)
        found = launches(lowered.compile().as_text() or "")
        print(f"| {name} | {sum(found.values())} | {dict(found)} |")

    voxels = vx.Voxels.from_coords(coords, jnp.ones((len(coords), 4)))
    print("| program | kernels | by kind |\n|---|---:|---|")
    show("3x3x3 map", lambda v: vx.kernel_map(v, 3).neighbors, voxels)
    show("2x2x2 map, stride 2", lambda v: vx.kernel_map(v, 2, stride=2).neighbors, voxels)
    if options.network:
        model = MinkUNet34(4, 20, dtype=jnp.float16, rngs=nnx.Rngs(0))
        model.eval()
        voxels = Plan.record(model, voxels).attach(voxels, maps=False)
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def forward(params: Any, voxels: vx.Voxels) -> jax.Array:
            return nnx.merge(graph, params, rest, copy=True)(voxels).features

        show("MinkUNet34 forward", forward, params, voxels)


if __name__ == "__main__":
    main()
