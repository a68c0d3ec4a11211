"""MinkUNet18 and SPVCNN on a CPU: voxax.torch.torchsparse, the spconv package, TorchSparse 1.4.0.

    python benchmarks/torchsparse_networks.py --data FOLDER [--torchsparse PYTHON] [--rounds 7]

How contestants take turns stands in ``whole_networks.py``. MinkUNet18 has the same coordinates and
weights everywhere. SPVCNN is read from a clone of SPVNAS before June 2023, which
VOXAX_TEST_SPVNAS_1_4 names. ``--torchsparse`` is a Python in which TorchSparse 1.4.0's CPU build
can be imported; its backward passes are mended as ``tests/pytorch/torchsparse/record.py`` tells.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.whole_networks import compare, milliseconds, training_of

CHANNELS, CLASSES = 4, 13
CLONE = "VOXAX_TEST_SPVNAS_1_4"
CONTESTANTS = {
    "torchsparse": ("torchsparse", 2),
    "torchsparse, 1.4": ("torchsparse.version_1_4", 2),
    "spconv": ("spconv", 2),
    "TorchSparse 1.4.0, 1 thread": ("TorchSparse", 1),
    "TorchSparse 1.4.0, 2 threads": ("TorchSparse", 2),
}


def load(by: str, threads: int, network: str, cells: Any) -> tuple[Any, Any]:
    """Return both ways, and the function of the logits of MinkUNet18."""
    import torch
    from benchmarks import minkunet

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows, features = minkunet.inputs(cells, CHANNELS)
    if network == "MinkUNet18":
        model = minkunet.build(by, CHANNELS, CLASSES, *minkunet.MINKUNET18)
        runs = training_of(model, lambda: minkunet.run(model, rows, features))
        return runs, lambda: minkunet.sorted_logits(model, rows, features)
    if by not in ("torchsparse.version_1_4", "TorchSparse") or CLONE not in os.environ:
        return {}, None
    layers = minkunet.layers_of(by)
    if by != "TorchSparse":
        layers.package.install()
    from torchsparse_cases import spvnas

    model = spvnas("spvcnn").SPVCNN(num_classes=CLASSES, pres=1, vres=1)
    return training_of(model, lambda: model(layers.tensor(rows, features))), None


if __name__ == "__main__":
    compare(
        __file__,
        __doc__,
        load,
        lambda times: milliseconds(times, list(CONTESTANTS)),
        CONTESTANTS,
        ["MinkUNet18", "SPVCNN"],
        out="torchsparse",
        title="TorchSparse networks on a CPU",
        scans=["lidar_os0_128.npz:0.2"],
        peer=("TorchSparse", "--torchsparse"),
    )
