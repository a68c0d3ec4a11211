"""Kernel maps that one program builds more than once.

Every value of the program gets a number, the same for values that are computed alike from the same
ones (value numbering; Alpern, Wegman, Zadeck, POPL 1988). Two maps are the same where the numbers
of their coordinates are, whatever functions these went through.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxax import _compat
from voxax.check.finding import Finding
from voxax.check.modules import module_of_scope
from voxax.check.source import Place, Site, place_of
from voxax.geometry import build

# The compiled function that builds a map, as it is called in programs.
_BUILDS = build._neighbors.__name__
# Calls whose body is what they compute, once, of their operands.
_CALLS = {
    "jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip


def repeated(closed: Any, site: Site, own: str | None) -> list[Finding]:
    """Places that build a map that the program has already.

    Args:
      closed: the program.
      site: where the function is defined.
      own: the library that the function is part of.
    """
    visitor = _Visitor(site, own)
    visitor.visit(closed.jaxpr, [object() for _ in closed.jaxpr.invars], "", None)
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

    def visit(self, jaxpr: Any, inputs: list[Any], scope: str, call: Place | None) -> list[Any]:
        """The numbers of the results, from those of the inputs."""
        known: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= {v: v for v in jaxpr.constvars}

        def read(atom: Any) -> Any:
            if not hasattr(atom, "val"):
                return known[atom]
            value = np.asarray(atom.val)
            return self.number((value.dtype.str, value.shape, value.tobytes()))

        for equation in jaxpr.eqns:
            given = [read(v) for v in equation.invars]
            where = place_of(equation, call, self.own)
            inner = "/".join(p for p in (scope, _compat.scope_of(equation)) if p)
            known.update(
                zip(equation.outvars, self.results(equation, given, inner, where), strict=True)
            )
        return [read(v) for v in jaxpr.outvars]

    def results(self, equation: Any, given: list[Any], scope: str, where: Place | None) -> Any:
        bodies = [body for value in equation.params.values() for body in _bodies(value)]
        if equation.params.get("name") == _BUILDS and bodies:
            return self.map(equation, given, scope, where)
        if equation.primitive.name in _CALLS and bodies:
            variables = [*bodies[0].constvars, *bodies[0].invars]
            if len(bodies[0].invars) == len(given) and len(variables) == len(given):
                return self.visit(bodies[0], given, scope, where)
        for body in bodies:
            self.visit(body, [object() for _ in body.invars], scope, where)
        key = self.key(equation, given)
        return [self.number((key, i)) for i in range(len(equation.outvars))]

    def map(self, equation: Any, given: list[Any], scope: str, where: Place | None) -> list[int]:
        made = self.number(self.key(equation, given))
        if made in self.built:
            first = self.built[made]
            line = f", in line {first.site.line}" if first is not None else ""
            self.found.append(
                Finding(
                    "VX310",
                    where.site if where is not None else self.site,
                    f"builds a kernel map that the program has built already{line}",
                    fix="vx.plan(model, voxels) builds all maps once, before the step. Or hand on "
                    "the same voxels: those that went through jax.jit or a checkpoint of their own "
                    "have lost their maps",
                    module=module_of_scope(scope),
                    callers=where.callers if where is not None else (),
                )
            )
        self.built.setdefault(made, where)
        return [self.number((made, i)) for i in range(len(equation.outvars))]

    def key(self, equation: Any, given: list[Any]) -> Any:
        params = tuple((k, self.text(v)) for k, v in sorted(equation.params.items()))
        return equation.primitive.name, params, tuple(given)

    def text(self, value: Any) -> str:
        """A parameter as text; of an inner program, its source."""
        if not _bodies(value):
            return repr(value)
        if id(value) not in self.texts:
            self.texts[id(value)] = value, str(value)  # the value too, so that no other has its id
        return self.texts[id(value)][1]


def _bodies(value: Any) -> list[Any]:
    parts = value if isinstance(value, tuple | list) else (value,)
    return [body for p in parts for body in [getattr(p, "jaxpr", p)] if hasattr(body, "eqns")]
