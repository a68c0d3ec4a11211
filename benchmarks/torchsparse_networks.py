"""MinkUNet18 and SPVCNN on a CPU: voxax.torch.torchsparse, the spconv package, TorchSparse 1.4.0.

    python benchmarks/torchsparse_networks.py --data FOLDER [--torchsparse PYTHON] [--rounds 7]

Each contestant has a process of its own and is stopped (SIGSTOP) when it is not its turn; they take
turns, forwards and backwards. In a turn a network runs once to warm up and once that counts; the
median of the rounds is the result. MinkUNet18 has the same coordinates and weights everywhere, and
logits are compared before anything is timed; kernel maps are made in every call. SPVCNN is read
from a clone of SPVNAS before June 2023, which VOXAX_TEST_SPVNAS_1_4 names. ``--torchsparse`` is a
Python in which TorchSparse 1.4.0's CPU build can be imported; its backward passes are mended as
``tests/pytorch/torchsparse/record.py`` tells.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests" / "pytorch" / "torchsparse"
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / "peers"), str(TESTS)]

from turns import Contestant, answer, medians, write_results  # noqa: E402

SCAN = "lidar_os0_128.npz:0.2"
CLASSES = 13
NETWORKS = ("MinkUNet18", "SPVCNN")
WAYS = ("inference", "training")
OURS = "torchsparse"
THEIRS = "TorchSparse 1.4.0"
CONTESTANTS = {  # threads
    OURS: 2,
    "torchsparse, 1.4": 2,
    "spconv": 2,
    f"{THEIRS}, 1 thread": 1,
    f"{THEIRS}, 2 threads": 2,
}


def minkunet(spnn: Any, cat: Any) -> Any:
    """Return ``peers/spconv_minkunet.MinkUNet`` of TorchSparse's layers, with the same names."""
    from minkunet34c import PLANES
    from torch import nn

    def convolution(c_in: int, c_out: int, size: int = 3, act: bool = True, **kwargs: Any) -> Any:
        parts = {"conv": spnn.Conv3d(c_in, c_out, size, **kwargs), "norm": spnn.BatchNorm(c_out)}
        module = nn.Sequential()
        for name, part in parts.items():
            module.add_module(name, part)
        if act:
            module.add_module("act", spnn.ReLU(True))
        return module

    class Residual(nn.Module):
        def __init__(self, c_in: int, c_out: int) -> None:
            super().__init__()
            self.first = convolution(c_in, c_out)
            self.second = convolution(c_out, c_out, act=False)
            same = c_in == c_out
            self.shortcut = nn.Identity() if same else convolution(c_in, c_out, 1, act=False)
            self.act = spnn.ReLU(True)

        def forward(self, x: Any) -> Any:
            return self.act(self.second(self.first(x)) + self.shortcut(x))

    class MinkUNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.stem_second = convolution(4, 32), convolution(32, 32)
            self.down, self.down_blocks = nn.ModuleList(), nn.ModuleList()
            self.up, self.up_blocks = nn.ModuleList(), nn.ModuleList()
            channels, skips = 32, []
            for planes in PLANES[:4]:
                skips.append(channels)
                self.down.append(convolution(channels, channels, 2, stride=2))
                pair = Residual(channels, planes), Residual(planes, planes)
                self.down_blocks.append(nn.Sequential(*pair))
                channels = planes
            for planes in PLANES[4:]:
                self.up.append(convolution(channels, planes, 2, stride=2, transposed=True))
                pair = Residual(planes + skips.pop(), planes), Residual(planes, planes)
                self.up_blocks.append(nn.Sequential(*pair))
                channels = planes
            self.head = nn.Linear(channels, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.stem_second(self.stem(x))
            skips = []
            for down, residual in zip(self.down, self.down_blocks):  # noqa: B905 (Python 3.8)
                skips.append(x)
                x = residual(down(x))
            for up, residual in zip(self.up, self.up_blocks):  # noqa: B905 (Python 3.8)
                x = residual(cat([up(x), skips.pop()]))
            return self.head(x.F)

    return MinkUNet()


def converted(state: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of ``peers/spconv_minkunet.MinkUNet`` for :func:`minkunet`."""
    found = {}
    for name, value in state.items():
        name = name.replace("shortcut.layers.0.weight", "shortcut.conv.kernel")
        name = name.replace("shortcut.layers.1", "shortcut.norm")
        if name.endswith("shortcut.conv.kernel"):
            value = value.T.contiguous()
        elif value.dim() == 5:  # out, x, y, z, in
            odd = value.shape[1] % 2
            value = value.permute(*((3, 2, 1) if odd else (1, 2, 3)), 4, 0)
            value = value.reshape(-1, *value.shape[3:]).contiguous()
            name = name.replace("second.weight", "second.conv.kernel")
            name = name.replace("conv.weight", "conv.kernel")
        parts = name.split(".")
        if "_blocks" in parts[0] and parts[3] == "norm":  # of the second convolution
            name = ".".join([*parts[:3], "second", *parts[3:]])
        found[name] = value
    return found


def load(who: str, threads: int, folder: Path) -> dict[str, Any]:
    """Return the runs of a contestant, and write its logits of MinkUNet18."""
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    cells = torch.from_numpy(np.load(folder / "cells.npy"))
    features = torch.from_numpy(np.load(folder / "features.npy"))
    arrays = np.load(folder / "state.npz")
    state = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    zeros = torch.zeros(len(cells), 1, dtype=torch.int32)
    shape = [int(-(-(high + 1) // 16) * 16) for high in cells.max(0).values]
    if who == "spconv":
        import voxax.torch.spconv as spconv_package

        spconv_package.install()
        import spconv.pytorch as spconv
        import spconv_minkunet

        net = spconv_minkunet.MinkUNet(4, CLASSES)
        net.load_state_dict(state)
        rows = torch.cat([zeros, cells], 1)
        nets = {"MinkUNet18": net}

        def tensor() -> Any:
            return spconv.SparseConvTensor(features, rows.clone(), shape, 1)
    else:
        if who == OURS:
            import voxax.torch.torchsparse as torchsparse
        elif who == "torchsparse, 1.4":
            import voxax.torch.torchsparse.version_1_4 as torchsparse

            torchsparse.install()
        else:
            import record
            import torchsparse

            record.mend()
        from torchsparse_cases import spvnas

        nn = __import__(f"{torchsparse.__name__}.nn", fromlist=["x"])
        net = minkunet(nn, torchsparse.cat)
        net.load_state_dict(converted(state))
        nets = {"MinkUNet18": net}
        if who != OURS and os.environ.get("VOXAX_TEST_SPVNAS_1_4"):
            nets["SPVCNN"] = spvnas("spvcnn").SPVCNN(num_classes=CLASSES, pres=1, vres=1)
        rows = torch.cat([zeros, cells] if who == OURS else [cells, zeros], 1)

        def tensor() -> Any:
            if who == OURS:  # without a range, 2.1 drops voxels at the border
                return torchsparse.SparseTensor(features, rows.clone(), 1, (1, *shape))
            x = torchsparse.SparseTensor(features, rows.clone())
            x.cmaps[x.stride] = x.coords  # as SPVNAS does: the way back looks it up
            return x

    def inference(net: Any) -> Any:
        net.eval()
        with torch.no_grad():
            return net(tensor())

    def training(net: Any) -> None:
        net.train()
        net.zero_grad()
        net(tensor()).square().mean().backward()

    np.save(folder / f"{who}, {threads}.npy", inference(nets["MinkUNet18"]).numpy())
    ways = {"inference": inference, "training": training}
    return {
        f"{name}, {way}": lambda run=run, net=net: run(net)
        for name, net in nets.items()
        for way, run in ways.items()
    }


def table(times: dict[str, dict[str, float]]) -> list[str]:
    """Return the lines of the table."""
    names = [who for who in CONTESTANTS if any(who in took for took in times.values())]
    lines = [f"| network | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for run, took in times.items():
        cells = [f"{1e3 * took[who]:.0f} ms" if who in took else "" for who in names]
        lines.append(f"| {run} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        who, threads, folder = sys.argv[2:]
        answer(lambda: load(who, int(threads), Path(folder)))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA"))
    parser.add_argument("--scan", default=SCAN, metavar="NAME:SIZE")
    parser.add_argument("--torchsparse", metavar="PYTHON", help="which has TorchSparse 1.4.0")
    parser.add_argument("--only", default="", help="networks and ways with these words")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "torchsparse")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data FOLDER, or VOXAX_TEST_DATA: the folder of scans")

    import numpy as np
    from spconv_networks import read_scan

    name, size = options.scan.rsplit(":", 1)
    cells = read_scan(options.data, name, float(size))
    features = np.random.default_rng(1).normal(size=(len(cells), 4)).astype(np.float32)
    runs = [f"{network}, {way}" for network in NETWORKS for way in WAYS]
    runs = [run for run in runs if all(word in run for word in options.only.split())]
    with tempfile.TemporaryDirectory() as folder:
        write_state(Path(folder, "state.npz"))
        np.save(Path(folder, "cells.npy"), cells)
        np.save(Path(folder, "features.npy"), features)
        crew = {}
        try:
            for who, threads in CONTESTANTS.items():
                python = options.torchsparse if THEIRS in who else sys.executable
                if python:
                    asked = "--worker", who.partition(" thread")[0].removesuffix(f", {threads}")
                    asked = *asked, threads, folder
                    crew[who] = Contestant(__file__, *asked, threads=threads, python=python)
            logits = {path.stem: np.load(path) for path in sorted(Path(folder).glob("*, *.npy"))}
            ours = logits[f"{OURS}, 2"]
            apart = {
                who: float(np.abs(found - ours).max() / np.abs(ours).max())
                for who, found in logits.items()
            }
            assert max(apart.values()) < 1e-4, apart
            times = medians(crew, runs, options.rounds)
        finally:
            for one in crew.values():
                one.end()
    text = [
        "# TorchSparse networks on a CPU",
        "",
        f"`benchmarks/torchsparse_networks.py`: medians of {options.rounds} rounds, "
        f"2 threads, float32, {name} at {size}: {len(cells)} voxels; kernel maps "
        "are made in every call.",
        "",
        *table(times),
        "",
        f"Logits of MinkUNet18 differ by at most {max(apart.values()):.0e} of the largest.",
        "",
    ]
    facts = {"scan": name, "voxel_size": float(size), "voxels": len(cells)}
    results = {**facts, "rounds": options.rounds, "seconds": times, "apart": apart}
    write_results(options.out, text, results)
    print("\n".join(text))


def write_state(path: Path) -> None:
    """Write initial weights of MinkUNet18, with statistics that are not those of no data."""
    import numpy as np
    import torch

    import voxax.torch.spconv as spconv_package

    spconv_package.install()
    import spconv_minkunet

    torch.manual_seed(0)
    net = spconv_minkunet.MinkUNet(4, CLASSES)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.1)
    # Not torch.save: PyTorch 1.12 cannot read such a file without running code in it.
    np.savez(path, **{name: value.numpy() for name, value in net.state_dict().items()})


if __name__ == "__main__":
    main()
