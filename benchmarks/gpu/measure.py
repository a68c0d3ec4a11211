"""One library's process: it measures the rows that it is told, one line of JSON each.

    python measure.py LIBRARY FOLDER < rows

A row is a line of JSON on stdin, its answer one on the original stdout. ``FOLDER`` has the clouds.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main() -> None:
    import numpy as np
    from benchmarks.gpu.rows import Row

    library, folder = sys.argv[1], Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers

    def answer(values: object) -> None:
        print(json.dumps(values), file=answers, flush=True)

    try:
        module = importlib.import_module(f"benchmarks.gpu.by_{library}")
        answer({"versions": module.versions()})
    except Exception as error:
        answer({"failed": f"{type(error).__name__}: {error}"[:300]})
        return
    for line in sys.stdin:
        row = Row(**json.loads(line))
        try:
            cloud = {}
            if row.cloud:
                with np.load(folder / f"{row.cloud.replace(':', '-')}.npz") as file:
                    cloud = dict(file)
            answer(module.measure(row, cloud))
        except Exception as error:
            traceback.print_exc()
            answer({"note": f"failed: {type(error).__name__}: {error}"[:300]})


if __name__ == "__main__":
    main()
