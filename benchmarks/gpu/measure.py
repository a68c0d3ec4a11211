"""One library's process: it measures rows, and prints one line of JSON for each as it is there.

    python measure.py LIBRARY FOLDER SECONDS ROWS

``FOLDER`` has the clouds, ``ROWS`` is a list in JSON. The first answer has the library's versions,
or why it is absent. The process ends with a row that takes longer than ``SECONDS``, and with its
stdin: whoever asked is gone then, and the GPU another's.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import threading
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main() -> None:
    library, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    rows = json.loads(sys.argv[4])
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers

    def answer(values: object) -> None:
        print(json.dumps(values), file=answers, flush=True)

    def watch() -> None:
        # A thread of C's, which needs no interpreter: it ends hanging drivers and compilers.
        faulthandler.dump_traceback_later(seconds, exit=True)

    watch()
    try:
        module = importlib.import_module(f"benchmarks.gpu.by_{library}")
    except BaseException as error:
        answer({"absent": _line(error)})
        return
    answer(module.versions())
    import numpy as np
    from benchmarks.gpu.clouds import file_of
    from benchmarks.gpu.rows import Row

    for given in rows:
        row = Row(**given)
        watch()
        try:
            cloud = {}
            if row.cloud:
                with np.load(file_of(row.cloud, folder)) as file:
                    cloud = dict(file)
            values = module.measure(row, cloud)
        except Exception as error:
            print(f"{row}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            values = {
                "note": f"failed: {_line(error)}",
                "traceback": traceback.format_exc()[-2000:],
            }
        faulthandler.cancel_dump_traceback_later()
        answer(values)


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


if __name__ == "__main__":
    main()
