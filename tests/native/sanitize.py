"""Builds the native kernels with sanitizers, and runs what tests them.

    python tests/native/sanitize.py address    AddressSanitizer, UndefinedBehaviorSanitizer
    python tests/native/sanitize.py thread     ThreadSanitizer

Both run ``driver.cc``, which needs neither Python nor XLA. ``address`` then runs, inside Python,
what XLA and NumPy hand over, and a sample of the conformance suite. ThreadSanitizer cannot: XLA's
own threads are not instrumented, so it does not see them hand arrays over and takes every one for
a race.

Needs CMake, Ninja, and GCC with its sanitizers. The builds stay in ``build/``.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
# Of the random layout: each native dtype, strides, groups, both kinds of adjoints.
CASES = (
    *("conv-1D", "conv_even", "conv_larger_than_scene", "conv_cross_strided", "conv_partition"),
    *("conv_grouped-", "depthwise_strided", "conv_transposed_overlapping", "conv_onto_given-"),
)
# What the driver does not reach: arguments as XLA and NumPy hand them over.
HANDLERS = ("tests/native/test_bad_calls.py", "tests/native/test_coordinates.py")
# These start processes of their own, on the library that is installed.
ELSEWHERE = "not switched and not forked"


def build(name, compiler):
    folder = ROOT / "build" / f"sanitize-{name}"
    configure = [
        *("cmake", "-G", "Ninja", "-S", str(ROOT / "native"), "-B", str(folder)),
        *("-DVOXAX_DRIVER=ON", f"-DVOXAX_SANITIZE={SANITIZERS[name]}"),
        *(f"-DCMAKE_CXX_COMPILER={compiler}", f"-DPython_EXECUTABLE={sys.executable}"),
    ]
    subprocess.run([*configure, "--log-level=WARNING"], check=True)
    subprocess.run(["cmake", "--build", str(folder)], check=True)
    return folder


def runtime(compiler, name):
    """The path of a sanitizer's library, which must come before Python's."""
    command = [compiler, f"-print-file-name=lib{name}.so"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(*command, **environment):
    print("+", *map(str, command), flush=True)
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT, env={**os.environ, **environment})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sanitizer", choices=SANITIZERS)
    parser.add_argument("--compiler", default="g++", help="a GCC (default: g++)")
    parser.add_argument("--rounds", type=int, default=2, help="of the driver (default: 2)")
    options = parser.parse_args()
    folder = build(options.sanitizer, options.compiler)
    settings = {
        # Python does not free everything at exit. A huge array is an error of the caller's.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    run(folder / "voxax_driver", options.rounds, **settings)
    if options.sanitizer == "address":
        libraries = [runtime(options.compiler, name) for name in ("asan", "ubsan")]
        settings["LD_PRELOAD"] = " ".join(libraries)
        tests = sys.executable, "tests/native/with_library.py", folder, "-n", "0", "-q", "-m", ""
        run(*tests, *HANDLERS, "-k", ELSEWHERE, **settings)
        sample = f"native_4 and random and ({' or '.join(CASES)})"
        run(*tests, "tests/conformance/test_conformance.py", "-k", sample, **settings)
    print(f"{SANITIZERS[options.sanitizer]}: nothing found")


if __name__ == "__main__":
    main()
