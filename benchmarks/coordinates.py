"""Time coordinates on a CPU: voxels, kernel maps and plans, with native kernels and without.

    python benchmarks/coordinates.py [--data FOLDER] [--rounds 7] [--only SCAN]

Programs under jax.jit: voxelization, maps by kind, sets, and all maps of MinkUNet18. In NumPy: the
same cloud voxelized and planned, as a worker process of an input pipeline does it. With the native
library and with VOXAX_NATIVE=off, each in a process of its own.
Results go to results/coordinates.md and .json.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.own_process import KEEP_HEAP, in_own_process
from benchmarks.turns import medians
from benchmarks.workloads import positions_of

SCANS = {
    "semantickitti": ("nc/semantickitti_00_000000.bin", 0.05),
    "os0": ("lidar_os0_128.npz", 0.1),
    "lone_star": ("tls_lone_star.npz", 0.1),
}

_TABLES = {"neighbors", "transposed_neighbors"}
_PAIRS = {"pairs", "pair_starts"}


def median_ms(run: Callable[[], Any], rounds: int) -> float:
    """Median milliseconds, after two rounds that do not count."""
    return 1e3 * medians({"": run}, rounds, warm=2)[""]


def compiled(positions: np.ndarray, size: float, rounds: int) -> dict[str, float]:
    """Programs under ``jax.jit``, by name."""
    import jax
    import jax.numpy as jnp

    import voxax as vx
    from voxax.coords import sort_by_curve
    from voxax.geometry import inject

    features = jnp.ones((len(positions), 4), jnp.float32)
    fine = vx.voxelize(positions, features, voxel_size=size)
    coarse = vx.voxelize(positions, features, voxel_size=2 * size)
    size_of_coarse = coarse.capacity
    coarse = vx.Voxels.from_coords(
        coarse.valid_coords(), coarse.valid_features(), stride=2, voxel_size=size
    )

    def down(v: Any, kernel: int) -> Any:
        return vx.kernel_map(v, kernel, 2, capacity=size_of_coarse)

    def up(v: Any, target: Any) -> Any:
        return vx.kernel_map(v, 2, 2, transposed=True, out_voxels=target).neighbors

    shifted = fine.valid_coords() + np.array([0, 1, 0, 0], np.int32)
    other = vx.Voxels.from_coords(shifted, fine.valid_features(), voxel_size=size)
    runs = {
        "voxelize": (
            lambda p, f: vx.voxelize(p, f, voxel_size=size, capacity=fine.capacity),
            jnp.asarray(positions),
            features,
        ),
        "map 3x3x3": (lambda v: vx.kernel_map(v, 3).neighbors, fine),
        "map 5x5x5": (lambda v: vx.kernel_map(v, 5).neighbors, fine),
        "map 2x2x2, stride 2, with its voxels": (lambda v: down(v, 2), fine),
        "the same and its transpose": (
            lambda v: (lambda m: (m, m.view("transposed_neighbors")))(down(v, 2)),
            fine,
        ),
        "map 3x3x3, stride 2, with its voxels": (lambda v: down(v, 3), fine),
        "map 2x2x2 transposed, onto given voxels": (up, coarse, fine),
        "pair lists of 3x3x3": (lambda v: vx.kernel_map(v, 3).view("pairs"), fine),
        "union with itself, shifted": (
            lambda a, b: vx.union(a, b, capacity=2 * fine.capacity),
            fine,
            other,
        ),
        "inject": (inject, fine, other),
        "order along Hilbert's curve": (lambda c: sort_by_curve(c, "hilbert"), fine.coords),
    }
    found = {"points": len(positions), "voxels": int(fine.count)}
    for name, (function, *arguments) in runs.items():
        program = jax.jit(function)
        found[name] = median_ms(lambda p=program, a=arguments: p(*a), rounds)
    return found


def all_maps(positions: np.ndarray, size: float, rounds: int) -> dict[str, float]:
    """Every map of MinkUNet18 in one program, and in NumPy as a worker process makes them."""
    import jax
    from flax import nnx

    import voxax as vx
    from voxax.geometry import host
    from voxax.geometry.build import kernel_map_of
    from voxax.models import MinkUNet18

    features = np.ones((len(positions), 4), np.float32)
    voxels, _ = host.voxelize_on_host(positions, features, size)
    recorded = vx.Plan.record(MinkUNet18(4, 8, rngs=nnx.Rngs(0)), voxels).fitted([voxels])
    found = {
        "NumPy: voxelize": median_ms(
            lambda: host.voxelize_on_host(positions, features, size)[1], rounds
        )
    }
    for label, kept in {"neighbor tables": _TABLES, "and pair lists": _TABLES | _PAIRS}.items():
        records = tuple(
            dataclasses.replace(r, views=tuple(sorted(kept & (set(r.views) | _PAIRS))))
            for r in recorded.records
        )
        plan = dataclasses.replace(recorded, records=records)

        def views(v: Any, plan: Any = plan) -> Any:
            levels, built = {0: v.geometry}, []
            for record in plan.records:
                source, known = levels[record.in_level], levels.get(record.out_level)
                kernel_map = kernel_map_of(source, record.spec, known)
                levels.setdefault(record.out_level, kernel_map.out_geometry)
                built.append([kernel_map.view(name) for name in record.views])
            return built

        program, given = jax.jit(views), jax.device_put(plan.attach(voxels, maps=False))
        found[f"MinkUNet18, {label}"] = median_ms(lambda p=program, g=given: p(g), rounds)
        found[f"NumPy: MinkUNet18, {label}"] = median_ms(
            lambda p=plan: p.attach(voxels).geometry.coords, rounds
        )
    return found


def measure(scan: str, folder: str, rounds: int) -> dict[str, float]:
    """All figures of one scan, in this process."""
    file, size = SCANS[scan]
    positions = positions_of(Path(folder) / file)
    return compiled(positions, size, rounds) | all_maps(positions, size, rounds)


def both(scan: str, options: Any) -> dict[str, dict[str, float]]:
    """The figures with the native library and without, each in a process of its own."""
    given = (scan, str(Path(options.data).resolve()), options.rounds)
    return {
        mode: in_own_process("coordinates", "measure", *given, VOXAX_NATIVE=mode, **KEEP_HEAP)
        for mode in ("on", "off")
    }


def lines_of(values: dict[str, Any]) -> list[str]:
    scans = values["scans"]
    heads = [
        f"{scan}, {1e2 * SCANS[scan][1]:.0f} cm: {r['on']['points']} points, "
        f"{r['on']['voxels']} voxels"
        for scan, r in scans.items()
    ]
    rows = [
        [name, *(f"{r['on'][name]:.1f} / {r['off'][name]:.1f}" for r in scans.values())]
        for name in next(iter(scans.values()))["on"]
        if name not in ("points", "voxels")
    ]
    return [
        "# Coordinates on CPUs",
        "",
        f"{values['device']}, JAX {values['jax']}, medians of {values['rounds']} rounds, ms: with "
        "the native library / without. Rows named NumPy are what a worker process does, on one "
        "thread; the others are programs under jax.jit.",
        "",
        *report.table(["", *heads], rows),
    ]


def main() -> None:
    parser = report.options(__doc__, data=True, rounds=7, only=tuple(SCANS))
    options = parser.parse_args()
    scans = report.known(options.out, "coordinates").get("scans", {})  # others keep their figures
    scans |= {scan: both(scan, options) for scan in options.only}
    scans = {scan: scans[scan] for scan in SCANS if scan in scans}
    values = {**report.machine(), "rounds": options.rounds, "scans": scans}
    report.write(options.out, "coordinates", values, lines_of(values))


if __name__ == "__main__":
    main()
