"""Make the scenes of `voxax.tuning.occupancy` again.

    python benchmarks/record_occupancies.py --data FOLDER

The folder holds `air_ahn3_delft.npz` and `mesh_spot.obj` (both CC0); the LiDAR sweep and the
room are simulated from fixed seeds. Writes `src/voxax/tuning/occupancies/*.npz`, and beside
them a README with the source, license and mean number of neighbors of each.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from voxax.coords import box_offsets, host
from voxax.io import simulator
from voxax.io.mesh import read_mesh
from voxax.io.options import ReadOptions
from voxax.io.simulator.solids import BOX, BUILDING, CYLINDER, ELLIPSOID, Pose, SolidBuilder

OUT = Path(__file__).resolve().parents[1] / "src" / "voxax" / "tuning" / "occupancies"
LEVELS = (1, 2, 4, 8)
CENTERED = np.asarray(box_offsets((3, 3, 3), (1, 1, 1)))


def pack(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Distinct rows ``int[N, 3]`` as what :func:`voxax.tuning.occupancy.unpack` reads."""
    low = rows.min(0)
    extent = np.ptp(rows, axis=0) + 1
    numbers = np.sort(np.ravel_multi_index(tuple((rows - low).T), tuple(extent)))
    steps = np.diff(numbers, prepend=0).astype(">u4")
    planes = steps.view(np.uint8).reshape(-1, 4).T.copy()
    return {"low": low.astype(np.int32), "extent": extent.astype(np.int32), "steps": planes}


def voxels(positions: np.ndarray, size: float) -> np.ndarray:
    """`int32[N, 3]`, distinct."""
    finite = positions[np.isfinite(positions).all(1)]
    return host.unique_rows(np.floor(finite / size).astype(np.int32))[0]


def lidar() -> np.ndarray:
    """One sweep of the simulated 64-beam sensor.

    Its streets are narrower than the recorded ones, so at the same voxel size it has more
    neighbors; at 0.07 m they are those of a real sweep of 64 beams at 0.1 m.
    """
    return voxels(simulator.simulate_sweep(3, sensor="lidar64").positions, 0.07)


def airborne(folder: Path) -> np.ndarray:
    """A strip of the scan, as wide as the scan, of about 45 000 voxels."""
    positions = np.load(folder / "air_ahn3_delft.npz")["xyz"].astype(np.float64)
    rows = voxels(positions - np.median(positions, axis=0), 0.5)
    nearest = np.argsort(np.abs(rows[:, 1]), kind="stable")
    return rows[nearest[:45_000]]


def surface(folder: Path) -> np.ndarray:
    """A closed mesh, sampled densely enough that its surface has no holes."""
    cloud = read_mesh(folder / "mesh_spot.obj", ReadOptions(points=400_000))
    return voxels(np.asarray(cloud.positions), 0.0134)


def room() -> SolidBuilder:
    """A furnished room of 7.2 x 5.4 x 2.7 m around the origin."""
    solids = SolidBuilder()
    x, y, z, wall = 3.6, 2.7, 2.7, 0.05

    def add(shape: int, at: tuple, half: tuple, turn: float = 0.0) -> None:
        solids.add(Pose(*at, turn), BUILDING, shape, (0.0, 0.0, 0.0), half, 0.5)

    for side in (-1, 1):
        add(BOX, (side * (x + wall), 0.0, z / 2), (wall, y, z / 2))
        add(BOX, (0.0, side * (y + wall), z / 2), (x, wall, z / 2))
    add(BOX, (0.0, 0.0, -wall), (x, y, wall))
    add(BOX, (0.0, 0.0, z + wall), (x, y, wall))
    for cx, cy, turn in ((-1.6, 0.9, 0.15), (1.5, -0.8, -0.3)):  # tables, each with chairs
        c, s = np.cos(turn), np.sin(turn)
        add(BOX, (cx, cy, 0.73), (0.8, 0.4, 0.02), turn)
        for u, v in ((-0.72, -0.34), (-0.72, 0.34), (0.72, -0.34), (0.72, 0.34)):
            add(BOX, (cx + c * u - s * v, cy + s * u + c * v, 0.355), (0.03, 0.03, 0.355), turn)
        for u, v, lean in ((-0.4, -0.75, -0.2), (0.4, 0.75, 0.2)):
            px, py = cx + c * u - s * v, cy + s * u + c * v
            add(BOX, (px, py, 0.45), (0.22, 0.22, 0.025), turn)
            add(CYLINDER, (px, py, 0.22), (0.03, 0.03, 0.22))
            add(BOX, (px - s * lean, py + c * lean, 0.72), (0.2, 0.02, 0.25), turn)
    add(BOX, (-3.3, -1.4, 1.0), (0.28, 0.9, 1.0))  # cupboard
    add(BOX, (3.35, 1.2, 0.4), (0.25, 0.7, 0.4))  # sideboard
    for shelf in range(6):
        add(BOX, (0.4, 2.5, 0.15 + 0.38 * shelf), (0.9, 0.17, 0.015))
        for book in range(9):
            height = 0.09 + 0.05 * ((3 * shelf + 5 * book) % 4) / 3
            depth = 0.08 + 0.05 * ((shelf + 2 * book) % 3) / 2
            at = (-0.4 + 0.19 * book, 2.55, 0.165 + 0.38 * shelf + height)
            add(BOX, at, (0.05, depth, height))
    add(BOX, (-0.3, -2.3, 0.22), (1.0, 0.38, 0.22))  # sofa: seat, back, cushions
    add(BOX, (-0.3, -2.6, 0.55), (1.0, 0.1, 0.3))
    for cushion in (-0.9, -0.3, 0.3):
        add(ELLIPSOID, (cushion, -2.35, 0.55), (0.25, 0.16, 0.22))
    add(CYLINDER, (2.9, -2.1, 0.9), (0.02, 0.02, 0.9))  # lamp, bin, plant
    add(ELLIPSOID, (2.9, -2.1, 1.85), (0.2, 0.2, 0.16))
    add(CYLINDER, (-2.9, 2.2, 0.2), (0.15, 0.15, 0.2))
    add(ELLIPSOID, (2.9, 2.2, 0.9), (0.35, 0.35, 0.5))
    return solids


def indoor() -> np.ndarray:
    """The room as a scanner sees it from two places, shadows included."""
    solids = room().build()
    sensor = simulator.Sensor(
        "room", tuple(np.linspace(-75.0, 60.0, 150)), 600, 1.5, 12.0, 0.006, 0.02, 0.3
    )
    positions = []
    for seed, place in enumerate(((0.0, 0.2, 0.0), (-2.4, -0.6, 0.0))):
        moved = solids.take(np.arange(len(solids)))
        moved.center[:] -= place
        scene = simulator.StreetScene(moved, None)
        sweep = simulator.simulate_sweep(seed, sensor=sensor, scene=scene)
        positions.append(sweep.positions + place)
    # Walls along the lattice would lie in one layer of voxels, or with noise in two.
    c, s = np.cos(0.2), np.sin(0.2)
    turned = np.concatenate(positions) @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    return voxels(turned + 0.02, 0.05)


def table_row(name: str, size: str, rows: np.ndarray) -> str:
    """A row of voxels and the mean of occupied cells among 27 at each level."""
    found = []
    for level in LEVELS:
        cells = host.unique_rows(np.floor_divide(rows, np.int32(level)))[0]
        cells = np.concatenate([np.zeros((len(cells), 1), np.int32), cells], axis=1)
        hits = host.find_neighbors(cells, cells, CENTERED) >= 0
        found.append(f"{len(cells):,} / {hits.sum() / len(cells):.1f}")
    return f"| {' | '.join([name, size, *found])} |"


README = """# Recorded occupancies

Voxel sets on which the tuner measures when it cannot see the real map
(`voxax.tuning.occupancy`). Made by `benchmarks/record_occupancies.py`; do not edit.

| record | what it is | source and license |
|---|---|---|
| `lidar` | one sweep of a 64-beam sensor in a street, simulated | `voxax.io.simulator`, seed 3; \
Apache-2.0 like voxax |
| `indoor` | a furnished room seen from two places, simulated, with shadows | \
`benchmarks/record_occupancies.py`; Apache-2.0 like voxax |
| `airborne` | a strip of an airborne scan of Delft | AHN3, Dutch open data, CC0 (tile from \
tudelft3d/3dfier, `example_data/ahn3`) |
| `surface` | a closed mesh, sampled | `spot.obj` by Keenan Crane, CC0 |

Format: a NumPy archive with `low int32[3]`, `extent int32[3]` and `steps uint8[4, N]`; see
`unpack` in `voxax.tuning.occupancy`.

Voxels / mean occupied cells in the 3x3x3 box, center included, at levels (total strides) 1, 2,
4 and 8.

| scene | voxel size at level 1 | 1 | 2 | 4 | 8 |
|---|---|---|---|---|---|
"""


def main() -> None:
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA", default))
    folder = Path(parser.parse_args().data)
    scenes = {
        "lidar": (lidar(), "0.07 m"),
        "indoor": (indoor(), "0.05 m"),
        "airborne": (airborne(folder), "0.5 m"),
        "surface": (surface(folder), "0.0134 of 1.7"),
    }
    OUT.mkdir(exist_ok=True)
    lines = []
    for kind, (rows, size) in scenes.items():
        path = OUT / f"{kind}.npz"
        np.savez_compressed(path, **pack(rows))
        print(f"{path.name}: {len(rows)} voxels, {path.stat().st_size} bytes")
        lines.append(table_row(f"**{kind}**", size, rows))
    (OUT / "README.md").write_text(README + "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
