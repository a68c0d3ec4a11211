"""One library's process: it measures the rows that it is asked for.

    python worker.py LIBRARY FOLDER SECONDS

``FOLDER`` has the clouds. The process ends with a row that takes longer than ``SECONDS``.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.turns import serve


def _load() -> tuple[dict[str, str], dict[str, Any]]:
    library, folder = sys.argv[1], Path(sys.argv[2])
    from benchmarks.gpu.clouds import file_of
    from benchmarks.gpu.rows import SMALL_PEERS, Row

    if library in SMALL_PEERS:
        from benchmarks.gpu import by_small_peers

        module = by_small_peers.PEERS[library]()
    else:
        if library == "spconv_triton":  # the modules of spconv under another name
            import spconv_triton.pytorch

            sys.modules["spconv"] = spconv_triton
            sys.modules["spconv.pytorch"] = spconv_triton.pytorch
            library = "spconv"
        module = importlib.import_module(f"benchmarks.gpu.by_{library}")

    def measure(row: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        wanted, cloud = Row(**row), {}
        if wanted.cloud:
            with np.load(file_of(wanted.cloud, folder)) as file:
                cloud = dict(file)
        return module.measure(wanted, cloud)

    return module.versions(), {"measure": measure}


if __name__ == "__main__":
    serve(_load, limit=float(sys.argv[3]))
