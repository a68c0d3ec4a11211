"""The process that compiles for TPUs; it is separate because libtpu reads its flags only once.

``cycles.py`` starts it as ``python -m voxax.predict.child REQUESTS RESULTS FOLDER PARENT``.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax._parent import end_with
from voxax.hardware.tpu import TOPOLOGIES
from voxax.predict.chip import chip_named, compile_for
from voxax.predict.compiled_program import CompiledKernel, CompiledProgram, CopyBeside
from voxax.predict.hlo import Operation, operations, runs_beside
from voxax.predict.listing import EQUAL, SCHEDULE, UTILIZATION, Listing, read_equal, read_listing


def main(requests: str, results: str, folder: str) -> None:
    """Compile each request in the file `requests`, and write the results to the file `results`.

    A result is the pickled program, or the error's text. The compiler writes listings to `folder`.
    """
    with Path(results).open("wb") as out:
        for chip, target, arguments in json.loads(Path(requests).read_text()):
            result: CompiledProgram | str
            try:
                result = _compiled(chip, target, arguments, Path(folder))
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            pickle.dump(result, out)
            out.flush()
            for path in Path(folder).iterdir():
                path.unlink()


def _compiled(chip: str, target: str, arguments: dict[str, Any], folder: Path) -> CompiledProgram:
    make = _found(target)
    if "chip" in inspect.signature(make).parameters:
        arguments = {"chip": chip, **arguments}
    function, *shapes = make(**arguments)
    compiled = compile_for(TOPOLOGIES[chip], function, *shapes)
    facts = chip_named(chip)
    listings = _listings(folder, facts.delay_slots)
    kernels: list[CompiledKernel] = []
    copies: list[CopyBeside] = []
    started: dict[str, tuple[int, Operation]] = {}
    for item in operations(compiled.as_text()):
        if not runs_beside(item):
            kernels.append(CompiledKernel(**vars(item), listing=listings.get(item.name)))
        elif not item.completes:
            started[item.name] = len(kernels), item
        elif item.completes in started:
            begin, start = started[item.completes]
            more = start.bytes, start.times, start.prefetched
            copies.append(CopyBeside(begin, len(kernels), *more))
    memory = compiled.memory_analysis()
    device = _compat.tpu_topology(TOPOLOGIES[chip])[0]
    # JAX's table counts both cores of a v4 as one device, but libtpu's description does not.
    cores = int(getattr(device, "num_cores", None) or 1)
    return CompiledProgram(
        dataclasses.replace(facts, cores=cores),
        tuple(kernels),
        tuple(copies),
        memory.temp_size_in_bytes,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        float((compiled.cost_analysis() or {}).get("flops", 0.0)),
        value_bytes((compiled.args_info, compiled.out_info)),
    )


def value_bytes(tree: Any) -> int:
    """Return the bytes of a tree's floating-point and int8 arrays, such as features and weights.

    Coordinates, tables and masks have other dtypes, and are not counted.
    """
    found = 0
    for leaf in jax.tree.leaves(tree):
        dtype = jnp.dtype(leaf.dtype)
        if jnp.issubdtype(dtype, jnp.inexact) or dtype.name == "int8":
            found += math.prod(leaf.shape) * dtype.itemsize
    return found


def _listings(folder: Path, delay_slots: int) -> dict[str, Listing]:
    """Parse the compiler's files in `folder`; return a dict from operation to its :class:`Listing`.

    The files' names are ``TIME-OPERATION-NUMBER-LABEL.txt``. Of equal operations, the compiler
    lists only one; they all get its listing. For `delay_slots` see :func:`read_listing`.
    """
    found = {}
    for path in sorted(folder.glob(f"*-{SCHEDULE}.txt")):
        name, number = path.name.removesuffix(f"-{SCHEDULE}.txt").split("-", 1)[1].rsplit("-", 1)
        if not number.isdigit() or "schedule-analysis" in path.name or name.startswith("<"):
            continue
        stem = path.name.split("-", 1)[0] + "-" + name
        utilization = next(iter(folder.glob(f"{stem}-*-{UTILIZATION}.txt")), None)
        text = "" if utilization is None else utilization.read_text()
        found[name] = read_listing(path.read_text(), text, delay_slots)
    for path in folder.glob(f"*-{EQUAL}.txt"):
        equal = read_equal(path.read_text())
        found |= {name: found[first] for name, first in equal.items() if first in found}
    return found


def _found(target: str) -> Any:
    """Import and return the function that a target names.

    `target` is ``package.module:name`` or ``FILE.py:name``.
    """
    place, _, name = target.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


if __name__ == "__main__":
    *given, parent = sys.argv[1:]
    end_with(int(parent))
    main(*given)
