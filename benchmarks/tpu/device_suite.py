"""Run every kernel for TPUs on one: results against the CPU's, times against predicted ones.

    python benchmarks/tpu/device_suite.py

Each case of device_cases.py runs twice for equal bits, is compared with what the host's CPU
computes in the same process, and is timed. Then its time is predicted (voxax.predict), with libtpu
in processes of their own. Results go to results/tpu_device.json and .md after each case. Started
again, the suite goes on: first what was not begun, then what failed or was killed. What the file
has of this code and of these versions of JAX and libtpu is not run again.

--bounds-checks runs all with checks of the kernels' copies, not timed: their own rows of the file.
--predict-only fills in predictions; it needs no TPU. --rehearse runs the cases at small sizes with
interpreted kernels on the CPU, to show that the suite works.

Status: 1 if a case failed, 2 for what the user can mend, 3 without a TPU, 4 if a case did not end
within --limit seconds, compiling included: start again then, the others come first.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib.metadata
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `benchmarks`, also as a script

RESULTS = ROOT / "benchmarks" / "results" / "tpu_device.json"
FAILURES, MISTAKE, NO_TPU, STUCK = 1, 2, 3, 4
"""Exit statuses."""
CHECKED = ", bounds checked"
_REHEARSED = "v5e"
_REHEARSED_DEVICES = 2
_PREDICTING = 8
"""Predictions side by side, at most."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    from voxax.errors import VoxaxError

    options = _options().parse_args(arguments)
    try:
        return _run(options)
    except VoxaxError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"cannot write results: {error}; give --out another file", file=sys.stderr)
    return MISTAKE


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--only", default="", help="cases whose names have all these words")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a case may take")
    parser.add_argument("--bounds-checks", action="store_true")
    parser.add_argument("--anew", action="store_true", help="run again what is known")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--predict-only", action="store_true")
    way.add_argument("--rehearse", nargs="?", const=_REHEARSED, metavar="CHIP")
    return parser


def _run(options: argparse.Namespace) -> int:
    # Nothing is measured on the side, and read when programs are traced.
    os.environ["VOXAX_AUTOTUNE"] = "off"
    from voxax.hardware.pallas_checks import VARIABLE

    if options.bounds_checks:
        os.environ[VARIABLE] = "on"
    if options.predict_only:
        return _predict_only(options)
    if options.rehearse:
        os.environ["JAX_PLATFORMS"] = "cpu"

    import jax
    from benchmarks.tpu import device_cases
    from benchmarks.tpu.device_results import Results

    from voxax.errors import InputError
    from voxax.hardware import describe
    from voxax.predict import TOPOLOGIES, chip_named

    if options.rehearse:
        hardware = describe(TOPOLOGIES[chip_named(options.rehearse).name])
        devices = _host_devices()
    else:
        devices = jax.devices()
        if devices[0].platform != "tpu":
            print(
                f"No TPU: JAX runs on {devices[0].platform} here, so nothing was run. On a host of "
                'TPUs install JAX for it (pip install "voxax[tpu]"), and let JAX_PLATFORMS be '
                "unset or tpu,cpu; or add --rehearse to see the suite work on the CPU.",
                file=sys.stderr,
            )
            return NO_TPU
        devices, hardware = jax.local_devices(), describe(devices[0])
    try:
        chip = chip_named((hardware.model or "").removeprefix("TPU ")).name
    except InputError as error:
        chip = None
        print(f"{hardware.device_kind}: nothing is predicted: {error}", flush=True)
    try:
        jax.devices("cpu")
    except RuntimeError:
        raise InputError(
            f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')} leaves out the host's CPU, which the "
            "results are compared with: leave it unset, or give tpu,cpu"
        ) from None
    out = options.out or (Path("tpu_rehearsal.json") if options.rehearse else RESULTS)
    rehearsal = bool(options.rehearse)
    device = {"kind": hardware.device_kind, "chip": chip, "rehearsal": rehearsal}
    results = Results(out, device, hardware)
    # With one device there is nothing to do together.
    together = tuple(devices) if len(devices) > 1 else ()
    found = device_cases.cases(device_cases.Scale(hardware, rehearsal, together))
    found = [case for case in found if set(options.only.split()) <= set(_words(case.name))]
    if not found:
        raise InputError(f"--only {options.only!r} leaves no case")
    mark = CHECKED if options.bounds_checks else ""
    _execute(found, mark, results, devices[0], options)
    if not (options.bounds_checks or rehearsal or chip is None):
        _predict([case.name for case in found], results)
    return _summary([case.name + mark for case in found], results)


def _words(name: str) -> list[str]:
    return name.replace(",", " ").split()


def _host_devices() -> list[Any]:
    import jax

    # Too late in a process where JAX has begun: it has one then.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", _REHEARSED_DEVICES)
    return jax.devices("cpu")


def _versions() -> str:
    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "absent"

    return ", ".join(f"{package} {version(package)}" for package in ("jax", "libtpu"))


def _execute(
    cases: list[Any], mark: str, results: Any, device: Any, options: argparse.Namespace
) -> None:
    """Run what the file does not have."""
    from benchmarks.gpu.stopwatch import timed as many
    from benchmarks.tpu.device_results import BEGUN, FAILED, PASSED

    def once(run: Any, wait: Any) -> dict[str, float]:
        begin = time.perf_counter()
        wait(run())
        return {"seconds": time.perf_counter() - begin}

    def known(case: Any) -> dict[str, Any]:
        row = results.rows.get(case.name + mark, {})
        same = not options.anew and (row.get("code"), row.get("versions")) == (case.code, versions)
        return row if same else {}

    versions, end = _versions(), time.monotonic() + options.seconds
    todo = [case for case in cases if known(case).get("state") != PASSED]
    # What ended the process would end it again: the others come first.
    todo.sort(key=lambda case: [None, FAILED, BEGUN].index(known(case).get("state")))
    print(f"{len(cases)} cases, {len(cases) - len(todo)} of them known", flush=True)
    for number, case in enumerate(todo, 1):
        if time.monotonic() > end:
            print(f"no time is left for {len(todo) - number + 1} cases; start again", flush=True)
            return
        row = {"code": case.code, "versions": versions, "parameters": _shown(case.parameters)}
        results.set(case.name + mark, {**row, "state": BEGUN})
        begin = time.monotonic()
        try:
            with _ending_process(options.limit, case.name):
                row |= _checked(case, device, None if mark else once if options.rehearse else many)
        except Exception as error:  # the other cases go on
            traceback.print_exc()
            row |= {"state": FAILED, "note": f"{type(error).__name__}: {error}"[:600]}
        results.set(case.name + mark, row)
        shown = [row["state"], row.get("note", "")]
        if "seconds" in row:
            shown.append(f"{1e6 * row['seconds']:,.1f} us")
        place, took = f"{number}/{len(todo)}", time.monotonic() - begin
        said = " ".join(filter(None, shown))
        print(f"{place} {case.name}{mark}: {said} ({took:.0f} s)", flush=True)


@contextlib.contextmanager
def _ending_process(limit: float, name: str) -> Iterator[None]:
    """End the process after so many seconds: nothing else ends a kernel that waits for ever."""

    def end() -> None:
        print(f"{name} did not end within {limit:g} s: start again", file=sys.stderr, flush=True)
        os._exit(STUCK)

    timer = threading.Timer(limit, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shown(parameters: Sequence[tuple[str, Any]]) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters)


def _checked(case: Any, device: Any, timed: Any) -> dict[str, Any]:
    """Run a case, and return what a row has of it; ``timed`` measures it, or is None."""
    import jax
    import numpy as np
    from benchmarks.tpu.device_results import FAILED, PASSED

    with jax.default_device(jax.devices("cpu")[0]):
        operands = case.make()
    places = jax.tree.map(lambda shape: shape.sharding or device, case.shapes)
    placed = jax.tree.map(jax.device_put, operands, places)
    begin = time.perf_counter()
    program = jax.jit(case.run).lower(*placed).compile()
    row: dict[str, Any] = {"compile": time.perf_counter() - begin}
    first, second = (jax.tree.map(np.asarray, program(*placed)) for _ in range(2))
    with jax.default_device(jax.devices("cpu")[0]):
        reason = case.differs(first, case.expect(operands))
    # Bit by bit, NaN among them.
    pairs = zip(*map(jax.tree.leaves, (first, second)), strict=True)
    if reason is None and any(a.tobytes() != b.tobytes() for a, b in pairs):
        reason = "two runs differ"
    if case.passes is not None:
        row["passes"] = case.passes(operands)
    if reason is not None:
        return {**row, "state": FAILED, "note": reason}
    if timed is not None:
        row |= timed(lambda: program(*placed), jax.block_until_ready)
    return {**row, "state": PASSED}


def _predict_only(options: argparse.Namespace) -> int:
    from benchmarks.tpu import device_cases
    from benchmarks.tpu.device_results import Results, read

    from voxax.errors import InputError
    from voxax.hardware import HardwareInfo

    out = options.out or RESULTS
    known = read(out)
    if known["device"]["rehearsal"] or not known["device"]["chip"]:
        raise InputError(f"{out} is of {known['device']}, for which nothing is predicted")
    hardware = HardwareInfo.from_json(known["hardware"])
    results = Results(out, known["device"], hardware)
    code = {case.name: case.code for case in device_cases.cases(device_cases.Scale(hardware))}
    same = [name for name, row in results.rows.items() if row["code"] == code.get(name)]
    _predict(same, results)
    return _summary(same, results)


def _predict(names: list[str], results: Any) -> None:
    """Predict the time of what was measured, side by side, each written as soon as it is there."""
    from voxax import _compat

    counted = _counted()
    rows = ((name, results.rows.get(name, {})) for name in names)
    left = [n for n, row in rows if row.get("seconds") and row.get("counted") != counted]
    if left and not _compat.has_libtpu():
        print("nothing is predicted: libtpu is not installed; --predict-only does it later")
        return
    with concurrent.futures.ThreadPoolExecutor(min(_PREDICTING, os.cpu_count() or 1)) as pool:
        asked = {pool.submit(_predicted, name, results, counted): name for name in left}
        for number, done in enumerate(concurrent.futures.as_completed(asked), 1):
            name, row = asked[done], done.result()
            results.set(name, results.rows[name] | {"note": ""} | row)
            shown = row.get("note") or f"{1e6 * row['predicted']:,.1f} us"
            print(f"{number}/{len(left)} predicted {name}: {shown}", flush=True)


def _counted() -> str:
    """The version of what predictions come from."""
    from benchmarks.tpu.program import COUNT
    from benchmarks.tpu.sources import digest_of

    modules = (f"voxax.predict.{name}" for name in COUNT)
    return f"{digest_of(*modules, within='voxax.predict')}, {_versions()}"


def _predicted(name: str, results: Any, counted: str) -> dict[str, Any]:
    from benchmarks.tpu import device_cases

    from voxax.cli.bench import passes_of
    from voxax.errors import VoxaxError
    from voxax.predict import outcomes

    given = {"case": name, "hardware": results.known["hardware"]}
    target = f"{device_cases.__name__}:{device_cases.program.__name__}"
    (program,) = outcomes([(results.known["device"]["chip"], target, given)])
    if isinstance(program, VoxaxError):
        return {"note": f"not predicted: {program}"[:600]}
    number = results.rows[name].get("passes")
    pallas = [kernel for kernel in program.kernels if kernel.is_pallas]
    passes = {k.name: passes_of(k) if number is None else number for k in pallas}
    assumed = number is None and any(value is not None for value in passes.values())
    return {
        "predicted": program.seconds(passes, at_least=True),
        "at_least": bool(assumed or program.open(passes)),
        "counted": counted,
        "bound": max(program.costs(passes), key=lambda cost: cost.seconds).bound,
    }


def _summary(names: list[str], results: Any) -> int:
    from benchmarks.tpu.device_results import FAILED, PASSED, table_of

    there = [name for name in names if name in results.rows]
    states = [results.rows[name]["state"] for name in there]
    print(table_of(results.rows, there))
    print(
        f"{len(names)} cases: {states.count(PASSED)} passed, {states.count(FAILED)} failed, "
        f"{len(names) - states.count(PASSED) - states.count(FAILED)} left. Results: {results.path}"
    )
    return FAILURES if FAILED in states else 0


if __name__ == "__main__":
    sys.exit(main())
