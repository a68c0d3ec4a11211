"""Kernel maps that one program builds more than once.

Every value of the program gets a number, the same for values that are computed alike from the same
ones (value numbering; Alpern, Wegman, Zadeck, POPL 1988). Two maps are the same where the numbers
of their coordinates are, whatever functions these went through.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from voxax import _compat
from voxax.check.finding import Finding
from voxax.check.modules import module_of_scope
from voxax.check.source import Place, Site, place_of

# The compiled function that builds a map, as it is called in programs.
_BUILDS = "_neighbors"
# Calls whose body is what they compute, once, of their operands.
_CALLS = {
    "jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip

# Bytes of a constant that is compared by value.
_LARGE = 1 << 16
# In the text of what has no better one.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def repeated(closed: Any, site: Site, own: str | None) -> list[Finding]:
    """Places that build a map that the program has already.

    Args:
      closed: the program.
      site: where the function is defined.
      own: the library that the function is part of.
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
        """The number of a constant; each large one is a value of its own."""
        if _compat.is_key(value) or getattr(value, "nbytes", 0) > _LARGE:
            return self.number(("constant", id(value)))
        array = np.asarray(value)
        return self.number((array.dtype.str, array.shape, array.tobytes()))

    def visit(self, body: Any, inputs: list[Any], scope: str, call: Place | None) -> list[Any]:
        """The numbers of the results, from those of the inputs."""
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
            inner = "/".join(p for p in (scope, _compat.scope_of(equation)) if p)
            known.update(
                zip(equation.outvars, self.results(equation, given, inner, where), strict=True)
            )
        return [read(v) for v in jaxpr.outvars]

    def results(self, equation: Any, given: list[Any], scope: str, where: Place | None) -> Any:
        bodies = [body for value in equation.params.values() for body in _bodies(value)]
        if equation.params.get("name") == _BUILDS and bodies:
            return self.map(equation, given, scope, where)
        called = equation.primitive.name in _CALLS and bodies
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
            return _ADDRESS.sub("", repr(value))
        if id(value) not in self.texts:
            self.texts[id(value)] = (
                value,
                _ADDRESS.sub("", str(value)),
            )  # the value too, so that no other has its id
        return self.texts[id(value)][1]


def _bodies(value: Any) -> list[Any]:
    """The programs in a parameter, with their constants where it has these."""
    parts = value if isinstance(value, tuple | list) else (value,)
    return [p for p in parts if hasattr(getattr(p, "jaxpr", p), "eqns")]


def _inputs(body: Any) -> list[Any]:
    return getattr(body, "jaxpr", body).invars
