"""Fine-tune a network of simulated streets on half of an airborne scan, and train one from scratch.

    python benchmarks/fine_tuning.py --data FOLDER --out work

Both take the same steps on the southern half of AHN3, Delft, and are tested on its northern half,
with the command line and the configurations of ``docs/tutorials/fine_tuning.md``. The table is in
``results/fine_tuning.md``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report

from voxax import cli
from voxax.io import read
from voxax.io.simulator import Sensor, simulate_sweep

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorials" / "fine_tuning.md"
TRAIN_STREETS, VALIDATION_STREETS = range(24), range(500, 504)
# 60 m above the street, it sees a disc with a radius of 45 m.
AIRBORNE = Sensor("airborne", tuple(np.linspace(-89, -53, 90)), 500, 60, 120, 0.03, 0.04)
KINDS = {"fine-tuned": "tune.toml", "from scratch": "scratch.toml"}


def write_scans(scan: Path, out: Path, sensor: Sensor | str) -> None:
    """Write streets that the sensor sees, and both halves of the scan."""
    for name in ("streets/train", "streets/validation", "survey"):
        (out / name).mkdir(parents=True, exist_ok=True)
    for split, seeds in (("train", TRAIN_STREETS), ("validation", VALIDATION_STREETS)):
        for seed in seeds:
            street = simulate_sweep(seed, sensor=sensor)
            np.savez(
                out / "streets" / split / f"{seed:03d}.npz",
                xyz=street.positions,
                label=street.labels,
            )
    cloud = read(scan)
    xyz = cloud.positions - np.floor(cloud.positions.min(axis=0))
    south = xyz[:, 1] < xyz[:, 1].max() / 2
    for name, half in (("south", south), ("north", ~south)):
        np.savez(out / "survey" / f"{name}.npz", xyz=xyz[half], label=cloud.labels[half])


def configurations() -> dict[str, str]:
    """The page's files of configuration by name; ``scratch.toml`` is without the weights."""
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = dict(zip(("pretrain.toml", "tune.toml"), blocks, strict=True))
    found["scratch.toml"] = re.sub(r"^weights_part = .*\n", "", found["tune.toml"], flags=re.M)
    return found


def voxax(*words: str | Path) -> None:
    """Run a command, and stop where it fails."""
    if status := cli.main([str(word) for word in words]):
        raise SystemExit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of air_ahn3_delft.laz")
    parser.add_argument("--out", type=Path, default=Path("fine-tuning"), help="folder for runs")
    parser.add_argument("--sensor", help="of the simulator, in place of one above the street")
    parser.add_argument("--steps", type=int, nargs="+", default=[15, 60])
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    write_scans(given.data / "air_ahn3_delft.laz", given.out, given.sensor or AIRBORNE)
    texts = configurations()
    (given.out / "pretrain.toml").write_text(texts["pretrain.toml"])
    voxax("train", given.out / "pretrain.toml")
    found: dict[tuple[int, str], list[float]] = {}
    for seed, steps, kind in itertools.product(range(given.seeds), given.steps, KINDS):
        text = re.sub(r"^steps = .*$", f"steps = {steps}", texts[KINDS[kind]], flags=re.M)
        own = given.out / f"{steps}-{seed}-{KINDS[kind]}"
        own.write_text(f"seed = {seed}\n{text}")
        voxax("train", own, "--out", given.out / "runs" / own.stem)
        metrics = json.loads((given.out / "runs" / own.stem / "metrics.json").read_text())
        found.setdefault((steps, kind), []).append(metrics["val_miou"])
    rows = [(str(seed), values) for seed, values in enumerate(zip(*found.values(), strict=True))]
    rows.append(("mean", tuple(map(np.mean, found.values()))))
    if given.seeds > 1:
        rows.append(("standard deviation", tuple(np.std(v, ddof=1) for v in found.values())))
    head = ["seed", *(f"{kind}, {steps} steps" for steps, kind in found)]
    cells = [(name, *(f"{100 * value:.1f}" for value in values)) for name, values in rows]
    print("\n".join(report.table(head, cells)))


if __name__ == "__main__":
    main()
