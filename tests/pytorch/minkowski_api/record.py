"""Record what MinkowskiEngine 0.5.4 itself gives, on a CPU, for every case.

    python record.py --python PYTHON [MODULE ...]
    python record.py --build FOLDER --base PYTHON3.8 [MODULE ...]
    python record.py --python PYTHON --repository [MODULE ...]

``PYTHON`` imports MinkowskiEngine; ``--build`` makes one (``build_minkowski.py``). A ``MODULE`` is
one of ``minkowski_cases``; none means all. For each it writes ``golden/MODULE.npz``, from the
package index's release. ``--repository`` is for a build of the repository's last commit: it writes
the cases whose results are others there, as ``golden/MODULE.repository.npz``. The keys are

- ``about``: the versions that recorded it;
- ``CASE/DTYPE/ARRAY``: an array of the case's result, named as ``inputs.flat`` names it. ``.C``,
  ``.F`` and ``.stride`` are a sparse tensor's coordinates, features and tensor stride, ``grad.x``
  the gradient of the input features, ``grad.kernel`` of a weight, ``kernel_map`` sorted rows of
  tap, input row and output row;
- ``CASE/DTYPE/error``: what MinkowskiEngine raised instead, or that it crashed.

An array in float32 is stored where it is not within 1e-5 of the one in float64, which stands for
it.

Inputs and weights are drawn by seed (``minkowski_cases/inputs.py``), so a test makes them again.
Rows have MinkowskiEngine's order. Of new sites that is the order of a hash table, on one thread.
The networks need a clone of MinkowskiEngine's repository, named by ``VOXAX_TEST_MINKOWSKIENGINE``,
and public networks those that ``minkowski_cases/public.py`` tells.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
MODULES = (
    "convolution",
    "pooling",
    "layers",
    "tensors",
    "fields",
    "utilities",
    "initial",
    "networks",
    "public",
)
# These do not depend on the dtype of features.
ONE_DTYPE = ("utilities", "initial", "networks")


def run(case, dtype, pipe) -> None:
    """Send a case's arrays, or its error."""
    import MinkowskiEngine
    import numpy as np
    import torch
    from minkowski_cases import inputs

    try:
        found = inputs.flat(case(MinkowskiEngine, getattr(torch, dtype)))
    except Exception as error:
        lines = str(error).splitlines() or [""]
        text = re.sub(r"(/[\w.-]+)+/", "", lines[0])  # no paths of the build
        found = {"error": np.asarray(f"{type(error).__name__}: {text[:200]}")}
    pipe.send(found)
    pipe.close()


def apart(case, dtype) -> dict:
    """Run a case in a process of its own: some calls end it."""
    import numpy as np

    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(case, dtype, send))
    process.start()
    send.close()
    try:
        found = receive.recv()
    except EOFError:
        found = None
    process.join()
    return found or {"error": np.asarray("the process was killed")}


def near(found, expected, tolerance=1e-5) -> bool:
    """Are these arrays, of two dtypes or of two builds, one result?"""
    import numpy as np

    if expected is None or found.shape != expected.shape:
        return False
    if found.dtype.kind != "f" or expected.dtype.kind != "f":
        return bool((found == expected).all())
    scale = np.abs(expected).max(initial=0)
    return bool((np.abs(found - expected) <= tolerance * scale).all())


def others(arrays, released) -> dict:
    """Return the arrays of the cases that differ from the release's.

    An error there alone comes from torch 1.12: the commit's Python code wants a later one.
    """
    changed, failed = set(), set()
    for key in {*arrays, *released} - {"about"}:
        case, name = key.split("/")[0], key.split("/")[2]
        old, new = released.get(key), arrays.get(key)
        if old is None or new is None or not near(new, old, 1e-10):
            changed.add(case)
            if name == "error" and old is None:
                failed.add(case)
    kept = changed - failed
    return {k: v for k, v in arrays.items() if k == "about" or k.split("/")[0] in kept}


def record(name: str, repository: bool) -> None:
    """Write the golden file of one module of cases."""
    import MinkowskiEngine
    import numpy as np
    import torch

    module = importlib.import_module(f"minkowski_cases.{name}")
    versions = {
        "MinkowskiEngine": MinkowskiEngine.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    arrays = {"about": np.array(json.dumps(versions))}
    failed = []
    for case, function in module.cases().items():
        full = apart(function, "float64")
        arrays.update({f"{case}/float64/{key}": value for key, value in full.items()})
        results = {"float64": full}
        if name not in ONE_DTYPE:
            results["float32"] = apart(function, "float32")
            for key, value in results["float32"].items():
                if not near(value, full.get(key)):
                    arrays[f"{case}/float32/{key}"] = value
        for dtype, found in results.items():
            if "error" in found:
                failed.append(f"{case} {dtype}: {found['error']}")
    GOLDEN.mkdir(exist_ok=True)
    path = GOLDEN / f"{name}.npz"
    if repository:
        with np.load(path) as released:
            arrays = others(arrays, dict(released))
        path = GOLDEN / f"{name}.repository.npz"
        if len(arrays) == 1:
            path.unlink(missing_ok=True)
            print(f"{name}: nothing differs")
            return
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {len(arrays)} arrays, {path.stat().st_size} bytes")
    print("\n".join(f"  {line}" for line in failed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=[])
    parser.add_argument("--python", help="a Python that imports MinkowskiEngine")
    parser.add_argument("--build", type=Path, help="a folder to build MinkowskiEngine in")
    parser.add_argument("--base", default="python3.8", help="a Python 3.8 to build with")
    parser.add_argument("--repository", action="store_true", help="record what differs there")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:  # the Python that imports MinkowskiEngine
        for name in arguments.modules or MODULES:
            record(name, arguments.repository)
        return
    python = arguments.python
    if arguments.build is not None:
        from build_minkowski import build

        python = str(build(arguments.build.resolve(), arguments.base))
    if python is None:
        parser.error("give --python or --build")
    # One thread: its order of new rows is the one that repeats.
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [python, str(HERE / "record.py"), "--here", *arguments.modules]
    if arguments.repository:
        command.append("--repository")
    sys.exit(subprocess.run(command, env=variables, check=False).returncode)


if __name__ == "__main__":
    main()
