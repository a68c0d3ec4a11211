"""Checkpoints of public networks, exchanged with MinkowskiEngine by files.

    PYTHON exchange.py FOLDER NAME

``PYTHON`` imports MinkowskiEngine. It loads ``FOLDER/voxax.pt`` strictly into the network and
writes ``voxax.npz``, what it then gives in evaluation mode in float64. It also writes
``MinkowskiEngine.pt``, a state with initial values, and ``MinkowskiEngine.npz``, its results.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from minkowski_cases import inputs, public


def saved(path, name):
    """Save the initial state of a network as its users do."""
    with public.opened(public.NETWORKS[name].package):
        torch.manual_seed(len(name))
        torch.save(public.NETWORKS[name].build().state_dict(), path)


def results(me, path, name):
    """Return the arrays that a network gives with a saved state."""
    weights = torch.load(path, map_location="cpu")
    return inputs.flat(public.run(me, torch.float64, name, training=False, weights=weights))


def main():
    import MinkowskiEngine

    folder, name = Path(sys.argv[1]), sys.argv[2]
    saved(folder / "MinkowskiEngine.pt", name)
    for by in ("voxax", "MinkowskiEngine"):
        arrays = results(MinkowskiEngine, folder / f"{by}.pt", name)
        np.savez(folder / f"{by}.npz", **arrays)


if __name__ == "__main__":
    main()
