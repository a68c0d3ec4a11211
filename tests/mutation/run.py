"""Plant each fault in turn and run the conformance suite's fast lane, or what it names, against it.

    python tests/mutation/run.py [NAME ...]     those faults, or all
    python tests/mutation/run.py --list

Exits with 1, naming them, if any fault goes unnoticed. Each fault is planted in memory in a
process of its own; no file is touched. Compiled programs are shared through a cache on disk.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))


def hunt(name, tests, cache):
    """``(name, what noticed it or None, seconds)``."""
    begin = time.monotonic()
    command = [
        *(sys.executable, "-m", "pytest", "-p", "mutation.plugin", "-n", "0", "-q", "-x"),
        *("-p", "no:cacheprovider", "--tb", "line", *(str(TESTS / path) for path in tests)),
        # A test that a fault names runs although it is slow.
        *(("-m", "") if any("::" in path for path in tests) else ()),
    ]
    environment = {
        **os.environ,
        "VOXAX_TEST_FAULT": name,
        "VOXAX_NATIVE": "off",  # faults are planted in Python; the native kernels would stand in
        "VOXAX_TEST_COMPILE_CACHE": cache,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    result = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True
    )
    found = re.search(r"^(?:FAILED|ERROR) \S*?::(.+?)(?: - |$)", result.stdout, re.MULTILINE)
    if result.returncode not in (0, 1) or (result.returncode == 1 and not found):
        raise RuntimeError(f"{name}: pytest did not run\n{result.stdout}\n{result.stderr}")
    return name, found and found[1], time.monotonic() - begin


def main():
    from mutation.faults import FAULTS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="faults to plant; all when left out")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    if options.list:
        print("\n".join(FAULTS))
        return 0
    if unknown := set(options.names) - set(FAULTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; --list shows the names")
    names = options.names or list(FAULTS)
    unnoticed = []
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(options.workers) as pool:
        for name, found, seconds in pool.map(
            lambda name: hunt(name, FAULTS[name].tests, cache), names
        ):
            print(f"{seconds:5.0f} s  {name}: {found or 'NOT NOTICED'}", flush=True)
            if found is None:
                unnoticed.append(name)
    print(f"{len(names) - len(unnoticed)} of {len(names)} planted faults noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
