"""Check uses of voxax: capacities far above the need, and kernel maps built more than once.

Kernel maps are compared by value numbering (Alpern, Wegman, Zadeck, POPL 1988). Every value of the
program gets a number, and values that the same operation computes from equal numbers get the same
number. Two maps are the same if their coordinates have the same numbers, whatever functions the
coordinates passed through.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat_tracing
from voxax._compat import CUSTOM_CALLS, PLAIN_CALLS, programs_in, scope_in
from voxax.check import recording, time_limit
from voxax.check.advice import ADVICE
from voxax.check.findings import Finding
from voxax.check.source import Place, Site, live_frames, place, place_of
from voxax.check.subject import Arguments, Subject, module_of_scope
from voxax.coords import bucket_capacity
from voxax.geometry.build import recording_maps
from voxax.geometry.default_capacity import default_capacity, has_ladder
from voxax.geometry.voxel_geometry import VoxelGeometry

# The largest capacity without a finding, as a multiple of the bucket that suffices. The next bucket
# is up to 1.25 times as large, and clouds vary.
FACTOR = 2
# Below this capacity, the time of a layer does not depend on it.
LEAST = 1024


def wasted(
    subject: Subject,
    examples: Sequence[Arguments],
    held: frozenset[str],
    site: Site,
    own: str | None,
) -> list[Finding]:
    """Report voxel sets whose capacity is far larger than the examples need.

    The sets are arguments, or computed by the subject from such arguments. A capacity is too large
    if it is more than twice the default capacity for the example with the most voxels. All rows of
    the capacity take memory, and on accelerators also time. Small capacities, and those that a plan
    chooses on CPUs, are not reported. `held` has the names of the Python numbers that are static. A
    finding is at `site` if no other place is known. Code of the library `own`, if any, counts as
    the user's.
    """
    if not _given(examples[0]):
        return []
    # Keyed by a name for the reader, in the order in which the levels are made.
    levels: dict[Any, list[tuple[int, int]]] = {}
    sites: dict[Any, tuple[Site, str]] = {}
    # Where padding costs only memory, a plan gives levels extra rows for scans that it did not see.
    planned: set[Any] = set()
    for arguments in examples:
        for name, geometry in _given(arguments):
            levels.setdefault(name, []).append((geometry.capacity, int(geometry.count)))
            sites[name] = site, f"argument `{name}`"
        for key, where, geometry, count in _made(subject, arguments, held, own):
            if has_ladder() and geometry.capacity == dict(geometry.level_capacities).get(
                geometry.stride
            ):
                planned.add(key)
            levels.setdefault(key, []).append((geometry.capacity, count))
            sites[key] = where or site, f"the level of stride {geometry.stride}"
    found = []
    for key, sizes in levels.items():
        if key in planned:
            continue
        capacity, count = max(c for c, _ in sizes), max(n for _, n in sizes)
        enough = bucket_capacity(count)
        if capacity < LEAST or capacity <= FACTOR * default_capacity(count):
            continue
        where, name = sites[key]
        text = f"{name} has a capacity of {capacity} rows, and the examples use {count} of them"
        fix = ADVICE["VX309"].format(enough=enough, count=count)
        found.append(Finding("VX309", where, text, fix=fix))
    return found


def _given(arguments: Arguments) -> list[tuple[str, VoxelGeometry]]:
    """Return the voxel geometries among the arguments, as ``(name, geometry)``."""
    values = arguments.unflatten([leaf.value for leaf in arguments.leaves])
    found, position = [], 0
    for part in jax.tree.leaves(values, is_leaf=lambda v: isinstance(v, VoxelGeometry)):
        name = arguments.leaves[position].name
        position += len(jax.tree.leaves(part))
        if isinstance(part, VoxelGeometry):
            found.append((name.removesuffix(".coords").removesuffix(".geometry"), part))
    return found


def _made(
    subject: Subject, arguments: Arguments, held: frozenset[str], own: str | None
) -> list[tuple[Any, Site | None, VoxelGeometry, int]]:
    """Return ``(key, site, geometry, rows in use)`` of each voxel set that the subject computes.

    The subject is traced with the example values, and the arguments named in `held` are static. The
    site is the place in the user's code that computes the set, or None. The key is
    ``(site, tensor stride)``. Voxel sets among the arguments are left out.
    """
    found: dict[int, tuple[VoxelGeometry, Site | None]] = {}

    def recorder(request: Any, kernel_map: Any) -> Any:
        del request
        out = kernel_map.out_geometry
        if out is not kernel_map.in_geometry and id(out.coords) not in found:
            where = place(live_frames(sys._getframe(1)), own)
            found[id(out.coords)] = out, where.site if where is not None else None
        return kernel_map

    def handler(kind: str, tracer: Any, context: str) -> Any:
        del kind, context
        return _compat_tracing.example_of(tracer)

    trace = recording.new_trace(time_limit.end())
    values = recording.followed(arguments, held, trace)
    given = {id(v) for v in values}
    # Other checks report the errors that prevent tracing.
    ended = contextlib.suppress(Exception, _compat_tracing.TraceLimit)
    with ended, recording_maps(recorder), recording.by_example(trace, handler):
        arguments.fill(values).call(subject.function)
    subject.paths = {}
    return [
        ((where, out.stride), where, out, int(np.asarray(_compat_tracing.example_of(out.count))))
        for out, where in found.values()
        if id(out.coords) not in given
    ]


# The compiled function that builds a map, as it is called in programs.
_BUILDS = "_neighbors"
# The most bytes of a constant that is compared by value.
_LARGE = 1 << 16
# The address in the default text of an object.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def repeated(closed: Any, site: Site, own: str | None) -> list[Finding]:
    """Report places that build a kernel map that the program (a closed jaxpr) has already built.

    A finding is at `site` if its place is unknown. Code of the library `own`, if any, counts as the
    user's.
    """
    visitor = _Visitor(site, own)
    visitor.visit(closed, [object() for _ in closed.jaxpr.invars], "", None)
    return visitor.found


class _Visitor:
    def __init__(self, site: Site, own: str | None) -> None:
        self.site, self.own = site, own
        self.found: list[Finding] = []
        self.numbers: dict[Any, int] = {}
        self.built: dict[int, Place | None] = {}
        self.texts: dict[int, tuple[Any, str]] = {}

    def number(self, key: Any) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def constant(self, value: Any) -> Any:
        """Return an integer that identifies a constant: equal constants have the same one.

        Large constants are compared by identity.
        """
        if _compat_tracing.is_key(value) or getattr(value, "nbytes", 0) > _LARGE:
            return self.number(("constant", id(value)))
        array = np.asarray(value)
        return self.number((array.dtype.str, array.shape, array.tobytes()))

    def visit(self, body: Any, inputs: list[Any], scope: str, call: Place | None) -> list[Any]:
        """Return an identifier for each result of the jaxpr `body`, given those of its inputs.

        Values with the same identifier, an integer or any other object, are equal. `scope` and
        `call` are the name scope and the place of the call of `body`.
        """
        jaxpr = getattr(body, "jaxpr", body)
        known: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        constants = getattr(body, "consts", None)
        if constants is not None and len(constants) == len(jaxpr.constvars):
            known |= {v: self.constant(c) for v, c in zip(jaxpr.constvars, constants, strict=True)}
        else:
            known |= {v: v for v in jaxpr.constvars}

        def read(atom: Any) -> Any:
            return self.constant(atom.val) if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            given = [read(v) for v in equation.invars]
            where = place_of(equation, call, self.own)
            results = self.results(equation, given, scope_in(equation, scope), where)
            known.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def results(self, equation: Any, given: list[Any], scope: str, where: Place | None) -> Any:
        bodies = programs_in(equation)
        if equation.params.get("name") == _BUILDS and bodies:
            return self.map(equation, given, scope, where)
        called = equation.primitive.name in (*PLAIN_CALLS, *CUSTOM_CALLS) and bodies
        if called and len(_inputs(bodies[0])) == len(given):
            return self.visit(bodies[0], given, scope, where)
        for body in bodies:
            self.visit(body, [object() for _ in _inputs(body)], scope, where)
        key = self.key(equation, given)
        return [self.number((key, i)) for i in range(len(equation.outvars))]

    def map(self, equation: Any, given: list[Any], scope: str, where: Place | None) -> list[int]:
        made = self.number(self.key(equation, given))
        if made in self.built:
            first = self.built[made]
            line = f", in line {first.site.line}" if first is not None else ""
            text = f"builds a kernel map that the program has built already{line}"
            module, at = module_of_scope(scope), where or self.site
            self.found.append(Finding.at(at, "VX310", text, ADVICE["VX310"], module))
        self.built.setdefault(made, where)
        return [self.number((made, i)) for i in range(len(equation.outvars))]

    def key(self, equation: Any, given: list[Any]) -> Any:
        inner = programs_in(equation)
        params = tuple((k, self.text(v, inner)) for k, v in sorted(equation.params.items()))
        return equation.primitive.name, params, tuple(given)

    def text(self, value: Any, inner: list[Any]) -> str:
        """Return an equation's parameter as text; an inner program is printed as its jaxpr."""
        parts = value if isinstance(value, tuple | list) else (value,)
        if not any(part is program for part in parts for program in inner):
            return _ADDRESS.sub("", repr(value))
        if id(value) not in self.texts:
            # Keep the value too, so that no other value gets its id.
            self.texts[id(value)] = value, _ADDRESS.sub("", str(value))
        return self.texts[id(value)][1]


def _inputs(body: Any) -> list[Any]:
    return getattr(body, "jaxpr", body).invars
