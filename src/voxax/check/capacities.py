"""Capacities of voxels that are far above what the examples need."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat
from voxax.check import recording as limits
from voxax.check.arguments import Arguments
from voxax.check.by_example import followed, run_by_example
from voxax.check.finding import Finding
from voxax.check.modules import Subject
from voxax.check.source import Site, live_frames, place
from voxax.coords import bucket_capacity
from voxax.geometry.build import recording_maps
from voxax.geometry.voxel_geometry import VoxelGeometry

# Of the bucket that would do. The next one is up to 1.25 times as large, and clouds vary.
FACTOR = 2
# Below, the time of a layer does not depend on it.
LEAST = 1024


def has_voxels(arguments: Arguments) -> bool:
    """Whether voxels are among the arguments."""
    values = arguments.fill([leaf.value for leaf in arguments.leaves])
    return any(isinstance(part, VoxelGeometry) for part in jax.tree.leaves(values, is_leaf=_is))


def wasted(
    subject: Subject,
    examples: Sequence[Arguments],
    held: frozenset[str],
    site: Site,
    own: str | None,
) -> list[Finding]:
    """Voxels, given or made on the way, that use less than half of their capacity.

    Every layer computes all rows of its capacity. Where there are several examples, the one that
    needs most counts.

    Args:
      subject: the function.
      examples: its arguments, each set of examples.
      held: names of Python numbers that are static.
      site: where the function is defined.
      own: the library that the function is part of.
    """
    # By what a reader would call them, in the order in which they are made.
    levels: dict[Any, list[tuple[int, int]]] = {}
    sites: dict[Any, tuple[Site, str]] = {}
    for arguments in examples:
        for name, geometry in _given(arguments):
            levels.setdefault(name, []).append((geometry.capacity, int(geometry.count)))
            sites[name] = site, f"argument `{name}`"
        for key, where, geometry, count in _made(subject, arguments, held, own):
            levels.setdefault(key, []).append((geometry.capacity, count))
            sites[key] = where or site, f"the level of stride {geometry.stride}"
    found = []
    for key, sizes in levels.items():
        capacity, count = max(c for c, _ in sizes), max(n for _, n in sizes)
        enough = bucket_capacity(count)
        if capacity < LEAST or capacity <= FACTOR * enough:
            continue
        where, name = sites[key]
        found.append(
            Finding(
                "VX309",
                where,
                f"{name} has a capacity of {capacity} rows, and the examples use {count} of them",
                fix=f"give capacity={enough}, which is vx.bucket_capacity({count}); "
                "vx.plan(model, voxels) fits every level",
            )
        )
    return found


def _is(value: Any) -> bool:
    return isinstance(value, VoxelGeometry)


def _given(arguments: Arguments) -> list[tuple[str, VoxelGeometry]]:
    """Voxels among the arguments, with their names."""
    values = arguments.fill([leaf.value for leaf in arguments.leaves])
    found, position = [], 0
    for part in jax.tree.leaves(values, is_leaf=_is):
        name = arguments.leaves[position].name
        position += len(jax.tree.leaves(part))
        if _is(part):
            found.append((name.removesuffix(".coords").removesuffix(".geometry"), part))
    return found


def _made(
    subject: Subject, arguments: Arguments, held: frozenset[str], own: str | None
) -> list[tuple[Any, Site | None, VoxelGeometry, int]]:
    """Levels that layers make: a key, where, and how many rows are used."""
    found: dict[int, tuple[VoxelGeometry, Site | None]] = {}

    def recorder(geometry: Any, spec: Any, kernel_map: Any, capacity: int | None) -> None:
        del geometry, spec, capacity
        out = kernel_map.out_geometry
        if out is not kernel_map.in_geometry and id(out.coords) not in found:
            where = place(live_frames(sys._getframe(1)), own)
            found[id(out.coords)] = out, where.site if where is not None else None

    trace = _compat.ExampleTrace()
    trace.limit, trace.end = limits.MOST_OPERATIONS, time.monotonic() + limits.SECONDS
    values = followed(arguments, held, trace)
    given = {id(v) for v in values}
    # What keeps it from being traced has findings of its own.
    with contextlib.suppress(Exception, _compat.TraceLimit):
        run_by_example(subject, arguments.fill(values), trace, recording_maps(recorder))
    return [
        ((where, out.stride), where, out, int(np.asarray(_compat.example_of(out.count))))
        for out, where in found.values()
        if id(out.coords) not in given
    ]
