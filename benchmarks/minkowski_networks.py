"""MinkUNet34C on a CPU: voxax.torch.minkowski, voxax.torch.spconv and MinkowskiEngine.

    python benchmarks/minkowski_networks.py --data FOLDER [--minkowski PYTHON] [--rounds 7]

Each contestant has a process of its own and is stopped (SIGSTOP) when it is not its turn; they take
turns, forwards and backwards. In a turn a network runs once to warm up and once that counts; the
median of the rounds is the result. Same coordinates and weights, and logits are compared before
anything is timed; kernel maps are made in every call. ``--minkowski`` is a Python in which
MinkowskiEngine's CPU build is installed, which then runs with one thread and with two.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from turns import Contestant, answer, medians, write_results

RESULTS = Path(__file__).resolve().parent / "results"
SCAN = "lidar_os0_128.npz:0.05"
CHANNELS, CLASSES = 4, 13
WAYS = ("inference", "training")
CONTESTANTS = {
    "minkowski": ("minkowski", 2),
    "spconv door": ("spconv", 2),
    "MinkowskiEngine, 1 thread": ("MinkowskiEngine", 1),
    "MinkowskiEngine, 2 threads": ("MinkowskiEngine", 2),
}


def worker(door: str, threads: int, folder: Path) -> None:
    """Write the logits, then answer each way with the seconds of one run."""
    import minkunet34c
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    rows = torch.from_numpy(np.load(folder / "rows.npy"))
    features = torch.from_numpy(np.load(folder / "features.npy"))
    network = minkunet34c.build(door, CHANNELS, CLASSES).eval()

    def inference() -> None:
        network.eval()
        with torch.no_grad():
            minkunet34c.run(network, rows, features)

    def training() -> None:
        network.train()
        network.zero_grad()
        minkunet34c.run(network, rows, features).square().mean().backward()

    def load() -> dict:
        with torch.no_grad():
            logits = minkunet34c.sorted_logits(network, rows, features)
        np.save(folder / f"{door}, {threads}.npy", logits.numpy())
        return dict(zip(WAYS, (inference, training)))  # noqa: B905 (Python 3.8)

    answer(load)


def table(times: dict) -> list:
    """Return the lines of the table."""
    names = sorted({who for took in times.values() for who in took}, key=list(CONTESTANTS).index)
    lines = [
        "| MinkUNet34C | " + " | ".join(names) + " | minkowski / spconv door |",
        "|---" * (len(names) + 2) + "|",
    ]
    for way, took in times.items():
        cells = [f"{1e3 * took[who]:.0f} ms" for who in names]
        ratio = took["minkowski"] / took["spconv door"]
        lines.append(f"| {way} | {' | '.join(cells)} | {ratio:.2f} |")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA"))
    parser.add_argument("--scan", default=SCAN, metavar="NAME:SIZE")
    parser.add_argument("--minkowski", metavar="PYTHON", help="which has MinkowskiEngine")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--out", type=Path, default=RESULTS / "minkowski")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data FOLDER, or VOXAX_TEST_DATA: the folder of scans")

    import numpy as np
    from spconv_networks import read_scan

    name, size = options.scan.rsplit(":", 1)
    cells = read_scan(options.data, name, float(size))
    features = np.random.default_rng(1).normal(size=(len(cells), CHANNELS)).astype(np.float32)
    pythons = {door: sys.executable for door, _ in CONTESTANTS.values()}
    pythons["MinkowskiEngine"] = options.minkowski
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "rows.npy"), np.insert(cells, 0, 0, axis=1))
        np.save(Path(folder, "features.npy"), features)
        crew = {}
        try:
            for who, (door, threads) in CONTESTANTS.items():
                if pythons[door] is not None:
                    asked = "--worker", door, threads, folder
                    crew[who] = Contestant(__file__, *asked, threads=threads, python=pythons[door])
            apart = differences(Path(folder))
            times = medians(crew, options.only, options.rounds)
        finally:
            for one in crew.values():
                one.end()
    heard = ", ".join(f"{value:.1e} ({who})" for who, value in apart.items())
    text = [
        "# MinkUNet34C on a CPU",
        "",
        f"`benchmarks/minkowski_networks.py`: medians of {options.rounds} rounds, 2 threads, "
        f"float32, {name} at {size}: {len(cells)} voxels; kernel maps are made in every call.",
        "",
        *table(times),
        "",
        f"Largest difference of logits to the first column, by their largest: {heard}.",
        "",
    ]
    facts = {"scan": name, "voxel_size": float(size), "voxels": len(cells)}
    write_results(
        options.out, text, {**facts, "rounds": options.rounds, "seconds": times, "apart": apart}
    )
    print("\n".join(text))


def differences(folder: Path) -> dict[str, float]:
    """Return how far the logits of the others are from the door's.

    Raises:
      AssertionError: more than 1e-4 of the largest.
    """
    import numpy as np

    ours = np.load(folder / "minkowski, 2.npy")
    found = {}
    for path in sorted(folder.glob("*, *.npy")):
        found[path.stem] = float(np.abs(np.load(path) - ours).max() / np.abs(ours).max())
    assert max(found.values()) < 1e-4, found
    return {who: apart for who, apart in found.items() if who != "minkowski, 2"}


if __name__ == "__main__":
    main()
