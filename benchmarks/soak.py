"""Watch what a process holds while it works for long, and fail where that grows.

    python benchmarks/soak.py [--only training voxelize tuning checkpoints] [--share 0.1]

Each row is a process of its own on the CPU:

- training: 3,000 steps of a small network on scenes of 1,000 sizes, planned on the host, which fall
  into five capacities;
- voxelize: 2,000 eager calls of `vx.voxelize`, each of another size;
- tuning: 200 problems measured by `vx.tune`, into a cache of their own;
- checkpoints: 500 steps saved into one folder, which keeps two.

Sixty times on the way: resident memory, memory mappings, threads, open files, and the programs that
JAX holds. After the first 35 % of the work they have to stay within 5 % of what they were, or
within one thread, file or program, and 2 MiB. Exits with 1 if one did not. Linux. Results go to
results/soak.md and .json.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.own_process import in_own_process

# Training has seen each of its scenes once after a third of its steps.
LOOKS, WARM = 60, 0.35
MOST = 1.05
# A number may grow by so much in any case.
SMALL = {"memory, MiB": 2, "mappings": 10, "threads": 1, "files": 1, "programs": 1}
COUNTS = {"training": 3000, "voxelize": 2000, "tuning": 200, "checkpoints": 500}


def held() -> dict[str, float]:
    """Return what this process holds now."""
    import jax

    gc.collect()
    process = Path("/proc/self")
    pages = int((process / "statm").read_text().split()[1])
    return {
        "memory, MiB": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "mappings": (process / "maps").read_bytes().count(b"\n"),
        "threads": len(list((process / "task").iterdir())),
        "files": len(list((process / "fd").iterdir())),
        "programs": len(jax.devices()[0].client.live_executables()),
    }


def watched(number: int, once: Callable[[int], Any]) -> dict[str, Any]:
    """Call ``once(i)`` for i below ``number``, and look at the process on the way."""
    looks, begin = [], time.perf_counter()
    every = max(1, number // LOOKS)
    for i in range(number):
        once(i)
        if i % every == every - 1:
            looks.append({"done": i + 1, **held()})
    return {"seconds": time.perf_counter() - begin, "looks": looks}


def training(number: int) -> dict[str, Any]:
    """Train a small network on scenes of as many sizes as a third of the steps."""
    import jax
    import optax
    from flax import nnx

    import voxax as vx
    from voxax.models.training import Trainer
    from voxax.nn.modules import BatchNorm, Linear, SparseConv3d, SpatiallySparseConv, SubMConv3d

    class Network(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.stem, self.norm = SubMConv3d(4, 8, 3, rngs=rngs), BatchNorm(8)
            self.down = SparseConv3d(8, 8, 2, 2, rngs=rngs)
            self.up = SpatiallySparseConv(8, 8, 2, 2, transposed=True, rngs=rngs)
            self.head = Linear(16, 5, rngs=rngs)

        def __call__(self, voxels: vx.Voxels) -> vx.Voxels:
            fine = self.norm(self.stem(voxels)).map(nnx.relu)
            return self.head(vx.cat([self.up(self.down(fine), fine), fine]))

    model = Network()
    trainer = Trainer(model, optax.adam(1e-3))
    sizes = np.random.default_rng(0).permutation(np.arange(1793, 4097))[: max(1, number // 3)]
    places = np.stack(np.unravel_index(np.arange(24**3), (24,) * 3), axis=1)

    def once(i: int) -> None:
        size = sizes[i % len(sizes)]
        rng = np.random.default_rng(size)  # the same scene for the same size
        rows = places[rng.permutation(len(places))[:size]]
        coords = np.insert(rows, 0, 0, axis=1).astype(np.int32)
        features = rng.normal(size=(len(rows), 4)).astype(np.float32)
        voxels = vx.plan(model, vx.Voxels.from_coords(coords, features))
        labels = rng.integers(0, 5, voxels.capacity).astype(np.int32)
        jax.block_until_ready(trainer.step(voxels, labels))

    found = watched(number, once)
    return {**found, "sizes": len(set(sizes.tolist())), "compiled": trainer.programs}


def voxelize(number: int) -> dict[str, Any]:
    """Voxelize clouds of as many sizes as calls."""
    import voxax as vx

    rng = np.random.default_rng(0)
    sizes = rng.permutation(np.arange(100, 100 + 10 * number, 10))

    def once(i: int) -> None:
        positions = rng.uniform(0, 20, (sizes[i], 3)).astype(np.float32)
        vx.voxelize(positions, positions, 0.5).features.block_until_ready()

    return {**watched(number, once), "sizes": len(sizes)}


def tuning(number: int) -> dict[str, Any]:
    """Measure problems that differ in their channels."""
    import jax

    import voxax as vx
    from voxax.nn.functional import spatially_sparse_conv

    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(0, (1, 8, 8, 8), (300, 4)), axis=0).astype(np.int32)
    measured = 0

    def once(i: int) -> None:
        nonlocal measured
        c_in, c_out = 1 + i % 20, 1 + i // 20
        voxels = vx.Voxels.from_coords(coords, np.ones((len(coords), c_in), np.float32))
        # JAX keeps a program for each new shape of `jnp.ones` or `jnp.asarray`.
        weight = jax.device_put(np.ones((27, c_in, c_out), np.float32))
        report = vx.tune(lambda v, w: spatially_sparse_conv(v, w, 3), voxels, weight, anew=True)
        measured += len(report)

    return {**watched(number, once), "measured": measured}


def checkpoints(number: int) -> dict[str, Any]:
    """Save steps of a megabyte into one folder."""
    from voxax.models.checkpoint import save_checkpoint, steps_of

    rng = np.random.default_rng(0)
    tree = {f"w{i}": rng.normal(size=(256, 64)).astype(np.float32) for i in range(16)}
    with tempfile.TemporaryDirectory() as folder:
        found = watched(number, lambda i: save_checkpoint(folder, tree, {"step": i}, i + 1))
        return {**found, "kept": len(steps_of(folder))}


def summary(name: str, number: int, found: dict[str, Any]) -> dict[str, Any]:
    """Return what was held after the warm-up and in the end, and whether that grew."""
    looks = found["looks"]
    warm = looks[int(WARM * len(looks)) :]
    part = max(1, len(warm) // 4)
    row: dict[str, Any] = {"work": name, "number": number, "grew": []}
    for what, small in SMALL.items():
        first, last = (
            statistics.median(look[what] for look in some) for some in (warm[:part], warm[-part:])
        )
        row[what] = [first, last, max(look[what] for look in looks)]
        if last > max(MOST * first, first + small):
            row["grew"].append(what)
    row |= {key: value for key, value in found.items() if key != "looks"}
    return row


def lines_of(values: dict[str, Any]) -> list[str]:
    rows = []
    for row in values["rows"]:
        cells = [row["work"], f"{row['number']:,}"]
        for what in SMALL:
            first, last, most = (f"{value:,.0f}" for value in row[what])
            cells.append(f"{first} to {last} ({most})")
        rows.append([*cells, ", ".join(row["grew"]) or "nothing"])
    return [
        "# What a process holds after long work",
        "",
        f"{values['machine']}, Python {values['python']}, JAX {values['jax']}, {values['date']}. "
        "Medians of a sixth of the work, after the first 35 % and at the end; in brackets the most "
        "at any time. Programs are those that JAX holds.",
        "",
        *report.table(["work", "times", *SMALL, "grew by over 5 %"], rows),
    ]


def main() -> int:
    import jax

    parser = report.options(__doc__, only=tuple(COUNTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the work")
    options = parser.parse_args()
    before = report.known(options.out, "soak")  # whose other rows stay
    rows = {row["work"]: row for row in before.get("rows", ())}
    looks = before.get("looks", {})
    for name in options.only:
        number = max(LOOKS, int(options.share * COUNTS[name]))
        with tempfile.TemporaryDirectory() as cache:
            own = {"VOXAX_CACHE_DIR": cache, "VOXAX_AUTOTUNE": "off"}
            if name == "tuning":
                own["VOXAX_AUTOTUNE"] = "cached"
            found = in_own_process("soak", name, number, **own)
        looks[name], rows[name] = found["looks"], summary(name, number, found)
        print(json.dumps(rows[name]), flush=True)
    values = {
        "machine": report.device(),
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "rows": [rows[name] for name in COUNTS if name in rows],
        "looks": looks,
    }
    report.write(options.out, "soak", values, lines_of(values))
    return 1 if any(rows[name]["grew"] for name in options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
