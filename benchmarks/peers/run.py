"""voxax against spconv, Open3D and plain PyTorch on this machine's CPU.

    python benchmarks/peers/run.py [--data FOLDER] [--only WORDS] [--quick]

Makes an environment for the peers first: a venv with pinned versions in the user's cache folder,
or in --venv. A peer that does not install is reported with the reason and left out. Open3D needs
Debian's libusb-1.0-0 and libgl1.

Every library runs in a process of its own, on the same coordinates, with the same number of
threads, and only while it is its turn. Its results are compared with voxax's before it is timed.
Rounds go through all libraries; times are medians. The lower bound is the arithmetic of the pairs
that exist over the best rate of a dense product that XLA, NumPy or PyTorch reached in the same
rounds.

Results are merged into results/peers.json, so that parts can be measured at a time
(--only "conv3 forward" takes the cases with these words in their name); the table and the picture
are drawn from all that is there. A file of another machine, other versions, other code of voxax or
other peers is not touched: --anew replaces it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    # For what the benchmarks share: the scans, and shapes made of nothing.
    sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
    import driver

    driver.main(__doc__)


if __name__ == "__main__":
    main()
