"""What do coordinates cost on CPU? Voxels, kernel maps and plans, native and without.

    python benchmarks/coordinates.py [--data FOLDER] [--rounds 7] [--only TEXT]

Compiled programs: voxelization, and each kind of map that MinkUNet18 asks for on the first two
levels. NumPy: the same cloud through `Plan.attach`, as a worker process of an input pipeline does.
Each column is a process of its own, since VOXAX_NATIVE is read once; medians of all rounds.
Results go to results/coordinates.md and .json.

glibc is told to keep its heap, as the command line does: fresh pages would be half of small times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tuning import DATA

SCANS = {
    "semantickitti": ("nc/semantickitti_00_000000.bin", 0.05),
    "os0": ("lidar_os0_128.npz", 0.1),
    "lone_star": ("tls_lone_star.npz", 0.1),
}


def median_ms(run: Callable[[], Any], rounds: int) -> float:
    """Median milliseconds, after two rounds that do not count."""
    import jax

    times = []
    for number in range(rounds + 2):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        if number >= 2:
            times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def compiled(positions: np.ndarray, size: float, rounds: int) -> dict[str, float]:
    """Programs under ``jax.jit``, by name."""
    import jax
    import jax.numpy as jnp

    import voxax as vx

    features = jnp.ones((len(positions), 4), jnp.float32)
    fine = vx.voxelize(positions, features, voxel_size=size)
    coarse = vx.voxelize(positions, features, voxel_size=2 * size)
    coarse = vx.Voxels.from_coords(
        coarse.valid_coords(), coarse.valid_features(), stride=2, voxel_size=size
    )

    def same_coords(voxels: Any) -> Any:
        """A geometry without a memo, so that each run builds."""
        leaves, tree = jax.tree.flatten(voxels)
        return jax.tree.unflatten(tree, leaves)

    def down(voxels: Any) -> Any:
        return vx.kernel_map(same_coords(voxels), 2, 2, capacity=coarse.capacity)

    def down_and_up(voxels: Any) -> Any:
        fine = same_coords(voxels)
        kernel_map = vx.kernel_map(fine, 2, 2, capacity=coarse.capacity)
        return kernel_map.neighbors, kernel_map.view("transposed_neighbors")

    def up_alone(voxels: Any, target: Any) -> Any:
        return vx.kernel_map(
            same_coords(voxels), 2, 2, transposed=True, out_voxels=same_coords(target)
        ).neighbors

    runs = {
        "voxelize": (
            lambda p, f: vx.voxelize(p, f, voxel_size=size, capacity=fine.capacity),
            jnp.asarray(positions),
            features,
        ),
        "3x3x3": (lambda v: vx.kernel_map(same_coords(v), 3).neighbors, fine),
        "5x5x5": (lambda v: vx.kernel_map(same_coords(v), 5).neighbors, fine),
        "2x2x2 stride 2": (lambda v: down(v).neighbors, fine),
        "2x2x2 stride 2, both ways": (down_and_up, fine),
        "2x2x2 transposed alone": (up_alone, coarse, fine),
        "3x3x3 stride 2": (
            lambda v: vx.kernel_map(same_coords(v), 3, 2, capacity=coarse.capacity).neighbors,
            fine,
        ),
        "union": (lambda a, b: vx.union(a, b, capacity=2 * fine.capacity), fine, same_coords(fine)),
        "inject": (lambda a, b: _inject(a, b), fine, same_coords(fine)),
    }
    found = {}
    for name, (function, *arguments) in runs.items():
        program = jax.jit(function)
        found[name] = median_ms(lambda p=program, a=arguments: p(*a), rounds)
    return found | {"voxels": int(fine.count), "points": len(positions)}


def _inject(a: Any, b: Any) -> Any:
    from voxax.geometry import inject

    return inject(a, b)


def network(size: float, positions: np.ndarray) -> tuple[Any, Any, Any]:
    """MinkUNet18, its plan, and the cloud as NumPy Voxels."""
    from flax import nnx

    import voxax as vx
    from voxax.geometry import host
    from voxax.models import MinkUNet18

    features = np.ones((len(positions), 4), np.float32)
    voxels, _ = host.voxelize(positions, features, size)
    model = MinkUNet18(4, 8, rngs=nnx.Rngs(0))
    return model, vx.Plan.record(model, voxels).fitted([voxels]), voxels


def all_maps(size: float, positions: np.ndarray, rounds: int) -> dict[str, float]:
    """Every map of MinkUNet18: compiled in one program, and in NumPy; then each by itself."""
    import jax

    from voxax.geometry import host
    from voxax.geometry.build import kernel_map_of

    features = np.ones((len(positions), 4), np.float32)
    _, plan, voxels = network(size, positions)
    sized = plan.attach(voxels, maps=False)

    def views(v: Any) -> Any:
        levels, found = {0: v.geometry}, []
        for record in plan.records:
            source = levels[record.in_level]
            known = levels.get(record.out_level)
            kernel_map = kernel_map_of(source, record.spec, known)
            levels.setdefault(record.out_level, kernel_map.out_geometry)
            found.append([kernel_map.view(name) for name in record.views])
        return found

    program, given = jax.jit(views), jax.device_put(sized)
    found = {
        "MinkUNet18, all maps": median_ms(lambda: program(given), rounds),
        "NumPy: voxelize": median_ms(lambda: host.voxelize(positions, features, size)[1], rounds),
        "NumPy: plan.attach, MinkUNet18": median_ms(
            lambda: plan.attach(voxels).geometry.coords, rounds
        ),
    }
    levels = plan.level_rows(host_rows(voxels))
    capacities = plan.capacities(voxels.capacity)
    for index, (parent, spec) in enumerate(plan.parents, 1):
        found[f"NumPy: level {index} from {len(levels[parent])} rows"] = median_ms(
            lambda p=parent, s=spec: host.output_rows(levels[p], s), rounds
        )
    for record in plan.records:
        found[f"NumPy: {record.spec} at level {record.in_level}, {len(record.views)} views"] = (
            median_ms(lambda r=record: plan._views(r, levels, capacities), rounds)
        )
    return found


def host_rows(voxels: Any) -> np.ndarray:
    return voxels.geometry.coords[: int(voxels.geometry.count)]


def measure(scan: str, folder: Path, rounds: int) -> dict[str, float]:
    """All figures of one scan, in this process."""
    from voxax import io

    file, size = SCANS[scan]
    positions = np.asarray(io.read(folder / file).positions, np.float32)
    positions = positions[np.isfinite(positions).all(1)]
    return compiled(positions, size, rounds) | all_maps(size, positions, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA", DATA))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="scans whose name has this in it")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    print(json.dumps(measure(options.worker, Path(options.data), options.rounds)))


if __name__ == "__main__":
    main()
